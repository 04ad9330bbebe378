/* Products with a fused epilogue, on Hopper's tensor cores: several summed in one, with work behind the
 * sums that the library has no fast kernel for.
 *
 *     c = Σ_s factor_s · a_s op(b_s) + bias, rounded to bf16, + addend
 *
 * and behind it one of `fused_epilogue`. The kernel is persistent and warp-specialized: a block makes
 * tiles of 256 rows and 128 columns of c, one after another; producer warps load the factors by TMA, two
 * consumer warpgroups multiply by wgmma and leave each tile in shared memory, and two more do the
 * epilogue, and all that goes with it to and from memory, while the next tile is multiplied. */
#pragma once

#include "cuda/kernel.cuh"

enum { FUSED_SEGMENTS = 5 };

typedef enum {
    FUSED_PLAIN,        /* y = c */
    FUSED_GELU,         /* pre = c (NULL: not wanted), y = gelu(c) */
    FUSED_GELU_BACK,    /* y = c · gelu'(at). No addend. */
    FUSED_SILU_MUL,     /* two products of one a: gate = a op(b), up = a op(b2);
                           y = silu(gate) · up; gate and up are kept where not NULL. No bias, no
                           addend. */
    FUSED_SILU_MUL_BACK /* c is dy of silu_mul: y = dgate, y2 = dup, from gate and up. No addend. */
} fused_epilogue;

typedef struct {
    const bf16 *a, *b; /* a [m, k]; b [k, n], or [n, k] with tb, which all segments have alike */
    int64_t lda, ldb, k;
    bool tb;
    float factor;
} fused_segment;

typedef struct {
    int64_t m, n;
    int64_t ld; /* elements between rows of all that is [m, n]; 0: n */
    int segments;
    fused_segment segment[FUSED_SEGMENTS];
    const bf16 *b2; /* SILU_MUL: like segment[0].b; one segment then */
    fused_epilogue epilogue;
    any_tensor bias;             /* [n]; data NULL: none */
    const bf16 *addend;          /* [m, n], or NULL; may be y */
    const bf16 *at;              /* GELU_BACK: [m, n]; may be y */
    bf16 *pre;                   /* GELU: [m, n] or NULL */
    const bf16 *gate_in, *up_in; /* SILU_MUL_BACK: [m, n] */
    bf16 *gate, *up;             /* SILU_MUL: [m, n]; NULL: not kept */
    bf16 *y, *y2;                /* [m, n] */
    float *sums; /* [fused_bands(m), n]: column sums of y, as f32 has it, over each band of
                    rows; NULL: not wanted. Only with PLAIN and GELU_BACK. */
} fused_product;

/* Whether this product can be done here: code for compute capability 9.0a, n and all k and ld
 * multiples of 8, tensors aligned to 16 bytes as the arena's are, and not too small to be worth it.
 * Follows from shapes and the device's facts: addresses are not looked at, so that workspace can be
 * planned by it. */
bool fused_can(const fused_product *p);

/* Bands of rows that column sums come in. */
int64_t fused_bands(int64_t m);

/* Launches it. */
weft_status fused_launch(cudaStream_t stream, const fused_product *p);
