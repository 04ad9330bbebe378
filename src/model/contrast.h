/* WsFFN's contrastive loss over the contexts of all micro-batches of a step: the first of its two
 * phases (train/step.c). The contexts are small beside what made them, [layers, B · n_head, z] of a
 * micro-batch, so they are gathered in the host's memory. */
#pragma once

#include "model/session.h"

typedef struct weft_contrast weft_contrast;

/* The loss over rows of contexts [layers, *, z], positives as the config has them. */
weft_tensor *weft_contrast_loss(weft_graph *g, const weft_config *c, weft_tensor *rows);

/* For `parts` micro-batches that are built so. */
weft_status weft_contrast_open(const weft_model *m, const weft_backend *backend, weft_pool *pool,
                               const weft_build *build, int64_t parts, weft_contrast **out);
void weft_contrast_close(weft_contrast *c);

/* What that phase costs a step: operations, and bytes in the backend's memory. */
weft_status weft_contrast_account(const weft_config *c, const weft_backend *backend, int threads,
                                  const weft_build *build, int64_t parts, double *flops,
                                  int64_t *bytes);

/* Forward of one micro-batch, tokens [B, T]: its contexts. */
weft_status weft_contrast_add(weft_contrast *c, int64_t part, const int32_t *tokens,
                              const weft_run *run);
/* The contexts of all micro-batches one after the other, *stride bytes each, for whoever gathers those
 * that others made. */
void *weft_contrast_contexts(weft_contrast *c, int64_t *stride);
/* When all are there: the loss. */
weft_status weft_contrast_compare(weft_contrast *c, double *loss);
/* Then, for each: the gradient at its contexts goes to a session built with WEFT_CONTRAST_GIVEN, times
 * the number of micro-batches, since their gradients are averaged. */
weft_status weft_contrast_give(weft_contrast *c, int64_t part, weft_session *to);
