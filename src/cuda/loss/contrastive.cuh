/* What InfoNCE's kernels share: contrastive.cu has those for any shape and type, contrastive_tensor.cu
 * those for few rows of bf16. */
#ifndef WEFT_CUDA_LOSS_CONTRASTIVE_CUH
#define WEFT_CUDA_LOSS_CONTRASTIVE_CUH

#include "cuda/kernel.cuh"

/* The largest score so far, and Σ of the others' exponentials beside it. A row's own score is mostly
 * the largest and the rest tiny: 1 + rest would lose it, and log1p puts it back. */
struct best_and_rest {
    float top, rest;
};

__device__ static inline best_and_rest join_scores(best_and_rest a, best_and_rest b) {
    if (a.top < b.top) {
        best_and_rest other = a;
        a = b;
        b = other;
    }
    if (b.top > -INFINITY) a.rest += (1 + b.rest) * expf(b.top - a.top);
    return a;
}

/* L losses of N rows of D in bf16. */
struct contrast_rows {
    int64_t losses, rows, width;
    float inverse_tau;
    const bf16 *x;
    float *norm, *lse;
    double *loss;    /* [L, N], forward */
    const float *dy; /* backward */
    double factor;   /* of dy */
    bf16 *dx;
};

/* Whether N rows of D suit the kernels on tensor cores; follows from the sizes and the device. */
bool contrast_suits_tensor(int64_t rows, int64_t width);

/* Norms, logsumexps and losses of all rows. */
void contrast_losses(cudaStream_t stream, const contrast_rows &k);

void contrast_gradients(cudaStream_t stream, const contrast_rows &k);

#endif
