/* Small vectors of `real`, by the compilers' vector extensions: one source for NEON, SSE2, AVX2,
 * AVX-512 and machines without any. a*b + c contracts to a fused multiply-add where there is one.
 *
 * The tail of a row goes through the same vector code (vload_part, vstore_part), so that an
 * element's value does not depend on where in a row it stands. */
#ifndef WEFT_CPU_VEC_H
#define WEFT_CPU_VEC_H

#include "cpu/kernel.h"

#if defined(__AVX512F__)
#define VBYTES 64
#elif defined(__AVX2__)
#define VBYTES 32
#else
#define VBYTES 16
#endif

#define VLEN ((int64_t)(VBYTES / sizeof(real)))

#if WEFT_REAL == 64
typedef int64_t vint_lane;
#else
typedef int32_t vint_lane;
#endif

typedef real vreal __attribute__((vector_size(VBYTES)));
typedef vint_lane vint __attribute__((vector_size(VBYTES)));
/* The same vector at any address. */
typedef real vreal_any __attribute__((vector_size(VBYTES), aligned(sizeof(real)), may_alias));

static inline vreal vload(const real *p) {
    return *(const vreal_any *)p;
}

static inline void vstore(real *p, vreal v) {
    *(vreal_any *)p = v;
}

static inline vreal vset(real a) {
    vreal v;
    for (int i = 0; i < (int)VLEN; i++)
        v[i] = a;
    return v;
}

/* The first n < VLEN elements; the others are 0. */
static inline vreal vload_part(const real *p, int64_t n) {
    vreal v = {0};
    memcpy(&v, p, (size_t)n * sizeof(real));
    return v;
}

static inline void vstore_part(real *p, vreal v, int64_t n) {
    memcpy(p, &v, (size_t)n * sizeof(real));
}

/* The same for n ≤ VLEN: where the caller's n is the constant VLEN nothing is left of the test. */
static inline __attribute__((always_inline)) vreal vload_n(const real *p, int64_t n) {
    return n == VLEN ? vload(p) : vload_part(p, n);
}

static inline __attribute__((always_inline)) void vstore_n(real *p, vreal v, int64_t n) {
    if (n == VLEN)
        vstore(p, v);
    else
        vstore_part(p, v, n);
}

/* mask ? a : b, the mask from a comparison of vectors. */
static inline vreal vselect(vint mask, vreal a, vreal b) {
    return (vreal)((mask & (vint)a) | (~mask & (vint)b));
}

static inline vreal vmax(vreal a, vreal b) {
    return vselect(a > b, a, b);
}

static inline vreal vmin(vreal a, vreal b) {
    return vselect(a < b, a, b);
}

static inline vreal vabs(vreal a) {
#if WEFT_REAL == 64
    return (vreal)((vint)a & ((vint){0} + INT64_MAX));
#else
    return (vreal)((vint)a & ((vint){0} + INT32_MAX));
#endif
}

/* The sum of the lanes, halves first: a fixed order. */
static inline real vsum(vreal v) {
    real lane[VBYTES / sizeof(real)];
    memcpy(lane, &v, sizeof v);
    for (int64_t width = VLEN / 2; width > 0; width /= 2)
        for (int64_t i = 0; i < width; i++)
            lane[i] += lane[i + width];
    return lane[0];
}

static inline real vmax_lane(vreal v) {
    real best = v[0];
    for (int i = 1; i < (int)VLEN; i++)
        best = v[i] > best ? v[i] : best;
    return best;
}

#if WEFT_REAL == 64

/* double is for checks, not for speed: the C library, lane by lane. */
static inline vreal vexp(vreal x) {
    for (int i = 0; i < (int)VLEN; i++)
        x[i] = exp(x[i]);
    return x;
}

static inline vreal vtanh(vreal x) {
    for (int i = 0; i < (int)VLEN; i++)
        x[i] = tanh(x[i]);
    return x;
}

/* log(1 + z) for 0 ≤ z ≤ 1. */
static inline vreal vlog1p_unit(vreal z) {
    for (int i = 0; i < (int)VLEN; i++)
        z[i] = log1p(z[i]);
    return z;
}

#else

/* e^x within 1.2 ulp: x = n ln 2 + r, |r| ≤ ln 2 / 2, the polynomial of least relative error in r,
 * and 2^n by the exponent's bits in two halves, so that the range's ends are right. e^x is 0 below
 * -104 and inf above 88.73; the comparisons let NaN through. */
static inline vreal vexp(vreal x) {
    const vreal shift = vset(0x1.8p23f), low = vset(-104.0f), high = vset(89.0f);
    vreal c = vselect(x < low, low, x);
    c = vselect(c > high, high, c);
    vreal t = c * 0x1.715476p0f + shift;
    vint n = (vint)t - (vint)shift;
    vreal whole = t - shift;
    vreal r = c - whole * 0x1.62e400p-1f;
    r = r - whole * 0x1.7f7d1cp-20f;
    vreal p = vset(0x1.6a2434p-10f);
    p = p * r + 0x1.1239e2p-7f;
    p = p * r + 0x1.5558f2p-5f;
    p = p * r + 0x1.555492p-3f;
    p = p * r + 0x1.fffffcp-2f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    vint half = n >> 1;
    vreal s1 = (vreal)((half + 127) << 23), s2 = (vreal)((n - half + 127) << 23);
    return p * s1 * s2;
}

/* tanh(x) = 1 - 2 / (1 + e^2x); within ±0.6, where that cancels, an odd polynomial. */
static inline vreal vtanh(vreal x) {
    vreal big = 1 - 2 / (1 + vexp(2 * x));
    vreal x2 = x * x;
    vreal p = vset(-0x1.830c08p-8f);
    p = p * x2 + 0x1.54e01cp-6f;
    p = p * x2 + -0x1.b89edap-5f;
    p = p * x2 + 0x1.1109dcp-3f;
    p = p * x2 + -0x1.55553ep-2f;
    return vselect(x2 < vset(0.36f), x + x * x2 * p, big);
}

/* log(1 + z) for 0 ≤ z ≤ 1, as 2 artanh(s), s = z / (2 + z) ≤ 1/3: right for the smallest z too. */
static inline vreal vlog1p_unit(vreal z) {
    vreal s = z / (2 + z), s2 = s * s;
    vreal p = vset(0x1.f1aee0p-4f);
    p = p * s2 + 0x1.b6d6a4p-4f;
    p = p * s2 + 0x1.250972p-3f;
    p = p * s2 + 0x1.9996a8p-3f;
    p = p * s2 + 0x1.555558p-2f;
    s = s + s;
    return s + s * s2 * p;
}

#endif

/* 1 / (1 + e^-x), without overflow for either sign: e^-x may be inf, and 1/inf is 0. */
static inline vreal vsigmoid(vreal x) {
    return 1 / (1 + vexp(-x));
}

/* log(1 + e^x) = max(x, 0) + log(1 + e^-|x|): neither end overflows or loses its small part. */
static inline vreal vsoftplus(vreal x) {
    return vmax(x, vset(0)) + vlog1p_unit(vexp(-vabs(x)));
}

#endif
