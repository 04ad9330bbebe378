/* Walking a planned graph. Everything is looked up when the executor is made (addresses, kernels,
 * workspaces), so that a run allocates nothing and only calls kernels. */
#include "core/exec.h"

#include "base/clock.h"
#include "core/exec_internal.h"
#include "core/graph_internal.h"
#include "core/program.h"

weft_status weft_exec_find_kernels(const weft_graph *g, const weft_backend *backend,
                                   const weft_kernel **kernels) {
    for (int64_t i = 0; i < weft_graph_node_count(g); i++) {
        const weft_node *n = weft_graph_node(g, i);
        kernels[i] = backend->kernel(n);
        if (!kernels[i])
            return weft_fail(WEFT_EMISSING, "exec: the %s backend has no kernel for %s of %s",
                             backend->name, n->op->name,
                             weft_tensor_describe(n->n_in && n->in[0] ? n->in[0] : n->out[0]));
    }
    return WEFT_OK;
}

static weft_status plan_memory(weft_exec *x, weft_graph *g, const weft_exec_options *options) {
    WEFT_ROOM(bool, bound, x->n_tensors + 1, "exec: no memory");
    for (const weft_binding *b = options->bindings; b && b->tensor; b++) {
        const char *name = b->tensor->name ? b->tensor->name : "a tensor";
        if (b->tensor->id >= x->n_tensors || weft_graph_tensor_at(g, b->tensor->id) != b->tensor)
            return WEFT_BAD_INPUT("exec: '%s' is bound, but it is not of this graph", name);
        if (b->tensor->view_of || (uintptr_t)b->data % WEFT_ARENA_ALIGN != 0)
            return WEFT_BAD_INPUT("exec: memory bound to '%s' must start at a multiple of %d", name,
                                  WEFT_ARENA_ALIGN);
        bound[b->tensor->id] = true;
    }
    weft_program_options program = {.complete = true, .bound = bound, .plan = options->plan};
    if (!x->plan)
        return weft_program_make(g, x->backend, weft_pool_size(x->pool), &program, &x->plan);
    /* A plan that was made before must fit: what it has no place for is bound, and only that. */
    if (x->plan->n_nodes != x->n_nodes || x->plan->n_tensors != x->n_tensors)
        return weft_fail(WEFT_EBUG, "exec: the plan is of another graph");
    for (int64_t i = 0; i < x->n_tensors; i++) {
        const weft_tensor *t = weft_graph_tensor_at(x->g, i);
        if (t->role == WEFT_ROLE_TEMP || t->view_of) continue;
        if (bound[i] != (x->plan->offset[i] < 0))
            return weft_fail(WEFT_EBUG, "exec: '%s' is %s, but the plan has %s place for it",
                             t->name, bound[i] ? "bound" : "not bound", bound[i] ? "a" : "no");
    }
    return WEFT_OK;
}

weft_status weft_exec_create(weft_graph *g, const weft_backend *backend, weft_pool *pool,
                             const weft_exec_options *options, weft_exec **out) {
    static const weft_exec_options defaults;
    *out = NULL;
    if (!options) options = &defaults;
    WEFT_AUTO(weft_exec_destroy_at) weft_exec *x = calloc(1, sizeof *x);
    if (!x) {
        weft_plan_destroy(options->planned);
        return weft_no_memory("exec");
    }
    x->plan = options->planned;
    WEFT_TRY(weft_graph_status(g));
    *x = (weft_exec){.g = g, .backend = backend, .pool = pool, .plan = x->plan};
    x->poison = options->poison;
    x->n_nodes = weft_graph_node_count(g);
    x->n_tensors = weft_graph_tensor_count(g);
    WEFT_ROOM_AT(x->data, x->n_tensors + 1, "exec: no memory");
    WEFT_ROOM_AT(x->kernels, x->n_nodes + 1, "exec: no memory");
    WEFT_TRY(weft_exec_find_kernels(g, backend, x->kernels));
    WEFT_TRY(plan_memory(x, g, options));
    int64_t bytes = x->plan->arena_bytes;
    x->arena = bytes ? x->backend->alloc(bytes) : NULL;
    if (bytes && !x->arena)
        return weft_fail(WEFT_ENOMEM, "exec: the machine would not give %.2f GiB for the arena",
                         (double)bytes / (1024.0 * 1024.0 * 1024.0));
    for (const weft_binding *b = options->bindings; b && b->tensor; b++)
        x->data[b->tensor->id] = b->data;
    for (int64_t i = 0; i < x->n_tensors; i++) {
        weft_tensor *root = weft_tensor_root(weft_graph_tensor_at(x->g, i));
        if (x->plan->offset[i] >= 0)
            x->data[i] = x->arena + x->plan->offset[i];
        else
            x->data[i] = x->data[root->id];
    }
    x->profile = weft_profile_create(g);
    if (backend->open) WEFT_TRY(backend->open(x, &x->state));
    return weft_hand(&x, out);
}

void weft_exec_watch(weft_exec *x, void (*after)(void *context, const weft_node *n),
                     void *context) {
    x->after = after;
    x->after_context = context;
}

weft_status weft_exec_cut(weft_exec *x, const int64_t *parts, int n) {
    free(x->parts);
    WEFT_ROOM_AT(x->parts, n, "exec: no memory");
    memcpy(x->parts, parts, (size_t)n * sizeof *x->parts);
    x->n_parts = n;
    return WEFT_OK;
}

int weft_exec_parts(const weft_exec *x, const int64_t **parts) {
    *parts = x->parts ? x->parts : &x->n_nodes;
    return x->parts ? x->n_parts : 1;
}

void weft_exec_made(weft_exec *x, int64_t first, int64_t last) {
    for (int64_t i = first; x->after && i < last; i++)
        x->after(x->after_context, weft_graph_node(x->g, i));
}

void weft_exec_destroy(weft_exec *x) {
    if (!x) return;
    if (x->state) x->backend->close(x->state);
    weft_profile_destroy(x->profile);
    if (x->arena) x->backend->release(x->arena, x->plan->arena_bytes);
    weft_plan_destroy(x->plan);
    WEFT_FREE(x->data, x->kernels, x->parts, x);
}

/* NaN, of every type: all bits are set. */
static weft_status poison(const weft_exec *x, void *to, int64_t bytes) {
    if (x->backend->fill) return x->backend->fill(to, 0xff, bytes);
    memset(to, 0xff, (size_t)bytes);
    return WEFT_OK;
}

static weft_status run_node(weft_exec *x, int64_t i) {
    const weft_node *n = weft_graph_node(x->g, i);
    WEFT_TRY(x->kernels[i]->run(x, n));
    weft_beat();
    if (!x->backend->run) weft_exec_made(x, i, i + 1);
    return WEFT_OK;
}

weft_status weft_exec_walk_part(weft_exec *x, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++)
        WEFT_TRY(run_node(x, i));
    return WEFT_OK;
}

weft_status weft_exec_walk_timed(weft_exec *x, int64_t first, int64_t last) {
    double start = weft_clock();
    for (int64_t i = first; i < last; i++) {
        WEFT_TRY(run_node(x, i));
        double end = weft_clock();
        weft_profile_add(x->profile, i, end - start);
        start = end;
    }
    if (last == x->n_nodes) weft_profile_end_run(x->profile);
    return WEFT_OK;
}

void weft_exec_timed(weft_exec *x, const double *seconds) {
    for (int64_t i = 0; i < x->n_nodes; i++)
        weft_profile_add(x->profile, i, seconds[i]);
    weft_profile_end_run(x->profile);
}

weft_status weft_exec_walk(weft_exec *x, void (*mark)(weft_exec *x, int64_t node)) {
    if (!x->profile) return weft_exec_walk_part(x, 0, x->n_nodes);
    if (!mark) return weft_exec_walk_timed(x, 0, x->n_nodes);
    mark(x, -1);
    for (int64_t i = 0; i < x->n_nodes; i++) {
        WEFT_TRY(run_node(x, i));
        mark(x, i);
    }
    return WEFT_OK;
}

weft_status weft_exec_run(weft_exec *x, const weft_run *run) {
    x->run = run ? *run : (weft_run){0};
    weft_beat();
    /* So that a kernel which leaves an element unwritten, or reads what is no longer alive, shows. */
    if (x->poison) {
        for (int64_t i = 0; i < x->n_tensors; i++) {
            const weft_tensor *t = weft_graph_tensor_at(x->g, i);
            if (t->role == WEFT_ROLE_TEMP && !t->view_of && x->plan->offset[i] >= 0)
                WEFT_TRY(poison(x, x->data[i], weft_tensor_bytes(t)));
        }
        for (int64_t i = 0; i < x->n_nodes; i++)
            if (x->plan->work_offset[i] >= 0)
                WEFT_TRY(poison(x, x->arena + x->plan->work_offset[i], x->plan->work_bytes[i]));
    }
    return x->backend->run ? x->backend->run(x) : weft_exec_walk(x, NULL);
}

static weft_status check_access(const weft_exec *x, const weft_tensor *t, const char *what) {
    if (!t || t->id >= x->n_tensors || weft_graph_tensor_at(x->g, t->id) != t || !x->data[t->id])
        return WEFT_BAD_INPUT("%s: the tensor is not of this graph, or nothing made it", what);
    const weft_tensor *root = t->view_of ? t->view_of : t;
    if (root->role == WEFT_ROLE_TEMP && !root->keep)
        return WEFT_BAD_INPUT("%s: %s is not kept; mark it with weft_keep before planning", what,
                              weft_tensor_describe(t));
    return WEFT_OK;
}

weft_status weft_exec_write(weft_exec *x, const weft_tensor *t, const void *from) {
    WEFT_TRY(check_access(x, t, "write"));
    return x->backend->upload(x->data[t->id], from, weft_tensor_bytes(t));
}

weft_status weft_exec_read(weft_exec *x, const weft_tensor *t, void *to) {
    WEFT_TRY(check_access(x, t, "read"));
    return x->backend->download(to, x->data[t->id], weft_tensor_bytes(t));
}

WEFT_GETTER(const weft_plan *, weft_exec_plan, weft_exec, plan)
WEFT_GETTER(weft_pool *, weft_exec_pool, weft_exec, pool)
WEFT_GETTER(const weft_graph *, weft_exec_graph, weft_exec, g)
WEFT_GETTER(void *, weft_exec_state, weft_exec, state)
WEFT_GETTER(bool, weft_exec_profiled, weft_exec, profile != NULL)
WEFT_GETTER(bool, weft_exec_is_watched, weft_exec, after != NULL)

void *weft_data(const weft_exec *x, const weft_tensor *t) {
    return t ? x->data[t->id] : NULL;
}

void *weft_workspace(const weft_exec *x, const weft_node *n) {
    int64_t offset = x->plan->work_offset[n->index];
    return offset < 0 ? NULL : x->arena + offset;
}

const weft_run *weft_exec_current_run(const weft_exec *x) {
    return &x->run;
}

const weft_kernel *weft_exec_kernel(const weft_exec *x, int64_t node) {
    return x->kernels[node];
}
