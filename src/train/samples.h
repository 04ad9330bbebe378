/* Text that a run makes as it trains (SAMPLE_PROMPT, SAMPLE_INTERVAL, SAMPLE_TOKENS): one JSON object
 * on a line of samples.jsonl in the run's folder, {"step", "prompt", "text"}, and the log. The same
 * random seed every time, so that texts differ by what was learned between them. With the last one goes
 * what the model attends to in it: the attention map below. */
#pragma once

#include "data/tokenizer.h"
#include "model/session.h"

typedef struct weft_samples weft_samples;

/* *out is NULL where the config wants none. `step`: those of later steps, which a resumed run will
 * make again, are cut off. The tokenizer is the caller's; NULL (the dataset's tokens are no text) is
 * an error. */
weft_status weft_samples_open(const char *run, int64_t step, const weft_config *c,
                              const weft_tokenizer *t, weft_samples **out);
void weft_samples_close(weft_samples *s);

/* Makes one. Where the model cannot generate here, that is logged once and no error. Nothing to do
 * for NULL, or a step that is not due. */
weft_status weft_samples_make(weft_samples *s, const weft_model *m, const weft_backend *backend,
                              weft_pool *pool, int64_t step, bool last);

/* What a model attends to in the text that it wrote: attention.json in a run's folder, made with the last
 * sample, {"step", "tokens": [text, ..], "layers": [{"layer", "heads": [[[percent, ..], ..], ..],
 * "sigma": [[number, ..], ..]}]}. A head has one row for each token, of the percent that it gives to
 * each token up to itself (to each token where the model is not causal). "sigma" is there for W2
 * attention: for each head the mean deviation of each token's query. The first and the last layer, and
 * few heads and tokens: enough to look at. */
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
