/* Calls over memory that is another's (core/function.h): kernels on the caller's stream.
 *
 * What a replayed graph reads from the executor's own device memory, the run's numbers and the first
 * bad value, lies at the head of the call's workspace here: one kernel sets it before the others, and
 * one behind them copies a bad value to a word in pinned host memory, where a later question finds it
 * without waiting. Both have all they need in their arguments, so the caller may capture a call. */
#include <cuda_runtime.h>

#include <stdlib.h>

extern "C" {
#include "core/function.h"
#include "ops/list.h"

extern const struct weft_call_backend weft_cuda_calls;
}
#include "cuda/products/algorithms.cuh"
#include "cuda/state.h"

static const unsigned long long NO_FAULT = ~0ULL;

/* Of one call at a time. The first is what kernels look into. */
typedef struct {
    weft_cuda_state state;
    unsigned long long *fault; /* host, pinned */
} call_state;

static weft_status check(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return WEFT_OK;
    cudaGetLastError();
    return weft_fail(error == cudaErrorMemoryAllocation ? WEFT_ENOMEM : WEFT_EIO, "cuda: %s: %s",
                     what, cudaGetErrorString(error));
}

static __global__ void begin_call(weft_cuda_run *run, weft_cuda_run values) {
    *run = values;
}

static __global__ void end_call(const weft_cuda_run *run, volatile unsigned long long *fault) {
    if (run->fault == ~0ULL || *fault != ~0ULL) return;
    *fault = run->fault;
    __threadfence_system();
}

static weft_status open_call(void **state) {
    call_state *s = (call_state *)calloc(1, sizeof *s);
    if (!s) return weft_fail(WEFT_ENOMEM, "cuda: no memory");
    weft_status status =
        check(cudaHostAlloc((void **)&s->fault, sizeof *s->fault, cudaHostAllocMapped),
              "no pinned memory");
    if (status != WEFT_OK) {
        free(s);
        return status;
    }
    *s->fault = NO_FAULT;
    *state = s;
    return WEFT_OK;
}

static void close_call(void *state) {
    call_state *s = (call_state *)state;
    cudaFreeHost(s->fault);
    free(s);
}

/* Whether a node draws random numbers or may meet a value that it cannot use. */
static bool reads_run(const weft_exec *x, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++)
        if (weft_exec_kernel(x, i)->explain ||
            weft_graph_node(weft_exec_graph(x), i)->op->id == WEFT_OP_dropout)
            return true;
    return false;
}

static weft_status start_call(weft_exec *x, int64_t first, int64_t last, void *memory,
                              void *stream) {
    call_state *s = (call_state *)weft_exec_state(x);
    const weft_run *run = weft_exec_current_run(x);
    bool noted = reads_run(x, first, last);
    s->state.stream = (cudaStream_t)stream;
    s->state.run = (weft_cuda_run *)memory;
    if (noted)
        begin_call<<<1, 1, 0, s->state.stream>>>(
            s->state.run, weft_cuda_run{run->seed, run->iteration, run->sequence, NO_FAULT});
    WEFT_TRY(weft_exec_walk_part(x, first, last));
    if (noted) end_call<<<1, 1, 0, s->state.stream>>>(s->state.run, s->fault);
    return check(cudaGetLastError(), "the call did not start");
}

static bool find_fault(void *state, int64_t *node, int64_t *place) {
    call_state *s = (call_state *)state;
    unsigned long long fault = *(volatile unsigned long long *)s->fault;
    if (fault == NO_FAULT) return false;
    *(volatile unsigned long long *)s->fault = NO_FAULT;
    *node = (int64_t)(fault >> 40);
    *place = (int64_t)(fault & ((1ULL << 40) - 1));
    return true;
}

static weft_status settle(void) {
    weft_status status = check(cudaDeviceSynchronize(), "the call failed");
    save_algorithms();
    return status;
}

static_assert(sizeof(weft_cuda_run) <= WEFT_ARENA_ALIGN, "the run's numbers have a line");

const struct weft_call_backend weft_cuda_calls = {
    WEFT_ARENA_ALIGN, open_call, close_call, start_call, find_fault, settle,
};
