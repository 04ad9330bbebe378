/* Running a step's objective and comparing its results. */
#include "objective_case.h"

#include "cpu/backend.h"
#include "model_case.h"
#include "test.h"
#include "train/step.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const weft_backend *backend_of(const objective_case *c) {
    return c->backend ? c->backend : weft_cpu_backend();
}

static void cut(model_case *m, const objective_case *c) {
    int64_t accumulation = c->accumulation ? c->accumulation : 1;
    m->config.micro_batch = c->micro;
    m->config.gradient_accumulation = accumulation;
    m->config.batch_size = m->batch / accumulation;
    m->config.dropout = c->dropout;
    assert_int_equal(m->time, m->config.context);
}

static void read_gradients(const objective_case *c, const weft_model *m, const weft_train_step *o,
                           double *out) {
    for (int64_t i = 0; i < m->n_weights; i++) {
        int64_t n = m->weights[i].count;
        weft_gradient g = weft_train_step_gradient(o, i);
        memset(out, 0, (size_t)n * sizeof *out);
        if (g.data) {
            int64_t bytes = n * (int64_t)weft_dtype_size(g.dtype);
            void *host = malloc((size_t)bytes);
            assert_non_null(host);
            expect_ok(backend_of(c)->download(host, g.data, bytes));
            weft_weight_read(&(weft_weight){.dtype = g.dtype, .count = n, .data = host}, out);
            free(host);
        }
        out += n;
    }
}

static objective_result run_once(const objective_case *c, const model_case *m, weft_train_step *o,
                                 const weft_model *model) {
    objective_result r = {0};
    for (int64_t i = 0; i < model->n_weights; i++)
        r.count += model->weights[i].count;
    r.gradients = calloc((size_t)r.count, sizeof *r.gradients);
    assert_non_null(r.gradients);
    expect_ok(
        weft_train_step_gradients(o, m->tokens, m->targets, &(weft_run){.seed = 1}, &r.parts));
    read_gradients(c, model, o, r.gradients);
    return r;
}

objective_result objective_case_run(const objective_case *c) {
    model_case m;
    weft_pool *pool;
    weft_optimizer *optimizer;
    weft_train_step *o;
    model_case_open(&m, c->config);
    cut(&m, c);
    weft_model *model = model_case_weights(&m, c->dtype);
    expect_ok(weft_pool_create(2, &pool));
    expect_ok(weft_optimizer_create(model, backend_of(c), pool, NULL, &optimizer));
    weft_train_step_options options = {.form = c->form, .poison = true};
    expect_ok(weft_train_step_open(optimizer, pool, &options, &o));
    objective_result first = run_once(c, &m, o, model), r = run_once(c, &m, o, model);
    assert_memory_equal(&first.parts, &r.parts, sizeof r.parts);
    assert_memory_equal(first.gradients, r.gradients, (size_t)r.count * sizeof *r.gradients);
    objective_result_free(&first);
    weft_train_step_close(o);
    weft_optimizer_destroy(optimizer);
    weft_model_destroy(model);
    weft_pool_destroy(pool);
    model_case_close(&m);
    return r;
}

void objective_result_free(objective_result *r) {
    free(r->gradients);
    *r = (objective_result){0};
}

static void compare_number(const objective_case *c, const char *name, double got, double want,
                           double tolerance) {
    if (!(fabs(got - want) <= tolerance * fmax(1, fabs(want))))
        fail_msg("%s, micro-batches of %lld: %s is %.12g, not %.12g", c->config,
                 (long long)c->micro, name, got, want);
}

/* ‖got − want‖ against max(‖want‖, 1e-3 √n). */
static void compare_weight(const objective_case *c, const char *name, const double *got,
                           const double *want, int64_t n, double tolerance) {
    double size = 0, off = 0;
    for (int64_t i = 0; i < n; i++) {
        size += want[i] * want[i];
        off += (got[i] - want[i]) * (got[i] - want[i]);
    }
    if (!(sqrt(off) <= tolerance * fmax(sqrt(size), 1e-3 * sqrt((double)n))))
        fail_msg("%s, micro-batches of %lld: the gradient of %s is off by %.3g of %.3g", c->config,
                 (long long)c->micro, name, sqrt(off), sqrt(size));
}

static const double *kept(const vectors *file, const char *kind, const char *name) {
    const vector *v = vectors_find(file, "%s%s", kind, name);
    if (!v) fail_msg("no kept '%s%s'", kind, name);
    return v->data;
}

void objective_case_compare(const objective_case *c, const objective_result *r, double tolerance) {
    model_case m;
    vectors *file = model_case_kept(c->config);
    model_case_open(&m, c->config);
    weft_model *model = model_case_weights(&m, c->dtype);
    const weft_loss_parts *p = &r->parts;
    compare_number(c, "loss", p->loss, *kept(file, "", "loss"), tolerance);
    compare_number(c, "cross_entropy", p->cross_entropy, *kept(file, "", "cross_entropy"),
                   tolerance);
    compare_number(c, "aux_z", p->aux_z, *kept(file, "", "aux_z"), tolerance);
    compare_number(c, "aux_contrastive", p->aux_contrastive, *kept(file, "", "aux_contrastive"),
                   tolerance);
    compare_number(c, "logits_z", p->logits_z, *kept(file, "", "logits_z"), tolerance);
    const double *at = r->gradients;
    for (int64_t i = 0; i < model->n_weights; at += model->weights[i++].count)
        compare_weight(c, model->weights[i].name, at, kept(file, "grad.", model->weights[i].name),
                       model->weights[i].count, tolerance);
    weft_model_destroy(model);
    model_case_close(&m);
    vectors_close(file);
}

void objective_results_compare(const objective_case *c, const objective_result *a,
                               const objective_result *b, double tolerance) {
    assert_int_equal(a->count, b->count);
    compare_number(c, "loss", a->parts.loss, b->parts.loss, tolerance);
    compare_number(c, "aux_contrastive", a->parts.aux_contrastive, b->parts.aux_contrastive,
                   tolerance);
    compare_weight(c, "all weights", a->gradients, b->gradients, a->count, tolerance);
}
