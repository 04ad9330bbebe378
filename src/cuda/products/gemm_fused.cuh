/* Products with a fused epilogue, on Hopper's tensor cores: several summed in one, or SwiGLU's two side by
 * side, with work behind the sums that the library has no fast kernel for.
 *
 *     c = Σ_s factor_s · a_s op(b_s), rounded to bf16
 *
 * and behind it one of `fused_epilogue`, while the next tile of c is multiplied. */
#pragma once

#include "cuda/products/gemm.cuh"

enum { FUSED_SEGMENTS = 6 };

/* What becomes of c, with the tensors that `in` and `out` have, all [m, n]. */
typedef enum {
    FUSED_PLAIN,     /* in: addend, or NULL; it may be y. out: y = c + addend */
    FUSED_GELU_BACK, /* in: at, which may be y. out: y = c · gelu'(at) */
    FUSED_SILU_MUL   /* two segments of one a, not summed: gate and up.
                           out: y = silu(gate) · up, and gate and up, or NULL twice */
} fused_epilogue;

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
    fused_epilogue epilogue;
    const bf16 *in;
    bf16 *out[3];
    float *sums; /* [fused_bands(m), n]: column sums of y, as f32 has it, over each band of
                    rows; NULL: not wanted. Only with GELU_BACK. */
} fused_product;

/* Adds a product of rows to the sum, or beside it. */
static inline void fused_add(fused_product *t, const cuda_gemm &p) {
    t->m = p.m, t->n = p.n;
    t->segment[t->segments++] =
        fused_segment{(const bf16 *)p.a.data, (const bf16 *)p.b.data, p.k, p.tb, p.alpha};
}

/* Whether this product can be done here: code for compute capability 9.0a, n and all k multiples of 8,
 * tensors aligned to 16 bytes as the arena's are, and not too small to be worth it. Follows from
 * shapes and the device's facts: addresses are not looked at, so that workspace can be planned by
 * it. */
bool fused_can(const fused_product *p);

/* Bands of rows that column sums come in. */
int64_t fused_bands(int64_t m);

/* Launches it. */
weft_status fused_launch(cudaStream_t stream, const fused_product *p);
