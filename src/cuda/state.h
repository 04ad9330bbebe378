/* What an executor on the GPU has beside its arena: a stream, the captured run, the parts of a watched
 * one, and the run's numbers in device memory, where a replayed graph reads them. */
#ifndef WEFT_CUDA_STATE_H
#define WEFT_CUDA_STATE_H

#include <cuda_runtime_api.h>

#include <stdbool.h>
#include <stdint.h>

extern "C" {
#include "core/exec.h"
}

/* In device memory. weft_run, and the first bad value that a kernel met. */
typedef struct {
    uint64_t seed;
    uint32_t iteration, sequence;
    unsigned long long fault; /* node << 40 | place; all bits set: none */
} weft_cuda_run;

/* Some nodes of a run, of which the host wants to know when they are done. */
typedef struct {
    cudaGraphExec_t graph; /* NULL: not captured yet */
    cudaEvent_t done;
} weft_cuda_part;

typedef struct {
    cudaStream_t stream;
    weft_cuda_run *run;    /* device */
    weft_cuda_run *staged; /* host, pinned: what is copied to the device and back */
    cudaGraphExec_t graph; /* NULL: not captured yet, or not wanted */
    cudaEvent_t *marks;    /* [nodes + 1]: a profile's; NULL: none is taken */
    int64_t n_marks;
    weft_cuda_part *parts; /* [n_parts]: of weft_exec_parts; NULL: no run was watched yet */
    int n_parts;
    int runs;     /* runs so far; capture comes after the first */
    bool capture; /* false: WEFT_CUDA_GRAPH=0, or a profile is taken */
    bool follows; /* kernels may be launched before those ahead of them have ended, and weights are
                     read ahead (dependent_launch.cuh) */
    int64_t launched; /* in such a run: nodes before this one need no kernel of their own */
} weft_cuda_state;

/* Gives a run's kernels, or the graph of them, to another stream than the executor's own, and does not
 * wait. The run's numbers (state.run) are the caller's to set, on that stream. */
weft_status weft_cuda_follow(weft_exec *x, cudaStream_t stream);
/* The error for what a kernel noted in weft_cuda_run.fault. */
weft_status weft_cuda_explain(weft_exec *x, unsigned long long fault);

#endif
