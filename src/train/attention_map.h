/* What a model attends to in the text that it wrote: attention.json in a run's folder, made with the last
 * sample, {"step", "tokens": [text, ..], "layers": [{"layer", "heads": [[[percent, ..], ..], ..],
 * "sigma": [[number, ..], ..]}]}. A head has one row for each token, of the percent that it gives to
 * each token up to itself (to each token where the model is not causal). "sigma" is there for W2
 * attention: for each head the mean deviation of each token's query. The first and the last layer, and
 * few heads and tokens: enough to look at. */
#ifndef WEFT_TRAIN_ATTENTION_MAP_H
#define WEFT_TRAIN_ATTENTION_MAP_H

#include "core/exec.h"
#include "data/tokenizer.h"
#include "model/session.h"

#include <jansson.h>

enum { WEFT_MAP_TOKENS = 40, WEFT_MAP_HEADS = 4 };

/* Writes it into the folder; of at most WEFT_MAP_TOKENS tokens. Nothing for fewer than two. */
weft_status weft_attention_map_write(const char *run, const weft_model *m,
                                     const weft_backend *backend, weft_pool *pool,
                                     const weft_tokenizer *t, const int32_t *tokens, int64_t count,
                                     int64_t step);

/* Its parts, for others: appends a layer's object, of up to so many heads, to a list, from a session of
 * one sequence that keeps its scores and has run; and the tokens' texts. */
weft_status weft_attention_map_layer(const weft_session *s, int64_t layer, int64_t heads,
                                     json_t *layers);
json_t *weft_attention_map_tokens(const weft_tokenizer *t, const int32_t *tokens, int64_t count);

#endif
