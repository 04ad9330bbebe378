/* Gated linear layers on the GPU. Few rows, as generation has them, take one kernel, that of streamed.cuh.
 * Otherwise the layers are done piece by piece, by the kernels of the nodes that they stand for. */
#include "cuda/dependent_launch.cuh"
#include "cuda/products/streamed.cuh"

extern "C" {
#include "ops/gated.h"

extern const weft_kernel weft_cuda_matmul, weft_cuda_silu_mul;
}

/* One of the two products as streamed.cuh takes it. */
static cuda_gemm describe_streamed(const weft_exec *x, const weft_node *n, int out) {
    weft_gated_part part;
    weft_gated_product(n, out, &part);
    const weft_matmul_attr *attr = ATTR(n, weft_matmul_attr);
    const weft_tensor *a = part.in[WEFT_MATMUL_A], *b = part.in[WEFT_MATMUL_B];
    weft_matmul_sizes s = weft_matmul_measure(attr, a, b);
    cuda_gemm p = {};
    p.batch = 1, p.m = s.m, p.n = s.n, p.k = s.k, p.tb = attr->tb, p.alpha = 1;
    p.follows = follows(x);
    p.steady = p.follows && is_steady(b);
    p.a = cuda_gemm_matrix{weft_data(x, a), s.k, 0, a->dtype == WEFT_BF16};
    p.b = cuda_gemm_matrix{weft_data(x, b), attr->tb ? s.k : s.n, 0, b->dtype == WEFT_BF16};
    p.c = cuda_gemm_matrix{NULL, s.n, 0, true};
    p.norm.moments = data_of<float2>(x, part.in[WEFT_MATMUL_MOMENTS]);
    p.norm.sums = data_of<float>(x, part.in[WEFT_MATMUL_SUMS]);
    p.bias.data = weft_data(x, part.in[WEFT_MATMUL_BIAS]);
    p.norm.eps = (float)attr->eps;
    return p;
}

/* Gate and up are kept where a gradient asks for them. */
static bool run_streamed(const weft_exec *x, const weft_node *n) {
    const weft_tensor *y = n->out[WEFT_GATED_Y], *kept = n->out[WEFT_GATED_UP];
    cuda_gemm gate = describe_streamed(x, n, WEFT_GATED_GATE);
    cuda_gemm up = describe_streamed(x, n, WEFT_GATED_UP);
    if (gate.m > GEMM_STREAMED_ROWS || y->dtype != WEFT_BF16 || !streamed_can(&gate) ||
        !streamed_can(&up))
        return false;
    if (kept) gate.c.data = weft_data(x, n->out[WEFT_GATED_GATE]), up.c.data = weft_data(x, kept);
    streamed_launch_gated(stream_of(x), &gate, &up, any_of(x, y));
    return true;
}

static weft_status gated_linear_run(weft_exec *x, const weft_node *n) {
    if (run_streamed(x, n)) return launched(n);
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
