/* Products of our own on Hopper's tensor cores: several summed in one, with work behind the sums
 * that the library has no fast kernel for.
 *
 *     c = Σ_s factor_s · a_s op(b_s) + bias, rounded to bf16, + addend
 *
 * and behind it one of `tiles_after`. A block makes tiles of 256 rows and 128 columns of c, one
 * after another. One warp asks for the factors, two warpgroups multiply and leave each tile in shared
 * memory, and two more work on it, and on all that goes with it to and from memory, while the next
 * tile is multiplied. */
#ifndef WEFT_CUDA_PRODUCTS_GEMM_FUSED_CUH
#define WEFT_CUDA_PRODUCTS_GEMM_FUSED_CUH

#include "cuda/kernel.cuh"

enum { TILES_SEGMENTS = 5 };

typedef enum {
    TILES_PLAIN,        /* y = c */
    TILES_GELU,         /* pre = c (NULL: not wanted), y = gelu(c) */
    TILES_GELU_BACK,    /* y = c · gelu'(at). No addend. */
    TILES_SILU_MUL,     /* two products of one a: gate = a op(b), up = a op(b2);
                           y = silu(gate) · up; gate and up are kept where not NULL. No bias, no
                           addend. */
    TILES_SILU_MUL_BACK /* c is dy of silu_mul: y = dgate, y2 = dup, from gate and up. No addend. */
} tiles_after;

typedef struct {
    const bf16 *a, *b; /* a [m, k]; b [k, n], or [n, k] with tb, which all segments have alike */
    int64_t lda, ldb, k;
    bool tb;
    float factor;
} tiles_segment;

typedef struct {
    int64_t m, n;
    int64_t ld; /* elements between rows of all that is [m, n]; 0: n */
    int segments;
    tiles_segment segment[TILES_SEGMENTS];
    const bf16 *b2; /* SILU_MUL: like segment[0].b; one segment then */
    tiles_after after;
    any_tensor bias;             /* [n]; data NULL: none */
    const bf16 *addend;          /* [m, n], or NULL; may be y */
    const bf16 *at;              /* GELU_BACK: [m, n]; may be y */
    bf16 *pre;                   /* GELU: [m, n] or NULL */
    const bf16 *gate_in, *up_in; /* SILU_MUL_BACK: [m, n] */
    bf16 *gate, *up;             /* SILU_MUL: [m, n]; NULL: not kept */
    bf16 *y, *y2;                /* [m, n] */
    float *sums; /* [tiles_bands(m), n]: column sums of y, as f32 has it, over each band of
                    rows; NULL: not wanted. Only with PLAIN and GELU_BACK. */
} tiles_product;

/* Whether the code is for the GPU that has the kernel's instructions. The backend takes no other GPU
 * than the one it is compiled for, so a plan needs no look at the device: a process that only plans
 * may fork. */
#ifdef WEFT_CUDA_9_0A
#define COMPILED_FOR_HOPPER true
#else
#define COMPILED_FOR_HOPPER false
#endif

/* Whether this product can be done here: code for compute capability 9.0a, n and all k and ld
 * multiples of 8, tensors aligned to 16 bytes as the arena's are, and not too small to be worth it.
 * Follows from shapes and the build: neither addresses nor the device are looked at, so that
 * workspace can be planned by it. */
bool tiles_can(const tiles_product *p);

/* Bands of rows that column sums come in. */
int64_t tiles_bands(int64_t m);

/* Launches it. */
weft_status tiles_run(const weft_exec *x, const tiles_product *p);
weft_status tiles_launch(cudaStream_t stream, const tiles_product *p);

#endif
