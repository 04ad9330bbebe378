/* Stacks on the GPU: a block copies a piece of a part, 16 bytes per thread at a time where parts are
 * whole words of that. Floor: the parts' bytes, read and written. */
#include "cuda/kernel.cuh"

enum {
    PARTS = 64, /* addresses that a launch is given */
    THREADS = 256,
    WORDS = 4 /* of a thread */
};

/* `bytes` of each part; NULL: not wanted. */
struct part_list {
    char *part[PARTS];
    char *stacked;
    int64_t bytes;
};

template <typename W, bool BACK>
static __global__ void __launch_bounds__(THREADS) copy_parts(const __grid_constant__ part_list k) {
    char *part = k.part[blockIdx.y], *place = k.stacked + blockIdx.y * k.bytes;
    if (!part) return;
    const W *from = (const W *)(BACK ? place : part);
    W *to = (W *)(BACK ? part : place), v[WORDS];
    int64_t first = (int64_t)blockIdx.x * THREADS * WORDS + threadIdx.x;
    int64_t words = k.bytes / sizeof(W);
#pragma unroll
    for (int i = 0; i < WORDS; i++)
        if (first + i * THREADS < words) v[i] = from[first + i * THREADS];
#pragma unroll
    for (int i = 0; i < WORDS; i++)
        if (first + i * THREADS < words) to[first + i * THREADS] = v[i];
}

template <bool BACK>
static weft_status run_copies(weft_exec *x, const weft_node *node, const weft_tensor *stacked,
                              weft_tensor *const *parts, int n) {
    int64_t bytes = weft_tensor_bytes(stacked) / n;
    bool wide = bytes % (int64_t)sizeof(uint4) == 0;
    int64_t words = bytes / (int64_t)(wide ? sizeof(uint4) : sizeof(uint16_t));
    auto kernel = wide ? copy_parts<uint4, BACK> : copy_parts<uint16_t, BACK>;
    for (int first = 0; first < n; first += PARTS) {
        int count = (int)min_i64(PARTS, n - first);
        part_list k = {{}, data_of<char>(x, stacked) + first * bytes, bytes};
        for (int i = 0; i < count; i++)
            k.part[i] = data_of<char>(x, parts[first + i]);
        dim3 grid((unsigned)ceil_div(words, THREADS * WORDS), (unsigned)count);
        kernel<<<grid, THREADS, 0, stream_of(x)>>>(k);
    }
    return launched(node);
}

CUDA_KERNEL_CALLS(stack, run_copies<false>(x, n, n->out[0], n->in, n->n_in))
CUDA_KERNEL_CALLS(unstack, run_copies<true>(x, n, n->in[0], n->out, n->n_out))
