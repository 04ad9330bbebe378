/* Scores of a block's lines: the raw products of queries and keys, page by page or from a copy of keys as they
 * are read, and what the formula makes of them. Before them products and sums over pages of any kind in plain
 * vector code: keys and values are widened as they are read; a score has VLEN chains over its columns, a
 * value's column one chain over the keys. */
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
        store_lane_sums(s + h * BLOCK, 1, sum[h], keys);
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
               plain_dot_queries(p, q + h * p->width, k, count, s + h * BLOCK, n, kind));
}

/* s [group, BLOCK]: the products of the group's queries with `count` keys that lie one after the other,
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
                w[h] = vload(weights + h * BLOCK + t);
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
            real weight = weights[h * BLOCK + t];
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

/* sums [group, width] (ld `step`) += the weighted values of `count` keys that lie one after the other;
 * `scale` is of i8. */
static ALWAYS_INLINE void plain_add(const plain_shape *p, const real *weights, const char *from,
                                    const float *scale, int64_t count, real *sums, int64_t step,
                                    const cached_kind kind) {
    EACH_TILES(h, n, p->lines, PLAIN_QUERIES,
               plain_add_heads(p, weights + h * BLOCK, from, scale, count, sums + h * step, step, n,
                               n == 1 ? PLAIN_ALONE : PLAIN_VECTORS, kind));
}

#define LOG2E 1.4426950408889634074

/* A stored vector as reals. */
static void widen_stored(const cached_pages *c, const char *from, float scale, real *to) {
    for (int64_t i = 0, n; (n = min_i64(VLEN, c->part.width - i)) > 0; i += VLEN)
        vstore_n(to + i, (real)scale * BY_KIND(c->kind, load_cached, from, i, n), n);
}

/* One key of key head g as scores see it: rotated, its second half made deviations. */
static void read_key(const attend_run *a, int64_t r, int64_t g, int64_t j, const real *coarse,
                     real *to) {
    char *page = page_at(&a->keys, &a->places, r, j);
    int64_t token = j % WEFT_PAGE_TOKENS;
    float scale = a->keys.kind == CACHED_I8 ? *scale_at(&a->keys, page, g, token) : 1;
    widen_stored(&a->keys, head_at(&a->keys, page, g) + token * a->keys.token_bytes, scale, to);
    int64_t half = a->attr->rotated / 2;
    for (int64_t i = 0; i < half; i++) {
        const real *near = a->rotations + j % BLOCK * 2 * half;
        real c = coarse[i] * near[i] - coarse[half + i] * near[half + i];
        real s = coarse[half + i] * near[i] + coarse[i] * near[half + i];
        real x = to[i], y = to[half + i];
        to[i] = x * c - y * s;
        to[half + i] = y * c + x * s;
    }
    for (int64_t i = a->dqk / 2; a->attr->gaussian && i < a->dqk; i += VLEN) {
        int64_t n = min_i64(VLEN, a->dqk - i);
        vstore_n(to + i, vsoftplus(vload_n(to + i, n)), n);
    }
}

static void coarse_rotations(const attend_run *a, int64_t block, real *coarse) {
    const weft_rope_law *law = &a->attr->law;
    int64_t half = a->attr->rotated / 2;
    for (int64_t i = 0; i < half; i++) {
        double angle = (double)(block * BLOCK) * weft_rope_rate(law, i, a->attr->rotated);
        coarse[i] = (real)(law->amplitude * cos(angle));
        coarse[half + i] = (real)(law->amplitude * sin(angle));
    }
}

static real square_of(const real *k, int64_t width) {
    vreal sum = {0};
    for (int64_t i = 0; i < width; i += VLEN) {
        int64_t n = min_i64(VLEN, width - i);
        vreal v = vload_n(k + i, n);
        sum = vfma(v, v, sum);
    }
    return vsum(sum);
}

static real *numbers_of(const block_task *b, int64_t g) {
    return b->s->n + (g - b->from) * BLOCK;
}

/* The raw products of a block's keys that are copied, and their n. */
static void score_copied(const block_task *b, int64_t g) {
    const attend_run *a = b->a;
    const block_scratch *s = b->s;
    int64_t lead = b->first - b->base;
    if (a->attr->rotated) coarse_rotations(a, b->first / BLOCK, s->coarse);
    for (int64_t j = b->first; j < b->end; j++) {
        real *to = s->copy + (j - b->first) * a->dqk;
        read_key(a, b->row, g, j, s->coarse, to);
        if (a->attr->squares) numbers_of(b, g)[j - b->base] = square_of(to, a->dqk);
    }
    plain_shape shape = {b->lines, a->dqk, a->dqk * (int64_t)sizeof(real), CACHED_REAL};
    plain_score(&shape, queries_of(b, g), (const char *)s->copy, b->end - b->first,
                scores_of(b, g) + lead);
}

static void score_plain(const block_task *b, const page_run *run, int64_t g) {
    const attend_run *a = b->a;
    const cached_pages *c = &a->keys;
    plain_shape shape = {b->lines, a->dqk, c->token_bytes, c->kind};
    real *s = scores_of(b, g) + run->at;
    plain_score(&shape, queries_of(b, g), head_at(c, run->page, g) + run->token * c->token_bytes,
                run->end - run->token, s + run->token);
    if (c->kind != CACHED_I8) return;
    const float *scale = scale_at(c, run->page, g, 0);
    for (int64_t h = 0; h < b->lines; h++)
        for (int64_t t = run->token; t < run->end; t++)
            s[h * BLOCK + t] *= (real)scale[t];
}

/* The n of a page's keys. */
static void read_numbers(const block_task *b, const page_run *run, int64_t g) {
    const attend_run *a = b->a;
    const cached_pages *c = &a->keys;
    real *n = numbers_of(b, g) + run->at;
    const void *number = number_at(c, run->page, g, 0);
    for (int64_t t = run->token; c->part.number && t < run->end; t++)
        n[t] =
            c->kind == CACHED_REAL ? ((const real *)number)[t] : (real)((const float *)number)[t];
    if (!a->attr->squares) return;
    for (int64_t t = run->token; t < run->end; t++) {
        float scale = c->kind == CACHED_I8 ? *scale_at(c, run->page, g, t) : 1;
        widen_stored(c, head_at(c, run->page, g) + t * c->token_bytes, scale, b->s->own);
        n[t] = square_of(b->s->own, a->dqk);
    }
}

static void score_block(const block_task *b) {
    const attend_run *a = b->a;
    for (int64_t g = b->from; g < b->to; g++) {
        /* The queries of key head g's lines. */
        real *to = queries_of(b, g);
        int64_t used = a->group * a->dqk, step = a->lines * a->dqk;
        for (int64_t r = b->row; r < b->row + b->rows; r++, to += step) {
            memcpy(to, a->q + r * a->q_columns + g * used, (size_t)used * sizeof *to);
            memset(to + used, 0, (size_t)(step - used) * sizeof *to);
        }
    }
    if (copies_keys(a->attr)) {
        for (int64_t g = b->from; g < b->to; g++)
            score_copied(b, g);
        return;
    }
    for (int64_t g = b->from; b->key_way->queries && g < b->to; g++)
        b->key_way->queries(b, g);
    for (int64_t j = b->first; j < b->end;) {
        page_run run = run_at(b, &a->keys, j, b->end);
        for (int64_t g = b->from; g < b->to; g++) {
            b->key_way->score(b, &run, g);
            read_numbers(b, &run, g);
        }
        j += run.end - run.token;
    }
}

/* The query of position j ≤ the row's own: of this run, or one of the last before it. */
static const real *query_at(const attend_run *a, int64_t r, int64_t j, int64_t head) {
    const row_places *p = &a->places;
    int64_t back = p->position[r] - j;
    if (r - back >= 0 && p->slot[r - back] == p->slot[r] && p->position[r - back] == j)
        return a->q + (r - back) * a->q_columns + head * a->dqk;
    int64_t window = a->attr->window;
    return a->query_cache + ((p->slot[r] * window + j % window) * a->heads + head) * a->dqk;
}

/* Adds the band's term to the raw products: α ⟨q_j, k_i⟩ for i − j ≤ window. */
static void add_band(const block_task *b, int64_t g) {
    const attend_run *a = b->a;
    const block_scratch *s = b->s;
    int64_t i = a->places.position[b->row], from = max_i64(b->first, i - a->attr->window);
    if (from >= b->end) return;
    if (a->attr->rotated) coarse_rotations(a, i / BLOCK, s->coarse);
    read_key(a, b->row, g, i, s->coarse, s->own);
    for (int64_t h = 0; h < a->group; h++)
        for (int64_t j = from; j < b->end; j++) {
            const real *q = query_at(a, b->row, j, g * a->group + h);
            vreal sum = {0};
            for (int64_t d = 0; d < a->dqk; d += VLEN) {
                int64_t n = min_i64(VLEN, a->dqk - d);
                sum = vfma(vload_n(q + d, n), vload_n(s->own + d, n), sum);
            }
            scores_of(b, g)[h * BLOCK + j - b->base] += (real)a->attr->band_alpha * vsum(sum);
        }
}

/* From raw products to scores, in powers of two. */
static void finish_scores(const attend_run *a, int64_t i, int64_t head, int64_t first,
                          int64_t count, real *s, const real *n) {
    const weft_cache_attention_attr *attr = a->attr;
    real scale = (real)a->scale[head], beta = (real)a->beta[head];
    bool number = attr->key.number || attr->squares;
    if (number)
        for (int64_t j = 0; j < count; j++)
            s[j] = s[j] * scale + n[j] * beta;
    else
        for (int64_t j = 0; j < count; j++)
            s[j] *= scale;
    if (attr->pos == WEFT_POS_ALIBI) {
        real slope = (real)(weft_alibi_slope(head, a->heads) * LOG2E);
        for (int64_t j = 0; j < count; j++)
            s[j] -= slope * (real)(i - first - j);
    }
    if (attr->pos == WEFT_POS_RELATIVE)
        for (int64_t j = 0; j < count; j++)
            s[j] += a->rel[i - first - j] * (real)LOG2E;
    vreal slope;
    for (int64_t j = 0; attr->softcap > 0 && j < count; j += VLEN) {
        int64_t part = min_i64(VLEN, count - j);
        vstore_n(s + j, vsoftcap(vload_n(s + j, part), LOG2_E * (real)attr->softcap, &slope), part);
    }
}
