/* Weights from scores, many at a time: the exponentials of attention's tiles.
 *
 * 2^x is a chain of a dozen steps, each of which waits two to four cycles for the one before, and
 * aarch64's cores look only a few instructions ahead. So there, for f32, eight vectors go side by
 * side: every step is done for all of them before the next. The steps are those of vexp2, so that a
 * number's bits do not depend on which of the two made it.
 *
 * Elsewhere the functions do nothing, and their callers' loops do all the work. */
#pragma once

#include "cpu/attention_tile.h"

/* A row of a panel is two vectors. So many rows, or a multiple, are done: sums, and with them bits,
 * follow from where a caller goes on by itself. */
enum { EXP_ROWS = 6, EXP_VECTORS = 8 };

#if defined(__aarch64__) && WEFT_REAL == 32

enum { HAS_EXP_MANY = 1 };

/* x = 2^x for n vectors, each below 128 or, with `any`, of any size. A coefficient is loaded anew
 * wherever it is added to, which costs less than a copy and keeps the steps in their order. */
static ALWAYS_INLINE void exp2_many(vreal *x, const int n, const bool any) {
#define EXP_NUMBER(x)                                                                              \
    { x, x, x, x }
    static const float numbers[][4] = {EXP_NUMBER(EXP2_5), EXP_NUMBER(EXP2_4), EXP_NUMBER(EXP2_3),
                                       EXP_NUMBER(EXP2_2), EXP_NUMBER(EXP2_1), EXP_NUMBER(2)};
#undef EXP_NUMBER
    const vreal shift = vset(EXP2_SHIFT), low = vset(EXP2_LOW), highest = vset(EXP2_6);
    vreal r[EXP_VECTORS], scale[EXP_VECTORS];
    UNROLLED(v, n) {
        r[v] = vmax(low, any ? vmin(vset(EXP2_HIGH), x[v]) : x[v]);
        vreal t = r[v] + shift;
        scale[v] = (vreal)((vint)t << 23);
        r[v] = r[v] - (t - shift);
    }
    UNROLLED(i, 6)
        UNROLLED(v, n) {
            vreal number;
            __asm__ volatile("ldr %q0, %1" : "=w"(number) : "m"(numbers[i]));
            x[v] = vfma(i ? x[v] : highest, r[v], number);
        }
    UNROLLED(v, n)
        x[v] *= scale[v];
}

#else

enum { HAS_EXP_MANY = 0 };

static inline void exp2_many(const vreal *x, int n, bool any) {
    (void)x, (void)n, (void)any;
}

#endif

static ALWAYS_INLINE void softmax_vectors(real *scores, const vreal *top, vreal *sum, const int n) {
    vreal x[EXP_VECTORS];
    UNROLLED(v, n)
        x[v] = vload(scores + v * VLEN) - top[v % 2];
    exp2_many(x, n, false);
    UNROLLED(v, n) {
        vstore(scores + v * VLEN, x[v]);
        sum[v % 2] += x[v];
    }
}

/* scores = 2^(scores − top), added to `sum`, for the first of `rows` rows. Returns how many. */
static inline int64_t softmax_many(real *scores, int64_t rows, const vreal top[2], vreal sum[2]) {
    int64_t done = HAS_EXP_MANY ? rows / EXP_ROWS * EXP_ROWS : 0, i = 0;
    vreal tops[2] = {top[0], top[1]}, sums[2] = {sum[0], sum[1]}; /* which no store can change */
    for (; i + EXP_VECTORS <= 2 * done; i += EXP_VECTORS)
        softmax_vectors(scores + i * VLEN, tops, sums, EXP_VECTORS);
    if (i < 2 * done) softmax_vectors(scores + i * VLEN, tops, sums, EXP_VECTORS / 2);
    sum[0] = sums[0];
    sum[1] = sums[1];
    return done;
}

static ALWAYS_INLINE void softmax_back_vectors(real *p, real *ds, const bool columns,
                                               const bool numbers, vreal *column, vreal *number,
                                               const int n) {
    vreal x[EXP_VECTORS];
    UNROLLED(v, n)
        x[v] = vload(p + v * VLEN);
    exp2_many(x, n, true);
    UNROLLED(v, n) {
        vreal d = x[v] * vload(ds + v * VLEN), was = vload(p + v * VLEN);
        vstore(p + v * VLEN, x[v]);
        vstore(ds + v * VLEN, d);
        if (columns) column[v % 2] += d;
        if (numbers) number[v % 2] = vfma(d, was, number[v % 2]);
    }
}

/* p = 2^p and ds = p ds for the first of `rows` rows; where `columns`, column += ds; where `numbers`
 * too, number += ds · (what p was). Returns how many. */
static ALWAYS_INLINE int64_t softmax_back_many(real *p, real *ds, int64_t rows, const bool columns,
                                               const bool numbers, vreal column[2],
                                               vreal number[2]) {
    int64_t done = HAS_EXP_MANY ? rows / EXP_ROWS * EXP_ROWS : 0, i = 0;
    vreal sums[2] = {column[0], column[1]}, others[2] = {number[0], number[1]};
    for (; i + EXP_VECTORS <= 2 * done; i += EXP_VECTORS)
        softmax_back_vectors(p + i * VLEN, ds + i * VLEN, columns, numbers, sums, others,
                             EXP_VECTORS);
    if (i < 2 * done)
        softmax_back_vectors(p + i * VLEN, ds + i * VLEN, columns, numbers, sums, others,
                             EXP_VECTORS / 2);
    memcpy(column, sums, sizeof sums);
    memcpy(number, others, sizeof others);
    return done;
}
