/* Which algorithm of cuBLASLt does a product: measured once for a shape, then kept.
 *
 * The choice decides the last bits of a product, so it must be the same in every process: it is
 * kept in a file, by GPU, driver, version of the library and shape. The file is
 * WEFT_CUDA_ALGORITHMS, else weft/cuda-algorithms in $XDG_CACHE_HOME or ~/.cache. Small products
 * take the library's first proposal, which follows from the shape, and are not kept. */
#ifndef WEFT_CUDA_PRODUCTS_ALGORITHMS_CUH
#define WEFT_CUDA_PRODUCTS_ALGORITHMS_CUH

#include "cuda/products/cublaslt.cuh"
#include "cuda/products/gemm.cuh"

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

/* Writes what was measured since the last time, if anything was. */
void save_algorithms(void);

/* The hash of the measured algorithms that this process has used. */
uint32_t hash_algorithms(void);

#endif
