/* The gradient of linear, softmax and cross-entropy on the CPU.
 *
 * Where the forward pass made it as if the losses' own gradients were 1 (cross_entropy.c), and they
 * turn out equal, it is scaled, in place and not at all if they are 1.
 *
 * Otherwise the logits are made again. The vocabulary is taken in chunks, wide enough for good
 * products, narrow enough that N × chunk numbers stay in the last cache. For each chunk: logits to
 * their gradient in place, then dw of the chunk (a sum over rows, whole, so that it can be rounded
 * to bf16), then dx plus the chunk's part. */
#include "cpu/chunks.h"
#include "cpu/cross_entropy.h"

enum {
    CHUNK_VALUES = 1 << 22, /* logits that are held at a time, about */
    CHUNK_STEP = 512,       /* a chunk of the vocabulary is a multiple of this */
    SCALE_VALUES = 1 << 14  /* a task scales */
};

typedef struct {
    const weft_exec *x;
    const weft_node *n;
    const int32_t *targets; /* [N] */
    const real *lse;        /* [N] */
    entropy_upstream upstream;
    entropy_part part;
    gemm_product logits;
    gemm_cut cut;
    int64_t words;        /* of a chunk; the last may be narrower */
    real *l;              /* [N, words of the part] */
    real *dx;             /* [N, E], where the output is bf16 */
    char *rows, *columns; /* x and words as the product's kernel reads them; or a product's own */
} back_work;

/* Logits of a tile, then their gradient in the same place. */
WEFT_TASK(differentiate_tile) {
    const back_work *w = context;
    gemm_place at = tile_of(&w->logits, &w->cut, task).place;
    int64_t ld = w->part.words;
    real *tile = w->l + at.row * ld + at.column;
    KERNEL(gemm_one_tile)(&w->logits, at, w->rows, w->columns, tile, ld);
    for (int64_t i = 0; i < at.m; i++) {
        int64_t row = at.row + i, j = 0;
        int32_t target = w->targets[row];
        real *l = tile + i * ld;
        real lse = w->lse[row];
        real weight = row_weight(w->upstream, target, lse);
        int64_t column = target - w->part.word - at.column;
        bool here = column >= 0 && column < at.n;
        real cap = (real)((const weft_cross_entropy_attr *)w->n->attr)->softcap;
        if (cap > 0) cap_logits(l, at.n, cap);
        real slope = here ? cap_slope(l[column], cap) : 1;
        for (; cap > 0 && j < at.n; j += VLEN) {
            vreal v = vload_n(l + j, min_i64(VLEN, at.n - j));
            vstore_n(l + j, vexp(v - lse) * weight * vcap_slope(v, cap), min_i64(VLEN, at.n - j));
        }
        for (; j + VLEN <= at.n; j += VLEN)
            vstore(l + j, vexp(vload(l + j) - lse) * weight);
        if (j < at.n)
            vstore_part(l + j, vexp(vload_part(l + j, at.n - j) - lse) * weight, at.n - j);
        if (here) l[column] -= row_penalty(w->upstream, target) * slope;
    }
}

/* Sums of dx need more than bf16 between chunks. */
static bool is_widened(const weft_tensor *dx) {
    return dx && dx->dtype == WEFT_BF16;
}

/* `x` NULL: for sizes. */
static gemm_matrix dx_matrix(const weft_exec *x, const weft_node *n, real *sums) {
    const weft_tensor *dx = n->out[0] ? n->out[0] : n->in[WEFT_CE_X];
    if (!is_widened(n->out[0])) return gemm_rows(x, dx, 0);
    return (gemm_matrix){.data = sums, .ld = n->in[WEFT_CE_W]->shape[1]};
}

static int64_t step_bytes(const weft_node *n, int64_t words, int threads) {
    entropy_part part = {.rows = weft_tensor_rows(n->in[WEFT_CE_X]), .words = words};
    gemm_matrix l = {.ld = words};
    gemm_product logits = product_logits(NULL, n, part);
    gemm_product dx = product_back(NULL, n, part, false, l, dx_matrix(NULL, n, NULL), true);
    gemm_product dw =
        product_back(NULL, n, part, true, l, gemm_rows(NULL, n->in[WEFT_CE_W], 0), false);
    int64_t most = KERNEL(gemm_copy_bytes)(&logits, true);
    most = max_i64(most, KERNEL(gemm_workspace)(&dx, threads));
    return max_i64(most, KERNEL(gemm_workspace)(&dw, threads));
}

/* The workspace from `at` on; returns its bytes. Behind what lies there for all chunks is what a step at a time
 * needs. */
static int64_t cut_workspace(const weft_node *n, int threads, char *at, back_work *w) {
    int64_t rows = weft_tensor_rows(n->in[WEFT_CE_X]), words = n->in[WEFT_CE_W]->shape[0];
    int64_t chunk = max_i64(CHUNK_VALUES / rows / CHUNK_STEP, 1) * CHUNK_STEP;
    w->words = min_i64(chunk, words);
    int64_t last = words - (ceil_div(words, w->words) - 1) * w->words;
    entropy_part part = {.rows = rows, .words = w->words};
    gemm_product logits = product_logits(NULL, n, part);
    int64_t sums = is_widened(n->out[0]) ? weft_tensor_count(n->in[WEFT_CE_X]) : 0;
    int64_t used =
        CUT_MEMORY(at, {&w->l, real_bytes(rows * w->words)},
                   {&w->rows, KERNEL(gemm_copy_bytes)(&logits, false)}, {&w->dx, real_bytes(sums)});
    w->columns = at ? at + used : NULL;
    return used + max_i64(step_bytes(n, w->words, threads), step_bytes(n, last, threads));
}

/* The forward pass made gradients as if those of the losses were 1, and both losses have the same one:
 * always so where the z-loss has none. */
static bool only_scales(const weft_node *n) {
    bool made = n->in[WEFT_CE_BACK_DX] || n->in[WEFT_CE_BACK_DW];
    return made && !n->in[WEFT_CE_BACK_D_Z];
}

DEFINE_WORKSPACE(cross_entropy_back,
                 only_scales(n) ? 0 : cut_workspace(n, threads, NULL, &(back_work){0}))
typedef struct {
    const weft_exec *x;
    const weft_tensor *from, *to;
    const real *sums; /* to be rounded, in place of `from` */
    real factor;
} scaling;

WEFT_TASK(scale_values) {
    const scaling *s = context;
    int64_t at = task * SCALE_VALUES, n = min_i64(SCALE_VALUES, weft_tensor_count(s->to) - at);
    if (s->sums)
        round_bf16((uint16_t *)weft_data(s->x, s->to) + at, s->sums + at, n);
    else
        apply_tensors(s->x, scale_vector, 1, &s->from, s->to, at, n, &s->factor);
}

static void scale_tensor(const weft_exec *x, scaling s) {
    bool same = s.from && weft_data(x, s.from) == weft_data(x, s.to);
    if (same && s.factor == 1) return;
    s.x = x;
    int64_t tasks = ceil_div(weft_tensor_count(s.to), SCALE_VALUES);
    run_tasks(x, tasks, scale_values, &s);
}

static weft_status differentiate_anew(weft_exec *x, const weft_node *n, real d_ce, real d_z) {
    weft_pool *pool = weft_exec_pool(x);
    int64_t rows = weft_tensor_rows(n->in[WEFT_CE_X]), words = n->in[WEFT_CE_W]->shape[0], count;
    back_work w = {.x = x, .n = n, .targets = weft_data(x, n->in[WEFT_CE_TARGETS])};
    WEFT_TRY(check_targets(w.targets, rows, words, &count));
    w.lse = weft_data(x, n->in[WEFT_CE_BACK_LSE]);
    w.upstream = scale_upstream(n, divisor_of(x, n->in[WEFT_CE_BACK_COUNT], count), d_ce, d_z);
    cut_workspace(n, weft_pool_size(pool), weft_workspace(x, n), &w);
    gemm_matrix dx = dx_matrix(x, n, w.dx);
    for (int64_t word = 0; word < words; word += w.words) {
        w.part = (entropy_part){0, rows, word, min_i64(w.words, words - word)};
        gemm_matrix l = {.data = w.l, .ld = w.part.words};
        w.logits = product_logits(x, n, w.part);
        w.cut = KERNEL(gemm_tiles)(&w.logits);
        if (w.part.word == 0) KERNEL(gemm_copy)(pool, &w.logits, false, w.rows);
        KERNEL(gemm_copy)(pool, &w.logits, true, w.columns);
        weft_pool_run(pool, w.cut.rows * w.cut.columns, differentiate_tile, &w);
        if (n->out[1]) {
            gemm_matrix dw = gemm_rows(x, n->out[1], w.part.word);
            gemm_product p = product_back(x, n, w.part, true, l, dw, false);
            KERNEL(gemm)(pool, &p, w.columns);
        }
        if (n->out[0]) {
            gemm_product p = product_back(x, n, w.part, false, l, dx, w.part.word > 0);
            KERNEL(gemm)(pool, &p, w.columns);
        }
    }
    if (is_widened(n->out[0])) scale_tensor(x, (scaling){.to = n->out[0], .sums = dx.data});
    return WEFT_OK;
}

static real read_seed(const weft_exec *x, const weft_tensor *t) {
    return t ? *(const real *)weft_data(x, t) : 0;
}

DEFINE_KERNEL(cross_entropy_back, .workspace = cross_entropy_back_workspace) {
    const weft_tensor *made[] = {n->in[WEFT_CE_BACK_DX], n->in[WEFT_CE_BACK_DW]};
    real d_ce = read_seed(x, n->in[WEFT_CE_BACK_D_CE]);
    real d_z = read_seed(x, n->in[WEFT_CE_BACK_D_Z]);
    bool scales = only_scales(n) || ((made[0] || made[1]) && d_ce == d_z);
    if (!scales) return differentiate_anew(x, n, d_ce, d_z);
    for (int i = 0; i < 2; i++)
        if (n->out[i]) scale_tensor(x, (scaling){.from = made[i], .to = n->out[i], .factor = d_ce});
    return WEFT_OK;
}
