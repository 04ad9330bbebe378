/* Adding gradients as a binary counter adds ones: the i-th micro-batch is pushed on a stack of
 * partial sums, and as long as the two on top stand for equally many, the upper one is added to the
 * one below. An odd micro-batch is added to its left neighbour right where the session left it, so
 * the stack has no level of its own for it. Every addition is element by element, hence equal for
 * any number of threads. On the host they are done here; elsewhere graphs do them.
 *
 * A rank that has not all micro-batches may have several nodes of the tree, each added so from its
 * first leaf on: the sum of one stays at the bottom of the stack while the next is made. */
#include "train/gradients_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int count_ones(int64_t value) {
    int ones = 0;
    for (; value; value &= value - 1)
        ones++;
    return ones;
}

/* The most sums that are on the stack at once: an even i is pushed on one for each of its ones. */
static int deepest(int64_t count) {
    int most = 1;
    for (int64_t i = 0; i < count; i += 2)
        if (count_ones(i) + 1 > most) most = count_ones(i) + 1;
    return most;
}

/* The same of all nodes of this rank: under each lie the sums of those before it. */
static int deepest_of_rank(const weft_gradients *g) {
    int most = 1;
    for (int k = 0; k < g->nodes; k++) {
        int depth = k + deepest(g->tree.nodes[g->first_node + k].count);
        if (depth > most) most = depth;
    }
    return most;
}

static weft_status allocate_levels(weft_gradients *g) {
    int64_t bytes = weft_partition_bytes(&g->shards);
    int depth = deepest_of_rank(g);
    g->offsets = calloc((size_t)g->n, sizeof *g->offsets);
    if (!g->offsets) return weft_fail(WEFT_ENOMEM, "gradients: no memory");
    for (int64_t i = 0; i < g->n; i++)
        g->offsets[i] = weft_partition_offset(&g->shards, i);
    g->level_bytes = bytes;
    for (int i = 1; i < depth; i++) {
        g->levels[i] = g->backend->alloc(bytes);
        if (!g->levels[i])
            return weft_fail(WEFT_ENOMEM,
                             "gradients: no memory for %d sums of %lld bytes; a larger MICRO_BATCH "
                             "needs fewer",
                             depth, (long long)bytes);
    }
    return WEFT_OK;
}

static void find_sources(weft_gradients *g, const weft_session *s) {
    for (int64_t i = 0; i < g->n; i++) {
        const weft_tensor *t = weft_graph_find(s->graph.graph, g->weights[i].name);
        if (t && t->grad) g->from[i] = (weft_gradient){t->grad->dtype, weft_data(s->exec, t->grad)};
    }
}

/* The tree on a backend that is not the host. */
static weft_status make_graphs(weft_gradients *g) {
    weft_gradient_places places = {.backend = g->backend,
                                   .pool = g->pool,
                                   .n = g->n,
                                   .weights = g->weights,
                                   .from = g->from,
                                   .levels = g->levels,
                                   .depth = deepest_of_rank(g),
                                   .offsets = g->offsets,
                                   .bytes = g->level_bytes,
                                   .count = g->count};
    return weft_gradient_graphs_create(&places, &g->graphs);
}

static void *pin(const weft_gradients *g) {
    const weft_row_backend *rows = g->backend->rows;
    return rows ? rows->pin(g->level_bytes) : malloc((size_t)g->level_bytes);
}

/* A bucket of the mean, back to the memory that it was copied from. */
static weft_status put_bucket(void *context, int64_t bucket) {
    weft_gradients *g = context;
    const weft_row_backend *rows = g->backend->rows;
    weft_gradients_bytes b = weft_gradients_bucket(g, bucket);
    unsigned char *from = (unsigned char *)g->staged[0] + b.first, *to = g->levels[0] + b.first;
    if (!rows) return g->backend->upload(to, from, b.count);
    rows->put(g->queue, to, from, b.count);
    return WEFT_OK;
}

/* By way of the host's memory: levels that it cannot read are copied for it. */
static weft_status make_host_reduce(weft_gradients *g, bool plain, bool scatter) {
    if (g->backend->rows) WEFT_TRY(g->backend->rows->open(&g->queue));
    void **rows = calloc((size_t)g->nodes, sizeof *rows);
    if (!rows) return weft_fail(WEFT_ENOMEM, "gradients: no memory");
    bool there = true, staged = g->backend->remote;
    if (staged) g->staged = rows;
    for (int k = 0; k < g->nodes; k++) {
        rows[k] = staged ? pin(g) : (void *)g->levels[k];
        there = there && rows[k];
    }
    weft_reduce_options options = {.comm = g->comm,
                                   .pool = g->pool,
                                   .tree = &g->tree,
                                   .cut = &g->shards.cut,
                                   .scatter = scatter,
                                   .is_double = g->dtype == WEFT_F64,
                                   .plain = plain,
                                   .rows = rows,
                                   .done = g->staged ? put_bucket : NULL,
                                   .context = g};
    weft_status status = there ? weft_reduce_create(&options, &g->reduce)
                               : weft_fail(WEFT_ENOMEM, "gradients: no memory");
    if (!staged) free(rows);
    return status;
}

/* What adds the ranks' nodes. */
static weft_status make_reduce(weft_gradients *g) {
    bool plain = !weft_optimizer_model(g->optimizer)->config.deterministic;
    bool scatter = weft_optimizer_shards(g->optimizer) != NULL;
    void *rows[WEFT_GRADIENT_LEVELS];
    for (int k = 0; k < g->nodes; k++)
        rows[k] = g->levels[k];
    weft_device_reduce_options options = {.comm = g->comm,
                                          .backend = g->backend,
                                          .tree = &g->tree,
                                          .cut = &g->shards.cut,
                                          .plain = plain,
                                          .scatter = scatter,
                                          .rows = rows};
    WEFT_TRY(weft_device_reduce_open(&options, &g->device));
    if (!g->device) return make_host_reduce(g, plain, scatter);
    g->queue = weft_device_reduce_queue(g->device);
    return WEFT_OK;
}

/* The optimizer takes the sums from its own buffers, for the weights that the session has a gradient
 * of. */
static weft_status bind_sums(weft_gradients *g) {
    WEFT_TRY(weft_optimizer_bind_own(g->optimizer));
    weft_gradient *sums = calloc((size_t)g->n, sizeof *sums);
    if (!sums) return weft_fail(WEFT_ENOMEM, "gradients: no memory");
    for (int64_t i = 0; i < g->n; i++)
        if (g->from[i].data)
            sums[i] = (weft_gradient){g->dtype, weft_optimizer_gradient(g->optimizer, i)};
    weft_status status = weft_optimizer_bind(g->optimizer, sums);
    free(sums);
    return status;
}

/* Whole sums. */
static weft_status make_sums(weft_gradients *g) {
    if (g->count == 1) return weft_optimizer_bind(g->optimizer, g->from);
    WEFT_TRY(allocate_levels(g));
    WEFT_TRY(bind_sums(g));
    g->levels[0] = weft_optimizer_gradient(g->optimizer, 0);
    if (g->backend->remote) WEFT_TRY(make_graphs(g));
    return g->comm ? make_reduce(g) : WEFT_OK;
}

/* Sums that ranks share. */
static weft_status make_scatter(weft_gradients *g) {
    const weft_partition *shards = weft_optimizer_shards(g->optimizer);
    weft_scatter_options options = {.comm = g->comm,
                                    .backend = g->backend,
                                    .pool = g->pool,
                                    .shards = shards,
                                    .from = g->from,
                                    .count = g->count};
    WEFT_TRY(weft_scatter_create(&options, &g->scatter));
    int64_t n = weft_partition_owned(shards, shards->rank, NULL);
    bool *has = calloc((size_t)g->n + 1, sizeof *has);
    weft_stretch *own = calloc((size_t)n + 1, sizeof *own);
    weft_gradient *means = calloc((size_t)n + 1, sizeof *means);
    bool there = has && own && means;
    if (there) weft_partition_owned(shards, shards->rank, own);
    for (int64_t w = 0; there && w < g->n; w++)
        has[w] = g->from[w].data != NULL;
    for (int64_t i = 0; there && i < n; i++)
        if (has[own[i].weight]) means[i] = weft_scatter_mean(g->scatter, i);
    weft_status status = there ? weft_optimizer_bind_shard(g->optimizer, has, means)
                               : weft_fail(WEFT_ENOMEM, "gradients: no memory");
    free(has);
    free(own);
    free(means);
    return status;
}

weft_status weft_gradients_create(weft_optimizer *o, const weft_session *s, weft_pool *pool,
                                  weft_comm *comm, int64_t count, weft_gradients **out) {
    *out = NULL;
    weft_gradients *g = calloc(1, sizeof *g);
    if (!g) return weft_fail(WEFT_ENOMEM, "gradients: no memory");
    const weft_model *m = weft_optimizer_model(o);
    g->optimizer = o;
    g->backend = weft_optimizer_backend(o);
    g->pool = pool;
    g->n = m->n_weights;
    g->count = count;
    g->comm = comm;
    g->weights = m->weights;
    g->dtype = m->dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32;
    g->from = calloc((size_t)g->n, sizeof *g->from);
    weft_status status = g->from ? WEFT_OK : weft_fail(WEFT_ENOMEM, "gradients: no memory");
    if (status == WEFT_OK) status = weft_tree_make(count, weft_comm_size(comm), &g->tree);
    bool shared = weft_optimizer_shards(o) && m->config.shard == WEFT_SHARD_GRADIENTS;
    if (status == WEFT_OK) {
        g->nodes = weft_tree_of_rank(&g->tree, weft_comm_rank(comm), &g->first_node);
        find_sources(g, s);
        status = weft_partition_make(m, comm, &g->shards);
    }
    if (status == WEFT_OK) status = shared ? make_scatter(g) : make_sums(g);
    if (status == WEFT_OK && (g->reduce || g->device || g->scatter))
        status = weft_gradients_watch(g, s);
    if (status != WEFT_OK) {
        weft_gradients_destroy(g);
        return status;
    }
    *out = g;
    return WEFT_OK;
}

void weft_gradients_destroy(weft_gradients *g) {
    if (!g) return;
    if (g->queue && !g->device) g->backend->rows->close(g->queue);
    weft_device_reduce_close(g->device);
    weft_reduce_destroy(g->reduce);
    weft_scatter_destroy(g->scatter);
    for (int k = 0; g->staged && k < g->nodes; k++) {
        if (g->backend->rows && g->staged[k])
            g->backend->rows->unpin(g->staged[k]);
        else
            free(g->staged[k]);
    }
    free(g->staged);
    weft_tree_free(&g->tree);
    weft_gradient_graphs_destroy(g->graphs);
    for (int i = 1; i < WEFT_GRADIENT_LEVELS; i++)
        if (g->levels[i]) g->backend->release(g->levels[i], g->level_bytes);
    weft_partition_free(&g->shards);
    free(g->offsets);
    free(g->made_by);
    free(g->due);
    free(g->finished);
    free(g->from);
    free(g);
}

void weft_gradients_restart(weft_gradients *g) {
    if (g->early) weft_exec_watch(g->session->exec, NULL, NULL);
    g->early = false;
    g->taken = 0;
    g->node = 0;
    g->depth = 0;
    if (g->scatter) weft_scatter_restart(g->scatter);
}

static void *level_data(const weft_gradients *g, int level, int64_t weight) {
    return g->levels[level] + g->offsets[weight];
}

/* to[i] = (add ? to[i] : 0) + from[i]. */
static void add_f64(double *to, const double *from, int64_t n, bool add) {
    for (int64_t i = 0; i < n; i++)
        to[i] = add ? to[i] + from[i] : from[i];
}

static void add_f32(float *to, const float *from, int64_t n, bool add) {
    for (int64_t i = 0; i < n; i++)
        to[i] = add ? to[i] + from[i] : from[i];
}

static void add_bf16(float *to, const uint16_t *from, int64_t n, bool add) {
    for (int64_t i = 0; i < n; i++)
        to[i] = (add ? to[i] : 0) + weft_bf16_to_float(from[i]);
}

static void add_chunk(void *context, int64_t task, int thread) {
    (void)thread;
    const weft_gradient_addition *a = context;
    const weft_gradients *g = a->g;
    const weft_stretch *c = &g->shards.chunks[a->first + task];
    weft_gradient from = a->from < 0 ? g->from[c->weight]
                                     : (weft_gradient){g->dtype, level_data(g, a->from, c->weight)};
    void *to = level_data(g, a->to, c->weight);
    if (!from.data) {
        size_t size = weft_dtype_size(g->dtype);
        if (!a->add) memset((char *)to + (size_t)c->first * size, 0, (size_t)c->count * size);
    } else if (g->dtype == WEFT_F64) {
        add_f64((double *)to + c->first, (const double *)from.data + c->first, c->count, a->add);
    } else if (from.dtype == WEFT_BF16) {
        add_bf16((float *)to + c->first, (const uint16_t *)from.data + c->first, c->count, a->add);
    } else {
        add_f32((float *)to + c->first, (const float *)from.data + c->first, c->count, a->add);
    }
}

static void scale_chunk(void *context, int64_t task, int thread) {
    (void)thread;
    const weft_gradient_addition *a = context;
    const weft_stretch *c = &a->g->shards.chunks[task];
    void *to = level_data(a->g, 0, c->weight);
    for (int64_t i = c->first; i < c->first + c->count; i++) {
        if (a->g->dtype == WEFT_F64)
            ((double *)to)[i] *= a->factor;
        else
            ((float *)to)[i] *= (float)a->factor;
    }
}

/* Adds the sum on top to the one below it. */
static void list_merge(weft_gradients *g) {
    int top = --g->depth;
    g->last[g->n_last++] =
        (weft_gradient_addition){.g = g, .to = top - 1, .from = top, .add = true};
}

/* What the next micro-batch's gradient means for the stack: it is set on top or added to its left
 * neighbour, and the pair that an odd one closes may close a pair of pairs, and so on up. The last one
 * of a node leaves one sum of it. */
void weft_gradients_list(weft_gradients *g) {
    int64_t i = g->taken++;
    bool over = g->taken == g->tree.nodes[g->first_node + g->node].count;
    if (i % 2 == 0) g->depth++;
    g->n_last = 0;
    g->last[g->n_last++] =
        (weft_gradient_addition){.g = g, .to = g->depth - 1, .from = -1, .add = i % 2 != 0};
    for (int64_t pairs = i >> 1; i % 2 && pairs % 2; pairs >>= 1)
        list_merge(g);
    if (!over) return;
    while (g->depth > g->node + 1)
        list_merge(g);
    g->taken = 0;
    g->node++;
}

void weft_gradients_add_chunks(weft_gradients *g, int64_t first, int64_t count) {
    for (int k = 0; k < g->n_last; k++) {
        g->last[k].first = first;
        weft_pool_run(g->pool, count, add_chunk, &g->last[k]);
    }
}

static weft_status add_all(weft_gradients *g) {
    if (!g->graphs) {
        weft_gradients_add_chunks(g, 0, g->shards.cut.n_blocks);
        return WEFT_OK;
    }
    for (int k = 0; k < g->n_last; k++) {
        const weft_gradient_addition *a = &g->last[k];
        WEFT_TRY(a->from < 0 ? weft_gradient_graphs_take(g->graphs, a->to, a->add)
                             : weft_gradient_graphs_merge(g->graphs, a->from));
    }
    return WEFT_OK;
}

static weft_status make_mean(weft_gradients *g) {
    if (g->graphs) return weft_gradient_graphs_mean(g->graphs);
    weft_gradient_addition mean = {.g = g, .factor = 1.0 / (double)g->count};
    weft_pool_run(g->pool, g->shards.cut.n_blocks, scale_chunk, &mean);
    return WEFT_OK;
}

/* The mean over all ranks, from the nodes that this one has made. */
static weft_status reduce_ranks(weft_gradients *g) {
    weft_gradients_begin(g);
    for (int64_t b = 0; b < weft_cut_buckets(&g->shards.cut); b++)
        WEFT_TRY(weft_gradients_send(g, b));
    return weft_gradients_end(g);
}

weft_status weft_gradients_add(weft_gradients *g) {
    if (g->count == 1) return WEFT_OK;
    if (g->early) WEFT_TRY(weft_gradients_finish(g));
    if (g->scatter) {
        WEFT_TRY(weft_scatter_end(g->scatter));
        if (!weft_scatter_is_over(g->scatter)) return WEFT_OK;
    } else if (g->node < g->nodes) {
        weft_gradients_list(g);
        WEFT_TRY(add_all(g));
        if (g->node < g->nodes) return WEFT_OK;
        WEFT_TRY(g->reduce || g->device ? reduce_ranks(g) : make_mean(g));
    }
    weft_gradients_restart(g);
    return WEFT_OK;
}

bool weft_gradients_are_dealt(const weft_gradients *g) {
    return g->scatter != NULL;
}

weft_status weft_gradients_pass(weft_gradients *g) {
    weft_scatter_begin(g->scatter, false);
    return weft_gradients_add(g);
}

/* Whether all of a gradient is finite, read in the host's memory. */
static bool is_finite(const void *data, weft_dtype dtype, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        double value = dtype == WEFT_F64 ? ((const double *)data)[i]
                       : dtype == WEFT_BF16
                           ? (double)weft_bf16_to_float(((const uint16_t *)data)[i])
                           : (double)((const float *)data)[i];
        if (!isfinite(value)) return false;
    }
    return true;
}

weft_gradient weft_gradients_of(const weft_gradients *g, int64_t weight) {
    if (g->count == 1) return g->from[weight];
    return (weft_gradient){g->dtype, level_data(g, 0, weight)};
}

/* The same of numbers in the backend's memory; true also where they cannot be read. */
static bool is_finite_there(const weft_gradients *g, weft_gradient from, int64_t count) {
    int64_t bytes = count * (int64_t)weft_dtype_size(from.dtype);
    void *copy = g->backend->remote ? malloc((size_t)bytes) : NULL;
    if (g->backend->remote && !copy) return true;
    bool there = !copy || g->backend->download(copy, from.data, bytes) == WEFT_OK;
    bool good = !there || is_finite(copy ? copy : from.data, from.dtype, count);
    free(copy);
    return good;
}

/* The first weight of those that are not finite; `n`: none. */
static int64_t find_bad(const weft_gradients *g) {
    for (int64_t w = 0; w < g->n; w++) {
        weft_gradient from = weft_gradients_of(g, w);
        if (from.data && !is_finite_there(g, from, g->weights[w].count)) return w;
    }
    return g->n;
}

/* The same of what this rank has. */
static int64_t find_own_bad(const weft_gradients *g) {
    const weft_partition *s = weft_optimizer_shards(g->optimizer);
    int64_t n = weft_partition_owned(s, s->rank, NULL), bad = g->n;
    weft_stretch *own = calloc((size_t)n + 1, sizeof *own);
    if (own) weft_partition_owned(s, s->rank, own);
    for (int64_t i = 0; own && bad == g->n && i < n; i++) {
        weft_gradient from;
        if (g->scatter) {
            from = weft_scatter_mean(g->scatter, i);
        } else {
            from = weft_gradients_of(g, own[i].weight);
            from.data =
                (unsigned char *)from.data + (size_t)own[i].first * weft_dtype_size(from.dtype);
        }
        if (!is_finite_there(g, from, own[i].count)) bad = own[i].weight;
    }
    free(own);
    return bad;
}

const char *weft_gradients_find_bad(const weft_gradients *g) {
    int ranks = weft_comm_size(g->comm);
    bool shared = weft_optimizer_shards(g->optimizer) != NULL;
    int64_t bad = shared ? find_own_bad(g) : find_bad(g), first = bad;
    int64_t *all = shared ? calloc((size_t)ranks, sizeof *all) : NULL;
    if (all && weft_comm_gather(g->comm, &bad, sizeof bad, all) == WEFT_OK)
        for (int r = 0; r < ranks; r++)
            first = all[r] < first ? all[r] : first;
    free(all);
    return first < g->n ? g->weights[first].name : NULL;
}
