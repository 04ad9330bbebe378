/* As many independent sums as the registers hold, so that the units for multiply-adds always have work
 * and nothing waits for memory.
 *
 * On x86-64 the operands are numbers as a product has them, and change from one instruction to the next:
 * a processor that is held to its power multiplies zeros, or the same two numbers again and again, faster
 * than it ever multiplies matrices (with AMX more than twice as fast). On aarch64 they are 0: there that
 * makes no difference. */
#include "cpu/matrix.h"
#include "cpu/panel_form.h"
#include "cpu/vec.h"

/* So many rounds on the calling thread; returns the floating-point operations of them. By the vectors'
 * multiply-add, and by the instructions for bf16 in use: 0 where there are none. */
double KERNEL(peak_real)(int64_t rounds);
double KERNEL(peak_bf16)(int64_t rounds);

enum {
#if defined(__AVX512F__) || defined(__aarch64__)
    SUMS = 24
#else
    SUMS = 10
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
                     : NEON_REGISTERS)

double KERNEL(peak_real)(int64_t rounds) {
    double operations = 2.0 * SUMS * (double)VLEN * (double)rounds;
    SUM_LOOP(SUM_FMLA);
    return operations;
}

#else

enum { LEFT = SUMS / 8 + 1, RIGHT = 2 };

/* Makes a register's contents unknown to the compiler, which would else multiply before the loop. */
#if defined(__AVX512F__)
#define HIDE(v) __asm__("" : "+v"(v))
#elif defined(__SSE2__)
#define HIDE(v) __asm__("" : "+x"(v))
#elif defined(__aarch64__)
#define HIDE(v) __asm__("" : "+w"(v))
#else
#define HIDE(v) (void)0
#endif

/* What the compiler does not know. */
static _Thread_local volatile uint32_t seed = 1; /* of a thread: all of them measure at once */

/* n numbers of either sign, about 1/2 in size. */
static void draw_numbers(real *to, int n) {
    uint32_t state = seed;
    for (int i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        to[i] = (real)(int32_t)state / (real)4294967296.0;
    }
}

/* The products are added and then taken off again, so that no sum grows. */
double KERNEL(peak_real)(int64_t rounds) {
    real numbers[(LEFT + RIGHT) * (VBYTES / (int)sizeof(real))];
    draw_numbers(numbers, (int)(sizeof numbers / sizeof numbers[0]));
    vreal sum[SUMS], a[LEFT], b[RIGHT], minus[RIGHT];
    for (int i = 0; i < LEFT; i++)
        a[i] = vload(numbers + i * VLEN);
    for (int j = 0; j < RIGHT; j++)
        b[j] = vload(numbers + (LEFT + j) * VLEN), minus[j] = -b[j];
    UNROLLED(i, SUMS)
        sum[i] = vset((real)i);
    for (int64_t r = 0; r < rounds; r++) {
        UNROLLED(i, LEFT)
            HIDE(a[i]);
        UNROLLED(i, SUMS)
            sum[i] = vfma(a[i / 2 % LEFT], b[i % 2], sum[i]);
        UNROLLED(i, SUMS)
            sum[i] = vfma(a[i / 2 % LEFT], minus[i % 2], sum[i]);
    }
#pragma GCC unroll 24
    for (int i = 1; i < SUMS; i++)
        sum[0] += sum[i];
    seed = vsum(sum[0]) > 0 ? 1 : 2;
    return 2.0 * 2 * SUMS * (double)VLEN * (double)rounds;
}

#endif

#if WEFT_REAL == 32 && WEFT_ARM_TARGETS

/* A register holds 2 × 2 results and gets the products of 2 × 4 by 4 × 2 numbers. */
BF16_ARM static double work_bfmmla(int64_t rounds) {
    double operations = 2.0 * SUMS * 16 * (double)rounds;
    SUM_LOOP(SUM_BFMMLA);
    return operations;
}

double KERNEL(peak_bf16)(int64_t rounds) {
    return weft_cpu_matrix() == WEFT_MATRIX_BFMMLA ? work_bfmmla(rounds) : 0;
}

#elif WEFT_REAL == 32 && defined(__AVX512F__)

/* Pairs of bf16 numbers: the upper halves of floats, which the lower ones are taken to be too. */
__attribute__((target("avx512bf16"))) static double work_pairs(int64_t rounds) {
    float numbers[(LEFT + RIGHT) * 16];
    draw_numbers(numbers, (LEFT + RIGHT) * 16);
    for (int i = 0; i < (LEFT + RIGHT) * 16; i++) {
        uint32_t pair = (uint32_t)weft_float_to_bf16(numbers[i]) * 0x10001u;
        memcpy(numbers + i, &pair, sizeof pair);
    }
    __m512 sum[SUMS];
    __m512bh a[LEFT], b[RIGHT];
    for (int i = 0; i < LEFT; i++)
        a[i] = (__m512bh)_mm512_loadu_ps(numbers + 16 * i);
    for (int j = 0; j < RIGHT; j++)
        b[j] = (__m512bh)_mm512_loadu_ps(numbers + 16 * (LEFT + j));
    UNROLLED(i, SUMS)
        sum[i] = _mm512_set1_ps((float)i);
    for (int64_t r = 0; r < rounds; r++)
        UNROLLED(i, SUMS)
            sum[i] = _mm512_dpbf16_ps(sum[i], a[i / 2 % LEFT], b[i % 2]);
#pragma GCC unroll 24
    for (int i = 1; i < SUMS; i++)
        sum[0] = _mm512_add_ps(sum[0], sum[i]);
    seed = _mm512_reduce_add_ps(sum[0]) > 0 ? 1 : 2;
    return 2.0 * SUMS * 32 * (double)rounds;
}

/* Four tiles of 16 × 16 results, each from tiles of 16 × 32 and 32 × 16. */
__attribute__((target("amx-tile,amx-bf16"))) static double work_tiles(int64_t rounds) {
    float numbers[512];
    uint16_t tiles[4][512];
    draw_numbers(numbers, 512);
    for (int t = 0; t < 4; t++)
        for (int i = 0; i < 512; i++)
            tiles[t][i] = weft_float_to_bf16(numbers[(i * (2 * t + 1) + t) % 512]);
    const panel_form *form = KERNEL(panel_bf16)();
    form->begin(); /* all eight tiles are 0 */
    _tile_loadd(4, tiles[0], 64);
    _tile_loadd(5, tiles[1], 64);
    _tile_loadd(6, tiles[2], 64);
    _tile_loadd(7, tiles[3], 64);
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

double KERNEL(peak_bf16)(UNUSED int64_t rounds) {
    return 0;
}

#endif
