/* Products by cuBLASLt: the library itself, which of its algorithms does a product, and the call. */
#pragma once

#include "cuda/products/gemm.cuh"

#include <cublasLt.h>

/* It is opened when a matrix product is first run: loading it takes a tenth of a second, which commands
 * that never use the GPU should not pay, and a machine without it still has the CPU. */

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

/* Which algorithm does a product: measured once for a shape, then kept.
 *
 * The choice decides the last bits of a product, so it must be the same in every process: it is
 * kept in a file, by GPU, driver, version of the library and shape. The file is
 * WEFT_CUDA_ALGORITHMS, else weft/cuda-algorithms in $XDG_CACHE_HOME or ~/.cache. Small products
 * take the library's first proposal, which follows from the shape, and are not kept. */

enum { ALGORITHM_KEY = 192 };

/* One call of the library: the descriptions, and where the matrices are. */
typedef struct {
    cublasLtMatmulDesc_t what;
    cublasLtMatrixLayout_t a, b, c; /* in the library's order: a is our b */
    const void *a_data, *b_data;
    const void *c_data; /* what is added, times beta; may be d_data */
    void *d_data;       /* the result, laid out like c */
    int64_t d_bytes;
    float alpha, beta;
    void *workspace;
    size_t workspace_bytes;
    uint32_t align_a, align_b, align_c; /* of the addresses and strides, in bytes */
    char key[ALGORITHM_KEY];            /* the shape in words, unlike any other shape's */
    double flops;
} algorithm_call;

/* The algorithm for a call. Measures where none is known, unless the stream is being captured; a
 * product that adds to what is there is measured on other memory, while there is any. false: the
 * library has none that keeps an order. */
bool find_algorithm(const weft_cuda_blas *blas, const algorithm_call *call, cudaStream_t stream,
                    cublasLtMatmulAlgo_t *out);

cublasStatus_t call_library(const weft_cuda_blas *blas, const algorithm_call *c,
                            const cublasLtMatmulAlgo_t *algorithm, cudaStream_t stream);

/* Writes what was measured since the last time, if anything was. */
void save_algorithms(void);

/* The hash of the measured algorithms that this process has used. */
uint32_t hash_algorithms(void);

/* Elements from a batch's first to behind its last. */
static inline int64_t gemm_values(const cuda_gemm_matrix *x, int64_t batch, int64_t rows,
                                  int64_t columns) {
    return (batch - 1) * x->stride + (rows - 1) * x->ld + columns;
}

/* Launches a product whose types and epilogue the library can take. *found false: it has no algorithm
 * for it, and nothing was launched. */
weft_status library_run(cudaStream_t stream, const cuda_gemm *p, void *workspace,
                        int64_t workspace_bytes, bool *found);
