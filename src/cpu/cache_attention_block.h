/* Attention of one row's query heads over one block of keys, page by page: the scores of all key heads
 * of a page, page after page, then the weights, then the sums of the values in the same order. So
 * memory is read as it lies. What a head's numbers go through does not depend on which heads are done
 * with it.
 *
 * Keys that are stored as a latent (rotated, or made into a Gaussian, when they are read) are first
 * written out for the block; the products then read that copy. */
#ifndef WEFT_CPU_CACHE_ATTENTION_BLOCK_H
#define WEFT_CPU_CACHE_ATTENTION_BLOCK_H

#include "cpu/attention_exp.h"
#include "cpu/cache_attention_narrow.h"
#include "cpu/cache_attention_plain.h"

#define LOG2E 1.4426950408889634074

/* A stored vector as reals. */
static void widen_stored(const cached_pages *c, const char *from, float scale, real *to) {
    int64_t width = c->part.width;
    for (int64_t i = 0; i < width; i++)
        to[i] = c->kind == CACHED_REAL   ? ((const real *)from)[i]
                : c->kind == CACHED_BF16 ? (real)weft_bf16_to_float(((const uint16_t *)from)[i])
                                         : (real)scale * (real)((const int8_t *)from)[i];
}

static void rotate_key(const attend_run *a, const real *coarse, int64_t distance, real *k) {
    int64_t half = a->attr->rotated / 2;
    const real *near = a->rotations + distance * 2 * half;
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
    if (a->attr->rotated) rotate_key(a, coarse, j % BLOCK, to);
    if (a->attr->gaussian) make_deviations(a, to);
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

/* The raw products of a block's keys that are copied, and their n. */
static void score_copied(const block_task *b, int64_t g) {
    const attend_run *a = b->a;
    const block_scratch *s = &b->s;
    int64_t lead = b->first - b->base;
    if (a->attr->rotated) coarse_rotations(a, b->first / BLOCK, s->coarse);
    for (int64_t j = b->first; j < b->end; j++) {
        real *to = s->copy + (j - b->first) * a->dqk;
        read_key(a, b->row, g, j, s->coarse, to);
        if (a->attr->squares) s->n[g * BLOCK + j - b->base] = square_of(to, a->dqk);
    }
    plain_shape shape = {a->group, a->dqk, a->dqk * (int64_t)sizeof(real), CACHED_REAL, BLOCK};
    plain_score(&shape, queries_of(b, g), (const char *)s->copy, b->end - b->first,
                scores_of(b, g) + lead);
}

static void score_plain(const block_task *b, const page_run *run, int64_t g) {
    const attend_run *a = b->a;
    const cached_pages *c = &a->keys;
    plain_shape shape = {a->group, a->dqk, c->token_bytes, c->kind, BLOCK};
    real *s = scores_of(b, g) + run->at;
    plain_score(&shape, queries_of(b, g), head_at(c, run->page, g) + run->token * c->token_bytes,
                run->end - run->token, s + run->token);
    if (c->kind != CACHED_I8) return;
    const float *scale = scale_at(c, run->page, g, 0);
    for (int64_t h = 0; h < a->group; h++)
        for (int64_t t = run->token; t < run->end; t++)
            s[h * BLOCK + t] *= (real)scale[t];
}

/* The n of a page's keys. */
static void read_numbers(const block_task *b, const page_run *run, int64_t g) {
    const attend_run *a = b->a;
    const cached_pages *c = &a->keys;
    real *n = b->s.n + g * BLOCK + run->at;
    if (c->part.number)
        memcpy(n + run->token, number_at(c, run->page, g, run->token),
               (size_t)(run->end - run->token) * sizeof(real));
    if (!a->attr->squares) return;
    for (int64_t t = run->token; t < run->end; t++) {
        float scale = c->kind == CACHED_I8 ? *scale_at(c, run->page, g, t) : 1;
        widen_stored(c, head_at(c, run->page, g) + t * c->token_bytes, scale, b->s.own);
        n[t] = square_of(b->s.own, a->dqk);
    }
}

static void score_block(const block_task *b) {
    const attend_run *a = b->a;
    if (copies_keys(a->attr)) {
        for (int64_t g = b->from; g < b->to; g++)
            score_copied(b, g);
        return;
    }
    for (int64_t g = b->from; g < b->to; g++)
        narrow_queries(b, g);
    for (int64_t j = b->first; j < b->end;) {
        page_run run = run_at(b, &a->keys, j);
        for (int64_t g = b->from; g < b->to; g++) {
            if (!narrow_score(b, &run, g)) score_plain(b, &run, g);
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
    const block_scratch *s = &b->s;
    int64_t i = b->position, from = max_i64(b->first, i - a->attr->window);
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
}

static real largest_of(const real *s, int64_t count) {
    vreal most[4];
    int64_t j = 0;
    for (int v = 0; v < 4; v++)
        most[v] = vset(s[0]);
    for (; j + 4 * VLEN <= count; j += 4 * VLEN)
        for (int v = 0; v < 4; v++)
            most[v] = vmax(most[v], vload(s + j + v * VLEN));
    real top = vmax_lane(vmax(vmax(most[0], most[1]), vmax(most[2], most[3])));
    for (; j < count; j++)
        top = s[j] > top ? s[j] : top;
    return top;
}

/* Scores to exponentials under the largest; that one, and their sum. */
static void exponentials(real *s, int64_t count, real *largest, real *sum) {
    real top = largest_of(s, count);
    vreal tops[2] = {vset(top), vset(top)}, totals[2] = {vset(0), vset(0)};
    int64_t j = softmax_many(s, count / (2 * VLEN), tops, totals) * 2 * VLEN;
    vreal total = totals[0] + totals[1];
    for (; j + VLEN <= count; j += VLEN) {
        vreal e = vexp2_low(vload(s + j) - tops[0]);
        vstore(s + j, e);
        total += e;
    }
    if (j < count) {
        vreal e = vexp2_low(vload_part(s + j, count - j) - tops[0]);
        vstore_part(s + j, e, count - j);
        vreal part = vload_part(s + j, count - j);
        total += part;
    }
    *largest = top;
    *sum = vsum(total);
}

/* Raw products of a group to weights, and what joins the blocks: the largest score and the sum. */
static void softmax_head(const block_task *b, int64_t g) {
    const attend_run *a = b->a;
    int64_t lead = b->first - b->base, count = b->end - b->first;
    if (a->attr->band) add_band(b, g);
    for (int64_t h = 0; h < a->group; h++) {
        int64_t head = g * a->group + h, seen = b->first - first_seen(a, b->row);
        real *row = scores_of(b, g) + h * BLOCK + lead, *out = out_of(b, g) + h * out_step(a);
        finish_scores(a, b->position, head, b->first, count, row, b->s.n + g * BLOCK + lead);
        if (a->scores)
            memcpy(a->scores + (b->row * a->heads + head) * a->attr->context + seen, row,
                   (size_t)count * sizeof(real));
        exponentials(row, count, out + a->dv, out + a->dv + 1);
    }
    narrow_weights(b, g);
}

static void add_plain(const block_task *b, const page_run *runs, int n, int64_t g) {
    const attend_run *a = b->a;
    const cached_pages *c = &a->values;
    plain_shape shape = {a->group, a->dv, c->token_bytes, c->kind, BLOCK};
    for (const page_run *run = runs; run < runs + n; run++)
        plain_add(&shape, scores_of(b, g) + run->at + run->token,
                  head_at(c, run->page, g) + run->token * c->token_bytes,
                  c->kind == CACHED_I8 ? scale_at(c, run->page, g, run->token) : NULL,
                  run->end - run->token, out_of(b, g), out_step(a));
}

static void add_block(const block_task *b) {
    const attend_run *a = b->a;
    for (int64_t h = b->from * a->group; h < b->to * a->group; h++)
        memset(b->out + h * out_step(a), 0, (size_t)a->dv * sizeof(real));
    if (a->value_way != BY_PLAIN)
        memset(sums_of(b, b->from), 0, (size_t)(8 * (b->to - b->from) * a->rows * a->dv));
    int together = a->group == 1 ? 1 : PAGES_TOGETHER, n = 0;
    page_run runs[PAGES_TOGETHER];
    for (int64_t j = b->first; j < b->end; n = 0) {
        for (; n < together && j < b->end; n++) {
            runs[n] = run_at(b, &a->values, j);
            j += runs[n].end - runs[n].token;
        }
        for (int64_t g = b->from; g < b->to; g++)
            if (!narrow_add(b, runs, n, g)) add_plain(b, runs, n, g);
    }
    for (int64_t g = b->from; g < b->to; g++)
        narrow_finish(b, g);
}

static void attend(const block_task *b) {
    narrow_begin(b);
    score_block(b);
    for (int64_t g = b->from; g < b->to; g++)
        softmax_head(b, g);
    add_block(b);
    narrow_end(b);
}

#endif
