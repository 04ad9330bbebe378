/* The random numbers of one sequence, one after the other.
 *
 * The words are Philox's for (seed, iteration, place in the batch) at a site that the dataset and
 * the split name. The splits differ in the counter, so that no training seed, not even one equal
 * to the validation's key, ever draws what validation does. */
#pragma once

#include "base/random.h"
#include "data/dataset.h"

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
