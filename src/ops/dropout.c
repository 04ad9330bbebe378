/* Dropout: y = x·keep/(1 − p), keep a pure function of seed, iteration, sequence, site and index.
 * The gradient is the same operation on dy; the attributes carry the site, so it draws the same
 * numbers. */
#include "ops/dropout.h"

#include "base/random.h"
#include "ops/define.h"

static weft_status dropout_infer(weft_graph *g, weft_node *n) {
    const weft_tensor *x = n->in[0];
    double p = ((const weft_dropout_attr *)n->attr)->p;
    WEFT_TRY(weft_check_float(g, n, "x", x));
    if (!(p >= 0 && p < 1))
        return weft_graph_fail(g, "dropout: p is %g on %s, but it must be at least 0 and below 1",
                               p, weft_tensor_describe(x));
    if (x->ndim < 1)
        return weft_graph_fail(g, "dropout: x is %s, but its first dimension must be the batch",
                               weft_tensor_describe(x));
    weft_node_output_like(g, n, 0, x->dtype, x);
    return weft_graph_status(g);
}

static weft_status dropout_grad(weft_graph *g, const weft_node *n, weft_tensor *const *d_out,
                                weft_tensor **d_in) {
    return weft_append_back(g, &weft_op_dropout, n->attr, sizeof(weft_dropout_attr), d_in, 1,
                            d_out[0]);
}

DEFINE_OP(dropout, .infer = dropout_infer, .grad = dropout_grad, .inplace = weft_over_first);

weft_tensor *weft_dropout(weft_graph *g, weft_tensor *x, double p, const char *site) {
    if (p == 0) return x;
    if (!site) {
        weft_graph_fail(g, "dropout: it needs the name of its place in the model");
        return NULL;
    }
    weft_dropout_attr attr = {p, weft_random_site(site)};
    return weft_append(g, &weft_op_dropout, &attr, sizeof attr, x);
}
