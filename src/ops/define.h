/* What the files that define operations share: how a node is appended, common rules of shapes and
 * memory, and checks. */
#pragma once

#include "ops/list.h"

/* weft_op_NAME: DEFINE_OP(scale, .infer = ..., .grad = ...) with the fields of weft_op. */
#define DEFINE_OP(op, ...)                                                                         \
    const weft_op weft_op_##op = {.name = #op, .id = WEFT_OP_##op, __VA_ARGS__}

/* Appends a node of these inputs, all of them required, and returns its first output; `attr` has
 * `size` bytes, NULL and 0 where there are none. */
#define weft_append(g, op, attr, size, ...)                                                        \
    weft_append_some((g), (op), (attr), (size), INT32_MAX, __VA_ARGS__)
/* The same where those behind the first `required` may be NULL. */
#define weft_append_some(g, op, attr, size, required, ...)                                         \
    weft_append_list((g), (op), (attr), (size), (required), WEFT_TENSORS(__VA_ARGS__))
#define WEFT_TENSORS(...)                                                                          \
    (int)(sizeof((weft_tensor *[]){__VA_ARGS__}) / sizeof(weft_tensor *)),                         \
        ((weft_tensor *[]){__VA_ARGS__})
weft_tensor *weft_append_list(weft_graph *g, const weft_op *op, const void *attr, size_t size,
                              int required, int n_in, weft_tensor *const *in);

/* weft_OP(g, parameters): appends the operation to these inputs, all of them required; and the same with
 * attributes, an expression in the parameters. */
#define DEFINE_APPEND(op, parameters, ...)                                                         \
    weft_tensor *weft_##op(weft_graph *g, WEFT_UNPACKED parameters) {                              \
        return weft_append(g, &weft_op_##op, NULL, 0, __VA_ARGS__);                                \
    }
#define DEFINE_APPEND_WITH(op, parameters, attr, ...)                                              \
    weft_tensor *weft_##op(weft_graph *g, WEFT_UNPACKED parameters) {                              \
        return weft_append(g, &weft_op_##op, &(attr), sizeof(attr), __VA_ARGS__);                  \
    }
#define WEFT_UNPACKED(...) __VA_ARGS__

/* For grad: appends a node of `n` outputs, the first inputs' gradients; of a list of inputs, the first of
 * which are required. */
#define weft_append_back(g, op, attr, size, d_in, n, ...)                                          \
    weft_append_back_list((g), (op), (attr), (size), (d_in), (n), INT32_MAX,                       \
                          WEFT_TENSORS(__VA_ARGS__))
weft_status weft_append_back_list(weft_graph *g, const weft_op *op, const void *attr, size_t size,
                                  weft_tensor **d_in, int n_out, int required, int n_in,
                                  weft_tensor *const *in);

/* The heads of OP_infer, which has its attributes of that type as `attr` and its first input under a name,
 * INFER(op, type, x) { ... }, and of OP_grad: GRAD(op) { ... }. */
#define INFER(op, type, first)                                                                     \
    static weft_status op##_rule(weft_graph *g, weft_node *n, const type *attr,                    \
                                 const weft_tensor *first);                                        \
    static weft_status op##_infer(weft_graph *g, weft_node *n) {                                   \
        return op##_rule(g, n, n->attr, n->in[0]);                                                 \
    }                                                                                              \
    static weft_status op##_rule(weft_graph *g, weft_node *n,                                      \
                                 __attribute__((unused)) const type *attr,                         \
                                 __attribute__((unused)) const weft_tensor *first)
#define GRAD(op)                                                                                   \
    static weft_status op##_grad(weft_graph *g, __attribute__((unused)) const weft_node *n,        \
                                 weft_tensor *const *d_out, weft_tensor **d_in)

/* An operation by its rule: OPERATION(fill, weft_fill_attr, none, .side_effect = true) { ... }, with further fields of
 * weft_op, and as INFER; and one that has a gradient, which GRAD or one of the following defines behind it. */
#define OPERATION(op, type, first, ...)                                                            \
    static weft_status op##_infer(weft_graph *g, weft_node *n);                                    \
    DEFINE_OP(op, .infer = op##_infer, ##__VA_ARGS__);                                             \
    INFER(op, type, first)
#define OPERATION_WITH_GRAD(op, type, first, ...)                                                  \
    GRAD(op);                                                                                      \
    OPERATION(op, type, first, .grad = op##_grad, ##__VA_ARGS__)

/* For grad: OP_grad appends OP_back of dy and what follows, with the operation's attributes of `size` bytes,
 * which makes dx. */
#define DEFINE_GRAD(op, size, ...)                                                                 \
    GRAD(op) {                                                                                     \
        return weft_append_back(g, &weft_op_##op##_back, n->attr, size, d_in, 1, d_out[0],         \
                                ##__VA_ARGS__);                                                    \
    }

/* The same of two inputs, each where it is wanted. */
#define DEFINE_GRAD_OF_TWO(op)                                                                     \
    GRAD(op) {                                                                                     \
        weft_wanted want = weft_wanted_of(n);                                                      \
        return weft_append_back(g, &weft_op_##op##_back, &want, sizeof want, d_in, 2, d_out[0],    \
                                n->in[0], n->in[1]);                                               \
    }

/* The same where dx is an expression. */
#define DEFINE_GRAD_AS(op, dx)                                                                     \
    GRAD(op) {                                                                                     \
        d_in[0] = dx;                                                                              \
        return weft_graph_status(g);                                                               \
    }

/* NAME, for inplace: the number of an input, an expression in n and out; and OP_flops. */
#define DEFINE_IN_PLACE(name, input)                                                               \
    static inline int name(__attribute__((unused)) const weft_node *n,                             \
                           __attribute__((unused)) int out) {                                      \
        return input;                                                                              \
    }
#define DEFINE_FLOPS(op, flops)                                                                    \
    static int64_t op##_flops(const weft_node *n) {                                                \
        return flops;                                                                              \
    }

/* For infer: an error of node n of graph g, which begins with the operation's name. */
#define REFUSE(format, ...) weft_graph_fail(g, "%s: " format, n->op->name, ##__VA_ARGS__)

/* For infer, at its end: an output, as weft_node_output and weft_node_output_like make it; with its shape
 * written out. */
#define weft_output_of(g, n, out, dtype, ...)                                                      \
    weft_output((g), (n), (out), (dtype), WEFT_DIMS(__VA_ARGS__))
static inline weft_status weft_output(weft_graph *g, weft_node *n, int out, weft_dtype dtype,
                                      int ndim, const int64_t *shape) {
    weft_node_output(g, n, out, dtype, ndim, shape);
    return weft_graph_status(g);
}
static inline weft_status weft_output_like(weft_graph *g, weft_node *n, int out, weft_dtype dtype,
                                           const weft_tensor *like) {
    weft_node_output_like(g, n, out, dtype, like);
    return weft_graph_status(g);
}

/* Which gradients of its two inputs a node is asked for. */
static inline weft_wanted weft_wanted_of(const weft_node *n) {
    return (weft_wanted){n->in[0]->needs_grad, n->in[1]->needs_grad};
}

/* For infer. Two inputs of floats, a and b, have one shape; one output like input 0, called x; one like input 1, a gradient dx like x from (dy, x),
 * of one shape or without a look at dy; and up to two like inputs 1 and 2, as weft_wanted says. */
weft_status weft_check_pair(weft_graph *g, const weft_node *n);
weft_status weft_infer_like_first(weft_graph *g, weft_node *n);
weft_status weft_infer_like_second(weft_graph *g, weft_node *n);
weft_status weft_infer_back(weft_graph *g, weft_node *n);
weft_status weft_infer_wanted(weft_graph *g, weft_node *n);

/* For inplace. The first output over input 0; over input 1; over dy, or x where that has another type;
 * and each over the input that it is the gradient of, behind dy. */
DEFINE_IN_PLACE(weft_over_first, out == 0 ? 0 : -1)
DEFINE_IN_PLACE(weft_over_second, out == 0 ? 1 : -1)
DEFINE_IN_PLACE(weft_over_back, n->in[0]->dtype == n->in[1]->dtype ? 0 : 1)
DEFINE_IN_PLACE(weft_over_own, out + 1)

/* Checks. Each returns WEFT_OK or records an error in the graph that names the operation and both
 * shapes. */

/* `t` is f32, f64 or bf16. */
weft_status weft_check_float(weft_graph *g, const weft_node *n, const char *what,
                             const weft_tensor *t);
/* The same, and it has so many dimensions. */
weft_status weft_check_float_of(weft_graph *g, const weft_node *n, const char *what,
                                const weft_tensor *t, int ndim);
/* `t` is i32. */
weft_status weft_check_int(weft_graph *g, const weft_node *n, const char *what,
                           const weft_tensor *t);
/* `a` and `b` have one shape; names as the message should have them. */
weft_status weft_check_same(weft_graph *g, const weft_node *n, const char *a_name,
                            const weft_tensor *a, const char *b_name, const weft_tensor *b);
/* `t` has exactly this shape; written out: weft_check_dims(g, n, "bias", b, N). */
weft_status weft_check_shape(weft_graph *g, const weft_node *n, const char *what,
                             const weft_tensor *t, int ndim, const int64_t *shape);
#define weft_check_dims(g, n, what, t, ...)                                                        \
    weft_check_shape((g), (n), (what), (t), WEFT_DIMS(__VA_ARGS__))
/* `t`, where there is one, is i32 and has this shape. */
weft_status weft_check_places(weft_graph *g, const weft_node *n, const char *what,
                              const weft_tensor *t, int ndim, const int64_t *shape);
weft_status weft_check_ndim(weft_graph *g, const weft_node *n, const char *what,
                            const weft_tensor *t, int ndim);

/* `t` has the type of statistics beside `beside`. */
weft_status weft_check_stat(weft_graph *g, const weft_node *n, const char *what,
                            const weft_tensor *t, const weft_tensor *beside);

/* The type of row statistics and losses beside `t`: f64 beside f64, else f32. */
weft_dtype weft_stat_dtype(const weft_tensor *t);
