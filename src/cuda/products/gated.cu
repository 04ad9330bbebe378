/* Gated linear layers on the GPU.
 *
 * In bf16, where the sizes allow, a kernel of our own does the products and the gate behind them:
 * gate and up go to the gate's arithmetic without a way through memory. Its floor is the larger of the
 * products' operations and the bytes of x, y, gate and up, once. Few rows, as generation has them, take
 * one kernel too, that of streamed.cuh. Otherwise the layers are done piece by piece, by the kernels of
 * the nodes that they stand for. */
#include "cuda/products/gemm_fused.cuh"
#include "cuda/products/streamed.cuh"

extern "C" const weft_kernel weft_cuda_matmul, weft_cuda_silu_mul;

/* Where our kernel wins by itself. Its products are slower than the library's, so it loses with depth
 * what it saves in a pass over the result: measured at 32768 × 3072 and a depth of 768; beyond, this is
 * an estimate. Smaller results have fewer tiles than there are multiprocessors. */
enum { LEAST_VALUES = 1 << 22, MOST_DEPTH = 1024 };

/* One of the two products; `x` NULL: without addresses. */
static cuda_gemm describe_part(const weft_exec *x, const weft_node *n, int out) {
    weft_gated_part part;
    weft_gated_product(n, out, &part);
    return gemm_describe(x, &part.node, 0);
}

static fused_product describe_forward(const weft_exec *x, const weft_node *n) {
    fused_product p = {};
    p.epilogue = FUSED_SILU_MUL;
    fused_add(&p, describe_part(x, n, WEFT_GATED_GATE));
    fused_add(&p, describe_part(x, n, WEFT_GATED_UP));
    bool kept = n->out[WEFT_GATED_UP] != NULL;
    for (int out = 0; x && out < (kept ? WEFT_GATED_OUTPUTS : 1); out++)
        p.out[out] = data_of<bf16>(x, n->out[out]);
    return p;
}

/* Whether our kernel does it. Shapes and types decide: the workspace is planned by it. */
static bool is_fused(const weft_node *n, const fused_product *p) {
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i] && n->in[i]->dtype != WEFT_BF16) return false;
    for (int i = 0; i < n->n_out; i++)
        if (n->out[i] && n->out[i]->dtype != WEFT_BF16) return false;
    return p->m * p->n >= LEAST_VALUES && p->segment[0].k <= MOST_DEPTH && fused_can(p);
}

static int64_t gated_linear_workspace(const weft_node *n, int threads) {
    fused_product p = describe_forward(NULL, n);
    int64_t most = 0;
    if (is_fused(n, &p)) return 0;
    for (int out = WEFT_GATED_GATE; out <= WEFT_GATED_UP; out++) {
        weft_gated_part part;
        weft_gated_product(n, out, &part);
        most = max_i64(most, weft_cuda_matmul.workspace(&part.node, threads));
    }
    return most;
}

CUDA_RUN(gated_linear, gated_linear_workspace) {
    fused_product p = describe_forward(x, n);
    if (!are_alone(x) && is_fused(n, &p)) return fused_launch(stream_of(x), &p);
    const weft_tensor *y = n->out[WEFT_GATED_Y];
    cuda_gemm gate = describe_part(x, n, WEFT_GATED_GATE);
    cuda_gemm up = describe_part(x, n, WEFT_GATED_UP);
    if ((gate.m <= GEMM_STREAMED_ROWS || are_alone(x)) && y->dtype == WEFT_BF16 &&
        streamed_can(&gate) && streamed_can(&up)) {
        /* Gate and up are kept where a gradient asks for them. */
        if (!n->out[WEFT_GATED_UP]) gate.c.data = up.c.data = NULL;
        streamed_launch_gated(stream_of(x), &gate, &up, any_of(x, y));
        return launched(n);
    }
    weft_gated_part part;
    for (int out = WEFT_GATED_GATE; out <= WEFT_GATED_UP; out++) {
        weft_gated_product(n, out, &part);
        WEFT_TRY(weft_cuda_matmul.run(x, &part.node));
    }
    weft_gated_silu_mul(n, &part);
    return weft_cuda_silu_mul.run(x, &part.node);
}
