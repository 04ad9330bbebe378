/* Where sequences come from. A sequence is a pure function of (seed, iteration, place in the
 * batch): there is no epoch state to lose, and any thread may ask for any sequence in any order. */
#pragma once

#include "base/random.h"
#include "config/config.h"
#include "data/tokenizer.h"

typedef struct weft_dataset weft_dataset;
typedef enum { WEFT_SPLIT_TRAIN, WEFT_SPLIT_VAL } weft_split;

/* Opens what CONFIG_DATASET names: embedded (corpus.h), a task by its name (tasks.h), or a folder
 * of token shards (shards.h). A folder by one of those names is meant by a path, "./recall". */
weft_status weft_dataset_open(const weft_config *c, weft_dataset **out);
void weft_dataset_close(weft_dataset *d);
WEFT_ENDED_BY(weft_dataset_close, weft_dataset)

/* CONFIG_DATASET as it was given. */
const char *weft_dataset_name(const weft_dataset *d);

/* Tokens are below this; larger than the model's is an error of the caller's to report. */
int64_t weft_dataset_vocab(const weft_dataset *d);

/* How many there are; -1: unlimited. */
int64_t weft_dataset_tokens(const weft_dataset *d, weft_split split);

/* A checksum of its files, by which another dataset under the same name is noticed; -1: it has none, it is
 * made by this program. Of large ones a part is read, evenly spread. */
weft_status weft_dataset_sum(const weft_dataset *d, int64_t *sum);

/* What `scored` measures: "recall_accuracy" and so on, by the task's name; NULL: nothing. */
const char *weft_dataset_metric(const weft_dataset *d);

/* What the tokens of the config's dataset stand for: what its folder says, or the config. *out is NULL for a task,
 * whose tokens stand for nothing, and for a folder without a tokenizer.json where the config names none. */
weft_status weft_dataset_tokenizer(const weft_config *c, weft_tokenizer **out);

/* Fills tokens[time], targets[time] (-1: not counted) of one sequence and, where not NULL,
 * scored[time]: 1 where the metric asks whether the argmax is the target. The validation split
 * ignores seed: a fixed held-out set. Thread-safe. */
weft_status weft_dataset_fill(const weft_dataset *d, weft_split split, uint64_t seed,
                              uint32_t iteration, uint32_t sequence, int64_t time, int32_t *tokens,
                              int32_t *targets, uint8_t *scored);

/* The random numbers of one sequence, one after the other.
 *
 * The words are Philox's for (seed, iteration, place in the batch) at a site that the dataset and
 * the split name. The splits differ in the counter, so that no training seed, not even one equal
 * to the validation's key, ever draws what validation does. */

/* Which sequence. Of the validation split, `seed` is not looked at. */
typedef struct {
    weft_split split;
    uint64_t seed;
    uint32_t iteration, sequence;
} weft_sequence_place;

typedef struct {
    uint64_t key;
    uint32_t site, iteration, sequence;
    uint32_t block; /* the next one */
    int used;       /* words of the current block */
    weft_random4 words;
} weft_random_stream;

/* The stream of a place from its block `block` on. The sites of training and of validation are named by
 * texts that must differ (weft_random_site). */
static inline weft_random_stream weft_random_stream_at(const weft_sequence_place *p,
                                                       const char *training, const char *validation,
                                                       uint32_t block) {
    bool val = p->split == WEFT_SPLIT_VAL;
    return (weft_random_stream){.key = val ? 0 : p->seed,
                                .site = weft_random_site(val ? validation : training),
                                .iteration = p->iteration,
                                .sequence = p->sequence,
                                .block = block,
                                .used = 4};
}

static inline uint32_t weft_random_stream_word(weft_random_stream *s) {
    if (s->used == 4) {
        s->words = weft_philox(s->key, s->block++, s->sequence, s->iteration, s->site);
        s->used = 0;
    }
    return s->words.word[s->used++];
}

/* A number in [0, n), n > 0: the word's place on a scale of n. */
static inline uint32_t weft_random_stream_below(weft_random_stream *s, uint32_t n) {
    return (uint32_t)((uint64_t)weft_random_stream_word(s) * n >> 32);
}
