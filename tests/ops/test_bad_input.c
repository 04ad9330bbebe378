/* Wrong shapes, types and values: the call returns NULL, the graph's status is WEFT_EINPUT, the
 * message is one line that names the operation, and nothing is leaked or aborts. One line a call. */
#include "ops/activation.h"
#include "ops/arith.h"
#include "ops/attention.h"
#include "ops/embedding.h"
#include "ops/gaussian.h"
#include "ops/heads.h"
#include "ops/linear.h"
#include "ops/list.h"
#include "ops/loss.h"
#include "ops/norm.h"
#include "ops/optimizer.h"
#include "ops/rope.h"
#include "ops/routing.h"
#include "ops/time.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static weft_tensor *make(weft_graph *g, weft_dtype dtype, int ndim, const int64_t *shape) {
    char name[32];
    snprintf(name, sizeof name, "t%lld", (long long)weft_graph_tensor_count(g));
    return weft_graph_tensor(g, WEFT_ROLE_INPUT, name, dtype, ndim, shape);
}

#define SHAPED(dtype, ...)                                                                         \
    make(g, dtype, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                      \
         (int64_t[]){__VA_ARGS__})
#define F(...) SHAPED(WEFT_F32, __VA_ARGS__)
#define D(...) SHAPED(WEFT_F64, __VA_ARGS__)
#define I(...) SHAPED(WEFT_I32, __VA_ARGS__)

/* Attention with what is good in a score filled in, so that a line shows what is bad. */
static weft_tensor *attend(weft_graph *g, weft_score s, weft_tensor *v) {
    s.scale_value = 1;
    return weft_attention(g, &s, v).o;
}

static weft_tensor *stack_two(weft_graph *g, weft_tensor *a, weft_tensor *b) {
    return weft_stack(g, (weft_tensor *[]){a, b}, 2);
}

static weft_tensor *attend_packed(weft_graph *g, weft_score s, weft_tensor *qkv, int64_t heads,
                                  int64_t kv_heads) {
    s.scale_value = 1;
    s.causal = true;
    s.packed = qkv;
    s.heads = heads;
    s.kv_heads = kv_heads;
    return weft_attention(g, &s, NULL).o;
}

static weft_tensor *route(weft_graph *g, weft_tensor *q, weft_tensor *k, weft_tensor *lse,
                          int64_t keep) {
    weft_score s = {.q = q, .k = k, .scale_value = 1, .causal = true};
    return weft_route_topk(g, &s, lse, keep, false, false).weight;
}

static weft_tensor *route_alibi(weft_graph *g, weft_tensor *q, weft_tensor *k, weft_tensor *lse) {
    weft_score s = {.q = q, .k = k, .scale_value = 1, .pos = WEFT_POS_ALIBI};
    return weft_route_topk(g, &s, lse, 2, false, false).weight;
}

static weft_tensor *route_all(weft_graph *g, weft_tensor *q, weft_tensor *k, weft_tensor *lse,
                              weft_tensor *h) {
    weft_score s = {.q = q, .k = k, .scale_value = 1, .causal = true};
    return weft_route_dense(g, &s, lse, h, WEFT_ROUTE_ALL, 0, false, false);
}

static weft_tensor *norm_of(weft_graph *g, weft_tensor *a, weft_tensor *b) {
    return weft_global_norm(g, (weft_tensor *[]){a, b}, 2);
}

static weft_tensor *control(weft_graph *g, weft_tensor *norm, weft_tensor *lr, int64_t length,
                            double beta1) {
    weft_tensor *state = weft_new_tensor(g, WEFT_ROLE_STATE, "state", WEFT_F32, length);
    weft_adam_options options = {.beta1 = beta1, .beta2 = 0.999, .eps = 1e-8};
    return weft_adam_control(g, norm, lr, state, &options);
}

static weft_tensor *update(weft_graph *g, int64_t control_length, weft_tensor *grad,
                           int64_t m_length) {
    weft_adam_slot slot = {
        .param = weft_new_tensor(g, WEFT_ROLE_STATE, "p", WEFT_F32, 4),
        .grad = grad,
        .m = weft_new_tensor(g, WEFT_ROLE_STATE, "m", WEFT_F32, m_length),
        .v = weft_new_tensor(g, WEFT_ROLE_STATE, "v", WEFT_F32, 4),
    };
    return weft_adamw(g, F(control_length), &slot, 1);
}

/* A name for the test, the operation the message must name, the call. */
#define BAD_CALLS(X)                                                                               \
    X(zero_size, "", F(3, 0))                                                                      \
    X(negative_size, "", F(-1))                                                                    \
    /* arith */                                                                                    \
    X(fill_of_zero_size, "fill", weft_fill(g, WEFT_F32, 1, (int64_t[]){0}, 1))                     \
    X(add_other_width, "add", weft_add(g, F(2, 3), F(2, 4)))                                       \
    X(add_longer_b, "add", weft_add(g, F(3), F(2, 3)))                                             \
    X(add_integers, "add", weft_add(g, I(3), I(3)))                                                \
    X(add_mixed, "add", weft_add(g, F(3), D(3)))                                                   \
    X(scale_integers, "scale", weft_scale(g, I(3), 2))                                             \
    X(cast_integers, "cast", weft_cast(g, I(3), WEFT_F32))                                         \
    X(cast_to_integers, "cast", weft_cast(g, F(3), WEFT_I32))                                      \
    X(dot_other_length, "dot", weft_dot(g, F(3), F(4)))                                            \
    X(dot_integers, "dot", weft_dot(g, I(3), I(3)))                                                \
    X(sum_squares_integers, "sum_squares", weft_sum_squares(g, I(3), 1))                           \
    X(row_squares_flat, "row_squares", weft_row_squares(g, F(3, 4), 0))                            \
    X(row_squares_start_past_end, "row_squares", weft_row_squares(g, F(1, 2, 3, 4), 5))            \
    X(row_squares_start_negative, "row_squares", weft_row_squares(g, F(1, 2, 3, 4), -1))           \
    /* embedding */                                                                                \
    X(embed_float_ids, "embed", weft_embed(g, F(5, 4), F(2, 3), NULL, NULL))                       \
    X(embed_flat_table, "embed", weft_embed(g, F(5), I(2, 3), NULL, NULL))                         \
    X(embed_integer_table, "embed", weft_embed(g, I(5, 4), I(2, 3), NULL, NULL))                   \
    X(embed_other_width, "embed", weft_embed(g, F(5, 4), I(2, 3), F(7, 5), NULL))                  \
    X(embed_too_few_positions, "embed", weft_embed(g, F(5, 4), I(2, 3), F(2, 4), NULL))            \
    X(embed_start_without_table, "embed", weft_embed(g, F(5, 4), I(2, 3), NULL, I(2)))             \
    X(embed_start_of_other_batch, "embed", weft_embed(g, F(5, 4), I(2, 3), F(9, 4), I(3)))         \
    /* linear */                                                                                   \
    X(linear_other_inner, "linear", weft_linear(g, F(2, 3), F(4, 5), NULL, WEFT_ACT_NONE))         \
    X(linear_other_bias, "matmul", weft_linear(g, F(2, 3), F(4, 3), F(3), WEFT_ACT_NONE))          \
    X(linear_cube_weight, "linear", weft_linear(g, F(2, 3), F(4, 3, 1), NULL, WEFT_ACT_NONE))      \
    X(linear_integers, "matmul", weft_linear(g, I(2, 3), F(4, 3), NULL, WEFT_ACT_NONE))            \
    X(linear_mixed, "matmul", weft_linear(g, D(2, 3), F(4, 3), NULL, WEFT_ACT_NONE))               \
    X(matmul_other_inner, "matmul", weft_matmul(g, F(2, 3), F(4, 2), false, false))                \
    X(matmul_other_inner_transposed, "matmul", weft_matmul(g, F(2, 3), F(3, 2), true, false))      \
    X(matmul_flat, "matmul", weft_matmul(g, F(3), F(3, 2), false, false))                          \
    X(batched_other_count, "matmul", weft_batched_matmul(g, F(2, 3, 4), F(3, 4, 5), false, false)) \
    X(batched_other_inner, "matmul", weft_batched_matmul(g, F(2, 3, 4), F(2, 5, 4), false, false)) \
    X(grouped_other_groups, "linear", weft_grouped_linear(g, F(6, 2, 3), F(3, 3, 4), false))       \
    X(grouped_other_inner, "linear", weft_grouped_linear(g, F(6, 2, 3), F(2, 4, 3), false))        \
    X(grouped_flat, "linear", weft_grouped_linear(g, F(3), F(2, 3, 4), false))                     \
    /* norm */                                                                                     \
    X(norm_other_residual, "norm",                                                                 \
      weft_norm(g, F(2, 3), F(3, 3), F(3), NULL, WEFT_LAYERNORM, 0).y)                             \
    X(norm_other_weight, "norm", weft_norm(g, F(2, 3), NULL, F(2), NULL, WEFT_LAYERNORM, 0).y)     \
    X(norm_other_bias, "norm", weft_norm(g, F(2, 3), NULL, F(3), F(2), WEFT_LAYERNORM, 0).y)       \
    X(norm_rms_with_bias, "norm", weft_norm(g, F(2, 3), NULL, F(3), F(3), WEFT_RMSNORM, 0).y)      \
    X(norm_no_heads, "norm", weft_norm_heads(g, F(3), F(3), 1, NULL, 0))                           \
    X(norm_more_heads, "norm", weft_norm_heads(g, F(2, 2, 3), F(3), 2, F(3), 1))                   \
    X(norm_heads_one_gain, "norm", weft_norm_heads(g, F(2, 2, 3), F(3), 1, NULL, 1))               \
    X(norm_heads_other_gain, "norm", weft_norm_heads(g, F(2, 2, 3), F(3), 1, F(2), 1))             \
    X(norm_integers, "norm", weft_norm(g, I(2, 3), NULL, F(3), NULL, WEFT_RMSNORM, 0).y)           \
    X(norm_mixed, "norm", weft_norm(g, D(2, 3), NULL, F(3), NULL, WEFT_RMSNORM, 0).y)              \
    /* rope */                                                                                     \
    X(rope_flat, "rope", weft_rope(g, F(3, 4), 4, 1, NULL, &WEFT_ROPE_USUAL))                      \
    X(rope_odd_width, "rope", weft_rope(g, F(1, 2, 3, 5), 5, 3, NULL, &WEFT_ROPE_USUAL))           \
    X(rope_too_wide, "rope", weft_rope(g, F(1, 2, 3, 4), 6, 3, NULL, &WEFT_ROPE_USUAL))            \
    X(rope_negative_width, "rope", weft_rope(g, F(1, 2, 3, 4), -2, 3, NULL, &WEFT_ROPE_USUAL))     \
    X(rope_too_many_heads, "rope", weft_rope(g, F(1, 2, 3, 4), 4, 4, NULL, &WEFT_ROPE_USUAL))      \
    X(rope_float_start, "rope", weft_rope(g, F(1, 2, 3, 4), 4, 3, F(1), &WEFT_ROPE_USUAL))         \
    X(rope_start_of_other_batch, "rope",                                                           \
      weft_rope(g, F(1, 2, 3, 4), 4, 3, I(2), &WEFT_ROPE_USUAL))                                   \
    X(rope_integers, "rope", weft_rope(g, I(1, 2, 3, 4), 4, 3, NULL, &WEFT_ROPE_USUAL))            \
    /* unit */                                                                                     \
    X(unit_flat, "unit", weft_unit(g, F(3, 4), 1))                                                 \
    X(unit_no_heads, "unit", weft_unit(g, F(1, 2, 3, 4), 0))                                       \
    X(unit_too_many_heads, "unit", weft_unit(g, F(1, 2, 3, 4), 4))                                 \
    X(unit_integers, "unit", weft_unit(g, I(1, 2, 3, 4), 3))                                       \
    X(exp_integers, "exp", weft_exp(g, I(2, 3)))                                                   \
    /* attention: B 2, T 3, H 4, KV 2, dqk 5, dv 6 */                                              \
    X(attention_flat_query, "attention",                                                           \
      attend(g, (weft_score){.q = F(3, 4, 5), .k = F(2, 3, 2, 5)}, F(2, 3, 2, 6)))                 \
    X(attention_other_width, "attention",                                                          \
      attend(g, (weft_score){.q = F(2, 3, 4, 5), .k = F(2, 3, 2, 4)}, F(2, 3, 2, 6)))              \
    X(attention_other_batch, "attention",                                                          \
      attend(g, (weft_score){.q = F(2, 3, 4, 5), .k = F(1, 3, 2, 5)}, F(2, 3, 2, 6)))              \
    X(attention_other_value_length, "attention",                                                   \
      attend(g, (weft_score){.q = F(2, 3, 4, 5), .k = F(2, 3, 2, 5)}, F(2, 4, 2, 6)))              \
    X(attention_other_value_heads, "attention",                                                    \
      attend(g, (weft_score){.q = F(2, 3, 4, 5), .k = F(2, 3, 2, 5)}, F(2, 3, 4, 6)))              \
    X(attention_more_keys_than_heads, "attention",                                                 \
      attend(g, (weft_score){.q = F(2, 3, 4, 5), .k = F(2, 3, 8, 5)}, F(2, 3, 8, 6)))              \
    X(attention_integers, "attention",                                                             \
      attend(g, (weft_score){.q = I(2, 3, 4, 5), .k = I(2, 3, 2, 5)}, I(2, 3, 2, 6)))              \
    X(attention_causal_other_length, "attention",                                                  \
      attend(g, (weft_score){.q = F(2, 3, 4, 5), .k = F(2, 4, 2, 5), .causal = true},              \
             F(2, 4, 2, 6)))                                                                       \
    X(attention_beta_without_n, "attention",                                                       \
      attend(g, (weft_score){.q = F(2, 3, 4, 5), .k = F(2, 3, 2, 5), .beta = F(4)},                \
             F(2, 3, 2, 6)))                                                                       \
    X(attention_tau_without_n, "attention",                                                        \
      attend(g, (weft_score){.q = F(2, 3, 4, 5), .k = F(2, 3, 2, 5), .log_tau = F(4)},             \
             F(2, 3, 2, 6)))                                                                       \
    X(attention_tau_and_scale, "attention",                                                        \
      attend(g,                                                                                    \
             (weft_score){.q = F(2, 3, 4, 5),                                                      \
                          .k = F(2, 3, 2, 5),                                                      \
                          .n = F(2, 2, 3),                                                         \
                          .log_tau = F(4),                                                         \
                          .scale = F(4)},                                                          \
             F(2, 3, 2, 6)))                                                                       \
    X(attention_other_n, "attention",                                                              \
      attend(g,                                                                                    \
             (weft_score){.q = F(2, 3, 4, 5), .k = F(2, 3, 2, 5), .n = F(2, 4, 3), .beta = F(4)},  \
             F(2, 3, 2, 6)))                                                                       \
    X(attention_scale_of_key_heads, "attention",                                                   \
      attend(g, (weft_score){.q = F(2, 3, 4, 5), .k = F(2, 3, 2, 5), .scale = F(2)},               \
             F(2, 3, 2, 6)))                                                                       \
    X(attention_relative_without_table, "attention",                                               \
      attend(                                                                                      \
          g,                                                                                       \
          (weft_score){                                                                            \
              .q = F(2, 3, 4, 5), .k = F(2, 3, 2, 5), .pos = WEFT_POS_RELATIVE, .causal = true},   \
          F(2, 3, 2, 6)))                                                                          \
    X(attention_relative_too_short, "attention",                                                   \
      attend(g,                                                                                    \
             (weft_score){.q = F(2, 3, 4, 5),                                                      \
                          .k = F(2, 3, 2, 5),                                                      \
                          .pos = WEFT_POS_RELATIVE,                                                \
                          .rel = F(2),                                                             \
                          .causal = true},                                                         \
             F(2, 3, 2, 6)))                                                                       \
    X(attention_relative_not_causal, "attention",                                                  \
      attend(g,                                                                                    \
             (weft_score){                                                                         \
                 .q = F(2, 3, 4, 5), .k = F(2, 3, 2, 5), .pos = WEFT_POS_RELATIVE, .rel = F(3)},   \
             F(2, 3, 2, 6)))                                                                       \
    X(attention_band_not_causal, "attention",                                                      \
      attend(g, (weft_score){.q = F(2, 3, 4, 5), .k = F(2, 3, 2, 5), .band = true, .window = 1},   \
             F(2, 3, 2, 6)))                                                                       \
    X(packed_not_divisible, "attention", attend_packed(g, (weft_score){0}, F(2, 3, 25), 4, 2))     \
    X(packed_no_heads, "attention", attend_packed(g, (weft_score){0}, F(2, 3, 24), 0, 2))          \
    X(packed_and_apart, "attention",                                                               \
      attend_packed(g, (weft_score){.q = F(2, 3, 4, 3)}, F(2, 3, 24), 4, 2))                       \
    /* routing: B 2, T 3, H 4, KV 2, dqk 5 */                                                      \
    X(route_other_lse, "route_topk", route(g, F(2, 3, 4, 5), F(2, 3, 2, 5), F(2, 3, 4), 2))        \
    X(route_none, "route_topk", route(g, F(2, 3, 4, 5), F(2, 3, 2, 5), F(2, 4, 3), 0))             \
    X(route_alibi_not_causal, "route_topk",                                                        \
      route_alibi(g, F(2, 3, 4, 5), F(2, 3, 2, 5), F(2, 4, 3)))                                    \
    X(route_other_width, "route_topk", route(g, F(2, 3, 4, 5), F(2, 3, 2, 4), F(2, 4, 3), 2))      \
    X(gather_float_index, "route_gather",                                                          \
      weft_route_gather(g, F(2, 3, 7), F(2, 3, 2), F(2, 3, 2)))                                    \
    X(gather_other_weights, "route_gather",                                                        \
      weft_route_gather(g, F(2, 3, 7), I(2, 3, 2), F(2, 3, 3)))                                    \
    X(gather_other_batch, "route_gather",                                                          \
      weft_route_gather(g, F(1, 3, 7), I(2, 3, 2), F(2, 3, 2)))                                    \
    X(gather_other_second, "route_gather",                                                         \
      weft_route_gather_pair(g, F(2, 3, 7), F(2, 4, 7), I(2, 3, 2), F(2, 3, 2)).first)             \
    X(gather_second_batch, "route_gather",                                                         \
      weft_route_gather_pair(g, F(2, 3, 7), F(1, 3, 7), I(2, 3, 2), F(2, 3, 2)).second)            \
    X(dense_other_length, "route_dense",                                                           \
      route_all(g, F(2, 3, 4, 5), F(2, 3, 2, 5), F(2, 4, 3), F(2, 4, 7)))                          \
    X(dense_flat, "route_dense", route_all(g, F(2, 3, 4, 5), F(2, 3, 2, 5), F(2, 4, 3), F(3, 7)))  \
    /* activation */                                                                               \
    X(gelu_integers, "gelu", weft_gelu(g, I(3)))                                                   \
    X(silu_mul_other_shape, "silu_mul", weft_silu_mul(g, F(2, 3), F(3, 2)))                        \
    X(silu_mul_mixed, "silu_mul", weft_silu_mul(g, F(3), D(3)))                                    \
    X(gate_other_heads, "gate_mix", weft_gate_mix(g, F(2, 3, 4, 5), F(2, 3, 5), 0.1))              \
    X(gate_other_length, "gate_mix", weft_gate_mix(g, F(2, 3, 4, 5), F(2, 2, 4), 0.1))             \
    X(gate_flat, "gate_mix", weft_gate_mix(g, F(3, 4, 5), F(2, 3, 4), 0.1))                        \
    /* gaussian, heads */                                                                          \
    X(softplus_integers, "softplus", weft_softplus(g, I(3), 0, 0))                                 \
    X(softplus_start_past_end, "softplus", weft_softplus(g, F(2, 3), 4, 0))                        \
    X(softplus_start_negative, "softplus", weft_softplus(g, F(2, 3), -1, 0))                       \
    X(gaussian_odd_width, "gaussian", weft_gaussian_key(g, F(1, 2, 3, 5)).y)                       \
    X(gaussian_flat, "gaussian", weft_gaussian_query(g, F(3, 4)))                                  \
    X(gaussian_integers, "gaussian", weft_gaussian_key(g, I(1, 2, 3, 4)).n)                        \
    X(overlap_odd_width, "overlap", weft_overlap_scale(g, F(1, 2, 3, 5)).y)                        \
    X(overlap_flat, "overlap", weft_overlap_scale(g, F(3, 4)).y)                                   \
    X(overlap_integers, "overlap", weft_overlap_scale(g, I(1, 2, 3, 4)).y)                         \
    X(head_repeat_of_two, "head_columns", weft_head_repeat(g, F(1, 2, 2, 4), 3))                   \
    X(head_repeat_no_heads, "head_columns", weft_head_repeat(g, F(1, 2, 1, 4), 0))                 \
    X(head_repeat_integers, "head_columns", weft_head_repeat(g, I(1, 2, 1, 4), 3))                 \
    X(head_columns_past_end, "head_columns",                                                       \
      weft_head_columns(g, (weft_head_columns_attr){2, 4, 1, {{2, 3, 0, 0, 0}}, 0, 0},             \
                        F(1, 2, 2, 4), NULL))                                                      \
    X(head_columns_too_narrow, "head_columns",                                                     \
      weft_head_columns(g, (weft_head_columns_attr){2, 4, 2, {{0, 3, 0, 0, 2}}, 0, 0},             \
                        F(1, 2, 2, 4), NULL))                                                      \
    X(head_columns_of_both, "head_columns",                                                        \
      weft_head_columns(                                                                           \
          g, (weft_head_columns_attr){2, 4, 1, {{0, 3, 0, 0, 0}, {0, 2, 2, 0, 0}}, 0, 0},          \
          F(1, 2, 2, 4), F(1, 2, 1, 2)))                                                           \
    X(head_transpose_flat, "head_transpose", weft_head_transpose(g, F(2, 4)))                      \
    X(head_pool_wider, "head_pool", weft_head_pool(g, F(3, 4), F(2), 8))                           \
    X(head_pool_not_divided, "head_pool", weft_head_pool(g, F(3, 12), F(3), 4))                    \
    X(head_pool_of_no_width, "head_pool", weft_head_pool(g, F(3, 4), F(2), 0))                     \
    X(head_pool_flat_scale, "head_pool", weft_head_pool(g, F(3, 8), F(2, 1), 4))                   \
    X(head_spread_narrower, "head_spread", weft_head_spread(g, F(3, 8), F(2), 4))                  \
    X(head_spread_not_divided, "head_spread", weft_head_spread(g, F(3, 4), F(3), 12))              \
    X(head_spread_integers, "head_spread", weft_head_spread(g, I(3, 4), F(2), 8))                  \
    /* stack */                                                                                    \
    X(stack_of_nothing, "stack", weft_stack(g, NULL, 0))                                           \
    X(stack_other_shape, "stack", stack_two(g, F(2, 3), F(3, 2)))                                  \
    X(stack_mixed, "stack", stack_two(g, F(2, 3), D(2, 3)))                                        \
    X(stack_integers, "stack", stack_two(g, I(2, 3), I(2, 3)))                                     \
    X(stack_deep, "stack", stack_two(g, F(1, 1, 1, 2), F(1, 1, 1, 2)))                             \
    X(gram_flat, "gram", weft_gram(g, F(4)))                                                       \
    /* dropout, time, contrastive */                                                               \
    X(dropout_all, "dropout", weft_dropout(g, F(2, 3), 1, "drop"))                                 \
    X(dropout_negative, "dropout", weft_dropout(g, F(2, 3), -0.1, "drop"))                         \
    X(dropout_integers, "dropout", weft_dropout(g, I(2, 3), 0.1, "drop"))                          \
    X(running_mean_flat, "running_mean", weft_running_mean(g, F(2, 3), NULL))                      \
    X(running_mean_integers, "running_mean", weft_running_mean(g, I(2, 3, 4), NULL))               \
    X(time_mean_flat, "time_mean", weft_time_mean(g, F(2, 3)))                                     \
    X(time_mean_integers, "time_mean", weft_time_mean(g, I(2, 3, 4)))                              \
    X(moments_flat, "moments", weft_moments(g, F(2, 3)).gram)                                      \
    X(infonce_flat, "infonce", weft_infonce(g, F(3), 0, 0.07, 1))                                  \
    X(infonce_deep, "infonce", weft_infonce(g, F(2, 2, 3, 4), 0, 0.07, 1))                         \
    X(infonce_tau_of_zero, "infonce", weft_infonce(g, F(3, 4), 0, 0, 1))                           \
    X(infonce_integers, "infonce", weft_infonce(g, I(3, 4), 0, 0.07, 1))                           \
    X(infonce_pairs_of_other_groups, "infonce", weft_infonce(g, F(6, 4), 2, 0.07, 1))              \
    /* cross-entropy: 6 rows of 3, vocabulary 5 */                                                 \
    X(ce_other_width, "cross_entropy",                                                             \
      weft_cross_entropy(g, F(6, 3), F(5, 4), I(6), NULL, 0, false, 0).ce)                         \
    X(ce_other_targets, "cross_entropy",                                                           \
      weft_cross_entropy(g, F(6, 3), F(5, 3), I(5), NULL, 0, false, 0).ce)                         \
    X(ce_float_targets, "cross_entropy",                                                           \
      weft_cross_entropy(g, F(6, 3), F(5, 3), F(6), NULL, 0, false, 0).ce)                         \
    X(ce_mixed, "cross_entropy",                                                                   \
      weft_cross_entropy(g, D(6, 3), F(5, 3), I(6), NULL, 0, false, 0).ce)                         \
    /* optimizer */                                                                                \
    X(global_norm_of_integers, "norm_parts", norm_of(g, F(3), I(3)))                               \
    X(global_norm_mixed, "norm_parts", norm_of(g, F(3), D(3)))                                     \
    X(global_norm_of_nothing, "norm_parts", weft_global_norm(g, NULL, 0))                          \
    X(control_short_state, "adam_control", control(g, F(1), F(1), 5, 0.9))                         \
    X(control_beta_of_one, "adam_control", control(g, F(1), F(1), WEFT_ADAM_STATE, 1))             \
    X(control_norm_of_two, "adam_control", control(g, F(2), F(1), WEFT_ADAM_STATE, 0.9))           \
    X(control_mixed, "adam_control", control(g, D(1), F(1), WEFT_ADAM_STATE, 0.9))                 \
    X(adamw_short_control, "adamw", update(g, 3, F(4), 4))                                         \
    X(adamw_other_gradient, "adamw", update(g, WEFT_ADAM_CONTROL, F(5), 4))                        \
    X(adamw_other_moment, "adamw", update(g, WEFT_ADAM_CONTROL, F(4), 5))                          \
    X(adamw_integer_gradient, "adamw", update(g, WEFT_ADAM_CONTROL, I(4), 4))

/* A call is made only where its test runs, in that test's graph. */
typedef struct {
    const char *op;
    weft_tensor *(*call)(weft_graph *g);
} bad_call;

#define DEFINE_CALL(id, op, ...)                                                                   \
    static weft_tensor *call_##id(weft_graph *g) {                                                 \
        return __VA_ARGS__;                                                                        \
    }
BAD_CALLS(DEFINE_CALL)
#undef DEFINE_CALL

#define LIST_CALL(id, op, ...) {op, call_##id},
static const bad_call calls[] = {BAD_CALLS(LIST_CALL)};
#undef LIST_CALL

static void test_call_is_refused(void **state) {
    const bad_call *bad = *state;
    weft_graph *g = NULL;
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    weft_tensor *t = bad->call(g);
    weft_status status = weft_graph_status(g);
    char message[512];
    snprintf(message, sizeof message, "%s", weft_error_message());
    /* What follows a failed call fails too, quietly, and the first message stays. */
    weft_tensor *next = weft_scale(g, t, 2);
    bool kept = weft_graph_status(g) == status && !strcmp(message, weft_error_message());
    weft_graph_destroy(g);
    assert_null(t);
    assert_null(next);
    assert_int_equal(status, WEFT_EINPUT);
    assert_true(kept);
    if (!strstr(message, bad->op)) fail_msg("`%s` does not name %s", message, bad->op);
    if (!*message || strchr(message, '\n')) fail_msg("`%s` is not one line", message);
}

int main(void) {
    static const char *const names[] = {
#define NAME_CALL(id, op, ...) #id " is refused",
        BAD_CALLS(NAME_CALL)
#undef NAME_CALL
    };
    enum { CALLS = sizeof calls / sizeof calls[0] };
    struct CMUnitTest tests[CALLS];
    for (int i = 0; i < CALLS; i++)
        tests[i] = (struct CMUnitTest){names[i], test_call_is_refused, NULL, NULL,
                                       (void *)(uintptr_t)&calls[i]};
    return _cmocka_run_group_tests("bad input", tests, CALLS, NULL, NULL) ? 1 : 0;
}
