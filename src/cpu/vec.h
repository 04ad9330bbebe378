/* Small vectors of `real`, by the compilers' vector extensions: one source for NEON, SSE2, AVX2,
 * AVX-512 and machines without any. a*b + c contracts to a fused multiply-add where there is one.
 *
 * The tail of a row goes through the same vector code (vload_part, vstore_part), so that an
 * element's value does not depend on where in a row it stands. */
#ifndef WEFT_CPU_VEC_H
#define WEFT_CPU_VEC_H

#include "cpu/kernel.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__SSE2__)
#include <immintrin.h>
#endif

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

/* a in every lane. Taking 0 away changes nothing, not even -0; what is left is a broadcast, which a loop
 * over the lanes does not always become. */
static inline vreal vset(real a) {
    return a - (vreal){0};
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

/* VLEN numbers of bf16 and of i8. Compilers make two conversions of half the vector and an insertion of
 * __builtin_convertvector, where AVX has one instruction. */
#if WEFT_REAL == 32
static inline __attribute__((always_inline)) vreal vload_bf16(const uint16_t *p) {
#if defined(__AVX512F__)
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return (vreal)_mm512_slli_epi32(wide, 16);
#elif defined(__AVX2__)
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return (vreal)_mm256_slli_epi32(wide, 16);
#else
    typedef uint16_t half __attribute__((vector_size(VBYTES / 2)));
    half h;
    memcpy(&h, p, sizeof h);
    return (vreal)__builtin_shufflevector((half){0}, h, 0, 4, 1, 5, 2, 6, 3, 7);
#endif
}
#endif

static inline __attribute__((always_inline)) vreal vload_i8(const int8_t *p) {
#if defined(__AVX512F__) && WEFT_REAL == 32
    return (vreal)_mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
#elif defined(__AVX2__) && WEFT_REAL == 32
    return (vreal)_mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
#else
    typedef int8_t bytes __attribute__((vector_size(VBYTES / sizeof(real))));
    bytes b;
    memcpy(&b, p, sizeof b);
    return __builtin_convertvector(b, vreal);
#endif
}

/* mask ? a : b, the mask from a comparison of vectors. */
static inline vreal vselect(vint mask, vreal a, vreal b) {
    return (vreal)((mask & (vint)a) | (~mask & (vint)b));
}

/* The larger and the smaller, by the machine's own instruction where it has one. NaN in b comes
 * through everywhere; NaN in a on some machines only. */
#if defined(__aarch64__) && WEFT_REAL == 64
#define VMAX_(a, b) vmaxq_f64((float64x2_t)(a), (float64x2_t)(b))
#define VMIN_(a, b) vminq_f64((float64x2_t)(a), (float64x2_t)(b))
#elif defined(__aarch64__)
#define VMAX_(a, b) vmaxq_f32((float32x4_t)(a), (float32x4_t)(b))
#define VMIN_(a, b) vminq_f32((float32x4_t)(a), (float32x4_t)(b))
#elif defined(__AVX512F__) && WEFT_REAL == 64
#define VMAX_(a, b) _mm512_max_pd((__m512d)(a), (__m512d)(b))
#define VMIN_(a, b) _mm512_min_pd((__m512d)(a), (__m512d)(b))
#elif defined(__AVX512F__)
#define VMAX_(a, b) _mm512_max_ps((__m512)(a), (__m512)(b))
#define VMIN_(a, b) _mm512_min_ps((__m512)(a), (__m512)(b))
#elif defined(__AVX2__) && WEFT_REAL == 64
#define VMAX_(a, b) _mm256_max_pd((__m256d)(a), (__m256d)(b))
#define VMIN_(a, b) _mm256_min_pd((__m256d)(a), (__m256d)(b))
#elif defined(__AVX2__)
#define VMAX_(a, b) _mm256_max_ps((__m256)(a), (__m256)(b))
#define VMIN_(a, b) _mm256_min_ps((__m256)(a), (__m256)(b))
#elif defined(__SSE2__) && WEFT_REAL == 64
#define VMAX_(a, b) _mm_max_pd((__m128d)(a), (__m128d)(b))
#define VMIN_(a, b) _mm_min_pd((__m128d)(a), (__m128d)(b))
#elif defined(__SSE2__)
#define VMAX_(a, b) _mm_max_ps((__m128)(a), (__m128)(b))
#define VMIN_(a, b) _mm_min_ps((__m128)(a), (__m128)(b))
#else
#define VMAX_(a, b) vselect((a) > (b), (a), (b))
#define VMIN_(a, b) vselect((a) < (b), (a), (b))
#endif

static inline vreal vmax(vreal a, vreal b) {
    return (vreal)VMAX_(a, b);
}

static inline vreal vmin(vreal a, vreal b) {
    return (vreal)VMIN_(a, b);
}

static inline vreal vabs(vreal a) {
#if WEFT_REAL == 64
    return (vreal)((vint)a & ((vint){0} + INT64_MAX));
#else
    return (vreal)((vint)a & ((vint){0} + INT32_MAX));
#endif
}

/* a·b + c rounded once where the machine can. `a * b + c` mostly compiles to the same, but whether
 * it does may depend on the code around it (gcc 13 leaves it apart in some chains of additions), so
 * sums whose bits must agree between two pieces of code are written with this. */
static inline vreal vfma(vreal a, vreal b, vreal c) {
#if defined(__AVX512F__) && WEFT_REAL == 64
    return (vreal)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__AVX512F__)
    return (vreal)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && WEFT_REAL == 64
    return (vreal)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(__AVX2__)
    return (vreal)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__) && WEFT_REAL == 64
    return (vreal)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#elif defined(__aarch64__)
    return (vreal)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

/* b · (the lane of a) + c, rounded once; the lane is a constant. */
#if defined(__aarch64__) && WEFT_REAL == 32
#define VFMA_LANE(b, a, lane, c)                                                                   \
    ((vreal)vfmaq_laneq_f32((float32x4_t)(c), (float32x4_t)(b), (float32x4_t)(a), lane))
#else
#define VFMA_LANE(b, a, lane, c) vfma(b, vset((a)[lane]), c)
#endif

#if defined(__AVX2__) && WEFT_REAL == 32

/* Eight lanes from a vector: the upper half beside the lower one, where there are sixteen. */
#if defined(__AVX512F__)
#define VHALF(v) _mm512_castps512_ps256((__m512)(v)), _mm512_extractf32x8_ps((__m512)(v), 1)
#define VEIGHT(op, v) op(VHALF(v))
#else
#define VEIGHT(op, v) ((__m256)(v))
#endif

/* The sum of the lanes, halves first: a fixed order. */
static inline real vsum(vreal v) {
    __m256 eight = VEIGHT(_mm256_add_ps, v);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static inline real vmax_lane(vreal v) {
    __m256 eight = VEIGHT(_mm256_max_ps, v);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

#else

/* The sum of the lanes, halves first: a fixed order. */
#if defined(__aarch64__) && WEFT_REAL == 32
static inline real vsum(vreal v) {
    float32x4_t four = (float32x4_t)v;
    return vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)));
}
#else
static inline real vsum(vreal v) {
    real lane[VBYTES / sizeof(real)];
    memcpy(lane, &v, sizeof v);
    for (int64_t width = VLEN / 2; width > 0; width /= 2)
        for (int64_t i = 0; i < width; i++)
            lane[i] += lane[i + width];
    return lane[0];
}
#endif

static inline real vmax_lane(vreal v) {
    real best = v[0];
    for (int i = 1; i < (int)VLEN; i++)
        best = v[i] > best ? v[i] : best;
    return best;
}

#endif

#if WEFT_REAL == 64

/* double is for checks, not for speed: the C library, lane by lane. */
static inline vreal vexp(vreal x) {
    for (int i = 0; i < (int)VLEN; i++)
        x[i] = exp(x[i]);
    return x;
}

static inline vreal vexp2(vreal x) {
    for (int i = 0; i < (int)VLEN; i++)
        x[i] = exp2(x[i]);
    return x;
}

static inline vreal vexp2_low(vreal x) {
    return vexp2(x);
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

/* e^x within 1.5 ulp, 0 below -86.9, inf above 88.73, NaN of NaN. x = n ln 2 + r, |r| ≤ ln 2 / 2, and
 * a polynomial of least relative error makes 2e^r. Adding `shift` rounds x / ln 2 to n and leaves
 * n + 126, the exponent of 2^(n-1), in the lowest bits, where one shift takes it to its place: the
 * factor 2 that is missing there is in the polynomial, so that n = 128 is still in range. */
static inline vreal vexp(vreal x) {
    const vreal shift = vset(0x1.8p23f + 126), low = vset(-86.9f), high = vset(89.0f);
    vreal c = vmin(high, vmax(low, x));
    vreal t = c * 0x1.715476p0f + shift;
    vreal scale = (vreal)((vint)t << 23), whole = t - shift;
    vreal r = c - whole * 0x1.62e400p-1f;
    r = r - whole * 0x1.7f7d1cp-20f;
    vreal r2 = r * r;
    vreal p = 0x1.1239e2p-6f * r + 0x1.5558f2p-4f, q = 0x1.555492p-2f * r + 0x1.fffffcp-1f;
    p = 0x1.6a2434p-9f * r2 + p;
    p = p * r2 + q;
    p = p * r2 + (2 * r + 2);
    return (vreal)((vint)(p * scale) & ~(vint)(x < low));
}

/* 2^x within 1.5 ulp for x below 128, 0 below -125.5, NaN of NaN. As vexp, but the split of x into
 * n + r is exact, and `low` is where the exponent field is 0, and with it the factor. On aarch64 the
 * steps are those of attention_exp.h, bit for bit. */
#define EXP2_SHIFT (0x1.8p23f + 126)
#define EXP2_LOW (-126.25f)
#define EXP2_HIGH 129.0f
#define EXP2_1 0x1.62e430p0f
#define EXP2_2 0x1.ebfbdcp-2f
#define EXP2_3 0x1.c6af7cp-4f
#define EXP2_4 0x1.3b2de0p-6f
#define EXP2_5 0x1.5f0830p-9f
#define EXP2_6 0x1.416b5ep-12f

static inline vreal vexp2_low(vreal x) {
    const vreal shift = vset(EXP2_SHIFT), low = vset(EXP2_LOW);
    vreal c = vmax(low, x);
    vreal t = c + shift;
    vreal scale = (vreal)((vint)t << 23), r = c - (t - shift);
#if defined(__aarch64__)
    vreal p = vfma(vset(EXP2_6), r, vset(EXP2_5));
    p = vfma(p, r, vset(EXP2_4));
    p = vfma(p, r, vset(EXP2_3));
    p = vfma(p, r, vset(EXP2_2));
    p = vfma(p, r, vset(EXP2_1));
    p = vfma(p, r, vset(2));
#else
    vreal r2 = r * r;
    vreal p = EXP2_5 * r + EXP2_4, q = EXP2_3 * r + EXP2_2;
    p = EXP2_6 * r2 + p;
    p = p * r2 + q;
    p = p * r2 + (EXP2_1 * r + 2);
#endif
    return p * scale;
}

/* The same for any x: inf from 128.5 on. */
static inline vreal vexp2(vreal x) {
    return vexp2_low(vmin(vset(EXP2_HIGH), x));
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

/* 2√(2/π), and that times 0.044715. */
#define GELU_A ((real)1.5957691216057307117597842397375)
#define GELU_B ((real)0.071354816272600248776338752179865)

/* tanh's GELU as x·σ(2u), 2u = x (GELU_A + GELU_B x²): one exponential and one division, and no
 * cancellation where x is negative. */
static inline vreal vgelu(vreal x) {
    return x * vsigmoid(x * (GELU_A + GELU_B * (x * x)));
}

/* Beyond this the slope is 0 or 1 to the last bit; within it e^-2u stays finite. */
#define GELU_FLAT ((real)(WEFT_REAL == 64 ? 21 : 10))

/* gelu's derivative, σ + xσ(1 − σ)2u'. σ(1 − σ) as σ²e^-2u: 1 − σ itself would lose its digits where
 * x is large. */
static inline vreal vgelu_slope(vreal x) {
    x = vmin(vset(GELU_FLAT), vmax(vset(-GELU_FLAT), x));
    vreal x2 = x * x, e = vexp(-x * (GELU_A + GELU_B * x2)), s = 1 / (1 + e);
    return s + x * (s * e * s) * (GELU_A + 3 * GELU_B * x2);
}

/* out = dy times gelu's slope at x, n of each; out may be dy. */
static inline void vgelu_back(real *out, const real *dy, const real *x, int64_t n) {
    int64_t i = 0;
    for (; i + 4 * VLEN <= n; i += 4 * VLEN) { /* side by side: none waits for its own last step */
        vreal slope[4];
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++)
            slope[k] = vgelu_slope(vload(x + i + k * VLEN));
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++)
            vstore(out + i + k * VLEN, vload(dy + i + k * VLEN) * slope[k]);
    }
    for (; i + VLEN <= n; i += VLEN)
        vstore(out + i, vload(dy + i) * vgelu_slope(vload(x + i)));
    if (i < n)
        vstore_part(out + i, vload_part(dy + i, n - i) * vgelu_slope(vload_part(x + i, n - i)),
                    n - i);
}

/* log(1 + e^x) = max(x, 0) + log(1 + e^-|x|): neither end overflows or loses its small part. */
static inline vreal vsoftplus(vreal x) {
    return vmax(x, vset(0)) + vlog1p_unit(vexp(-vabs(x)));
}

#endif
