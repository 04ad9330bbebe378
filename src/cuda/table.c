/* The GPU's kernels by operation. A family whose file is not there has none, and the executor says
 * so; within a family an operation is left out by a kernel without `run`. */
#include "cuda/table.h"

#ifdef WEFT_HAVE_CUDA
#define KERNEL_DECLARE(name) extern const weft_kernel weft_cuda_##name;
WEFT_OPS(KERNEL_DECLARE)

#define ENTRY(name) [WEFT_OP_##name] = &weft_cuda_##name

static const weft_kernel *const table[WEFT_OP_COUNT] = {
#if __has_include("cuda/arith.cu")
    ENTRY(fill),
    ENTRY(add),
    ENTRY(scale),
    ENTRY(cast),
    ENTRY(dot),
    ENTRY(dot_back),
    ENTRY(sum_squares),
    ENTRY(sum_squares_back),
    ENTRY(row_squares),
    ENTRY(row_squares_back),
#endif
#if __has_include("cuda/embedding.cu")
    ENTRY(embed),
    ENTRY(embed_back),
    ENTRY(position_back),
#endif
#if __has_include("cuda/linear.cu")
    ENTRY(matmul),
    ENTRY(bias_back),
    ENTRY(gelu_bias_back),
#endif
#if __has_include("cuda/gated.cu")
    ENTRY(gated_linear),
    ENTRY(gated_linear_back),
#endif
#if __has_include("cuda/norm.cu")
    ENTRY(norm),
    ENTRY(norm_back),
#endif
#if __has_include("cuda/rope.cu")
    ENTRY(rope),
#endif
#if __has_include("cuda/attention.cu")
    ENTRY(attention),
    ENTRY(attention_back),
#endif
#if __has_include("cuda/routing.cu")
    ENTRY(route_topk),
    ENTRY(route_gather),
    ENTRY(route_gather_back),
    ENTRY(route_dense),
    ENTRY(route_dense_back),
#endif
#if __has_include("cuda/activation.cu")
    ENTRY(gelu),
    ENTRY(gelu_back),
    ENTRY(silu_mul),
    ENTRY(silu_mul_back),
    ENTRY(softplus),
    ENTRY(softplus_back),
    ENTRY(gate_mix),
    ENTRY(gate_mix_back),
#endif
#if __has_include("cuda/gaussian.cu")
    ENTRY(gaussian),
    ENTRY(gaussian_back),
    ENTRY(overlap),
    ENTRY(overlap_back),
#endif
#if __has_include("cuda/heads.cu")
    ENTRY(head_repeat),
    ENTRY(head_sum),
    ENTRY(head_pool),
    ENTRY(head_spread),
    ENTRY(head_scale_back),
    ENTRY(head_transpose),
#endif
#if __has_include("cuda/stack.cu")
    ENTRY(stack),
    ENTRY(unstack),
#endif
#if __has_include("cuda/dropout.cu")
    ENTRY(dropout),
#endif
#if __has_include("cuda/time.cu")
    ENTRY(running_mean),
    ENTRY(running_mean_back),
    ENTRY(time_mean),
    ENTRY(time_mean_back),
    ENTRY(moments),
    ENTRY(moments_back),
#endif
#if __has_include("cuda/cross_entropy.cu")
    ENTRY(cross_entropy),
    ENTRY(cross_entropy_back),
#endif
#if __has_include("cuda/contrastive.cu")
    ENTRY(infonce),
    ENTRY(infonce_back),
#endif
#if __has_include("cuda/optimizer.cu")
    ENTRY(global_norm),
    ENTRY(adam_control),
    ENTRY(adamw),
#endif
};

const weft_kernel *weft_cuda_kernel(int op) {
    const weft_kernel *kernel = table[op];
    return kernel && kernel->run ? kernel : NULL;
}
#else
const weft_kernel *weft_cuda_kernel(int op) {
    (void)op;
    return NULL;
}
#endif
