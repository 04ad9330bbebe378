/* How a backward pass of attention goes through its work, for both of them.
 *
 * A task has some heads of one key head and a range of keys. For each of its heads it packs the
 * queries, then walks its keys tile by tile and, for each, the queries that see them. So dK and dV of
 * the range grow in one place, and dQ of a head too. Where several tasks add to the same, each has a
 * place of its own in the workspace, and they are summed afterwards in the order of the tasks. Rows of
 * dQ and dK that are those of Gaussians are finished before they are written. How the work is divided
 * follows from the shape alone, and so does every sum's order.
 *
 * To be included behind what is the pass's own: PAIR_KEYS and PAIR_QUERIES, the sizes of tiles;
 * `backward`, which begins with a back_problem g, pair_scratch and pair_task, with the fields that are
 * used here; and
 *
 *     lay_out_scratch               what a thread has but for sums
 *     begin_task                    what a task has of its own
 *     pack_query_tile, pack_keys    PAIR_QUERIES queries from q0 on; the tile's keys
 *     work_tiles                    the pair; `first`: the first query that sees the keys */
#pragma once

#include "cpu/gaussian_back.h"

enum { SUM_ROWS = 64 };

static sum_panels lay_out_panels(const back_problem *g, int64_t rows, int64_t width,
                                 real_block *at) {
    int64_t columns = g->columns ? round_up(width, g->columns) : TILE_N;
    /* Some more rows than asked for: a power of two would bring a row's columns to one place of the
     * cache. */
    if (!g->columns) rows += TILE_N;
    return (sum_panels){take_reals(at, rows * round_up(width, columns)), rows, columns};
}

static key_sums lay_out_sums(const back_problem *g, real_block *at) {
    return (key_sums){
        .dk = lay_out_panels(g, g->split.part_keys, g->p.a->dqk, at),
        .dv = lay_out_panels(g, g->split.part_keys, g->p.a->dv, at),
        .dn = take_reals(at, g->split.part_keys),
    };
}

static sum_panels lay_out_query_sums(const back_problem *g, real_block *at) {
    return lay_out_panels(g, round_up(g->p.a->queries, PAIR_QUERIES), g->p.a->dqk, at);
}

/* With the sums that no other task adds to. */
static pair_scratch lay_out_thread(const backward *w, real_block *at) {
    pair_scratch s = lay_out_scratch(w, at);
    if (w->g.split.key_parts == 1) s.dq = lay_out_query_sums(&w->g, at);
    if (w->g.split.head_parts == 1) s.sums = lay_out_sums(&w->g, at);
    return s;
}

/* Divides the workspace; without one (base NULL) only measures it. Returns its reals without the
 * threads' scratch. */
static int64_t lay_out_workspace(backward *w, real *base) {
    back_problem *g = &w->g;
    const weft_attention_attr *a = g->p.a;
    const division *d = &g->split;
    real_block at = {base, 0}, own = {NULL, 0}, sums = {NULL, 0}, queries = {NULL, 0};
    lay_out_sums(g, &sums);
    lay_out_query_sums(g, &queries);
    g->key_size = sums.used;
    g->query_size = queries.used;
    /* Doubles first: the workspace is aligned for them. */
    int64_t doubles = a->batch * a->heads * d->key_parts * HEAD_NUMBERS;
    g->numbers = (double *)take_reals(&at, doubles * (int64_t)(sizeof(double) / sizeof(real)));
    g->own = take_reals(&at, g->own_size);
    if (d->key_parts > 1)
        g->query_parts = take_reals(&at, a->batch * a->heads * d->key_parts * g->query_size);
    if (d->head_parts > 1) g->key_parts = take_reals(&at, d->tasks * g->key_size);
    lay_out_thread(w, &own);
    g->scratch_size = own.used;
    g->scratch = base ? base + at.used : NULL;
    return at.used;
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
        for (int64_t n = 0; n < width; n += sums.columns) {
            real *sum = sums.at + n * sums.rows + (at + r) * sums.columns;
            int64_t end = min_i64(n + sums.columns, width), middle = max_i64(n, min_i64(half, end));
            join_gradients(false, row + n, sum, sum, middle - n, twice);
            join_gradients(true, row + middle, sum + middle - n, sum + middle - n, end - middle,
                           twice);
        }
    }
}

/* Sums from row `at` on to rows r0 .. of a tensor. */
static void write_rows(const attention_problem *p, const head_rows *to, int64_t b, int64_t head,
                       int64_t r0, int64_t rows, sum_panels from, int64_t at, real *widened) {
    int64_t columns = from.columns, whole = to->width / columns * columns, left = to->width - whole;
    for (int64_t r = 0; r < rows; r++) {
        int64_t element = head_row_at(to, b, r0 + r, head);
        real *row = tile_out(p->x, to->t, element, widened);
        const real *sum = from.at + (at + r) * columns;
        for (int64_t n = 0; n < whole; n += columns)
            __builtin_prefetch(sum + n * from.rows + ROWS_AHEAD * columns);
        for (int64_t n = 0; n < whole; n += columns)
            for (int64_t v = 0; v < columns; v += VLEN)
                vstore(row + n + v, vload(sum + n * from.rows + v));
        if (left) memcpy(row + whole, sum + whole * from.rows, (size_t)left * sizeof(real));
        tile_done(p->x, to->t, element, to->width, row);
    }
}

/* Rows r0 .. of dQ, whose sums they are in the panels too. */
static void write_queries(const back_problem *g, int64_t b, int64_t h, int64_t r0, int64_t rows,
                          sum_panels dq, real *widened) {
    if (g->p.a->gaussian_q) join_rows(&g->p, &g->p.q, b, h, r0, rows, dq, r0, NULL, widened);
    write_rows(&g->p, &g->dq, b, h, r0, rows, dq, r0, widened);
}

/* Keys r0 .. of dK, dV and dn, from row `at` of the sums on. */
static void write_keys(const back_problem *g, int64_t b, int64_t kv, int64_t r0, int64_t rows,
                       const key_sums *sums, int64_t at, real *widened) {
    const weft_attention_attr *a = g->p.a;
    const real *dn = a->gaussian_n ? sums->dn + at : NULL;
    if (a->gaussian_k) join_rows(&g->p, &g->p.k, b, kv, r0, rows, sums->dk, at, dn, widened);
    if (g->dk.t) write_rows(&g->p, &g->dk, b, kv, r0, rows, sums->dk, at, widened);
    if (g->dv.t) write_rows(&g->p, &g->dv, b, kv, r0, rows, sums->dv, at, widened);
    if (g->dn)
        memcpy(g->dn + (b * a->kv_heads + kv) * a->keys + r0, sums->dn + at,
               (size_t)rows * sizeof(real));
}

static void work_head(const backward *w, pair_task *t, int64_t part) {
    const back_problem *g = &w->g;
    const weft_attention_attr *a = g->p.a;
    t->head = numbers_of_head(&g->p, t->h);
    t->number = 0;
    t->dq = t->s.dq;
    int64_t place = (t->b * a->heads + t->h) * g->split.key_parts + part;
    if (g->query_parts) {
        real_block own = {g->query_parts + place * g->query_size, 0};
        t->dq = lay_out_query_sums(g, &own);
    }
    memset(t->dq.at, 0, (size_t)g->query_size * sizeof(real));
    memset(t->s.column, 0, (size_t)g->split.part_keys * sizeof(real));
    int64_t first = a->causal ? t->first_key : 0;
    int64_t end = queries_before(&g->p, t->b, t->end_key);
    for (int64_t q = first / PAIR_QUERIES * PAIR_QUERIES; q < end; q += PAIR_QUERIES)
        pack_query_tile(w, t, q);
    for (t->key0 = t->first_key; t->key0 < t->end_key; t->key0 += PAIR_KEYS) {
        t->n_keys = min_i64(PAIR_KEYS, t->end_key - t->key0);
        first = a->causal ? t->key0 / PAIR_QUERIES * PAIR_QUERIES : 0;
        end = queries_before(&g->p, t->b, t->key0 + t->n_keys);
        if (first < end) pack_keys(w, t);
        for (t->q0 = first; t->q0 < end; t->q0 += PAIR_QUERIES) {
            t->n_queries = min_i64(PAIR_QUERIES, a->queries - t->q0);
            work_tiles(w, t, first);
        }
    }
    /* What a part of the keys gives of the head: its numbers, and its share of dn. */
    double *numbers = g->numbers + place * HEAD_NUMBERS;
    numbers[0] = t->number;
    numbers[1] = 0;
    numbers[2] = t->number * (double)LN_2 * t->head.tau_factor;
    const real *n = g->p.n ? g->p.n + (t->b * a->kv_heads + t->kv) * a->keys : NULL;
    for (int64_t j = t->first_key; n && j < t->end_key; j++) {
        real sum = t->s.column[j - t->first_key];
        t->sums.dn[j - t->first_key] += t->head.beta * sum;
        numbers[1] += (double)sum * ((double)n[j] - (double)n[0]);
    }
    if (g->dq.t && !g->query_parts)
        write_queries(g, t->b, t->h, 0, a->queries, t->dq, t->s.widened);
}

WEFT_TASK(work_task, const backward *w) {
    const back_problem *g = &w->g;
    const weft_attention_attr *a = g->p.a;
    const division *d = &g->split;
    real_block memory = {g->scratch + thread * g->scratch_size, 0};
    int64_t head_part = task % d->head_parts, rest = task / d->head_parts;
    int64_t key_heads = a->batch * a->kv_heads, part = rest / key_heads;
    pair_task t = {.p = &g->p, .s = lay_out_thread(w, &memory)};
    t.b = rest % key_heads / a->kv_heads;
    t.kv = rest % a->kv_heads;
    t.first_key = part * d->part_keys;
    t.end_key = min_i64(t.first_key + d->part_keys, a->keys);
    int64_t first = ceil_div(t.kv * a->heads, a->kv_heads);
    int64_t heads = ceil_div((t.kv + 1) * a->heads, a->kv_heads) - first;
    int64_t end = first + heads * (head_part + 1) / d->head_parts;
    t.sums = t.s.sums;
    if (g->key_parts) {
        real_block own = {g->key_parts + task * g->key_size, 0};
        t.sums = lay_out_sums(g, &own);
    }
    memset(t.sums.dk.at, 0, (size_t)g->key_size * sizeof(real));
    begin_task(w, &t, task);
    if (g->begin) g->begin();
    for (t.h = first + heads * head_part / d->head_parts; t.h < end; t.h++)
        work_head(w, &t, part);
    if (g->end) g->end();
    if (g->key_parts) return;
    write_keys(g, t.b, t.kv, t.first_key, t.end_key - t.first_key, &t.sums, 0, t.s.widened);
}

/* The first panels of some rows += the others'. */
static void sum_panel_rows(sum_panels first, int64_t count, int64_t stride, int64_t row,
                           int64_t rows, int64_t width) {
    for (int64_t n = 0; n < width; n += first.columns)
        sum_parts(first.at + n * first.rows + row * first.columns, count, stride,
                  rows * first.columns);
}

/* dQ of some rows of a head. */
WEFT_TASK(sum_query_rows, const backward *w) {
    const back_problem *g = &w->g;
    const weft_attention_attr *a = g->p.a;
    int64_t blocks = ceil_div(a->queries, SUM_ROWS), bh = task / blocks;
    int64_t r0 = task % blocks * SUM_ROWS, rows = min_i64(SUM_ROWS, a->queries - r0);
    real_block memory = {g->query_parts + bh * g->split.key_parts * g->query_size, 0};
    sum_panels first = lay_out_query_sums(g, &memory);
    sum_panel_rows(first, g->split.key_parts, g->query_size, r0, rows, a->dqk);
    write_queries(g, bh / a->heads, bh % a->heads, r0, rows, first,
                  g->scratch + thread * g->scratch_size);
}

/* dK, dV and dn of some keys of a key head and a range. */
WEFT_TASK(sum_key_rows, const backward *w) {
    const back_problem *g = &w->g;
    const weft_attention_attr *a = g->p.a;
    const division *d = &g->split;
    int64_t blocks = ceil_div(d->part_keys, SUM_ROWS), heads = a->batch * a->kv_heads;
    int64_t head = task / blocks % heads, part = task / blocks / heads;
    int64_t at = task % blocks * SUM_ROWS, r0 = part * d->part_keys + at;
    int64_t rows = min_i64(min_i64(SUM_ROWS, d->part_keys - at), a->keys - r0);
    if (rows <= 0) return;
    real_block memory = {g->key_parts + (part * heads + head) * d->head_parts * g->key_size, 0};
    key_sums sums = lay_out_sums(g, &memory);
    sum_panel_rows(sums.dk, d->head_parts, g->key_size, at, rows, a->dqk);
    sum_panel_rows(sums.dv, d->head_parts, g->key_size, at, rows, a->dv);
    sum_parts(sums.dn + at, d->head_parts, g->key_size, rows);
    write_keys(g, head / a->kv_heads, head % a->kv_heads, r0, rows, &sums, at,
               g->scratch + thread * g->scratch_size);
}

static void run_back(weft_pool *pool, backward *w) {
    const weft_attention_attr *a = w->g.p.a;
    const division *d = &w->g.split;
    weft_pool_run(pool, d->tasks, work_task, w);
    if (w->g.query_parts && w->g.dq.t)
        weft_pool_run(pool, a->batch * a->heads * ceil_div(a->queries, SUM_ROWS), sum_query_rows,
                      w);
    if (w->g.key_parts)
        weft_pool_run(pool,
                      d->key_parts * a->batch * a->kv_heads * ceil_div(d->part_keys, SUM_ROWS),
                      sum_key_rows, w);
    int64_t count = d->key_parts * HEAD_NUMBERS;
    for (int64_t h = 0; h < a->heads; h++) {
        double sum[HEAD_NUMBERS] = {0, 0, 0};
        for (int64_t b = 0; b < a->batch; b++)
            for (int64_t c = 0; c < count; c++)
                sum[c % HEAD_NUMBERS] += w->g.numbers[(b * a->heads + h) * count + c];
        if (w->g.dscale) w->g.dscale[h] = (real)sum[0];
        if (w->g.dbeta) w->g.dbeta[h] = (real)sum[1];
        if (w->g.dlog_tau) w->g.dlog_tau[h] = (real)sum[2];
    }
}
