/* The GPU of this process, and the facts about it that kernels and plans need.
 *
 * How a kernel divides its work, and so how much workspace it takes, follows from shapes, types and
 * these facts. A plan and the run that it is for must therefore know the same ones. Before the GPU
 * is opened they are those of the GPU that it would be (weft_cuda_planner asks in a process of its
 * own), and where there is none, those of an H200. */
#pragma once

#include "base/error.h"

typedef struct {
    char name[256];
    int major, minor; /* compute capability */
    int code;         /* of the architecture that its code was compiled for, 10 · major + minor:
                              80 where an H200 runs PTX for compute_80 */
    bool wgmma;       /* that code is for 9.0a: wgmma, TMA, clusters */
    int multiprocessors;
    int64_t shared_memory; /* bytes that a block may have */
    int64_t memory;        /* bytes of it, */
    int64_t free_at_start; /* and those that were free when it was opened; 0: it was not */
} weft_cuda_facts;

/* What is assumed where there is no GPU, given what the code is compiled for. */
#define WEFT_CUDA_H200(code, wgmma)                                                                \
    { "NVIDIA H200", 9, 0, code, wgmma, 132, 227 << 10, 0, 0 }

/* Never NULL. */
const weft_cuda_facts *weft_cuda_device(void);

/* Opens the GPU, once. WEFT_CUDA_DEVICE says which; else it is the first that the build has code
 * for. Fails with the reason why there is none. */
weft_status weft_cuda_device_open(void);

/* Finds out the facts without touching the driver in this process, once. */
void weft_cuda_device_ask(void);

/* Its number for the runtime; -1: none is open. */
int weft_cuda_device_number(void);
