/* Every operation, one line each: the order gives WEFT_OP_... its number and is not stored
 * anywhere, so it may change. A family's file in src/ops defines `weft_op_NAME`; the file of the
 * same name in src/cpu, and in a folder of src/cuda, has its kernels. */
#pragma once

#include "core/graph.h"

/* Operations of one element are made from their line alone: F(X, NAME, VALUE, READS, GRADIENT).
 *
 *   VALUE     y, an expression in x
 *   READS     what the gradient reads beside dy: x; or y, and x need not be kept
 *   GRADIENT  dx, an expression in dy and what READS names
 *
 * The CPU compiles them for vectors with the functions of cpu/vec.h, the GPU for floats: the head of
 * cuda/elements/activation.cu says which of those functions it has. activation.c makes weft_NAME with
 * its rules, the list below its two nodes, tests/support/table.c its cases. */
#define WEFT_UNARY_OPS(F, X)                                                                       \
    /* x/2 (1 + tanh(√(2/π) (x + 0.044715 x³))) */                                             \
    F(X, gelu, vgelu(x), x, (dy * vgelu_slope(x)))                                                 \
    /* x/2 (1 + erf(x/√2)) */                                                                    \
    F(X, gelu_erf, x *vnormal(x), x, (dy * (vnormal(x) + x * vdensity(x))))                        \
    F(X, exp, vexp(x), y, (dy * y))                                                                \
    F(X, tanh, vtanh(x), x, (dy * 4 * vsigmoid(x + x) * vsigmoid(-x - x)))                         \
    /* max(x, 0)² */                                                                              \
    F(X, relu2, vmax(x, vset(0)) * vmax(x, vset(0)), x, (dy * 2 * vmax(x, vset(0))))

/* a times a function of b, tensors of one shape, in the same way: F(X, NAME, VALUE, DA, DB), y and both
 * gradients as expressions in a, b and dy. SwiGLU's product, GeGLU's, and a gate for each element. */
#define WEFT_GATE_OPS(F, X)                                                                        \
    F(X, silu_mul, a *b *vsigmoid(b), (dy * b * vsigmoid(b)),                                      \
      (dy * a * (vsigmoid(b) * (1 + b * (1 - vsigmoid(b))))))                                      \
    F(X, gelu_mul, a *vgelu(b), (dy * vgelu(b)), (dy * a * vgelu_slope(b)))                        \
    F(X, sigmoid_mul, a *vsigmoid(b), (dy * vsigmoid(b)),                                          \
      (dy * a * (vsigmoid(b) * (1 - vsigmoid(b)))))

/* An operation, and the one that is its gradient. */
#define WEFT_OP_PAIR(X, name, ...) X(name) X(name##_back)

#define WEFT_OPS(X)                                                                                \
    /* arith */                                                                                    \
    X(fill)                                                                                        \
    X(add)                                                                                         \
    X(scale)                                                                                       \
    X(cast)                                                                                        \
    WEFT_OP_PAIR(X, dot)                                                                           \
    WEFT_OP_PAIR(X, sum_squares)                                                                   \
    WEFT_OP_PAIR(X, row_squares)                                                                   \
    /* embedding */                                                                                \
    WEFT_OP_PAIR(X, embed)                                                                         \
    X(position_back)                                                                               \
    /* linear */                                                                                   \
    X(matmul)                                                                                      \
    X(bias_back)                                                                                   \
    X(gelu_bias_back)                                                                              \
    /* gated */                                                                                    \
    X(gated_linear)                                                                                \
    /* norm */                                                                                     \
    WEFT_OP_PAIR(X, norm)                                                                          \
    /* rope */                                                                                     \
    X(rope)                                                                                        \
    /* attention */                                                                                \
    WEFT_OP_PAIR(X, attention)                                                                     \
    /* routing */                                                                                  \
    X(route_topk)                                                                                  \
    WEFT_OP_PAIR(X, route_gather)                                                                  \
    WEFT_OP_PAIR(X, route_dense)                                                                   \
    /* cache */                                                                                    \
    X(cache_write)                                                                                 \
    X(cache_attention)                                                                             \
    X(cache_gather)                                                                                \
    X(cache_mean)                                                                                  \
    /* documents */                                                                                \
    X(documents)                                                                                   \
    X(cache_documents)                                                                             \
    /* activation */                                                                               \
    WEFT_UNARY_OPS(WEFT_OP_PAIR, X)                                                                \
    WEFT_GATE_OPS(WEFT_OP_PAIR, X)                                                                 \
    WEFT_OP_PAIR(X, softplus)                                                                      \
    WEFT_OP_PAIR(X, gate_mix)                                                                      \
    /* unit */                                                                                     \
    WEFT_OP_PAIR(X, unit)                                                                          \
    /* gaussian */                                                                                 \
    WEFT_OP_PAIR(X, gaussian)                                                                      \
    WEFT_OP_PAIR(X, overlap)                                                                       \
    /* heads */                                                                                    \
    WEFT_OP_PAIR(X, head_columns)                                                                  \
    X(head_pool)                                                                                   \
    X(head_spread)                                                                                 \
    X(head_scale_back)                                                                             \
    X(head_transpose)                                                                              \
    /* stack */                                                                                    \
    X(stack)                                                                                       \
    X(unstack)                                                                                     \
    /* dropout */                                                                                  \
    X(dropout)                                                                                     \
    /* time */                                                                                     \
    WEFT_OP_PAIR(X, running_mean)                                                                  \
    WEFT_OP_PAIR(X, time_mean)                                                                     \
    WEFT_OP_PAIR(X, moments)                                                                       \
    /* cross_entropy */                                                                            \
    WEFT_OP_PAIR(X, cross_entropy)                                                                 \
    /* contrastive */                                                                              \
    WEFT_OP_PAIR(X, infonce)                                                                       \
    /* optimizer */                                                                                \
    X(norm_parts)                                                                                  \
    X(norm_join)                                                                                   \
    X(adam_control)                                                                                \
    X(adamw)                                                                                       \
    X(muon_direction)                                                                              \
    X(muon_step)                                                                                   \
    X(zero_masked)

#define WEFT_OP_ENUM(name) WEFT_OP_##name,
enum { WEFT_OPS(WEFT_OP_ENUM) WEFT_OP_COUNT };
#undef WEFT_OP_ENUM

#define WEFT_OP_DECLARE(name) extern const weft_op weft_op_##name;
WEFT_OPS(WEFT_OP_DECLARE)
#undef WEFT_OP_DECLARE

/* Attributes of a gradient's node that begin with which of two gradients are wanted. */
typedef struct {
    bool first, second;
} weft_wanted;
