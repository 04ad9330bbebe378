/* Blocks: a description becomes a function and its gradient (core/function.h), and an engine keeps
 * those it has.
 *
 * A call's memory is bound in one list: inputs, weights, outputs, then the gradients of outputs, of
 * inputs and of weights. What a graph hands out must have memory of its own that its pass alone
 * writes, so an output that is an input, and a gradient that is another's or the forward pass's, are
 * copied. */
#include "api/api.h"
#include "core/graph_internal.h"
#include "core/program.h"
#include "ops/arith.h"

struct weft_block {
    weft_engine *engine;
    weft_graph *graph;
    weft_api_lists *lists;
    weft_function *function;
    int n_bound;
    char *key; /* NULL: it is not kept */
    int purpose;
    int opened; /* how often, and not closed */
    weft_block *next;
};

static weft_api_list *list_of(const weft_block *b, weft_block_list which) {
    return &b->lists->list[which];
}

static bool is_in(const weft_tensor *root, weft_tensor *const *list, int n) {
    for (int i = 0; i < n; i++)
        if (weft_tensor_root(list[i]) == root) return true;
    return false;
}

/* The gradients of inputs and weights, each a tensor that the backward pass makes for it alone; zeros
 * where nothing depends on it. */
static weft_status own_gradients(weft_block *b) {
    weft_tensor *taken[2 * WEFT_API_TENSORS_MAX];
    int n = 0;
    if (b->graph->n_forward < 0) return WEFT_OK;
    for (int which = WEFT_BLOCK_INPUTS; which <= WEFT_BLOCK_WEIGHTS; which++) {
        const weft_api_list *list = &b->lists->list[which];
        for (int i = 0; i < list->n; i++) {
            weft_api_entry *e = &list->entries[i];
            if (!e->wants_grad) continue;
            weft_tensor *grad = e->tensor->grad, *root = grad ? weft_tensor_root(grad) : NULL;
            bool made_here = root && root->role == WEFT_ROLE_TEMP &&
                             root->producer->index >= b->graph->n_forward;
            if (!grad)
                grad = weft_fill(b->graph, e->tensor->dtype, e->tensor->ndim, e->tensor->shape, 0);
            else if (!made_here || is_in(root, taken, n))
                grad = weft_scale(b->graph, grad, 1);
            if (!grad) return weft_graph_status(b->graph);
            e->grad = taken[n++] = weft_keep(grad);
        }
    }
    return weft_graph_status(b->graph);
}

static const struct {
    weft_block_list list;
    bool gradients;
} bound_order[] = {{WEFT_BLOCK_INPUTS, false},  {WEFT_BLOCK_WEIGHTS, false},
                   {WEFT_BLOCK_OUTPUTS, false}, {WEFT_BLOCK_OUTPUTS, true},
                   {WEFT_BLOCK_INPUTS, true},   {WEFT_BLOCK_WEIGHTS, true}};

enum { ORDERS = 6, BOUND_MAX = ORDERS * WEFT_API_TENSORS_MAX };

/* The bound tensors, or the addresses that a call gives them, in the same order; how many. */
static int list_bound(const weft_block *b, const weft_tensor **tensors,
                      void *const *const given[ORDERS], void **addresses) {
    int n = 0;
    for (int i = 0; i < ORDERS; i++) {
        const weft_api_list *list = list_of(b, bound_order[i].list);
        for (int k = 0; k < list->n; k++) {
            const weft_api_entry *e = &list->entries[k];
            weft_tensor *t = bound_order[i].gradients ? e->grad : e->tensor;
            if (t && tensors) tensors[n] = weft_tensor_root(t);
            if (t && given) addresses[n] = given[i] ? given[i][k] : NULL;
            n += t != NULL;
        }
    }
    return n;
}

static void destroy_block(weft_block *b) {
    if (!b) return;
    weft_function_destroy(b->function);
    for (int which = 0; b->lists && which < 3; which++) {
        weft_api_list *list = list_of(b, which);
        for (int i = 0; i < list->n; i++)
            free(list->entries[i].name);
        free(list->entries);
    }
    free(b->lists);
    weft_graph_destroy(b->graph);
    WEFT_FREE(b->key, b);
}

void weft_api_close_blocks(weft_engine *engine) {
    while (engine->blocks) {
        weft_block *b = engine->blocks;
        engine->blocks = b->next;
        destroy_block(b);
    }
}

/* The kept block of that key, moved to the head of the list; NULL: there is none. */
static weft_block *find_block(weft_engine *engine, const char *key, int purpose) {
    WEFT_LOCK(&engine->lock);
    weft_block **at = &engine->blocks;
    while (*at && ((*at)->purpose != purpose || strcmp((*at)->key, key) != 0))
        at = &(*at)->next;
    weft_block *b = *at;
    if (b) {
        *at = b->next;
        b->next = engine->blocks;
        engine->blocks = b;
        b->opened++;
    }
    return b;
}

WEFT_ENDED_BY(destroy_block, weft_block)

static weft_status new_block(weft_engine *engine, const char *key, weft_describe describe,
                             void *context, int purpose, weft_block **out) {
    WEFT_NEW(weft_block, b, destroy_block, "block: no memory");
    *b = (weft_block){.engine = engine, .purpose = purpose, .opened = 1};
    b->key = key ? strdup(key) : NULL;
    if (key && !b->key) return weft_no_memory("block");
    WEFT_TRY(weft_graph_create(&b->graph));
    WEFT_ROOM_AT(b->lists, 1, "block: no memory");
    b->lists->gradient = (b->purpose & WEFT_BLOCK_GRADIENT) != 0;
    b->graph->constant = !b->lists->gradient;
    b->graph->owner = b->lists;
    weft_status status = describe(context, b->graph);
    WEFT_TRY(weft_graph_status(b->graph));
    WEFT_TRY(status);
    /* Each output a tensor that the graph makes, for itself alone. */
    weft_api_list *outputs = list_of(b, WEFT_BLOCK_OUTPUTS);
    weft_tensor *taken[WEFT_API_TENSORS_MAX];
    if (outputs->n == 0) return WEFT_BAD_INPUT("block: it has no output; see weft_graph_output");
    for (int i = 0; i < outputs->n; i++) {
        weft_tensor *t = outputs->entries[i].tensor, *root = weft_tensor_root(t);
        if (root->role != WEFT_ROLE_TEMP || is_in(root, taken, i)) t = weft_scale(b->graph, t, 1);
        if (!t) return weft_graph_status(b->graph);
        outputs->entries[i].tensor = taken[i] = weft_keep(t);
    }
    /* The gradient of Σ ⟨output, its gradient⟩. */
    weft_tensor *losses[WEFT_API_TENSORS_MAX], *dlosses[WEFT_API_TENSORS_MAX];
    int n = 0;
    for (int i = 0; i < outputs->n && b->lists->gradient; i++) {
        weft_api_entry *e = &outputs->entries[i];
        if (!e->tensor->needs_grad || e->tensor->dtype == WEFT_I32) continue;
        char name[256];
        const weft_tensor *t = e->tensor;
        snprintf(name, sizeof name, "gradient of %s", e->name);
        e->grad = weft_graph_tensor(b->graph, WEFT_ROLE_INPUT, name, t->dtype, t->ndim, t->shape);
        losses[n] = e->tensor;
        dlosses[n++] = e->grad;
    }
    WEFT_TRY(weft_graph_status(b->graph));
    WEFT_TRY(weft_program_differentiate(
        b->graph, &(weft_program_options){.n_losses = n, .losses = losses, .dlosses = dlosses}));
    WEFT_TRY(own_gradients(b));
    const weft_tensor *bound[BOUND_MAX];
    b->n_bound = list_bound(b, bound, NULL, NULL);
    WEFT_TRY(weft_function_create(b->graph, b->engine->backend, b->engine->pool, bound, b->n_bound,
                                  &b->function));
    WEFT_TRY(weft_function_prepare(b->function));
    return weft_hand(&b, out);
}

weft_status weft_block_open(weft_engine *engine, const char *key, weft_describe describe,
                            void *context, int purpose, weft_block **out) {
    API_OPEN(out, engine, describe);
    if (!key) return new_block(engine, NULL, describe, context, purpose, out);
    *out = find_block(engine, key, purpose);
    if (*out) return WEFT_OK;
    WEFT_LOCK(&engine->building);
    *out = find_block(engine, key, purpose);
    if (*out) return WEFT_OK;
    WEFT_TRY(new_block(engine, key, describe, context, purpose, out));
    pthread_mutex_lock(&engine->lock);
    (*out)->next = engine->blocks;
    engine->blocks = *out;
    /* Where there are too many, the last of the list that nobody has open goes. */
    weft_block **oldest = NULL, *old = NULL;
    int n = 0;
    for (weft_block **at = &engine->blocks; *at; at = &(*at)->next, n++)
        if ((*at)->opened == 0) oldest = at;
    if (n > WEFT_BLOCKS_KEPT && oldest) {
        old = *oldest;
        *oldest = old->next;
    }
    pthread_mutex_unlock(&engine->lock);
    destroy_block(old);
    return WEFT_OK;
}

void weft_block_close(weft_block *block) {
    if (!block) return;
    if (!block->key) {
        destroy_block(block);
        return;
    }
    WEFT_LOCK(&block->engine->lock);
    block->opened--;
}

static bool is_list(weft_block_list which) {
    return (int)which >= 0 && which <= WEFT_BLOCK_OUTPUTS;
}

int weft_block_count(const weft_block *block, weft_block_list list) {
    return block && is_list(list) ? list_of(block, list)->n : 0;
}

weft_status weft_block_tensor(const weft_block *block, weft_block_list list, int i,
                              weft_block_info *out, size_t size) {
    API_NEED(block, out);
    if (!is_list(list) || i < 0 || i >= list_of(block, list)->n)
        return API_REFUSE("the block has no tensor %d in list %d", i, (int)list);
    const weft_api_entry *e = &list_of(block, list)->entries[i];
    const weft_tensor *t = e->tensor;
    int bound = i; /* its number in the list of bound tensors */
    for (int k = 0; k < (int)list; k++)
        bound += block->lists->list[k].n;
    weft_block_info info = {.name = e->name,
                            .type = weft_dtype_name(t->dtype),
                            .ndim = t->ndim,
                            .count = weft_tensor_count(t),
                            .bytes = weft_tensor_bytes(t),
                            .gradient = e->grad != NULL,
                            .read_back =
                                weft_function_uses(block->function, WEFT_HALF_BACKWARD, bound)};
    for (int d = 0; d < 4; d++)
        info.shape[d] = d < t->ndim ? t->shape[d] : 1;
    memcpy(out, &info, size < sizeof info ? size : sizeof info);
    return WEFT_OK;
}

int64_t weft_block_bytes(const weft_block *block, weft_block_memory what) {
    if (!block) return 0;
    if (what == WEFT_BYTES_SAVED) return weft_function_saved_bytes(block->function);
    return weft_function_workspace_bytes(
        block->function, what == WEFT_BYTES_FORWARD ? WEFT_HALF_FORWARD : WEFT_HALF_BACKWARD);
}

static weft_status call_block(weft_block *b, weft_half half, const weft_call *call) {
    void *bound[BOUND_MAX];
    void *const *const given[ORDERS] = {call->inputs,       call->weights,     call->outputs,
                                        call->grad_outputs, call->grad_inputs, call->grad_weights};
    list_bound(b, NULL, given, bound);
    weft_call_memory memory = {
        .bound = bound,
        .saved = call->saved,
        .workspace = call->workspace,
        .stream = call->stream,
        .run = {call->seed, call->iteration, call->sequence},
    };
    return weft_api_call(b->engine, b->function, half, &memory);
}

static weft_status check_call(const weft_call *call, const char *caller) {
    if (call->size == sizeof *call) return WEFT_OK;
    return WEFT_BAD_INPUT("%s: size is %zu, but it must be sizeof(weft_call)", caller, call->size);
}

weft_status weft_block_forward(weft_block *block, const weft_call *call) {
    API_NEED(block, call);
    WEFT_TRY(check_call(call, __func__));
    return call_block(block, WEFT_HALF_FORWARD, call);
}

weft_status weft_block_backward(weft_block *block, const weft_call *call) {
    API_NEED(block, call);
    WEFT_TRY(check_call(call, __func__));
    if (block->graph->n_forward < 0)
        return API_REFUSE(
            "the block was opened without WEFT_BLOCK_GRADIENT, or nothing in it has a gradient");
    return call_block(block, WEFT_HALF_BACKWARD, call);
}

weft_status weft_block_check(weft_block *block) {
    API_NEED(block);
    return weft_function_check(block->function);
}

/* Blocks that are parts of weft's own models. */

typedef struct {
    weft_config config;
    weft_build build;
    weft_part_form form;
} part_wish;

enum { KEY_ROOM = 8192 };

static const char *const part_names[] = {"attention", "ffn", "layer", NULL};

static weft_status describe_part(void *context, weft_graph *g) {
    const part_wish *w = context;
    weft_model_part part;
    weft_part_form form = w->form;
    form.gradient = ((const weft_api_lists *)g->owner)->gradient;
    WEFT_TRY(weft_model_build_part(&w->config, &w->build, &form, g, &part));
    bool ok = true;
    for (int i = 0; ok && i < part.n_inputs; i++)
        ok = weft_api_note(g, WEFT_BLOCK_INPUTS, part.inputs[i].tensor, part.inputs[i].name,
                           part.inputs[i].tensor->needs_grad);
    for (int64_t i = 0; ok && i < part.model.n_parameters; i++) {
        weft_tensor *t = part.model.parameters[i].tensor;
        ok = weft_api_note(g, WEFT_BLOCK_WEIGHTS, t,
                           strncmp(t->name, "h.0.", 4) == 0 ? t->name + 4 : t->name, t->needs_grad);
    }
    for (int i = 0; ok && i < part.n_outputs; i++)
        ok = weft_api_note(g, WEFT_BLOCK_OUTPUTS, part.outputs[i].tensor, part.outputs[i].name,
                           false);
    weft_status status = weft_graph_status(g);
    weft_model_part_free(&part);
    return status;
}

weft_status weft_block_open_part(weft_engine *engine, const char *part, const char *const *options,
                                 int64_t batch, int64_t time, int first, int purpose,
                                 weft_block **out) {
    API_OPEN(out, engine, part);
    char key[KEY_ROOM];
    bool is_folder;
    part_wish w = {.form = {.first = first != 0, .one_loss = (purpose & WEFT_BLOCK_ONE_LOSS) != 0}};
    if (batch <= 0 || time <= 0)
        return API_REFUSE("%lld sequences of %lld tokens; both start at 1", (long long)batch,
                          (long long)time);
    int kind = 0;
    while (part_names[kind] && strcmp(part, part_names[kind]) != 0)
        kind++;
    if (!part_names[kind])
        return WEFT_BAD_INPUT("part '%s': it must be attention, ffn or layer", part);
    w.form.kind = (weft_part_kind)kind;
    WEFT_TRY(weft_api_config(NULL, options, &w.config, &is_folder));
    w.build = (weft_build){.batch = batch, .time = time, .dtype = weft_config_dtype(&w.config)};
    w.build.train = (purpose & WEFT_BLOCK_TRAIN) != 0;
    w.build.recompute = (purpose & WEFT_BLOCK_RECOMPUTE) != 0;
    /* All that the part depends on, in words. */
    int used = snprintf(key, KEY_ROOM, "weft %s %lld %lld %d", part, (long long)batch,
                        (long long)time, w.form.first);
    for (; options && *options && used < KEY_ROOM; options++)
        used += snprintf(key + used, (size_t)(KEY_ROOM - used), "\n%s", *options);
    if (used >= KEY_ROOM)
        return WEFT_BAD_INPUT("weft_block_open_part: the options are longer than %d characters",
                              KEY_ROOM);
    return weft_block_open(engine, key, describe_part, &w, purpose, out);
}
