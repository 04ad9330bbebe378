/* The GPU's kernels by operation. */
#ifndef WEFT_CUDA_TABLE_H
#define WEFT_CUDA_TABLE_H

#include "core/exec.h"
#include "ops/list.h"

/* The kernel of operation WEFT_OP_...; NULL: there is none. */
const weft_kernel *weft_cuda_kernel(int op);

#endif
