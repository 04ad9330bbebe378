/* Attention's backward pass in bf16: the five products of attention_back.c, for tiles of PANEL_KEYS queries
 * and keys.
 *
 * A task has some heads of one key head and a range of keys. Queries and gradients of the output of a
 * head are copied into panels once, twice each: as rows for S and dP, as columns for dK and dV. P and dS
 * are made in float, rounded into tiles of bf16, and copied into panels by row for dQ and transposed for
 * dK and dV. Sums are float; where several tasks add to the same rows each has sums of its own, which
 * are added in the order of the tasks. How the work is divided follows from the shape alone. */
#include "cpu/attention_back.h"
#include "cpu/attention_bf16.h"
#include "cpu/gaussian_back.h"

#if WEFT_REAL == 32

enum { SUM_ROWS = 64, SIDE = PANEL_KEYS };

/* Sums over a range of keys. */
typedef struct {
    real *dk, *dv, *dn; /* [part_keys][dqk padded], [part_keys][dv padded], [part_keys] */
} key_sums;

typedef struct {
    back_problem g;
    const panel_form *form;
    real *query_parts; /* [B][H][key_parts][queries][dqk padded], where dQ has several parts */
    real *key_parts;   /* [tasks] key_sums, where dK and dV have several */
    int64_t query_size, key_size; /* reals of one of each */
    real *scratch;
    int64_t scratch_size; /* reals a thread */
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
    real *dq;                         /* [queries][dqk padded] */
    real *row, *other;                /* a row of any width */
    key_sums sums;
} scratch;

typedef struct {
    const backward *w;
    scratch s;
    head_numbers head;
    int64_t b, h, kv, start;
    int64_t first_key, end_key;
    int64_t key0, n_keys, q0, n_queries; /* the pair */
    real *dq;
    key_sums sums;
    double number; /* Σ dS · score */
} pair_task;

static int64_t depth_of(const backward *w, int64_t width) {
    return round_up(width, w->form->terms);
}

static int64_t columns_of(const backward *w, int64_t width) {
    return round_up(width, w->form->columns);
}

static key_sums lay_out_sums(const backward *w, real_block *at) {
    int64_t keys = w->g.split.part_keys;
    return (key_sums){
        .dk = take_reals(at, keys * columns_of(w, w->g.p.a->dqk)),
        .dv = take_reals(at, keys * columns_of(w, w->g.p.a->dv)),
        .dn = take_reals(at, keys),
    };
}

static scratch lay_out_scratch(const backward *w, real_block *at) {
    const weft_attention_attr *a = w->g.p.a;
    int64_t q = round_up(a->queries, SIDE), dqk = columns_of(w, a->dqk), dv = columns_of(w, a->dv);
    scratch s = {
        .q_rows = take_halves(at, q * depth_of(w, a->dqk)),
        .do_rows = take_halves(at, q * depth_of(w, a->dv)),
        .q_columns = take_halves(at, q * dqk),
        .do_columns = take_halves(at, q * dv),
        .k_columns = take_halves(at, SIDE * depth_of(w, a->dqk)),
        .v_columns = take_halves(at, SIDE * depth_of(w, a->dv)),
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
        .row = take_reals(at, max_i64(a->dqk, a->dv)),
        .other = take_reals(at, max_i64(a->dqk, a->dv)),
    };
    if (w->g.split.key_parts == 1) s.dq = take_reals(at, w->query_size);
    if (w->g.split.head_parts == 1) s.sums = lay_out_sums(w, at);
    return s;
}

/* All that follows from the node's attributes, and where it lies from `base` on; NULL: only measured.
 * Returns the reals in front of the threads' scratch. */
static int64_t lay_out(backward *w, const weft_node *n, real *base) {
    const weft_attention_attr *a = ATTR(n, weft_attention_attr);
    real_block at = {base, 0}, own = {NULL, 0}, sums = {NULL, 0};
    w->g.p.a = a;
    w->form = KERNEL(panel_bf16)();
    w->g.split = divide_work(a, SIDE);
    w->query_size = round_up(a->queries, SIDE) * columns_of(w, a->dqk);
    lay_out_sums(w, &sums);
    w->key_size = sums.used;
    int64_t per_head = a->batch * a->heads * w->g.split.key_parts;
    w->g.numbers = (double *)take_reals(&at, head_numbers_size(a, &w->g.split));
    if (w->g.split.key_parts > 1) w->query_parts = take_reals(&at, per_head * w->query_size);
    if (w->g.split.head_parts > 1) w->key_parts = take_reals(&at, w->g.split.tasks * w->key_size);
    lay_out_scratch(w, &own);
    w->scratch_size = own.used;
    w->scratch = base ? base + at.used : NULL;
    return at.used;
}

int64_t KERNEL(attention_back_bf16_workspace)(const weft_node *n, int threads) {
    backward w = {0};
    int64_t shared = lay_out(&w, n, NULL);
    return (shared + threads * w.scratch_size) * (int64_t)sizeof(real);
}

bool KERNEL(attention_back_bf16_runs)(const weft_node *n) {
    for (int i = 0; i <= WEFT_ATTN_V; i++)
        if (n->out[i] && n->out[i]->dtype != WEFT_BF16) return false;
    return n->in[0]->dtype == WEFT_BF16 && n->in[1]->dtype == WEFT_BF16 &&
           !n->out[WEFT_ATTN_SCALE] &&
           fits_bf16(ATTR(n, weft_attention_attr), n->in + WEFT_ATTN_BACK_FIRST);
}

/* A tile of queries of a head, and their gradients. */
static void pack_queries(const pair_task *t, int64_t q0) {
    const backward *w = t->w;
    const attention_problem *p = &w->g.p;
    const weft_attention_attr *a = p->a;
    const panel_form *f = w->form;
    int64_t rows = min_i64(SIDE, a->queries - q0);
    gemm_matrix q = rows_of_head(p, &p->q, t->b, q0, t->h);
    gemm_matrix d_o = rows_of_head(p, &w->g.d_o, t->b, q0, t->h);
    f->pack_rows(q, false, rows, a->dqk, t->s.q_rows + q0 * depth_of(w, a->dqk));
    f->pack_rows(d_o, false, rows, a->dv, t->s.do_rows + q0 * depth_of(w, a->dv));
    f->pack_columns(q, true, a->dqk, rows, t->s.q_columns + q0 * columns_of(w, a->dqk));
    f->pack_columns(d_o, true, a->dv, rows, t->s.do_columns + q0 * columns_of(w, a->dv));
    const real *lse = w->g.lse + (t->b * a->heads + t->h) * a->queries;
    for (int64_t i = q0; i < q0 + rows; i++) {
        int64_t at = head_row_at(&w->g.o, t->b, i, t->h);
        t->s.lse[i] = -LOG2_E * lse[i];
        t->s.total[i] = -inner_product(tile_in(p->x, w->g.d_o.t, at, a->dv, t->s.row),
                                       tile_in(p->x, w->g.o.t, at, a->dv, t->s.other), a->dv);
    }
}

static void pack_keys(const pair_task *t) {
    const backward *w = t->w;
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
    if (!t->w->g.p.a->causal) return t->n_keys;
    return max_i64(0, min_i64(t->n_keys, t->start + t->q0 + row + 1 - t->key0));
}

/* How many of the first keys of the pair that query does not see. */
static int64_t hidden_from(const pair_task *t, int64_t row) {
    const attention_problem *p = &t->w->g.p;
    if (!hides_keys(p)) return 0;
    return max_i64(0, min_i64(t->n_keys, first_key_of(p, t->b, t->q0 + row) - t->key0));
}

/* c = A Bᵀ where the pair is visible: rows of queries by columns of keys. */
static void multiply_visible(const pair_task *t, const uint16_t *rows, const uint16_t *columns,
                             int64_t depth, real *c) {
    const panel_form *f = t->w->form;
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
    real factor = LOG2_E * t->head.scale, softcap = LOG2_E * (real)t->w->g.p.a->softcap;
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
    vreal unused[2];
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

static void softmax_pair(pair_task *t) {
    if (t->w->g.p.n)
        softmax_rows(t, true);
    else
        softmax_rows(t, false);
}

/* sums[key] += alpha · Σ_query tile[query][key] rows[query]; the rows in panels of columns. */
static void add_over_queries(const pair_task *t, const uint16_t *tile, const uint16_t *rows,
                             int64_t width, real alpha, real *sums) {
    const panel_form *f = t->w->form;
    gemm_matrix transposed = {.data = (void *)(uintptr_t)tile, .ld = SIDE, .bf16 = true};
    int64_t terms = round_up(t->n_queries, f->terms), columns = round_up(width, f->columns);
    f->pack_rows(transposed, true, t->n_keys, terms, t->s.packed);
    for (int64_t key = 0; key < t->n_keys; key += f->rows) {
        /* The first query that sees one of the keys. */
        int64_t first = 0;
        if (t->w->g.p.a->causal) first = max_i64(0, t->key0 + key - (t->start + t->q0));
        first = first / f->terms * f->terms;
        if (first >= t->n_queries) return;
        multiply_panels(f, f->rows, columns, terms - first,
                        t->s.packed + key * terms + first * f->rows, 0, rows + first * f->columns,
                        f->columns * terms, alpha, true, sums + key * columns, columns);
    }
}

/* dQ[query] += scale · Σ_key dS[query][key] k[key]. */
static void add_over_keys(const pair_task *t) {
    const panel_form *f = t->w->form;
    gemm_matrix ds = {.data = t->s.ds, .ld = SIDE, .bf16 = true};
    int64_t all = round_up(t->n_keys, f->terms), columns = columns_of(t->w, t->w->g.p.a->dqk);
    f->pack_rows(ds, false, t->n_queries, all, t->s.packed);
    for (int64_t row = 0; row < t->n_queries; row += f->rows) {
        int64_t seen = seen_by(t, min_i64(row + f->rows, t->n_queries) - 1);
        if (seen == 0) continue;
        multiply_panels(f, f->rows, columns, round_up(seen, f->terms), t->s.packed + row * all, 0,
                        t->s.k_across, f->columns * all, t->head.scale, true,
                        t->dq + (t->q0 + row) * columns, columns);
    }
}

static void work_pair(pair_task *t) {
    const backward *w = t->w;
    const weft_attention_attr *a = w->g.p.a;
    const scratch *s = &t->s;
    int64_t key = t->key0 - t->first_key, dqk = columns_of(w, a->dqk), dv = columns_of(w, a->dv);
    multiply_visible(t, s->q_rows + t->q0 * depth_of(w, a->dqk), s->k_columns, depth_of(w, a->dqk),
                     s->scores);
    multiply_visible(t, s->do_rows + t->q0 * depth_of(w, a->dv), s->v_columns, depth_of(w, a->dv),
                     s->dp);
    softmax_pair(t);
    if (w->g.dv.t)
        add_over_queries(t, s->p, s->do_columns + t->q0 * dv, a->dv, 1, t->sums.dv + key * dv);
    if (w->g.dk.t)
        add_over_queries(t, s->ds, s->q_columns + t->q0 * dqk, a->dqk, t->head.scale,
                         t->sums.dk + key * dqk);
    if (w->g.dq.t) add_over_keys(t);
}

/* Rows r0 .. of a gradient from their sums; where y's rows are those of Gaussians, to the gradients of
 * what these were made of. dn: of their squares; NULL: none. */
static void write_rows(const backward *w, const head_rows *to, const head_rows *y, bool gaussian,
                       int64_t b, int64_t head, int64_t r0, int64_t rows, real *sums,
                       const real *dn, real *widened) {
    int64_t width = to->width, columns = columns_of(w, width), half = width / 2;
    uint16_t *data = weft_data(w->g.p.x, to->t);
    for (int64_t r = 0; r < rows; r++, sums += columns) {
        if (gaussian) {
            int64_t at = head_row_at(y, b, r0 + r, head);
            const real *row = tile_in(w->g.p.x, y->t, at, width, widened);
            real twice = dn ? 2 * dn[r] : 0;
            join_gradients(false, row, sums, sums, half, twice);
            join_gradients(true, row + half, sums + half, sums + half, width - half, twice);
        }
        gemm_round(data + head_row_at(to, b, r0 + r, head), sums, width);
    }
}

static void write_queries(const backward *w, int64_t b, int64_t h, int64_t r0, int64_t rows,
                          real *dq, real *widened) {
    write_rows(w, &w->g.dq, &w->g.p.q, w->g.p.a->gaussian_q, b, h, r0, rows,
               dq + r0 * columns_of(w, w->g.p.a->dqk), NULL, widened);
}

/* Keys r0 .., whose sums begin at row `at`. */
static void write_keys(const backward *w, int64_t b, int64_t kv, int64_t r0, int64_t rows,
                       const key_sums *sums, int64_t at, real *widened) {
    const weft_attention_attr *a = w->g.p.a;
    const real *dn = a->gaussian_n ? sums->dn + at : NULL;
    if (w->g.dk.t)
        write_rows(w, &w->g.dk, &w->g.p.k, a->gaussian_k, b, kv, r0, rows,
                   sums->dk + at * columns_of(w, a->dqk), dn, widened);
    if (w->g.dv.t)
        write_rows(w, &w->g.dv, &w->g.p.v, false, b, kv, r0, rows,
                   sums->dv + at * columns_of(w, a->dv), NULL, widened);
    if (w->g.dn)
        memcpy(w->g.dn + (b * a->kv_heads + kv) * a->keys + r0, sums->dn + at,
               (size_t)rows * sizeof(real));
}

static void work_head(pair_task *t, const division_part *of) {
    const backward *w = t->w;
    const weft_attention_attr *a = w->g.p.a;
    t->head = numbers_of_head(&w->g.p, t->h);
    t->number = 0;
    t->dq = t->s.dq;
    if (w->query_parts)
        t->dq = w->query_parts +
                ((t->b * a->heads + t->h) * w->g.split.key_parts + of->part) * w->query_size;
    memset(t->dq, 0, (size_t)w->query_size * sizeof(real));
    memset(t->s.column, 0, (size_t)w->g.split.part_keys * sizeof(real));
    int64_t first = a->causal ? max_i64(0, t->first_key - t->start) / SIDE * SIDE : 0;
    int64_t end = queries_before(&w->g.p, t->b, t->end_key);
    for (int64_t q = first; q < end; q += SIDE)
        pack_queries(t, q);
    for (t->key0 = t->first_key; t->key0 < t->end_key; t->key0 += SIDE) {
        t->n_keys = min_i64(SIDE, t->end_key - t->key0);
        t->q0 = a->causal ? max_i64(0, t->key0 - t->start) / SIDE * SIDE : 0;
        end = queries_before(&w->g.p, t->b, t->key0 + t->n_keys);
        if (t->q0 < end) pack_keys(t);
        for (; t->q0 < end; t->q0 += SIDE) {
            t->n_queries = min_i64(SIDE, a->queries - t->q0);
            work_pair(t);
        }
    }
    end_head_part(&w->g, of, t->h, &t->head, t->number, t->s.column, t->sums.dn);
    if (w->g.dq.t && !w->query_parts) write_queries(w, t->b, t->h, 0, a->queries, t->dq, t->s.row);
}

static void work_task(void *context, int64_t task, int thread) {
    const backward *w = context;
    const weft_attention_attr *a = w->g.p.a;
    const division *d = &w->g.split;
    real_block memory = {w->scratch + thread * w->scratch_size, 0};
    division_part of = part_of_task(a, d, task);
    pair_task t = {.w = w,
                   .s = lay_out_scratch(w, &memory),
                   .b = of.b,
                   .kv = of.kv,
                   .first_key = of.first_key,
                   .end_key = of.end_key};
    t.start = start_of(&w->g.p, t.b);
    t.sums = t.s.sums;
    if (w->key_parts) {
        real_block own = {w->key_parts + task * w->key_size, 0};
        t.sums = lay_out_sums(w, &own);
    }
    memset(t.sums.dk, 0, (size_t)w->key_size * sizeof(real));
    if (w->form->begin) w->form->begin();
    for (t.h = of.first_head; t.h < of.end_head; t.h++)
        work_head(&t, &of);
    if (w->form->end) w->form->end();
    if (w->key_parts) return;
    write_keys(w, t.b, t.kv, t.first_key, t.end_key - t.first_key, &t.sums, 0, t.s.row);
}

/* dQ of some rows of a head. */
static void sum_query_rows(void *context, int64_t task, int thread) {
    const backward *w = context;
    const weft_attention_attr *a = w->g.p.a;
    int64_t blocks = ceil_div(a->queries, SUM_ROWS), bh = task / blocks;
    int64_t r0 = task % blocks * SUM_ROWS, rows = min_i64(SUM_ROWS, a->queries - r0);
    int64_t parts = w->g.split.key_parts, columns = columns_of(w, a->dqk);
    real *first = w->query_parts + bh * parts * w->query_size;
    sum_parts(first + r0 * columns, parts, w->query_size, rows * columns);
    write_queries(w, bh / a->heads, bh % a->heads, r0, rows, first,
                  w->scratch + thread * w->scratch_size);
}

/* dK, dV and dn of some keys of a key head. */
static void sum_key_rows(void *context, int64_t task, int thread) {
    const backward *w = context;
    const weft_attention_attr *a = w->g.p.a;
    const division *d = &w->g.split;
    int64_t blocks = ceil_div(d->part_keys, SUM_ROWS),
            head = task / blocks % (a->batch * a->kv_heads);
    int64_t part = task / blocks / (a->batch * a->kv_heads), at = task % blocks * SUM_ROWS;
    int64_t r0 = part * d->part_keys + at;
    int64_t rows = min_i64(min_i64(SUM_ROWS, d->part_keys - at), a->keys - r0);
    if (rows <= 0) return;
    int64_t first = (part * a->batch * a->kv_heads + head) * d->head_parts;
    int64_t dqk = columns_of(w, a->dqk), dv = columns_of(w, a->dv);
    real_block memory = {w->key_parts + first * w->key_size, 0};
    key_sums sums = lay_out_sums(w, &memory);
    sum_parts(sums.dk + at * dqk, d->head_parts, w->key_size, rows * dqk);
    sum_parts(sums.dv + at * dv, d->head_parts, w->key_size, rows * dv);
    sum_parts(sums.dn + at, d->head_parts, w->key_size, rows);
    write_keys(w, head / a->kv_heads, head % a->kv_heads, r0, rows, &sums, at,
               w->scratch + thread * w->scratch_size);
}

weft_status KERNEL(attention_back_bf16)(weft_exec *x, const weft_node *n) {
    backward w = {.g = make_back_problem(x, n, SIDE)};
    const weft_attention_attr *a = w.g.p.a;
    lay_out(&w, n, weft_workspace(x, n));
    WEFT_TRY(check_starts(&w.g.p));
    weft_pool *pool = weft_exec_pool(x);
    weft_pool_run(pool, w.g.split.tasks, work_task, &w);
    if (w.query_parts && w.g.dq.t)
        weft_pool_run(pool, a->batch * a->heads * ceil_div(a->queries, SUM_ROWS), sum_query_rows,
                      &w);
    if (w.key_parts)
        weft_pool_run(pool,
                      w.g.split.key_parts * a->batch * a->kv_heads *
                          ceil_div(w.g.split.part_keys, SUM_ROWS),
                      sum_key_rows, &w);
    sum_head_numbers(&w.g);
    return WEFT_OK;
}

#endif
