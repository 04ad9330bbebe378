/* Programmatic dependent launch: a kernel that waits for the one before it by itself. Its blocks are on
 * the GPU already when that ends, which saves most of a launch's time. The one before lets it by
 * trigger_dependents, after which it may start whenever there is room; wait_for_primary comes ahead of
 * the first read or write of memory that the one before has anything to do with. Code for architectures
 * before 9.0 has neither, and is launched as usual. */
#pragma once

#include "cuda/kernel.cuh"

#include <type_traits>

__device__ static inline void trigger_dependents() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ static inline void wait_for_primary() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Begins a kernel of launch_following: the next may come, whose weights are then asked for the sooner, and
 * what was made before is there. Ahead of it only what does not change may be read. All threads must get
 * here, so that a kernel ends no sooner than the one before it. Nothing happens where it was launched as
 * usual. */
__device__ static inline void follow_primary() {
    trigger_dependents();
    wait_for_primary();
}

/* Whether the kernels of this run are launched so. */
static inline bool follows(const weft_exec *x) {
    return state_of(x)->follows;
}

/* In such a run nodes that need nothing of each other may be one kernel. The first of them launches it
 * and says up to which node it goes; the others do nothing then. */
static inline void launched_until(const weft_exec *x, const weft_node *last) {
    state_of(x)->launched = last->index + 1;
}

static inline bool is_launched(const weft_exec *x, const weft_node *n) {
    return follows(x) && n->index < state_of(x)->launched;
}

/* NULL: there is none. */
static inline const weft_node *node_at(const weft_exec *x, int64_t index) {
    const weft_graph *g = weft_exec_graph(x);
    return index >= 0 && index < weft_graph_node_count(g) ? weft_graph_node(g, index) : NULL;
}

/* The node behind n, if it is of the same operation. */
static inline const weft_node *next_alike(const weft_exec *x, const weft_node *n) {
    const weft_node *next = node_at(x, n->index + 1);
    return next && next->op == n->op ? next : NULL;
}

static inline bool overlap(const weft_exec *x, const weft_tensor *s, const weft_tensor *t) {
    const char *a = (const char *)weft_data(x, s), *b = (const char *)weft_data(x, t);
    return a && b && a < b + weft_tensor_bytes(t) && b < a + weft_tensor_bytes(s);
}

/* Whether `node` writes nothing that `other` reads or writes. */
static inline bool spares(const weft_exec *x, const weft_node *node, const weft_node *other) {
    for (int i = 0; i < node->n_out; i++) {
        for (int k = 0; k < other->n_in; k++)
            if (overlap(x, node->out[i], other->in[k])) return false;
        for (int k = 0; k < other->n_out; k++)
            if (overlap(x, node->out[i], other->out[k])) return false;
    }
    return true;
}

/* Whether two nodes can run beside each other. The plan, which runs one node at a time, may have put the
 * second's result where the first's input was. */
static inline bool are_apart(const weft_exec *x, const weft_node *a, const weft_node *b) {
    return spares(x, a, b) && spares(x, b, a);
}

/* kernel<<<grid, threads, bytes, stream>>>(arguments...), early if `follows`. Its error, if any, is
 * cudaGetLastError's. */
template <class... P>
static void launch_following(bool follows, cudaStream_t stream, dim3 grid, unsigned threads,
                             int64_t bytes, void (*kernel)(P...),
                             std::common_type_t<P>... arguments) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = (size_t)bytes;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = follows ? 1 : 0;
    cudaLaunchKernelEx(&config, kernel, arguments...);
}
