/* Rotary positions, for every kernel that rotates: the same bits wherever it is done. */
#pragma once

#include "cuda/kernel.cuh"

extern "C" {
#include "core/rope_law.h"
}

/* Of pair i of `half` at a position, in double: a float would lose an angle's last digits at long positions. */
__device__ static inline void find_angle(const weft_rope_law &law, int64_t position, int64_t i,
                                         int64_t half, float &cosine, float &sine) {
    double c, s;
    sincos((double)position * weft_rope_rate(&law, i, 2 * half), &s, &c);
    cosine = (float)(law.amplitude * c);
    sine = (float)(law.amplitude * s);
}

/* Of a pair (a, b), what becomes of the first and of the second. */
__device__ static inline float rotate_first(float a, float b, float cosine, float sine) {
    return __fmaf_rn(a, cosine, -__fmul_rn(b, sine));
}

__device__ static inline float rotate_second(float a, float b, float cosine, float sine) {
    return __fmaf_rn(a, sine, __fmul_rn(b, cosine));
}
