/* Attention's backward pass: five products for each pair of tiles of queries
 * and keys,
 *
 *     S = Q Kᵀ,  dP = dO Vᵀ,  dV += Pᵀ dO,  dK += dSᵀ Q,  dQ += dS K
 *
 * with P = exp(S − lse) made again from the rows' saved logsumexp, so nothing
 * is as large as T × S. attention_pair.h does a pair; here the work is divided,
 * and what the parts bring is added up.
 *
 * A task has some heads of one key head and a range of keys. For each of its
 * heads it packs the queries, then walks its keys tile by tile and, for each,
 * the queries that see them. So dK and dV of the range grow in one place, and
 * dQ of a head too. Where several tasks add to the same, each has a place of
 * its own in the workspace, and they are summed afterwards in the order of the
 * tasks. Rows of dQ and dK that are those of Gaussians are finished before they
 * are written. How the work is divided follows from the shape alone, and so does
 * every sum's order. */
#include "cpu/attention_back.h"
#include "cpu/attention_bf16.h"
#include "cpu/attention_pair.h"
#include "cpu/gaussian_back.h"
#include "ops/list.h"

enum { SUM_ROWS = 64, ROWS_AHEAD = 16 };

typedef struct {
    back_problem g;
    score_extras extras;
    real *distance_bias; /* rel[place − key] at [distance_zero + key − place] */
    int64_t distance_zero, distance_size;
    real *rel_parts;   /* [tasks][distance_size], as distance_bias */
    real *query_parts; /* [B][H][key_parts][q][dqk], where dQ has several parts */
    real *key_parts;   /* [tasks] key_sums, where dK and dV have several */
    int64_t sums_size;
    real *scratch;
    int64_t scratch_size;
} backward;

/* Panels of sums of so many rows: some more than asked for, since a power of two would bring a row's
 * columns to one place of the cache. */
static sum_panels lay_out_panels(int64_t rows, int64_t width, real_block *at) {
    rows += TILE_N;
    return (sum_panels){take_reals(at, rows * round_up(width, TILE_N)), rows};
}

static key_sums lay_out_sums(const weft_attention_attr *a, const division *d, real_block *at) {
    return (key_sums){
        .dk = lay_out_panels(d->part_keys, a->dqk, at),
        .dv = lay_out_panels(d->part_keys, a->dv, at),
        .dn = take_reals(at, d->part_keys),
    };
}

static sum_panels lay_out_query_sums(const weft_attention_attr *a, real_block *at) {
    return lay_out_panels(round_up(a->queries, PAIR_QUERIES), a->dqk, at);
}

/* Reals of them. */
static int64_t query_sum_size(const weft_attention_attr *a) {
    real_block measure = {NULL, 0};
    lay_out_query_sums(a, &measure);
    return measure.used;
}

static pair_scratch lay_out_scratch(const weft_attention_attr *a, const division *d,
                                    real_block *at) {
    int64_t q = round_up(a->queries, PAIR_QUERIES), dqk = round_up(a->dqk, TILE_N);
    int64_t dv = round_up(a->dv, TILE_N), tile = PAIR_KEYS * PAIR_QUERIES;
    pair_scratch s = {
        .q_across = take_reals(at, q * a->dqk),
        .q_along = take_operand(at, q * dqk),
        .do_across = take_reals(at, q * a->dv),
        .do_along = take_operand(at, q * dv),
        .lse = take_reals(at, q),
        .total = take_reals(at, q),
        .shift = take_reals(at, q),
        .k_across = take_operand(at, PAIR_KEYS * a->dqk),
        .k_along = take_operand(at, PAIR_KEYS * dqk),
        .v_across = take_operand(at, PAIR_KEYS * a->dv),
        .bias = take_reals(at, PAIR_KEYS),
        .column = take_reals(at, d->part_keys),
        .p = take_reals(at, tile),
        .ds = take_reals(at, tile),
        .transposed = take_reals(at, tile),
        .widened = take_reals(at, max_i64(TILE_M, TILE_N) * max_i64(dqk, dv)),
    };
    if (a->band) {
        s.swapped = take_reals(at, tile);
        s.place_k_across = take_reals(at, PAIR_QUERIES * a->dqk);
        s.place_k_along = take_reals(at, PAIR_QUERIES * dqk);
        s.place_q_across = take_reals(at, PAIR_KEYS * a->dqk);
    }
    if (d->key_parts == 1) s.dq = lay_out_query_sums(a, at);
    if (d->head_parts == 1) s.sums = lay_out_sums(a, d, at);
    return s;
}

/* Divides the workspace; without one (base NULL) only measures it. Returns its
 * reals without the threads' scratch. */
static int64_t lay_out_workspace(backward *w, real *base) {
    const weft_attention_attr *a = w->g.p.a;
    const division *d = &w->g.split;
    real_block at = {base, 0}, scratch = {NULL, 0}, sums = {NULL, 0};
    int64_t per_head = a->batch * a->heads * d->key_parts;
    /* Doubles first: the workspace is aligned for them. */
    w->g.numbers = (double *)take_reals(&at, head_numbers_size(a, d));
    /* Keys before places, and places past the last key in a tile's empty rows. */
    w->distance_zero = a->keys + PAIR_QUERIES;
    w->distance_size = a->pos == WEFT_POS_RELATIVE ? w->distance_zero + PAIR_KEYS : 0;
    w->distance_bias = take_reals(&at, w->distance_size);
    w->rel_parts = take_reals(&at, d->tasks * w->distance_size);
    if (d->key_parts > 1) w->query_parts = take_reals(&at, per_head * query_sum_size(a));
    lay_out_sums(a, d, &sums);
    w->sums_size = sums.used;
    if (d->head_parts > 1) w->key_parts = take_reals(&at, d->tasks * sums.used);
    lay_out_scratch(a, d, &scratch);
    w->scratch_size = scratch.used;
    w->scratch = base ? base + at.used : NULL;
    return at.used;
}

static int64_t attention_back_workspace(const weft_node *n, int threads) {
    if (HAS_BF16_TILES && KERNEL(attention_back_bf16_runs)(n))
        return KERNEL(attention_back_bf16_workspace)(n, threads);
    backward w = {.g.p.a = ATTR(n, weft_attention_attr)};
    w.g.split = divide_work(w.g.p.a, PAIR_KEYS);
    int64_t shared = lay_out_workspace(&w, NULL);
    return (shared + threads * w.scratch_size) * (int64_t)sizeof(real);
}

/* Queries i .. of a head, at most TILE_M, of the tile at q0: each row is read while it is at hand. */
static void pack_queries(const backward *w, const pair_task *t, int64_t q0, int64_t i,
                         int64_t rows) {
    const attention_problem *p = t->p;
    const weft_attention_attr *a = p->a;
    const pair_scratch *s = &t->s;
    int64_t dqk = round_up(a->dqk, TILE_N), dv = round_up(a->dv, TILE_N);
    pack_across(p, &p->q, t->b, t->h, i, rows, TILE_M, 1, s->q_across + i * a->dqk, s->widened);
    pack_along(p, &p->q, t->b, t->h, i, rows, TILE_N, PAIR_QUERIES, t->head.scale,
               s->q_along + q0 * dqk + (i - q0) * TILE_N, s->widened);
    pack_across(p, &w->g.d_o, t->b, t->h, i, rows, TILE_M, 1, s->do_across + i * a->dv, s->widened);
    pack_along(p, &w->g.d_o, t->b, t->h, i, rows, TILE_N, PAIR_QUERIES, 1,
               s->do_along + q0 * dv + (i - q0) * TILE_N, s->widened);
    const real *lse = w->g.lse + (t->b * a->heads + t->h) * a->queries;
    real *one = s->widened, *other = s->widened + max_i64(a->dqk, a->dv);
    for (int64_t end = i + rows; i < end; i++) {
        int64_t at = head_row_at(&w->g.o, t->b, i, t->h);
        s->lse[i] = -LOG2_E * lse[i];
        s->total[i] = -inner_product(tile_in(p->x, w->g.d_o.t, at, a->dv, one),
                                     tile_in(p->x, w->g.o.t, at, a->dv, other), a->dv);
        s->shift[i] = 0;
        if (t->extras != EXTRAS_DSCALE) continue;
        int64_t key = head_row_at(&p->k, t->b, 0, t->kv);
        at = head_row_at(&p->q, t->b, i, t->h);
        s->shift[i] = inner_product(tile_in(p->x, p->q.t, at, a->dqk, one),
                                    tile_in(p->x, p->k.t, key, a->dqk, other), a->dqk);
    }
}

/* Some queries of a head: PAIR_QUERIES from q0 on, or what is left. */
static void pack_query_tile(const backward *w, const pair_task *t, int64_t q0) {
    const attention_problem *p = t->p;
    int64_t end = min_i64(q0 + PAIR_QUERIES, p->a->queries);
    for (int64_t i = q0; i < end; i += TILE_M) {
        int64_t ahead = i + ROWS_AHEAD;
        prefetch_rows(p, &p->q, t->b, t->h, ahead, TILE_M, p->a->queries);
        prefetch_rows(p, &w->g.d_o, t->b, t->h, ahead, TILE_M, p->a->queries);
        prefetch_rows(p, &w->g.o, t->b, t->h, ahead, TILE_M, p->a->queries);
        pack_queries(w, t, q0, i, min_i64(TILE_M, end - i));
    }
}

/* The keys and values of the next tile, a part for each pair; q is the first pair's query. */
static void prefetch_keys(const pair_task *t, int64_t q) {
    const attention_problem *p = t->p;
    int64_t pairs = ceil_div(p->a->queries - q, PAIR_QUERIES), rows = ceil_div(PAIR_KEYS, pairs);
    int64_t first = t->key0 + PAIR_KEYS + (t->q0 - q) / PAIR_QUERIES * rows;
    prefetch_rows(p, &p->k, t->b, t->kv, first, rows, t->end_key);
    prefetch_rows(p, &p->v, t->b, t->kv, first, rows, t->end_key);
}

static void pack_keys(const pair_task *t) {
    const attention_problem *p = t->p;
    const weft_attention_attr *a = p->a;
    const pair_scratch *s = &t->s;
    pack_across(p, &p->k, t->b, t->kv, t->key0, t->n_keys, TILE_N, t->raw_scale, s->k_across,
                s->widened);
    pack_along(p, &p->k, t->b, t->kv, t->key0, t->n_keys, TILE_N, PAIR_KEYS, t->head.scale,
               s->k_along, s->widened);
    pack_across(p, &p->v, t->b, t->kv, t->key0, t->n_keys, TILE_N, 1, s->v_across, s->widened);
    if (a->band)
        pack_across(p, &p->q, t->b, t->h, t->key0, t->n_keys, TILE_N, 1, s->place_q_across,
                    s->widened);
    const real *n = p->n ? p->n + (t->b * a->kv_heads + t->kv) * a->keys + t->key0 : NULL;
    for (int64_t j = 0; j < PAIR_KEYS; j++)
        s->bias[j] = n && j < t->n_keys ? LOG2_E * t->head.beta * n[j] : 0;
}

/* Sums from row `at` on, the gradients of rows r0 .. of y, to those of the Gaussians that y was made
 * of; dn: of their squares, from the first of these rows on; NULL: none. */
static void join_rows(const attention_problem *p, const head_rows *y, int64_t b, int64_t head,
                      int64_t r0, int64_t rows, sum_panels sums, int64_t at, const real *dn,
                      real *widened) {
    int64_t width = y->width, half = width / 2;
    for (int64_t r = 0; r < rows; r++) {
        const real *row = tile_in(p->x, y->t, head_row_at(y, b, r0 + r, head), width, widened);
        real twice = dn ? 2 * dn[r] : 0;
        for (int64_t n = 0; n < width; n += TILE_N) {
            real *sum = sums.at + n * sums.rows + (at + r) * TILE_N;
            int64_t end = min_i64(n + TILE_N, width), middle = max_i64(n, min_i64(half, end));
            join_gradients(false, row + n, sum, sum, middle - n, twice);
            join_gradients(true, row + middle, sum + middle - n, sum + middle - n, end - middle,
                           twice);
        }
    }
}

/* Sums from row `at` on to rows r0 .. of a tensor. */
static void write_rows(const attention_problem *p, const head_rows *to, int64_t b, int64_t head,
                       int64_t r0, int64_t rows, sum_panels from, int64_t at, real *widened) {
    int64_t whole = to->width / TILE_N * TILE_N, left = to->width - whole;
    for (int64_t r = 0; r < rows; r++) {
        int64_t element = head_row_at(to, b, r0 + r, head);
        real *row = tile_out(p->x, to->t, element, widened);
        const real *sum = from.at + (at + r) * TILE_N;
        for (int64_t n = 0; n < whole; n += TILE_N)
            __builtin_prefetch(sum + n * from.rows + ROWS_AHEAD * TILE_N);
        for (int64_t n = 0; n < whole; n += TILE_N)
            for (int v = 0; v < TILE_V; v++)
                vstore(row + n + v * VLEN, vload(sum + n * from.rows + v * VLEN));
        if (left) memcpy(row + whole, sum + whole * from.rows, (size_t)left * sizeof(real));
        tile_done(p->x, to->t, element, to->width, row);
    }
}

/* Rows r0 .. of dQ, whose sums they are in the panels too. */
static void write_queries(const backward *w, int64_t b, int64_t h, int64_t r0, int64_t rows,
                          sum_panels dq, real *widened) {
    if (w->g.p.a->gaussian_q) join_rows(&w->g.p, &w->g.p.q, b, h, r0, rows, dq, r0, NULL, widened);
    write_rows(&w->g.p, &w->g.dq, b, h, r0, rows, dq, r0, widened);
}

/* Keys r0 .. of dK, dV and dn, from row `at` of the sums on. */
static void write_keys(const backward *w, int64_t b, int64_t kv, int64_t r0, int64_t rows,
                       const key_sums *sums, int64_t at, real *widened) {
    const weft_attention_attr *a = w->g.p.a;
    const real *dn = a->gaussian_n ? sums->dn + at : NULL;
    if (a->gaussian_k) join_rows(&w->g.p, &w->g.p.k, b, kv, r0, rows, sums->dk, at, dn, widened);
    if (w->g.dk.t) write_rows(&w->g.p, &w->g.dk, b, kv, r0, rows, sums->dk, at, widened);
    if (w->g.dv.t) write_rows(&w->g.p, &w->g.dv, b, kv, r0, rows, sums->dv, at, widened);
    if (w->g.dn)
        memcpy(w->g.dn + (b * a->kv_heads + kv) * a->keys + r0, sums->dn + at,
               (size_t)rows * sizeof(real));
}

static void work_head(const backward *w, pair_task *t, const division_part *of) {
    const weft_attention_attr *a = t->p->a;
    t->head = numbers_of_head(t->p, t->h);
    t->number = 0;
    t->slope = LOG2_E * t->head.slope;
    t->raw_scale = t->extras >= EXTRAS_DSCALE ? 1 : LOG2_E * t->head.scale;
    t->dq = t->s.dq;
    int64_t sum_size = query_sum_size(a);
    if (w->query_parts) {
        int64_t place = (t->b * a->heads + t->h) * w->g.split.key_parts + of->part;
        real_block own = {w->query_parts + place * sum_size, 0};
        t->dq = lay_out_query_sums(a, &own);
    }
    memset(t->dq.at, 0, (size_t)sum_size * sizeof(real));
    memset(t->s.column, 0, (size_t)w->g.split.part_keys * sizeof(real));
    int64_t first = a->causal ? max_i64(0, t->first_key - t->start) : 0;
    first = first / PAIR_QUERIES * PAIR_QUERIES;
    int64_t end = queries_before(t->p, t->b, t->end_key);
    for (int64_t q = first; q < end; q += PAIR_QUERIES)
        pack_query_tile(w, t, q);
    for (t->key0 = t->first_key; t->key0 < t->end_key; t->key0 += PAIR_KEYS) {
        t->n_keys = min_i64(PAIR_KEYS, t->end_key - t->key0);
        int64_t q = a->causal ? max_i64(0, t->key0 - t->start) : 0;
        q = q / PAIR_QUERIES * PAIR_QUERIES;
        end = queries_before(t->p, t->b, t->key0 + t->n_keys);
        if (q < end) pack_keys(t);
        for (t->q0 = q; t->q0 < end; t->q0 += PAIR_QUERIES) {
            t->n_queries = min_i64(PAIR_QUERIES, a->queries - t->q0);
            prefetch_keys(t, q);
            work_pair(t);
        }
    }
    end_head_part(&w->g, of, t->h, &t->head, t->number, t->s.column, t->sums.dn);
    if (t->want_dq && !w->query_parts)
        write_queries(w, t->b, t->h, 0, a->queries, t->dq, t->s.widened);
}

static void work_task(void *context, int64_t task, int thread) {
    const backward *w = context;
    const weft_attention_attr *a = w->g.p.a;
    const division *d = &w->g.split;
    real_block memory = {w->scratch + thread * w->scratch_size, 0};
    division_part of = part_of_task(a, d, task);
    pair_task t = {.p = &w->g.p,
                   .s = lay_out_scratch(a, d, &memory),
                   .b = of.b,
                   .kv = of.kv,
                   .first_key = of.first_key,
                   .end_key = of.end_key,
                   .extras = w->extras,
                   .softcap = LOG2_E * (real)a->softcap,
                   .want_dq = w->g.dq.t != NULL,
                   .want_dk = w->g.dk.t != NULL,
                   .want_dv = w->g.dv.t != NULL};
    t.start = start_of(&w->g.p, t.b);
    t.sums = t.s.sums;
    if (w->key_parts) {
        real_block own = {w->key_parts + task * w->sums_size, 0};
        t.sums = lay_out_sums(a, d, &own);
    }
    memset(t.sums.dk.at, 0, (size_t)w->sums_size * sizeof(real));
    if (w->distance_size) {
        t.distance_bias = w->distance_bias + w->distance_zero;
        real *rel = w->rel_parts + task * w->distance_size;
        memset(rel, 0, (size_t)w->distance_size * sizeof(real));
        if (w->g.drel) t.drel = rel + w->distance_zero;
    }
    for (t.h = of.first_head; t.h < of.end_head; t.h++)
        work_head(w, &t, &of);
    if (w->key_parts) return;
    write_keys(w, t.b, t.kv, t.first_key, t.end_key - t.first_key, &t.sums, 0, t.s.widened);
}

/* The same for rows of panels. */
static void sum_panel_rows(sum_panels first, int64_t count, int64_t stride, int64_t row,
                           int64_t rows, int64_t width) {
    for (int64_t n = 0; n < width; n += TILE_N)
        sum_parts(first.at + n * first.rows + row * TILE_N, count, stride, rows * TILE_N);
}

/* dQ of some rows of a head. */
static void sum_query_rows(void *context, int64_t task, int thread) {
    const backward *w = context;
    const weft_attention_attr *a = w->g.p.a;
    int64_t blocks = ceil_div(a->queries, SUM_ROWS), bh = task / blocks;
    int64_t r0 = task % blocks * SUM_ROWS, rows = min_i64(SUM_ROWS, a->queries - r0);
    int64_t parts = w->g.split.key_parts, size = query_sum_size(a);
    real_block memory = {w->query_parts + bh * parts * size, 0};
    sum_panels first = lay_out_query_sums(a, &memory);
    sum_panel_rows(first, parts, size, r0, rows, a->dqk);
    write_queries(w, bh / a->heads, bh % a->heads, r0, rows, first,
                  w->scratch + thread * w->scratch_size);
}

/* dK, dV and dn of some keys of a key head. */
static void sum_key_rows(void *context, int64_t task, int thread) {
    const backward *w = context;
    const weft_attention_attr *a = w->g.p.a;
    const division *d = &w->g.split;
    real *widened = w->scratch + thread * w->scratch_size;
    int64_t blocks = ceil_div(a->keys, SUM_ROWS), head = task / blocks;
    int64_t b = head / a->kv_heads, kv = head % a->kv_heads;
    int64_t r0 = task % blocks * SUM_ROWS, rows = min_i64(SUM_ROWS, a->keys - r0);
    int64_t part = r0 / d->part_keys, at = r0 % d->part_keys;
    int64_t first = (part * a->batch * a->kv_heads + head) * d->head_parts;
    real_block memory = {w->key_parts + first * w->sums_size, 0};
    key_sums sums = lay_out_sums(a, d, &memory);
    sum_panel_rows(sums.dk, d->head_parts, w->sums_size, at, rows, a->dqk);
    sum_panel_rows(sums.dv, d->head_parts, w->sums_size, at, rows, a->dv);
    sum_parts(sums.dn + at, d->head_parts, w->sums_size, rows);
    write_keys(w, b, kv, r0, rows, &sums, at, widened);
}

/* The gradient of each distance's bias. */
static void sum_distances(const backward *w) {
    for (int64_t distance = 0; w->g.drel && distance < w->g.p.distances; distance++) {
        double sum = 0;
        for (int64_t task = 0; distance < w->g.p.a->keys && task < w->g.split.tasks; task++)
            sum += (double)w->rel_parts[task * w->distance_size + w->distance_zero - distance];
        w->g.drel[distance] = (real)sum;
    }
}

static backward make_backward(weft_exec *x, const weft_node *n) {
    backward w = {.g = make_back_problem(x, n, PAIR_KEYS)};
    const weft_attention_attr *a = w.g.p.a;
    w.extras = w.g.p.n || a->pos != WEFT_POS_NONE ? EXTRAS_SCORE : EXTRAS_NONE;
    if (w.g.dscale) w.extras = EXTRAS_DSCALE;
    if (w.g.dlog_tau) w.extras = EXTRAS_DLOG_TAU;
    if (a->softcap > 0) w.extras = EXTRAS_SOFTCAP;
    lay_out_workspace(&w, weft_workspace(x, n));
    for (int64_t i = 0; i < w.distance_size; i++) {
        int64_t distance = w.distance_zero - i;
        bool inside = distance >= 0 && distance < w.g.p.distances;
        w.distance_bias[i] = inside ? LOG2_E * w.g.p.rel[distance] : 0;
    }
    return w;
}

static weft_status attention_back_run(weft_exec *x, const weft_node *n) {
    if (HAS_BF16_TILES && KERNEL(attention_back_bf16_runs)(n))
        return KERNEL(attention_back_bf16)(x, n);
    backward w = make_backward(x, n);
    const weft_attention_attr *a = w.g.p.a;
    WEFT_TRY(check_starts(&w.g.p));
    weft_pool *pool = weft_exec_pool(x);
    weft_pool_run(pool, w.g.split.tasks, work_task, &w);
    if (w.query_parts && w.g.dq.t)
        weft_pool_run(pool, a->batch * a->heads * ceil_div(a->queries, SUM_ROWS), sum_query_rows,
                      &w);
    if (w.key_parts)
        weft_pool_run(pool, a->batch * a->kv_heads * ceil_div(a->keys, SUM_ROWS), sum_key_rows, &w);
    sum_head_numbers(&w.g);
    sum_distances(&w);
    return WEFT_OK;
}

const weft_kernel KERNEL(attention_back) = {.run = attention_back_run,
                                            .workspace = attention_back_workspace};
