/* Linear layers and matrix products on the CPU: a node's tensors as the matrices of gemm.h, and
 * the gradient of a bias, with gelu's gradient or alone.
 *
 * The bias gradient sums the rows of each column. Rows are cut into bands of a fixed height and
 * columns into strips; a task sums one strip of one band, four rows at a time, and the bands' sums
 * are added in order. Behind gelu it makes the rows first. */
#include "ops/linear.h"
#include "cpu/gemm.h"
#include "cpu/vec.h"

enum { BAND = 256, STRIP = 512, TOGETHER = 4 };

/* A tensor as a batch of [rows, columns]; groups inside: the group is the second dimension. */
static gemm_matrix as_matrix(void *data, const weft_tensor *t, int64_t rows, int64_t columns,
                             int64_t groups, bool inside) {
    return (gemm_matrix){.data = data,
                         .ld = inside ? groups * columns : columns,
                         .stride = inside ? columns : rows * columns,
                         .bf16 = t->dtype == WEFT_BF16};
}

/* The node as a product; `x` NULL: without addresses, for sizes. */
static gemm_product describe_product(const weft_exec *x, const weft_node *n) {
    const weft_matmul_attr *attr = n->attr;
    const weft_tensor *a = n->in[0], *b = n->in[1], *y = n->out[0];
    weft_matmul_sizes s = weft_matmul_measure(attr, a, b);
    bool outer = attr->form == WEFT_MATMUL_OUTER || attr->form == WEFT_MATMUL_GROUPED_OUTER;
    bool grouped = attr->form == WEFT_MATMUL_GROUPED;
    bool ta = attr->ta || outer, tb = attr->tb;
    gemm_product p = {.batch = s.groups, .m = s.m, .n = s.n, .k = s.k, .ta = ta, .tb = tb};
    p.alpha = (real)attr->alpha;
    p.gelu = attr->act == WEFT_ACT_GELU;
    p.gelu_back = attr->act == WEFT_ACT_GELU_BACK;
    p.a = as_matrix(x ? weft_data(x, a) : NULL, a, ta ? s.k : s.m, ta ? s.m : s.k, s.groups,
                    grouped || attr->form == WEFT_MATMUL_GROUPED_OUTER);
    p.b = as_matrix(x ? weft_data(x, b) : NULL, b, tb ? s.n : s.k, tb ? s.k : s.n, s.groups,
                    attr->form == WEFT_MATMUL_GROUPED_OUTER);
    p.c = as_matrix(x ? weft_data(x, y) : NULL, y, s.m, s.n, s.groups, grouped);
    if (!x) return p;
    const weft_tensor *bias = n->in[WEFT_MATMUL_BIAS];
    if (bias) p.bias = as_matrix(weft_data(x, bias), bias, 1, s.n, 1, false);
    p.addend = p.pre = p.c;
    p.addend.data = weft_data(x, n->in[WEFT_MATMUL_ADDEND]);
    p.pre.data = weft_data(x, p.gelu_back ? n->in[WEFT_MATMUL_AT] : n->out[1]);
    return p;
}

static weft_status matmul_run(weft_exec *x, const weft_node *n) {
    gemm_product p = describe_product(x, n);
    KERNEL(gemm)(weft_exec_pool(x), &p, weft_workspace(x, n));
    return WEFT_OK;
}

static int64_t matmul_workspace(const weft_node *n, int threads) {
    gemm_product p = describe_product(NULL, n);
    return KERNEL(gemm_workspace)(&p, threads);
}

const weft_kernel KERNEL(matmul) = {.run = matmul_run, .workspace = matmul_workspace};

typedef struct {
    const weft_exec *x;
    const weft_node *n;
    const weft_tensor *db;
    bool gelu; /* the rows are dy times gelu's slope, which is an output too */
    int64_t rows, columns, strips;
    real *sums; /* [bands, columns] */
} bias_run;

/* n values of a row from element `at` on. */
static const real *take_row(const bias_run *b, int64_t at, int64_t n, real *scratch) {
    const real *dy = tile_in(b->x, b->n->in[0], at, n, scratch);
    if (!b->gelu) return dy;
    real widened[STRIP];
    const real *x = tile_in(b->x, b->n->in[1], at, n, widened);
    real *dx = tile_out(b->x, b->n->out[0], at, scratch);
    vgelu_back(dx, dy, x, n);
    tile_done(b->x, b->n->out[0], at, n, dx);
    return dx;
}

static void sum_band(void *context, int64_t task, int thread) {
    (void)thread;
    const bias_run *b = context;
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

static void add_bands(void *context, int64_t task, int thread) {
    (void)thread;
    const bias_run *b = context;
    int64_t column = task * STRIP, n = min_i64(STRIP, b->columns - column);
    real total[STRIP];
    memcpy(total, b->sums + column, (size_t)n * sizeof(real));
    for (int64_t band = 1; band < ceil_div(b->rows, BAND); band++)
        for (int64_t j = 0; j < n; j++)
            total[j] += b->sums[band * b->columns + column + j];
    real scratch[STRIP];
    real *db = tile_out(b->x, b->db, column, scratch);
    memcpy(db, total, (size_t)n * sizeof(real));
    tile_done(b->x, b->db, column, n, db);
}

static weft_status run_bias(weft_exec *x, const weft_node *n, const weft_tensor *db, bool gelu) {
    bias_run b = {.x = x, .n = n, .db = db, .gelu = gelu};
    b.columns = weft_tensor_count(db);
    b.rows = weft_tensor_count(n->in[0]) / b.columns;
    b.strips = ceil_div(b.columns, STRIP);
    b.sums = weft_workspace(x, n);
    weft_pool_run(weft_exec_pool(x), ceil_div(b.rows, BAND) * b.strips, sum_band, &b);
    weft_pool_run(weft_exec_pool(x), b.strips, add_bands, &b);
    return WEFT_OK;
}

static weft_status bias_back_run(weft_exec *x, const weft_node *n) {
    return run_bias(x, n, n->out[0], false);
}

static weft_status gelu_bias_back_run(weft_exec *x, const weft_node *n) {
    return run_bias(x, n, n->out[1], true);
}

static int64_t bias_back_workspace(const weft_node *n, int threads) {
    (void)threads;
    return real_bytes(ceil_div(weft_tensor_rows(n->in[0]), BAND) * weft_tensor_width(n->in[0]));
}

const weft_kernel KERNEL(bias_back) = {.run = bias_back_run, .workspace = bias_back_workspace};
const weft_kernel KERNEL(gelu_bias_back) = {.run = gelu_bias_back_run,
                                            .workspace = bias_back_workspace};
