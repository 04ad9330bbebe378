/* Finite differences of the whole loss, for every config and every tensor, in f64.
 *
 * What is constant by definition is held: the routing weights R of the cross-token mechanism are
 * computed here from the raw scores and gates, by the plain formula, and given to the perturbed model as
 * inputs, and so are detached latents; a detached z-loss is left out of the differences. */
#include "base/random.h"
#include "support/model_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One row of R over T columns: weights averaged (or the largest) over heads, thinned out,
 * normalized. scores: [H, T, T] of one sequence; gates: [T, H], or NULL. */
static void routing_row(const weft_config *c, const double *scores, const double *gates,
                        int64_t time, int64_t t, double *row) {
    int64_t seen = c->causal ? t + 1 : time;
    for (int64_t j = 0; j < time; j++)
        row[j] = 0;
    for (int64_t h = 0; h < c->n_head; h++) {
        const double *s = scores + (h * time + t) * time;
        double most = -INFINITY, sum = 0;
        for (int64_t j = 0; j < seen; j++)
            most = fmax(most, s[j]);
        for (int64_t j = 0; j < seen; j++)
            sum += exp(s[j] - most);
        for (int64_t j = 0; j < seen; j++) {
            double p = exp(s[j] - most) / sum;
            if (gates)
                p *= 1 - c->gate_alpha + c->gate_alpha / (1 + exp(-gates[t * c->n_head + h]));
            row[j] = c->sparse_head_average ? row[j] + p / (double)c->n_head : fmax(row[j], p);
        }
    }
    double limit = -1, squares = 0, kept = 0, count = 0;
    for (int64_t j = 0; j < seen; j++) {
        squares += row[j] * row[j];
        count += isfinite(scores[t * time + j]);
    }
    if (c->sparse_mode == WEFT_SPARSE_RMS) limit = c->sparse_rms_threshold * sqrt(squares / count);
    for (int64_t j = 0; j < seen; j++) {
        int64_t larger = 0;
        for (int64_t k = 0; k < seen; k++)
            larger += fabs(row[k]) > fabs(row[j]);
        bool out = c->sparse_mode == WEFT_SPARSE_TOPK && larger >= c->sparse_k;
        if (out || row[j] < limit) row[j] = -row[j]; /* marked; cleared below */
    }
    for (int64_t j = 0; j < seen; j++) {
        if (row[j] < 0) row[j] = 0;
        kept += row[j];
    }
    for (int64_t j = 0; c->sparse_normalize && j < seen; j++)
        row[j] /= kept;
}

/* Fills the inputs "h.I.routes.*" of `held` from the scores of `r`. */
static void give_routes(const model_case *c, const model_run *r, model_run *held) {
    int64_t time = c->time, pairs = c->batch * time * time;
    double *scores = malloc((size_t)(pairs * c->config.n_head) * sizeof *scores);
    double *weights = calloc((size_t)pairs, sizeof *weights);
    int32_t *index = calloc((size_t)pairs, sizeof *index);
    assert_true(scores && weights && index);
    for (int64_t layer = 0; layer < c->config.n_layer; layer++) {
        int64_t heads = c->config.n_head;
        const weft_tensor *gate = r->session.graph.inside[layer].gate;
        double *gates = NULL;
        expect_ok(weft_session_scores(&r->session, layer, scores));
        if (c->config.route_after_gate && gate)
            gates = model_run_values(r, gate, c->batch * time * heads);
        for (int64_t b = 0; b < c->batch; b++)
            for (int64_t t = 0; t < time; t++)
                routing_row(&c->config, scores + b * heads * time * time,
                            gates ? gates + b * time * heads : NULL, time, t,
                            weights + (b * time + t) * time);
        free(gates);
        for (int64_t i = 0; i < pairs; i++)
            index[i] = weights[i] > 0 ? (int32_t)(i % time) : -1;
        char name[48];
        snprintf(name, sizeof name, "h.%lld.routes.index", (long long)layer);
        const weft_graph *g = held->session.graph.graph;
        expect_ok(weft_exec_write(held->session.exec, weft_graph_find(g, name), index));
        snprintf(name, sizeof name, "h.%lld.routes.weight", (long long)layer);
        expect_ok(weft_exec_write(held->session.exec, weft_graph_find(g, name), weights));
    }
    free(scores);
    free(weights);
    free(index);
}

/* Fills the inputs "h.I.latent" with the latents of `r`. */
static void give_latents(const model_case *c, const model_run *r, model_run *held) {
    for (int64_t layer = 0; layer < c->config.n_layer; layer++) {
        char name[48];
        const weft_tensor *latent = r->session.graph.inside[layer].latent;
        double *values = model_run_values(r, latent, weft_tensor_count(latent));
        snprintf(name, sizeof name, "h.%lld.latent", (long long)layer);
        expect_ok(weft_exec_write(held->session.exec,
                                  weft_graph_find(held->session.graph.graph, name), values));
        free(values);
    }
}

/* The loss as far as it trains. */
static double trained_loss(const model_case *c, model_run *held) {
    weft_loss_parts p;
    model_run_again(held, c->tokens, c->targets);
    expect_ok(weft_session_losses(&held->session, &p));
    return c->config.logits_z_detach ? p.loss - p.logits_z : p.loss;
}

/* Moves one tensor along a random direction and compares the slope with the gradient's. */
static void check_tensor(const model_case *c, const model_run *r, model_run *held, int64_t i) {
    const weft_tensor *p = r->session.graph.parameters[i].tensor;
    weft_weight *w = weft_model_find(held->model, p->name);
    double *gradient = model_run_values(r, p->grad, w->count);
    double *start = malloc((size_t)w->count * sizeof *start);
    double *moved = malloc((size_t)w->count * sizeof *moved);
    double *direction = malloc((size_t)w->count * sizeof *direction);
    assert_true(start && moved && direction);
    weft_weight_read(w, start);
    weft_random_uniform(c->key, 1, weft_random_site(p->name), 0, w->count, direction);
    double slope = 0, step = 1e-5, loss[2], size = 0;
    for (int64_t k = 0; k < w->count; k++) {
        direction[k] = 2 * direction[k] - 1;
        slope += gradient[k] * direction[k];
        size += gradient[k] * gradient[k];
    }
    for (int side = 0; side < 2; side++) {
        for (int64_t k = 0; k < w->count; k++)
            moved[k] = start[k] + (side ? step : -step) * direction[k];
        weft_weight_write(w, moved);
        loss[side] = trained_loss(c, held);
    }
    weft_weight_write(w, start);
    double measured = (loss[1] - loss[0]) / (2 * step);
    double allowed = 1e-6 * fmax(fabs(slope), sqrt(size)) + 1e-9;
    if (!(fabs(measured - slope) <= allowed))
        fail_msg("%s: %s: the loss changes at %.9g, the gradient says %.9g", c->name, p->name,
                 measured, slope);
    free(gradient);
    free(start);
    free(moved);
    free(direction);
}

static void test_gradients_are_slopes_of_the_loss(void **state) {
    const char *name = *state;
    model_case c;
    model_run r, held;
    model_case_open(&c, name);
    bool routes = c.config.cross_token, latents = c.config.latent_recip && c.config.latent_detach;
    model_run_options whole = {.dtype = WEFT_F64,
                               .train = true,
                               .grads = true,
                               .scores = routes,
                               .inside = routes || latents};
    model_run_options some = {.dtype = WEFT_F64, .train = true, .given_routes = routes || latents};
    model_run_open(&r, &c, &whole);
    model_run_open(&held, &c, &some);
    if (routes) give_routes(&c, &r, &held);
    if (latents) give_latents(&c, &r, &held);
    for (int64_t i = 0; i < r.session.graph.n_parameters; i++)
        check_tensor(&c, &r, &held, i);
    model_run_close(&held);
    model_run_close(&r);
    model_case_close(&c);
}

int main(void) {
    const model_case_check check_all = {NULL, test_gradients_are_slopes_of_the_loss};
    return model_cases_run(&check_all, 1);
}
