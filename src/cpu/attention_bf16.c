/* Attention's forward pass in bf16, tile by tile: as in attention.c a task is a tile of queries of one
 * head, which walks the keys with a running maximum and rescales its sums. A tile of keys and values is
 * copied into panels once for all the blocks of queries of the task. */
#include "cpu/attention_bf16.h"

#if WEFT_REAL == 32

enum { QUERY_BLOCKS_MAX = 16, TASKS_WANTED = 64, BLOCK_ROWS = 32 };

typedef struct {
    attention_problem p;
    const panel_form *form;
    head_rows o;
    real *lse;
    int64_t block;             /* queries of a block: whole panels */
    int64_t query_tile, tiles; /* of a head: a task each */
    real *scratch;
    int64_t scratch_size; /* reals a thread */
} forward;

/* Where a thread keeps its task. `depth`, `keys` and `columns` are dqk, PANEL_KEYS and dv, padded. */
typedef struct {
    uint16_t *queries; /* panels of rows [query_tile], depth terms */
    uint16_t *keys;    /* panels of columns [PANEL_KEYS], depth terms */
    uint16_t *values;  /* panels of columns [columns], as many terms as keys */
    uint16_t *weights; /* [block][PANEL_KEYS] */
    uint16_t *packed;  /* the same in panels of rows */
    real *scores;      /* [block][SCORES_LD]; products, then multiples of ln 2 */
    real *output;      /* [query_tile][columns] */
    real *top, *sum;   /* [query_tile] */
    real *fresh;       /* [block] the largest score of the tile of keys */
    real *rescale;     /* [block] what the sums so far are worth */
    real *bias;        /* [PANEL_KEYS] log2 e · beta · n */
} forward_scratch;

typedef struct {
    const forward *f;
    forward_scratch s;
    head_numbers head;
    int64_t b, h, kv;
    int64_t q0, n_queries; /* the tile */
    int64_t key0, n_keys;
} query_task;

static forward_scratch lay_out_scratch(const forward *f, real_block *at) {
    const weft_attention_attr *a = f->p.a;
    int64_t depth = round_up(a->dqk, f->form->terms), columns = round_up(a->dv, f->form->columns);
    return (forward_scratch){
        .queries = take_halves(at, f->query_tile * depth),
        .keys = take_halves(at, PANEL_KEYS * depth),
        .values = take_halves(at, PANEL_KEYS * columns),
        .weights = take_halves(at, f->block * PANEL_KEYS),
        .packed = take_halves(at, f->block * PANEL_KEYS),
        .scores = take_reals(at, f->block * SCORES_LD),
        .output = take_reals(at, f->query_tile * columns),
        .top = take_reals(at, f->query_tile),
        .sum = take_reals(at, f->query_tile),
        .fresh = take_reals(at, round_up(f->block, VLEN)),
        .rescale = take_reals(at, round_up(f->block, VLEN)),
        .bias = take_reals(at, PANEL_KEYS),
    };
}

/* All that follows from the node's attributes. */
static forward describe(const weft_node *n) {
    forward f = {.p.a = ATTR(n, weft_attention_attr), .form = KERNEL(panel_bf16)()};
    /* By the shape alone: larger tiles copy the keys less often, smaller ones give more tasks. */
    const weft_attention_attr *a = f.p.a;
    f.block = round_up(BLOCK_ROWS, f.form->rows);
    int64_t blocks = QUERY_BLOCKS_MAX, heads = a->batch * a->heads;
    while (blocks > 1 && (heads * ceil_div(a->queries, blocks * f.block) < TASKS_WANTED ||
                          (blocks - 1) * f.block >= a->queries))
        blocks--;
    f.query_tile = blocks * f.block;
    f.tiles = ceil_div(a->queries, f.query_tile);
    real_block measure = {NULL, 0};
    lay_out_scratch(&f, &measure);
    f.scratch_size = measure.used;
    return f;
}

bool KERNEL(attention_bf16_runs)(const weft_node *n) {
    return n->out[0]->dtype == WEFT_BF16 && fits_bf16(ATTR(n, weft_attention_attr), n->in);
}

/* How many keys of the tile the query at `row` of the task sees. */
static int64_t seen_by(const query_task *t, int64_t row) {
    if (!t->f->p.a->causal) return t->n_keys;
    return max_i64(0, min_i64(t->n_keys, t->q0 + row + 1 - t->key0));
}

/* How many of the first keys of the tile the query at `row` does not see. */
static int64_t hidden_from(const query_task *t, int64_t row) {
    if (!hides_keys(&t->f->p)) return 0;
    return max_i64(0, min_i64(t->n_keys, first_key_of(&t->f->p, t->b, t->q0 + row) - t->key0));
}

static bool sees_some(const query_task *t, int64_t row) {
    return seen_by(t, row) > hidden_from(t, row);
}

/* Products of a row to scores, −inf beside the keys that it sees; returns the largest. */
static real finish_row(real *scores, real factor, const real *bias, real softcap, int64_t hidden,
                       int64_t seen, int64_t width) {
    vreal most = vset(-INFINITY), slope;
    int64_t from = round_up(hidden, VLEN);
    for (int64_t j = 0; j < width; j += VLEN) {
        vreal x = vload(scores + j) * factor + vload(bias + j);
        if (softcap > 0) x = vsoftcap(x, softcap, &slope);
        vstore(scores + j, x);
        if (j >= from && j + VLEN <= seen) most = vmax(x, most);
    }
    for (int64_t j = 0; j < hidden; j++)
        scores[j] = -INFINITY;
    for (int64_t j = seen; j < width; j++)
        scores[j] = -INFINITY;
    if (hidden % VLEN) most = vmax(vload(scores + hidden / VLEN * VLEN), most);
    if (seen % VLEN && seen < width) most = vmax(vload(scores + seen / VLEN * VLEN), most);
    return vmax_lane(most);
}

/* The scores of a row to weights; returns their sum. */
static real softmax_row(real *scores, int64_t width, real top, uint16_t *weights) {
    vreal tops[2] = {vset(top), vset(top)}, sums[2] = {vset(0), vset(0)};
    int64_t j = softmax_many(scores, width / (2 * VLEN), tops, sums) * 2 * VLEN;
    for (; j < width; j += VLEN) {
        vreal weight = vexp2_low(vload(scores + j) - tops[0]);
        vstore(scores + j, weight);
        sums[0] += weight;
    }
    for (j = 0; j < width; j += VLEN)
        vround(weights + j, vload(scores + j));
    return vsum(sums[0] + sums[1]);
}

/* Weights of a block of queries; the sums of weights join the rows' own. */
static void softmax_block(const query_task *t, int64_t row, int64_t rows, int64_t width) {
    const forward_scratch *s = &t->s;
    real factor = LOG2_E * t->head.scale, softcap = LOG2_E * (real)t->f->p.a->softcap;
    for (int64_t i = 0; i < rows; i++)
        s->fresh[i] = finish_row(s->scores + i * SCORES_LD, factor, s->bias, softcap,
                                 hidden_from(t, row + i), seen_by(t, row + i), width);
    /* The block's new largest scores, and what the sums so far are worth. */
    for (int64_t i = 0; i < rows; i++) {
        real old = s->top[row + i], top = old > s->fresh[i] ? old : s->fresh[i];
        s->fresh[i] = sees_some(t, row + i) ? old - top : 0;
        s->top[row + i] = top;
    }
    for (int64_t i = 0; i < rows; i += VLEN)
        vstore(s->rescale + i, vexp2_low(vload(s->fresh + i)));
    for (int64_t i = 0; i < rows; i++) {
        uint16_t *weights = s->weights + i * PANEL_KEYS;
        if (!sees_some(t, row + i)) {
            memset(weights, 0, (size_t)width * sizeof *weights);
            continue;
        }
        real sum = softmax_row(s->scores + i * SCORES_LD, width, s->top[row + i], weights);
        s->sum[row + i] = s->sum[row + i] * s->rescale[i] + sum;
    }
}

/* A block of queries against the tile of keys. */
static void attend_block(const query_task *t, int64_t row) {
    const panel_form *f = t->f->form;
    const weft_attention_attr *a = t->f->p.a;
    const forward_scratch *s = &t->s;
    int64_t rows = min_i64(t->f->block, t->n_queries - row), seen = seen_by(t, row + rows - 1);
    if (seen <= hidden_from(t, row)) return;
    /* The block's sums begin with the first tile that one of its queries sees. */
    bool begun = t->key0 > first_key_of(&t->f->p, t->b, t->q0 + row);
    int64_t depth = round_up(a->dqk, f->terms), columns = round_up(a->dv, f->columns),
            m = round_up(rows, f->rows);
    int64_t terms = round_up(seen, f->terms), width = terms <= PANEL_HALF ? PANEL_HALF : PANEL_KEYS;
    multiply_panels(f, m, round_up(seen, f->columns), depth, s->queries + row * depth,
                    f->rows * depth, s->keys, f->columns * depth, 1, false, s->scores, SCORES_LD);
    softmax_block(t, row, rows, width);
    gemm_matrix weights = {.data = s->weights, .ld = PANEL_KEYS, .bf16 = true};
    f->pack_rows(weights, false, rows, terms, s->packed);
    for (int64_t i = 0; begun && i < rows; i++) {
        real factor = s->rescale[i], *out = s->output + (row + i) * columns;
        for (int64_t d = 0; factor != 1 && d < columns; d++)
            out[d] *= factor;
    }
    multiply_panels(f, m, columns, terms, s->packed, f->rows * terms, s->values,
                    f->columns * round_up(t->n_keys, f->terms), 1, begun, s->output + row * columns,
                    columns);
}

WEFT_TASK(attend_tile, const forward *f) {
    const weft_attention_attr *a = f->p.a;
    real_block memory = {f->scratch + thread * f->scratch_size, 0};
    int64_t bh = task / f->tiles, tile = f->tiles - 1 - task % f->tiles;
    query_task t = {.f = f, .b = bh / a->heads, .h = bh % a->heads, .q0 = tile * f->query_tile};
    t.s = lay_out_scratch(f, &memory);
    t.kv = key_head_of(a, t.h);
    t.head = numbers_of_head(&f->p, t.h);
    t.n_queries = min_i64(f->query_tile, a->queries - t.q0);
    if (f->form->begin) f->form->begin();
    f->form->pack_rows(rows_of_head(&f->p, &f->p.q, t.b, t.q0, t.h), false, t.n_queries, a->dqk,
                       t.s.queries);
    for (int64_t i = 0; i < f->query_tile; i++) {
        t.s.top[i] = -INFINITY;
        t.s.sum[i] = 0;
    }
    int64_t end = a->causal ? t.q0 + t.n_queries : a->keys;
    t.key0 = first_key_of(&f->p, t.b, t.q0) / PANEL_KEYS * PANEL_KEYS;
    for (; t.key0 < end; t.key0 += PANEL_KEYS) {
        t.n_keys = min_i64(PANEL_KEYS, end - t.key0);
        gemm_matrix k = rows_of_head(&f->p, &f->p.k, t.b, t.key0, t.kv);
        gemm_matrix v = rows_of_head(&f->p, &f->p.v, t.b, t.key0, t.kv);
        f->form->pack_columns(k, false, t.n_keys, a->dqk, t.s.keys);
        f->form->pack_columns(v, true, a->dv, t.n_keys, t.s.values);
        const real *n = f->p.n ? f->p.n + (t.b * a->kv_heads + t.kv) * a->keys + t.key0 : NULL;
        for (int64_t j = 0; j < PANEL_KEYS; j++)
            t.s.bias[j] = n && j < t.n_keys ? LOG2_E * t.head.beta * n[j] : 0;
        for (int64_t row = 0; row < t.n_queries; row += f->block)
            attend_block(&t, row);
    }
    int64_t columns = round_up(a->dv, f->form->columns);
    uint16_t *o = weft_data(f->p.x, f->o.t);
    for (int64_t i = 0; i < t.n_queries; i++) {
        real *from = t.s.output + i * columns, factor = 1 / t.s.sum[i];
        for (int64_t d = 0; d < a->dv; d++)
            from[d] *= factor;
        round_bf16(o + head_row_at(&f->o, t.b, t.q0 + i, t.h), from, a->dv);
        f->lse[(t.b * a->heads + t.h) * a->queries + t.q0 + i] =
            LN_2 * t.s.top[i] + (real)log((double)t.s.sum[i]);
    }
    if (f->form->end) f->form->end();
}

DEFINE_KERNEL_IN(attention_bf16, threads *describe(n).scratch_size *(int64_t)sizeof(real)) {
    forward f = describe(n);
    f.p = make_problem(x, n, n->in);
    const weft_attention_attr *a = f.p.a;
    f.o = make_head_rows(n->out[0], a->heads, a->dv, a->queries);
    f.lse = weft_data(x, n->out[1]);
    f.scratch = weft_workspace(x, n);
    return run_tasks(x, a->batch * a->heads * f.tiles, attend_tile, &f);
}

#endif
