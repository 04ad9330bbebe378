/* Stacks: y_i = x_i, and back dx_i = dy_i. unstack, the gradient, makes the parts that are wanted in
 * one node. Both copy: the parts are parameters, or are made at other times, and lie anywhere. */
#include "ops/stack.h"

#include "ops/define.h"

static weft_status stack_infer(weft_graph *g, weft_node *n) {
    const weft_tensor *first = n->in[0];
    if (first->ndim == WEFT_MAX_DIMS)
        return weft_graph_fail(g, "stack: %s has as many dimensions as a tensor can have",
                               weft_tensor_describe(first));
    for (int i = 0; i < n->n_in; i++) {
        WEFT_TRY(weft_check_float(g, n, "a part", n->in[i]));
        if (!weft_tensor_same_shape(n->in[i], first) || n->in[i]->dtype != first->dtype)
            return weft_graph_fail(g, "stack: %s does not go with %s",
                                   weft_tensor_describe(n->in[i]), weft_tensor_describe(first));
    }
    int64_t shape[WEFT_MAX_DIMS] = {n->n_in};
    for (int d = 0; d < first->ndim; d++)
        shape[d + 1] = first->shape[d];
    weft_node_output(g, n, 0, first->dtype, first->ndim + 1, shape);
    return weft_graph_status(g);
}

static weft_status stack_grad(weft_graph *g, const weft_node *n, weft_tensor *const *d_out,
                              weft_tensor **d_in) {
    bool *wanted = weft_graph_alloc(g, (size_t)n->n_in * sizeof *wanted);
    if (!wanted) return weft_graph_status(g);
    for (int i = 0; i < n->n_in; i++)
        wanted[i] = n->in[i]->needs_grad;
    weft_unstack_attr attr = {wanted};
    return weft_append_back(g, &weft_op_unstack, &attr, sizeof attr, d_in, n->n_in, d_out[0]);
}

DEFINE_OP(stack, .infer = stack_infer, .grad = stack_grad);

static weft_status unstack_infer(weft_graph *g, weft_node *n) {
    const weft_tensor *dy = n->in[0];
    const weft_unstack_attr *attr = n->attr;
    for (int i = 0; i < n->n_out; i++)
        if (attr->wanted[i]) weft_node_output(g, n, i, dy->dtype, dy->ndim - 1, dy->shape + 1);
    return weft_graph_status(g);
}

DEFINE_OP(unstack, .infer = unstack_infer);

weft_tensor *weft_stack(weft_graph *g, weft_tensor *const *parts, int64_t n) {
    if (n < 1 || n > INT32_MAX) {
        weft_graph_fail(g, "stack: %lld parts, but there must be 1 at least", (long long)n);
        return NULL;
    }
    return weft_append_list(g, &weft_op_stack, NULL, 0, (int)n, parts);
}
