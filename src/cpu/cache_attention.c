/* Attention of one query for each row over the pages of its sequence (FlashDecoding's split of the
 * keys, with the splits at fixed positions).
 *
 * A task is one row, one block of WEFT_KEY_BLOCK keys and all key heads, or some where there are few
 * blocks, with the query heads that share them: their scores, the largest of them, the sum of the
 * exponentials and the weighted sum of the values (cache_attention_block.h). A row's blocks are joined
 * afterwards in their order. Where a block begins follows from the position alone, so a row's bits
 * depend neither on the batch nor on the threads. */
#include "ops/cache.h"

#include "cpu/cache_attention_block.h"

static int64_t find_row(const attend_run *a, int64_t block) {
    int64_t low = 0, high = a->places.rows;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (a->first[middle] <= block)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void attend_block(void *context, int64_t task, int thread) {
    const attend_run *a = context;
    int64_t at = task / a->parts, part = task % a->parts;
    int64_t r = find_row(a, at), i = a->places.position[r], seen = first_seen(a, r);
    int64_t block = seen / BLOCK + at - a->first[r];
    int64_t first = max_i64(block * BLOCK, seen), end = min_i64((block + 1) * BLOCK, i + 1);
    block_task b = {.a = a, .row = r, .position = i, .base = block * BLOCK, .first = first};
    b.end = end;
    b.from = part * a->key_heads / a->parts;
    b.to = (part + 1) * a->key_heads / a->parts;
    b.out = a->partial + (r * a->heads * a->blocks + at - a->first[r]) * (a->dv + 2);
    cut_scratch(a->attr, a->scratch + thread * a->thread_bytes, &b.s);
    attend(&b);
}

static void add_times(real *restrict sum, const real *restrict x, real factor, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        sum[i] += x[i] * factor;
}

/* A row's head: its blocks, in order. */
static void join_blocks(void *context, int64_t task, int thread) {
    (void)thread;
    const attend_run *a = context;
    int64_t r = task / a->heads, blocks = a->first[r + 1] - a->first[r];
    const weft_tensor *o = a->n->out[0];
    char *to = (char *)weft_data(a->x, o) + task * a->dv * (int64_t)weft_dtype_size(o->dtype);
    real *sum = a->partial + task * a->blocks * (a->dv + 2), total = 0;
    if (blocks == 0) {
        memset(to, 0, (size_t)a->dv * weft_dtype_size(o->dtype));
        return;
    }
    real top = sum[a->dv];
    for (int64_t b = 1; b < blocks; b++)
        top = sum[b * (a->dv + 2) + a->dv] > top ? sum[b * (a->dv + 2) + a->dv] : top;
    for (int64_t b = 0; b < blocks; b++) {
        const real *from = sum + b * (a->dv + 2);
        real factor = (real)exp2((double)(from[a->dv] - top));
        total += factor * from[a->dv + 1];
        if (b == 0)
            for (int64_t d = 0; d < a->dv; d++)
                sum[d] *= factor;
        else
            add_times(sum, from, factor, a->dv);
    }
    a->largest[task] = top;
    a->norm[task] = total;
    real inverse = 1 / total;
    for (int64_t d = 0; d < a->dv; d++)
        sum[d] *= inverse;
    if (o->dtype == WEFT_BF16)
        for (int64_t d = 0; d < a->dv; d++)
            ((uint16_t *)to)[d] = weft_float_to_bf16((float)sum[d]);
    else
        memcpy(to, sum, (size_t)a->dv * sizeof(real));
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
            memcpy(a->query_cache +
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
    block_scratch cut;
    w.heads = ceil_div(2 * heads * (int64_t)sizeof(double), WEFT_ARENA_ALIGN) * WEFT_ARENA_ALIGN;
    w.first = ceil_div((rows + 1) * (int64_t)sizeof(int64_t), WEFT_ARENA_ALIGN) * WEFT_ARENA_ALIGN;
    w.partial = real_bytes(rows * heads * most_blocks(attr) * (attr->value.width + 2));
    w.rows = real_bytes(2 * rows * heads);
    w.scores = attr->weights ? real_bytes(rows * heads * attr->context) : 0;
    w.q = q->dtype == WEFT_BF16 ? real_bytes(weft_tensor_count(q)) : 0;
    w.total = w.heads + w.first + w.partial + w.rows + w.scores + w.q +
              threads * cut_scratch(attr, NULL, &cut);
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
    block_scratch cut;
    a->thread_bytes = cut_scratch(a->attr, NULL, &cut);
}

/* Tasks of a block: one where there are blocks enough for all threads, for then memory is read as it
 * lies. */
static int64_t share_heads(const attend_run *a, int threads) {
    int64_t blocks = a->first[a->places.rows], wanted = threads == 1 ? 1 : 4 * threads;
    return blocks == 0 ? 1 : min_i64(a->key_heads, ceil_div(wanted, blocks));
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
    a.rotations = weft_data(x, n->in[WEFT_CACHE_ROTATIONS]);
    a.query_cache = weft_data(x, n->in[WEFT_CACHE_QUERIES]);
    a.blocks = most_blocks(attr);
    a.rows = group_rows(attr);
    a.key_way = copies_keys(attr) ? BY_PLAIN : narrow_way(&a.keys.part, a.group);
    a.value_way = narrow_way(&a.values.part, a.group);
    lay_out(&a, x, n);
    a.first[0] = 0;
    for (int64_t r = 0; r < a.places.rows; r++) {
        int64_t blocks = 0;
        if (a.places.slot[r] >= 0)
            blocks = a.places.position[r] / BLOCK - first_seen(&a, r) / BLOCK + 1;
        a.first[r + 1] = a.first[r] + blocks;
    }
    weft_pool *pool = weft_exec_pool(x);
    a.parts = share_heads(&a, weft_pool_size(pool));
    weft_pool_run(pool, a.first[a.places.rows] * a.parts, attend_block, &a);
    weft_pool_run(pool, a.places.rows * a.heads, join_blocks, &a);
    if (a.scores)
        weft_pool_run(pool, a.places.rows * ceil_div(attr->context, BLOCK), join_weights, &a);
    if (attr->band && attr->window > 0) keep_queries(&a);
    return WEFT_OK;
}

const weft_kernel KERNEL(cache_attention) = {.run = cache_attention_run,
                                             .workspace = cache_attention_workspace};
