/* Linear layers and matrix products on the CPU: a node's tensors as the matrices of gemm.h, and
 * the gradient of a bias, with gelu's gradient or alone.
 *
 * A node that sums several products is one product after the other, each with the sum so far as its
 * addend; the last does what comes behind the sum.
 *
 * The bias gradient sums the rows of each column. Rows are cut into bands of a fixed height and
 * columns into strips; a task sums one strip of one band, four rows at a time, and the bands' sums
 * are added in order. Behind gelu it makes the rows first. */
#include "ops/linear.h"
#include "cpu/chunks.h"
#include "cpu/gemm.h"
#include "ops/gated.h"

enum { BAND = 256, STRIP = 512, TOGETHER = 4 };

/* A tensor as a batch of [rows, columns]; groups inside: the group is the second dimension. */
static gemm_matrix as_matrix(void *data, const weft_tensor *t, int64_t rows, int64_t columns,
                             int64_t groups, bool inside) {
    return (gemm_matrix){.data = data,
                         .ld = inside ? groups * columns : columns,
                         .stride = inside ? columns : rows * columns,
                         .bf16 = t->dtype == WEFT_BF16,
                         .i8 = t->dtype == WEFT_I8};
}

/* Product i of the node; `x` NULL: without addresses, for sizes. */
static gemm_product describe_product(const weft_exec *x, const weft_node *n, int i) {
    const weft_matmul_attr *attr = n->attr;
    weft_matmul_pair pair = weft_matmul_pair_of(n, i);
    const weft_tensor *a = pair.a, *b = pair.b, *y = n->out[0];
    weft_matmul_sizes s = weft_matmul_measure(&pair.attr, a, b);
    weft_matmul_form form = pair.attr.form;
    bool outer = form == WEFT_MATMUL_OUTER || form == WEFT_MATMUL_GROUPED_OUTER;
    bool grouped = form == WEFT_MATMUL_GROUPED, last = i == attr->more;
    bool ta = pair.attr.ta || outer, tb = pair.attr.tb;
    gemm_product p = {.batch = s.groups, .m = s.m, .n = s.n, .k = s.k, .ta = ta, .tb = tb};
    p.alpha = (real)pair.attr.alpha;
    p.alone = pair.attr.alone;
    p.gelu = last && attr->act == WEFT_ACT_GELU;
    p.gelu_back = last && attr->act == WEFT_ACT_GELU_BACK;
    p.a = as_matrix(x ? weft_data(x, a) : NULL, a, ta ? s.k : s.m, ta ? s.m : s.k, s.groups,
                    grouped || form == WEFT_MATMUL_GROUPED_OUTER);
    p.b = as_matrix(x ? weft_data(x, b) : NULL, b, tb ? s.n : s.k, tb ? s.k : s.n, s.groups,
                    form == WEFT_MATMUL_GROUPED_OUTER);
    if (p.b.i8) p.b.ld = weft_matmul_i8_columns(s.k);
    p.c = as_matrix(x ? weft_data(x, y) : NULL, y, s.m, s.n, s.groups, grouped);
    if (!x) return p;
    const weft_tensor *bias = i == 0 ? n->in[WEFT_MATMUL_BIAS] : NULL;
    if (bias) p.bias = as_matrix(weft_data(x, bias), bias, 1, s.n, 1, false);
    p.addend = p.pre = p.c;
    p.addend.data = weft_data(x, i == 0 ? n->in[WEFT_MATMUL_ADDEND] : y);
    p.pre.data = p.gelu_back ? weft_data(x, n->in[WEFT_MATMUL_AT]) : NULL;
    if (p.gelu) p.pre.data = weft_data(x, n->out[1]);
    return p;
}

static int64_t sums_bytes(int64_t rows, int64_t columns) {
    return real_bytes(ceil_div(rows, BAND) * columns);
}

typedef struct {
    const weft_exec *x;
    const weft_node *n;
    const weft_tensor *dy, *db;
    bool gelu; /* the rows are dy times gelu's slope, which is an output too */
    int64_t rows, columns, strips;
    real *sums; /* [bands, columns] */
} bias_run;

/* n values of a row from element `at` on. */
static const real *take_row(const bias_run *b, int64_t at, int64_t n, real *scratch) {
    const real *dy = tile_in(b->x, b->dy, at, n, scratch);
    if (!b->gelu) return dy;
    real widened[STRIP];
    const real *x = tile_in(b->x, b->n->in[1], at, n, widened);
    real *dx = tile_out(b->x, b->n->out[0], at, scratch);
    vgelu_back(dx, dy, x, n);
    tile_done(b->x, b->n->out[0], at, n, dx);
    return dx;
}

WEFT_TASK(sum_band, const bias_run *b) {
    int64_t band = task / b->strips, column = task % b->strips * STRIP;
    int64_t n = min_i64(STRIP, b->columns - column);
    int64_t end = min_i64((band + 1) * BAND, b->rows);
    real rows[TOGETHER][STRIP];
    real *restrict sum = b->sums + band * b->columns + column;
    memset(sum, 0, (size_t)n * sizeof(real));
    for (int64_t i = band * BAND; i < end; i += TOGETHER) {
        const real *dy[TOGETHER];
        int64_t count = min_i64(TOGETHER, end - i);
        for (int64_t r = 0; r < count; r++)
            dy[r] = take_row(b, (i + r) * b->columns + column, n, rows[r]);
        if (count == TOGETHER)
            for (int64_t j = 0; j < n; j++)
                sum[j] += (dy[0][j] + dy[1][j]) + (dy[2][j] + dy[3][j]);
        else
            for (int64_t r = 0; r < count; r++)
                for (int64_t j = 0; j < n; j++)
                    sum[j] += dy[r][j];
    }
}

WEFT_TASK(add_bands, const bias_run *b) {
    int64_t column = task * STRIP, n = min_i64(STRIP, b->columns - column);
    real total[STRIP];
    memcpy(total, b->sums + column, (size_t)n * sizeof(real));
    for (int64_t band = 1; band < ceil_div(b->rows, BAND); band++)
        for (int64_t j = 0; j < n; j++)
            total[j] += b->sums[band * b->columns + column + j];
    write_reals(b->x, b->db, column, n, total);
}

static weft_status sum_columns(weft_exec *x, const weft_node *n, const weft_tensor *dy,
                               const weft_tensor *db, bool gelu) {
    bias_run b = {.x = x, .n = n, .dy = dy, .db = db, .gelu = gelu};
    b.columns = weft_tensor_count(db);
    b.rows = weft_tensor_count(dy) / b.columns;
    b.strips = ceil_div(b.columns, STRIP);
    b.sums = weft_workspace(x, n);
    run_tasks(x, ceil_div(b.rows, BAND) * b.strips, sum_band, &b);
    return run_tasks(x, b.strips, add_bands, &b);
}

DEFINE_WORKSPACE(bias_back, sums_bytes(weft_tensor_rows(n->in[0]), weft_tensor_width(n->in[0])))
DEFINE_KERNEL_AS(bias_back, sum_columns(x, n, n->in[0], n->out[0], false),
                 .workspace = bias_back_workspace)

DEFINE_KERNEL_AS(gelu_bias_back, sum_columns(x, n, n->in[0], n->out[1], true),
                 .workspace = bias_back_workspace)

static int64_t matmul_workspace(const weft_node *n, int threads) {
    const weft_matmul_attr *attr = n->attr;
    int64_t bytes = 0;
    for (int i = 0; i <= attr->more; i++) {
        gemm_product p = describe_product(NULL, n, i);
        bytes = max_i64(bytes, p.b.i8 ? KERNEL(i8_rows_workspace)(&p)
                                      : KERNEL(gemm_workspace)(&p, threads));
        if (attr->sums) bytes = max_i64(bytes, sums_bytes(p.m, p.n));
    }
    return bytes;
}

typedef struct {
    const weft_exec *x;
    const weft_tensor *y;
    int64_t group;
} deviations_run;

/* Of one group of columns of a row, in place. */
WEFT_TASK(make_deviations, const deviations_run *d) {
    int64_t half = d->group / 2;
    apply_tensors(d->x, deviation_vector, 1, &d->y, d->y, task * d->group + half, half, NULL);
}

DEFINE_KERNEL(matmul, .workspace = matmul_workspace) {
    const weft_matmul_attr *attr = n->attr;
    for (int i = 0; i <= attr->more; i++) {
        gemm_product p = describe_product(x, n, i);
        if (p.b.i8)
            KERNEL(i8_rows)(weft_exec_pool(x), &p, weft_workspace(x, n));
        else
            KERNEL(gemm)(weft_exec_pool(x), &p, weft_workspace(x, n));
    }
    if (attr->act == WEFT_ACT_DEVIATIONS) {
        deviations_run d = {x, n->out[0], attr->group};
        return run_tasks(x, weft_tensor_count(d.y) / d.group, make_deviations, &d);
    }
    return attr->sums ? sum_columns(x, n, n->out[0], n->out[1], false) : WEFT_OK;
}

/* Gated linear layers, piece by piece: the kernels of the nodes that they stand for. The products wait for the
 * processor and not for memory, so there is nothing to win by more. */
extern const weft_kernel KERNEL(silu_mul);

static int64_t gated_linear_workspace(const weft_node *n, int threads) {
    int64_t most = 0;
    for (int out = WEFT_GATED_GATE; out <= WEFT_GATED_UP; out++) {
        weft_gated_part part;
        weft_gated_product(n, out, &part);
        most = max_i64(most, KERNEL(matmul).workspace(&part.node, threads));
    }
    return most;
}

DEFINE_KERNEL(gated_linear, .workspace = gated_linear_workspace) {
    weft_gated_part part;
    for (int out = WEFT_GATED_GATE; out <= WEFT_GATED_UP; out++) {
        weft_gated_product(n, out, &part);
        WEFT_TRY(KERNEL(matmul).run(x, &part.node));
    }
    weft_gated_silu_mul(n, &part);
    return KERNEL(silu_mul).run(x, &part.node);
}
