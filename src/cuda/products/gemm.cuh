/* Matrix products on the GPU, for every kernel file that needs one.
 *
 *     cuda_gemm p = {};
 *     p.batch = 1, p.m = M, p.n = N, p.k = K, p.tb = true, p.alpha = 1;
 *     p.a = cuda_gemm_matrix{x, K, 0, true};
 *     ...
 *     return gemm_launch(stream, p, workspace);
 *
 * The products are cuBLASLt's, with sums in f32. Which of its algorithms does one is measured once
 * for a shape and kept (algorithms.cu); only algorithms whose sums have a fixed order are taken, so
 * a product's bits are the same every time. f32 means f32: TF32 is used only with
 * WEFT_CUDA_TF32=1. */
#pragma once

#include "cuda/sequence/rope.cuh"

/* A product without ta of at most so many rows, or with `alone` of any number, is done row by row in
 * the same way for every number of rows: a row's bits are those it has alone. */
enum { GEMM_FEW_ROWS = 64, GEMM_STREAMED_ROWS = 256 /* where streamed.cuh can */ };

/* Row-major, where it lies. */
typedef struct {
    void *data;
    int64_t ld;     /* elements between rows */
    int64_t stride; /* elements between the matrices of a batch */
    bool is_bf16;   /* else f32 */
    bool is_i8;     /* of b alone, with tb: as ops/linear.h says */
} cuda_gemm_matrix;

/* The norm behind a product of rows: c = rstd (a bᵀ − mean · sums), as ops/linear.h says of `moments`. */
typedef struct {
    const float2 *moments; /* of a; NULL: no norm */
    const float *sums;     /* NULL: the mean is taken for 0 */
    float eps;
} gemm_norm;

/* Gates of heads, a's columns being heads side by side: those of head h are multiplied by 1 − alpha + alpha
 * σ(of[row, h]) and rounded to bf16 again, as gate_mix does. */
typedef struct {
    any_tensor of; /* [m, heads]; data NULL: none */
    int heads, width;
    float alpha;
} gemm_gate;

/* RoPE behind a product whose columns are heads side by side: the first `half` pairs of each of the first
 * `heads`, of what c would be. */
typedef struct {
    const int32_t *start; /* [m]: the rows' positions */
    int heads, width, half;
    weft_rope_law law;
} gemm_rope;

/* c = gelu(alpha · op(a) op(b) + bias + addend), for each of a batch; gelu, bias and addend as
 * asked. */
typedef struct {
    int64_t batch, m, n, k;
    bool ta, tb;     /* a lies as [k, m], b as [n, k] */
    bool accumulate; /* c += alpha · op(a) op(b); neither bias nor gelu then; c has the type that
                        the operands allow: f32, or bf16 with a and b bf16 */
    bool gelu;       /* the tanh form */
    bool gelu_back;  /* c = (...) times gelu's slope at pre, in place of gelu; no bias then */
    int group; /* not 0: softplus of the second half of each so many columns, in place of gelu; only
                        streamed.cuh has it */
    bool alone;   /* rows go by themselves, however many there are */
    bool follows; /* it is launched early (dependent_launch.cuh), where few rows are */
    bool steady;  /* b does not change while this is launched early */
    bool late;    /* the next kernel comes when this one's input is there (streamed.cuh) */
    float alpha;
    cuda_gemm_matrix a, b; /* read only */
    cuda_gemm_matrix c;
    cuda_gemm_matrix
        bias; /* [n], or with a stride of n one for each of the batch; data NULL: none */
    cuda_gemm_matrix addend; /* like c, or c itself; data NULL: none */
    cuda_gemm_matrix
        pre;         /* like c: gets the values before gelu (data NULL: not wanted), or has them
                           with gelu_back */
    gemm_norm norm;  /* only streamed.cuh has it, */
    float2 *moments; /* and gives those of c; NULL: not wanted; */
    gemm_gate gate;  /* and this, */
    const gemm_rope *rope; /* and this, by itself: neither addend, gelu nor moments; NULL: none */
} cuda_gemm;

/* Product i of a matmul node, added to those before; the last does what is behind the sum. `x` NULL:
 * without addresses, for sizes. */
cuda_gemm gemm_describe(const weft_exec *x, const weft_node *n, int i);

/* Bytes of workspace; follows from sizes, strides and types. `bias.data`, `addend.data` and
 * `pre.data` must be NULL exactly where they are in the run; other addresses do not matter. */
int64_t gemm_workspace(const cuda_gemm &p);

/* Launches it, never by the fused kernel (gemm_fused.cuh). `workspace` may be shared by products that
 * follow each other. */
weft_status gemm_launch(cudaStream_t stream, const cuda_gemm &p, void *workspace);

/* Several products in one launch, with the bits that each has by itself: up to GEMM_TOGETHER that
 * gemm_joins takes, of the same a or all streamed.cuh's and of as many rows, none needing what another makes. An error is cudaGetLastError's. */
enum { GEMM_TOGETHER = 4 };
bool gemm_joins(const cuda_gemm *p);

/* Whether the product behind a node gate_mix, which alone reads what that makes, puts the gates to its rows
 * itself: then gate_mix is nothing to launch. */
bool gemm_has_gate(const weft_exec *x, const weft_node *gate);
void gemm_run_together(const weft_exec *x, const cuda_gemm *p, int n);
