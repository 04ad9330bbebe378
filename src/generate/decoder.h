/* A model ready to run rows of tokens over caches: weights in WEIGHT_DTYPE, the memory of pages and
 * of what sequences keep beside them, and a graph for each number of rows that is asked for. Which
 * page holds what is the caller's business (generator.h). */
#pragma once

#include "core/decoding.h"
#include "generate/fold.h"
#include "model/cached.h"
#include "model/model.h"

/* A model's weights as generation reads them: in WEIGHT_DTYPE, and with the matrices that are formed
 * once (cached.h). What is not changed stays the model's own memory. */

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
WEFT_ENDED_BY(weft_generation_weights_destroy, weft_generation_weights)

/* Gives the graph's tensors the types that the weights have. */
void weft_generation_weights_apply(const weft_generation_weights *w, weft_graph *g);
/* Where a tensor of that name lies; NULL: it is no weight. */
void *weft_generation_weights_at(const weft_generation_weights *w, const char *name);
/* Bytes of all that a run of one row reads: all but the tables of which it reads a row. */
int64_t weft_generation_weights_bytes(const weft_generation_weights *w);

typedef struct weft_decoder weft_decoder;

typedef struct {
    int64_t slots, pages, context, table_pages; /* as in weft_cached_shape */
} weft_decoder_limits;

typedef struct {
    int32_t token, position, slot;
    bool wanted; /* its logits are */
} weft_decoder_row;

/* Rows of a run: up to weft_decoder_rows, which is WEFT_DECODER_ROWS or more and at most
 * WEFT_DECODER_ROWS_MAX. A row's bits do not depend on how many there are. Of a long prompt more may be read at
 * once: with those bits as well, up to weft_decoder_reads rows; where that is 0, a block, WEFT_DECODER_BLOCK rows,
 * which goes through the products of training and has bits of its own. */
enum { WEFT_DECODER_ROWS = 32, WEFT_DECODER_ROWS_MAX = WEFT_RUN_ROWS, WEFT_DECODER_BLOCK = 256 };

weft_status weft_decoder_open(const weft_model *m, const weft_backend *backend, weft_pool *pool,
                              const weft_decoder_limits *limits, weft_decoder **out);
void weft_decoder_close(weft_decoder *d);
WEFT_ENDED_BY(weft_decoder_close, weft_decoder)

/* The table of pages [slots, pages of a sequence]: filled by the caller, read by every run. */
int32_t *weft_decoder_table(weft_decoder *d, int32_t slot);

/* Runs n rows (ops/cache.h says in which order). logits [wanted rows, V], in their order. */
weft_status weft_decoder_run(weft_decoder *d, const weft_decoder_row *rows, int64_t n,
                             float *logits);
/* Reads n tokens of a sequence, the first at position `first`. */
weft_status weft_decoder_read(weft_decoder *d, int32_t slot, const int32_t *tokens, int64_t first,
                              int64_t n);
/* weft_decoder_run with the rows of a block. */
weft_status weft_decoder_run_block(weft_decoder *d, const weft_decoder_row *rows, float *logits);

/* Either of them in pieces: runs operations of the rows that were begun last, or begins these, as long as that
 * takes no longer than `seconds` by what it took before, but one at least. *done: the logits are there. Other
 * runs may come between, on other slots; the pages of these stay theirs. Where a backend runs graphs as a
 * whole, and for the runs below, there is one piece. */
weft_status weft_decoder_run_piece(weft_decoder *d, const weft_decoder_row *rows, int64_t n,
                                   bool block, double seconds, float *logits, bool *done);
/* Gives up what was begun in pieces. */
void weft_decoder_drop(weft_decoder *d);

int64_t weft_decoder_rows(const weft_decoder *d);
int64_t weft_decoder_reads(const weft_decoder *d);

/* A token of each row, -1 where its logits are not numbers: where the backend runs its graphs one behind the
 * other (core/decoding.h) nothing else needs to come back to the host. `draws` [n] says how they are drawn;
 * NULL: they are the likeliest, of equal ones the lowest. What a row's sequence has seen need not list the
 * tokens of its rows here. As a row's token, -1 - i is the one that the run before sampled in its row i. Up to
 * two runs may be under way: what was begun is ended in order, before anything else is asked of the decoder. */
bool weft_decoder_samples(const weft_decoder *d); /* false: these are not there */
bool weft_decoder_draws(const weft_decoder *d);   /* false: it samples the likeliest token alone */
weft_status weft_decoder_begin(weft_decoder *d, const weft_decoder_row *rows, int64_t n,
                               const weft_draw *draws);
weft_status weft_decoder_end(weft_decoder *d, int32_t *tokens);
/* weft_decoder_run, and what was sampled. */
weft_status weft_decoder_run_sampling(weft_decoder *d, const weft_decoder_row *rows, int64_t n,
                                      const weft_draw *draws, float *logits, int32_t *sampled);

/* What a sequence keeps beside its pages: its bytes, and copies out of and into a slot. */
int64_t weft_decoder_state_bytes(const weft_decoder *d);
weft_status weft_decoder_save(const weft_decoder *d, int32_t slot, void *to);
weft_status weft_decoder_load(weft_decoder *d, int32_t slot, const void *from);

/* For benchmarks: sets every number of the caches to a small one. */
weft_status weft_decoder_fill(weft_decoder *d);

/* Bytes of the pages, and of the weights that a run of one row reads. */
int64_t weft_decoder_page_bytes(const weft_decoder *d);
int64_t weft_decoder_weight_bytes(const weft_decoder *d);
