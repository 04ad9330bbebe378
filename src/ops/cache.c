/* Shape rules of the caches. None of these has a gradient: generation trains nothing. */
#include "ops/cache.h"

#include "ops/define.h"

static weft_dtype stat_of(weft_dtype dtype) {
    return dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32;
}

int64_t weft_cache_token_bytes(const weft_cache_part *part) {
    int64_t bytes = part->width * (int64_t)weft_dtype_size(part->dtype);
    if (part->dtype == WEFT_I8) bytes += (int64_t)sizeof(float);
    if (part->number) bytes += (int64_t)weft_dtype_size(stat_of(part->dtype));
    return bytes * part->heads;
}

int64_t weft_cache_page_bytes(const weft_cache_part *part) {
    return WEFT_PAGE_TOKENS * weft_cache_token_bytes(part);
}

static weft_status check_rows(weft_graph *g, const weft_node *n, int64_t rows) {
    const weft_tensor *table = n->in[WEFT_CACHE_TABLE];
    WEFT_TRY(weft_check_places(g, n, "position", n->in[WEFT_CACHE_POSITION], 1, &rows));
    WEFT_TRY(weft_check_places(g, n, "slot", n->in[WEFT_CACHE_SLOT], 1, &rows));
    WEFT_TRY(weft_check_int(g, n, "table", table));
    return weft_check_ndim(g, n, "table", table, 2);
}

static weft_status check_documents(weft_graph *g, const weft_node *n, const weft_tensor *first) {
    return weft_check_places(g, n, "first", first, 1, n->in[WEFT_CACHE_POSITION]->shape);
}

static weft_status check_state(weft_graph *g, const weft_node *n, const char *what,
                               const weft_tensor *t) {
    if (t->role == WEFT_ROLE_STATE && !t->view_of) return WEFT_OK;
    return REFUSE("%s must be a state: it outlives a run", what);
}

static weft_status check_pages(weft_graph *g, const weft_node *n, const weft_tensor *pages,
                               const weft_cache_part *part) {
    if (part->heads < 1 || part->width < 1 || part->dtype == WEFT_I32)
        return REFUSE("a cache of %lld heads of %lld numbers of %s", (long long)part->heads,
                      (long long)part->width, weft_dtype_name(part->dtype));
    if (pages->dtype != WEFT_I8 || pages->ndim != 2 ||
        pages->shape[1] != weft_cache_page_bytes(part))
        return REFUSE("the pages are %s, but must be i8 [pages, %lld]", weft_tensor_describe(pages),
                      (long long)weft_cache_page_bytes(part));
    return check_state(g, n, "the cache", pages);
}

/* x as R rows of at least `width` numbers. */
static weft_status check_columns(weft_graph *g, const weft_node *n, const weft_tensor *x,
                                 int64_t offset, int64_t width) {
    WEFT_TRY(weft_check_float(g, n, "x", x));
    int64_t columns = x->ndim ? weft_tensor_count(x) / x->shape[0] : 0;
    if (offset >= 0 && offset + width <= columns) return WEFT_OK;
    return REFUSE("columns %lld to %lld of %s, which has rows of %lld", (long long)offset,
                  (long long)(offset + width - 1), weft_tensor_describe(x), (long long)columns);
}

OPERATION(cache_write, weft_cache_write_attr, position, .side_effect = true) {
    const weft_tensor *x = n->in[WEFT_CACHE_X], *extra = n->in[WEFT_CACHE_EXTRA];
    const weft_cache_part *part = &attr->part;
    WEFT_TRY(check_columns(g, n, x, attr->offset, part->heads * part->width));
    WEFT_TRY(check_rows(g, n, x->shape[0]));
    WEFT_TRY(check_pages(g, n, n->in[WEFT_CACHE_PAGES], part));
    if (extra) {
        WEFT_TRY(weft_check_float(g, n, "extra", extra));
        if (!part->number || weft_tensor_count(extra) != x->shape[0] * part->heads)
            return REFUSE("extra is %s, one number for each of %lld heads",
                          weft_tensor_describe(extra), (long long)part->heads);
    }
    return weft_output(g, n, 0, WEFT_I32, 0, NULL);
}

void weft_cache_write(weft_graph *g, const weft_cache_part *part, weft_tensor *x, int64_t offset,
                      weft_tensor *extra, weft_tensor *cache, const weft_rows *rows) {
    weft_cache_write_attr attr = {*part, offset};
    weft_keep(weft_append_some(g, &weft_op_cache_write, &attr, sizeof attr, WEFT_CACHE_EXTRA,
                               rows->position, rows->slot, rows->table, x, cache, extra));
}

OPERATION(cache_attention, weft_cache_attention_attr, position, .side_effect = true) {
    const weft_tensor *q = n->in[WEFT_CACHE_X], *values = n->in[WEFT_CACHE_VALUES];
    WEFT_TRY(check_columns(g, n, q, 0, attr->heads * attr->key.width));
    WEFT_TRY(check_rows(g, n, q->shape[0]));
    WEFT_TRY(check_pages(g, n, n->in[WEFT_CACHE_PAGES], &attr->key));
    WEFT_TRY(check_pages(g, n, values ? values : n->in[WEFT_CACHE_PAGES],
                         values ? &attr->value : &attr->key));
    static const int per_head[] = {WEFT_CACHE_SCALE, WEFT_CACHE_BETA, WEFT_CACHE_LOG_TAU};
    for (size_t i = 0; i < sizeof per_head / sizeof per_head[0]; i++)
        if (n->in[per_head[i]])
            WEFT_TRY(weft_check_shape(g, n, "a number for each head", n->in[per_head[i]], 1,
                                      &attr->heads));
    if (attr->heads < 1 || attr->heads % attr->key.heads != 0)
        return REFUSE("%lld heads do not share %lld key heads", (long long)attr->heads,
                      (long long)attr->key.heads);
    bool number = attr->key.number || attr->squares;
    if ((n->in[WEFT_CACHE_BETA] || n->in[WEFT_CACHE_LOG_TAU]) && !number)
        return REFUSE("beta needs a number for each key");
    if ((attr->pos == WEFT_POS_RELATIVE) != (n->in[WEFT_CACHE_REL] != NULL))
        return REFUSE("relative positions and their table go together");
    const weft_tensor *rotations = n->in[WEFT_CACHE_ROTATIONS], *table = n->in[WEFT_CACHE_TABLE];
    const weft_tensor *last_queries = n->in[WEFT_CACHE_QUERIES];
    if (rotations)
        WEFT_TRY(
            weft_check_dims(g, n, "rotations", rotations, WEFT_KEY_BLOCK, 2, attr->rotated / 2));
    WEFT_TRY(check_documents(g, n, n->in[WEFT_CACHE_FIRST]));
    if (n->in[WEFT_CACHE_SHARES])
        WEFT_TRY(weft_check_dims(g, n, "shares", n->in[WEFT_CACHE_SHARES],
                                 n->in[WEFT_CACHE_X]->shape[0], attr->heads));
    if (attr->context < 1 || attr->context > (table->shape[1] - 1) * WEFT_PAGE_TOKENS + 1)
        return REFUSE("a context of %lld, but the table is %s", (long long)attr->context,
                      weft_tensor_describe(table));
    if (attr->band && attr->window > 0) {
        if (!last_queries) return REFUSE("a band needs the last queries");
        WEFT_TRY(check_state(g, n, "the last queries", last_queries));
        WEFT_TRY(weft_check_dims(g, n, "the last queries", last_queries, table->shape[0],
                                 attr->window, attr->heads, attr->key.width));
    }
    weft_node_output(g, n, 0, q->dtype, WEFT_DIMS(q->shape[0], 1, attr->heads, attr->value.width));
    if (!attr->weights) return weft_graph_status(g);
    return weft_output_of(g, n, 1, weft_stat_dtype(q), q->shape[0], attr->context);
}

weft_cache_attended weft_cache_attention(weft_graph *g, const weft_cache_query *query,
                                         const weft_rows *rows) {
    const weft_score *s = query->score;
    weft_cache_attention_attr attr = {
        .key = query->key,
        .value = query->values ? query->value : query->key,
        .heads = query->heads,
        .context = query->context,
        .scale_value = s->scale_value,
        .pos = s->pos,
        .band = s->band,
        .gaussian = query->gaussian,
        .squares = query->squares,
        .window = s->window,
        .rotated = query->rotations ? query->rotated : 0,
        .law = query->law,
        .band_alpha = s->band_alpha,
        .softcap = s->softcap,
        .weights = query->weights,
    };
    weft_tensor *in[] = {rows->position, rows->slot,    rows->table,      s->q,
                         query->keys,    query->values, s->scale,         s->beta,
                         s->log_tau,     s->rel,        query->rotations, query->query_cache,
                         rows->first,    query->shares};
    weft_node *n = weft_graph_append(g, &weft_op_cache_attention, in, WEFT_CACHE_ATTENTION_INPUTS,
                                     WEFT_CACHE_VALUES, 2, &attr, sizeof attr);
    return n ? (weft_cache_attended){n->out[0], n->out[1]} : (weft_cache_attended){0};
}

/* It reads what a run has written, so it may not move before that. */
OPERATION(cache_gather, weft_cache_gather_attr, position, .side_effect = true) {
    const weft_tensor *weights = n->in[WEFT_CACHE_X];
    WEFT_TRY(weft_check_float_of(g, n, "weights", weights, 2));
    WEFT_TRY(check_rows(g, n, weights->shape[0]));
    WEFT_TRY(check_documents(g, n, n->in[WEFT_CACHE_DOCUMENTS]));
    WEFT_TRY(check_pages(g, n, n->in[WEFT_CACHE_PAGES], &attr->part));
    if (attr->keep == WEFT_KEEP_TOPK && attr->k < 1)
        return REFUSE("the %lld largest weights", (long long)attr->k);
    return weft_output_of(g, n, 0, stat_of(attr->part.dtype), weights->shape[0], 1,
                          attr->part.heads * attr->part.width);
}

weft_tensor *weft_cache_gather(weft_graph *g, const weft_cache_part *part, weft_tensor *cache,
                               weft_tensor *weights, weft_cache_keep keep, int64_t k,
                               double threshold, bool normalize, const weft_rows *rows) {
    weft_cache_gather_attr attr = {*part, keep, k, threshold, normalize, false};
    weft_tensor *in[] = {rows->position, rows->slot,  rows->table, weights,
                         cache,          rows->first, NULL};
    weft_node *n = weft_graph_append(g, &weft_op_cache_gather, in, WEFT_CACHE_ADDEND + 1,
                                     WEFT_CACHE_SHORT_INPUTS, 2, &attr, sizeof attr);
    return n ? n->out[0] : NULL;
}

OPERATION(cache_mean, void, position, .side_effect = true) {
    const weft_tensor *x = n->in[WEFT_CACHE_X], *sum = n->in[WEFT_CACHE_PAGES];
    WEFT_TRY(check_columns(g, n, x, 0, 1));
    WEFT_TRY(check_rows(g, n, x->shape[0]));
    WEFT_TRY(check_documents(g, n, n->in[WEFT_CACHE_DOCUMENTS]));
    WEFT_TRY(check_state(g, n, "the sums", sum));
    WEFT_TRY(weft_check_float(g, n, "the sums", sum));
    WEFT_TRY(weft_check_dims(g, n, "the sums", sum, n->in[WEFT_CACHE_TABLE]->shape[0],
                             weft_tensor_count(x) / x->shape[0]));
    return weft_output_like(g, n, 0, x->dtype, x);
}

weft_tensor *weft_cache_mean(weft_graph *g, weft_tensor *x, weft_tensor *sum,
                             const weft_rows *rows) {
    return weft_append_some(g, &weft_op_cache_mean, NULL, 0, WEFT_CACHE_SHORT_INPUTS,
                            rows->position, rows->slot, rows->table, x, sum, rows->first);
}
