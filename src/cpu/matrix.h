/* Instructions that multiply bf16 numbers and sum in float, where the processor has them. They are
 * asked for at run time: the kernels that use them are compiled for them function by function. */
#pragma once

#include <stdbool.h>

/* Whether functions may be compiled for Arm's dot product and matrix instructions one by one: clang
 * before 16 takes their intrinsics only where the whole file is compiled for them. */
#if defined(__aarch64__) && (!defined(__clang__) || __clang_major__ >= 16)
#define WEFT_ARM_TARGETS 1
#else
#define WEFT_ARM_TARGETS 0
#endif

typedef enum {
    WEFT_MATRIX_NONE,
    WEFT_MATRIX_BFMMLA,      /* Arm: 2 × 4 by 4 × 2, and BFDOT, dot products of pairs */
    WEFT_MATRIX_AVX512_BF16, /* x86-64: dot products of pairs */
    WEFT_MATRIX_AMX,         /* x86-64: tiles of 16 × 32 by 32 × 16; has the one before too */
} weft_matrix;

/* The best of them, or less where WEFT_CPU says so. */
weft_matrix weft_cpu_matrix(void);

/* Whether there are instructions for sums of products of int8 numbers: Arm's SDOT or AVX-512's VNNI; and
 * SMMLA, 2 × 8 by 8 × 2. Neither where WEFT_CPU names a set without matrix instructions. */
bool weft_cpu_dots_i8(void);
bool weft_cpu_tiles_i8(void);
