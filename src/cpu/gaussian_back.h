/* The gradient of a Gaussian's vector, for gaussian_back and for attention, which has it in hand where
 * queries or keys are Gaussians. */
#pragma once

#include "cpu/chunks.h"

#if WEFT_REAL == 64

/* 1 − e^−a, for a ≥ 0. */
static inline double slope(double a) {
    return -expm1(-a);
}
VLANES(vslope, slope)

#else

/* 1 − e^−a, for a ≥ 0; below 1/32, where that cancels, its series. Within 2e-6. */
static inline vreal vslope(vreal a) {
    vreal series = a * (1 + a * (a * (1 / 6.0f) - 0.5f));
    return vselect(a < vset(0x1p-5f), series, 1 - vexp(-a));
}

#endif

/* in: y, dy. arg: twice the gradient of the head's sum of squares. */
VECTOR_FN(mean_back_vector) {
    out[0] = in[1] + arg[0] * in[0];
}

VECTOR_FN(deviation_back_vector) {
    out[0] = (in[1] + arg[0] * in[0]) * vslope(in[0]);
}

/* dx of some means or some deviations; it may lie over y or dy. `twice`: as arg above. */
static inline void join_gradients(bool deviations, const real *y, const real *dy, real *dx,
                                  int64_t len, real twice) {
    const real *in[] = {y, dy};
    real *out[] = {dx};
    if (deviations)
        apply(deviation_back_vector, 2, in, 1, out, len, &twice);
    else
        apply(mean_back_vector, 2, in, 1, out, len, &twice);
}
