/* Products of few rows whose weights stream through shared memory (streamed.cu): what generation runs on
 * Hopper. c = a bᵀ with b [n, k], both bf16; a row's bits do not depend on the other rows or on how many
 * there are. */
#pragma once

#include "cuda/products/gemm.cuh"

/* Columns of a row with a norm, at most; a lane joins so many of its moments. */
enum { STREAMED_MOMENTS = 2, STREAMED_NORM_WIDTH = STREAMED_MOMENTS * 16 * 64 };

/* Whether a product can be, by types, sizes and strides, not by the number of rows; and whether it begins
 * where TMA can read it, as every tensor does. */
bool streamed_fits(const cuda_gemm *p);
bool streamed_can(const cuda_gemm *p);

/* Products of as many rows in one launch, at most GEMM_TOGETHER, none needing what another makes; one with gates
 * or RoPE goes by itself. An error is cudaGetLastError's. */
void streamed_launch(cudaStream_t stream, const cuda_gemm *p, int n);

/* c = silu(gate) · up, of the products of one a with two matrices of the same size. Both are rounded to
 * bf16 first; `gate` and `up` have c where that is to be written, or NULL. A bias is of LayerNorm's, in f32, and
 * goes with no c. */
void streamed_launch_gated(cudaStream_t stream, const cuda_gemm *gate, const cuda_gemm *up,
                           any_tensor y);
