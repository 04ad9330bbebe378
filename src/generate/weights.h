/* A model's weights as generation reads them: in WEIGHT_DTYPE, and with the matrices that are formed
 * once (cached.h). What is not changed stays the model's own memory. */
#pragma once

#include "generate/fold.h"
#include "model/cached.h"
#include "model/model.h"

/* Sets DTYPE to what generation with a config runs in on a backend: bf16 where a GPU is to keep bf16 and
 * to read bf16, which is faster there than going to and fro between it and f32. To be called before
 * the weights are loaded, by all that generate from a config. */
void weft_generation_set_dtype(weft_config *c, const weft_backend *backend);

typedef struct weft_generation_weights weft_generation_weights;

/* Made for what `graph`, fused and with these norms folded, reads; graphs of other numbers of rows read the
 * same. */
weft_status weft_generation_weights_make(const weft_model *m, const weft_backend *backend,
                                         weft_pool *pool, const weft_cached_graph *graph,
                                         const weft_fold *folds, int64_t n_folds,
                                         weft_generation_weights **out);
void weft_generation_weights_destroy(weft_generation_weights *w);

/* Gives the graph's tensors the types that the weights have. */
void weft_generation_weights_apply(const weft_generation_weights *w, weft_graph *g);
/* Where a tensor of that name lies; NULL: it is no weight. */
void *weft_generation_weights_at(const weft_generation_weights *w, const char *name);
/* Bytes of all that a run of one row reads: all but the tables of which it reads a row. */
int64_t weft_generation_weights_bytes(const weft_generation_weights *w);
