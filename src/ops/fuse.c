/* The table of rules. Each names two nodes that follow each other and the function that makes one of
 * them (core/rewrite.h).
 *
 * Autodiff sums the gradients of a tensor as a chain, add(add(p1, p2), p3), each product just before
 * its add: p2 takes p1 as its addend, p3 takes their sum, and no product moves; "sum of products"
 * makes one node of them where it can. */
#include "ops/fuse_internal.h"

#include "core/program.h"
#include "ops/attention.h"
#include "ops/list.h"
#include "ops/norm.h"

/* name, the reader and its input, the maker, may others read it, what is done */
const weft_rule weft_fusion_rules[] = {
    {"a sum in a norm's gradient", &weft_op_add, WEFT_ANY_INPUT, &weft_op_norm_back, false,
     weft_fuse_norm_addend},
    {"a sum in a table's gradient", &weft_op_add, WEFT_ANY_INPUT, &weft_op_embed_back, false,
     weft_fuse_embed_addend},
    {"a product's addend", &weft_op_add, WEFT_ANY_INPUT, &weft_op_matmul, false, weft_fuse_addend},
    {"sum of products", &weft_op_matmul, WEFT_MATMUL_ADDEND, &weft_op_matmul, false, weft_fuse_sum},
    {"a product's factor", &weft_op_scale, 0, &weft_op_matmul, false, weft_fuse_factor},
    {"a norm's residual", &weft_op_norm, WEFT_NORM_R, &weft_op_matmul, false, weft_fuse_residual},
    {"a bias behind a norm", &weft_op_bias_back, 0, &weft_op_norm_back, true, weft_fuse_norm_sums},
    {"gelu's slope", &weft_op_gelu_back, 0, &weft_op_matmul, false, weft_fuse_slope},
    {"a bias before gelu, with its slope", &weft_op_bias_back, 0, &weft_op_matmul, true,
     weft_fuse_product_sums},
    {"a bias before gelu", &weft_op_bias_back, 0, &weft_op_gelu_back, true, weft_fuse_slope_sums},
    {"a Gaussian's gradient", &weft_op_gaussian_back, 1, &weft_op_attention_back, false,
     weft_fuse_gaussian_back},
    {"SwiGLU", &weft_op_silu_mul, 0, &weft_op_matmul, false, weft_fuse_silu_mul},
    {"SwiGLU's gradient", &weft_op_silu_mul_back, 0, &weft_op_matmul, false,
     weft_fuse_silu_mul_back},
    {0},
};

weft_status weft_fuse(weft_graph *g) {
    return weft_graph_rewrite(g, weft_fusion_rules);
}
