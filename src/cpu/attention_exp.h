/* Weights from scores, many at a time: the exponentials of attention's tiles.
 *
 * On aarch64, for f32, this is assembly. 2^x is a chain of a dozen steps, each of which waits two to
 * four cycles for the one before, and the machine looks only a few instructions ahead. So twelve
 * vectors go side by side: every step is done for all of them before the next. That takes all
 * registers; compilers, which move instructions, keep half of it in memory. The steps are those of
 * vexp2, so that a number's bits do not depend on which of the two made it: the polynomial by
 * Horner's rule, and each coefficient loaded where it is added to, which costs less than a copy.
 *
 * Elsewhere the functions do nothing, and their callers' loops do all the work. */
#pragma once

#include "cpu/attention_tile.h"

#if defined(__aarch64__) && WEFT_REAL == 32

/* Rows of a panel, two vectors each, that go together. */
enum { EXP_ROWS = 6 };

/* What the assembly reads, a vector each: the coefficients from the last but one down, the last,
 * the bounds, the shift. */
#define EXP_VECTOR(x)                                                                              \
    { x, x, x, x }
static const float exp_numbers[10][4] __attribute__((aligned(64))) = {
    EXP_VECTOR(EXP2_5),    EXP_VECTOR(EXP2_4),     EXP_VECTOR(EXP2_3), EXP_VECTOR(EXP2_2),
    EXP_VECTOR(EXP2_1),    EXP_VECTOR(2),          EXP_VECTOR(EXP2_6), EXP_VECTOR(EXP2_LOW),
    EXP_VECTOR(EXP2_HIGH), EXP_VECTOR(EXP2_SHIFT),
};
#undef EXP_VECTOR

/* clang-format off */

/* Registers, four at a time. X: the scores; then what is left of them without their whole part. A to
 * D: the polynomial, which each step moves on to the four that are free. Above them, v28 to v31 hold
 * what a caller adds up. */
#define EXP_X0 0, 1, 2, 3
#define EXP_X1 4, 5, 6, 7
#define EXP_X2 8, 9, 10, 11
#define EXP_A 12, 13, 14, 15
#define EXP_B 16, 17, 18, 19
#define EXP_C 20, 21, 22, 23
#define EXP_D 24, 25, 26, 27
#define EXP_X EXP_X0, EXP_X1, EXP_X2

/* Memory at [name] to or from all of X, or three other fours. */
#define EXP_MOVE(...) EXP_MOVE_(__VA_ARGS__)
#define EXP_MOVE_(op, name, a, b, c, d, e, f, g, h, i, j, k, l)                                    \
    op " q" #a ", q" #b ", [%[" #name "]]\n" op " q" #c ", q" #d ", [%[" #name "], #32]\n"         \
    op " q" #e ", q" #f ", [%[" #name "], #64]\n" op " q" #g ", q" #h ", [%[" #name "], #96]\n"    \
    op " q" #i ", q" #j ", [%[" #name "], #128]\n" op " q" #k ", q" #l ", [%[" #name "], #160]\n"

/* to = op(a, b) for four. */
#define EXP_DO(...) EXP_DO_(__VA_ARGS__)
#define EXP_DO_(op, to0, to1, to2, to3, a0, a1, a2, a3, b0, b1, b2, b3)                            \
    op " v" #to0 ".4s, v" #a0 ".4s, v" #b0 ".4s\n" op " v" #to1 ".4s, v" #a1 ".4s, v" #b1 ".4s\n"  \
    op " v" #to2 ".4s, v" #a2 ".4s, v" #b2 ".4s\n" op " v" #to3 ".4s, v" #a3 ".4s, v" #b3 ".4s\n"

/* X = op(X, a vector for the left half of each row and one for the right). */
#define EXP_BY(op, left, right)                                                                    \
    EXP_DO(op, EXP_X0, EXP_X0, left, right, left, right)                                           \
    EXP_DO(op, EXP_X1, EXP_X1, left, right, left, right)                                           \
    EXP_DO(op, EXP_X2, EXP_X2, left, right, left, right)

/* The vector for the left half of each row, and the one for the right, = op(itself, X). */
#define EXP_ADD_UP(op, left, right)                                                                \
    EXP_DO(op, left, right, left, right, left, right, left, right, EXP_X0)                         \
    EXP_DO(op, left, right, left, right, left, right, left, right, EXP_X1)                         \
    EXP_DO(op, left, right, left, right, left, right, left, right, EXP_X2)

/* Of two sums with the shift: 2^whole to [scale], the whole part in their place. */
#define EXP_WHOLE(a, b, at)                                                                        \
    "shl v26.4s, v" #a ".4s, #23\n"                                                                \
    "fsub v" #a ".4s, v" #a ".4s, v25.4s\n"                                                        \
    "shl v27.4s, v" #b ".4s, #23\n"                                                                \
    "fsub v" #b ".4s, v" #b ".4s, v25.4s\n"                                                        \
    "stp q26, q27, [%[scale], #" #at "]\n"

/* to = the coefficient at `at` + from · x for four. */
#define EXP_STEP(...) EXP_STEP_(__VA_ARGS__)
#define EXP_STEP_(at, to0, to1, to2, to3, a0, a1, a2, a3, x0, x1, x2, x3)                          \
    EXP_STEP_ONE(at, to0, a0, x0) EXP_STEP_ONE(at, to1, a1, x1)                                    \
    EXP_STEP_ONE(at, to2, a2, x2) EXP_STEP_ONE(at, to3, a3, x3)
#define EXP_STEP_ONE(at, to, from, x)                                                              \
    "ldr q" #to ", [%[numbers], #" #at "]\nfmla v" #to ".4s, v" #from ".4s, v" #x ".4s\n"

/* From the scores in X to the polynomial in D, A, B, and the factors 2^whole in X. */
#define EXP_FOUR_OF(v) v, v, v, v
#define EXP_ALL                                                                                    \
    "ldr q24, [%[numbers], #112]\n"                                                                \
    "ldr q25, [%[numbers], #144]\n" EXP_BY("fmax", 24, 24)                                         \
    EXP_DO("fadd", EXP_A, EXP_X0, EXP_FOUR_OF(25)) EXP_DO("fadd", EXP_B, EXP_X1, EXP_FOUR_OF(25))  \
    EXP_DO("fadd", EXP_C, EXP_X2, EXP_FOUR_OF(25))                                                 \
    EXP_WHOLE(12, 13, 0) EXP_WHOLE(14, 15, 32) EXP_WHOLE(16, 17, 64) EXP_WHOLE(18, 19, 96)         \
    EXP_WHOLE(20, 21, 128) EXP_WHOLE(22, 23, 160)                                                  \
    EXP_DO("fsub", EXP_X0, EXP_X0, EXP_A) EXP_DO("fsub", EXP_X1, EXP_X1, EXP_B)                    \
    EXP_DO("fsub", EXP_X2, EXP_X2, EXP_C)                                                          \
    "ldr q24, [%[numbers], #96]\n"                                                                 \
    EXP_STEP(0, EXP_A, EXP_FOUR_OF(24), EXP_X0) EXP_STEP(0, EXP_B, EXP_FOUR_OF(24), EXP_X1)        \
    EXP_STEP(0, EXP_C, EXP_FOUR_OF(24), EXP_X2)                                                    \
    EXP_STEP(16, EXP_D, EXP_A, EXP_X0) EXP_STEP(16, EXP_A, EXP_B, EXP_X1)                          \
    EXP_STEP(16, EXP_B, EXP_C, EXP_X2)                                                             \
    EXP_STEP(32, EXP_C, EXP_D, EXP_X0) EXP_STEP(32, EXP_D, EXP_A, EXP_X1)                          \
    EXP_STEP(32, EXP_A, EXP_B, EXP_X2)                                                             \
    EXP_STEP(48, EXP_B, EXP_C, EXP_X0) EXP_STEP(48, EXP_C, EXP_D, EXP_X1)                          \
    EXP_STEP(48, EXP_D, EXP_A, EXP_X2)                                                             \
    EXP_STEP(64, EXP_A, EXP_B, EXP_X0) EXP_STEP(64, EXP_B, EXP_C, EXP_X1)                          \
    EXP_STEP(64, EXP_C, EXP_D, EXP_X2)                                                             \
    EXP_STEP(80, EXP_D, EXP_A, EXP_X0) EXP_STEP(80, EXP_A, EXP_B, EXP_X1)                          \
    EXP_STEP(80, EXP_B, EXP_C, EXP_X2)                                                             \
    EXP_MOVE("ldp", scale, EXP_X)

/* As often as [blocks] says; `next` moves on to the next rows. */
#define EXP_LOOP(body, next)                                                                       \
    "1:\n" body next                                                                               \
    "subs %[blocks], %[blocks], #1\n"                                                              \
    "b.ne 1b\n"

#define EXP_FORWARD                                                                                \
    EXP_MOVE("ldp", scores, EXP_X) EXP_BY("fsub", 28, 29) EXP_ALL                                  \
    EXP_DO("fmul", EXP_X0, EXP_D, EXP_X0) EXP_DO("fmul", EXP_X1, EXP_A, EXP_X1)                    \
    EXP_DO("fmul", EXP_X2, EXP_B, EXP_X2) EXP_MOVE("stp", scores, EXP_X)                           \
    EXP_ADD_UP("fadd", 30, 31)
#define EXP_FORWARD_LOOP                                                                           \
    "ldp q28, q29, [%[top]]\n"                                                                     \
    "ldp q30, q31, [%[sums]]\n"                                                                    \
    EXP_LOOP(EXP_FORWARD, "add %[scores], %[scores], #192\n")                                      \
    "stp q30, q31, [%[sums]]\n"

/* clang-format on */

/* scores = 2^(scores − top), added to `sum`, for the first of `rows` rows. Returns how many. */
static inline int64_t softmax_many(real *scores, int64_t rows, const vreal top[2], vreal sum[2]) {
    int64_t blocks = rows / EXP_ROWS, done = blocks * EXP_ROWS;
    real scale[EXP_ROWS * 8], *at = scores;
    vreal *sums = sum;
    if (blocks > 0)
        __asm__ volatile(
            EXP_FORWARD_LOOP
            : [scores] "+&r"(at), [blocks] "+&r"(blocks)
            : [top] "r"(top), [sums] "r"(sums), [scale] "r"(scale), [numbers] "r"(exp_numbers)
            : NEON_REGISTERS);
    return done;
}

/* clang-format off */

/* P is made in D, A, B, dS in X; then what `more` does with dS, and S, which is still in memory. */
#define EXP_BACKWARD(more)                                                                         \
    EXP_MOVE("ldp", p, EXP_X)                                                                      \
    "ldr q24, [%[numbers], #128]\n" EXP_BY("fmin", 24, 24) EXP_ALL                                 \
    EXP_DO("fmul", EXP_D, EXP_D, EXP_X0) EXP_DO("fmul", EXP_A, EXP_A, EXP_X1)                      \
    EXP_DO("fmul", EXP_B, EXP_B, EXP_X2) EXP_MOVE("ldp", ds, EXP_X)                                \
    EXP_DO("fmul", EXP_X0, EXP_D, EXP_X0) EXP_DO("fmul", EXP_X1, EXP_A, EXP_X1)                    \
    EXP_DO("fmul", EXP_X2, EXP_B, EXP_X2) more                                                     \
    EXP_MOVE("stp", p, EXP_D, EXP_A, EXP_B) EXP_MOVE("stp", ds, EXP_X)
#define EXP_ADD_COLUMN EXP_ADD_UP("fadd", 28, 29)
#define EXP_ADD_NUMBER_OF(at0, at1, ...)                                                           \
    "ldp q20, q21, [%[p], #" #at0 "]\n"                                                            \
    "ldp q22, q23, [%[p], #" #at1 "]\n" EXP_DO("fmla", 30, 31, 30, 31, __VA_ARGS__, EXP_C)
#define EXP_ADD_NUMBER                                                                             \
    EXP_ADD_NUMBER_OF(0, 32, EXP_X0)                                                               \
    EXP_ADD_NUMBER_OF(64, 96, EXP_X1) EXP_ADD_NUMBER_OF(128, 160, EXP_X2)
#define EXP_BACKWARD_LOOP(more)                                                                    \
    "ldp q28, q29, [%[column]]\n"                                                                  \
    "ldp q30, q31, [%[number]]\n"                                                                  \
    EXP_LOOP(EXP_BACKWARD(more), "add %[p], %[p], #192\nadd %[ds], %[ds], #192\n")                 \
    "stp q28, q29, [%[column]]\n"                                                                  \
    "stp q30, q31, [%[number]]\n"
#define EXP_RUN_BACKWARD(more)                                                                     \
    __asm__ volatile(EXP_BACKWARD_LOOP(more)                                                       \
                     : [p] "+&r"(p_at), [ds] "+&r"(ds_at), [blocks] "+&r"(blocks)                  \
                     : [column] "r"(columns_at), [number] "r"(numbers_at), [scale] "r"(scale),     \
                       [numbers] "r"(exp_numbers)                                                  \
                     : NEON_REGISTERS)

/* clang-format on */

/* p = 2^p and ds = p ds for the first of `rows` rows; where `columns`, column += ds; where `numbers`
 * too, number += ds · (what p was). Returns how many. */
static ALWAYS_INLINE int64_t softmax_back_many(real *p, real *ds, int64_t rows, bool columns,
                                               bool numbers, vreal column[2], vreal number[2]) {
    int64_t blocks = rows / EXP_ROWS, done = blocks * EXP_ROWS;
    real scale[EXP_ROWS * 8], *p_at = p, *ds_at = ds;
    vreal *columns_at = column, *numbers_at = number;
    if (blocks == 0) return 0;
    if (numbers)
        EXP_RUN_BACKWARD(EXP_ADD_COLUMN EXP_ADD_NUMBER);
    else if (columns)
        EXP_RUN_BACKWARD(EXP_ADD_COLUMN);
    else
        EXP_RUN_BACKWARD("");
    return done;
}

#else

static inline int64_t softmax_many(const real *scores, int64_t rows, const vreal *top,
                                   const vreal *sum) {
    (void)scores, (void)rows, (void)top, (void)sum;
    return 0;
}

static inline int64_t softmax_back_many(const real *p, const real *ds, int64_t rows, bool columns,
                                        bool numbers, const vreal *column, const vreal *number) {
    (void)p, (void)ds, (void)rows, (void)columns, (void)numbers, (void)column, (void)number;
    return 0;
}

#endif
