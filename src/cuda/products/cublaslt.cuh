/* cuBLASLt, opened when a matrix product is first run: loading it takes a tenth of a second, which
 * commands that never use the GPU should not pay, and a machine without it still has the CPU. */
#ifndef WEFT_CUDA_PRODUCTS_CUBLASLT_CUH
#define WEFT_CUDA_PRODUCTS_CUBLASLT_CUH

#include <cublasLt.h>

extern "C" {
#include "base/error.h"
}

/* The library's functions that we use; names without `cublasLt`. */
#define WEFT_BLAS_FUNCTIONS(X)                                                                     \
    X(Create)                                                                                      \
    X(GetVersion)                                                                                  \
    X(GetStatusString)                                                                             \
    X(Matmul)                                                                                      \
    X(MatmulDescCreate)                                                                            \
    X(MatmulDescDestroy)                                                                           \
    X(MatmulDescSetAttribute)                                                                      \
    X(MatrixLayoutCreate)                                                                          \
    X(MatrixLayoutDestroy)                                                                         \
    X(MatrixLayoutSetAttribute)                                                                    \
    X(MatmulPreferenceCreate)                                                                      \
    X(MatmulPreferenceDestroy)                                                                     \
    X(MatmulPreferenceSetAttribute)                                                                \
    X(MatmulAlgoGetHeuristic)                                                                      \
    X(MatmulAlgoConfigGetAttribute)

typedef struct {
    cublasLtHandle_t handle;
#define WEFT_BLAS_MEMBER(name) decltype(&cublasLt##name) name;
    WEFT_BLAS_FUNCTIONS(WEFT_BLAS_MEMBER)
#undef WEFT_BLAS_MEMBER
} weft_cuda_blas;

/* The library; NULL and an error message where it is not there. */
const weft_cuda_blas *weft_cuda_blas_open(void);

#endif
