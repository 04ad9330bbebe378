/* Cached attention, and all else by which rows depend on other tokens in generation: each row is one
 * token of some sequence, [R, 1, E], and what it sees of the others is in pages (ops/cache.h). Each part
 * writes the row's own share first and reads afterwards.
 *
 * Keys are cached as scores read them wherever that takes no more room: rotated, and with σ in place
 * of ρ. Only a joint latent, whose values are the keys before all that, is cached as it is and
 * changed when it is read. */
#include "base/text.h"
#include "model/builder.h"
#include "model/cached.h"

weft_status weft_cached_check(const weft_config *c) {
    const weft_mix mixes[] = {
        {!c->causal, "{CAUSAL}: a token sees those after it, which are not there yet; only causal "
                     "models generate"},
        {c->attn_gate && c->gate_pool == WEFT_GATE_SEQUENCE,
         "{RA_MLA_MLP_GATE_POOL} pools over tokens to come, which are not there yet; train with "
         "\"token\" or \"cummean\""},
    };
    return WEFT_REFUSE(c, "generate", mixes);
}

int64_t weft_cached_table_pages(int64_t context) {
    return (context - 1 + WEFT_PAGE_TOKENS - 1) / WEFT_PAGE_TOKENS + 1;
}

void weft_cached_rotations(const weft_cached_graph *g, double *out) {
    int64_t half = g->rotations->shape[2];
    for (int64_t j = 0; j < WEFT_KEY_BLOCK; j++)
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)j * weft_rope_rate(&g->law, i, 2 * half);
            out[(2 * j) * half + i] = cos(angle);
            out[(2 * j + 1) * half + i] = sin(angle);
        }
}

weft_dtype weft_cached_dtype(const weft_config *c, weft_dtype dtype) {
    if (c->cache_dtype == WEFT_CACHE_BF16) return WEFT_BF16;
    if (c->cache_dtype == WEFT_CACHE_INT8) return WEFT_I8;
    if (c->cache_dtype == WEFT_CACHE_AUTO) return dtype;
    return dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32;
}

/* The keys and values of heads, of which most attentions keep nothing else. */
static int list_heads(const weft_config *c, weft_cache_part *parts) {
    parts[0] = parts[1] =
        (weft_cache_part){.heads = weft_config_kv_heads(c), .width = weft_config_head_dim(c)};
    return 2;
}

enum { PARTS_MAX = 4 };

/* What layer `layer` keeps of a token, in a model that computes in `dtype`; the parts' number.
 * What travels between tokens: h, the rank's numbers, or what is left of h behind the maps that read
 * it, whichever is fewest. */
static int list_parts(const weft_config *c, int64_t layer, weft_dtype dtype,
                      weft_cache_part *parts) {
    const weft_attention_kind *kind = weft_attention_of(c);
    int n = layer % c->kv_share ? 0 : (kind->cache ? kind->cache : list_heads)(c, parts);
    if (c->cross_token) {
        int64_t gate = c->attn_gate ? gate_columns(c, true) : 0, mapped = c->n_embd + gate;
        int64_t gathered = c->cross_rank ? c->cross_rank : weft_config_ffn_dim(c);
        bool behind = gathered >= mapped;
        parts[n++] = (weft_cache_part){.heads = 1, .width = behind ? c->n_embd : gathered};
        /* The last layer makes no gates. */
        if (behind && gate && layer + 1 < c->n_layer)
            parts[n++] = (weft_cache_part){.heads = 1, .width = gate};
    }
    for (int i = 0; i < n; i++)
        parts[i].dtype = weft_cached_dtype(c, dtype);
    return n;
}

int64_t weft_cached_layer_bytes(const weft_config *c, int64_t layer, weft_dtype dtype) {
    weft_cache_part parts[PARTS_MAX];
    int64_t bytes = 0;
    for (int i = list_parts(c, layer, dtype, parts) - 1; i >= 0; i--)
        bytes += weft_cache_token_bytes(parts + i);
    return bytes;
}

int64_t weft_cached_token_bytes(const weft_config *c, weft_dtype dtype) {
    int64_t bytes = 0;
    for (int64_t layer = 0; layer < c->n_layer; layer++)
        bytes += weft_cached_layer_bytes(c, layer, dtype);
    return bytes;
}

static int64_t band_window(const weft_config *c, int64_t context) {
    return c->ra_mla_ra_window < context ? c->ra_mla_ra_window : context;
}

int64_t weft_cached_sequence_bytes(const weft_config *c, weft_dtype dtype) {
    int64_t size = dtype == WEFT_F64 ? 8 : 4, numbers = 0;
    /* The last layer makes no gates. */
    if (c->attn_gate && c->gate_pool == WEFT_GATE_CUMMEAN)
        numbers += (c->n_layer - 1) * gate_columns(c, true);
    if (weft_attention_of(c)->latent && c->ra_mla_ra_alpha > 0) {
        weft_cache_part parts[PARTS_MAX];
        list_parts(c, 0, dtype, parts);
        numbers += c->n_layer * band_window(c, c->context) * c->n_head * parts[0].width;
    }
    return numbers * size + (c->document_mask ? (int64_t)sizeof(int32_t) : 0);
}

static weft_cached_graph *data_of(builder *b) {
    return b->build->attend_data;
}

static weft_tensor *new_state(builder *b, const char *name, weft_dtype dtype, int ndim,
                              const int64_t *shape) {
    char full[96];
    snprintf(full, sizeof full, "h.%d.%s", b->layer, name);
    return weft_graph_tensor(b->g, WEFT_ROLE_STATE, full, dtype, ndim, shape);
}

static weft_cache_part part_of(builder *b, int64_t heads, int64_t width) {
    return (weft_cache_part){heads, width, data_of(b)->shape.cache_dtype, false};
}

/* Keeps columns of x, from one on, as a part; *pages are its own in this layer. */
static void write_pages(builder *b, const char *name, const weft_cache_part *part, weft_tensor *x,
                        int64_t column, weft_tensor *n_extra, weft_tensor **pages) {
    const weft_cached_graph *d = data_of(b);
    *pages =
        new_state(b, name, WEFT_I8, 2, (int64_t[]){d->shape.pages, weft_cache_page_bytes(part)});
    weft_cache_write(b->g, part, x, column, n_extra, *pages, &d->rows);
}

static void begin(builder *b) {
    weft_cached_graph *d = data_of(b);
    d->rows.position = weft_new_tensor(b->g, WEFT_ROLE_INPUT, "position", WEFT_I32, b->batch);
    d->rows.slot = weft_new_tensor(b->g, WEFT_ROLE_INPUT, "slot", WEFT_I32, b->batch);
    d->rows.table = weft_new_tensor(b->g, WEFT_ROLE_INPUT, "table", WEFT_I32, d->shape.slots,
                                    d->shape.table_pages);
    d->wanted = weft_new_tensor(b->g, WEFT_ROLE_INPUT, "wanted", WEFT_I32, d->shape.wanted, 1);
    b->start = d->rows.position;
}

static weft_documents find_documents(builder *b, weft_tensor *tokens, int32_t end) {
    weft_cached_graph *d = data_of(b);
    weft_tensor *begun =
        weft_new_tensor(b->g, WEFT_ROLE_STATE, "sequence.documents", WEFT_I32, d->shape.slots);
    weft_documents found = weft_find_cached_documents(b->g, tokens, end, begun, &d->rows);
    d->rows.first = found.first;
    return found;
}

static void write_apart(builder *b, const builder_keys *keys, weft_cache_query *query) {
    weft_tensor *k = keys->k, *v = keys->v;
    if (!k || !v) return;
    if (keys->rotated) k = rotate_heads(b, k, keys->rotated, k->shape[2]);
    if (keys->gaussian) k = weft_gaussian_query(b->g, k);
    if (!k) return;
    query->squares = keys->gaussian;
    query->key = part_of(b, k->shape[2], k->shape[3]);
    query->key.number = b->score.n && !keys->gaussian;
    query->value = part_of(b, v->shape[2], v->shape[3]);
    write_pages(b, "cache.key", &query->key, k, 0, keys->n_extra, &query->keys);
    write_pages(b, "cache.value", &query->value, v, 0, NULL, &query->values);
}

/* Keys of which some columns are common to all heads: they are one head here, with the common ones and
 * behind them the heads' own side by side, so that nothing is kept twice. */
static void write_common(builder *b, const builder_keys *keys, weft_cache_query *query) {
    weft_tensor *k = keys->k, *v = keys->v;
    if (!k || !v) return;
    int64_t own = k->shape[2] * k->shape[3];
    k = join_heads(b, keys->common, as_heads(b, k, 1, own), own);
    if (!k) return;
    query->key = part_of(b, 1, k->shape[3]);
    write_pages(b, "cache.key", &query->key, k, 0, NULL, &query->keys);
    if (v == keys->k) return;
    query->value = part_of(b, 1, v->shape[2] * v->shape[3]);
    write_pages(b, "cache.value", &query->value, v, 0, NULL, &query->values);
}

/* Queries for such keys: zeros where other heads have their columns. */
static weft_tensor *spread_queries(builder *b, const builder_keys *keys, weft_tensor *q) {
    if (!keys->k) return NULL;
    int64_t heads = keys->k->shape[2], width = keys->k->shape[3], common = keys->common->shape[3];
    weft_head_columns_attr attr = {
        .heads = b->heads,
        .width = common + heads * width,
        .slots = heads,
        .part = {{.count = common},
                 {.from = common, .count = keys->scored, .to = common, .to_step = width}}};
    return weft_head_columns(b->g, attr, q, q);
}

/* A head's own columns of the values that it found. */
static weft_tensor *take_values(builder *b, const builder_keys *keys, weft_tensor *o) {
    if (!keys->v) return NULL;
    int64_t width = keys->v->shape[3], common = keys->v == keys->k ? keys->common->shape[3] : 0;
    weft_head_columns_attr attr = {.heads = b->heads,
                                   .width = width,
                                   .slots = keys->v->shape[2],
                                   .part = {{.from = common, .count = width, .from_step = width}}};
    return weft_head_columns(b->g, attr, o, NULL);
}

static weft_tensor *attend(builder *b, const builder_keys *keys) {
    const weft_config *c = b->c;
    weft_cached_graph *d = data_of(b);
    weft_score score = b->score;
    weft_cache_query query = {.score = &score, .heads = b->heads, .context = d->shape.context};
    if (score.reach && score.reach < query.context) query.context = score.reach;
    if (b->shares) {
        int64_t context = query.context;
        query = d->kept;
        query.score = &score;
        query.context = context;
    } else if (keys->common) {
        write_common(b, keys, &query);
    } else if (keys->packed) {
        int64_t queries = b->heads * b->head_dim, width = keys->kv_heads * b->head_dim;
        score.q = keys->packed;
        query.key = query.value = part_of(b, keys->kv_heads, b->head_dim);
        write_pages(b, "cache.key", &query.key, score.q, queries, NULL, &query.keys);
        write_pages(b, "cache.value", &query.value, score.q, queries + width, NULL, &query.values);
    } else if (keys->k && keys->v == keys->k) {
        /* A latent that is key and value at once. */
        query.key = part_of(b, keys->k->shape[2], keys->k->shape[3]);
        query.gaussian = query.squares = keys->gaussian;
        query.rotated = keys->rotated;
        if (keys->rotated && !d->rotations)
            d->rotations = weft_new_tensor(b->g, WEFT_ROLE_INPUT, "rotations", b->stat,
                                           WEFT_KEY_BLOCK, 2, keys->rotated / 2);
        query.rotations = keys->rotated ? d->rotations : NULL;
        query.law = d->law = b->law;
        write_pages(b, "cache.key", &query.key, keys->k, 0, NULL, &query.keys);
    } else
        write_apart(b, keys, &query);
    d->kept = query;
    if (keys->common) score.q = spread_queries(b, keys, score.q);
    if (score.band) {
        score.window = band_window(c, d->shape.context);
        query.query_cache =
            new_state(b, "sequence.queries", b->stat, 4,
                      (int64_t[]){d->shape.slots, score.window, b->heads, query.key.width});
    }
    if (c->cross_token)
        query.weights = c->sparse_head_average ? WEFT_WEIGHTS_MEAN : WEFT_WEIGHTS_MAX;
    if (c->cross_token && c->route_after_gate && b->gate) {
        weft_tensor *ones = weft_fill(b->g, b->stat, 4, (int64_t[]){b->batch, 1, b->heads, 1}, 1);
        weft_tensor *left = weft_gate_mix(b->g, ones, b->gate, c->gate_alpha);
        query.shares = weft_view(b->g, left, b->batch, b->heads);
    }
    weft_cache_attended a = weft_cache_attention(b->g, &query, &d->rows);
    d->weights = a.weights;
    return keys->common ? take_values(b, keys, a.o) : a.o;
}

static weft_tensor *gather_part(builder *b, const weft_tensor *x, weft_tensor *pages) {
    const weft_config *c = b->c;
    weft_cached_graph *d = data_of(b);
    static const weft_cache_keep keep[] = {[WEFT_SPARSE_TOPK] = WEFT_KEEP_TOPK,
                                           [WEFT_SPARSE_RMS] = WEFT_KEEP_RMS,
                                           [WEFT_SPARSE_NONE] = WEFT_KEEP_ALL};
    weft_cache_part part = part_of(b, 1, weft_tensor_width(x));
    return weft_cache_gather(b->g, &part, pages, d->weights, keep[c->sparse_mode], c->sparse_k,
                             c->sparse_rms_threshold, c->sparse_normalize, &d->rows);
}

/* Both are written before either is gathered, so that a backend can do two at once. */
static void gather(builder *b, weft_tensor **x, weft_tensor **second) {
    if (!*x || (second && !*second)) return;
    weft_tensor *pages, *others = NULL;
    weft_cache_part part = part_of(b, 1, weft_tensor_width(*x));
    write_pages(b, "cache.cross", &part, *x, 0, NULL, &pages);
    if (second) part.width = weft_tensor_width(*second);
    if (second) write_pages(b, "cache.cross_gate", &part, *second, 0, NULL, &others);
    *x = gather_part(b, *x, pages);
    if (second) *second = gather_part(b, *second, others);
}

static weft_tensor *running_mean(builder *b, weft_tensor *x) {
    if (!x) return NULL;
    weft_tensor *sum = new_state(b, "sequence.sum", b->stat, 2,
                                 (int64_t[]){data_of(b)->shape.slots, weft_tensor_width(x)});
    return weft_cache_mean(b->g, x, sum, &data_of(b)->rows);
}

static weft_tensor *joined(builder *b, weft_tensor *const *maps, int n, double factor) {
    weft_cached_graph *d = data_of(b);
    const weft_tensor *first = NULL, *last = NULL;
    if (!weft_grow_list(&d->derived, &d->cap_derived, d->n_derived + 1, sizeof *d->derived))
        return weft_graph_no_memory(b->g, "model: no memory for its matrices");
    weft_derived *derived = &d->derived[d->n_derived++];
    *derived = (weft_derived){.factor = factor};
    for (int i = 0; i < n; i++) {
        if (!maps[i]) continue;
        first = first ? first : maps[i];
        last = maps[i];
        snprintf(derived->of[derived->n_of++], sizeof derived->of[0], "%s", last->name);
    }
    if (!first) return NULL;
    char name[112];
    snprintf(name, sizeof name, "%s.joined.%d", first->name, derived->n_of);
    derived->tensor =
        weft_new_tensor(b->g, WEFT_ROLE_INPUT, name, b->dtype, first->shape[0], last->shape[1]);
    return derived->tensor;
}

/* The logits of the rows that are wanted: x [R, 1, E] is a table from which they are taken. */
static void finish(builder *b, weft_tensor *x, weft_tensor *head) {
    weft_cached_graph *d = data_of(b);
    if (d->shape.head_copy) head = joined(b, &head, 1, 1);
    x = weft_view(b->g, x, b->batch, b->width);
    x = weft_embed(b->g, x, d->wanted, NULL, NULL);
    x = weft_linear(b->g, x, head, NULL, WEFT_ACT_NONE);
    d->logits = weft_keep(apply_softcap(b, x, b->c->softcap_logits));
}

static const weft_attend attend_cached = {
    .in_pages = true,
    .begin = begin,
    .documents = find_documents,
    .attention = attend,
    .gather = gather,
    .running_mean = running_mean,
    .joined = joined,
    .finish = finish,
};

weft_status weft_cached_build(const weft_config *c, const weft_cached_shape *shape,
                              weft_cached_graph *out) {
    *out = (weft_cached_graph){.shape = *shape};
    WEFT_TRY(weft_cached_check(c));
    weft_build build = {.batch = shape->rows, .time = 1, .dtype = shape->dtype};
    build.form = WEFT_FORM_DIRECT;
    build.rows_alone = !shape->block;
    build.attend = &attend_cached;
    build.attend_data = out;
    weft_status status = weft_model_build(c, &build, &out->model);
    if (status != WEFT_OK) weft_cached_destroy(out);
    return status;
}

void weft_cached_destroy(weft_cached_graph *g) {
    weft_model_graph_destroy(&g->model);
    free(g->derived);
    *g = (weft_cached_graph){0};
}
