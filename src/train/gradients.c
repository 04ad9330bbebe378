/* Sums of gradients where they are made: the additions of the tree (weft_tree_push), element by element,
 * by the host's threads or in a queue of the device. A rank may have several nodes of the tree: the sum of
 * one stays at the bottom of the stack while the next is made.
 *
 * The overlap, which is what makes ranks scale (docs/results/scaling.md): a rank's last micro-batch
 * closes every pair of the tree that is still open. So when it makes a weight's gradient, that weight's
 * sums are finished there and then; when all weights of a bucket are, the bucket goes on its way. The
 * executor says what is made (weft_exec_watch): on the host after each node; a device is given the whole
 * run in some parts, and computes the next ones while the additions and messages of one go through a
 * queue beside it. Ranks see the nodes in the same order, so they send the buckets in the same order.
 * Unwatched, all weights are finished after the run, by the same calls. */
#include "train/gradients.h"

#include "comm/reduce.h"
#include "core/rows.h"
#include "model/account.h"

enum { PARTS = 16 /* of a watched run on a device: each costs a launch and a wait */ };

struct weft_gradients {
    weft_optimizer *optimizer;
    const weft_session *session;
    const weft_backend *backend;
    weft_pool *pool;
    weft_comm *comm;
    const weft_weight *weights;
    int64_t n, count;      /* weights; micro-batches of a step, of all ranks */
    weft_gradient *from;   /* [n]: the session's; data NULL: zeros */
    weft_dtype dtype;      /* of the sums */
    weft_partition shards; /* a level is its row, and a task a chunk */

    weft_tree tree;        /* shared sums: of a round, in which rank q has the q-th leaf */
    int first_node, nodes; /* of the tree, that are this rank's */
    int node;              /* the one in the making, */
    int64_t taken;         /* and how many micro-batches of it, or of all rounds, were taken */
    int depth;             /* sums on the stack, */
    void *levels[WEFT_TREE_LEVELS]; /* and the sums; levels[0] becomes the mean */
    weft_tree_addition *list;       /* of the next micro-batch's gradient, or of those of a round */
    int n_list;

    const weft_row_backend *rows; /* of a device; NULL: the sums are in the host's memory */
    void *queue;                  /* of the rows, beside its runs */
    weft_device_link *link;       /* NULL: not from GPU to GPU */
    weft_reduce *reduce;          /* NULL: one rank */
    bool begun;                   /* the sum over ranks */

    /* Shared sums, of which levels in the host's memory have the own pieces; own_at NULL: whole ones. */
    int64_t *own_at; /* [buckets + 1]: where the own pieces begin in a level */
    void *mean;      /* the backend's copy of level 0; NULL: it reads the host's */

    /* The overlap; NULL: gradients leave after the backward pass. */
    int64_t *made_by;   /* [n]: the node that ends a weight's gradient; -1: none */
    int64_t *due;       /* [buckets]: chunks that are not finished yet */
    bool *finished;     /* [n] */
    bool watched;       /* the run */
    weft_status status; /* of what was done meanwhile */
};

/* Where a weight begins in a level; of `n`: the end. */
static unsigned char *level_data(const weft_gradients *g, int level, int64_t weight) {
    return (unsigned char *)g->levels[level] + weft_partition_offset(&g->shards, weight);
}

/* Chunks of weights. */
typedef struct {
    const weft_gradients *g;
    int64_t first;
    unsigned char *to; /* where they are packed, if they are */
} chunk_range;

/* The additions of the list. */
WEFT_TASK(add_chunk) {
    const chunk_range *range = context;
    const weft_gradients *g = range->g;
    const weft_stretch *c = &g->shards.chunks[range->first + task];
    size_t size = weft_dtype_size(g->dtype), skip = (size_t)c->first * size;
    for (int k = 0; k < g->n_list; k++) {
        const weft_tree_addition *a = &g->list[k];
        const weft_gradient *leaf = &g->from[c->weight];
        unsigned char *to = level_data(g, a->to, c->weight) + skip;
        const unsigned char *from =
            a->leaf < 0 ? level_data(g, a->to + 1, c->weight) : (unsigned char *)leaf->data;
        if (a->leaf >= 0 && leaf->data && leaf->dtype == WEFT_BF16) {
            const uint16_t *halves = (const uint16_t *)leaf->data + c->first;
            float *sums = (float *)(void *)to;
            for (int64_t i = 0; i < c->count; i++)
                sums[i] = (a->add ? sums[i] : 0) + weft_bf16_to_float(halves[i]);
        } else if (from)
            weft_numbers_add(to, from + skip, c->count, g->dtype == WEFT_F64, a->add);
        else if (!a->add)
            memset(to, 0, (size_t)c->count * size);
    }
}

static void add_weights(const weft_gradients *g, int64_t first, int64_t end) {
    chunk_range range = {.g = g, .first = g->shards.first[first]};
    if (g->rows) {
        /* The same in the device's queue. Levels are laid out alike: neighbours' merges are one
         * call. */
        for (int k = 0; k < g->n_list; k++) {
            const weft_tree_addition *a = &g->list[k];
            float *to = (float *)(void *)level_data(g, a->to, first);
            if (a->leaf < 0)
                g->rows->add(g->queue, to, (float *)(void *)level_data(g, a->to + 1, first),
                             (float *)(void *)level_data(g, a->to, end) - to);
            for (int64_t w = first; a->leaf >= 0 && w < end; w++)
                g->rows->take(g->queue, (float *)(void *)level_data(g, a->to, w), g->from[w].data,
                              g->from[w].dtype, a->add, g->weights[w].count);
        }
    } else
        weft_pool_run(g->pool, g->shards.first[end] - range.first, add_chunk, &range);
}

WEFT_TASK(scale_chunk) {
    const weft_gradients *g = context;
    const weft_stretch *c = &g->shards.chunks[task];
    size_t skip = (size_t)c->first * weft_dtype_size(g->dtype);
    weft_numbers_scale(level_data(g, 0, c->weight) + skip, 1.0 / (double)g->count, c->count,
                       g->dtype == WEFT_F64);
}

/* Shared sums. A bucket is packed as numbers of the row, so that a piece is one message; reduce.c carries it.
 * Sums are made in the host's memory, and copied to a backend that has its own when the step is over. */

static int64_t own_bytes(const weft_gradients *g) {
    return g->own_at[weft_cut_buckets(&g->shards.cut)] * (int64_t)weft_dtype_size(g->dtype);
}

/* A chunk's gradient as it lies there (data NULL: zeros), and its place in the bucket. `raw` is the upper end of
 * that, where as many bytes go: what is narrower than the row is widened from there. */
typedef struct {
    weft_dtype dtype;
    const unsigned char *data;
    unsigned char *to, *raw;
    int64_t count, bytes;
} packed_chunk;

static packed_chunk chunk_of(const chunk_range *t, int64_t i) {
    const weft_partition *h = &t->g->shards;
    const weft_stretch *c = &h->chunks[t->first + i];
    const weft_gradient *from = &t->g->from[c->weight];
    int64_t width = (int64_t)weft_dtype_size(h->dtype),
            size = (int64_t)weft_dtype_size(from->dtype);
    packed_chunk p = {.dtype = from->dtype, .count = c->count, .bytes = c->count * size};
    p.to = t->to + (h->borders[t->first + i] - h->borders[t->first]) * width;
    p.raw = p.to + c->count * width - p.bytes;
    if (from->data) p.data = (const unsigned char *)from->data + c->first * size;
    return p;
}

WEFT_TASK(pack_chunk) {
    const chunk_range *t = context;
    packed_chunk p = chunk_of(t, task);
    if (!p.data)
        memset(p.to, 0, (size_t)p.count * weft_dtype_size(t->g->dtype));
    else if (!t->g->rows)
        memcpy(p.raw, p.data, (size_t)p.bytes);
    for (int64_t i = 0; p.data && p.dtype == WEFT_BF16 && i < p.count; i++) {
        uint16_t bits;
        memcpy(&bits, p.raw + 2 * i, sizeof bits);
        ((float *)(void *)p.to)[i] = weft_bf16_to_float(bits);
    }
}

static weft_status pack(void *context, int64_t bucket, unsigned char *packed) {
    const weft_gradients *g = context;
    weft_span blocks = weft_cut_bucket(&g->shards.cut, bucket);
    chunk_range t = {g, blocks.first, packed};
    for (int64_t i = 0; g->rows && i < blocks.count; i++) {
        packed_chunk p = chunk_of(&t, i);
        if (p.data) g->rows->fetch(g->queue, p.raw, p.data, p.bytes);
    }
    if (g->rows) WEFT_TRY(g->rows->wait(g->queue));
    weft_pool_run(g->pool, blocks.count, pack_chunk, &t);
    return WEFT_OK;
}

/* The round's additions, of some numbers of the own piece. */
static void add_round(void *context, const weft_reduce_bucket *b, int64_t bucket, weft_span own) {
    const weft_gradients *g = context;
    size_t width = weft_dtype_size(g->dtype), skip = (size_t)own.first * width;
    size_t at = (size_t)g->own_at[bucket] * width + skip;
    bool is_double = g->dtype == WEFT_F64;
    for (int i = 0; i < g->n_list; i++) {
        const weft_tree_addition *a = &g->list[i];
        const unsigned char *from = a->leaf < 0 ? (unsigned char *)g->levels[a->to + 1] + at
                                                : weft_reduce_values(b, a->leaf) + skip;
        weft_numbers_add((unsigned char *)g->levels[a->to] + at, from, own.count, is_double,
                         a->add);
    }
    if (g->taken >= g->count)
        weft_numbers_scale((unsigned char *)g->levels[0] + at, 1.0 / (double)g->count, own.count,
                           is_double);
}

/* The round's micro-batches from left to right; the last round may have fewer. */
static void begin_round(weft_gradients *g) {
    g->n_list = 0;
    g->tree.n_nodes = 0;
    for (int q = 0; q < g->shards.cut.size && g->taken < g->count; q++) {
        int64_t i = g->taken++;
        g->n_list += weft_tree_push(i, g->taken == g->count, q, 0, &g->depth, g->list + g->n_list);
        g->tree.n_nodes++;
    }
    weft_reduce_begin(g->reduce, 1);
}

static weft_status end_round(weft_gradients *g) {
    WEFT_TRY(weft_reduce_end(g->reduce));
    if (g->taken < g->count || !g->mean) return WEFT_OK;
    return g->backend->upload(g->mean, g->levels[0], own_bytes(g));
}

/* The sum over ranks, bucket by bucket. */
static void begin_ranks(weft_gradients *g) {
    if (!g->own_at) weft_reduce_begin(g->reduce, 1.0 / (double)g->count);
    g->begun = true;
}

/* Weight w's gradient is made: its sums are finished, and buckets that have all theirs leave. */
static void finish_weight(weft_gradients *g, int64_t w) {
    if (!g->own_at) add_weights(g, w, w + 1);
    g->finished[w] = true;
    for (int64_t i = g->shards.first[w]; i < g->shards.first[w + 1]; i++) {
        int64_t bucket = weft_cut_bucket_of(&g->shards.cut, i);
        if (--g->due[bucket] > 0 || g->status != WEFT_OK) continue;
        g->status = weft_reduce_send(g->reduce, bucket);
    }
}

static void after_node(void *context, const weft_node *n) {
    weft_gradients *g = context;
    for (int64_t w = 0; w < g->n; w++)
        if (g->made_by[w] == n->index && !g->finished[w]) finish_weight(g, w);
    if (g->status == WEFT_OK) g->status = weft_reduce_look(g->reduce);
}

static void unwatch_run(weft_gradients *g) {
    if (g->watched) weft_exec_watch(g->session->exec, NULL, NULL);
    g->watched = false;
}

void weft_gradients_begin(weft_gradients *g) {
    unwatch_run(g);
    g->begun = false;
    g->taken = g->node = g->depth = 0;
}

void weft_gradients_expect(weft_gradients *g) {
    if (g->count == 1) return;
    if (g->own_at) {
        begin_round(g);
    } else {
        int64_t i = g->taken++;
        bool last = g->taken == g->tree.nodes[g->first_node + g->node].count;
        g->n_list = weft_tree_push(i, last, 0, g->node, &g->depth, g->list);
        if (last) g->taken = 0;
        g->node += last;
    }
    if (!g->made_by || (!g->own_at && g->node < g->nodes)) return;
    g->watched = true;
    g->status = WEFT_OK;
    memset(g->finished, 0, (size_t)g->n * sizeof *g->finished);
    for (int64_t b = 0; b < weft_cut_buckets(&g->shards.cut); b++)
        g->due[b] = weft_cut_bucket(&g->shards.cut, b).count;
    begin_ranks(g);
    weft_exec_watch(g->session->exec, after_node, g);
}

weft_status weft_gradients_add(weft_gradients *g) {
    if (g->count == 1) return WEFT_OK;
    if (g->watched) {
        unwatch_run(g);
        /* What nothing was seen to make is zeros, or lay there before. */
        for (int64_t w = 0; w < g->n; w++)
            if (!g->finished[w]) finish_weight(g, w);
        WEFT_TRY(g->status);
    } else if (!g->own_at) {
        add_weights(g, 0, g->n);
        if (g->rows) WEFT_TRY(g->rows->wait(g->queue));
    }
    return g->own_at ? end_round(g) : WEFT_OK;
}

weft_status weft_gradients_mean(weft_gradients *g) {
    if (g->count == 1) return WEFT_OK;
    if (g->own_at) {
        if (g->taken >= g->count) return WEFT_OK;
        begin_round(g); /* others have one more */
        return end_round(g);
    }
    if (g->reduce) {
        if (!g->begun) begin_ranks(g);
        WEFT_TRY(weft_reduce_end(g->reduce));
    } else if (g->rows) {
        g->rows->scale(g->queue, g->levels[0], (float)(1.0 / (double)g->count),
                       weft_partition_offset(&g->shards, g->n) / (int64_t)sizeof(float));
    } else {
        weft_pool_run(g->pool, g->shards.cut.n_blocks, scale_chunk, g);
    }
    return g->rows ? g->rows->wait(g->queue) : WEFT_OK;
}

bool weft_gradients_are_dealt(const weft_gradients *g) {
    return g->own_at != NULL;
}

weft_gradient weft_gradients_of(const weft_gradients *g, int64_t weight) {
    if (g->count == 1) return g->from[weight];
    return (weft_gradient){g->dtype, level_data(g, 0, weight)};
}

/* What adds the ranks' nodes: from GPU to GPU, else in the host's memory. */
static weft_status make_reduce(weft_gradients *g) {
    bool shared = g->own_at, exact = weft_optimizer_model(g->optimizer)->config.deterministic;
    weft_reduce_options options = {.comm = g->comm,
                                   .backend = g->backend,
                                   .pool = g->pool,
                                   .tree = &g->tree,
                                   .cut = &g->shards.cut,
                                   .is_double = g->dtype == WEFT_F64,
                                   .plain = !shared && !exact,
                                   .scatter = weft_optimizer_shards(g->optimizer) != NULL,
                                   .rows = shared ? NULL : g->levels,
                                   .link = g->link,
                                   .queue = g->queue,
                                   .pack = shared ? pack : NULL,
                                   .add = shared ? add_round : NULL,
                                   .context = g};
    return weft_reduce_create(&options, &g->reduce);
}

static weft_status make_whole(weft_gradients *g) {
    if (g->count == 1) return weft_optimizer_bind(g->optimizer, g->from, NULL);
    /* Under each node of this rank lie the sums of those before it. */
    int64_t bytes = weft_partition_offset(&g->shards, g->n);
    int depth = 1;
    for (int k = 0; k < g->nodes; k++) {
        int of_node = k + weft_account_levels(g->tree.nodes[g->first_node + k].count);
        if (of_node > depth) depth = of_node;
    }
    for (int i = 0; i < depth; i++)
        if (!(g->levels[i] = g->backend->alloc(bytes)))
            return weft_fail(WEFT_ENOMEM,
                             "gradients: no memory for %d sums of %lld bytes; a larger MICRO_BATCH "
                             "needs fewer",
                             depth, (long long)bytes);
    WEFT_ROOM(weft_gradient, sums, g->n, "gradients: no memory");
    for (int64_t w = 0; w < g->n; w++)
        if (g->from[w].data) sums[w] = weft_gradients_of(g, w);
    WEFT_TRY(weft_optimizer_bind(g->optimizer, sums, NULL));
    if (g->comm) WEFT_TRY(weft_device_link_open(g->comm, g->backend, &g->link));
    if (g->link)
        g->queue = weft_device_link_queue(g->link);
    else if (g->rows)
        WEFT_TRY(g->rows->open(&g->queue));
    return g->comm ? make_reduce(g) : WEFT_OK;
}

static weft_status make_shared(weft_gradients *g) {
    const weft_cut *cut = &g->shards.cut;
    int64_t buckets = weft_cut_buckets(cut);
    WEFT_ROOM_AT(g->own_at, buckets + 1, "gradients: no memory");
    for (int64_t b = 0; b < buckets; b++)
        g->own_at[b + 1] =
            g->own_at[b] + weft_cut_numbers(cut, weft_cut_piece(cut, b, g->shards.rank)).count;
    if (g->rows) WEFT_TRY(g->rows->open(&g->queue));
    size_t whole = (size_t)weft_arena_bytes(own_bytes(g) + 1);
    bool ok = true;
    for (int i = weft_account_levels(g->count) - 1; ok && i >= 0; i--)
        if ((ok = (g->levels[i] = aligned_alloc(WEFT_ARENA_ALIGN, whole))))
            memset(g->levels[i], 0, whole);
    if (ok && g->rows && own_bytes(g) > 0) ok = (g->mean = g->backend->alloc(own_bytes(g)));
    if (!ok) return weft_fail(WEFT_ENOMEM, "gradients: no memory for a rank's part");
    g->tree.n_nodes = cut->size;
    for (int q = 0; q < cut->size; q++)
        g->tree.nodes[q] = (weft_tree_node){q, 1, q};
    WEFT_TRY(make_reduce(g));
    return weft_optimizer_bind(g->optimizer, g->from, g->mean ? g->mean : g->levels[0]);
}

/* Parts of a device's run that end where the next sixteenth of all buckets is ready. */
static weft_status cut_run(const weft_gradients *g) {
    int64_t buckets = weft_cut_buckets(&g->shards.cut), ready = 0, sent = 0;
    int64_t nodes = weft_graph_node_count(g->session->graph.graph), ends[PARTS + 1];
    WEFT_ROOM(int64_t, made, nodes + 1, "gradients: no memory");
    int n = 0;
    for (int64_t b = 0; b < buckets; b++) { /* by the node that makes its last gradient, if any */
        weft_span span = weft_cut_bucket(&g->shards.cut, b);
        int64_t last = -1;
        for (int64_t i = span.first; i < span.first + span.count; i++) {
            int64_t node = g->made_by[g->shards.chunks[i].weight];
            last = node > last ? node : last;
        }
        made[last + 1]++;
    }
    for (int64_t i = 1; i < nodes; i++) { /* made[i]: after node i - 1 */
        ready += made[i];
        if ((ready - sent) * PARTS < buckets) continue;
        ends[n++] = i;
        sent = ready;
    }
    ends[n++] = nodes;
    return weft_exec_cut(g->session->exec, ends, n);
}

WEFT_ENDED_BY(weft_gradients_destroy, weft_gradients)
weft_status weft_gradients_create(weft_optimizer *o, const weft_session *s, weft_pool *pool,
                                  weft_comm *comm, int64_t count, weft_gradients **out) {
    const weft_model *m = weft_optimizer_model(o);
    bool shared = weft_optimizer_shards(o) && m->config.shard == WEFT_SHARD_GRADIENTS && count > 1;
    *out = NULL;
    WEFT_NEW(weft_gradients, g, weft_gradients_destroy, "gradients: no memory");
    *g = (weft_gradients){.optimizer = o,
                          .session = s,
                          .backend = weft_optimizer_backend(o),
                          .pool = pool,
                          .comm = comm,
                          .weights = m->weights,
                          .n = m->n_weights,
                          .count = count,
                          .dtype = m->dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32};
    if (g->backend->remote) g->rows = g->backend->rows;
    size_t leaves = shared ? (size_t)weft_comm_size(comm) : 1;
    WEFT_ROOM_AT(g->from, g->n, "gradients: no memory");
    WEFT_ROOM_AT(g->list, leaves * (WEFT_TREE_LEVELS + 1), "gradients: no memory");
    weft_optimizer_find_gradients(o, s, g->from);
    WEFT_TRY(weft_tree_make(count, weft_comm_size(comm), &g->tree));
    g->nodes = weft_tree_of_rank(&g->tree, weft_comm_rank(comm), &g->first_node);
    WEFT_TRY(weft_partition_make(m, comm, &g->shards));
    WEFT_TRY(shared ? make_shared(g) : make_whole(g));
    /* WEFT_OVERLAP=0: gradients leave after the backward pass: what the overlap is worth. */
    const char *overlap = getenv("WEFT_OVERLAP");
    if (!g->reduce || (overlap && strcmp(overlap, "0") == 0)) return weft_hand(&g, out);
    WEFT_ROOM_AT(g->made_by, g->n, "gradients: no memory");
    WEFT_ROOM_AT(g->finished, g->n, "gradients: no memory");
    WEFT_ROOM_AT(g->due, weft_cut_buckets(&g->shards.cut), "gradients: no memory");
    for (int64_t w = 0; w < g->n; w++) {
        const weft_tensor *t = weft_graph_find(s->graph.graph, g->weights[w].name);
        g->made_by[w] = t && t->grad && t->grad->producer ? t->grad->producer->index : -1;
    }
    if (g->rows) WEFT_TRY(cut_run(g));
    return weft_hand(&g, out);
}

void weft_gradients_destroy(weft_gradients *g) {
    if (!g) return;
    if (g->queue && !g->link) g->rows->close(g->queue);
    weft_device_link_close(g->link);
    weft_reduce_destroy(g->reduce);
    weft_tree_free(&g->tree);
    if (g->mean) g->backend->release(g->mean, own_bytes(g));
    for (int i = 0; i < WEFT_TREE_LEVELS; i++)
        if (g->own_at)
            free(g->levels[i]);
        else if (g->levels[i])
            g->backend->release(g->levels[i], weft_partition_offset(&g->shards, g->n));
    weft_partition_free(&g->shards);
    WEFT_FREE(g->made_by, g->due, g->finished, g->from, g->list, g->own_at, g);
}
