/* Building a graph: memory, tensors, nodes, views. Backward is in autodiff.c. */
#include "core/graph.h"
#include "base/text.h"

#include "core/graph_internal.h"

#include <stdarg.h>

enum { GRAPH_BLOCK_BYTES = 1 << 16 };

/* No tensor may hold more than this many bytes: sums of a few stay far from overflow. */
#define TENSOR_BYTES_MAX ((int64_t)1 << 56)

struct graph_block {
    graph_block *next;
    size_t used, size;
    _Alignas(16) unsigned char bytes[];
};

weft_node weft_node_gone = {.index = -1};

weft_status weft_graph_create(weft_graph **out) {
    WEFT_ROOM_AT(*out, 1, "graph: no memory");
    (*out)->n_forward = -1;
    return WEFT_OK;
}

void weft_graph_destroy(weft_graph *g) {
    if (!g) return;
    for (graph_block *b = g->blocks; b;) {
        graph_block *next = b->next;
        free(b);
        b = next;
    }
    WEFT_FREE(g->nodes, g->tensors, g->named, g->message, g);
}

weft_status weft_graph_status(const weft_graph *g) {
    if (g->status == WEFT_OK) return WEFT_OK;
    return weft_fail(g->status, "%s", g->message ? g->message : "graph: no memory");
}

/* Keeps the first error; later ones follow from it and would only hide it. */
static weft_status graph_record(weft_graph *g, weft_status status, const char *message) {
    if (g->status == WEFT_OK) {
        g->status = status;
        g->message = strdup(message);
    }
    return weft_graph_status(g);
}

weft_status weft_graph_fail(weft_graph *g, const char *format, ...) {
    char text[768], line[1024];
    const char *scope = g->scope ? g->scope : "";
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(line, sizeof line, "%s%s%s", scope, g->scope ? ": " : "", text);
    return graph_record(g, WEFT_EINPUT, line);
}

void *weft_graph_no_memory(weft_graph *g, const char *message) {
    graph_record(g, WEFT_ENOMEM, message);
    return NULL;
}

void *weft_graph_alloc(weft_graph *g, size_t bytes) {
    bytes = (bytes + 15) & ~(size_t)15;
    graph_block *b = g->blocks;
    if (!b || b->size - b->used < bytes) {
        size_t size = bytes > GRAPH_BLOCK_BYTES ? bytes : GRAPH_BLOCK_BYTES;
        b = calloc(1, sizeof *b + size);
        if (!b) return weft_graph_no_memory(g, "graph: no memory for its nodes");
        b->size = size;
        b->next = g->blocks;
        g->blocks = b;
    }
    void *memory = b->bytes + b->used;
    b->used += bytes;
    return memory;
}

static const char *graph_copy_name(weft_graph *g, const char *name) {
    size_t length = strlen(name) + 1;
    char *copy = weft_graph_alloc(g, length);
    if (copy) memcpy(copy, name, length);
    return copy;
}

/* Whether a list of pointers has room for one more. */
static bool has_room(weft_graph *g, void *list, int64_t count, int64_t *capacity) {
    if (weft_grow_list(list, capacity, count + 1, sizeof(void *))) return true;
    return weft_graph_no_memory(g, "graph: no memory for its lists");
}

static weft_status check_shape(weft_graph *g, const char *what, weft_dtype dtype, int ndim,
                               const int64_t *shape) {
    if (ndim < 0 || ndim > WEFT_MAX_DIMS)
        return weft_graph_fail(g, "%s: %d dimensions, but a tensor has 0 to %d", what, ndim,
                               WEFT_MAX_DIMS);
    if ((int)dtype < 0 || dtype >= WEFT_DTYPE_COUNT)
        return weft_graph_fail(g, "%s: type number %d is none of f32, f64, bf16, i32", what,
                               (int)dtype);
    int64_t bytes = (int64_t)weft_dtype_size(dtype);
    for (int d = 0; d < ndim; d++) {
        if (shape[d] <= 0)
            return weft_graph_fail(g, "%s: dimension %d is %lld; sizes start at 1", what, d,
                                   (long long)shape[d]);
        if (shape[d] > TENSOR_BYTES_MAX / bytes)
            return weft_graph_fail(g, "%s: the shape asks for more bytes than any memory holds",
                                   what);
        bytes *= shape[d];
    }
    return WEFT_OK;
}

weft_tensor *weft_graph_tensor_new(weft_graph *g, weft_role role, weft_dtype dtype, int ndim,
                                   const int64_t *shape) {
    weft_tensor *t = weft_graph_alloc(g, sizeof *t);
    if (!t || !has_room(g, &g->tensors, g->n_tensors, &g->cap_tensors)) return NULL;
    *t = (weft_tensor){.id = (int32_t)g->n_tensors, .dtype = dtype, .role = role, .ndim = ndim};
    for (int d = 0; d < ndim; d++)
        t->shape[d] = shape[d];
    g->tensors[g->n_tensors++] = t;
    return t;
}

/* Where the tensor of that name is, or would be: FNV-1a, then the next free slot. */
static int64_t named_slot(const weft_graph *g, const char *name) {
    uint64_t hash = 14695981039346656037u;
    for (const char *c = name; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    int64_t slot = (int64_t)(hash & (uint64_t)(g->named_slots - 1));
    while (g->named[slot] && strcmp(g->named[slot]->name, name) != 0)
        slot = (slot + 1) & (g->named_slots - 1);
    return slot;
}

weft_tensor *weft_graph_tensor(weft_graph *g, weft_role role, const char *name, weft_dtype dtype,
                               int ndim, const int64_t *shape) {
    if (g->status != WEFT_OK) return NULL;
    if (!name || !*name)
        return weft_graph_refuse(g, "tensor: an input, parameter or state needs a name");
    if (check_shape(g, name, dtype, ndim, shape) != WEFT_OK) return NULL;
    if (weft_graph_find(g, name))
        return weft_graph_refuse(g, "tensor '%s' is already in the graph; names must differ", name);
    weft_tensor *t = weft_graph_tensor_new(g, role, dtype, ndim, shape);
    if (!t) return NULL;
    t->name = graph_copy_name(g, name);
    t->needs_grad = role == WEFT_ROLE_PARAM && !g->constant;
    if (!t->name) return NULL;
    if (2 * (g->n_named + 1) > g->named_slots) { /* half of the slots are to be free */
        weft_graph larger = {.named_slots = g->named_slots ? 2 * g->named_slots : 256};
        larger.named = calloc((size_t)larger.named_slots, sizeof(weft_tensor *));
        if (!larger.named) return weft_graph_no_memory(g, "graph: no memory for its lists");
        for (int64_t i = 0; i < g->named_slots; i++)
            if (g->named[i]) larger.named[named_slot(&larger, g->named[i]->name)] = g->named[i];
        free(g->named);
        g->named = larger.named;
        g->named_slots = larger.named_slots;
    }
    g->named[named_slot(g, name)] = t;
    g->n_named++;
    return t;
}

weft_tensor *weft_graph_find(const weft_graph *g, const char *name) {
    return g->named_slots ? g->named[named_slot(g, name)] : NULL;
}

weft_tensor *weft_keep(weft_tensor *t) {
    if (t) weft_tensor_root(t)->keep = true;
    return t;
}

void weft_graph_scope(weft_graph *g, const char *name) {
    g->scope = name ? graph_copy_name(g, name) : NULL;
}

void weft_graph_recompute_begin(weft_graph *g) {
    if (g->segment)
        weft_graph_fail(g, "recompute: a segment is already open; they do not nest");
    else
        g->segment = ++g->n_segments;
}

void weft_graph_recompute_end(weft_graph *g) {
    if (!g->segment) weft_graph_fail(g, "recompute: no segment is open");
    g->segment = 0;
}

weft_node *weft_graph_node_new(weft_graph *g, const weft_op *op, weft_tensor *const *in, int n_in,
                               int n_out, const void *attr) {
    weft_node *n = weft_graph_alloc(g, sizeof *n);
    weft_tensor **lists = weft_graph_alloc(g, (size_t)(n_in + n_out) * sizeof *lists);
    if (!n || !lists) return NULL;
    *n = (weft_node){.op = op, .n_in = n_in, .n_out = n_out, .in = lists, .attr = attr};
    n->out = lists + n_in;
    for (int i = 0; i < n_in; i++)
        n->in[i] = in[i];
    return n;
}

weft_status weft_graph_node_push(weft_graph *g, weft_node *n) {
    if (!has_room(g, &g->nodes, g->n_nodes, &g->cap_nodes)) return weft_graph_status(g);
    n->index = (int32_t)g->n_nodes;
    g->nodes[g->n_nodes++] = n;
    return WEFT_OK;
}

weft_node *weft_graph_append(weft_graph *g, const weft_op *op, weft_tensor *const *in, int n_in,
                             int required, int n_out, const void *attr, size_t attr_size) {
    if (g->status != WEFT_OK) return NULL;
    for (int i = 0; i < required; i++)
        if (!in[i]) return weft_graph_refuse(g, "%s: input %d is missing", op->name, i);
    void *attr_copy = NULL;
    if (attr_size) {
        attr_copy = weft_graph_alloc(g, attr_size);
        if (!attr_copy) return NULL;
        memcpy(attr_copy, attr, attr_size);
    }
    weft_node *n = weft_graph_node_new(g, op, in, n_in, n_out, attr_copy);
    if (!n) return NULL;
    /* f64 is for checks: a node is f64 throughout, or nowhere. */
    const weft_tensor *wide = NULL, *narrow = NULL;
    for (int i = 0; i < n_in; i++) {
        if (!in[i] || in[i]->dtype == WEFT_I32 || in[i]->dtype == WEFT_I8) continue;
        if (in[i]->dtype == WEFT_F64)
            wide = in[i];
        else
            narrow = in[i];
    }
    if (wide && narrow)
        return weft_graph_refuse(g, "%s: one input is %s and another %s; f64 does not mix",
                                 op->name, weft_tensor_describe(wide),
                                 weft_tensor_describe(narrow));
    /* After fusing and backward, what nothing kept depended on is gone. */
    for (int i = 0; i < n_in; i++) {
        const weft_node *maker = in[i] ? in[i]->producer : NULL;
        int64_t at = maker ? maker->index : 0;
        if (maker && (at < 0 || at >= g->n_nodes || g->nodes[at] != maker))
            return weft_graph_refuse(
                g, "%s: input %d, %s, was dropped by fusing or backward; keep it before", op->name,
                i, weft_tensor_describe(in[i]));
    }
    n->segment = g->segment;
    if (op->infer(g, n) != WEFT_OK || g->status != WEFT_OK) {
        if (g->status == WEFT_OK) weft_graph_fail(g, "%s: %s", op->name, weft_error_message());
        return NULL;
    }
    return weft_graph_node_push(g, n) == WEFT_OK ? n : NULL;
}

weft_tensor *weft_node_output(weft_graph *g, weft_node *n, int index, weft_dtype dtype, int ndim,
                              const int64_t *shape) {
    if (g->status != WEFT_OK || check_shape(g, n->op->name, dtype, ndim, shape) != WEFT_OK)
        return NULL;
    weft_tensor *t = weft_graph_tensor_new(g, WEFT_ROLE_TEMP, dtype, ndim, shape);
    if (!t) return NULL;
    t->producer = n;
    n->out[index] = t;
    if (n->op->grad && dtype != WEFT_I32)
        for (int i = 0; i < n->n_in; i++)
            t->needs_grad |= n->in[i] && n->in[i]->needs_grad;
    return t;
}

weft_tensor *weft_node_output_like(weft_graph *g, weft_node *n, int index, weft_dtype dtype,
                                   const weft_tensor *like) {
    return weft_node_output(g, n, index, dtype, like->ndim, like->shape);
}

weft_tensor *weft_reshape(weft_graph *g, weft_tensor *t, int ndim, const int64_t *shape) {
    if (g->status != WEFT_OK) return NULL;
    if (!t) return weft_graph_refuse(g, "reshape: its input is missing");
    if (check_shape(g, "reshape", t->dtype, ndim, shape) != WEFT_OK) return NULL;
    weft_tensor want = {.dtype = t->dtype, .ndim = ndim};
    for (int d = 0; d < ndim; d++)
        want.shape[d] = shape[d];
    if (weft_tensor_count(t) != weft_tensor_count(&want))
        return weft_graph_refuse(g, "reshape: %s has another number of elements than %s",
                                 weft_tensor_describe(t), weft_tensor_describe(&want));
    if (weft_tensor_same_shape(t, &want)) return t;
    weft_tensor *root = weft_tensor_root(t);
    weft_tensor *view = weft_graph_tensor_new(g, root->role, t->dtype, ndim, shape);
    if (!view) return NULL;
    view->view_of = root;
    view->producer = root->producer;
    view->needs_grad = root->needs_grad;
    return view;
}

WEFT_GETTER(int64_t, weft_graph_node_count, weft_graph, n_nodes)
WEFT_GETTER(int64_t, weft_graph_tensor_count, weft_graph, n_tensors)

const weft_node *weft_graph_node(const weft_graph *g, int64_t i) {
    return g->nodes[i];
}

weft_tensor *weft_graph_tensor_at(const weft_graph *g, int64_t i) {
    return g->tensors[i];
}

int64_t weft_graph_forward_count(const weft_graph *g) {
    return g->n_forward < 0 ? g->n_nodes : g->n_forward;
}

int64_t weft_tensor_count(const weft_tensor *t) {
    int64_t count = 1;
    for (int d = 0; d < t->ndim; d++)
        count *= t->shape[d];
    return count;
}

int64_t weft_tensor_bytes(const weft_tensor *t) {
    return weft_tensor_count(t) * (int64_t)weft_dtype_size(t->dtype);
}

int64_t weft_tensor_width(const weft_tensor *t) {
    return t->ndim ? t->shape[t->ndim - 1] : 1;
}

int64_t weft_tensor_rows(const weft_tensor *t) {
    int64_t rows = 1;
    for (int d = 0; d + 1 < t->ndim; d++)
        rows *= t->shape[d];
    return rows;
}

bool weft_tensor_same_shape(const weft_tensor *a, const weft_tensor *b) {
    return a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof a->shape[0]) == 0;
}

const char *weft_tensor_describe(const weft_tensor *t) {
    static _Thread_local char texts[8][128];
    static _Thread_local unsigned next;
    char *text = texts[next++ % 8];
    if (!t) return "none";
    int at = snprintf(text, sizeof texts[0], "%s [", weft_dtype_name(t->dtype));
    for (int d = 0; d < t->ndim; d++)
        at += snprintf(text + at, sizeof texts[0] - (size_t)at, "%s%lld", d ? ", " : "",
                       (long long)t->shape[d]);
    snprintf(text + at, sizeof texts[0] - (size_t)at, "]");
    return text;
}
