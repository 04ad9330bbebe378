/* Lifetimes, takeovers and offsets.
 *
 * 1. Each tensor with memory of its own gets a buffer, alive from the node that makes it to the
 *    last node that reads it (to the end if it is kept; always if it is an input).
 * 2. Where an operation can write over an input that dies with it, the output joins the input's
 *    buffer.
 * 3. Buffers are laid out from the largest to the smallest, each at the lowest place where nothing
 *    that lives at the same time lies. */
#include "core/plan.h"
#include "base/text.h"

#include "core/exec.h"
#include "core/graph_internal.h"

typedef struct {
    int64_t bytes;
    int64_t first, last; /* nodes, both alive; -1 is before the first node */
    int64_t offset;
    int region;
} plan_buffer;

typedef struct {
    const weft_graph *g;
    const weft_backend *backend;
    const weft_plan_options *options;
    int threads;
    const bool *bound;
    int64_t n_nodes, n_tensors;
    int64_t n_buffers;
    plan_buffer *buffers; /* [n_tensors + n_nodes] */
    int64_t *buffer_of;   /* [n_tensors]: its buffer, -1: none; views have their root's */
    int64_t *last_read;   /* [n_tensors] by root: the last node that reads it, -1: none */
    int64_t *work_buffer; /* [n_nodes] */
    weft_plan *plan;
} planner;

static int64_t add_buffer(planner *p, int64_t bytes, int64_t first, int64_t last) {
    p->buffers[p->n_buffers] = (plan_buffer){weft_arena_bytes(bytes), first, last, -1, 0};
    return p->n_buffers++;
}

static int64_t take_over(planner *p, const weft_node *n, int out, bool *taken) {
    if (p->options->no_inplace || p->options->no_reuse || !n->op->inplace) return -1;
    int input = n->op->inplace(n, out);
    if (input < 0 || input >= n->n_in || !n->in[input] || taken[input]) return -1;
    /* The input must die here: node n alone reads it last, and once. */
    const weft_tensor *from = weft_tensor_root(n->in[input]), *to = n->out[out];
    if (from->role != WEFT_ROLE_TEMP || from->keep || p->last_read[from->id] != n->index) return -1;
    for (int k = 0; k < n->n_in; k++)
        if (k != input && n->in[k] && weft_tensor_root(n->in[k]) == from) return -1;
    if (from->dtype != to->dtype || weft_tensor_bytes(from) != weft_tensor_bytes(to)) return -1;
    /* What is made in the forward pass and read in the backward pass others may read there too. */
    int64_t forward = weft_graph_forward_count(p->g), buffer = p->buffer_of[from->id];
    if (buffer < 0) return -1;
    if (p->options->cut && n->index >= forward && p->buffers[buffer].first < forward) return -1;
    taken[input] = true;
    return buffer;
}

static weft_status place_tensors(planner *p) {
    for (int64_t i = 0; i < p->n_tensors; i++) {
        const weft_tensor *t = weft_graph_tensor_at(p->g, i);
        p->buffer_of[i] = -1;
        if (t->role == WEFT_ROLE_TEMP || t->view_of || (p->bound && p->bound[i])) continue;
        p->buffer_of[i] = add_buffer(p, weft_tensor_bytes(t), -1, p->n_nodes);
    }
    for (int64_t i = 0; i < p->n_nodes; i++) {
        const weft_node *n = weft_graph_node(p->g, i);
        WEFT_ROOM(bool, taken, n->n_in + 1, "plan: no memory");
        for (int o = 0; o < n->n_out; o++) {
            const weft_tensor *t = n->out[o];
            if (!t || (p->bound && p->bound[t->id])) continue;
            int64_t last = p->last_read[t->id] > n->index ? p->last_read[t->id] : n->index;
            last += p->options->linger;
            if (last >= p->n_nodes) last = p->n_nodes - 1;
            if (t->keep || p->options->no_reuse) last = p->n_nodes;
            int64_t buffer = take_over(p, n, o, taken);
            if (buffer < 0)
                buffer = add_buffer(p, weft_tensor_bytes(t), n->index, last);
            else if (p->buffers[buffer].last < last)
                p->buffers[buffer].last = last;
            p->buffer_of[t->id] = buffer;
        }
        const weft_kernel *kernel = p->backend ? p->backend->kernel(n) : NULL;
        int64_t work = kernel && kernel->workspace ? kernel->workspace(n, p->threads) : 0;
        p->work_buffer[i] = work > 0 ? add_buffer(p, work, i, i) : -1;
        p->plan->work_bytes[i] = work;
        if (weft_arena_bytes(work) > p->plan->workspace_bytes)
            p->plan->workspace_bytes = weft_arena_bytes(work);
    }
    return WEFT_OK;
}

typedef struct {
    int64_t bytes, buffer;
} plan_order;

/* Largest first; of one size the earlier, so that the layout is the same every time. */
static int by_size(const void *a, const void *b) {
    const plan_order *i = a, *j = b;
    if (i->bytes != j->bytes) return i->bytes > j->bytes ? -1 : 1;
    return i->buffer < j->buffer ? -1 : 1;
}

static weft_status place_buffer(planner *p, weft_space *spaces[WEFT_REGIONS], plan_buffer *b) {
    weft_space **space = &spaces[b->region];
    int64_t *size = &p->plan->region_bytes[b->region];
    if (!*space) WEFT_TRY(weft_space_open(p->n_nodes + 2, space));
    WEFT_TRY(weft_space_take(*space, b->first + 1, b->last + 1, b->bytes, &b->offset));
    if (b->offset + b->bytes > *size) *size = b->offset + b->bytes;
    return WEFT_OK;
}

/* The node at which the most is alive, and how much that is. */
static weft_status find_peak(planner *p, int64_t *node) {
    WEFT_ROOM(int64_t, change, p->n_nodes + 3, "plan: no memory");
    for (int64_t i = 0; i < p->n_buffers; i++) {
        const plan_buffer *b = &p->buffers[i];
        change[b->first + 1] += b->bytes;
        change[b->last + 2] -= b->bytes;
    }
    int64_t alive = 0;
    *node = -1;
    for (int64_t i = -1; i <= p->n_nodes; i++) {
        alive += change[i + 1];
        if (alive <= p->plan->peak_bytes) continue;
        p->plan->peak_bytes = alive;
        *node = i;
    }
    return WEFT_OK;
}

static weft_status make_plan(planner *p) {
    for (int64_t i = 0; i < p->n_tensors; i++)
        p->last_read[i] = -1;
    for (int64_t i = 0; i < p->n_nodes; i++) {
        const weft_node *n = weft_graph_node(p->g, i);
        for (int k = 0; k < n->n_in; k++)
            if (n->in[k]) p->last_read[weft_tensor_root(n->in[k])->id] = i;
    }
    WEFT_TRY(place_tensors(p));
    /* Which region a buffer is in: by the passes that it is alive in. */
    int64_t forward = weft_graph_forward_count(p->g);
    for (int64_t i = 0; p->options->cut && i < p->n_buffers; i++) {
        plan_buffer *b = &p->buffers[i];
        if (b->first < 0 || b->last == p->n_nodes)
            return weft_fail(WEFT_EBUG, "plan: it is cut, but something that lasts is not bound");
        b->region = b->first >= forward  ? WEFT_REGION_BACKWARD
                    : b->last >= forward ? WEFT_REGION_SAVED
                                         : WEFT_REGION_FORWARD;
    }
    weft_space *spaces[WEFT_REGIONS] = {NULL};
    WEFT_ROOM(plan_order, order, p->n_buffers + 1, "plan: no memory");
    for (int64_t i = 0; i < p->n_buffers; i++)
        order[i] = (plan_order){p->buffers[i].bytes, i};
    qsort(order, (size_t)p->n_buffers, sizeof *order, by_size);
    weft_status status = WEFT_OK;
    for (int64_t i = 0; i < p->n_buffers && status == WEFT_OK; i++)
        status = place_buffer(p, spaces, &p->buffers[order[i].buffer]);
    for (int i = 0; i < WEFT_REGIONS; i++) {
        p->plan->arena_bytes += p->plan->region_bytes[i];
        weft_space_close(spaces[i]);
    }
    WEFT_TRY(status);
    /* What the plan tells beside the offsets: what is alive when. */
    int64_t peak = -1;
    WEFT_TRY(find_peak(p, &peak));
    for (int64_t i = 0; i < p->n_buffers; i++) {
        const plan_buffer *b = &p->buffers[i];
        int64_t at_peak = b->first <= peak && peak <= b->last ? b->bytes : 0;
        if (b->first < 0) continue;
        if (b->last == p->n_nodes) {
            p->plan->peak_kept_bytes += at_peak;
        } else if (b->first < forward && b->last >= forward) {
            p->plan->saved_bytes += b->bytes;
            p->plan->peak_saved_bytes += at_peak;
        }
    }
    for (int64_t i = 0; i < p->n_tensors; i++) {
        int64_t buffer = p->buffer_of[weft_tensor_root(weft_graph_tensor_at(p->g, i))->id];
        p->plan->offset[i] = buffer < 0 ? -1 : p->buffers[buffer].offset;
        p->plan->region[i] = buffer < 0 ? 0 : (uint8_t)p->buffers[buffer].region;
    }
    for (int64_t i = 0; i < p->n_nodes; i++)
        p->plan->work_offset[i] = p->work_buffer[i] < 0 ? -1 : p->buffers[p->work_buffer[i]].offset;
    int64_t limit = p->options->memory_limit;
    if (limit == 0 && p->backend && p->backend->memory) limit = p->backend->memory();
    if (limit == 0 || p->plan->arena_bytes <= limit) return WEFT_OK;
    const double gib = 1024.0 * 1024.0 * 1024.0;
    return weft_fail(WEFT_ENOMEM,
                     "plan: the graph needs %.2f GiB, but %.2f GiB are there; take a smaller "
                     "batch, or recompute segments",
                     (double)p->plan->arena_bytes / gib, (double)limit / gib);
}

weft_status weft_plan_create(const weft_graph *g, const weft_backend *backend, int threads,
                             const bool *bound, const weft_plan_options *options, weft_plan **out) {
    *out = NULL;
    WEFT_TRY(weft_graph_status(g));
    static const weft_plan_options defaults;
    int64_t n_nodes = weft_graph_node_count(g), n_tensors = weft_graph_tensor_count(g);
    int64_t nodes = n_nodes + 1, tensors = n_tensors + 1;
    WEFT_NEW(weft_plan, plan, weft_plan_destroy, "plan: no memory");
    WEFT_ROOM(plan_buffer, buffers, nodes + tensors, "plan: no memory");
    WEFT_ROOM(int64_t, buffer_of, tensors, "plan: no memory");
    WEFT_ROOM(int64_t, last_read, tensors, "plan: no memory");
    WEFT_ROOM(int64_t, work_buffer, nodes, "plan: no memory");
    plan->n_nodes = n_nodes;
    plan->n_tensors = n_tensors;
    WEFT_ROOM_AT(plan->offset, tensors, "plan: no memory");
    WEFT_ROOM_AT(plan->region, tensors, "plan: no memory");
    WEFT_ROOM_AT(plan->work_offset, nodes, "plan: no memory");
    WEFT_ROOM_AT(plan->work_bytes, nodes, "plan: no memory");
    WEFT_TRY(make_plan(&(planner){.g = g,
                                  .backend = backend,
                                  .options = options ? options : &defaults,
                                  .threads = threads,
                                  .bound = bound,
                                  .n_nodes = n_nodes,
                                  .n_tensors = n_tensors,
                                  .buffers = buffers,
                                  .buffer_of = buffer_of,
                                  .last_read = last_read,
                                  .work_buffer = work_buffer,
                                  .plan = plan}));
    return weft_hand(&plan, out);
}

void weft_plan_destroy(weft_plan *plan) {
    if (!plan) return;
    WEFT_FREE(plan->offset, plan->region, plan->work_offset, plan->work_bytes, plan);
}

/* A tree over time: each half of a part of it is a node. What is taken from `first` to `last` is
 * written into the few nodes whose parts make up that time. A node knows the places taken for all of
 * its part (`whole`) and those taken in any moment of it (`any`), each as spans in ascending order
 * which do not touch. What is in the way of a time are `any` of the nodes that make it up and `whole`
 * of those above them: some dozens of lists, and short ones, since places that are close grow
 * together. */

enum { LISTS_MOST = 4 * 64 };

typedef struct {
    int64_t from, to; /* bytes, `to` is free */
} span;

typedef struct {
    span *list;
    int64_t n, room;
} spans;

typedef struct {
    spans whole, any;
} part;

struct weft_space {
    int64_t moments, n_parts;
    part *parts; /* [n_parts]: 1 is all of it, 2 i and 2 i + 1 are the halves of i */
};

/* A list and how far it was gone through. */
typedef struct {
    const spans *spans;
    int64_t at;
} reader;

typedef struct {
    int64_t first, last;
    span taken;
    reader readers[LISTS_MOST];
    int n;
} request;

weft_status weft_space_open(int64_t moments, weft_space **out) {
    *out = NULL;
    WEFT_ROOM(weft_space, s, 1, "plan: no memory");
    s->moments = moments;
    s->n_parts = 2;
    while (s->n_parts < 2 * moments)
        s->n_parts *= 2;
    WEFT_ROOM_AT(s->parts, s->n_parts, "plan: no memory");
    return weft_hand(&s, out);
}

void weft_space_close(weft_space *s) {
    if (!s) return;
    for (int64_t i = 0; i < s->n_parts; i++)
        WEFT_FREE(s->parts[i].whole.list, s->parts[i].any.list);
    WEFT_FREE(s->parts, s);
}

/* The first span from `low` on that ends behind `at`. */
static int64_t find_span(const spans *s, int64_t low, int64_t at) {
    int64_t high = s->n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (s->list[middle].to > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static bool add_span(spans *s, span new) {
    int64_t from = find_span(s, 0, new.from - 1), to = from; /* those that it touches */
    while (to < s->n && s->list[to].from <= new.to) {
        if (s->list[to].from < new.from) new.from = s->list[to].from;
        if (s->list[to].to > new.to) new.to = s->list[to].to;
        to++;
    }
    if (to == from && !weft_grow_list(&s->list, &s->room, s->n + 1, sizeof *s->list)) return false;
    if (from + 1 != to && to < s->n)
        memmove(s->list + from + 1, s->list + to, (size_t)(s->n - to) * sizeof *s->list);
    s->n += from + 1 - to;
    s->list[from] = new;
    return true;
}

static void add_reader(request *r, const spans *list) {
    if (list->n > 0) r->readers[r->n++] = (reader){list, 0};
}

/* Lists what is in the way, below part i, which is `count` moments from `start` on. */
static void find_in_way(const weft_space *s, request *r, int64_t i, int64_t start, int64_t count) {
    if (start > r->last || start + count <= r->first || s->parts[i].any.n == 0) return;
    if (start >= r->first && start + count - 1 <= r->last) {
        add_reader(r, &s->parts[i].any);
        return;
    }
    add_reader(r, &s->parts[i].whole);
    int64_t half = count / 2;
    find_in_way(s, r, 2 * i, start, half);
    find_in_way(s, r, 2 * i + 1, start + half, count - half);
}

static bool write_taken(weft_space *s, const request *r, int64_t i, int64_t start, int64_t count) {
    if (start > r->last || start + count <= r->first) return true;
    if (!add_span(&s->parts[i].any, r->taken)) return false;
    if (start >= r->first && start + count - 1 <= r->last)
        return add_span(&s->parts[i].whole, r->taken);
    int64_t half = count / 2;
    return write_taken(s, r, 2 * i, start, half) &&
           write_taken(s, r, 2 * i + 1, start + half, count - half);
}

weft_status weft_space_take(weft_space *s, int64_t first, int64_t last, int64_t bytes,
                            int64_t *offset) {
    request r = {.first = first, .last = last};
    find_in_way(s, &r, 1, 0, s->moments);
    /* Moves on from one that is in the way to the next, until none is. */
    int64_t at = 0;
    bool moved = true;
    while (moved) {
        moved = false;
        for (int i = 0; i < r.n; i++) {
            reader *one = &r.readers[i];
            one->at = find_span(one->spans, one->at, at);
            if (one->at == one->spans->n || one->spans->list[one->at].from >= at + bytes) continue;
            at = one->spans->list[one->at].to;
            moved = true;
        }
    }
    *offset = at;
    r.taken = (span){*offset, *offset + bytes};
    if (bytes == 0 || write_taken(s, &r, 1, 0, s->moments)) return WEFT_OK;
    return weft_no_memory("plan");
}
