/* Linear, softmax and cross-entropy on the CPU, the logits in tiles.
 *
 * Forward: the [N, V] logits are cut as any product is. A task makes one tile in its thread's
 * scratch and leaves, for each of its rows, the maximum and the sum of exponentials there; a tile
 * that holds a row's target leaves that logit too. A second pass joins each row's pieces in the
 * order of the vocabulary.
 *
 * Gradient: the vocabulary is taken in chunks, wide enough for good products, narrow enough that
 * N × chunk numbers stay in the last cache. For each chunk: logits to dl in place, then dw of the
 * chunk (a sum over rows, whole), then dx plus the chunk's part. */
#include "ops/cross_entropy.h"
#include "cpu/gemm.h"
#include "cpu/vec.h"

enum {
    CHUNK_VALUES = 1 << 22, /* of dl that are held at a time, about */
    CHUNK_STEP = 512,       /* a chunk of the vocabulary is a multiple of this */
    JOIN_ROWS = 64          /* rows a task of the second pass joins; a multiple of VLEN */
};

static weft_status check_targets(const int32_t *targets, int64_t rows, int64_t vocabulary,
                                 int64_t *count) {
    *count = 0;
    for (int64_t i = 0; i < rows; i++) {
        if (targets[i] < -1 || targets[i] >= vocabulary)
            return weft_fail(WEFT_EINPUT,
                             "cross_entropy: target %d at row %lld is outside the vocabulary of "
                             "%lld, and only -1 means none",
                             targets[i], (long long)i, (long long)vocabulary);
        *count += targets[i] >= 0;
    }
    return WEFT_OK;
}

/* x [N, E] · w [V, E]ᵀ, the vocabulary from `first` on, `width` of it; `to` gets the logits. */
static gemm_product describe_logits(const weft_exec *x, const weft_node *n, int64_t first,
                                    int64_t width, real *to) {
    const weft_tensor *rows = n->in[0], *w = n->in[1];
    int64_t e = w->shape[1];
    gemm_product p = {.batch = 1, .m = weft_tensor_rows(rows), .n = width, .k = e, .tb = true};
    p.alpha = 1;
    p.a = (gemm_matrix){.ld = e, .bf16 = rows->dtype == WEFT_BF16};
    p.b = (gemm_matrix){.ld = e, .bf16 = w->dtype == WEFT_BF16};
    p.c = (gemm_matrix){.data = to, .ld = width};
    if (!x) return p;
    p.a.data = weft_data(x, rows);
    p.b.data = weft_data(x, w);
    p.b = gemm_part(p.b, 0, first, 0);
    return p;
}

typedef struct {
    const weft_exec *x;
    const weft_node *n;
    gemm_product logits;
    gemm_cut cut;
    const int32_t *targets; /* [N] */
    int64_t rows, vocabulary;
    char *scratch; /* [threads][scratch_bytes] */
    int64_t scratch_bytes;
    /* forward */
    real *most, *sum; /* [pieces, N]: of each row's tile, its maximum and Σ exp(l − maximum) */
    real *picked;     /* [N]: the target's logit */
    /* gradient */
    int64_t first;          /* of the vocabulary, in this chunk */
    const real *lse;        /* [N] */
    real *weight, *penalty; /* [N]: dl = p · weight − [target] · penalty */
} entropy_work;

/* Scratch of one thread: widened operands, and the tile of logits if it has no other place. */
static int64_t tile_bytes(const gemm_product *p, const gemm_cut *cut, bool logits) {
    gemm_product tile = gemm_tile(p, 0, 0, cut->tile_m, 0, cut->tile_n, 0, p->k);
    return KERNEL(gemm_serial_workspace)(&tile) +
           (logits ? real_bytes(cut->tile_m * cut->tile_n) : 0);
}

typedef struct {
    int64_t row, m, column, n, piece;
} tile_place;

static tile_place place_tile(const entropy_work *w, int64_t task) {
    tile_place at = {.piece = task % w->cut.columns};
    at.column = at.piece * w->cut.tile_n;
    at.row = task / w->cut.columns * w->cut.tile_m;
    at.m = min_i64(w->cut.tile_m, w->logits.m - at.row);
    at.n = min_i64(w->cut.tile_n, w->logits.n - at.column);
    return at;
}

/* The maximum of a row, and the sum of exponentials below it. */
static void measure_row(const real *l, int64_t n, real *most, real *sum) {
    vreal top = vset(-INFINITY), total = vset(0);
    int64_t i = 0;
    for (; i + VLEN <= n; i += VLEN)
        top = vmax(top, vload(l + i));
    real high = vmax_lane(top);
    for (int64_t j = i; j < n; j++)
        high = l[j] > high ? l[j] : high;
    *most = high;
    *sum = 0;
    if (high == -INFINITY) return;
    for (i = 0; i + VLEN <= n; i += VLEN)
        total += vexp(vload(l + i) - high);
    *sum = vsum(total);
    if (i == n) return;
    vreal last = vexp(vload_part(l + i, n - i) - high);
    for (int64_t j = 0; j < n - i; j++)
        *sum += last[j];
}

static void measure_tile(void *context, int64_t task, int thread) {
    const entropy_work *w = context;
    tile_place at = place_tile(w, task);
    real *logits = (real *)(w->scratch + thread * w->scratch_bytes);
    gemm_product tile = gemm_tile(&w->logits, 0, at.row, at.m, at.column, at.n, 0, w->logits.k);
    tile.c = (gemm_matrix){.data = logits, .ld = at.n};
    KERNEL(gemm_serial)(&tile, (char *)logits + real_bytes(w->cut.tile_m * w->cut.tile_n));
    for (int64_t i = 0; i < at.m; i++) {
        int64_t row = at.row + i, cell = at.piece * w->rows + row;
        measure_row(logits + i * at.n, at.n, &w->most[cell], &w->sum[cell]);
        int64_t target = w->targets[row] - at.column;
        if (target >= 0 && target < at.n) w->picked[row] = logits[i * at.n + target];
    }
}

/* VLEN rows, or `count` of them: lse from the pieces of the vocabulary, in order. */
static vreal join_pieces(const entropy_work *w, int64_t row, int64_t count) {
    vreal high = vset(-INFINITY), total = vset(0);
    for (int64_t piece = 0; piece < w->cut.columns; piece++)
        high = vmax(high, vload_part(w->most + piece * w->rows + row, count));
    for (int64_t piece = 0; piece < w->cut.columns; piece++) {
        int64_t cell = piece * w->rows + row;
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
    real *lse = weft_data(w->x, w->n->out[2]);
    int64_t end = min_i64((task + 1) * JOIN_ROWS, w->rows);
    for (int64_t row = task * JOIN_ROWS; row < end; row += VLEN) {
        int64_t count = min_i64(VLEN, end - row);
        vstore_part(lse + row, join_pieces(w, row, count), count);
    }
}

/* Where the forward pass keeps things, after the threads' scratch. */
static int64_t forward_bytes(const weft_node *n, int threads, entropy_work *w, char *workspace) {
    w->logits = describe_logits(NULL, n, 0, n->in[1]->shape[0], NULL);
    w->cut = KERNEL(gemm_cut)(1, w->logits.m, w->logits.n, w->logits.k);
    w->scratch_bytes = tile_bytes(&w->logits, &w->cut, true);
    int64_t pieces = real_bytes(w->cut.columns * w->logits.m), at = threads * w->scratch_bytes;
    if (workspace) {
        w->scratch = workspace;
        w->most = (real *)(workspace + at);
        w->sum = (real *)(workspace + at + pieces);
        w->picked = (real *)(workspace + at + 2 * pieces);
    }
    return at + 2 * pieces + real_bytes(w->logits.m);
}

static int64_t cross_entropy_workspace(const weft_node *n, int threads) {
    entropy_work w = {0};
    return forward_bytes(n, threads, &w, NULL);
}

static weft_status cross_entropy_run(weft_exec *x, const weft_node *n) {
    const weft_cross_entropy_attr *attr = n->attr;
    weft_pool *pool = weft_exec_pool(x);
    entropy_work w = {.x = x, .n = n, .targets = weft_data(x, n->in[2])};
    forward_bytes(n, weft_pool_size(pool), &w, weft_workspace(x, n));
    w.rows = w.logits.m;
    w.vocabulary = w.logits.n;
    int64_t count;
    WEFT_TRY(check_targets(w.targets, w.rows, w.vocabulary, &count));
    w.logits = describe_logits(x, n, 0, w.vocabulary, NULL);
    weft_pool_run(pool, w.cut.rows * w.cut.columns, measure_tile, &w);
    weft_pool_run(pool, ceil_div(w.rows, JOIN_ROWS), join_rows, &w);
    const real *lse = weft_data(x, n->out[2]);
    double ce = 0, squares = 0;
    for (int64_t i = 0; i < w.rows; i++) {
        if (w.targets[i] >= 0) ce += (double)lse[i] - (double)w.picked[i];
        squares += (double)lse[i] * (double)lse[i];
    }
    *(real *)weft_data(x, n->out[0]) = (real)(count ? ce / (double)count : 0);
    *(real *)weft_data(x, n->out[1]) =
        (real)(attr->z != 0 ? attr->z * squares / (double)w.rows : 0);
    return WEFT_OK;
}

const weft_kernel KERNEL(cross_entropy) = {.run = cross_entropy_run,
                                           .workspace = cross_entropy_workspace};

static int64_t chunk_width(int64_t rows, int64_t vocabulary) {
    int64_t width = max_i64(CHUNK_VALUES / rows / CHUNK_STEP, 1) * CHUNK_STEP;
    return min_i64(width, vocabulary);
}

/* Logits of a tile, then dl in their place. */
static void differentiate_tile(void *context, int64_t task, int thread) {
    const entropy_work *w = context;
    tile_place at = place_tile(w, task);
    gemm_product tile = gemm_tile(&w->logits, 0, at.row, at.m, at.column, at.n, 0, w->logits.k);
    KERNEL(gemm_serial)(&tile, w->scratch + thread * w->scratch_bytes);
    for (int64_t i = 0; i < at.m; i++) {
        int64_t row = at.row + i, j = 0;
        real *l = (real *)tile.c.data + i * tile.c.ld;
        real lse = w->lse[row], weight = w->weight[row];
        for (; j + VLEN <= at.n; j += VLEN)
            vstore(l + j, vexp(vload(l + j) - lse) * weight);
        if (j < at.n)
            vstore_part(l + j, vexp(vload_part(l + j, at.n - j) - lse) * weight, at.n - j);
        int64_t target = w->targets[row] - w->first - at.column;
        if (target >= 0 && target < at.n) l[target] -= w->penalty[row];
    }
}

static real read_scalar(const weft_exec *x, const weft_tensor *t) {
    return t ? *(const real *)weft_data(x, t) : 0;
}

/* weight and penalty of each row from the gradients that arrive. */
static void weigh_rows(const entropy_work *w, int64_t count) {
    const weft_cross_entropy_attr *attr = w->n->attr;
    real d_ce = count ? read_scalar(w->x, w->n->in[4]) / (real)count : 0;
    real d_z = (real)(2 * attr->z / (double)w->rows) * read_scalar(w->x, w->n->in[5]);
    const real *d_lse = weft_data(w->x, w->n->in[6]);
    for (int64_t i = 0; i < w->rows; i++) {
        w->penalty[i] = w->targets[i] >= 0 ? d_ce : 0;
        w->weight[i] = w->penalty[i] + d_z * w->lse[i] + (d_lse ? d_lse[i] : 0);
    }
}

/* dx [N, E] += dl [N, width] · w [width, E]; `x` NULL: sizes only. */
static gemm_product describe_dx(const weft_exec *x, const weft_node *n, int64_t first,
                                int64_t width, real *dl, real *dx) {
    const weft_tensor *w = n->in[1];
    gemm_product p = {.batch = 1, .m = weft_tensor_rows(n->in[0]), .n = w->shape[1], .k = width};
    p.alpha = 1;
    p.accumulate = first > 0;
    p.a = (gemm_matrix){.data = dl, .ld = width};
    p.b = (gemm_matrix){.ld = w->shape[1], .bf16 = w->dtype == WEFT_BF16};
    p.c = (gemm_matrix){.data = dx, .ld = w->shape[1]};
    if (x) p.b.data = weft_data(x, w);
    p.b = gemm_part(p.b, 0, first, 0);
    return p;
}

/* dw [width, E] = dl [N, width]ᵀ · x [N, E]. */
static gemm_product describe_dw(const weft_exec *x, const weft_node *n, int64_t first,
                                int64_t width, real *dl) {
    const weft_tensor *rows = n->in[0], *w = n->in[1];
    gemm_product p = {.batch = 1, .m = width, .n = w->shape[1], .k = weft_tensor_rows(rows)};
    p.ta = true;
    p.alpha = 1;
    p.a = (gemm_matrix){.data = dl, .ld = width};
    p.b = (gemm_matrix){.ld = w->shape[1], .bf16 = rows->dtype == WEFT_BF16};
    p.c = (gemm_matrix){.ld = w->shape[1], .bf16 = w->dtype == WEFT_BF16};
    if (x) {
        p.b.data = weft_data(x, rows);
        p.c.data = weft_data(x, n->out[1]);
    }
    p.c = gemm_part(p.c, 0, first, 0);
    return p;
}

/* The gradient's workspace: dl [N, chunk], dx [N, E] where the output is bf16, two numbers a row,
 * then what a step at a time needs: the threads' scratch, or a product's own. */
typedef struct {
    int64_t width; /* of a chunk; the last may be narrower */
    int64_t dx, weight, penalty, rest, bytes;
} gradient_layout;

static int64_t step_bytes(const weft_node *n, int64_t width, int threads) {
    gemm_product logits = describe_logits(NULL, n, 0, width, NULL);
    gemm_cut cut = KERNEL(gemm_cut)(1, logits.m, logits.n, logits.k);
    gemm_product dx = describe_dx(NULL, n, 0, width, NULL, NULL);
    gemm_product dw = describe_dw(NULL, n, 0, width, NULL);
    int64_t most = threads * tile_bytes(&logits, &cut, false);
    most = max_i64(most, KERNEL(gemm_workspace)(&dx, threads));
    return max_i64(most, KERNEL(gemm_workspace)(&dw, threads));
}

static gradient_layout lay_out_gradient(const weft_node *n, int threads) {
    int64_t rows = weft_tensor_rows(n->in[0]), vocabulary = n->in[1]->shape[0];
    gradient_layout at = {.width = chunk_width(rows, vocabulary)};
    bool widened = n->out[0] && n->out[0]->dtype == WEFT_BF16;
    int64_t last = vocabulary % at.width ? vocabulary % at.width : at.width;
    at.dx = real_bytes(rows * at.width);
    at.weight = at.dx + (widened ? real_bytes(weft_tensor_count(n->in[0])) : 0);
    at.penalty = at.weight + real_bytes(rows);
    at.rest = at.penalty + real_bytes(rows);
    at.bytes = at.rest + max_i64(step_bytes(n, at.width, threads), step_bytes(n, last, threads));
    return at;
}

static int64_t cross_entropy_back_workspace(const weft_node *n, int threads) {
    return lay_out_gradient(n, threads).bytes;
}

typedef struct {
    const weft_exec *x;
    const weft_tensor *to;
    const real *from;
} rounding;

static void round_row(void *context, int64_t task, int thread) {
    (void)thread;
    const rounding *r = context;
    int64_t n = weft_tensor_width(r->to);
    tile_done(r->x, r->to, task * n, n, r->from + task * n);
}

static weft_status cross_entropy_back_run(weft_exec *x, const weft_node *n) {
    weft_pool *pool = weft_exec_pool(x);
    int threads = weft_pool_size(pool);
    char *workspace = weft_workspace(x, n);
    gradient_layout at = lay_out_gradient(n, threads);
    weft_tensor *dx_out = n->out[0];
    bool widened = dx_out && dx_out->dtype == WEFT_BF16;
    real *dl = (real *)workspace;
    real *dx = widened ? (real *)(workspace + at.dx) : weft_data(x, dx_out);
    entropy_work w = {.x = x, .n = n, .targets = weft_data(x, n->in[2])};
    w.rows = weft_tensor_rows(n->in[0]);
    w.vocabulary = n->in[1]->shape[0];
    w.lse = weft_data(x, n->in[3]);
    w.weight = (real *)(workspace + at.weight);
    w.penalty = (real *)(workspace + at.penalty);
    w.scratch = workspace + at.rest;
    int64_t count;
    WEFT_TRY(check_targets(w.targets, w.rows, w.vocabulary, &count));
    weigh_rows(&w, count);
    for (w.first = 0; w.first < w.vocabulary; w.first += at.width) {
        int64_t width = min_i64(at.width, w.vocabulary - w.first);
        w.logits = describe_logits(x, n, w.first, width, dl);
        w.cut = KERNEL(gemm_cut)(1, w.logits.m, w.logits.n, w.logits.k);
        w.scratch_bytes = tile_bytes(&w.logits, &w.cut, false);
        weft_pool_run(pool, w.cut.rows * w.cut.columns, differentiate_tile, &w);
        if (n->out[1]) {
            gemm_product dw = describe_dw(x, n, w.first, width, dl);
            KERNEL(gemm)(pool, &dw, workspace + at.rest);
        }
        if (dx_out) {
            gemm_product to_dx = describe_dx(x, n, w.first, width, dl, dx);
            KERNEL(gemm)(pool, &to_dx, workspace + at.rest);
        }
    }
    rounding r = {x, dx_out, dx};
    if (widened) weft_pool_run(pool, w.rows, round_row, &r);
    return WEFT_OK;
}

const weft_kernel KERNEL(cross_entropy_back) = {.run = cross_entropy_back_run,
                                                .workspace = cross_entropy_back_workspace};
