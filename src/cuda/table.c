/* The GPU's kernels by operation. Every operation of ops/list.h has one: CUDA_KERNEL (kernel.cuh)
 * makes it. An operation that the GPU does not do has CUDA_KERNEL(name, NULL). */
#include "cuda/table.h"

#ifdef WEFT_HAVE_CUDA
#define KERNEL_DECLARE(name) extern const weft_kernel weft_cuda_##name;
WEFT_OPS(KERNEL_DECLARE)

#define KERNEL_ENTRY(name) [WEFT_OP_##name] = &weft_cuda_##name,
static const weft_kernel *const table[WEFT_OP_COUNT] = {WEFT_OPS(KERNEL_ENTRY)};

const weft_kernel *weft_cuda_kernel(int op) {
    return table[op]->run ? table[op] : NULL;
}
#else
const weft_kernel *weft_cuda_kernel(int op) {
    (void)op;
    return NULL;
}
#endif
