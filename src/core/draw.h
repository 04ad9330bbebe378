/* From logits to a token: the arithmetic of a draw, which host and device share bit by bit.
 *
 * A token's weight is its probability over the likeliest token's, as a whole number of 2^-39. Weights are
 * made from two operations on doubles, which IEEE 754 rounds in one way only and which no compiler joins, and
 * then from integers. Sums of integers do not depend on their order, so whoever adds them up draws the same
 * token. The likeliest token weighs WEFT_DRAW_ONE, and one that is 2^40 times less likely nothing at all.
 *
 *   1. The logits of tokens that were seen are divided by the penalty (multiplied, below 0).
 *   2. Weights. Where a rule below is set the order is by weight, larger ones first, of equal ones the lower
 *      token; otherwise by token.
 *   3. The first top_k of the order are left;
 *   4. of them the fewest whose sum is weft_draw_needed or more, and those that weigh `least` or more.
 *   5. With the sum of what is left: the first token at which the sum exceeds weft_draw_target.
 *
 * generate/sample.c does this by dividing the candidates, cuda/decode/draw.cu by counting. */
#pragma once

#include "base/random.h"

#include <float.h>
#include <stdbool.h>

#define WEFT_DRAW_ONE (UINT64_C(1) << 39)
/* A step of the exponent: 2^46 of them halve a weight. */
#define WEFT_DRAW_STEPS 0x1p46

/* How a token is drawn: what sampling parameters are for one place of a text (weft_sampling_draw). */
typedef struct {
    double scale;    /* log2(e) / temperature, times WEFT_DRAW_STEPS; 0: the likeliest token */
    uint64_t random; /* uniform */
    int64_t top_k;   /* 0: all */
    double top_p;    /* 1: all */
    uint64_t least;  /* weight; 0: all */
    double penalty;  /* 1: none */
    const int32_t *seen;
    int64_t n_seen;
} weft_draw;

/* Whether it is the likeliest token as the logits are. */
static inline bool weft_draw_is_plain(const weft_draw *d) {
    return d->scale == 0 && d->penalty == 1;
}

/* The upper half of a product. */
WEFT_BOTH static inline uint64_t weft_draw_high(uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH__
    return __umul64hi(a, b);
#else
    return (uint64_t)(((unsigned __int128)a * b) >> 64);
#endif
}

/* A seen token's logit. What is not finite stays what it is, and what is stays finite. */
WEFT_BOTH static inline float weft_draw_penalised(float logit, double penalty) {
    if (!(logit >= -FLT_MAX && logit <= FLT_MAX)) return logit;
    double v = logit > 0 ? (double)logit / penalty : (double)logit * penalty;
    return v > (double)FLT_MAX ? FLT_MAX : v < -(double)FLT_MAX ? -FLT_MAX : (float)v;
}

/* The weight of a logit where the largest is `most`: 2^-y by its series in y's fraction, to 2^-43; 0 for what
 * is not a number. */
WEFT_BOTH static inline uint64_t weft_draw_weight(float logit, float most, double scale) {
    double y = ((double)most - (double)logit) * scale;
    if (!(y >= 0 && y < 40 * WEFT_DRAW_STEPS)) return 0;
    uint64_t steps = (uint64_t)y, halvings = steps >> 46;
    uint64_t x = weft_draw_high(steps << 18, UINT64_C(0xb17217f7d1cf79ac)); /* times ln 2 */
    /* 2^63 / k!, k from 13 down: each less x times what was before it. */
    const uint64_t terms[] = {0x5849184f,         0x47bb63bfe,        0x35cc8acfeb,
                              0x24fc9f6ef14,      0x171de3a556c7,     0xd00d00d00d01,
                              0x6806806806807,    0x2d82d82d82d82e,   0x111111111111111,
                              0x555555555555555,  0x1555555555555555, 0x4000000000000000,
                              0x8000000000000000, 0x8000000000000000};
    uint64_t p = terms[0];
    for (int k = 1; k < 14; k++)
        p = terms[k] - weft_draw_high(p, x);
    return (p + (UINT64_C(1) << (23 + halvings))) >> (24 + halvings);
}

/* x, 0 or more, rounded up. */
WEFT_BOTH static inline uint64_t weft_draw_ceiling(double x) {
    uint64_t whole = (uint64_t)x;
    return whole + ((double)whole < x);
}

/* The sum that top-p asks for, from 1 to `total`. */
WEFT_BOTH static inline uint64_t weft_draw_needed(uint64_t total, double top_p) {
    double x = (double)total * top_p;
    if (x >= (double)total) return total;
    uint64_t needed = weft_draw_ceiling(x);
    return needed < 1 ? 1 : needed > total ? total : needed;
}

/* A uniform number below `left`. */
WEFT_BOTH static inline uint64_t weft_draw_target(uint64_t random, uint64_t left) {
    return weft_draw_high(random, left);
}
