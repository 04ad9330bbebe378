/* Autodiff as a graph rewrite.
 *
 * The forward nodes are walked from the last to the first. A node whose outputs have gradients
 * appends, through its operation's rule, the nodes that make its inputs' gradients; where a tensor
 * is used more than once its gradients are added in the order in which the walk meets them, which
 * is fixed by the graph alone.
 *
 * A node inside a recomputation segment is differentiated on clones: the first time the walk needs
 * a tensor that the segment made, the nodes that make it are appended once more, from the tensors
 * that enter the segment. The forward tensors are then read by nobody in the backward pass, and
 * the planner lets go of them early. What was cloned in vain is dropped at the end with everything
 * else that nothing kept depends on. */
#include "core/graph_internal.h"

typedef struct {
    weft_graph *g;
    weft_tensor **grad;  /* [forward tensors] by id of the root: the gradient so far */
    weft_tensor **clone; /* the same: its recomputed double */
} autodiff;

/* Adds `grad` to what has arrived for `t`. A view hands its gradient on to the root. */
static weft_status accumulate(autodiff *a, weft_tensor *t, weft_tensor *grad) {
    if (!grad) return WEFT_OK;
    if (!weft_tensor_same_shape(t, grad) || t->dtype != grad->dtype)
        return weft_graph_fail(a->g, "backward: the gradient of %s came out as %s",
                               weft_tensor_describe(t), weft_tensor_describe(grad));
    weft_tensor *root = weft_tensor_root(t);
    grad = weft_reshape(a->g, grad, root->ndim, root->shape);
    weft_tensor **slot = &a->grad[root->id];
    *slot = *slot ? weft_autodiff_ops.add(a->g, *slot, grad) : grad;
    return weft_graph_status(a->g);
}

/* `t` itself, or its double if a node of this segment made it: of that node a double is appended, on
 * doubles of its inputs where the segment made them. */
static weft_tensor *recomputed(autodiff *a, weft_tensor *t, int32_t segment) {
    if (!t || segment == 0) return t;
    weft_tensor *root = weft_tensor_root(t);
    const weft_node *n = root->producer;
    if (!n || n->segment != segment) return t;
    if (!a->clone[root->id]) {
        weft_node *made = weft_graph_node_new(a->g, n->op, n->in, n->n_in, n->n_out, n->attr);
        if (!made) return NULL;
        made->segment = segment;
        for (int i = 0; i < n->n_in; i++)
            made->in[i] = recomputed(a, n->in[i], segment);
        for (int i = 0; i < n->n_out; i++) {
            const weft_tensor *out = n->out[i];
            if (!out) continue;
            weft_tensor *own =
                weft_graph_tensor_new(a->g, WEFT_ROLE_TEMP, out->dtype, out->ndim, out->shape);
            if (!own) return NULL;
            own->producer = made;
            own->needs_grad = out->needs_grad;
            made->out[i] = a->clone[out->id] = own;
        }
        if (weft_graph_status(a->g) != WEFT_OK || weft_graph_node_push(a->g, made) != WEFT_OK)
            return NULL;
    }
    return weft_reshape(a->g, a->clone[root->id], t->ndim, t->shape);
}

static weft_status differentiate_node(autodiff *a, const weft_node *n) {
    bool wanted = false, arrived = false;
    for (int i = 0; i < n->n_in; i++)
        wanted |= n->in[i] && n->in[i]->needs_grad;
    for (int i = 0; i < n->n_out; i++)
        arrived |= n->out[i] && a->grad[n->out[i]->id];
    if (!wanted || !arrived) return WEFT_OK;
    if (!n->op->grad) return weft_graph_fail(a->g, "backward: %s has no gradient", n->op->name);

    weft_node view = *n;
    WEFT_AUTO_FREE weft_tensor **lists =
        calloc((size_t)(2 * (n->n_in + n->n_out)), sizeof *lists); /* in, out, d_in, d_out */
    if (!lists) return weft_no_memory("backward");
    view.in = lists;
    view.out = lists + n->n_in;
    weft_tensor **d_in = view.out + n->n_out, **d_out = d_in + n->n_in;
    for (int i = 0; i < n->n_in; i++)
        view.in[i] = recomputed(a, n->in[i], n->segment);
    for (int i = 0; i < n->n_out; i++) {
        view.out[i] = recomputed(a, n->out[i], n->segment);
        d_out[i] = n->out[i] ? a->grad[n->out[i]->id] : NULL;
    }
    WEFT_TRY(weft_graph_status(a->g));
    WEFT_TRY(n->op->grad(a->g, &view, d_out, d_in));
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i] && n->in[i]->needs_grad) WEFT_TRY(accumulate(a, n->in[i], d_in[i]));
    return weft_graph_status(a->g);
}

weft_status weft_graph_drop_unused(weft_graph *g) {
    WEFT_ROOM(bool, used, g->n_tensors + 1, "graph: no memory");
    WEFT_ROOM(bool, wanted, g->n_nodes + 1, "graph: no memory");
    for (int64_t i = g->n_nodes - 1; i >= 0; i--) {
        const weft_node *n = g->nodes[i];
        wanted[i] = n->op->side_effect;
        for (int o = 0; o < n->n_out; o++)
            wanted[i] |= n->out[o] && (n->out[o]->keep || used[n->out[o]->id]);
        for (int k = 0; wanted[i] && k < n->n_in; k++)
            if (n->in[k]) used[weft_tensor_root(n->in[k])->id] = true;
    }
    for (int64_t i = 0; i < g->n_nodes; i++)
        if (!wanted[i]) g->nodes[i] = NULL;
    weft_graph_close_holes(g);
    return WEFT_OK;
}

weft_status weft_graph_backward_many(weft_graph *g, int n, weft_tensor *const *loss,
                                     weft_tensor *const *dloss) {
    WEFT_TRY(weft_graph_status(g));
    if (g->n_forward >= 0) return weft_graph_fail(g, "backward: this graph has its gradient");
    if (g->segment) return weft_graph_fail(g, "backward: a recomputation segment is still open");
    for (int i = 0; i < n; i++) {
        if (!loss[i]) return weft_graph_fail(g, "backward: loss %d is missing", i);
        if (dloss && dloss[i]) continue;
        if (weft_tensor_count(loss[i]) != 1)
            return weft_graph_fail(g, "backward: the loss is %s, but it must be one number",
                                   weft_tensor_describe(loss[i]));
    }
    int64_t forward = g->n_nodes, tensors = g->n_tensors;
    g->n_forward = forward;
    WEFT_ROOM(weft_tensor *, grad, tensors + 1, "backward: no memory");
    WEFT_ROOM(weft_tensor *, clone, tensors + 1, "backward: no memory");
    autodiff a = {g, grad, clone};
    for (int i = 0; i < n; i++) {
        weft_keep(loss[i]);
        weft_tensor *start = dloss && dloss[i] ? dloss[i] : weft_autodiff_ops.ones(g, loss[i]);
        WEFT_TRY(weft_graph_status(g));
        WEFT_TRY(accumulate(&a, loss[i], start));
    }
    for (int64_t i = forward - 1; i >= 0; i--)
        WEFT_TRY(differentiate_node(&a, g->nodes[i]));
    for (int64_t i = 0; i < tensors; i++) {
        weft_tensor *t = g->tensors[i];
        if (t->role == WEFT_ROLE_TEMP || !t->needs_grad || t->view_of) continue;
        t->grad = weft_keep(a.grad[t->id]);
    }
    return weft_graph_drop_unused(g);
}

weft_status weft_graph_backward(weft_graph *g, weft_tensor *loss, weft_tensor *dloss) {
    return weft_graph_backward_many(g, 1, &loss, &dloss);
}
