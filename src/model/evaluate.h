/* Evaluating a checkpoint on tokens from a file. */
#pragma once

#include "data/tokenizer.h"
#include "model/session.h"

typedef struct {
    const char *tokens;  /* a .npy [B, T+1], one batch, or a token shard */
    const char *targets; /* a .npy [B, T], -1 for ignored; NULL: the tokens that follow */
    const char *logits; /* files to write; NULL: none. A shard has no single batch, so none there */
    const char *grads;  /* one train-mode pass without dropout; loss and logits come from it too */
    const char *scores;
    const char *text;                /* in place of tokens: a file of text, by `tokenizer` */
    const weft_tokenizer *tokenizer; /* what the tokens stand for; NULL: not known */
} weft_evaluation;

typedef struct {
    weft_loss_parts parts;
    int64_t tokens; /* that were told: targets that count */
    int64_t bytes;  /* of text that they stand for; 0: not known */
} weft_evaluated;

/* Loss by parts. In eval mode (without grads) auxiliary parts are 0. Over a shard the means of its
 * windows of the block size are averaged by their tokens. */
weft_status weft_evaluate(const weft_model *m, const weft_backend *backend, weft_pool *pool,
                          const weft_evaluation *what, weft_evaluated *out);
