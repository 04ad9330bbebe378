/* As many independent sums as the registers hold, so that the units for multiply-adds always have work
 * and nothing waits for memory. All numbers are 0, which the compiler does not know: what is measured is
 * the instructions' own rate, and no sum grows. */
#include "cpu/peak.h"

#include "cpu/matrix.h"
#include "cpu/panel_form.h"
#include "cpu/vec.h"

enum {
#if defined(__AVX512F__) || defined(__aarch64__)
    SUMS = 24
#else
    SUMS = 12
#endif
};

#if defined(__aarch64__) && WEFT_REAL == 32

/* In assembly. Of loops that differ in nothing but the names of the registers and the place of the
 * counter, some run at half the speed on a Neoverse V1; compilers pick either. */
#define EACH_SUM(op)                                                                               \
    op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11) op(12) op(13) op(14) \
        op(15) op(16) op(17) op(18) op(19) op(20) op(21) op(22) op(23)
#define SUM_ZERO(i) "movi v" #i ".4s, #0\n"
#define SUM_FMLA(i) "fmla v" #i ".4s, v30.4s, v31.4s\n"
#define SUM_BFMMLA(i) "bfmmla v" #i ".4s, v30.8h, v31.8h\n"
#define SUM_LOOP(step)                                                                             \
    __asm__ volatile(EACH_SUM(SUM_ZERO) "movi v30.4s, #0\n"                                        \
                                        "movi v31.4s, #0\n"                                        \
                                        "1:\n" EACH_SUM(step) "subs %[rounds], %[rounds], #1\n"    \
                                                              "b.ne 1b\n"                          \
                     : [rounds] "+r"(rounds)                                                       \
                     :                                                                             \
                     : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11",   \
                       "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21",       \
                       "v22", "v23", "v30", "v31", "cc")

double KERNEL(peak_real)(int64_t rounds) {
    double operations = 2.0 * SUMS * (double)VLEN * (double)rounds;
    SUM_LOOP(SUM_FMLA);
    return operations;
}

#else

static _Thread_local volatile real number; /* what the compiler cannot know, and the sums' end */

double KERNEL(peak_real)(int64_t rounds) {
    vreal sum[SUMS], a = vset(number), b = vset(number);
#pragma GCC unroll 24
    for (int i = 0; i < SUMS; i++)
        sum[i] = vset(number);
    for (int64_t r = 0; r < rounds; r++)
#pragma GCC unroll 24
        for (int i = 0; i < SUMS; i++)
            sum[i] = vfma(a, b, sum[i]);
#pragma GCC unroll 24
    for (int i = 1; i < SUMS; i++)
        sum[0] += sum[i];
    number = vsum(sum[0]);
    return 2.0 * SUMS * (double)VLEN * (double)rounds;
}

#endif

#if WEFT_REAL == 32 && WEFT_ARM_TARGETS

/* A register holds 2 × 2 results and gets the products of 2 × 4 by 4 × 2 numbers. */
__attribute__((target("arch=armv8.2-a+bf16"))) static double work_bfmmla(int64_t rounds) {
    double operations = 2.0 * SUMS * 16 * (double)rounds;
    SUM_LOOP(SUM_BFMMLA);
    return operations;
}

double KERNEL(peak_bf16)(int64_t rounds) {
    return weft_cpu_matrix() == WEFT_MATRIX_BFMMLA ? work_bfmmla(rounds) : 0;
}

#elif WEFT_REAL == 32 && defined(__AVX512F__)

__attribute__((target("avx512bf16"))) static double work_pairs(int64_t rounds) {
    __m512 sum[SUMS];
    __m512bh a = (__m512bh)_mm512_set1_ps(number), b = (__m512bh)_mm512_set1_ps(number);
#pragma GCC unroll 24
    for (int i = 0; i < SUMS; i++)
        sum[i] = _mm512_set1_ps(number);
    for (int64_t r = 0; r < rounds; r++)
#pragma GCC unroll 24
        for (int i = 0; i < SUMS; i++)
            sum[i] = _mm512_dpbf16_ps(sum[i], a, b);
#pragma GCC unroll 24
    for (int i = 1; i < SUMS; i++)
        sum[0] = _mm512_add_ps(sum[0], sum[i]);
    number = _mm512_reduce_add_ps(sum[0]);
    return 2.0 * SUMS * 32 * (double)rounds;
}

/* Four tiles of 16 × 16 results, each from tiles of 16 × 32 and 32 × 16. */
__attribute__((target("amx-tile,amx-bf16"))) static double work_tiles(int64_t rounds) {
    const panel_form *form = KERNEL(panel_bf16)();
    form->begin(); /* all eight tiles are 0 */
    for (int64_t r = 0; r < rounds; r++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    form->end();
    return 2.0 * 4 * 16 * 16 * 32 * (double)rounds;
}

double KERNEL(peak_bf16)(int64_t rounds) {
    switch (weft_cpu_matrix()) {
    case WEFT_MATRIX_AMX:
        return work_tiles(rounds);
    case WEFT_MATRIX_AVX512_BF16:
        return work_pairs(rounds);
    default:
        return 0;
    }
}

#else

double KERNEL(peak_bf16)(int64_t rounds) {
    (void)rounds;
    return 0;
}

#endif
