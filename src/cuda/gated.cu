/* Gated linear layers on the GPU, piece by piece: the kernels of the nodes that they stand for. */
#include "cuda/kernel.cuh"

extern "C" {
#include "ops/gated.h"

extern const weft_kernel weft_cuda_matmul, weft_cuda_silu_mul, weft_cuda_silu_mul_back;
}

static weft_status gated_linear_run(weft_exec *x, const weft_node *n) {
    weft_gated_part part;
    for (int out = WEFT_GATED_GATE; out <= WEFT_GATED_UP; out++) {
        weft_gated_product(n, out, &part);
        WEFT_TRY(weft_cuda_matmul.run(x, &part.node));
    }
    weft_gated_silu_mul(n, &part);
    return weft_cuda_silu_mul.run(x, &part.node);
}

static int64_t gated_linear_workspace(const weft_node *n, int threads) {
    int64_t most = 0;
    for (int out = WEFT_GATED_GATE; out <= WEFT_GATED_UP; out++) {
        weft_gated_part part;
        weft_gated_product(n, out, &part);
        most = max_i64(most, weft_cuda_matmul.workspace(&part.node, threads));
    }
    return most;
}

CUDA_KERNEL(gated_linear, gated_linear_run, gated_linear_workspace)

static weft_status gated_linear_back_run(weft_exec *x, const weft_node *n) {
    weft_gated_part part;
    weft_gated_back_product(n, &part);
    WEFT_TRY(weft_cuda_matmul.run(x, &part.node));
    weft_gated_back_silu_mul(n, &part);
    return weft_cuda_silu_mul_back.run(x, &part.node);
}

static int64_t gated_linear_back_workspace(const weft_node *n, int threads) {
    weft_gated_part part;
    weft_gated_back_product(n, &part);
    return weft_cuda_matmul.workspace(&part.node, threads);
}

CUDA_KERNEL(gated_linear_back, gated_linear_back_run, gated_linear_back_workspace)
