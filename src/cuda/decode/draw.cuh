/* Tokens drawn on the device, as core/draw.h says (draw.cu), and the order of logits. */
#pragma once

#include "cuda/kernel.cuh"

extern "C" {
#include "core/decoding.h"
}

/* Larger logits first, of equal ones the lower token, as one number; NaN of either sign before all others. */
__device__ static inline unsigned long long rank_logit(float v, int token) {
    unsigned bits = v == 0 ? 0 : __float_as_uint(v);
    bits = v != v ? 0xffffffffu : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (unsigned long long)bits << 32 | (0xffffffffu - (unsigned)token);
}

/* The token; -1 where the largest logit is not a finite number. */
__device__ static inline int ranked_token(unsigned long long rank) {
    const unsigned lowest = ~0xff800000u, highest = 0x7f800000u | 0x80000000u; /* -inf, inf */
    unsigned bits = (unsigned)(rank >> 32);
    return bits > lowest && bits < highest ? (int)(0xffffffffu - (unsigned)rank) : -1;
}

/* The larger of what a warp's threads have. */
__device__ static inline unsigned long long best_of_warp(unsigned long long best) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        unsigned long long other = __shfl_xor_sync(0xffffffffu, best, step);
        best = other > best ? other : best;
    }
    return best;
}

/* Memory of the device, or pinned. */
struct cuda_room {
    char *at; /* NULL: none was taken */
    int64_t bytes;
};

/* Where it has fewer than `least`, takes so many bytes in its place; what is in it is lost then. */
weft_status weft_cuda_make_room(cuda_room *r, bool pinned, int64_t least, int64_t bytes,
                                const char *problem);
void weft_cuda_free_room(cuda_room *r, bool pinned);

/* Memory for draws; NULL before the first. */
struct cuda_draws;

/* What is drawn from: logits [rows, vocab] and the tokens that the rows were for, on the device. */
struct draw_source {
    const void *logits;
    weft_dtype dtype;
    int vocab;
    const int32_t *inputs; /* NULL: no row has a penalty */
};

bool weft_cuda_penalises(const weft_run_rows *rows);

/* Whether the device draws tokens; WEFT_CUDA_DRAW=0: the host does, from their logits. */
bool weft_cuda_draws(void);

/* Puts on the stream what draws a token of each row by rows->draws, -1 where its logits are not numbers.
 * rows->draws is copied. Of two draws under way at once, `buffer` is 0 of one and 1 of the other. */
weft_status weft_cuda_draw(cuda_draws **draws, cudaStream_t stream, const draw_source *from,
                           const weft_run_rows *rows, unsigned buffer, int32_t *tokens);
void weft_cuda_draws_close(cuda_draws *draws);
