/* Gated linear layers on the CPU, piece by piece: the kernels of the nodes that they stand for. The
 * products wait for the processor and not for memory, so there is nothing to win by more. */
#include "ops/gated.h"

#include "cpu/kernel.h"

extern const weft_kernel KERNEL(matmul), KERNEL(silu_mul), KERNEL(silu_mul_back);

static int64_t gated_linear_workspace(const weft_node *n, int threads) {
    int64_t most = 0;
    for (int out = WEFT_GATED_GATE; out <= WEFT_GATED_UP; out++) {
        weft_gated_part part;
        weft_gated_product(n, out, &part);
        most = max_i64(most, KERNEL(matmul).workspace(&part.node, threads));
    }
    return most;
}

DEFINE_KERNEL(gated_linear, .workspace = gated_linear_workspace) {
    weft_gated_part part;
    for (int out = WEFT_GATED_GATE; out <= WEFT_GATED_UP; out++) {
        weft_gated_product(n, out, &part);
        WEFT_TRY(KERNEL(matmul).run(x, &part.node));
    }
    weft_gated_silu_mul(n, &part);
    return KERNEL(silu_mul).run(x, &part.node);
}

static int64_t gated_linear_back_workspace(const weft_node *n, int threads) {
    weft_gated_part part;
    weft_gated_back_product(n, &part);
    return KERNEL(matmul).workspace(&part.node, threads);
}

DEFINE_KERNEL(gated_linear_back, .workspace = gated_linear_back_workspace) {
    weft_gated_part part;
    weft_gated_back_product(n, &part);
    WEFT_TRY(KERNEL(matmul).run(x, &part.node));
    weft_gated_back_silu_mul(n, &part);
    return KERNEL(silu_mul_back).run(x, &part.node);
}
