/* Rows of logits: their logsumexps, and their gradients in the logits' place. */
#ifndef WEFT_CUDA_LOSS_ENTROPY_ROWS_CUH
#define WEFT_CUDA_LOSS_ENTROPY_ROWS_CUH

#include "cuda/kernel.cuh"

/* What a row's gradient is made of: dl = p · weight − [v = target] · penalty. */
struct entropy_upstream {
    const int32_t *count;    /* targets that count */
    const float *given;      /* what their sum is divided by; NULL: their number */
    const float *d_ce;       /* NULL: 1 */
    const float *d_z;        /* NULL: 1 */
    const float *d_lse;      /* [N], or NULL */
    float ce_scale, z_scale; /* 0 where the loss has no gradient; 2 z / N for z */
};

struct entropy_rows {
    int64_t first, words, ld;
    const int32_t *targets;
    any_tensor l;        /* [rows, ld] of the part */
    float *lse;          /* [N] */
    float *target_logit; /* [N]: the target's logit */
    bool gradients;      /* l becomes its gradient */
    entropy_upstream upstream;
};

/* `count` rows from k.first on. `known`: the lse is there already. */
void run_entropy_rows(cudaStream_t stream, const entropy_rows &k, int64_t count, bool known);

#endif
