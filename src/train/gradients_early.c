/* Gradients that leave while the backward pass still makes others.
 *
 * The last micro-batch of a step closes every pair of the tree that is still open. So when it makes a
 * weight's gradient, that weight's sums are finished there and then; when all weights of a bucket are,
 * the bucket goes on its way. The executor says what is made (weft_exec_watch). On the host that is
 * after each node. A device is given the whole run in some parts: it computes the next ones while the
 * additions and messages of one go through a queue beside it. Ranks see the nodes in the same order,
 * so they send the buckets in the same order. */
#include "train/gradients_internal.h"

#include <stdlib.h>
#include <string.h>

enum { PARTS = 16 /* of a run on a device: each costs a launch and a wait */ };

static bool sends_late(const weft_gradients *g) {
    const char *text = getenv("WEFT_OVERLAP");
    return (g->backend->remote && !g->backend->rows) || (text && strcmp(text, "0") == 0);
}

weft_gradients_bytes weft_gradients_bucket(const weft_gradients *g, int64_t bucket) {
    weft_blocks b = weft_cut_bucket(&g->shards.cut, bucket);
    const int64_t *borders = g->shards.borders;
    int64_t size = (int64_t)weft_dtype_size(g->dtype);
    return (weft_gradients_bytes){borders[b.first] * size,
                                  (borders[b.first + b.count] - borders[b.first]) * size};
}

void weft_gradients_begin(weft_gradients *g) {
    double factor = 1.0 / (double)g->count;
    if (g->device) weft_device_reduce_begin(g->device, factor);
    if (g->reduce) weft_reduce_begin(g->reduce, factor);
}

/* A bucket of this rank's sums, to where the host reads it. */
static weft_status fetch_bucket(const weft_gradients *g, int64_t bucket) {
    const weft_row_backend *rows = g->backend->rows;
    weft_gradients_bytes b = weft_gradients_bucket(g, bucket);
    for (int k = 0; k < g->nodes; k++) {
        unsigned char *to = (unsigned char *)g->staged[k] + b.first;
        if (rows)
            rows->fetch(g->queue, to, g->levels[k] + b.first, b.count);
        else
            WEFT_TRY(g->backend->download(to, g->levels[k] + b.first, b.count));
    }
    return rows ? rows->wait(g->queue) : WEFT_OK;
}

weft_status weft_gradients_send(weft_gradients *g, int64_t bucket) {
    if (g->scatter) return weft_scatter_send(g->scatter, bucket);
    if (g->device) return weft_device_reduce_send(g->device, bucket);
    if (g->staged) WEFT_TRY(fetch_bucket(g, bucket));
    return weft_reduce_send(g->reduce, bucket);
}

weft_status weft_gradients_end(weft_gradients *g) {
    if (g->scatter) return WEFT_OK; /* weft_scatter_end is for every round */
    if (g->device) return weft_device_reduce_end(g->device);
    WEFT_TRY(weft_reduce_end(g->reduce));
    return g->queue ? g->backend->rows->wait(g->queue) : WEFT_OK;
}

/* The last additions of one weight, in the backend's queue. */
static void put_additions(const weft_gradients *g, int64_t w) {
    const weft_row_backend *rows = g->backend->rows;
    int64_t n = g->weights[w].count;
    for (int k = 0; k < g->n_last; k++) {
        const weft_gradient_addition *a = &g->last[k];
        float *to = (float *)(void *)(g->levels[a->to] + g->offsets[w]);
        if (a->from < 0)
            rows->take(g->queue, to, g->from[w].data, g->from[w].dtype, a->add, n);
        else
            rows->add(g->queue, to, (float *)(void *)(g->levels[a->from] + g->offsets[w]), n);
    }
}

/* One weight's gradient is made. */
static void finish_weight(weft_gradients *g, int64_t w) {
    int64_t first = g->shards.first[w], end = g->shards.first[w + 1];
    if (!g->scatter && g->backend->remote)
        put_additions(g, w);
    else if (!g->scatter)
        weft_gradients_add_chunks(g, first, end - first);
    g->finished[w] = true;
    for (int64_t i = first; i < end; i++) {
        int64_t bucket = weft_cut_bucket_of(&g->shards.cut, i);
        if (--g->due[bucket] > 0 || g->status != WEFT_OK) continue;
        g->status = weft_gradients_send(g, bucket);
    }
}

static void after_node(void *context, const weft_node *n) {
    weft_gradients *g = context;
    for (int64_t w = 0; w < g->n; w++)
        if (g->made_by[w] == n->index && !g->finished[w]) finish_weight(g, w);
    if (g->reduce && g->status == WEFT_OK) g->status = weft_reduce_look(g->reduce);
}

/* The node that makes the last gradient of a bucket; -1: nothing makes one. */
static int64_t ready_after(const weft_gradients *g, int64_t bucket) {
    weft_blocks b = weft_cut_bucket(&g->shards.cut, bucket);
    int64_t last = -1;
    for (int64_t i = b.first; i < b.first + b.count; i++) {
        int64_t node = g->made_by[g->shards.chunks[i].weight];
        if (node > last) last = node;
    }
    return last;
}

/* Parts of a device's run that end where the next sixteenth of all buckets is ready. */
static weft_status cut_run(const weft_gradients *g, const weft_session *s) {
    int64_t buckets = weft_cut_buckets(&g->shards.cut), ready = 0, sent = 0;
    int64_t nodes = weft_graph_node_count(s->graph.graph), ends[PARTS + 1];
    int64_t *made = calloc((size_t)nodes + 1, sizeof *made);
    int n = 0;
    if (!made) return weft_fail(WEFT_ENOMEM, "gradients: no memory");
    for (int64_t b = 0; b < buckets; b++)
        made[ready_after(g, b) + 1]++;
    for (int64_t i = 1; i < nodes; i++) { /* made[i]: after node i - 1 */
        ready += made[i];
        if ((ready - sent) * PARTS < buckets) continue;
        ends[n++] = i;
        sent = ready;
    }
    ends[n++] = nodes;
    free(made);
    return weft_exec_cut(s->exec, ends, n);
}

static void find_makers(weft_gradients *g, const weft_graph *graph) {
    for (int64_t w = 0; w < g->n; w++) {
        const weft_tensor *t = weft_graph_find(graph, g->weights[w].name);
        g->made_by[w] = -1;
        for (int64_t i = 0; t && t->grad && i < weft_graph_node_count(graph); i++) {
            const weft_node *n = weft_graph_node(graph, i);
            for (int k = 0; k < n->n_out; k++)
                if (n->out[k] == t->grad) g->made_by[w] = i;
        }
    }
}

weft_status weft_gradients_watch(weft_gradients *g, const weft_session *s) {
    if (sends_late(g)) return WEFT_OK;
    g->session = s;
    g->made_by = malloc((size_t)g->n * sizeof *g->made_by);
    g->finished = calloc((size_t)g->n, sizeof *g->finished);
    g->due = calloc((size_t)weft_cut_buckets(&g->shards.cut), sizeof *g->due);
    if (!g->made_by || !g->finished || !g->due)
        return weft_fail(WEFT_ENOMEM, "gradients: no memory");
    find_makers(g, s->graph.graph);
    return g->backend->remote ? cut_run(g, s) : WEFT_OK;
}

static bool is_last(const weft_gradients *g) {
    return g->node == g->nodes - 1 && g->taken + 1 == g->tree.nodes[g->first_node + g->node].count;
}

void weft_gradients_expect(weft_gradients *g) {
    if (g->scatter) weft_scatter_begin(g->scatter, true);
    if (!g->session || (!g->scatter && !is_last(g))) return;
    if (!g->scatter) weft_gradients_list(g);
    g->early = true;
    g->status = WEFT_OK;
    memset(g->finished, 0, (size_t)g->n * sizeof *g->finished);
    for (int64_t b = 0; b < weft_cut_buckets(&g->shards.cut); b++)
        g->due[b] = weft_cut_bucket(&g->shards.cut, b).count;
    weft_gradients_begin(g);
    weft_exec_watch(g->session->exec, after_node, g);
}

/* What nothing was seen to make is zeros, or lay there before. */
weft_status weft_gradients_finish(weft_gradients *g) {
    weft_exec_watch(g->session->exec, NULL, NULL);
    g->early = false;
    for (int64_t w = 0; w < g->n; w++)
        if (!g->finished[w]) finish_weight(g, w);
    WEFT_TRY(g->status);
    return weft_gradients_end(g);
}
