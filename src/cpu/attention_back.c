/* Attention's backward pass: five products for each pair of tiles of queries and keys,
 *
 *     S = Q Kᵀ,  dP = dO Vᵀ,  dV += Pᵀ dO,  dK += dSᵀ Q,  dQ += dS K
 *
 * with P = exp(S − lse) made again from the rows' saved logsumexp, so nothing is as large as T × S.
 * attention_pair.h does a pair, attention_walk.h goes from one to the next; here are the operands'
 * tiles, and the biases of distances. */
#include "cpu/attention_bf16.h"
#include "cpu/attention_pair.h"

typedef struct {
    back_problem g;
    score_extras extras;
    real *distance_bias; /* rel[place − key] at [distance_zero + key − place] */
    int64_t distance_zero, distance_size;
    real *rel_parts; /* [tasks][distance_size], as distance_bias */
} backward;

static pair_scratch lay_out_scratch(const backward *w, real_block *at) {
    const weft_attention_attr *a = w->g.p.a;
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
        .column = take_reals(at, w->g.split.part_keys),
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
    return s;
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

static void pack_keys(UNUSED const backward *w, pair_task *t) {
    const attention_problem *p = t->p;
    const weft_attention_attr *a = p->a;
    const pair_scratch *s = &t->s;
    t->slope = LOG2_E * t->head.slope;
    t->raw_scale = t->extras >= EXTRAS_DSCALE ? 1 : LOG2_E * t->head.scale;
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

static void begin_task(const backward *w, pair_task *t, int64_t task) {
    t->extras = w->extras;
    t->softcap = LOG2_E * (real)w->g.p.a->softcap;
    t->want_dq = w->g.dq.t != NULL;
    t->want_dk = w->g.dk.t != NULL;
    t->want_dv = w->g.dv.t != NULL;
    if (!w->distance_size) return;
    t->distance_bias = w->distance_bias + w->distance_zero;
    real *rel = w->rel_parts + task * w->distance_size;
    memset(rel, 0, (size_t)w->distance_size * sizeof(real));
    if (w->g.drel) t->drel = rel + w->distance_zero;
}

/* And asks for the keys and values of the next tile, a part for each pair. */
static void work_tiles(UNUSED const backward *w, pair_task *t, int64_t first) {
    const attention_problem *p = t->p;
    int64_t rows = ceil_div(PAIR_KEYS, ceil_div(p->a->queries - first, PAIR_QUERIES));
    int64_t next = t->key0 + PAIR_KEYS + (t->q0 - first) / PAIR_QUERIES * rows;
    prefetch_rows(p, &p->k, t->b, t->kv, next, rows, t->end_key);
    prefetch_rows(p, &p->v, t->b, t->kv, next, rows, t->end_key);
    work_pair(t);
}

#include "cpu/attention_walk.h"

/* What follows from the node's attributes, and where it lies from `base` on; as lay_out_workspace. */
static int64_t lay_out(backward *w, real *base) {
    const weft_attention_attr *a = w->g.p.a;
    /* Keys before places, and places past the last key in a tile's empty rows. */
    w->distance_zero = a->keys + PAIR_QUERIES;
    w->distance_size = a->pos == WEFT_POS_RELATIVE ? w->distance_zero + PAIR_KEYS : 0;
    w->g.own_size = (1 + w->g.split.tasks) * w->distance_size;
    int64_t shared = lay_out_workspace(w, base);
    w->distance_bias = w->g.own;
    w->rel_parts = base ? w->g.own + w->distance_size : NULL;
    return shared;
}

static int64_t attention_back_workspace(const weft_node *n, int threads) {
    if (HAS_BF16_TILES && KERNEL(attention_back_bf16_runs)(n))
        return KERNEL(attention_back_bf16).workspace(n, threads);
    backward w = {.g.p.a = ATTR(n, weft_attention_attr)};
    w.g.split = divide_work(w.g.p.a, PAIR_KEYS);
    int64_t shared = lay_out(&w, NULL);
    return (shared + threads * w.g.scratch_size) * (int64_t)sizeof(real);
}

DEFINE_KERNEL(attention_back, .workspace = attention_back_workspace) {
    if (HAS_BF16_TILES && KERNEL(attention_back_bf16_runs)(n))
        return KERNEL(attention_back_bf16).run(x, n);
    backward w = {.g = make_back_problem(x, n, PAIR_KEYS)};
    const weft_attention_attr *a = w.g.p.a;
    w.extras = w.g.p.n || a->pos != WEFT_POS_NONE ? EXTRAS_SCORE : EXTRAS_NONE;
    if (w.g.dscale) w.extras = EXTRAS_DSCALE;
    if (w.g.dlog_tau) w.extras = EXTRAS_DLOG_TAU;
    if (a->softcap > 0) w.extras = EXTRAS_SOFTCAP;
    lay_out(&w, weft_workspace(x, n));
    for (int64_t i = 0; i < w.distance_size; i++) {
        int64_t distance = w.distance_zero - i;
        bool inside = distance >= 0 && distance < w.g.p.distances;
        w.distance_bias[i] = inside ? LOG2_E * w.g.p.rel[distance] : 0;
    }
    run_back(weft_exec_pool(x), &w);
    for (int64_t distance = 0; w.g.drel && distance < w.g.p.distances; distance++) {
        double sum = 0; /* the gradient of its bias */
        for (int64_t task = 0; distance < w.g.p.a->keys && task < w.g.split.tasks; task++)
            sum += (double)w.rel_parts[task * w.distance_size + w.distance_zero - distance];
        w.g.drel[distance] = (real)sum;
    }
    return WEFT_OK;
}
