/* The baseline that a model must beat: how well the last token alone foretells the next. */
#ifndef WEFT_TESTS_BIGRAM_H
#define WEFT_TESTS_BIGRAM_H

#include "data/dataset.h"

enum { WEFT_BIGRAM_VOCAB = 4096 }; /* the largest vocabulary, whose counts take 64 MiB */

/* The mean cross-entropy, in nats a token, on about `val` tokens of the validation split, of the
 * bigram model that about `train` tokens of the training split under `seed` estimate, one added to
 * each pair's count. Targets that are not counted are left out of both. */
weft_status weft_bigram_loss(const weft_dataset *d, uint64_t seed, int64_t train, int64_t val,
                             double *loss);

#endif
