/* Evaluating a checkpoint on tokens from a file. */
#ifndef WEFT_MODEL_EVALUATE_H
#define WEFT_MODEL_EVALUATE_H

#include "core/exec.h"
#include "model/session.h"

typedef struct {
    const char *tokens;  /* a .npy [B, T+1], one batch, or a token shard */
    const char *targets; /* a .npy [B, T], -1 for ignored; NULL: the tokens that follow */
    const char *logits; /* files to write; NULL: none. A shard has no single batch, so none there */
    const char *grads;  /* one train-mode pass without dropout; loss and logits come from it too */
    const char *scores;
} weft_evaluation;

/* Loss by parts. In eval mode (without grads) auxiliary parts are 0. Over a shard the means of its
 * windows of the block size are averaged by their tokens. */
weft_status weft_evaluate(const weft_model *m, const weft_backend *backend, weft_pool *pool,
                          const weft_evaluation *what, weft_loss_parts *out);

#endif
