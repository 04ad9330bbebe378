/* Counts of token pairs, and what they are worth on text that was not counted:
 *     p(b | a) = (pairs(a, b) + 1) / (pairs(a, ·) + V) */
#include "support/bigram.h"

#include <math.h>
#include <stdlib.h>

enum { TIME = 1024 }; /* tokens taken at a time */

typedef struct {
    int64_t vocab;
    uint32_t *pairs;  /* [V, V] */
    uint64_t *firsts; /* [V] */
    int32_t tokens[TIME], targets[TIME];
} bigram;

static weft_status count_pairs(const weft_dataset *d, uint64_t seed, int64_t count, bigram *b) {
    for (int64_t s = 0; s * TIME < count; s++) {
        WEFT_TRY(weft_dataset_fill(d, WEFT_SPLIT_TRAIN, seed, 0, (uint32_t)s, TIME, b->tokens,
                                   b->targets, NULL));
        for (int64_t t = 0; t < TIME; t++) {
            if (b->targets[t] < 0) continue;
            b->pairs[b->tokens[t] * b->vocab + b->targets[t]]++;
            b->firsts[b->tokens[t]]++;
        }
    }
    return WEFT_OK;
}

static weft_status measure_loss(const weft_dataset *d, int64_t count, bigram *b, double *loss) {
    double sum = 0;
    int64_t counted = 0;
    for (int64_t s = 0; s * TIME < count; s++) {
        WEFT_TRY(weft_dataset_fill(d, WEFT_SPLIT_VAL, 0, 0, (uint32_t)s, TIME, b->tokens,
                                   b->targets, NULL));
        for (int64_t t = 0; t < TIME; t++) {
            if (b->targets[t] < 0) continue;
            double pair = 1.0 + (double)b->pairs[b->tokens[t] * b->vocab + b->targets[t]];
            sum += log((double)b->firsts[b->tokens[t]] + (double)b->vocab) - log(pair);
            counted++;
        }
    }
    if (!counted)
        return weft_fail(WEFT_EINPUT, "DATASET %s: no tokens to measure a bigram model on",
                         weft_dataset_name(d));
    *loss = sum / (double)counted;
    return WEFT_OK;
}

weft_status weft_bigram_loss(const weft_dataset *d, uint64_t seed, int64_t train, int64_t val,
                             double *loss) {
    int64_t vocab = weft_dataset_vocab(d);
    if (vocab > WEFT_BIGRAM_VOCAB)
        return weft_fail(WEFT_EINPUT, "DATASET %s: a bigram model of %lld tokens; at most %d",
                         weft_dataset_name(d), (long long)vocab, WEFT_BIGRAM_VOCAB);
    bigram *b = malloc(sizeof *b);
    uint32_t *pairs = calloc((size_t)(vocab * vocab), sizeof *pairs);
    uint64_t *firsts = calloc((size_t)vocab, sizeof *firsts);
    weft_status status = WEFT_OK;
    if (!b || !pairs || !firsts) {
        status = weft_fail(WEFT_ENOMEM, "no memory for a bigram model");
    } else {
        b->vocab = vocab;
        b->pairs = pairs;
        b->firsts = firsts;
        status = count_pairs(d, seed, train, b);
        if (status == WEFT_OK) status = measure_loss(d, val, b, loss);
    }
    free(b);
    free(pairs);
    free(firsts);
    return status;
}
