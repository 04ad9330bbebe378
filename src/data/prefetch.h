/* Batches made ready off the training thread: while a step runs, a worker fills the next batches.
 *
 * Batches come in the one order that training asks for them, (iteration, part) counting up, and a
 * batch is a pure function of that place; so the bytes are those of the dataset. */
#pragma once

#include "data/dataset.h"

typedef struct weft_prefetch weft_prefetch;

typedef struct {
    weft_split split;
    uint64_t seed;
    uint32_t iteration; /* the first one */
    int64_t sequences;  /* in a batch */
    int64_t parts;      /* batches in an iteration: part p has sequences p·n .. p·n + n-1, */
    int64_t first;      /* counted from this one; */
    int64_t group;      /* or, where not 0, groups of so many neighbours, */
    int64_t step;       /* each begun so many sequences after the one before */
    int64_t skip;       /* batches to leave out before the first */
    int64_t time;       /* tokens in a sequence */
    bool scored;        /* fill that too */
} weft_prefetch_options;

/* One batch, [sequences, time] each. */
typedef struct {
    uint32_t iteration;
    int64_t part;
    int32_t *tokens, *targets;
    uint8_t *scored; /* NULL where it was not asked for */
} weft_batch;

/* Starts the worker. The dataset must outlive it. */
weft_status weft_prefetch_open(const weft_dataset *d, const weft_prefetch_options *options,
                               weft_prefetch **out);

/* Waits for the next batch in order. It stays valid until the next call. What the worker failed on
 * is returned here, in the place of the batch that failed and of every later one, with its message. */
weft_status weft_prefetch_next(weft_prefetch *p, const weft_batch **batch);

/* Ends the worker, at most one sequence later, and frees everything; NULL is allowed. */
void weft_prefetch_close(weft_prefetch *p);
WEFT_ENDED_BY(weft_prefetch_close, weft_prefetch)
