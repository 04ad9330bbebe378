/* Sums of columns over many rows, which are a bias's gradient, alone or with gelu's gradient before it. */
#ifndef WEFT_CUDA_PRODUCTS_COLUMN_SUMS_CUH
#define WEFT_CUDA_PRODUCTS_COLUMN_SUMS_CUH

#include "cuda/kernel.cuh"

/* The pass over rows whose columns are summed: dy, or with x what comes of it behind gelu, dx. */
typedef struct {
    const weft_tensor *dy, *x, *dx; /* x NULL: no gelu */
    const weft_tensor *db;          /* NULL: the sums are not wanted */
    int64_t rows, columns;
} column_pass;

/* x, dx and db may be NULL. */
column_pass describe_pass(const weft_tensor *dy, const weft_tensor *x, const weft_tensor *dx,
                          const weft_tensor *db, int64_t columns);

/* Bytes of the node's workspace that the pass needs. */
int64_t column_pass_bytes(const column_pass *p);

weft_status run_column_pass(weft_exec *x, const weft_node *n, const column_pass *p);

/* db = Σ over bands of sums [bands, columns], in order. */
void add_column_bands(const weft_exec *x, const weft_tensor *db, int64_t bands, const float *sums);

#endif
