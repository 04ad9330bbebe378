/* Attention of one query for each row over the pages of its sequence (FlashDecoding's split of the
 * keys, with the splits at fixed positions).
 *
 * A task is one row, one key head with all the query heads that share it, and one block of
 * WEFT_KEY_BLOCK keys: their scores, the largest of them, the sum of the exponentials and the
 * weighted sum of the values. Each page is read once for all those heads. A row's blocks are joined
 * afterwards in their order. Where a block begins follows from the position alone, so a row's bits
 * depend neither on the batch nor on the threads.
 *
 * Keys that are stored as a latent (turned, or made into a Gaussian, when they are read) are first
 * written out for the block; the products then read that copy. */
#include "ops/cache.h"

#include "cpu/cache_attention_bf16.h"
#include "cpu/cached.h"

enum {
    BLOCK = WEFT_KEY_BLOCK,
    KEYS = 4,    /* keys whose products are made side by side */
    QUERIES = 4, /* query heads of one pass over keys or values */
    VECTORS = 4, /* vectors of a value's columns for several heads, */
    ALONE = 8    /* and for one */
};

#define LOG2E 1.4426950408889634074

typedef struct {
    const weft_exec *x;
    const weft_node *n;
    const weft_cache_attention_attr *attr;
    row_places places;
    cached_pages keys, values;
    int64_t heads, group, key_heads, dqk, dv;
    int64_t q_columns; /* of a row of q */
    const real *q;     /* real: the tensor's own, or widened */
    const real *rel, *turns;
    real *recent;
    const double *scale, *beta; /* [H], with log2 e in them */
    int64_t blocks;             /* most of a row */
    int64_t *first;             /* [R + 1]: a row's first task */
    real *partial;              /* [R, H, blocks, dv + 2]: weighted values, largest score, sum */
    real *scores;               /* [R, H, context] or NULL */
    real *largest, *norm;       /* [R, H]: of a row, when its blocks are joined */
    char *scratch;
    int64_t thread_bytes;
    bool bf16; /* by cache_attention_bf16.h */
} attend_run;

/* Scratch of a thread. */
typedef struct {
    real *scores;     /* [group, BLOCK] */
    real *n;          /* [BLOCK] */
    real *copy;       /* [BLOCK, dqk]: keys as they are read */
    real *own;        /* [dqk]: the row's own key */
    real *coarse;     /* [2, dqk / 2]: cosines and sines of the block's first position */
    uint16_t *narrow; /* [group, max(BLOCK, dqk)]: queries, then weights, in bf16 */
} block_scratch;

static bool copies_keys(const weft_cache_attention_attr *attr) {
    return attr->turned > 0 || attr->gaussian;
}

static int64_t scratch_bytes(const weft_cache_attention_attr *attr) {
    int64_t group = attr->heads / attr->key.heads, dqk = attr->key.width;
    return real_bytes(group * BLOCK) + real_bytes(BLOCK) +
           (copies_keys(attr) ? real_bytes(BLOCK * dqk) : 0) + 2 * real_bytes(dqk + 1) +
           real_bytes(group * max_i64(BLOCK, dqk) / 2 + 1);
}

static block_scratch cut_scratch(const attend_run *a, int thread) {
    char *at = a->scratch + thread * a->thread_bytes;
    block_scratch s;
    s.scores = (real *)at;
    at += real_bytes(a->group * BLOCK);
    s.n = (real *)at;
    at += real_bytes(BLOCK);
    s.copy = (real *)at;
    if (copies_keys(a->attr)) at += real_bytes(BLOCK * a->dqk);
    s.own = (real *)at;
    s.coarse = (real *)(at + real_bytes(a->dqk + 1));
    s.narrow = (uint16_t *)(at + 2 * real_bytes(a->dqk + 1));
    return s;
}

static int64_t first_seen(const attend_run *a, int64_t r) {
    return max_i64(0, a->places.position[r] + 1 - a->attr->context);
}

/* The products of `queries` queries (ld dqk) and `keys` keys; s has rows of BLOCK. */
static ALWAYS_INLINE void dot_block(const real *q, int64_t dqk, const char *k, int64_t key_bytes,
                                    real *s, const int queries, const int keys,
                                    const cached_kind kind) {
    vreal sum[QUERIES][KEYS];
    for (int h = 0; h < queries; h++)
        for (int j = 0; j < keys; j++)
            sum[h][j] = vset(0);
    int64_t i = 0;
    for (; i + VLEN <= dqk; i += VLEN) {
        vreal key[KEYS];
        for (int j = 0; j < keys; j++)
            key[j] = load_cached(k + j * key_bytes, i, VLEN, kind);
        for (int h = 0; h < queries; h++) {
            vreal v = vload(q + h * dqk + i);
            for (int j = 0; j < keys; j++)
                sum[h][j] = vfma(v, key[j], sum[h][j]);
        }
    }
    if (i < dqk)
        for (int h = 0; h < queries; h++) {
            vreal v = vload_part(q + h * dqk + i, dqk - i);
            for (int j = 0; j < keys; j++)
                sum[h][j] = vfma(v, load_cached(k + j * key_bytes, i, dqk - i, kind), sum[h][j]);
        }
    for (int h = 0; h < queries; h++)
        for (int j = 0; j < keys; j++)
            s[h * BLOCK + j] = vsum(sum[h][j]);
}

static ALWAYS_INLINE void dot_queries(const real *q, int64_t dqk, const char *k, int64_t key_bytes,
                                      int64_t count, real *s, const int queries,
                                      const cached_kind kind) {
    int64_t j = 0;
    for (; j + KEYS <= count; j += KEYS)
        dot_block(q, dqk, k + j * key_bytes, key_bytes, s + j, queries, KEYS, kind);
    for (; j < count; j++)
        dot_block(q, dqk, k + j * key_bytes, key_bytes, s + j, queries, 1, kind);
}

/* s [group, BLOCK]: the products of the group's queries with `count` keys that lie one after the
 * other. */
static ALWAYS_INLINE void dot_keys(const attend_run *a, const real *q, const char *k,
                                   int64_t key_bytes, int64_t count, real *s,
                                   const cached_kind kind) {
    int64_t h = 0;
    for (; h + QUERIES <= a->group; h += QUERIES)
        dot_queries(q + h * a->dqk, a->dqk, k, key_bytes, count, s + h * BLOCK, QUERIES, kind);
    int64_t left = a->group - h;
    q += h * a->dqk;
    s += h * BLOCK;
    if (left == 3) dot_queries(q, a->dqk, k, key_bytes, count, s, 3, kind);
    if (left == 2) dot_queries(q, a->dqk, k, key_bytes, count, s, 2, kind);
    if (left == 1) dot_queries(q, a->dqk, k, key_bytes, count, s, 1, kind);
}

static void narrow_rows(const real *from, int64_t ld, int64_t rows, int64_t n, uint16_t *to) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            to[r * n + i] = weft_float_to_bf16((float)from[r * ld + i]);
}

static void dot_stored(const attend_run *a, const real *q, const uint16_t *narrow, const char *k,
                       int64_t count, real *s) {
#if HAVE_BF16_ATTENTION
    if (a->bf16) {
        bf16_score(narrow, a->group, (const uint16_t *)k, a->dqk, count, s, BLOCK);
        return;
    }
#endif
    (void)narrow;
    if (a->keys.kind == CACHED_REAL)
        dot_keys(a, q, k, a->keys.token_bytes, count, s, CACHED_REAL);
    else if (a->keys.kind == CACHED_BF16)
        dot_keys(a, q, k, a->keys.token_bytes, count, s, CACHED_BF16);
    else
        dot_keys(a, q, k, a->keys.token_bytes, count, s, CACHED_I8);
}

/* A stored vector as reals. */
static void widen_stored(const cached_pages *c, const char *from, float scale, real *to) {
    int64_t width = c->part.width;
    for (int64_t i = 0; i < width; i++)
        to[i] = c->kind == CACHED_REAL   ? ((const real *)from)[i]
                : c->kind == CACHED_BF16 ? (real)weft_bf16_to_float(((const uint16_t *)from)[i])
                                         : (real)scale * (real)((const int8_t *)from)[i];
}

static void turn_key(const attend_run *a, const real *coarse, int64_t distance, real *k) {
    int64_t half = a->attr->turned / 2;
    const real *near = a->turns + distance * 2 * half;
    for (int64_t i = 0; i < half; i++) {
        real c = coarse[i] * near[i] - coarse[half + i] * near[half + i];
        real s = coarse[half + i] * near[i] + coarse[i] * near[half + i];
        real x = k[i], y = k[half + i];
        k[i] = x * c - y * s;
        k[half + i] = y * c + x * s;
    }
}

static void make_deviations(const attend_run *a, real *k) {
    int64_t half = a->dqk / 2;
    real *rho = k + half;
    for (int64_t i = 0; i < half; i += VLEN) {
        int64_t n = min_i64(VLEN, half - i);
        vstore_n(rho + i, vsoftplus(vload_n(rho + i, n)), n);
    }
}

/* One key of key head g as scores see it. */
static void read_key(const attend_run *a, int64_t r, int64_t g, int64_t j, const real *coarse,
                     real *to) {
    char *page = page_at(&a->keys, &a->places, r, j);
    int64_t token = j % WEFT_PAGE_TOKENS;
    float scale = a->keys.kind == CACHED_I8 ? *scale_at(&a->keys, page, g, token) : 1;
    widen_stored(&a->keys, head_at(&a->keys, page, g) + token * a->keys.token_bytes, scale, to);
    if (a->attr->turned) turn_key(a, coarse, j % BLOCK, to);
    if (a->attr->gaussian) make_deviations(a, to);
}

static void coarse_turns(const attend_run *a, int64_t block, real *coarse) {
    const weft_rope_law *law = &a->attr->law;
    int64_t half = a->attr->turned / 2;
    for (int64_t i = 0; i < half; i++) {
        double angle = (double)(block * BLOCK) * weft_rope_rate(law, i, a->attr->turned);
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

/* The raw products of keys [first, end) of a block, and their n. */
static void score_copied(const attend_run *a, int64_t r, int64_t g, int64_t first, int64_t end,
                         const real *q, const block_scratch *s) {
    if (a->attr->turned) coarse_turns(a, first / BLOCK, s->coarse);
    for (int64_t j = first; j < end; j++) {
        real *to = s->copy + (j - first) * a->dqk;
        read_key(a, r, g, j, s->coarse, to);
        if (a->attr->squares) s->n[j - first] = square_of(to, a->dqk);
    }
    dot_keys(a, q, (const char *)s->copy, a->dqk * (int64_t)sizeof(real), end - first, s->scores,
             CACHED_REAL);
}

static void score_pages(const attend_run *a, int64_t r, int64_t g, int64_t first, int64_t end,
                        const real *q, const block_scratch *s) {
    const cached_pages *c = &a->keys;
    if (a->bf16) narrow_rows(q, a->dqk, a->group, a->dqk, s->narrow);
    for (int64_t j = first; j < end;) {
        int64_t token = j % WEFT_PAGE_TOKENS, count = min_i64(WEFT_PAGE_TOKENS - token, end - j);
        char *page = page_at(c, &a->places, r, j);
        const char *k = head_at(c, page, g) + token * c->token_bytes;
        real *to = s->scores + (j - first), *n = s->n + (j - first);
        dot_stored(a, q, s->narrow, k, count, to);
        if (c->kind == CACHED_I8) {
            const float *scale = scale_at(c, page, g, token);
            for (int64_t h = 0; h < a->group; h++)
                for (int64_t i = 0; i < count; i++)
                    to[h * BLOCK + i] *= (real)scale[i];
        }
        if (c->part.number) memcpy(n, number_at(c, page, g, token), (size_t)count * sizeof(real));
        if (a->attr->squares)
            for (int64_t i = 0; i < count; i++) {
                float scale = c->kind == CACHED_I8 ? scale_at(c, page, g, token)[i] : 1;
                widen_stored(c, k + i * c->token_bytes, scale, s->own);
                n[i] = square_of(s->own, a->dqk);
            }
        j += count;
    }
}

/* The query of position j ≤ the row's own: of this run, or one of the last before it. */
static const real *query_at(const attend_run *a, int64_t r, int64_t j, int64_t head) {
    const row_places *p = &a->places;
    int64_t back = p->position[r] - j;
    if (r - back >= 0 && p->slot[r - back] == p->slot[r] && p->position[r - back] == j)
        return a->q + (r - back) * a->q_columns + head * a->dqk;
    int64_t window = a->attr->window;
    return a->recent + ((p->slot[r] * window + j % window) * a->heads + head) * a->dqk;
}

/* Adds the band's term to the raw products: α ⟨q_j, k_i⟩ for i − j ≤ window. */
static void add_band(const attend_run *a, int64_t r, int64_t g, int64_t first, int64_t end,
                     const block_scratch *s) {
    int64_t i = a->places.position[r], from = max_i64(first, i - a->attr->window);
    if (from >= end) return;
    if (a->attr->turned) coarse_turns(a, i / BLOCK, s->coarse);
    read_key(a, r, g, i, s->coarse, s->own);
    for (int64_t h = 0; h < a->group; h++)
        for (int64_t j = from; j < end; j++) {
            const real *q = query_at(a, r, j, g * a->group + h);
            vreal sum = {0};
            for (int64_t d = 0; d < a->dqk; d += VLEN) {
                int64_t n = min_i64(VLEN, a->dqk - d);
                sum = vfma(vload_n(q + d, n), vload_n(s->own + d, n), sum);
            }
            s->scores[h * BLOCK + j - first] += (real)a->attr->band_alpha * vsum(sum);
        }
}

/* From raw products to scores, in powers of two. */
static void finish_scores(const attend_run *a, int64_t i, int64_t head, int64_t first,
                          int64_t count, real *s, const real *n) {
    const weft_cache_attention_attr *attr = a->attr;
    real scale = (real)a->scale[head], beta = (real)a->beta[head];
    bool number = attr->key.number || attr->squares;
    for (int64_t j = 0; j < count; j++)
        s[j] = number ? s[j] * scale + n[j] * beta : s[j] * scale;
    if (attr->pos == WEFT_POS_ALIBI) {
        real slope = (real)(weft_alibi_slope(head, a->heads) * LOG2E);
        for (int64_t j = 0; j < count; j++)
            s[j] -= slope * (real)(i - first - j);
    }
    if (attr->pos == WEFT_POS_RELATIVE)
        for (int64_t j = 0; j < count; j++)
            s[j] += a->rel[i - first - j] * (real)LOG2E;
}

/* Scores to exponentials under the largest; that one, and their sum. */
static void exponentials(real *s, int64_t count, real *largest, real *sum) {
    vreal most = vset(s[0]);
    int64_t j = 0;
    for (; j + VLEN <= count; j += VLEN)
        most = vmax(most, vload(s + j));
    real top = vmax_lane(most);
    for (; j < count; j++)
        top = s[j] > top ? s[j] : top;
    vreal total = {0};
    for (j = 0; j + VLEN <= count; j += VLEN) {
        vreal e = vexp2(vload(s + j) - vset(top));
        vstore(s + j, e);
        total += e;
    }
    if (j < count) {
        vreal e = vexp2(vload_part(s + j, count - j) - vset(top));
        vstore_part(s + j, e, count - j);
        vreal part = vload_part(s + j, count - j);
        total += part;
    }
    *largest = top;
    *sum = vsum(total);
}

/* to [queries, dv] (ld `step`): columns from `column` on, of Σ_j p_j v_j over a block. */
static ALWAYS_INLINE void add_values(const attend_run *a, int64_t r, int64_t g, int64_t first,
                                     int64_t end, const real *p, int64_t column, real *to,
                                     int64_t step, const int queries, const int vectors,
                                     const cached_kind kind) {
    const cached_pages *c = &a->values;
    vreal sum[QUERIES][ALONE];
    int64_t room = a->dv - column, bytes = kind_bytes(kind);
    for (int h = 0; h < queries; h++)
        for (int v = 0; v < vectors; v++)
            sum[h][v] = vset(0);
    for (int64_t j = first; j < end;) {
        int64_t token = j % WEFT_PAGE_TOKENS, count = min_i64(WEFT_PAGE_TOKENS - token, end - j);
        char *page = page_at(c, &a->places, r, j);
        const char *from = head_at(c, page, g) + token * c->token_bytes + column * bytes;
        const float *scale = kind == CACHED_I8 ? scale_at(c, page, g, token) : NULL;
        for (int64_t t = 0; t < count; t++, from += c->token_bytes) {
            vreal value[ALONE];
            if (room >= vectors * VLEN)
                for (int v = 0; v < vectors; v++)
                    value[v] = load_cached(from, v * VLEN, VLEN, kind);
            else
                for (int v = 0; v < vectors; v++)
                    value[v] = load_cached(from, v * VLEN, max_i64(room - v * VLEN, 0), kind);
            for (int h = 0; h < queries; h++) {
                real weight = p[h * BLOCK + (j - first) + t];
                if (kind == CACHED_I8) weight *= (real)scale[t];
                vreal w = vset(weight);
                for (int v = 0; v < vectors; v++)
                    sum[h][v] = vfma(w, value[v], sum[h][v]);
            }
        }
        j += count;
    }
    for (int h = 0; h < queries; h++)
        for (int v = 0; v < vectors && v * VLEN < room; v++)
            vstore_n(to + h * step + column + v * VLEN, sum[h][v], min_i64(VLEN, room - v * VLEN));
}

static ALWAYS_INLINE void sum_values(const attend_run *a, int64_t r, int64_t g, int64_t first,
                                     int64_t end, const real *p, real *to, int64_t step,
                                     const cached_kind kind) {
    int64_t h = 0;
    for (; h + QUERIES <= a->group; h += QUERIES)
        for (int64_t column = 0; column < a->dv; column += VECTORS * VLEN)
            add_values(a, r, g, first, end, p + h * BLOCK, column, to + h * step, step, QUERIES,
                       VECTORS, kind);
    for (; h < a->group; h++)
        for (int64_t column = 0; column < a->dv; column += ALONE * VLEN)
            add_values(a, r, g, first, end, p + h * BLOCK, column, to + h * step, step, 1, ALONE,
                       kind);
}

#if HAVE_BF16_ATTENTION
static bf16_runs find_runs(const attend_run *a, int64_t r, int64_t g, int64_t first, int64_t end) {
    const cached_pages *c = &a->values;
    bf16_runs runs = {.n = 0};
    for (int64_t j = first; j < end; j += runs.count[runs.n++]) {
        int64_t token = j % WEFT_PAGE_TOKENS;
        char *page = page_at(c, &a->places, r, j);
        runs.at[runs.n] = (const uint16_t *)(head_at(c, page, g) + token * c->token_bytes);
        runs.count[runs.n] = (int)min_i64(WEFT_PAGE_TOKENS - token, end - j);
    }
    return runs;
}
#endif

static int64_t find_row(const attend_run *a, int64_t task) {
    int64_t low = 0, high = a->places.rows;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (a->first[middle] <= task)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void attend_block(void *context, int64_t task, int thread) {
    const attend_run *a = context;
    int64_t r = find_row(a, task), i = a->places.position[r], seen = first_seen(a, r);
    int64_t at = task - a->first[r], g = at % a->key_heads, part = at / a->key_heads;
    int64_t block = seen / BLOCK + part;
    int64_t first = max_i64(block * BLOCK, seen), end = min_i64((block + 1) * BLOCK, i + 1);
    block_scratch s = cut_scratch(a, thread);
    int64_t head = g * a->group, step = a->blocks * (a->dv + 2);
    const real *q = a->q + r * a->q_columns + head * a->dqk;
    if (copies_keys(a->attr))
        score_copied(a, r, g, first, end, q, &s);
    else
        score_pages(a, r, g, first, end, q, &s);
    if (a->attr->band) add_band(a, r, g, first, end, &s);
    real *to = a->partial + ((r * a->heads + head) * a->blocks + part) * (a->dv + 2);
    for (int64_t h = 0; h < a->group; h++) {
        real *row = s.scores + h * BLOCK;
        finish_scores(a, i, head + h, first, end - first, row, s.n);
        if (a->scores)
            memcpy(a->scores + (r * a->heads + head + h) * a->attr->context + (first - seen), row,
                   (size_t)(end - first) * sizeof(real));
        exponentials(row, end - first, to + h * step + a->dv, to + h * step + a->dv + 1);
    }
#if HAVE_BF16_ATTENTION
    if (a->bf16) {
        bf16_runs runs = find_runs(a, r, g, first, end);
        narrow_rows(s.scores, BLOCK, a->group, end - first, s.narrow);
        bf16_values(&runs, s.narrow, end - first, a->group, a->dv, to, step);
        return;
    }
#endif
    if (a->values.kind == CACHED_REAL)
        sum_values(a, r, g, first, end, s.scores, to, step, CACHED_REAL);
    else if (a->values.kind == CACHED_BF16)
        sum_values(a, r, g, first, end, s.scores, to, step, CACHED_BF16);
    else
        sum_values(a, r, g, first, end, s.scores, to, step, CACHED_I8);
}

/* A row's head: its blocks, in order. */
static void join_blocks(void *context, int64_t task, int thread) {
    (void)thread;
    const attend_run *a = context;
    int64_t r = task / a->heads, blocks = (a->first[r + 1] - a->first[r]) / a->key_heads;
    const weft_tensor *o = a->n->out[0];
    const real *part = a->partial + task * a->blocks * (a->dv + 2);
    real *sum = a->partial + task * a->blocks * (a->dv + 2), total = 0;
    if (blocks == 0) {
        memset((char *)weft_data(a->x, o) + (size_t)(task * a->dv) * weft_dtype_size(o->dtype), 0,
               (size_t)a->dv * weft_dtype_size(o->dtype));
        return;
    }
    real top = part[a->dv];
    for (int64_t b = 1; b < blocks; b++)
        top = part[b * (a->dv + 2) + a->dv] > top ? part[b * (a->dv + 2) + a->dv] : top;
    for (int64_t b = 0; b < blocks; b++) {
        const real *from = part + b * (a->dv + 2);
        real factor = (real)exp2((double)(from[a->dv] - top));
        total += factor * from[a->dv + 1];
        for (int64_t d = 0; d < a->dv; d++)
            sum[d] = b == 0 ? from[d] * factor : sum[d] + from[d] * factor;
    }
    a->largest[task] = top;
    a->norm[task] = total;
    real inverse = 1 / total;
    for (int64_t d = 0; d < a->dv; d++) {
        if (o->dtype == WEFT_BF16)
            ((uint16_t *)weft_data(a->x, o))[task * a->dv + d] =
                weft_float_to_bf16((float)(sum[d] * inverse));
        else
            ((real *)weft_data(a->x, o))[task * a->dv + d] = sum[d] * inverse;
    }
}

/* The weights of a row's block of keys, over all heads. */
static void join_weights(void *context, int64_t task, int thread) {
    (void)thread;
    const attend_run *a = context;
    int64_t context_keys = a->attr->context, chunks = ceil_div(context_keys, BLOCK);
    int64_t r = task / chunks, first = task % chunks * BLOCK;
    if (a->places.slot[r] < 0) return;
    int64_t end = min_i64(first + BLOCK, a->places.position[r] + 1 - first_seen(a, r));
    real *w = (real *)weft_data(a->x, a->n->out[1]) + r * context_keys;
    for (int64_t j = first; j < end; j++) {
        real sum = 0;
        for (int64_t h = 0; h < a->heads; h++) {
            int64_t at = r * a->heads + h;
            real p = (real)exp2((double)(a->scores[at * context_keys + j] - a->largest[at])) /
                     a->norm[at];
            sum = a->attr->weights == WEFT_WEIGHTS_MAX ? (p > sum ? p : sum) : sum + p;
        }
        w[j] = a->attr->weights == WEFT_WEIGHTS_MAX ? sum : sum / (real)a->heads;
    }
}

/* Keeps the queries of this run for the next. */
static void keep_queries(const attend_run *a) {
    int64_t window = a->attr->window, width = a->heads * a->dqk;
    for (int64_t r = 0; r < a->places.rows; r++)
        if (a->places.slot[r] >= 0)
            memcpy(a->recent +
                       (a->places.slot[r] * window + a->places.position[r] % window) * width,
                   a->q + r * a->q_columns, (size_t)width * sizeof(real));
}

static int64_t most_blocks(const weft_cache_attention_attr *attr) {
    return attr->context / BLOCK + 2;
}

/* The workspace, in order: scale, beta; first; partial sums; largest, norm; scores; q; threads'. */
typedef struct {
    int64_t heads, first, partial, rows, scores, q, total;
} attend_room;

static attend_room measure_room(const weft_node *n, int threads) {
    const weft_cache_attention_attr *attr = n->attr;
    const weft_tensor *q = n->in[WEFT_CACHE_X];
    int64_t rows = q->shape[0], heads = attr->heads;
    attend_room w;
    w.heads = ceil_div(2 * heads * (int64_t)sizeof(double), WEFT_ARENA_ALIGN) * WEFT_ARENA_ALIGN;
    w.first = ceil_div((rows + 1) * (int64_t)sizeof(int64_t), WEFT_ARENA_ALIGN) * WEFT_ARENA_ALIGN;
    w.partial = real_bytes(rows * heads * most_blocks(attr) * (attr->value.width + 2));
    w.rows = real_bytes(2 * rows * heads);
    w.scores = attr->weights ? real_bytes(rows * heads * attr->context) : 0;
    w.q = q->dtype == WEFT_BF16 ? real_bytes(weft_tensor_count(q)) : 0;
    w.total =
        w.heads + w.first + w.partial + w.rows + w.scores + w.q + threads * scratch_bytes(attr);
    return w;
}

static int64_t cache_attention_workspace(const weft_node *n, int threads) {
    return measure_room(n, threads).total;
}

/* scale and beta of each head, with log2 e in them. */
static void fill_factors(const weft_exec *x, const weft_node *n, double *scale, double *beta) {
    const weft_cache_attention_attr *attr = n->attr;
    const real *scales = weft_data(x, n->in[WEFT_CACHE_SCALE]);
    const real *betas = weft_data(x, n->in[WEFT_CACHE_BETA]);
    const real *log_tau = weft_data(x, n->in[WEFT_CACHE_LOG_TAU]);
    for (int64_t h = 0; h < attr->heads; h++) {
        double tau = log_tau ? exp((double)log_tau[h]) + 1e-6 : 1;
        scale[h] = LOG2E * (log_tau ? 2 / tau : scales ? (double)scales[h] : attr->scale_value);
        beta[h] = LOG2E * (log_tau ? -1 / tau : betas ? (double)betas[h] : 0);
    }
}

static void lay_out(attend_run *a, weft_exec *x, const weft_node *n) {
    int threads = weft_pool_size(weft_exec_pool(x));
    attend_room w = measure_room(n, threads);
    char *at = weft_workspace(x, n);
    double *factors = (double *)at;
    fill_factors(x, n, factors, factors + a->heads);
    a->scale = factors;
    a->beta = factors + a->heads;
    a->first = (int64_t *)(at += w.heads);
    a->partial = (real *)(at += w.first);
    a->largest = (real *)(at += w.partial);
    a->norm = a->largest + a->places.rows * a->heads;
    at += w.rows;
    a->scores = w.scores ? (real *)at : NULL;
    at += w.scores;
    a->q = weft_data(x, n->in[WEFT_CACHE_X]);
    if (w.q) {
        const uint16_t *from = weft_data(x, n->in[WEFT_CACHE_X]);
        real *to = (real *)at;
        for (int64_t i = 0; i < weft_tensor_count(n->in[WEFT_CACHE_X]); i++)
            to[i] = (real)weft_bf16_to_float(from[i]);
        a->q = to;
    }
    a->scratch = at + w.q;
    a->thread_bytes = scratch_bytes(a->attr);
}

static weft_status cache_attention_run(weft_exec *x, const weft_node *n) {
    const weft_cache_attention_attr *attr = n->attr;
    const weft_tensor *values = n->in[WEFT_CACHE_VALUES];
    attend_run a = {.x = x, .n = n, .attr = attr, .places = places_of(x, n)};
    a.keys = pages_of(weft_data(x, n->in[WEFT_CACHE_PAGES]), &attr->key);
    a.values = values ? pages_of(weft_data(x, values), &attr->value) : a.keys;
    a.heads = attr->heads;
    a.key_heads = attr->key.heads;
    a.group = a.heads / a.key_heads;
    a.dqk = attr->key.width;
    a.dv = attr->value.width;
    a.q_columns = weft_tensor_count(n->in[WEFT_CACHE_X]) / a.places.rows;
    a.rel = weft_data(x, n->in[WEFT_CACHE_REL]);
    a.turns = weft_data(x, n->in[WEFT_CACHE_TURNS]);
    a.recent = weft_data(x, n->in[WEFT_CACHE_RECENT]);
    a.blocks = most_blocks(attr);
    a.bf16 = !copies_keys(attr) && bf16_attends(&a.keys.part, &a.values.part);
    lay_out(&a, x, n);
    a.first[0] = 0;
    for (int64_t r = 0; r < a.places.rows; r++) {
        int64_t blocks = 0;
        if (a.places.slot[r] >= 0)
            blocks = a.places.position[r] / BLOCK - first_seen(&a, r) / BLOCK + 1;
        a.first[r + 1] = a.first[r] + blocks * a.key_heads;
    }
    weft_pool *pool = weft_exec_pool(x);
    weft_pool_run(pool, a.first[a.places.rows], attend_block, &a);
    weft_pool_run(pool, a.places.rows * a.heads, join_blocks, &a);
    if (a.scores)
        weft_pool_run(pool, a.places.rows * ceil_div(attr->context, BLOCK), join_weights, &a);
    if (attr->band && attr->window > 0) keep_queries(&a);
    return WEFT_OK;
}

const weft_kernel KERNEL(cache_attention) = {.run = cache_attention_run,
                                             .workspace = cache_attention_workspace};
