/* One pair of tiles in attention's backward pass: the queries q0 .. and the keys key0 ..
 *
 * Scores are kept with keys in the vectors' lanes, in panels [key / TILE_N][query][TILE_N]: that is
 * how the products over queries want P and dS; for the one over keys dS is transposed into [query /
 * TILE_M][key][TILE_M]. Blocks of TILE_M queries in which no key of a panel is seen are left out,
 * so little above the diagonal is computed.
 *
 * The products are ordered for a small first cache. S and dP walk the queries and hold the tile's
 * keys; the sums walk the columns of dV, dK and dQ and hold P or dS. So the sums lie in panels of
 * columns as well, [column / TILE_N][row][TILE_N]. What a product walks through comes from the
 * further caches: while a block is worked on, the next one's is asked for. */
#pragma once

#include "cpu/attention_back.h"
#include "cpu/attention_exp.h"

enum { PAIR_KEYS = 64, PAIR_QUERIES = 128 };

/* Scratch of a thread. `q` is T rounded up to PAIR_QUERIES; widths of rows that
 * are packed along are rounded up to TILE_N; what is packed along is so for
 * each PAIR_QUERIES or PAIR_KEYS rows apart, and times the head's scale, but for d_o. */
typedef struct {
    real *q_across, *q_along;   /* [q][dqk] */
    real *do_across, *do_along; /* [q][dv] */
    real *lse, *total,
        *shift; /* [q] −log2 e · logsumexp; −⟨do, o⟩; ⟨q, k_0⟩ where dscale is wanted */
    real *k_across;       /* [PAIR_KEYS][dqk] times raw_scale */
    real *k_along;        /* [PAIR_KEYS][dqk] */
    real *v_across;       /* [PAIR_KEYS][dv] */
    real *bias;           /* [PAIR_KEYS] log2 e · beta · n */
    real *column;         /* [keys of the task] Σ_i ds_ij of one head */
    real *p, *ds;         /* a tile: S, then P; dP − ⟨do, o⟩, then dS */
    real *transposed;     /* a tile: dS transposed */
    real *swapped;        /* band, a tile: ⟨q_j, k_i⟩, then α dS inside the band */
    real *place_k_across; /* band: keys at the queries' places, as k_across */
    real *place_k_along;
    real *place_q_across; /* band: queries at the keys' places */
    real *widened;        /* a panel of rows, for bf16 */
    sum_panels dq;        /* [q][dqk] of one head, unless dQ has several parts */
    key_sums sums;        /* unless dK and dV have several parts */
} pair_scratch;

/* What a score has beside ⟨q, k⟩: nothing; n, a position, or a gradient of them; dlog_tau, or dscale, of
 * which there can be one; a soft-cap, and dscale perhaps. The last two want ⟨q, k⟩ itself. */
typedef enum {
    EXTRAS_NONE,
    EXTRAS_SCORE,
    EXTRAS_DLOG_TAU,
    EXTRAS_DSCALE,
    EXTRAS_SOFTCAP
} score_extras;

/* A head at work. */
typedef struct {
    const attention_problem *p;
    pair_scratch s;
    head_numbers head;
    real slope;     /* log2 e · the head's */
    real raw_scale; /* what the products of S are multiplied with by the packing of keys: log2 e ·
                       the head's scale; where dscale wants ⟨q, k⟩ itself, nothing */
    key_sums sums;
    sum_panels dq;
    real *drel;                /* as distance_bias; NULL: not wanted */
    const real *distance_bias; /* log2 e · rel[place − key] at [key − place]; NULL: no
                                relative position */
    double number;             /* Σ of dscale or dlog_tau */
    int64_t b, kv, h;
    int64_t first_key, end_key; /* of the task */
    int64_t key0, n_keys, q0, n_queries;
    score_extras extras;
    bool want_dq, want_dk, want_dv;
    real softcap; /* log2 e · the score's; 0: none */
} pair_task;

/* C = start + AB for a row of blocks: C's and B's panels from c and b. */
#define MULTIPLY_ROW(name, start)                                                                  \
    static __attribute__((noinline)) void name(real *c, const real *a, const real *b,              \
                                               int64_t keys, int64_t depth, const real *rows,      \
                                               const real *columns) {                              \
        for (int64_t n = 0; n < keys; n += TILE_N) {                                               \
            prefetch_part(a + TILE_M * depth, TILE_M * depth, n / TILE_N, PAIR_KEYS / TILE_N);     \
            multiply_block(start, c + n * PAIR_QUERIES, TILE_N, a, TILE_M, b + n * depth, TILE_N,  \
                           depth, rows, columns ? columns + n : NULL, NULL);                       \
        }                                                                                          \
    }
MULTIPLY_ROW(multiply_row_only, TILE_SET)
MULTIPLY_ROW(multiply_row_on_rows, TILE_ROWS)
MULTIPLY_ROW(multiply_row_on_sums, TILE_SUMS)
#undef MULTIPLY_ROW

/* The first row of the pair's queries that is computed for a panel of keys. */
static inline int64_t first_row(const pair_task *t, int64_t key) {
    if (!t->p->a->causal) return 0;
    int64_t ahead = t->key0 + key - t->q0;
    return ahead <= 0 ? 0 : min_i64(ahead / TILE_M * TILE_M, round_up(t->n_queries, TILE_M));
}

/* How many keys, in whole panels, are computed for the block of queries at `row`. */
static inline int64_t keys_of_row(const pair_task *t, int64_t row) {
    int64_t keys = t->n_keys;
    if (t->p->a->causal) keys = min_i64(keys, t->q0 + row + TILE_M - t->key0);
    return keys <= 0 ? 0 : round_up(keys, TILE_N);
}

/* Tile = start + A Bᵀ where the pair is visible: rows of queries in A, of keys in B,
 * both packed across. */
static void multiply_visible(const pair_task *t, int start, real *tile, const real *queries,
                             const real *keys, int64_t depth, const real *rows,
                             const real *columns) {
    for (int64_t row = 0; row < t->n_queries; row += TILE_M) {
        int64_t seen = keys_of_row(t, row);
        real *c = tile + row * TILE_N;
        const real *a = queries + row * depth;
        if (start == TILE_SET) multiply_row_only(c, a, keys, seen, depth, rows, columns);
        if (start == TILE_ROWS) multiply_row_on_rows(c, a, keys, seen, depth, rows + row, columns);
        if (start == TILE_SUMS) multiply_row_on_sums(c, a, keys, seen, depth, rows + row, columns);
    }
}

/* sums[row0 + key] += Σ_query tile[query][key] rows[query]; `rows` packed along. */
static __attribute__((noinline)) void add_over_queries(const pair_task *t, sum_panels sums,
                                                       int64_t row0, int64_t width,
                                                       const real *tile, const real *rows) {
    int64_t keys = t->n_keys, queries = t->n_queries, first[PAIR_KEYS / TILE_M];
    for (int64_t key = 0; key < keys; key += TILE_M) {
        first[key / TILE_M] = first_row(t, key / TILE_N * TILE_N);
        if (first[key / TILE_M] >= queries) keys = key;
    }
    for (int64_t n = 0; n < width; n += TILE_N)
        for (int64_t key = 0; key < keys; key += TILE_M) {
            int64_t panel = key / TILE_N * TILE_N, row = first[key / TILE_M];
            real *sum = sums.at + n * sums.rows + (row0 + key) * TILE_N;
            prefetch_part(sum + TILE_M * TILE_N, TILE_M * TILE_N, 0, 1);
            prefetch_part(rows + (n + TILE_N) * PAIR_QUERIES, PAIR_QUERIES * TILE_N, key / TILE_M,
                          PAIR_KEYS / TILE_M);
            multiply_block(TILE_ADD, sum, TILE_N,
                           tile + panel * PAIR_QUERIES + row * TILE_N + key % TILE_N, TILE_N,
                           rows + n * PAIR_QUERIES + row * TILE_N, TILE_N, queries - row, NULL,
                           NULL, NULL);
        }
}

/* The tile transposed, for add_over_keys. */
static void transpose_tile(const pair_task *t, const real *tile) {
    for (int64_t row = 0; row < t->n_queries; row += TILE_M) {
        int64_t keys = keys_of_row(t, row);
        for (int64_t key = 0; key < keys; key += TILE_N) {
            const real *from[TILE_M];
            for (int64_t m = 0; m < TILE_M; m++)
                from[m] = tile + key * PAIR_QUERIES + (row + m) * TILE_N;
            transpose_rows(from, TILE_M, TILE_N, 1,
                           t->s.transposed + row * PAIR_KEYS + key * TILE_M);
        }
    }
}

/* sums[row0 + query] += Σ_key transposed[query][key] rows[key]; `rows` packed along, each `room`
 * apart. */
static __attribute__((noinline)) void add_over_keys(const pair_task *t, sum_panels sums,
                                                    int64_t row0, int64_t width, const real *rows,
                                                    int64_t room) {
    int64_t queries = t->n_queries, keys[PAIR_QUERIES / TILE_M];
    for (int64_t row = 0; row < queries; row += TILE_M)
        keys[row / TILE_M] = min_i64(keys_of_row(t, row), t->n_keys);
    for (int64_t n = 0; n < width; n += TILE_N)
        for (int64_t row = 0; row < queries; row += TILE_M) {
            real *sum = sums.at + n * sums.rows + (row0 + row) * TILE_N;
            prefetch_part(sum + TILE_M * TILE_N, TILE_M * TILE_N, 0, 1);
            prefetch_part(rows + (n + TILE_N) * room, PAIR_KEYS * TILE_N, row / TILE_M,
                          PAIR_QUERIES / TILE_M);
            multiply_block(TILE_ADD, sum, TILE_N, t->s.transposed + row * PAIR_KEYS, TILE_M,
                           rows + n * room, TILE_N, keys[row / TILE_M], NULL, NULL, NULL);
        }
}

/* Where i − j ≤ window: α ⟨q_j, k_i⟩ joins the products; or, back, α dS takes its place, and 0 elsewhere. */
static ALWAYS_INLINE void pass_band(const pair_task *t, const bool back) {
    const weft_attention_attr *a = t->p->a;
    vreal alpha = vset((real)a->band_alpha), iota = viota();
    for (int64_t key = 0; key < t->n_keys; key += VLEN)
        for (int64_t row = first_row(t, key / TILE_N * TILE_N); row < t->n_queries; row++) {
            int64_t at = key / TILE_N * TILE_N * PAIR_QUERIES + row * TILE_N + key % TILE_N;
            real *p = t->s.p + at, *swapped = t->s.swapped + at;
            real distance = (real)(t->q0 + row - t->key0 - key);
            vint inside = distance - iota <= (real)a->window;
            vreal part = vselect(inside, alpha * vload(back ? t->s.ds + at : swapped), vset(0));
            vstore(back ? swapped : p, back ? part : vload(p) + part);
        }
}

/* What the band sends back: to the queries at the keys' places, to the keys at the queries'. */
static void add_band_gradients(const pair_task *t) {
    int64_t dqk = round_up(t->p->a->dqk, TILE_N);
    pass_band(t, true);
    if (t->want_dq) add_over_queries(t, t->dq, t->key0, dqk, t->s.swapped, t->s.place_k_along);
    if (!t->want_dk) return;
    transpose_tile(t, t->s.swapped);
    int64_t inside = t->key0 % PAIR_QUERIES;
    add_over_keys(t, t->sums.dk, t->q0, dqk,
                  t->s.q_along + (t->key0 - inside) * dqk + inside * TILE_N, PAIR_QUERIES);
}

/* The position's part of the scores of a query at `place` for VLEN keys. */
static ALWAYS_INLINE vreal position_part(const real *distance_bias, real slope, int64_t place,
                                         int64_t key) {
    if (distance_bias) return vload(distance_bias + key - place);
    return -slope * vabs((real)(place - key) - viota());
}

/* Out of line, so that a caller's running sum stays in a register and not where its lanes are
 * looked at. */
static __attribute__((noinline)) double sum_lanes(vreal v) {
    return (double)vsum(v);
}

/* What is done for the rows of one panel of keys. */
typedef struct {
    real *p, *ds; /* the panel */
    const real *lse, *shift;
    const real *distance_bias;
    real *drel;
    vreal bias[TILE_V], column[TILE_V], number[TILE_V];
    real scale, slope;
    int64_t place0, key0; /* positions of row 0 and of lane 0 */
    int64_t keys_left;
    bool causal;
    const pair_task *hides; /* some queries do not see the first keys; NULL: all do */
    real softcap;
} panel_rows;

/* P and dS of `rows` rows, in place of S and dP. Several rows and the vectors of each at a time, so
 * that their exponentials overlap. */
static ALWAYS_INLINE void softmax_rows(panel_rows *w, int64_t row, int rows, bool masked,
                                       bool position, score_extras extras) {
    vreal raw[2 * TILE_V], score[2 * TILE_V], p[2 * TILE_V], slope[2 * TILE_V];
    UNROLLED(u, rows * TILE_V) {
        int64_t r = row + u / TILE_V, v = u % TILE_V;
        raw[u] = score[u] = vload(w->p + r * TILE_N + v * VLEN);
        if (extras == EXTRAS_DSCALE) score[u] = raw[u] * w->scale + (w->bias[v] + w->lse[r]);
        if (extras == EXTRAS_SOFTCAP) score[u] = raw[u] * w->scale;
    }
    UNROLLED(u, rows * TILE_V) {
        int64_t place = w->place0 + row + u / TILE_V, key = w->key0 + u % TILE_V * VLEN;
        p[u] = score[u];
        if (position) p[u] += position_part(w->distance_bias, w->slope, place, key);
        if (extras == EXTRAS_SOFTCAP)
            p[u] = vsoftcap(p[u], w->softcap, slope + u) + w->lse[row + u / TILE_V];
        p[u] = vexp2(p[u]);
    }
    UNROLLED(u, rows * TILE_V) {
        int64_t r = row + u / TILE_V, v = u % TILE_V, at = r * TILE_N + v * VLEN;
        if (masked) {
            int64_t seen = w->keys_left;
            if (w->causal) seen = min_i64(seen, w->place0 + r + 1 - w->key0);
            p[u] = (vreal)((vint)p[u] & (viota() < (real)(seen - v * VLEN)));
            if (w->hides) {
                const pair_task *t = w->hides;
                int64_t hidden = first_key_of(t->p, t->b, t->q0 + r) - w->key0;
                p[u] = (vreal)((vint)p[u] & (viota() >= (real)(hidden - v * VLEN)));
            }
        }
        vreal ds = p[u] * vload(w->ds + at);
        if (extras == EXTRAS_SOFTCAP) ds *= slope[u];
        vstore(w->p + at, p[u]);
        vstore(w->ds + at, ds);
        if (extras == EXTRAS_NONE) continue;
        w->column[v] += ds;
        if (extras == EXTRAS_DSCALE) w->number[v] += ds * (raw[u] - w->shift[r]);
        if (extras == EXTRAS_SOFTCAP) w->number[v] += ds * raw[u];
        if (extras == EXTRAS_DLOG_TAU) w->number[v] += ds * score[u];
        if (position && w->drel) {
            real *rel = w->drel + w->key0 + v * VLEN - w->place0 - r;
            vstore(rel, vload(rel) + ds);
        }
    }
}

/* Rows [from, to) of the panel at `key`. */
static ALWAYS_INLINE void softmax_panel(pair_task *t, int64_t key, int64_t from, int64_t to,
                                        bool masked, bool position, score_extras extras) {
    const pair_scratch *s = &t->s;
    panel_rows w = {.p = s->p + key * PAIR_QUERIES,
                    .ds = s->ds + key * PAIR_QUERIES,
                    .lse = s->lse + t->q0,
                    .shift = s->shift + t->q0,
                    .distance_bias = t->distance_bias,
                    .drel = t->drel,
                    .scale = LOG2_E * t->head.scale,
                    .slope = t->slope,
                    .place0 = t->q0,
                    .key0 = t->key0 + key,
                    .keys_left = t->n_keys - key,
                    .causal = t->p->a->causal,
                    .hides = hides_keys(t->p) ? t : NULL,
                    .softcap = t->softcap};
    for (int v = 0; v < TILE_V; v++)
        w.bias[v] = vload(s->bias + key + v * VLEN);
    int64_t row = from;
    if (!masked && !position && extras < EXTRAS_DSCALE)
        row +=
            softmax_back_many(w.p + from * TILE_N, w.ds + from * TILE_N, to - from,
                              extras != EXTRAS_NONE, extras == EXTRAS_DLOG_TAU, w.column, w.number);
    for (; row + 2 <= to; row += 2)
        softmax_rows(&w, row, 2, masked, position, extras);
    if (row < to) softmax_rows(&w, row, 1, masked, position, extras);
    if (extras == EXTRAS_NONE) return;
    for (int v = 0; v < TILE_V; v++) {
        real *at = s->column + w.key0 - t->first_key + v * VLEN;
        vstore(at, vload(at) + w.column[v]);
    }
    for (int v = 0; extras != EXTRAS_SCORE && v < TILE_V; v++)
        t->number += sum_lanes(w.number[v]);
}

/* Each kind a function of its own: together in one, registers run out. */
#define SOFTMAX_KINDS(F)                                                                           \
    F(NONE, false)                                                                                 \
    F(SCORE, false)                                                                                \
    F(SCORE, true)                                                                                 \
    F(DSCALE, false)                                                                               \
    F(DSCALE, true) F(DLOG_TAU, false) F(DLOG_TAU, true) F(SOFTCAP, false) F(SOFTCAP, true)
#define SOFTMAX(extras, position)                                                                  \
    static __attribute__((noinline)) void softmax_##extras##_##position(                           \
        pair_task *t, int64_t key, int64_t from, int64_t to) {                                     \
        softmax_panel(t, key, from, to, false, position, EXTRAS_##extras);                         \
    }                                                                                              \
    static __attribute__((noinline)) void softmax_##extras##_##position##_masked(                  \
        pair_task *t, int64_t key, int64_t from, int64_t to) {                                     \
        softmax_panel(t, key, from, to, true, position, EXTRAS_##extras);                          \
    }
SOFTMAX_KINDS(SOFTMAX)

static void softmax_pair(pair_task *t) {
    typedef void softmax_kind(pair_task *, int64_t, int64_t, int64_t);
#define SOFTMAX_ENTRY(extras, position)                                                            \
    [EXTRAS_##extras][position] = {softmax_##extras##_##position,                                  \
                                   softmax_##extras##_##position##_masked},
    static softmax_kind *const kinds[][2][2] = {SOFTMAX_KINDS(SOFTMAX_ENTRY)};
    softmax_kind *const *softmax = kinds[t->extras][t->p->a->pos != WEFT_POS_NONE];
    for (int64_t key = 0; key < t->n_keys; key += TILE_N) {
        int64_t from = first_row(t, key), to = t->n_queries, whole = 0;
        /* The first row whose query sees the whole panel. */
        if (t->p->a->causal) whole = t->key0 + key + TILE_N - 1 - t->q0;
        if (key + TILE_N > t->n_keys) whole = to;
        whole = max_i64(from, min_i64(whole, to));
        /* Behind the last one that does, since its first key is hidden from the others. */
        int64_t end = to;
        if (hides_keys(t->p))
            end =
                max_i64(whole, min_i64(to, queries_before(t->p, t->b, t->key0 + key + 1) - t->q0));
        if (from < whole) softmax[1](t, key, from, whole);
        if (whole < end) softmax[0](t, key, whole, end);
        if (end < to) softmax[1](t, key, end, to);
    }
}

/* The whole pair. */
static void work_pair(pair_task *t) {
    const weft_attention_attr *a = t->p->a;
    const pair_scratch *s = &t->s;
    int64_t dv = round_up(a->dv, TILE_N);
    int64_t dqk = round_up(a->dqk, TILE_N), key = t->key0 - t->first_key;
    bool band = a->band && t->q0 - (t->key0 + t->n_keys - 1) <= a->window;
    multiply_visible(t, t->extras >= EXTRAS_DSCALE ? TILE_SET : TILE_SUMS, s->p,
                     s->q_across + t->q0 * a->dqk, s->k_across, a->dqk, s->lse + t->q0, s->bias);
    multiply_visible(t, TILE_ROWS, s->ds, s->do_across + t->q0 * a->dv, s->v_across, a->dv,
                     s->total + t->q0, NULL);
    if (band) {
        pack_across(t->p, &t->p->k, t->b, t->kv, t->q0, t->n_queries, TILE_M, t->raw_scale,
                    s->place_k_across, s->widened);
        pack_along(t->p, &t->p->k, t->b, t->kv, t->q0, t->n_queries, TILE_N, PAIR_QUERIES,
                   t->head.scale, s->place_k_along, s->widened);
        multiply_visible(t, TILE_SET, s->swapped, s->place_k_across, s->place_q_across, a->dqk,
                         NULL, NULL);
        pass_band(t, false);
    }
    softmax_pair(t);
    if (t->want_dv) add_over_queries(t, t->sums.dv, key, dv, s->p, s->do_along + t->q0 * dv);
    if (t->want_dk) add_over_queries(t, t->sums.dk, key, dqk, s->ds, s->q_along + t->q0 * dqk);
    if (t->want_dq) {
        transpose_tile(t, s->ds);
        add_over_keys(t, t->dq, t->q0, dqk, s->k_along, PAIR_KEYS);
    }
    if (band) add_band_gradients(t);
}
