/* Text that a run makes as it trains (SAMPLE_PROMPT, SAMPLE_INTERVAL, SAMPLE_TOKENS): one JSON object
 * on a line of samples.jsonl in the run's folder, {"step", "prompt", "text"}, and the log. The same
 * random seed every time, so that texts differ by what was learned between them. With the last one goes
 * what the model attends to in it: attention_map.h. */
#ifndef WEFT_TRAIN_SAMPLES_H
#define WEFT_TRAIN_SAMPLES_H

#include "core/exec.h"
#include "data/tokenizer.h"
#include "model/model.h"

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

#endif
