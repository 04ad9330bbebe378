/* Which kernel the GPU runs for a node: the table of kernels by operation, and, where an operation has
 * one kernel on the tensor cores and a plain one for the rest, which of the two a node gets.
 *
 * The kernels' launches ask here, so that what `weft plan` says and what runs are one decision. It is
 * host C and needs no GPU: a build without CUDA decides as for an H200 (device.h). */
#pragma once

#include "core/exec.h"
#include "ops/routing.h"

/* The kernel of operation WEFT_OP_...; NULL: there is none. */
const weft_kernel *weft_cuda_kernel(int op);

/* The widths (dqk, dv) that attention on the tensor cores is compiled for, and the shared memory that a
 * block of its largest kernel takes (attention/shapes.cuh has the kernels, and checks the bytes). A
 * problem gets the first pair that holds its own. */
#define WEFT_CUDA_ATTENTION_WIDTHS(X)                                                              \
    X(32, 32, 44552)                                                                               \
    X(64, 32, 52744)                                                                               \
    X(64, 64, 60936)                                                                               \
    X(96, 64, 76312)                                                                               \
    X(96, 96, 138776)                                                                              \
    X(128, 64, 92696)                                                                              \
    X(128, 128, 150040)                                                                            \
    X(192, 96, 174616)                                                                             \
    X(192, 192, 223768)                                                                            \
    X(256, 128, 199064)                                                                            \
    X(256, 256, 216592)                                                                            \
    X(384, 192, 231952)                                                                            \
    X(512, 256, 231696)

/* Limits of top-k routing on the tensor cores: a head's width, columns kept, heads. */
enum { WEFT_CUDA_TOPK_WIDTH = 256, WEFT_CUDA_TOPK_MAX = 64, WEFT_CUDA_TOPK_HEADS = 128 };

bool weft_cuda_attention_is_fast(const weft_attention_attr *a, weft_dtype dtype);
bool weft_cuda_topk_is_fast(const weft_node *n); /* route_topk */
/* route_gather and its gradient: rows are read 16 bytes at a time. */
bool weft_cuda_gather_is_aligned(const weft_node *n);

typedef struct {
    const char *what, *how; /* "attention", "runs on the tensor cores" */
    bool fast;
    char option[80];  /* where not, why: "HEAD_DIM 264"; empty where no option decides */
    char nearest[64]; /* "256 is fast" */
} weft_cuda_choice;

/* False: the operation has one kernel for every shape. */
bool weft_cuda_choose(const weft_node *n, weft_cuda_choice *out);

/* Warns of the graph's nodes that get the slow kernel, in one line for each kind in a process. */
void weft_cuda_warn_slow(const weft_graph *g);
