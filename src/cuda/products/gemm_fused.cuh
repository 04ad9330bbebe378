/* Gelu's gradient behind a sum of products, and its bias's, on Hopper's tensor cores: the library has no
 * fast kernel for it.
 *
 *     y = bf16(Σ_s factor_s · a_s op(b_s)) · gelu'(at)
 *
 * Gelu's slope is put to a tile of sums while the next tile is multiplied. */
#pragma once

#include "cuda/kernel.cuh"

enum { FUSED_SEGMENTS = 6 };

typedef struct {
    const bf16 *a, *b; /* a [m, k]; b [k, n], or [n, k] with tb */
    int64_t k;
    bool tb;
    float factor; /* not 0 */
} fused_segment;

typedef struct {
    int64_t m, n;
    int segments;
    fused_segment segment[FUSED_SEGMENTS];
    const bf16 *at; /* [m, n], and so is y, which it may be */
    bf16 *y;
    float *sums; /* [fused_bands(m), n]: column sums of y, as f32 has it, over each band of
                    rows; NULL: not wanted */
} fused_product;

/* Whether this product can be done here: code for compute capability 9.0a, n and all k multiples of 8,
 * tensors aligned to 16 bytes as the arena's are, and not too small to be worth it. Follows from
 * shapes and the device's facts: addresses are not looked at, so that workspace can be planned by
 * it. */
bool fused_can(const fused_product *p);

/* Bands of rows that column sums come in. */
int64_t fused_bands(int64_t m);

/* Launches it. */
weft_status fused_launch(cudaStream_t stream, const fused_product *p);
