/* A case as a graph: what builders call (cases.h) and what the checks call (case_run.h).
 *
 * Every input keeps its values as doubles, rounded to what the tensor's type holds, so that a run
 * in another type can be given exactly the same numbers. */
#include "cases.h"

#include "case_run.h"
#include "cpu/backend.h"
#include "ops/fuse.h"
#include "support/two_nodes.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const case_family case_families[CASE_FAMILIES + 1] = {
#define CASE_ENTRY(name) {#name, cases_##name},
    CASE_FAMILY_LIST(CASE_ENTRY)
#undef CASE_ENTRY
};

enum { MOST_THREADS = 16 };
static weft_pool *pools[MOST_THREADS + 1];

/* Three threads lie on two nodes, so that bits are compared with those of shared tasks too. */
static weft_pool *find_pool(int threads) {
    weft_pool **pool = &pools[threads];
    weft_status status = WEFT_OK;
    if (!*pool)
        status = threads == 3 ? two_nodes_pool(threads, pool) : weft_pool_create(threads, pool);
    return status == WEFT_OK ? *pool : NULL;
}

void case_end(void) {
    for (int i = 0; i <= MOST_THREADS; i++) {
        if (pools[i]) weft_pool_destroy(pools[i]);
        pools[i] = NULL;
    }
}

__attribute__((format(printf, 2, 3))) static void set_error(test_case *c, const char *format, ...) {
    if (c->error[0]) return;
    va_list args;
    va_start(args, format);
    vsnprintf(c->error, sizeof c->error, format, args);
    va_end(args);
}

double case_round(weft_dtype dtype, double value) {
    if (dtype == WEFT_F64) return value;
    if (dtype == WEFT_BF16) return (double)weft_bf16_to_float(weft_float_to_bf16((float)value));
    return (double)(float)value;
}

/* What builders call. */

int64_t case_size(const test_case *c, const char *key) {
    if (!case_line_find(c->line, key)) set_error((test_case *)c, "the line has no size %s", key);
    return case_line_int(c->line, key, 1);
}

int64_t case_int(const test_case *c, const char *key, int64_t fallback) {
    return case_line_int(c->line, key, fallback);
}

double case_number(const test_case *c, const char *key, double fallback) {
    return case_line_number(c->line, key, fallback);
}

const char *case_word(const test_case *c, const char *key, const char *fallback) {
    const char *value = case_line_find(c->line, key);
    return value ? value : fallback;
}

bool case_is(const test_case *c, const char *key, const char *value, const char *fallback) {
    return !strcmp(case_word(c, key, fallback), value);
}

weft_graph *case_graph(test_case *c) {
    return c->graph;
}

weft_dtype case_dtype(const test_case *c) {
    return c->dtype;
}

weft_dtype case_stat_dtype(const test_case *c) {
    return c->dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32;
}

static case_slot *add_slot(test_case *c, case_slot *list, int *n, const char *name, bool diff,
                           weft_tensor *t) {
    if (*n == CASE_MOST || strlen(name) >= sizeof list->name) {
        set_error(c, "too many inputs or outputs, or too long a name: %s", name);
        return NULL;
    }
    case_slot *slot = &list[(*n)++];
    *slot = (case_slot){.tensor = t, .diff = diff};
    snprintf(slot->name, sizeof slot->name, "%s", name);
    return slot;
}

static case_slot *new_input(test_case *c, const char *name, bool diff, weft_dtype dtype, int ndim,
                            const int64_t *shape) {
    if (diff && ++c->diff_inputs != c->only_input && c->only_input) diff = false;
    weft_role role = diff && !c->forward_only ? WEFT_ROLE_PARAM : WEFT_ROLE_INPUT;
    weft_tensor *t = weft_graph_tensor(c->graph, role, name, dtype, ndim, shape);
    if (!t) return NULL;
    case_slot *slot = add_slot(c, c->input, &c->n_inputs, name, diff, t);
    if (slot) slot->values = calloc((size_t)weft_tensor_count(t), sizeof *slot->values);
    return slot;
}

static void draw_values(test_case *c, case_slot *slot, double scale) {
    int64_t n = weft_tensor_count(slot->tensor);
    case_draw(c->line->hash ^ c->salt, slot->name, scale, n, slot->values);
    for (int64_t i = 0; i < n; i++)
        slot->values[i] = case_round(slot->tensor->dtype, slot->values[i]);
}

static weft_tensor *real_input(test_case *c, const char *name, int diff, double scale,
                               weft_dtype dtype, int ndim, const int64_t *shape) {
    case_slot *slot = new_input(c, name, diff == CASE_DIFF, dtype, ndim, shape);
    if (!slot) return NULL;
    draw_values(c, slot, scale);
    return slot->tensor;
}

weft_tensor *case_input(test_case *c, const char *name, int diff, double scale, int ndim,
                        const int64_t *shape) {
    return real_input(c, name, diff, scale, c->dtype, ndim, shape);
}

weft_tensor *case_stat(test_case *c, const char *name, int diff, double scale, int ndim,
                       const int64_t *shape) {
    return real_input(c, name, diff, scale, case_stat_dtype(c), ndim, shape);
}

weft_tensor *case_ids(test_case *c, const char *name, int64_t limit, int64_t cut, int ndim,
                      const int64_t *shape) {
    case_slot *slot = new_input(c, name, false, WEFT_I32, ndim, shape);
    if (!slot) return NULL;
    int64_t n = weft_tensor_count(slot->tensor);
    for (int64_t i = 0; i < n; i++) {
        double id = floor(case_unit(c->line->hash ^ c->salt, name, i) * (double)limit);
        slot->values[i] = id >= (double)cut ? -1 : id;
    }
    return slot->tensor;
}

weft_tensor *case_constant(test_case *c, const char *name, int32_t value, int ndim,
                           const int64_t *shape) {
    case_slot *slot = new_input(c, name, false, WEFT_I32, ndim, shape);
    if (!slot) return NULL;
    int64_t n = weft_tensor_count(slot->tensor);
    for (int64_t i = 0; i < n; i++)
        slot->values[i] = value;
    return slot->tensor;
}

void case_output(test_case *c, const char *name, int diff, weft_tensor *t) {
    bool differentiable = diff == CASE_DIFF;
    if (differentiable && ++c->diff_outputs != c->only_output && c->only_output)
        differentiable = false;
    if (t)
        add_slot(c, c->output, &c->n_outputs, name, differentiable, weft_keep(t));
    else if (weft_graph_status(c->graph) == WEFT_OK)
        set_error(c, "the output %s is NULL, and the graph has no error", name);
}

void case_scatter(test_case *c, const char *name, const weft_tensor *index, const weft_tensor *w,
                  int64_t columns) {
    if (!index || !w) return;
    case_slot *slot = add_slot(c, c->output, &c->n_outputs, name, false, (weft_tensor *)w);
    weft_keep((weft_tensor *)w);
    weft_keep((weft_tensor *)index);
    if (slot) {
        slot->index = index;
        slot->columns = columns;
    }
}

void case_loosen(test_case *c, double factor) {
    c->loosen = factor;
}

/* What the checks call. */

/* An input d_y for each differentiable output, and the gradient's nodes. */
static weft_status append_gradient(test_case *c) {
    weft_tensor *loss[CASE_MOST], *dloss[CASE_MOST];
    bool any = false;
    for (int i = 0; i < c->n_inputs; i++)
        any = any || c->input[i].diff;
    for (int i = 0; i < c->n_outputs; i++) {
        case_slot *y = &c->output[i];
        if (!y->diff) continue;
        char name[40];
        snprintf(name, sizeof name, "d_%.30s", y->name);
        weft_tensor *t = weft_graph_tensor(c->graph, WEFT_ROLE_INPUT, name, y->tensor->dtype,
                                           y->tensor->ndim, y->tensor->shape);
        if (!t) return weft_graph_status(c->graph);
        case_slot *d = add_slot(c, c->upstream, &c->n_upstream, name, false, t);
        d->values = calloc((size_t)weft_tensor_count(t), sizeof *d->values);
        draw_values(c, d, 1);
        loss[c->n_upstream - 1] = y->tensor;
        dloss[c->n_upstream - 1] = t;
    }
    if (c->forward_only || !c->n_upstream || !any) return WEFT_OK;
    return weft_graph_backward_many(c->graph, c->n_upstream, loss, dloss);
}

weft_status case_write(test_case *c, const case_slot *slot) {
    int64_t n = weft_tensor_count(slot->tensor);
    void *bytes = calloc((size_t)n, 8);
    for (int64_t i = 0; i < n; i++) {
        double v = slot->values[i];
        switch (slot->tensor->dtype) {
        case WEFT_F64:
            ((double *)bytes)[i] = v;
            break;
        case WEFT_F32:
            ((float *)bytes)[i] = (float)v;
            break;
        case WEFT_BF16:
            ((uint16_t *)bytes)[i] = weft_float_to_bf16((float)v);
            break;
        default:
            ((int32_t *)bytes)[i] = (int32_t)v;
        }
    }
    weft_status status = weft_exec_write(c->exec, slot->tensor, bytes);
    free(bytes);
    return status;
}

static weft_status write_all(test_case *c) {
    for (int i = 0; i < c->n_inputs; i++)
        WEFT_TRY(case_write(c, &c->input[i]));
    for (int i = 0; i < c->n_upstream; i++)
        WEFT_TRY(case_write(c, &c->upstream[i]));
    return WEFT_OK;
}

static void copy_values(case_slot *to, const case_slot *from, int n) {
    for (int i = 0; i < n; i++)
        memcpy(to[i].values, from[i].values,
               (size_t)weft_tensor_count(from[i].tensor) * sizeof(double));
}

static weft_status build(test_case *c, const case_builder *builder, const case_setup *setup) {
    WEFT_TRY(weft_graph_create(&c->graph));
    builder->build(c);
    WEFT_TRY(weft_graph_status(c->graph));
    if (c->error[0]) return weft_fail(WEFT_EINPUT, "%s", c->error);
    WEFT_TRY(weft_fuse(c->graph));
    WEFT_TRY(append_gradient(c));
    WEFT_TRY(weft_fuse(c->graph));
    if (setup->values_of) {
        copy_values(c->input, setup->values_of->input, c->n_inputs);
        copy_values(c->upstream, setup->values_of->upstream, c->n_upstream);
    }
    if (setup->graph_only) return WEFT_OK;
    weft_pool *pool = find_pool(setup->threads ? setup->threads : 1);
    if (!pool) return WEFT_ENOMEM;
    weft_exec_options options = {
        .plan = {.no_reuse = setup->no_reuse, .no_inplace = setup->no_reuse},
        .poison = true,
    };
    const weft_backend *backend = setup->backend ? setup->backend : weft_cpu_backend();
    WEFT_TRY(weft_exec_create(c->graph, backend, pool, &options, &c->exec));
    return write_all(c);
}

test_case *case_open(const case_line *line, const case_builder *builder, const case_setup *setup) {
    test_case *c = calloc(1, sizeof *c);
    c->line = line;
    c->dtype = setup->dtype;
    c->forward_only = setup->forward_only;
    c->only_input = setup->only_input;
    c->only_output = setup->only_output;
    c->salt = setup->salt;
    c->loosen = 1;
    if (build(c, builder, setup) == WEFT_OK) return c;
    case_close(c);
    return NULL;
}

void case_close(test_case *c) {
    if (!c) return;
    for (int i = 0; i < c->n_inputs; i++)
        free(c->input[i].values);
    for (int i = 0; i < c->n_upstream; i++)
        free(c->upstream[i].values);
    if (c->exec) weft_exec_destroy(c->exec);
    if (c->graph) weft_graph_destroy(c->graph);
    free(c);
}

weft_status case_run(test_case *c) {
    return weft_exec_run(c->exec, &(weft_run){.seed = 7, .iteration = 3, .sequence = 5});
}

int case_result_count(const test_case *c) {
    int n = c->n_outputs;
    for (int i = 0; i < c->n_inputs && !c->forward_only; i++)
        n += c->input[i].diff;
    return n;
}

case_result case_result_at(const test_case *c, int i) {
    case_result r = {0};
    if (i < c->n_outputs) {
        r.slot = &c->output[i];
        r.tensor = r.like = r.slot->tensor;
        snprintf(r.name, sizeof r.name, "%s", r.slot->name);
        r.count = weft_tensor_count(r.tensor);
        if (r.slot->index) r.count = weft_tensor_rows(r.tensor) * r.slot->columns;
        return r;
    }
    int skip = i - c->n_outputs;
    for (int k = 0; k < c->n_inputs; k++) {
        if (!c->input[k].diff || skip--) continue;
        r.slot = &c->input[k];
        r.is_grad = true;
        r.tensor = r.slot->tensor->grad;
        r.like = r.slot->tensor;
        snprintf(r.name, sizeof r.name, "grad.%s", r.slot->name);
        r.count = weft_tensor_count(r.like);
        break;
    }
    return r;
}

static void *read_bytes(test_case *c, const weft_tensor *t, int64_t *bytes) {
    *bytes = weft_tensor_bytes(t);
    void *memory = calloc(1, (size_t)*bytes);
    if (weft_exec_read(c->exec, t, memory) == WEFT_OK) return memory;
    free(memory);
    return NULL;
}

void *case_result_bytes(test_case *c, const case_result *r, int64_t *bytes) {
    if (r->tensor) return read_bytes(c, r->tensor, bytes);
    *bytes = 8;
    return calloc(1, 8);
}

static double element(const void *bytes, weft_dtype dtype, int64_t i) {
    switch (dtype) {
    case WEFT_F64:
        return ((const double *)bytes)[i];
    case WEFT_F32:
        return (double)((const float *)bytes)[i];
    case WEFT_BF16:
        return (double)weft_bf16_to_float(((const uint16_t *)bytes)[i]);
    default:
        return ((const int32_t *)bytes)[i];
    }
}

/* Puts w[row, i] at column index[row, i]; a weight of 0 marks an unused place. */
static bool scatter(test_case *c, const case_result *r, const void *w, double *values) {
    int64_t bytes, width = weft_tensor_width(r->tensor), columns = r->slot->columns;
    int32_t *index = read_bytes(c, r->slot->index, &bytes);
    bool good = index && bytes == 4 * weft_tensor_count(r->tensor);
    for (int64_t i = 0; good && i < weft_tensor_count(r->tensor); i++) {
        double weight = element(w, r->tensor->dtype, i);
        if (weight == 0) continue;
        good = index[i] >= 0 && index[i] < columns;
        if (good) values[i / width * columns + index[i]] += weight;
    }
    free(index);
    return good;
}

double *case_result_values(test_case *c, const case_result *r) {
    double *values = calloc((size_t)r->count, sizeof *values);
    if (!r->tensor) return values;
    int64_t bytes;
    void *memory = read_bytes(c, r->tensor, &bytes);
    bool good = memory != NULL;
    if (good && r->slot->index)
        good = scatter(c, r, memory, values);
    else if (good)
        for (int64_t i = 0; i < r->count; i++)
            values[i] = element(memory, r->tensor->dtype, i);
    free(memory);
    if (good) return values;
    free(values);
    return NULL;
}

double case_loss(test_case *c, double *magnitude) {
    double sum = 0, size = 0;
    int s = 0;
    for (int i = 0; i < c->n_outputs; i++) {
        if (!c->output[i].diff) continue;
        case_result r = case_result_at(c, i);
        double *y = case_result_values(c, &r);
        const double *d = c->upstream[s++].values;
        for (int64_t k = 0; k < r.count; k++) {
            sum += y[k] * d[k];
            size += fabs(y[k] * d[k]);
        }
        free(y);
    }
    if (magnitude) *magnitude = size;
    return sum;
}
