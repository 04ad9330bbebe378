/* Attention's backward pass in bf16: the five products of attention_back.c, for tiles of PANEL_KEYS queries
 * and keys.
 *
 * Queries and gradients of the output of a head are copied into panels once, twice each: as rows for S
 * and dP, as columns for dK and dV. P and dS are made in float, rounded into tiles of bf16, and copied
 * into panels by row for dQ and transposed for dK and dV. Sums are float. attention_walk.h goes from pair
 * to pair. */
#include "cpu/attention_back.h"
#include "cpu/attention_bf16.h"

#if WEFT_REAL == 32

enum { SIDE = PANEL_KEYS, PAIR_KEYS = SIDE, PAIR_QUERIES = SIDE };

typedef struct {
    back_problem g;
    const panel_form *form;
} backward;

/* Where a thread keeps its task. Panels are of rows or of columns, with as many terms as said. */
typedef struct {
    uint16_t *q_rows, *do_rows;       /* [queries]: dqk, dv terms */
    uint16_t *q_columns, *do_columns; /* for each tile of queries [dqk], [dv]: SIDE terms */
    uint16_t *k_columns, *v_columns;  /* [SIDE]: dqk, dv terms */
    uint16_t *k_across;               /* [dqk]: SIDE terms */
    uint16_t *p, *ds;                 /* [SIDE][SIDE], by query */
    uint16_t *packed;                 /* one of them in panels */
    real *lse, *total;                /* [queries]: −log2 e · lse, −⟨dO, O⟩ */
    real *scores, *weights, *dp;      /* [SIDE][SCORES_LD] */
    real *bias;                       /* [SIDE] log2 e · beta · n */
    real *column;                     /* [part_keys] sums of dS over the head's queries */
    real *widened, *other;            /* a row of any width */
    sum_panels dq;                    /* [queries][dqk] of one head, unless dQ has several parts */
    key_sums sums;                    /* unless dK and dV have several parts */
} pair_scratch;

typedef struct {
    const attention_problem *p;
    const panel_form *form;
    pair_scratch s;
    head_numbers head;
    int64_t b, h, kv;
    int64_t first_key, end_key;
    int64_t key0, n_keys, q0, n_queries; /* the pair */
    sum_panels dq;
    key_sums sums;
    double number; /* Σ dS · score */
} pair_task;

static int64_t depth_of(const panel_form *f, int64_t width) {
    return round_up(width, f->terms);
}

static int64_t columns_of(const panel_form *f, int64_t width) {
    return round_up(width, f->columns);
}

static pair_scratch lay_out_scratch(const backward *w, real_block *at) {
    const weft_attention_attr *a = w->g.p.a;
    const panel_form *f = w->form;
    int64_t q = round_up(a->queries, SIDE), dqk = columns_of(f, a->dqk), dv = columns_of(f, a->dv);
    return (pair_scratch){
        .q_rows = take_halves(at, q * depth_of(f, a->dqk)),
        .do_rows = take_halves(at, q * depth_of(f, a->dv)),
        .q_columns = take_halves(at, q * dqk),
        .do_columns = take_halves(at, q * dv),
        .k_columns = take_halves(at, SIDE * depth_of(f, a->dqk)),
        .v_columns = take_halves(at, SIDE * depth_of(f, a->dv)),
        .k_across = take_halves(at, SIDE * dqk),
        .p = take_halves(at, SIDE * SIDE),
        .ds = take_halves(at, SIDE * SIDE),
        .packed = take_halves(at, SIDE * SIDE),
        .lse = take_reals(at, q),
        .total = take_reals(at, q),
        .scores = take_reals(at, SIDE * SCORES_LD),
        .weights = take_reals(at, SIDE * SCORES_LD),
        .dp = take_reals(at, SIDE * SCORES_LD),
        .bias = take_reals(at, SIDE),
        .column = take_reals(at, w->g.split.part_keys),
        .widened = take_reals(at, max_i64(a->dqk, a->dv)),
        .other = take_reals(at, max_i64(a->dqk, a->dv)),
    };
}

bool KERNEL(attention_back_bf16_runs)(const weft_node *n) {
    for (int i = 0; i <= WEFT_ATTN_V; i++)
        if (n->out[i] && n->out[i]->dtype != WEFT_BF16) return false;
    return n->in[0]->dtype == WEFT_BF16 && n->in[1]->dtype == WEFT_BF16 &&
           !n->out[WEFT_ATTN_SCALE] &&
           fits_bf16(ATTR(n, weft_attention_attr), n->in + WEFT_ATTN_BACK_FIRST);
}

/* A tile of queries of a head, and their gradients. */
static void pack_query_tile(const backward *w, const pair_task *t, int64_t q0) {
    const attention_problem *p = &w->g.p;
    const weft_attention_attr *a = p->a;
    const panel_form *f = w->form;
    int64_t rows = min_i64(SIDE, a->queries - q0);
    gemm_matrix q = rows_of_head(p, &p->q, t->b, q0, t->h);
    gemm_matrix d_o = rows_of_head(p, &w->g.d_o, t->b, q0, t->h);
    f->pack_rows(q, false, rows, a->dqk, t->s.q_rows + q0 * depth_of(f, a->dqk));
    f->pack_rows(d_o, false, rows, a->dv, t->s.do_rows + q0 * depth_of(f, a->dv));
    f->pack_columns(q, true, a->dqk, rows, t->s.q_columns + q0 * columns_of(f, a->dqk));
    f->pack_columns(d_o, true, a->dv, rows, t->s.do_columns + q0 * columns_of(f, a->dv));
    const real *lse = w->g.lse + (t->b * a->heads + t->h) * a->queries;
    for (int64_t i = q0; i < q0 + rows; i++) {
        int64_t at = head_row_at(&w->g.o, t->b, i, t->h);
        t->s.lse[i] = -LOG2_E * lse[i];
        t->s.total[i] = -inner_product(tile_in(p->x, w->g.d_o.t, at, a->dv, t->s.widened),
                                       tile_in(p->x, w->g.o.t, at, a->dv, t->s.other), a->dv);
    }
}

static void pack_keys(const backward *w, const pair_task *t) {
    const attention_problem *p = &w->g.p;
    const weft_attention_attr *a = p->a;
    gemm_matrix k = rows_of_head(p, &p->k, t->b, t->key0, t->kv);
    gemm_matrix v = rows_of_head(p, &p->v, t->b, t->key0, t->kv);
    w->form->pack_columns(k, false, t->n_keys, a->dqk, t->s.k_columns);
    w->form->pack_columns(v, false, t->n_keys, a->dv, t->s.v_columns);
    w->form->pack_columns(k, true, a->dqk, t->n_keys, t->s.k_across);
    const real *n = p->n ? p->n + (t->b * a->kv_heads + t->kv) * a->keys + t->key0 : NULL;
    for (int64_t j = 0; j < SIDE; j++)
        t->s.bias[j] = n && j < t->n_keys ? LOG2_E * t->head.beta * n[j] : 0;
}

/* How many keys of the pair the query at `row` of it sees. */
static int64_t seen_by(const pair_task *t, int64_t row) {
    if (!t->p->a->causal) return t->n_keys;
    return max_i64(0, min_i64(t->n_keys, t->q0 + row + 1 - t->key0));
}

/* How many of the first keys of the pair that query does not see. */
static int64_t hidden_from(const pair_task *t, int64_t row) {
    const attention_problem *p = t->p;
    if (!hides_keys(p)) return 0;
    return max_i64(0, min_i64(t->n_keys, first_key_of(p, t->b, t->q0 + row) - t->key0));
}

/* c = A Bᵀ where the pair is visible: rows of queries by columns of keys. */
static void multiply_visible(const pair_task *t, const uint16_t *rows, const uint16_t *columns,
                             int64_t depth, real *c) {
    const panel_form *f = t->form;
    for (int64_t i = 0; i < t->n_queries; i += f->rows) {
        int64_t seen = seen_by(t, min_i64(i + f->rows, t->n_queries) - 1);
        multiply_panels(f, f->rows, round_up(seen, f->columns), depth, rows + i * depth, 0, columns,
                        f->columns * depth, 1, false, c + i * SCORES_LD, SCORES_LD);
    }
}

/* What the exponential needs of a row: the score with key's and query's numbers, and dP − ⟨dO, O⟩. With
 * a soft-cap its slope is in that. */
static void finish_row(const pair_task *t, int64_t row, int64_t hidden, int64_t seen,
                       int64_t width) {
    real *score = t->s.scores + row * SCORES_LD, *weight = t->s.weights + row * SCORES_LD;
    real *dp = t->s.dp + row * SCORES_LD;
    vreal lse = vset(t->s.lse[t->q0 + row]), total = vset(t->s.total[t->q0 + row]);
    real factor = LOG2_E * t->head.scale, softcap = LOG2_E * (real)t->p->a->softcap;
    for (int64_t j = 0; j < width; j += VLEN) {
        vreal x = vload(score + j) * factor + (vload(t->s.bias + j) + lse), slope = vset(1);
        if (softcap > 0) x = vsoftcap(vload(score + j) * factor, softcap, &slope) + lse;
        vstore(score + j, x);
        vstore(weight + j, x);
        vstore(dp + j, (vload(dp + j) + total) * slope);
    }
    for (int64_t j = 0; j < width; j++) {
        if (j == hidden) j = seen;
        if (j >= width) break;
        score[j] = dp[j] = 0;
        weight[j] = -INFINITY;
    }
}

/* P and dS of a row, rounded; what of dS is asked for is added up. */
static ALWAYS_INLINE void softmax_row(pair_task *t, int64_t row, int64_t width, const bool extras,
                                      vreal *number) {
    real *weight = t->s.weights + row * SCORES_LD, *ds = t->s.dp + row * SCORES_LD;
    const real *score = t->s.scores + row * SCORES_LD;
    real *column = t->s.column + t->key0 - t->first_key;
    uint16_t *p_to = t->s.p + row * SIDE, *ds_to = t->s.ds + row * SIDE;
    vreal unused[2] = {vset(0), vset(0)};
    int64_t j = softmax_back_many(weight, ds, width / (2 * VLEN), false, false, unused, unused);
    for (j *= 2 * VLEN; j < width; j += VLEN) {
        vreal p = vexp2(vload(weight + j));
        vstore(weight + j, p);
        vstore(ds + j, p * vload(ds + j));
    }
    for (j = 0; j < width; j += VLEN) {
        vreal exact = vload(ds + j);
        vround(p_to + j, vload(weight + j));
        vreal rounded = vround(ds_to + j, exact);
        if (!extras) continue;
        /* As the product with q has it, so that what cancels there cancels. */
        vstore(column + j, vload(column + j) + rounded);
        *number += exact * vload(score + j);
    }
}

static ALWAYS_INLINE void softmax_rows(pair_task *t, const bool extras) {
    vreal number = vset(0);
    for (int64_t row = 0; row < SIDE; row++) {
        int64_t seen = row < t->n_queries ? seen_by(t, row) : 0, width = 0;
        int64_t hidden = seen > 0 ? hidden_from(t, row) : 0;
        if (seen > hidden) {
            width = seen <= PANEL_HALF ? PANEL_HALF : PANEL_KEYS;
            finish_row(t, row, hidden, seen, width);
            softmax_row(t, row, width, extras, &number);
        }
        size_t rest = (size_t)(SIDE - width) * sizeof(uint16_t);
        memset(t->s.p + row * SIDE + width, 0, rest);
        memset(t->s.ds + row * SIDE + width, 0, rest);
    }
    if (extras) t->number += (double)vsum(number);
}

/* sums[key] += alpha · Σ_query tile[query][key] rows[query]; the rows in panels of columns. */
static void add_over_queries(const pair_task *t, const uint16_t *tile, const uint16_t *rows,
                             int64_t width, real alpha, real *sums) {
    const panel_form *f = t->form;
    gemm_matrix transposed = {.data = (void *)(uintptr_t)tile, .ld = SIDE, .bf16 = true};
    int64_t terms = round_up(t->n_queries, f->terms), columns = round_up(width, f->columns);
    f->pack_rows(transposed, true, t->n_keys, terms, t->s.packed);
    for (int64_t key = 0; key < t->n_keys; key += f->rows) {
        /* The first query that sees one of the keys. */
        int64_t first = 0;
        if (t->p->a->causal) first = max_i64(0, t->key0 + key - t->q0);
        first = first / f->terms * f->terms;
        if (first >= t->n_queries) return;
        multiply_panels(f, f->rows, columns, terms - first,
                        t->s.packed + key * terms + first * f->rows, 0, rows + first * f->columns,
                        f->columns * terms, alpha, true, sums + key * columns, columns);
    }
}

/* dQ[query] += scale · Σ_key dS[query][key] k[key]. */
static void add_over_keys(const pair_task *t) {
    const panel_form *f = t->form;
    gemm_matrix ds = {.data = t->s.ds, .ld = SIDE, .bf16 = true};
    int64_t all = round_up(t->n_keys, f->terms), columns = columns_of(f, t->p->a->dqk);
    f->pack_rows(ds, false, t->n_queries, all, t->s.packed);
    for (int64_t row = 0; row < t->n_queries; row += f->rows) {
        int64_t seen = seen_by(t, min_i64(row + f->rows, t->n_queries) - 1);
        if (seen == 0) continue;
        multiply_panels(f, f->rows, columns, round_up(seen, f->terms), t->s.packed + row * all, 0,
                        t->s.k_across, f->columns * all, t->head.scale, true,
                        t->dq.at + (t->q0 + row) * columns, columns);
    }
}

static void work_tiles(const backward *w, pair_task *t, UNUSED int64_t first) {
    const weft_attention_attr *a = w->g.p.a;
    const panel_form *f = w->form;
    const pair_scratch *s = &t->s;
    int64_t key = t->key0 - t->first_key, dqk = columns_of(f, a->dqk), dv = columns_of(f, a->dv);
    multiply_visible(t, s->q_rows + t->q0 * depth_of(f, a->dqk), s->k_columns, depth_of(f, a->dqk),
                     s->scores);
    multiply_visible(t, s->do_rows + t->q0 * depth_of(f, a->dv), s->v_columns, depth_of(f, a->dv),
                     s->dp);
    EITHER(t->p->n, softmax_rows, t);
    if (w->g.dv.t)
        add_over_queries(t, s->p, s->do_columns + t->q0 * dv, a->dv, 1, t->sums.dv.at + key * dv);
    if (w->g.dk.t)
        add_over_queries(t, s->ds, s->q_columns + t->q0 * dqk, a->dqk, t->head.scale,
                         t->sums.dk.at + key * dqk);
    if (w->g.dq.t) add_over_keys(t);
}

static void begin_task(const backward *w, pair_task *t, UNUSED int64_t task) {
    t->form = w->form;
}

#include "cpu/attention_walk.h"

static void choose_panels(backward *w) {
    w->form = KERNEL(panel_bf16)();
    w->g.columns = w->form->columns;
    w->g.begin = w->form->begin;
    w->g.end = w->form->end;
}

static int64_t attention_back_bf16_workspace(const weft_node *n, int threads) {
    backward w = {.g.p.a = ATTR(n, weft_attention_attr)};
    w.g.split = divide_work(w.g.p.a, SIDE);
    choose_panels(&w);
    int64_t shared = lay_out_workspace(&w, NULL);
    return (shared + threads * w.g.scratch_size) * (int64_t)sizeof(real);
}

DEFINE_KERNEL(attention_back_bf16, .workspace = attention_back_bf16_workspace) {
    backward w = {.g = make_back_problem(x, n, SIDE)};
    choose_panels(&w);
    lay_out_workspace(&w, weft_workspace(x, n));
    run_back(weft_exec_pool(x), &w);
    return WEFT_OK;
}

#endif
