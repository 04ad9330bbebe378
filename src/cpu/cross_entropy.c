/* Linear, softmax and cross-entropy on the CPU, the logits in parts.
 *
 * The loss alone: the [N, V] logits are cut as any product is. A task makes one tile in its
 * thread's scratch and leaves, for each of its rows, the maximum and the sum of exponentials there;
 * a tile that holds a row's target leaves that logit too. A second pass joins each row's pieces in
 * the order of the vocabulary.
 *
 * With gradients: some rows at a time, whole, so that their lse is known before the next rows come.
 * The tiles go to one matrix [rows, V], in which the exponentials take the logits' place; a factor
 * for each row and piece then makes them the gradient of the logits, and two products give dx of
 * these rows and add to dw. One exponential a logit, three products, never more than some rows of
 * logits. */
#include "cpu/cross_entropy.h"

enum {
    PART_VALUES = 1 << 24, /* logits that are held at a time with gradients, about */
    PART_ROWS = 64,        /* and no fewer rows than this */
    JOIN_ROWS = 64         /* rows a task of the second pass joins; a multiple of VLEN */
};

typedef struct {
    const weft_exec *x;
    const weft_node *n;
    const int32_t *targets; /* [N] */
    entropy_part part;
    gemm_product logits;
    gemm_cut cut;
    real *kept;       /* [rows, V] of the part; NULL: tiles stay in scratch */
    real *most, *sum; /* [pieces, rows]: of each row's tile, its maximum and Σ exp(l − maximum) */
    real *picked;     /* [N]: the target's logit */
    char *scratch;    /* [threads][scratch_bytes] */
    int64_t scratch_bytes;
    void *product_space;
    entropy_upstream upstream;
} entropy_work;

/* The maximum of a row and the sum of exponentials below it; `keep`: they take the row's place. */
static inline __attribute__((always_inline)) void measure_row(real *l, int64_t n, real *most,
                                                              real *sum, const bool keep) {
    vreal top = vset(-INFINITY), total = vset(0);
    int64_t i = 0;
    for (; i + VLEN <= n; i += VLEN)
        top = vmax(top, vload(l + i));
    real high = vmax_lane(top);
    for (; i < n; i++)
        high = l[i] > high ? l[i] : high;
    *most = high;
    if (high == -INFINITY) high = 0;
    for (i = 0; i + VLEN <= n; i += VLEN) {
        vreal e = vexp(vload(l + i) - high);
        if (keep) vstore(l + i, e);
        total += e;
    }
    *sum = vsum(total);
    if (i == n) return;
    vreal e = vexp(vload_part(l + i, n - i) - high);
    if (keep) vstore_part(l + i, e, n - i);
    for (int64_t j = 0; j < n - i; j++)
        *sum += e[j];
}

static void measure_tile(void *context, int64_t task, int thread) {
    const entropy_work *w = context;
    entropy_tile t = tile_of(&w->logits, &w->cut, task);
    char *scratch = w->scratch + thread * w->scratch_bytes;
    gemm_product tile =
        gemm_tile(&w->logits, 0, t.row, t.rows, t.column, t.columns, 0, w->logits.k);
    if (!w->kept)
        tile.c =
            (gemm_matrix){.data = scratch + tile_operands(&w->logits, &w->cut), .ld = t.columns};
    KERNEL(gemm_serial)(&tile, scratch);
    for (int64_t i = 0; i < t.rows; i++) {
        int64_t row = t.row + i, cell = t.piece * w->part.rows + row;
        real *l = (real *)tile.c.data + i * tile.c.ld;
        int64_t target = w->targets[w->part.row + row] - t.column;
        if (target >= 0 && target < t.columns) w->picked[w->part.row + row] = l[target];
        if (w->kept)
            measure_row(l, t.columns, &w->most[cell], &w->sum[cell], true);
        else
            measure_row(l, t.columns, &w->most[cell], &w->sum[cell], false);
    }
}

/* lse of VLEN rows, or `count` of them, from the pieces of the vocabulary in order. */
static vreal join_pieces(const entropy_work *w, int64_t row, int64_t count) {
    vreal high = vset(-INFINITY), total = vset(0);
    for (int64_t piece = 0; piece < w->cut.columns; piece++)
        high = vmax(high, vload_part(w->most + piece * w->part.rows + row, count));
    for (int64_t piece = 0; piece < w->cut.columns; piece++) {
        int64_t cell = piece * w->part.rows + row;
        total += vload_part(w->sum + cell, count) * vexp(vload_part(w->most + cell, count) - high);
    }
    vreal lse = high;
    for (int64_t i = 0; i < count; i++)
        lse[i] += (real)log((double)total[i]);
    return lse;
}

static void join_rows(void *context, int64_t task, int thread) {
    (void)thread;
    const entropy_work *w = context;
    real *lse = (real *)weft_data(w->x, w->n->out[WEFT_CE_LSE]) + w->part.row;
    int64_t end = min_i64((task + 1) * JOIN_ROWS, w->part.rows);
    for (int64_t row = task * JOIN_ROWS; row < end; row += VLEN) {
        int64_t count = min_i64(VLEN, end - row);
        vstore_part(lse + row, join_pieces(w, row, count), count);
    }
}

/* Exponentials of a tile to gradients of its logits. */
static void differentiate_tile(void *context, int64_t task, int thread) {
    (void)thread;
    const entropy_work *w = context;
    const real *lse = (const real *)weft_data(w->x, w->n->out[WEFT_CE_LSE]) + w->part.row;
    entropy_tile t = tile_of(&w->logits, &w->cut, task);
    for (int64_t i = 0; i < t.rows; i++) {
        int64_t row = t.row + i, j = 0;
        int32_t target = w->targets[w->part.row + row];
        real *l = w->kept + row * w->part.words + t.column;
        vreal above = vset(w->most[t.piece * w->part.rows + row] - lse[row]);
        real factor = vexp(above)[0] * row_weight(w->upstream, target, lse[row]);
        for (; j < t.columns; j++)
            l[j] *= factor;
        if (target >= t.column && target < t.column + t.columns)
            l[target - t.column] -= row_penalty(w->upstream, target);
    }
}

/* lse of the part's rows. */
static void measure_part(weft_pool *pool, entropy_work *w) {
    w->logits = product_logits(w->x, w->n, w->part, w->kept);
    w->cut = KERNEL(gemm_cut)(1, w->logits.m, w->logits.n, w->logits.k);
    int64_t logits = w->kept ? 0 : real_bytes(w->cut.tile_m * w->cut.tile_n);
    w->scratch_bytes = tile_operands(&w->logits, &w->cut) + logits;
    weft_pool_run(pool, w->cut.rows * w->cut.columns, measure_tile, w);
    weft_pool_run(pool, ceil_div(w->part.rows, JOIN_ROWS), join_rows, w);
}

static void differentiate_part(weft_pool *pool, entropy_work *w) {
    const weft_tensor *dx = w->n->out[WEFT_CE_DX], *dw = w->n->out[WEFT_CE_DW];
    weft_pool_run(pool, w->cut.rows * w->cut.columns, differentiate_tile, w);
    if (dw) {
        gemm_product p =
            product_dw(w->x, w->n, w->part, w->kept, rows_of(w->x, dw, 0), w->part.row > 0);
        KERNEL(gemm)(pool, &p, w->product_space);
    }
    if (dx) {
        gemm_product p =
            product_dx(w->x, w->n, w->part, w->kept, rows_of(w->x, dx, w->part.row), false);
        KERNEL(gemm)(pool, &p, w->product_space);
    }
}

static bool has_gradients(const weft_node *n) {
    return n->out[WEFT_CE_DX] || n->out[WEFT_CE_DW];
}

/* Rows that are taken at a time: all for the loss alone. */
static int64_t part_rows(const weft_node *n) {
    int64_t rows = weft_tensor_rows(n->in[WEFT_CE_X]);
    if (!has_gradients(n)) return rows;
    int64_t most = max_i64(PART_VALUES / n->in[WEFT_CE_W]->shape[0], PART_ROWS);
    int64_t parts = ceil_div(rows, most);
    return ceil_div(rows, parts);
}

/* The workspace: picked [N], then what a part of `rows` needs at most. */
typedef struct {
    int64_t most, sum, kept, scratch, bytes;
} entropy_layout;

static entropy_layout lay_out_part(const weft_node *n, int64_t rows, int threads) {
    entropy_part part = {.rows = rows, .words = n->in[WEFT_CE_W]->shape[0]};
    gemm_product logits = product_logits(NULL, n, part, NULL);
    gemm_cut cut = KERNEL(gemm_cut)(1, logits.m, logits.n, logits.k);
    int64_t operands = tile_operands(&logits, &cut);
    entropy_layout at = {.most = real_bytes(weft_tensor_rows(n->in[WEFT_CE_X]))};
    at.sum = at.most + real_bytes(cut.columns * rows);
    at.kept = at.sum + real_bytes(cut.columns * rows);
    if (!has_gradients(n)) {
        at.scratch = at.kept;
        at.bytes = at.scratch + threads * (operands + real_bytes(cut.tile_m * cut.tile_n));
        return at;
    }
    gemm_product dx = product_dx(NULL, n, part, NULL, rows_of(NULL, n->in[WEFT_CE_X], 0), false);
    const weft_tensor *dw_out = n->out[WEFT_CE_DW] ? n->out[WEFT_CE_DW] : n->in[WEFT_CE_W];
    gemm_product dw = product_dw(NULL, n, part, NULL, rows_of(NULL, dw_out, 0), true);
    int64_t space = max_i64(threads * operands, KERNEL(gemm_workspace)(&dx, threads));
    at.scratch = at.kept + real_bytes(rows * part.words);
    at.bytes = at.scratch + max_i64(space, KERNEL(gemm_workspace)(&dw, threads));
    return at;
}

/* The last part may have fewer rows and another cut. */
static int64_t cross_entropy_workspace(const weft_node *n, int threads) {
    int64_t all = weft_tensor_rows(n->in[WEFT_CE_X]), rows = part_rows(n);
    int64_t last = all - (ceil_div(all, rows) - 1) * rows;
    return max_i64(lay_out_part(n, rows, threads).bytes, lay_out_part(n, last, threads).bytes);
}

static void write_losses(const entropy_work *w, int64_t rows, double divisor) {
    const weft_cross_entropy_attr *attr = w->n->attr;
    const real *lse = weft_data(w->x, w->n->out[WEFT_CE_LSE]);
    double ce = 0, squares = 0;
    for (int64_t i = 0; i < rows; i++) {
        if (w->targets[i] >= 0) ce += (double)lse[i] - (double)w->picked[i];
        squares += (double)lse[i] * (double)lse[i];
    }
    real *ce_out = weft_data(w->x, w->n->out[WEFT_CE_LOSS]);
    real *z_out = weft_data(w->x, w->n->out[WEFT_CE_Z]);
    *ce_out = (real)(divisor > 0 ? ce / divisor : 0);
    *z_out = (real)(attr->z != 0 ? attr->z * squares / (double)rows : 0);
}

static weft_status cross_entropy_run(weft_exec *x, const weft_node *n) {
    weft_pool *pool = weft_exec_pool(x);
    char *workspace = weft_workspace(x, n);
    int64_t rows = weft_tensor_rows(n->in[WEFT_CE_X]), words = n->in[WEFT_CE_W]->shape[0];
    int64_t step = part_rows(n), count;
    entropy_work w = {.x = x, .n = n, .targets = weft_data(x, n->in[WEFT_CE_TARGETS])};
    WEFT_TRY(check_targets(w.targets, rows, words, &count));
    w.picked = (real *)workspace;
    double divisor = divisor_of(x, n->in[WEFT_CE_COUNT], count);
    w.upstream = scale_upstream(n, divisor, 1, weft_z_trains(n->attr) ? 1 : 0);
    for (int64_t row = 0; row < rows; row += step) {
        w.part = (entropy_part){row, min_i64(step, rows - row), 0, words};
        entropy_layout at = lay_out_part(n, w.part.rows, weft_pool_size(pool));
        w.most = (real *)(workspace + at.most);
        w.sum = (real *)(workspace + at.sum);
        w.kept = has_gradients(n) ? (real *)(workspace + at.kept) : NULL;
        w.scratch = workspace + at.scratch;
        w.product_space = w.scratch;
        measure_part(pool, &w);
        if (has_gradients(n)) differentiate_part(pool, &w);
    }
    write_losses(&w, rows, divisor);
    return WEFT_OK;
}

const weft_kernel KERNEL(cross_entropy) = {.run = cross_entropy_run,
                                           .workspace = cross_entropy_workspace};
