/* Products of few rows whose weights stream through shared memory (streamed.cu): what generation runs on
 * Hopper. c = a bᵀ with b [n, k], both bf16; a row's bits do not depend on the other rows or on how many
 * there are. */
#pragma once

#include "cuda/products/gemm.cuh"

/* Whether a product can be, by types, sizes and strides, not by the number of rows; and whether it begins
 * where TMA can read it, as every tensor does. */
bool streamed_fits(const cuda_gemm *p);
bool streamed_can(const cuda_gemm *p);

/* a as the norm of x + r, [m, k], for few rows: the kernel makes it, with norm.cu's bits. */
typedef struct {
    const bf16 *x, *r; /* r NULL: there is none */
    any_tensor w, b;
    float eps, share; /* share: 1 / k */
    bool centered;
    bf16 *s, *y; /* x + r, where that is wanted, and the norm go to memory too */
} streamed_norm;

/* Launches the products that follow a norm's node, and the norm in their kernel. False: they cannot. */
bool launch_normed_products(const weft_exec *x, const weft_node *norm, const streamed_norm *how);
bool launch_normed_gate(const weft_exec *x, const weft_node *norm, const streamed_norm *how);

/* Whether a product, or a gate's, can norm its rows: they are few. */
bool streamed_can_norm(const cuda_gemm *p, bool gated);

/* Products of the same a in one launch, at most GEMM_TOGETHER, none needing what another makes; `norm` NULL:
 * of a itself. An error is cudaGetLastError's. */
void streamed_launch(cudaStream_t stream, const cuda_gemm *p, int n, const streamed_norm *norm);

/* y = silu(gate) · up, of the products of one a with two matrices of the same size. Both are rounded to
 * bf16 first; `gate` and `up` have c where that is to be written, or NULL. */
void streamed_launch_gated(cudaStream_t stream, const cuda_gemm *gate, const cuda_gemm *up,
                           any_tensor y, const streamed_norm *norm);
