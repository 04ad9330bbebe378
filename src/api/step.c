/* The optimizer's step as a function over foreign memory: one norm over all gradients, and for each
 * group what this step shall do and doing it (ops/optimizer.h). Tensors are flat: whether one decays is
 * said by its number of dimensions, which is what the operation looks at, and matrices are told to Muon's.
 *
 * A call's addresses are bound in one list of places: of each group its rate, state, report and cut, then of each
 * tensor its parameter, gradient, moments, v_max and copy. */
#include "api/api.h"
#include "core/program.h"

#include <weft/step.h>

#include <limits.h>

_Static_assert((int)WEFT_STEP_STATE == (int)WEFT_ADAM_STATE, "the header tells a state's length");
_Static_assert((int)WEFT_STEP_REPORT == (int)WEFT_ADAM_CONTROL, "and a report's");

enum { GROUP_BOUND = 4, SLOT_BOUND = 6, GROUPS_MAX = 4096 };

struct weft_step {
    weft_engine *engine;
    weft_graph *graph;
    weft_function *function;
    const weft_tensor **bound; /* [places] NULL: that one is not there */
    void **addresses;          /* [places] of the call that runs */
    int n_groups, n_tensors;
    pthread_mutex_t lock; /* of the addresses */
};

/* What opening is given. */
typedef struct {
    weft_step *step;
    weft_dtype dtype;
    const weft_step_group *groups;
    const weft_step_tensor *tensors;
} wish;

static const weft_tensor **slot_bound(const weft_step *s, int tensor) {
    return s->bound + (int64_t)GROUP_BOUND * s->n_groups + (int64_t)SLOT_BOUND * tensor;
}

static weft_tensor *slot_tensor(const wish *w, int i, weft_role role, const char *kind,
                                weft_dtype dtype) {
    char name[64];
    const weft_step_tensor *t = &w->tensors[i];
    int64_t shape[2] = {t->decay ? 1 : t->count, t->count};
    snprintf(name, sizeof name, "%s.%d", kind, i);
    return weft_graph_tensor(w->step->graph, role, name, dtype, t->decay ? 2 : 1, shape);
}

/* What a group's step decides, and its update: `chosen` has room for its slots. */
static void describe_group(const wish *w, int group, weft_tensor *norm, const weft_adam_slot *slots,
                           weft_adam_slot *chosen) {
    weft_graph *g = w->step->graph;
    const weft_step_group *o = &w->groups[group];
    weft_adam_options options = {.beta1 = o->beta1, .beta2 = o->beta2, .eps = o->eps};
    options.weight_decay = o->weight_decay;
    options.clip = o->clip;
    options.spike_threshold = o->spike_threshold;
    options.theta = o->theta;
    options.reset_interval = o->reset_interval;
    options.warmup_steps = o->warmup_steps;
    char name[32];
    snprintf(name, sizeof name, "lr.%d", group);
    weft_tensor *lr = weft_graph_tensor(g, WEFT_ROLE_INPUT, name, w->dtype, 0, NULL);
    snprintf(name, sizeof name, "state.%d", group);
    weft_tensor *state = weft_new_tensor(g, WEFT_ROLE_STATE, name, w->dtype, WEFT_ADAM_STATE);
    weft_tensor *control = weft_adam_control(g, norm, lr, state, &options);
    int n = 0, tensors = w->step->n_tensors;
    for (int i = 0; i < tensors; i++)
        if (w->tensors[i].group == group) chosen[n++] = slots[i];
    weft_muon_options muon = weft_muon_defaults(o->momentum, w->step->engine->backend->remote);
    weft_tensor *cut = weft_adamw(g, control, chosen, n);
    weft_muon(g, control, chosen, n, &muon);
    const weft_tensor *all[GROUP_BOUND] = {lr, state, control, cut};
    memcpy(w->step->bound + (int64_t)GROUP_BOUND * group, all, sizeof all);
}

static weft_status build(const wish *w) {
    weft_step *s = w->step;
    size_t n = (size_t)s->n_tensors;
    WEFT_ROOM(weft_adam_slot, slots, 2 * n, "weft_step_open: no memory");
    WEFT_ROOM(weft_tensor *, grads, n, "weft_step_open: no memory");
    for (int i = 0; i < s->n_tensors; i++) {
        const weft_step_tensor *t = &w->tensors[i];
        const weft_tensor **bound = slot_bound(w->step, i);
        /* The tensor's matrices; AdamW's have none. */
        weft_muon_parts parts = {0};
        int64_t first = t->columns * t->first_rows, each = t->columns * t->rows;
        if (first > 0) parts.part[parts.n++] = (weft_matrices){0, 1, t->first_rows, t->columns};
        if (each > 0 || (t->columns && first == 0)) /* none of no rows, which are refused */
            parts.part[parts.n++] =
                (weft_matrices){first, each ? (t->count - first) / each : 0, t->rows, t->columns};
        weft_adam_slot slot = {
            .param = slot_tensor(w, i, WEFT_ROLE_PARAM, "param", w->dtype),
            .grad = slot_tensor(w, i, WEFT_ROLE_INPUT, "grad", t->bf16_grad ? WEFT_BF16 : w->dtype),
            .m = slot_tensor(w, i, WEFT_ROLE_STATE, "m", w->dtype),
            .matrices = parts,
        };
        if (!t->columns) slot.v = slot_tensor(w, i, WEFT_ROLE_STATE, "v", w->dtype);
        if (!t->columns && w->groups[t->group].amsgrad)
            slot.v_max = slot_tensor(w, i, WEFT_ROLE_STATE, "v_max", w->dtype);
        if (t->copy) slot.copy = slot_tensor(w, i, WEFT_ROLE_STATE, "copy", WEFT_BF16);
        if (t->copy == WEFT_STEP_COPY_COUNTS) slot.given = slot.copy;
        const weft_tensor *all[SLOT_BOUND] = {slot.param, slot.grad,  slot.m,
                                              slot.v,     slot.v_max, slot.copy};
        memcpy(bound, all, sizeof all);
        slots[i] = slot;
        grads[i] = slot.grad;
    }
    WEFT_TRY(weft_graph_status(s->graph));
    weft_tensor *norm = weft_global_norm(s->graph, grads, s->n_tensors);
    for (int group = 0; group < s->n_groups; group++) {
        bool any = false;
        for (int i = 0; i < s->n_tensors; i++)
            any |= w->tensors[i].group == group;
        if (any) describe_group(w, group, norm, slots, slots + n);
    }
    WEFT_TRY(weft_graph_status(s->graph));
    return weft_program_differentiate(s->graph, &(weft_program_options){.n_losses = 0});
}

WEFT_ENDED_BY(weft_step_close, weft_step)

weft_status weft_step_open(weft_engine *engine, const char *type, const weft_step_group *groups,
                           int n_groups, const weft_step_tensor *tensors, int n_tensors,
                           weft_step **out) {
    API_OPEN(out, engine, type, groups, tensors);
    wish w = {.groups = groups, .tensors = tensors};
    if (n_groups < 1 || n_groups > GROUPS_MAX || n_tensors < 1 || n_tensors > INT_MAX / 64)
        return API_REFUSE("%d tensors in %d groups; one is the least", n_tensors, n_groups);
    if (weft_dtype_parse(type, &w.dtype) != WEFT_OK ||
        (w.dtype != WEFT_F32 && (w.dtype != WEFT_F64 || engine->backend->remote)))
        return API_REFUSE("type '%s' is neither f32 nor, on the CPU, f64", type);
    for (int i = 0; i < n_groups; i++)
        if (groups[i].size != sizeof *groups)
            return API_REFUSE("size of group %d is %zu, but it must be sizeof(weft_step_group)", i,
                              groups[i].size);
    for (int i = 0; i < n_tensors; i++) {
        const weft_step_tensor *t = &tensors[i];
        if (t->size != sizeof *t)
            return API_REFUSE("size of tensor %d is %zu, but it must be sizeof(weft_step_tensor)",
                              i, t->size);
        if (t->count < 1 || t->group < 0 || t->group >= n_groups)
            return API_REFUSE("tensor %d has %lld numbers and group %d; there are "
                              "%d groups, and one number is the least",
                              i, (long long)t->count, t->group, n_groups);
        if (t->columns < 0 || t->columns > INT32_MAX || t->rows < 0 || t->rows > INT32_MAX ||
            t->first_rows < 0 || t->first_rows > INT32_MAX)
            return API_REFUSE("tensor %d has matrices of %lld columns and of %lld "
                              "and %lld rows; 0 to 2^31 - 1 can be",
                              i, (long long)t->columns, (long long)t->first_rows,
                              (long long)t->rows);
    }
    WEFT_NEW(weft_step, s, weft_step_close, "%s: no memory", __func__);
    *s = (weft_step){.engine = engine, .n_groups = n_groups, .n_tensors = n_tensors};
    pthread_mutex_init(&s->lock, NULL);
    int places = GROUP_BOUND * n_groups + SLOT_BOUND * n_tensors;
    WEFT_ROOM_AT(s->bound, places, "%s: no memory", __func__);
    WEFT_ROOM_AT(s->addresses, places, "%s: no memory", __func__);
    w.step = s;
    WEFT_TRY(weft_graph_create(&s->graph));
    WEFT_TRY(build(&w));
    WEFT_TRY(weft_function_create(s->graph, engine->backend, engine->pool, s->bound, places,
                                  &s->function));
    return weft_hand(&s, out);
}

void weft_step_close(weft_step *step) {
    if (!step) return;
    weft_function_destroy(step->function);
    weft_graph_destroy(step->graph);
    pthread_mutex_destroy(&step->lock);
    WEFT_FREE(step->addresses, (void *)step->bound, step);
}

int64_t weft_step_bytes(const weft_step *step) {
    return step ? weft_function_workspace_bytes(step->function, WEFT_HALF_FORWARD) : 0;
}

/* The addresses of a list of lists, place by place; `width` of them belong to each of n entries. */
static void take_addresses(const weft_tensor *const *bound, void *const *const *lists, int width,
                           int n, void **out) {
    for (int i = 0; i < n; i++)
        for (int k = 0; k < width; k++) {
            int64_t at = (int64_t)i * width + k;
            out[at] = bound[at] && lists[k] ? lists[k][i] : NULL;
        }
}

weft_status weft_step_run(weft_step *step, const weft_step_call *call) {
    API_NEED(step, call);
    if (call->size != sizeof *call)
        return API_REFUSE("size is %zu, but it must be sizeof(weft_step_call)", call->size);
    void *const *const groups[GROUP_BOUND] = {call->rates, call->states, call->reports, call->cuts};
    void *const *const slots[SLOT_BOUND] = {call->params, call->grads, call->m,
                                            call->v,      call->v_max, call->copies};
    WEFT_LOCK(&step->lock);
    take_addresses(step->bound, groups, GROUP_BOUND, step->n_groups, step->addresses);
    take_addresses(slot_bound(step, 0), slots, SLOT_BOUND, step->n_tensors,
                   step->addresses + GROUP_BOUND * step->n_groups);
    weft_call_memory memory = {
        .bound = step->addresses, .workspace = call->workspace, .stream = call->stream};
    return weft_api_call(step->engine, step->function, WEFT_HALF_FORWARD, &memory);
}
