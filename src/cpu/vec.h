/* Small vectors of `real`, by the compilers' vector extensions: one source for NEON, SSE2, AVX2,
 * AVX-512 and machines without any. a*b + c contracts to a fused multiply-add where there is one.
 *
 * The tail of a row goes through the same vector code (vload_part, vstore_part), so that an
 * element's value does not depend on where in a row it stands. */
#pragma once

#include "cpu/kernel.h"

#if defined(__aarch64__)
#include <arm_neon.h>
/* What assembly that uses all registers changes. */
#define NEON_REGISTERS                                                                             \
    "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", \
        "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", \
        "v28", "v29", "v30", "v31", "cc", "memory"
/* What is done to v8 to v31, two at a time; and zeros in two. */
#define NEON_SUMS(of)                                                                              \
    of(8, 9) of(10, 11) of(12, 13) of(14, 15) of(16, 17) of(18, 19) of(20, 21) of(22, 23)          \
        of(24, 25) of(26, 27) of(28, 29) of(30, 31)
#define NEON_ZERO(a, b) "movi v" #a ".4s, #0\nmovi v" #b ".4s, #0\n"

/* What is compiled for the instructions of bf16. */
#define BF16_ARM __attribute__((target("arch=armv8.2-a+bf16")))

/* Two rows of sixteen bytes: the first eight of each, and the last. */
static ALWAYS_INLINE void zip_halves(const void *one, const void *two, uint8x16_t *to) {
    uint64x2_t a = vld1q_u64(one), b = vld1q_u64(two);
    to[0] = vreinterpretq_u8_u64(vzip1q_u64(a, b));
    to[1] = vreinterpretq_u8_u64(vzip2q_u64(a, b));
}
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
static ALWAYS_INLINE vreal vload_n(const real *p, int64_t n) {
    return n == VLEN ? vload(p) : vload_part(p, n);
}

static ALWAYS_INLINE void vstore_n(real *p, vreal v, int64_t n) {
    if (n == VLEN)
        vstore(p, v);
    else
        vstore_part(p, v, n);
}

/* VLEN numbers of bf16 and of i8. Compilers make two conversions of half the vector and an insertion of
 * __builtin_convertvector, where AVX has one instruction. */
static ALWAYS_INLINE vreal vload_bf16(const uint16_t *p) {
#if WEFT_REAL == 64
    vreal v;
    for (int i = 0; i < (int)VLEN; i++)
        v[i] = (real)weft_bf16_to_float(p[i]);
    return v;
#elif defined(__AVX512F__)
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

/* VLEN numbers from element i on, reals or bf16, or the first n of them and zeros. */
static ALWAYS_INLINE vreal vload_narrow(const void *data, int64_t i, int64_t n, const bool bf16) {
    if (!bf16) {
        const real *from = (const real *)data + i;
        return n >= VLEN ? vload(from) : vload_part(from, n);
    }
    const uint16_t *from = (const uint16_t *)data + i;
    if (n >= VLEN) return vload_bf16(from);
    uint16_t part[VBYTES / sizeof(real)] = {0};
    memcpy(part, from, (size_t)n * sizeof *part);
    return vload_bf16(part);
}

static ALWAYS_INLINE vreal vload_i8(const int8_t *p) {
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

/* Four numbers, whatever the vectors' length. */
typedef real quad __attribute__((vector_size(4 * sizeof(real))));

static ALWAYS_INLINE quad load_quad(const void *p) {
    quad v;
    memcpy(&v, p, sizeof v);
    return v;
}

static ALWAYS_INLINE void store_quad(void *p, quad v) {
    memcpy(p, &v, sizeof v);
}

/* Four rows of four numbers, transposed: to[j * step] gets the j-th of each row. */
static ALWAYS_INLINE void transpose_quads(quad a, quad b, quad c, quad d, real *to, int64_t step) {
    quad ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    quad ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    quad cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    quad cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    store_quad(to, __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5));
    store_quad(to + step, __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7));
    store_quad(to + 2 * step, __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
    store_quad(to + 3 * step, __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7));
}

/* mask ? a : b, the mask from a comparison of vectors. */
static inline vreal vselect(vint mask, vreal a, vreal b) {
    return (vreal)((mask & (vint)a) | (~mask & (vint)b));
}

/* The machine's own vector, and its instructions by name. */
#if defined(__aarch64__) && WEFT_REAL == 64
typedef float64x2_t vnative;
#define VNATIVE(op) v##op##q_f64
#elif defined(__aarch64__)
typedef float32x4_t vnative;
#define VNATIVE(op) v##op##q_f32
#elif defined(__AVX512F__) && WEFT_REAL == 64
typedef __m512d vnative;
#define VNATIVE(op) _mm512_##op##_pd
#elif defined(__AVX512F__)
typedef __m512 vnative;
#define VNATIVE(op) _mm512_##op##_ps
#elif defined(__AVX2__) && WEFT_REAL == 64
typedef __m256d vnative;
#define VNATIVE(op) _mm256_##op##_pd
#elif defined(__AVX2__)
typedef __m256 vnative;
#define VNATIVE(op) _mm256_##op##_ps
#elif defined(__SSE2__) && WEFT_REAL == 64
typedef __m128d vnative;
#define VNATIVE(op) _mm_##op##_pd
#elif defined(__SSE2__)
typedef __m128 vnative;
#define VNATIVE(op) _mm_##op##_ps
#endif

/* The larger and the smaller. NaN in b comes through everywhere; NaN in a on some machines only. */
#if defined(VNATIVE)
#define VCHOOSE(op, before) (vreal) VNATIVE(op)((vnative)a, (vnative)b)
#else
#define VCHOOSE(op, before) vselect(a before b, a, b)
#endif
static inline vreal vmax(vreal a, vreal b) {
    return VCHOOSE(max, >);
}

static inline vreal vmin(vreal a, vreal b) {
    return VCHOOSE(min, <);
}

static inline vreal vabs(vreal a) {
    const vint_lane all = (vint_lane)(WEFT_REAL == 64 ? INT64_MAX : INT32_MAX);
    return (vreal)((vint)a & ((vint){0} + all));
}

/* a·b + c rounded once where the machine can. `a * b + c` mostly compiles to the same, but whether
 * it does may depend on the code around it (gcc 13 leaves it apart in some chains of additions), so
 * sums whose bits must agree between two pieces of code are written with this. */
static inline vreal vfma(vreal a, vreal b, vreal c) {
#if defined(__AVX2__)
    return (vreal)VNATIVE(fmadd)((vnative)a, (vnative)b, (vnative)c);
#elif defined(__aarch64__)
    return (vreal)VNATIVE(fma)((vnative)c, (vnative)a, (vnative)b);
#else
    return a * b + c;
#endif
}

#if defined(__AVX2__) && WEFT_REAL == 32

/* Eight lanes from a vector: the upper half beside the lower one, where there are sixteen. */
#if defined(__AVX512F__)
#define VHALF(v) _mm512_castps512_ps256((__m512)(v)), _mm512_extractf32x8_ps((__m512)(v), 1)
#define VEIGHT(op, v) op(VHALF(v))
#else
#define VEIGHT(op, v) ((__m256)(v))
#endif

/* The sum of the lanes, or the largest, halves first: a fixed order. */
#define VFOLD(name, op)                                                                            \
    static inline real name(vreal v) {                                                             \
        __m256 eight = VEIGHT(_mm256_##op##_ps, v);                                                \
        __m128 high = _mm256_extractf128_ps(eight, 1);                                             \
        __m128 four = _mm_##op##_ps(_mm256_castps256_ps128(eight), high);                          \
        __m128 two = _mm_##op##_ps(four, _mm_movehl_ps(four, four));                               \
        return _mm_cvtss_f32(_mm_##op##_ss(two, _mm_movehdup_ps(two)));                            \
    }
VFOLD(vsum, add)
VFOLD(vmax_lane, max)

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

/* The sums of n vectors' lanes, as vsum adds them, `apart` from each other. */
static ALWAYS_INLINE void store_lane_sums(real *to, int64_t apart, const vreal *sum, const int n) {
    int j = 0;
#if WEFT_REAL == 32 && VBYTES == 16
#pragma GCC unroll 2
    for (; j + 4 <= n; j += 4, sum += 4) {
        vreal ab = __builtin_shufflevector(sum[0], sum[1], 0, 1, 4, 5) +
                   __builtin_shufflevector(sum[0], sum[1], 2, 3, 6, 7);
        vreal cd = __builtin_shufflevector(sum[2], sum[3], 0, 1, 4, 5) +
                   __builtin_shufflevector(sum[2], sum[3], 2, 3, 6, 7);
#if defined(__aarch64__)
        vreal four = (vreal)vpaddq_f32((float32x4_t)ab, (float32x4_t)cd);
#else
        vreal four = __builtin_shufflevector(ab, cd, 0, 2, 4, 6) +
                     __builtin_shufflevector(ab, cd, 1, 3, 5, 7);
#endif
        for (int c = 0; c < 4; c++)
            to[(j + c) * apart] = four[c];
    }
#endif
#pragma GCC unroll 8
    for (; j < n; j++, sum++)
        to[j * apart] = vsum(*sum);
}

/* A function of one number, for each lane. */
#define VLANES(name, of)                                                                           \
    static inline vreal name(vreal a) {                                                            \
        for (int i = 0; i < (int)VLEN; i++)                                                        \
            a[i] = of(a[i]);                                                                       \
        return a;                                                                                  \
    }

#if WEFT_REAL == 64

VLANES(vsqrt, sqrt)

/* double is for checks, not for speed: the C library, lane by lane. */
VLANES(vexp, exp)
VLANES(vexp2, exp2)
VLANES(vlog1p_unit, log1p)

static inline vreal vexp2_low(vreal x) {
    return vexp2(x);
}

#else

VLANES(vsqrt, sqrtf)

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

/* By the exponential, and near 0, where that loses its digits, by a polynomial; reals of 64 bits have digits enough. */
static inline vreal vtanh(vreal x) {
    vreal far = 1 - 2 / (vexp(x + x) + 1);
#if WEFT_REAL == 64
    return far;
#else
    vreal x2 = x * x, p = vset(-5.70498872745e-3f);
    p = p * x2 + 2.06390887954e-2f;
    p = p * x2 - 5.37397155531e-2f;
    p = p * x2 + 1.33314422036e-1f;
    p = p * x2 - 3.33332819422e-1f;
    return vselect(x2 < vset(0.39f), x + x * x2 * p, far);
#endif
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

/* One vector of each input to one vector of each output. Defined with VECTOR_FN, so that it becomes
 * part of the loop it is given to. */
#define VECTOR_FN(name)                                                                            \
    static ALWAYS_INLINE void name(const vreal *in, vreal *out, UNUSED const real *arg)
enum { APPLY_TENSORS = 4, APPLY_STEPS = 4 };
typedef void (*vector_fn)(const vreal *in, vreal *out, const real *arg);

/* f on `steps` vectors of n elements from i on. The steps are independent, and side by side in one
 * block of code they hide each other's latency: a single exponential is a chain of 15 operations. */
static ALWAYS_INLINE void apply_at(vector_fn f, int steps, int n_in, const real *const *from,
                                   int n_out, real *const *to, int64_t i, int64_t n,
                                   const real *arg) {
    vreal a[APPLY_STEPS][APPLY_TENSORS], y[APPLY_STEPS][APPLY_TENSORS];
    for (int s = 0; s < steps; s++)
        for (int k = 0; k < n_in; k++)
            a[s][k] = vload_n(from[k] + i + s * VLEN, n);
    for (int s = 0; s < steps; s++)
        f(a[s], y[s], arg);
    for (int s = 0; s < steps; s++)
        for (int k = 0; k < n_out; k++)
            if (to[k]) vstore_n(to[k] + i + s * VLEN, y[s][k], n);
}

/* f on `len` elements; inlined with f and the counts known, so the arrays become registers. An
 * output may be NULL (not wanted) or an input's own memory. */
static ALWAYS_INLINE void apply(vector_fn f, int n_in, const real *const *in, int n_out,
                                real *const *out, int64_t len, const real *arg) {
    const real *from[APPLY_TENSORS];
    real *to[APPLY_TENSORS];
    for (int k = 0; k < n_in; k++)
        from[k] = in[k];
    for (int k = 0; k < n_out; k++)
        to[k] = out[k];
    int64_t i = 0;
    for (; i + APPLY_STEPS * VLEN <= len; i += APPLY_STEPS * VLEN)
        apply_at(f, APPLY_STEPS, n_in, from, n_out, to, i, VLEN, arg);
    for (; i + VLEN <= len; i += VLEN)
        apply_at(f, 1, n_in, from, n_out, to, i, VLEN, arg);
    if (i < len) apply_at(f, 1, n_in, from, n_out, to, i, len - i, arg);
}

VECTOR_FN(gelu_rows_vector) {
    out[0] = vgelu(in[0]);
}

VECTOR_FN(gelu_rows_back_vector) {
    out[0] = in[0] * vgelu_slope(in[1]);
}

/* out = dy times gelu's slope at x, n of each; out may be dy. */
static inline void vgelu_back(real *out, const real *dy, const real *x, int64_t n) {
    apply(gelu_rows_back_vector, 2, (const real *[]){dy, x}, 1, &out, n, NULL);
}

/* The normal distribution's Φ, by the library's function, a number at a time; and its density. */
static inline vreal vnormal(vreal x) {
    real lanes[VLEN];
    vstore(lanes, x);
    for (int64_t i = 0; i < VLEN; i++)
        lanes[i] = (real)(0.5 * erfc(-0.70710678118654752440 * (double)lanes[i]));
    return vload(lanes);
}

static inline vreal vdensity(vreal x) {
    return (real)0.39894228040143267794 * vexp(x * x * (real)-0.5);
}

/* log(1 + e^x) = max(x, 0) + log(1 + e^-|x|): neither end overflows or loses its small part. */
static inline vreal vsoftplus(vreal x) {
    return vmax(x, vset(0)) + vlog1p_unit(vexp(-vabs(x)));
}
