/* Attention over pages of any kind in plain vector code: keys and values are widened as they are
 * read. A score has VLEN chains over its columns, a value's column one chain over the keys. */
#pragma once

#include "cpu/cache_attention_task.h"

enum {
    PLAIN_KEYS = 4,      /* keys whose products are made side by side for several lines, */
    PLAIN_KEYS_MOST = 8, /* and for one */
#if defined(__AVX2__) && !defined(__AVX512F__)
    PLAIN_QUERIES = 3, /* lines of one pass over keys or values: what sixteen registers hold, */
#else
    PLAIN_QUERIES = 4, /* or 32 */
#endif
    PLAIN_VECTORS = 4, /* vectors of a value's columns for several lines, */
    PLAIN_ALONE = 8    /* and for one */
};

/* The lines of a key head, and what they read. */
typedef struct {
    int64_t lines, width;
    int64_t token_bytes;
    cached_kind kind;
    int64_t ld; /* of a row of scores */
} plain_shape;

/* The products of `queries` queries (ld width) and `keys` keys. */
static ALWAYS_INLINE void plain_dot_block(const plain_shape *p, const real *q, const char *k,
                                          real *s, const int queries, const int keys,
                                          const cached_kind kind) {
    vreal sum[PLAIN_QUERIES][PLAIN_KEYS_MOST];
    int64_t width = p->width, i = 0;
    UNROLLED(h, queries)
        UNROLLED(j, keys)
            sum[h][j] = vset(0);
    for (; i + VLEN <= width; i += VLEN) {
        vreal v[PLAIN_QUERIES];
        UNROLLED(h, queries)
            v[h] = vload(q + h * width + i);
        UNROLLED(j, keys) {
            vreal key = load_cached(k + j * p->token_bytes, i, VLEN, kind);
            UNROLLED(h, queries)
                sum[h][j] = vfma(v[h], key, sum[h][j]);
        }
    }
    if (i < width)
        UNROLLED(h, queries) {
            vreal v = vload_part(q + h * width + i, width - i);
            UNROLLED(j, keys)
                sum[h][j] =
                    vfma(v, load_cached(k + j * p->token_bytes, i, width - i, kind), sum[h][j]);
        }
    UNROLLED(h, queries)
        store_lane_sums(s + h * p->ld, 1, sum[h], keys);
}

static ALWAYS_INLINE void plain_dot_queries(const plain_shape *p, const real *q, const char *k,
                                            int64_t count, real *s, const int queries,
                                            const cached_kind kind) {
    int64_t j = 0;
    if (queries == 1)
        for (; j + PLAIN_KEYS_MOST <= count; j += PLAIN_KEYS_MOST)
            plain_dot_block(p, q, k + j * p->token_bytes, s + j, 1, PLAIN_KEYS_MOST, kind);
    for (; j + PLAIN_KEYS <= count; j += PLAIN_KEYS)
        plain_dot_block(p, q, k + j * p->token_bytes, s + j, queries, PLAIN_KEYS, kind);
    for (; j < count; j++)
        plain_dot_block(p, q, k + j * p->token_bytes, s + j, queries, 1, kind);
}

static ALWAYS_INLINE void plain_dot_keys(const plain_shape *p, const real *q, const char *k,
                                         int64_t count, real *s, const cached_kind kind) {
    EACH_TILES(h, n, p->lines, PLAIN_QUERIES,
               plain_dot_queries(p, q + h * p->width, k, count, s + h * p->ld, n, kind));
}

/* s [group, ld]: the products of the group's queries with `count` keys that lie one after the other,
 * without the scales of i8. */
static void plain_score(const plain_shape *p, const real *q, const char *k, int64_t count,
                        real *s) {
    BY_KIND(p->kind, plain_dot_keys, p, q, k, count, s);
}

/* sums [queries, width] (ld `step`): columns from `column` on, += Σ_j p_j v_j. */
static ALWAYS_INLINE void plain_add_block(const plain_shape *p, const real *weights,
                                          const char *from, const float *scale, int64_t count,
                                          int64_t column, real *sums, int64_t step,
                                          const int queries, const int vectors, const bool whole,
                                          const cached_kind kind) {
    vreal sum[PLAIN_QUERIES][PLAIN_ALONE];
    int64_t room = whole ? vectors * VLEN : p->width - column;
    UNROLLED(h, queries)
        UNROLLED(v, vectors)
            sum[h][v] = v * VLEN < room ? vload_n(sums + h * step + column + v * VLEN,
                                                  min_i64(VLEN, room - v * VLEN))
                                        : vset(0);
    from += column * kind_bytes(kind);
    int64_t t = 0;
    if (VBYTES == 16 && whole && kind != CACHED_I8) /* by an element of a vector: NEON */
        for (; t + VLEN <= count; t += VLEN) {
            vreal w[PLAIN_QUERIES];
            UNROLLED(h, queries)
                w[h] = vload(weights + h * p->ld + t);
#pragma GCC unroll 4
            for (int m = 0; m < VLEN; m++, from += p->token_bytes) {
                vreal value[PLAIN_ALONE];
                UNROLLED(v, vectors)
                    value[v] = load_cached(from, v * VLEN, VLEN, kind);
                UNROLLED(h, queries)
                    UNROLLED(v, vectors)
                        sum[h][v] = vfma(vset(w[h][m]), value[v], sum[h][v]);
            }
        }
    for (; t < count; t++, from += p->token_bytes) {
        vreal value[PLAIN_ALONE];
        UNROLLED(v, vectors)
            value[v] =
                load_cached(from, v * VLEN, whole ? VLEN : max_i64(room - v * VLEN, 0), kind);
        UNROLLED(h, queries) {
            real weight = weights[h * p->ld + t];
            if (kind == CACHED_I8) weight *= (real)scale[t];
            vreal w = vset(weight);
            UNROLLED(v, vectors)
                sum[h][v] = vfma(w, value[v], sum[h][v]);
        }
    }
    UNROLLED(h, queries)
        UNROLLED(v, vectors)
            if (v * VLEN < room)
                vstore_n(sums + h * step + column + v * VLEN, sum[h][v],
                         min_i64(VLEN, room - v * VLEN));
}

/* All columns of `queries` heads: as many vectors at a time as there are, so that a head of 64 columns is
 * whole with vectors of any length. */
static ALWAYS_INLINE void plain_add_heads(const plain_shape *p, const real *weights,
                                          const char *from, const float *scale, int64_t count,
                                          real *sums, int64_t step, const int queries,
                                          const int vectors, const cached_kind kind) {
    int64_t column = 0, most = vectors * VLEN, some = PLAIN_VECTORS * VLEN;
    for (; column + most <= p->width; column += most)
        plain_add_block(p, weights, from, scale, count, column, sums, step, queries, vectors, true,
                        kind);
    for (; vectors > PLAIN_VECTORS && column + some <= p->width; column += some)
        plain_add_block(p, weights, from, scale, count, column, sums, step, queries, PLAIN_VECTORS,
                        true, kind);
    for (; column + VLEN <= p->width; column += VLEN)
        plain_add_block(p, weights, from, scale, count, column, sums, step, queries, 1, true, kind);
    if (column < p->width)
        plain_add_block(p, weights, from, scale, count, column, sums, step, queries, 1, false,
                        kind);
}

static ALWAYS_INLINE void plain_add_kind(const plain_shape *p, const real *weights,
                                         const char *from, const float *scale, int64_t count,
                                         real *sums, int64_t step, const cached_kind kind) {
    EACH_TILES(h, n, p->lines, PLAIN_QUERIES,
               plain_add_heads(p, weights + h * p->ld, from, scale, count, sums + h * step, step, n,
                               n == 1 ? PLAIN_ALONE : PLAIN_VECTORS, kind));
}

/* sums [group, width] (ld `step`) += the weighted values of `count` keys that lie one after the other;
 * `scale` is of i8. */
static void plain_add(const plain_shape *p, const real *weights, const char *from,
                      const float *scale, int64_t count, real *sums, int64_t step) {
    BY_KIND(p->kind, plain_add_kind, p, weights, from, scale, count, sums, step);
}
