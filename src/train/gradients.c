/* Adding gradients as a binary counter adds ones: the i-th micro-batch is pushed on a stack of
 * partial sums, and as long as the two on top stand for equally many, the upper one is added to the
 * one below. An odd micro-batch is added to its left neighbour right where the session left it, so
 * the stack has no level of its own for it. Every addition is element by element, hence equal for
 * any number of threads. On the host they are done here; elsewhere graphs do them.
 *
 * A rank that has not all micro-batches may have several nodes of the tree, each added so from its
 * first leaf on: the sum of one stays at the bottom of the stack while the next is made. */
#include "train/gradients.h"

#include "comm/reduce.h"
#include "core/align.h"
#include "train/gradient_graphs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 14, LEVELS = 40 };

/* A stretch of one weight's gradient: one task. */
typedef struct {
    int64_t weight, first, count;
} chunk;

struct weft_gradients {
    weft_optimizer *optimizer;
    const weft_backend *backend;
    weft_pool *pool;
    weft_gradient_graphs *graphs; /* NULL: the host adds */
    int64_t n, count;             /* weights; micro-batches of a step, of all ranks */
    weft_comm *comm;
    weft_tree tree;
    int first_node, nodes; /* of the tree, that are this rank's */
    int node;              /* the one in the making, */
    int64_t taken;         /* and how many micro-batches of it were taken */
    weft_reduce *reduce;   /* NULL: one rank */
    void **staged;         /* [nodes]: copies in the host's memory; NULL: the sums are there */
    weft_gradient *from;   /* [n]: the session's; data NULL: zeros */
    weft_dtype dtype;      /* of the sums */
    const weft_weight *weights;
    chunk *chunks;
    int64_t n_chunks;
    unsigned char *levels[LEVELS]; /* partial sums; levels[0] are the optimizer's buffers */
    int64_t level_bytes;
    int64_t *offsets; /* [n]: where a weight begins in a level */
    int depth;        /* sums on the stack */
};

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

static weft_status list_chunks(weft_gradients *g) {
    int64_t n = 0;
    for (int64_t i = 0; i < g->n; i++)
        n += (g->weights[i].count + CHUNK - 1) / CHUNK;
    g->chunks = calloc((size_t)n + 1, sizeof *g->chunks);
    if (!g->chunks) return weft_fail(WEFT_ENOMEM, "gradients: no memory");
    for (int64_t i = 0; i < g->n; i++) {
        for (int64_t at = 0; at < g->weights[i].count; at += CHUNK) {
            int64_t left = g->weights[i].count - at;
            g->chunks[g->n_chunks++] = (chunk){i, at, left < CHUNK ? left : CHUNK};
        }
    }
    return WEFT_OK;
}

static weft_status allocate_levels(weft_gradients *g) {
    int64_t bytes = 0, size = (int64_t)weft_dtype_size(g->dtype);
    int depth = deepest_of_rank(g);
    g->offsets = calloc((size_t)g->n, sizeof *g->offsets);
    if (!g->offsets) return weft_fail(WEFT_ENOMEM, "gradients: no memory");
    for (int64_t i = 0; i < g->n; i++) {
        g->offsets[i] = bytes;
        bytes += weft_arena_bytes(g->weights[i].count * size);
    }
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

/* What adds the ranks' nodes. Levels that the host cannot read are copied for it. */
static weft_status make_reduce(weft_gradients *g) {
    void **rows = calloc((size_t)g->nodes, sizeof *rows);
    if (!rows) return weft_fail(WEFT_ENOMEM, "gradients: no memory");
    for (int k = 0; k < g->nodes; k++) {
        rows[k] = g->backend->remote ? malloc((size_t)g->level_bytes) : (void *)g->levels[k];
        if (!rows[k]) return weft_fail(WEFT_ENOMEM, "gradients: no memory");
    }
    weft_reduce_options options = {.comm = g->comm,
                                   .pool = g->pool,
                                   .tree = &g->tree,
                                   .count = g->level_bytes / (int64_t)weft_dtype_size(g->dtype),
                                   .is_double = g->dtype == WEFT_F64,
                                   .plain =
                                       !weft_optimizer_model(g->optimizer)->config.deterministic,
                                   .rows = rows};
    weft_status status = weft_reduce_create(&options, &g->reduce);
    if (g->backend->remote)
        g->staged = rows;
    else
        free(rows);
    return status;
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
    if (status == WEFT_OK) {
        g->nodes = weft_tree_of_rank(&g->tree, weft_comm_rank(comm), &g->first_node);
        find_sources(g, s);
        status = list_chunks(g);
    }
    if (status == WEFT_OK && count > 1) status = allocate_levels(g);
    if (status == WEFT_OK) status = count > 1 ? bind_sums(g) : weft_optimizer_bind(o, g->from);
    if (status == WEFT_OK && count > 1) g->levels[0] = weft_optimizer_gradient(o, 0);
    if (status == WEFT_OK && count > 1 && g->backend->remote) status = make_graphs(g);
    if (status == WEFT_OK && count > 1 && comm) status = make_reduce(g);
    if (status != WEFT_OK) {
        weft_gradients_destroy(g);
        return status;
    }
    *out = g;
    return WEFT_OK;
}

void weft_gradients_destroy(weft_gradients *g) {
    if (!g) return;
    weft_reduce_destroy(g->reduce);
    for (int k = 0; g->staged && k < g->nodes; k++)
        free(g->staged[k]);
    free(g->staged);
    weft_tree_free(&g->tree);
    weft_gradient_graphs_destroy(g->graphs);
    for (int i = 1; i < LEVELS; i++)
        if (g->levels[i]) g->backend->release(g->levels[i], g->level_bytes);
    free(g->offsets);
    free(g->chunks);
    free(g->from);
    free(g);
}

void weft_gradients_restart(weft_gradients *g) {
    g->taken = 0;
    g->node = 0;
    g->depth = 0;
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

/* One addition of the tree: into a level, from the session (-1) or from the level above it. */
typedef struct {
    const weft_gradients *g;
    int to, from;
    bool add;
    double factor; /* of the finished mean */
} addition;

static void add_chunk(void *context, int64_t task, int thread) {
    (void)thread;
    const addition *a = context;
    const weft_gradients *g = a->g;
    const chunk *c = &g->chunks[task];
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
    const addition *a = context;
    const chunk *c = &a->g->chunks[task];
    void *to = level_data(a->g, 0, c->weight);
    for (int64_t i = c->first; i < c->first + c->count; i++) {
        if (a->g->dtype == WEFT_F64)
            ((double *)to)[i] *= a->factor;
        else
            ((float *)to)[i] *= (float)a->factor;
    }
}

static weft_status take_session(weft_gradients *g, int level, bool add) {
    if (g->graphs) return weft_gradient_graphs_take(g->graphs, level, add);
    addition a = {.g = g, .to = level, .from = -1, .add = add};
    weft_pool_run(g->pool, g->n_chunks, add_chunk, &a);
    return WEFT_OK;
}

/* Adds the sum on top to the one below it. */
static weft_status merge_top(weft_gradients *g) {
    int top = --g->depth;
    if (g->graphs) return weft_gradient_graphs_merge(g->graphs, top);
    addition a = {.g = g, .to = top - 1, .from = top, .add = true};
    weft_pool_run(g->pool, g->n_chunks, add_chunk, &a);
    return WEFT_OK;
}

static weft_status make_mean(weft_gradients *g) {
    if (g->graphs) return weft_gradient_graphs_mean(g->graphs);
    addition mean = {.g = g, .factor = 1.0 / (double)g->count};
    weft_pool_run(g->pool, g->n_chunks, scale_chunk, &mean);
    return WEFT_OK;
}

/* The mean over all ranks, from the nodes that this one has made. */
static weft_status reduce_ranks(weft_gradients *g) {
    for (int k = 0; g->staged && k < g->nodes; k++)
        g->backend->download(g->staged[k], g->levels[k], g->level_bytes);
    WEFT_TRY(weft_reduce_run(g->reduce, 1.0 / (double)g->count));
    if (g->staged) g->backend->upload(g->levels[0], g->staged[0], g->level_bytes);
    return WEFT_OK;
}

weft_status weft_gradients_add(weft_gradients *g) {
    if (g->count == 1) return WEFT_OK;
    int64_t i = g->taken++;
    if (i % 2 == 0) g->depth++;
    WEFT_TRY(take_session(g, g->depth - 1, i % 2 != 0));
    /* The pair that an odd i closes may close a pair of pairs, and so on up. */
    for (int64_t pairs = i >> 1; i % 2 && pairs % 2; pairs >>= 1)
        WEFT_TRY(merge_top(g));
    if (g->taken < g->tree.nodes[g->first_node + g->node].count) return WEFT_OK;
    while (g->depth > g->node + 1)
        WEFT_TRY(merge_top(g));
    g->taken = 0;
    if (++g->node < g->nodes) return WEFT_OK;
    WEFT_TRY(g->reduce ? reduce_ranks(g) : make_mean(g));
    weft_gradients_restart(g);
    return WEFT_OK;
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

const char *weft_gradients_find_bad(const weft_gradients *g) {
    for (int64_t w = 0; w < g->n; w++) {
        weft_gradient from = weft_gradients_of(g, w);
        int64_t count = g->weights[w].count, bytes = count * (int64_t)weft_dtype_size(from.dtype);
        if (!from.data) continue;
        void *copy = g->backend->remote ? malloc((size_t)bytes) : NULL;
        if (g->backend->remote && !copy) return NULL;
        if (copy) g->backend->download(copy, from.data, bytes);
        bool good = is_finite(copy ? copy : from.data, from.dtype, count);
        free(copy);
        if (!good) return g->weights[w].name;
    }
    return NULL;
}
