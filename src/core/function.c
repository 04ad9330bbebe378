/* Calls. Where each tensor lies is looked up once for each pass: a number of the caller's list, or a
 * region and an offset. A call fills a table of addresses from that and walks the pass's nodes.
 *
 * Tables are kept in a list and used again; there are as many as calls ever ran at the same time. */
#include "core/function.h"

#include "core/exec_internal.h"
#include "core/graph_internal.h"
#include "core/program.h"

/* Where a tensor lies. */
typedef struct {
    int32_t tensor;
    int32_t bound; /* number in the caller's list; -1: in a region */
    int64_t offset;
    uint8_t region;
} placing;

typedef struct {
    int64_t first, last; /* nodes */
    placing *placings;
    int64_t n_placings;
    bool *uses; /* [bound] */
} pass;

typedef struct frame {
    weft_exec exec;
    const void **addresses; /* [bound + 2]: what a call was given and uses; NULL: not needed */
    struct frame *next_free, *next;
} frame;

struct weft_function {
    weft_exec all; /* what all calls have in common; no profile where the kernels run on a device */
    const weft_tensor **bound;
    int n_bound;
    pass passes[2];
    pthread_mutex_t lock; /* of what follows, and of the profile */
    frame *frames, *free_frames;
    weft_status bad; /* the first since the last check */
    char message[1024];
};

static frame *frame_take(weft_function *f) {
    WEFT_LOCK(&f->lock);
    frame *taken = f->free_frames;
    if (taken) {
        f->free_frames = taken->next_free;
        return taken;
    }
    taken = calloc(1, sizeof *taken);
    if (!taken) return NULL;
    weft_exec *x = &taken->exec;
    *x = f->all;
    x->data = calloc((size_t)x->n_tensors + 1, sizeof *x->data);
    bool ok = x->data != NULL;
    if (f->all.backend->calls) {
        taken->addresses = calloc((size_t)f->n_bound + 2, sizeof *taken->addresses);
        ok = ok && taken->addresses && f->all.backend->calls->open(&x->state) == WEFT_OK;
    }
    if (!ok) {
        WEFT_FREE(taken->addresses, x->data, taken);
        return NULL;
    }
    taken->next = f->frames;
    f->frames = taken;
    return taken;
}

static void frame_give_back(weft_function *f, frame *used) {
    WEFT_LOCK(&f->lock);
    used->next_free = f->free_frames;
    f->free_frames = used;
}

static void place_tensor(weft_function *f, pass *p, bool *seen, weft_tensor *t) {
    if (!t || seen[t->id]) return;
    const weft_tensor *root = weft_tensor_root(t);
    int bound = 0;
    while (bound < f->n_bound && f->bound[bound] != root)
        bound++;
    if (bound == f->n_bound) bound = -1;
    seen[t->id] = true;
    if (bound >= 0) p->uses[bound] = true;
    p->placings[p->n_placings++] = (placing){
        t->id, bound, bound < 0 ? f->all.plan->offset[t->id] : 0, f->all.plan->region[t->id]};
}

static weft_status make_pass(weft_function *f, pass *p, int64_t first, int64_t last) {
    p->first = first;
    p->last = last;
    WEFT_ROOM(bool, seen, f->all.n_tensors + 1, "function: no memory");
    WEFT_ROOM_AT(p->placings, f->all.n_tensors + 1, "function: no memory");
    WEFT_ROOM_AT(p->uses, f->n_bound + 1, "function: no memory");
    for (int64_t i = first; i < last; i++) {
        const weft_node *n = weft_graph_node(f->all.g, i);
        for (int k = 0; k < n->n_in; k++)
            place_tensor(f, p, seen, n->in[k]);
        for (int k = 0; k < n->n_out; k++)
            place_tensor(f, p, seen, n->out[k]);
    }
    return WEFT_OK;
}

WEFT_ENDED_BY(weft_function_destroy, weft_function)

weft_status weft_function_create(weft_graph *g, const weft_backend *backend, weft_pool *pool,
                                 const weft_tensor *const *bound, int n_bound,
                                 weft_function **out) {
    *out = NULL;
    WEFT_TRY(weft_graph_status(g));
    WEFT_NEW(weft_function, f, weft_function_destroy, "function: no memory");
    int64_t nodes = weft_graph_node_count(g), forward = weft_graph_forward_count(g);
    f->all = (weft_exec){.g = g, .backend = backend, .pool = pool, .n_nodes = nodes};
    f->all.n_tensors = weft_graph_tensor_count(g);
    f->n_bound = n_bound;
    pthread_mutex_init(&f->lock, NULL);
    WEFT_ROOM_AT(f->all.kernels, nodes + 1, "function: no memory");
    WEFT_ROOM_AT(f->bound, f->n_bound + 1, "function: no memory");
    for (int i = 0; i < f->n_bound; i++)
        f->bound[i] = bound[i];
    WEFT_TRY(weft_exec_find_kernels(f->all.g, f->all.backend, f->all.kernels));
    WEFT_ROOM(bool, outside, f->all.n_tensors + 1, "function: no memory");
    for (int i = 0; i < f->n_bound; i++)
        if (bound[i]) outside[bound[i]->id] = true;
    weft_program_options options = {
        .complete = true, .bound = outside, .plan = {.cut = true, .memory_limit = INT64_MAX}};
    WEFT_TRY(
        weft_program_make(g, f->all.backend, weft_pool_size(f->all.pool), &options, &f->all.plan));
    WEFT_TRY(make_pass(f, &f->passes[WEFT_HALF_FORWARD], 0, forward));
    WEFT_TRY(make_pass(f, &f->passes[WEFT_HALF_BACKWARD], forward, nodes));
    if (!f->all.backend->calls) f->all.profile = weft_profile_create(f->all.g);
    frame *first = frame_take(f);
    if (!first) return weft_fail(WEFT_ENOMEM, "function: no memory for a call");
    frame_give_back(f, first);
    return weft_hand(&f, out);
}

void weft_function_destroy(weft_function *f) {
    if (!f) return;
    for (frame *x = f->frames; x;) {
        frame *next = x->next;
        if (x->exec.state) f->all.backend->calls->close(x->exec.state);
        WEFT_FREE(x->addresses, x->exec.data, x);
        x = next;
    }
    for (int i = 0; i < 2; i++)
        WEFT_FREE(f->passes[i].placings, f->passes[i].uses);
    weft_profile_destroy(f->all.profile);
    weft_plan_destroy(f->all.plan);
    pthread_mutex_destroy(&f->lock);
    WEFT_FREE(f->all.kernels, f->bound, f);
}

int64_t weft_function_saved_bytes(const weft_function *f) {
    return f->all.plan->region_bytes[WEFT_REGION_SAVED];
}

static int64_t own_bytes(const weft_function *f) {
    return f->all.backend->calls ? f->all.backend->calls->bytes : 0;
}

static int workspace_region(weft_half half) {
    return half == WEFT_HALF_FORWARD ? WEFT_REGION_FORWARD : WEFT_REGION_BACKWARD;
}

int64_t weft_function_workspace_bytes(const weft_function *f, weft_half half) {
    if (f->passes[half].first == f->passes[half].last) return 0;
    return own_bytes(f) + f->all.plan->region_bytes[workspace_region(half)];
}

bool weft_function_uses(const weft_function *f, weft_half half, int bound) {
    return f->passes[half].uses[bound];
}

static weft_status check_address(const void *at, const char *what) {
    if (at && (uintptr_t)at % WEFT_ARENA_ALIGN == 0) return WEFT_OK;
    return WEFT_BAD_INPUT(
        at ? "call: the address of %s is no multiple of %d"
           : "call: the address of %s is NULL; it needs memory at a multiple of %d",
        what, WEFT_ARENA_ALIGN);
}

static weft_status start_on_device(const weft_function *f, weft_half half,
                                   const weft_call_memory *m, frame *x) {
    const pass *p = &f->passes[half];
    for (int i = 0; i < f->n_bound; i++)
        x->addresses[i] = p->uses[i] ? m->bound[i] : NULL;
    x->addresses[f->n_bound] = m->saved;
    x->addresses[f->n_bound + 1] = m->workspace;
    weft_call_start call = {.first = p->first, .last = p->last, .memory = m->workspace};
    call.stream = m->stream;
    call.addresses = x->addresses;
    call.n_addresses = f->n_bound + 2;
    return f->all.backend->calls->start(&x->exec, &call);
}

static weft_status run_here(weft_function *f, const pass *p, weft_exec *x) {
    if (!f->all.profile) return weft_exec_walk_part(x, p->first, p->last);
    WEFT_LOCK(&f->lock); /* one call at a time, so that each node's time is its own */
    return weft_exec_walk_timed(x, p->first, p->last);
}

static void note_bad(weft_function *f, weft_status status, const char *message) {
    WEFT_LOCK(&f->lock);
    if (f->bad == WEFT_OK) {
        f->bad = status;
        snprintf(f->message, sizeof f->message, "%s", message);
    }
}

weft_status weft_function_call(weft_function *f, weft_half half, const weft_call_memory *m) {
    const pass *p = &f->passes[half];
    if (p->first == p->last) return WEFT_OK;
    for (int i = 0; i < f->n_bound; i++) {
        const weft_tensor *t = f->bound[i];
        if (p->uses[i])
            WEFT_TRY(check_address(m->bound[i], t->name ? t->name : weft_tensor_describe(t)));
    }
    if (weft_function_saved_bytes(f)) WEFT_TRY(check_address(m->saved, "what is saved"));
    if (weft_function_workspace_bytes(f, half))
        WEFT_TRY(check_address(m->workspace, "the workspace"));
    frame *x = frame_take(f);
    if (!x) return weft_fail(WEFT_ENOMEM, "call: no memory for one more at the same time");
    unsigned char *base[WEFT_REGIONS] = {0};
    unsigned char *workspace = m->workspace;
    base[WEFT_REGION_SAVED] = m->saved;
    base[workspace_region(half)] = x->exec.arena = workspace ? workspace + own_bytes(f) : NULL;
    for (int64_t i = 0; i < p->n_placings; i++) {
        const placing *at = &p->placings[i];
        x->exec.data[at->tensor] =
            at->bound >= 0 ? m->bound[at->bound] : base[at->region] + at->offset;
    }
    x->exec.run = m->run;
    weft_status status =
        f->all.backend->calls ? start_on_device(f, half, m, x) : run_here(f, p, &x->exec);
    frame_give_back(f, x);
    if (status == WEFT_EINPUT) note_bad(f, status, weft_error_message());
    return status;
}

weft_status weft_function_check(weft_function *f) {
    int64_t node, place;
    pthread_mutex_lock(&f->lock);
    frame *frames = f->frames; /* the list grows at its head */
    pthread_mutex_unlock(&f->lock);
    for (frame *x = f->all.backend->calls ? frames : NULL; x; x = x->next) {
        /* The message cannot name the value: the memory it was read from is the caller's again. */
        char text[256];
        if (!f->all.backend->calls->fault(x->exec.state, &node, &place)) continue;
        bool known = node < f->all.n_nodes;
        snprintf(text, sizeof text, "%s: a value at place %lld of its input cannot be used",
                 known ? weft_graph_node(f->all.g, node)->op->name : "?", (long long)place);
        note_bad(f, WEFT_EINPUT, text);
    }
    pthread_mutex_lock(&f->lock);
    weft_status bad = f->bad;
    f->bad = WEFT_OK;
    if (bad != WEFT_OK) weft_fail(bad, "%s", f->message);
    pthread_mutex_unlock(&f->lock);
    return bad;
}

/* Of the memory at[0 .. n_bound - 1], what is saved, and the workspace. */
static weft_status run_once(weft_function *f, void *const *at, const int64_t *bytes) {
    for (int i = 0; i < f->n_bound + 2; i++)
        if (bytes[i] && !at[i])
            return weft_fail(WEFT_ENOMEM, "%s: no memory to try a block once",
                             f->all.backend->name);
    weft_call_memory m = {.bound = at, .saved = at[f->n_bound], .workspace = at[f->n_bound + 1]};
    WEFT_TRY(weft_function_call(f, WEFT_HALF_FORWARD, &m));
    WEFT_TRY(weft_function_call(f, WEFT_HALF_BACKWARD, &m));
    WEFT_TRY(f->all.backend->calls->settle());
    (void)weft_function_check(f);
    return WEFT_OK;
}

weft_status weft_function_prepare(weft_function *f) {
    if (!f->all.backend->calls) return WEFT_OK;
    int n = f->n_bound + 2;
    WEFT_ROOM(int64_t, bytes, n, "function: no memory");
    WEFT_ROOM(void *, at, n, "function: no memory");
    int64_t forward = weft_function_workspace_bytes(f, WEFT_HALF_FORWARD);
    int64_t backward = weft_function_workspace_bytes(f, WEFT_HALF_BACKWARD);
    for (int i = 0; i < f->n_bound; i++)
        bytes[i] = f->bound[i] ? weft_tensor_bytes(f->bound[i]) : 0;
    bytes[n - 2] = weft_function_saved_bytes(f);
    bytes[n - 1] = forward > backward ? forward : backward;
    for (int i = 0; i < n; i++)
        if (bytes[i]) at[i] = f->all.backend->alloc(bytes[i]);
    weft_status status = run_once(f, at, bytes);
    for (int i = 0; i < n; i++)
        if (at[i]) f->all.backend->release(at[i], bytes[i]);
    return status;
}
