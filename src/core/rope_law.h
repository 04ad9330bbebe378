/* How fast a pair of columns rotates: the law of angles, written once for every backend.
 *
 * Pair i of `width` columns is rotated by r_i = base^(-2i/width) per position. The scalings slow
 * rotations down for sequences longer than those of the first training, `context` tokens, in which
 * pair i made n_i = context r_i / 2π rotations:
 *
 *   linear   r_i / factor
 *   llama3   r_i (k + (1 - k) / factor), k = (n_i - low) / (high - low) held within 0 and 1
 *   yarn     the same with k = 1 - (i - first) / (last - first), `first` and `last` being the pairs
 *            that make `high` and `low` rotations, rounded outwards; and rotated columns are
 *            multiplied by the amplitude
 *   long     r_i over a factor of the pair's own; columns are multiplied by the amplitude
 *
 * Under nvcc the functions are the device's and the host's; everything is computed in double. */
#pragma once

#include "base/random.h"

#include <math.h>

typedef enum {
    WEFT_ROPE_PLAIN,
    WEFT_ROPE_LINEAR,
    WEFT_ROPE_LLAMA3,
    WEFT_ROPE_YARN,
    WEFT_ROPE_LONG
} weft_rope_scaling;

enum { WEFT_ROPE_PAIRS = 128 }; /* that may have factors of their own */

typedef struct {
    double base; /* 10000 */
    weft_rope_scaling scaling;
    double factor;                  /* linear, llama3, yarn */
    double context;                 /* llama3 and yarn, as the next two */
    double low, high;               /* low < high */
    double amplitude;               /* of rotated columns: 1 */
    float factors[WEFT_ROPE_PAIRS]; /* long */
} weft_rope_law;

#define WEFT_ROPE_USUAL ((weft_rope_law){.base = 10000, .factor = 1, .amplitude = 1})

#define ROPE_TWO_PI 6.28318530717958647692

WEFT_BOTH static inline double weft_rope_within(double x) {
    return x < 0 ? 0 : x > 1 ? 1 : x;
}

/* The place, with a fraction, of the pair that makes so many rotations in the context. */
WEFT_BOTH static inline double weft_rope_place(const weft_rope_law *law, double rotations,
                                               int64_t width) {
    return (double)width * log(law->context / (rotations * ROPE_TWO_PI)) / (2 * log(law->base));
}

/* The share of a pair's own rate in what it is rotated by. */
WEFT_BOTH static inline double weft_rope_share(const weft_rope_law *law, int64_t i, int64_t width,
                                               double rate) {
    if (law->scaling == WEFT_ROPE_LLAMA3) {
        double rotations = law->context * rate / ROPE_TWO_PI;
        return weft_rope_within((rotations - law->low) / (law->high - law->low));
    }
    double first = floor(weft_rope_place(law, law->high, width));
    double last = ceil(weft_rope_place(law, law->low, width));
    if (first < 0) first = 0;
    if (last > (double)(width - 1)) last = (double)(width - 1);
    if (first == last) last += 0.001;
    return 1 - weft_rope_within(((double)i - first) / (last - first));
}

/* The angle of pair i per position. */
WEFT_BOTH static inline double weft_rope_rate(const weft_rope_law *law, int64_t i, int64_t width) {
    double rate = pow(law->base, -2.0 * (double)i / (double)width);
    if (law->scaling == WEFT_ROPE_PLAIN) return rate;
    if (law->scaling == WEFT_ROPE_LINEAR) return rate / law->factor;
    if (law->scaling == WEFT_ROPE_LONG) return rate / (double)law->factors[i];
    double share = weft_rope_share(law, i, width, rate);
    return rate * share + rate / law->factor * (1 - share);
}
