/* Products by cuBLASLt. */
#ifndef WEFT_CUDA_PRODUCTS_LIBRARY_CUH
#define WEFT_CUDA_PRODUCTS_LIBRARY_CUH

#include "cuda/products/gemm.cuh"

/* Elements from a batch's first to behind its last. */
static inline int64_t gemm_values(const cuda_gemm_matrix *x, int64_t batch, int64_t rows,
                                  int64_t columns) {
    return (batch - 1) * x->stride + (rows - 1) * x->ld + columns;
}

/* Launches a product whose types and epilogue the library can take. *found false: it has no algorithm
 * for it, and nothing was launched. */
weft_status library_run(cudaStream_t stream, const cuda_gemm *p, void *workspace,
                        int64_t workspace_bytes, bool *found);

#endif
