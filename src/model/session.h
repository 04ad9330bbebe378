/* A model built for a shape and ready to run: graph, bindings, executor in one. */
#pragma once

#include "model/model.h"

typedef struct {
    const weft_model *model; /* the caller's */
    const weft_backend *backend;
    weft_model_graph graph;
    weft_binding *bindings;
    weft_exec *exec;
} weft_session;

/* Loss by parts; what a model has not is 0. */
typedef struct {
    double loss, cross_entropy, aux_z, aux_contrastive, logits_z;
} weft_loss_parts;

/* sum += weight · p, each part. */
void weft_loss_parts_add(weft_loss_parts *sum, const weft_loss_parts *p, double weight);

/* Builds and plans. `grads` appends the gradient of the loss. `poison` is for
 * tests: see weft_exec_options. */
weft_status weft_session_open(const weft_model *m, const weft_backend *backend, weft_pool *pool,
                              const weft_build *build, bool grads, bool poison, weft_session *out);
void weft_session_close(weft_session *s);

/* One pass over tokens and targets, both [B, T]; targets NULL: for a graph without a loss. */
weft_status weft_session_run(weft_session *s, const int32_t *tokens, const int32_t *targets,
                             const weft_run *run);
weft_status weft_session_losses(const weft_session *s, weft_loss_parts *out);

/* A kept tensor's values as doubles, n of them; zeros for a NULL tensor (a gradient that nothing
 * depends on). */
weft_status weft_session_values(const weft_session *s, const weft_tensor *t, int64_t n,
                                double *out);
/* All of its values, malloc'd; NULL for a NULL tensor. */
weft_status weft_session_take(const weft_session *s, const weft_tensor *t, double **out);

/* The raw scores of a layer, [B, H, T, T] as doubles: what enters the softmax, with the query's own
 * norm where the score is a distance, so that W2's are minus the distances over the temperature.
 * -inf where a key is not seen. The session must be built with `scores`. */
weft_status weft_session_scores(const weft_session *s, int64_t layer, double *out);

/* A row of n > 0 scores becomes its weights, in place: their softmax, in double. */
void weft_scores_softmax(double *row, int64_t n);
