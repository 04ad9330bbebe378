/* Matrix products: shapes and gradients.
 *
 * y = a b is the one formula; the forms differ in how tensors are read as matrices. Each form's
 * gradients are forms of the same node:
 *
 *     rows      y = x w          dx = rows(dy, wᵀ)         dw = outer(x, dy)
 *     plain     y = a b          da = dy bᵀ                db = aᵀ dy
 *     grouped   as rows, a weight per group
 *
 * outer, y = Σ_r aᵣ bᵣᵀ, and grouped outer are gradients only and have none themselves.
 *
 * alpha goes into both, and the addend's gradient is dy. Of several products that are summed, each has
 * its own. With gelu the values before it are a second
 * output, made only where a gradient will read it: dy then first goes through gelu's own gradient.
 * Of y = aᵀ a the gradient is a (dy + dyᵀ), and 2 a dy where dy is symmetric. */
#include "ops/linear.h"

#include "ops/activation.h"
#include "ops/arith.h"
#include "ops/define.h"
#include "ops/heads.h"

static const char *const form_names[] = {"linear", "linear gradient", "matmul", "grouped linear",
                                         "grouped linear gradient"};

weft_matmul_sizes weft_matmul_measure(const weft_matmul_attr *attr, const weft_tensor *a,
                                      const weft_tensor *b) {
    int64_t b_rows = b->ndim > 1 ? b->shape[b->ndim - 2] : 1, b_columns = weft_tensor_width(b);
    int64_t n = attr->tb ? b_rows : b_columns;
    int64_t groups;
    switch (attr->form) {
    case WEFT_MATMUL_ROWS:
        return (weft_matmul_sizes){1, weft_tensor_rows(a), n, weft_tensor_width(a)};
    case WEFT_MATMUL_OUTER:
        return (weft_matmul_sizes){1, weft_tensor_width(a), b_columns, weft_tensor_rows(a)};
    case WEFT_MATMUL_PLAIN:
        groups = a->ndim == 3 ? a->shape[0] : 1;
        return attr->ta
                   ? (weft_matmul_sizes){groups, weft_tensor_width(a), n, a->shape[a->ndim - 2]}
                   : (weft_matmul_sizes){groups, a->shape[a->ndim - 2], n, weft_tensor_width(a)};
    case WEFT_MATMUL_GROUPED:
        groups = b->shape[0];
        return (weft_matmul_sizes){groups, weft_tensor_rows(a) / groups, n, weft_tensor_width(a)};
    case WEFT_MATMUL_GROUPED_OUTER:
        groups = a->shape[a->ndim - 2];
        return (weft_matmul_sizes){groups, weft_tensor_width(a), b_columns,
                                   weft_tensor_rows(a) / groups};
    }
    return (weft_matmul_sizes){0};
}

weft_matmul_pair weft_matmul_pair_of(const weft_node *n, int i) {
    weft_matmul_pair p = {.attr = *(const weft_matmul_attr *)n->attr};
    int at = i == 0 ? WEFT_MATMUL_A : WEFT_MATMUL_INPUTS + 2 * (i - 1);
    p.a = n->in[at];
    p.b = n->in[at + 1];
    if (i > 0) {
        p.attr.form = WEFT_MATMUL_ROWS;
        p.attr.ta = false;
        p.attr.tb = p.attr.pair[i - 1].tb;
        p.attr.alpha = p.attr.pair[i - 1].alpha;
    }
    p.attr.act = WEFT_ACT_NONE;
    p.attr.more = 0;
    p.attr.sums = false;
    return p;
}

bool weft_matmul_is_by_rows(const weft_matmul_attr *attr, const weft_tensor *a) {
    return attr->form == WEFT_MATMUL_ROWS ||
           (attr->form == WEFT_MATMUL_PLAIN && a->ndim == 2 && !attr->ta);
}

/* Whether the two inputs have the dimensions that a form asks for, and share the sizes that they must. */
static bool factors_fit(const weft_matmul_attr *attr, const weft_tensor *a, const weft_tensor *b) {
    static const struct {
        int least, most, second; /* dimensions of a; of b, 0: as many */
    } ranks[] = {[WEFT_MATMUL_ROWS] = {1, WEFT_MAX_DIMS, 2},
                 [WEFT_MATMUL_OUTER] = {1, WEFT_MAX_DIMS, 0},
                 [WEFT_MATMUL_PLAIN] = {2, 3, 0},
                 [WEFT_MATMUL_GROUPED] = {2, WEFT_MAX_DIMS, 3},
                 [WEFT_MATMUL_GROUPED_OUTER] = {2, WEFT_MAX_DIMS, 0}};
    int least = ranks[attr->form].least, most = ranks[attr->form].most;
    int second = ranks[attr->form].second ? ranks[attr->form].second : a->ndim;
    if (a->ndim < least || a->ndim > most || b->ndim != second) return false;
    if (attr->form == WEFT_MATMUL_OUTER || attr->form == WEFT_MATMUL_GROUPED_OUTER) {
        for (int d = 0; d < a->ndim - 1; d++)
            if (a->shape[d] != b->shape[d]) return false;
        return true;
    }
    if (attr->form == WEFT_MATMUL_PLAIN && a->ndim == 3 && a->shape[0] != b->shape[0]) return false;
    if (attr->form == WEFT_MATMUL_GROUPED && a->shape[a->ndim - 2] != b->shape[0]) return false;
    int64_t inner_b = attr->tb ? weft_tensor_width(b) : b->shape[b->ndim - 2];
    return weft_matmul_measure(attr, a, b).k == inner_b;
}

/* The shape that goes with the factors; the number of dimensions. */
static int find_shape(const weft_matmul_pair *p, int64_t *shape) {
    const weft_matmul_attr *attr = &p->attr;
    weft_matmul_sizes size = weft_matmul_measure(attr, p->a, p->b);
    int ndim = p->a->ndim;
    if (attr->form == WEFT_MATMUL_ROWS || attr->form == WEFT_MATMUL_GROUPED) {
        for (int d = 0; d < ndim - 1; d++)
            shape[d] = p->a->shape[d];
    } else {
        bool batch = attr->form == WEFT_MATMUL_GROUPED_OUTER || ndim == 3;
        ndim = batch && attr->form != WEFT_MATMUL_OUTER ? 3 : 2;
        if (ndim == 3) shape[0] = size.groups;
        shape[ndim - 2] = size.m;
    }
    shape[ndim - 1] = size.n;
    return ndim;
}

/* The sum may be written over what is added to it. */
DEFINE_IN_PLACE(over_addend, out == 0 && n->in[WEFT_MATMUL_ADDEND] ? WEFT_MATMUL_ADDEND : -1)

static int64_t matmul_flops(const weft_node *n) {
    int64_t flops = 0;
    for (int i = 0; i <= ((const weft_matmul_attr *)n->attr)->more; i++) {
        weft_matmul_pair p = weft_matmul_pair_of(n, i);
        weft_matmul_sizes size = weft_matmul_measure(&p.attr, p.a, p.b);
        flops += 2 * size.groups * size.m * size.n * size.k;
    }
    return flops;
}

/* What fusing gives a node is not looked at here: it takes over the results that were made. */
OPERATION_WITH_GRAD(matmul, weft_matmul_attr, a, .inplace = over_addend, .flops = matmul_flops) {
    weft_matmul_pair first = weft_matmul_pair_of(n, 0);
    const weft_tensor *bias = n->in[WEFT_MATMUL_BIAS], *addend = n->in[WEFT_MATMUL_ADDEND];
    const weft_tensor *b = first.b;
    const char *name = form_names[attr->form];
    WEFT_TRY(weft_check_float(g, n, "the first factor", a));
    WEFT_TRY(weft_check_float(g, n, "the second factor", b));
    if (!factors_fit(&first.attr, a, b))
        return weft_graph_fail(g, "%s: %s%s does not go with %s%s", name, weft_tensor_describe(a),
                               first.attr.ta ? " transposed" : "", weft_tensor_describe(b),
                               first.attr.tb ? " transposed" : "");
    /* Kernels may count rows, columns and the distance of rows in 32 bits. */
    weft_matmul_sizes size = weft_matmul_measure(&first.attr, a, b);
    int64_t most = INT32_MAX / size.groups;
    if (size.m > most || size.n > most || size.k > most)
        return weft_graph_fail(g, "%s: a side of %s or %s is past 2^31 - 1", name,
                               weft_tensor_describe(a), weft_tensor_describe(b));
    if (bias) {
        WEFT_TRY(weft_check_float(g, n, "bias", bias));
        WEFT_TRY(weft_check_dims(g, n, "bias", bias, size.n));
    }
    if (addend && (addend->dtype != attr->dtype ||
                   weft_tensor_count(addend) != size.groups * size.m * size.n))
        return REFUSE("the addend is %s, but the result is %lld × %lld × %lld of %s",
                      weft_tensor_describe(addend), (long long)size.groups, (long long)size.m,
                      (long long)size.n, weft_dtype_name(attr->dtype));
    int64_t shape[WEFT_MAX_DIMS] = {0};
    int ndim = find_shape(&first, shape);
    weft_node_output(g, n, 0, attr->dtype, ndim, shape);
    bool differentiated = false;
    for (int i = 0; i < n->n_in; i++)
        differentiated |= n->in[i] && n->in[i]->needs_grad;
    if (attr->act == WEFT_ACT_GELU && differentiated)
        weft_node_output(g, n, 1, attr->dtype, ndim, shape);
    return weft_graph_status(g);
}

static weft_tensor *append_matmul(weft_graph *g, weft_tensor *a, weft_tensor *b, weft_tensor *bias,
                                  weft_matmul_attr attr) {
    weft_tensor *in[WEFT_MATMUL_INPUTS] = {a, b, bias};
    weft_node *n =
        weft_graph_append(g, &weft_op_matmul, in, WEFT_MATMUL_INPUTS, 2, 2, &attr, sizeof attr);
    return n ? n->out[0] : NULL;
}

/* da and db of y = a b for the forms whose rows are tokens: each the other's gradient. */
static void rows_grad(weft_graph *g, const weft_matmul_pair *p, weft_tensor *dy,
                      weft_matmul_form rows, weft_matmul_form outer, weft_tensor **d_in) {
    const weft_matmul_attr *attr = &p->attr;
    weft_tensor *a = p->a, *b = p->b;
    weft_matmul_attr da = {.form = rows, .tb = !attr->tb, .alpha = attr->alpha, .dtype = a->dtype};
    weft_matmul_attr db = {.form = outer, .alpha = attr->alpha, .dtype = b->dtype};
    if (a->needs_grad) d_in[0] = append_matmul(g, dy, b, NULL, da);
    if (b->needs_grad) d_in[1] = append_matmul(g, attr->tb ? dy : a, attr->tb ? a : dy, NULL, db);
}

static void plain_grad(weft_graph *g, const weft_matmul_pair *p, weft_tensor *dy,
                       weft_tensor **d_in) {
    const weft_matmul_attr *attr = &p->attr;
    weft_tensor *a = p->a, *b = p->b;
    weft_matmul_attr d = {.form = WEFT_MATMUL_PLAIN, .alpha = attr->alpha};
    if (attr->symmetric) {
        d.dtype = a->dtype;
        d.alpha *= 2;
        d_in[0] = append_matmul(g, a, dy, NULL, d);
        return;
    }
    if (a == b && a->ndim == 2 && attr->ta && !attr->tb) { /* a Gram matrix: one long product */
        int64_t size = dy->shape[0];
        weft_tensor *transposed = weft_head_transpose(g, weft_view(g, dy, 1, size, size));
        weft_tensor *sum = weft_add(g, dy, weft_view(g, transposed, size, size));
        d.dtype = a->dtype;
        d_in[0] = append_matmul(g, a, sum, NULL, d);
        return;
    }
    if (a->needs_grad) {
        d.dtype = a->dtype;
        d.ta = attr->ta && attr->tb;
        d.tb = attr->ta || !attr->tb;
        d_in[0] = append_matmul(g, attr->ta ? b : dy, attr->ta ? dy : b, NULL, d);
    }
    if (b->needs_grad) {
        d.dtype = b->dtype;
        d.ta = attr->tb || !attr->ta;
        d.tb = attr->ta && attr->tb;
        d_in[1] = append_matmul(g, attr->tb ? dy : a, attr->tb ? a : dy, NULL, d);
    }
}

DEFINE_APPEND_WITH(bias_back, (weft_tensor * dy, weft_dtype dtype), dtype, dy)

/* The gradients of one of the products: d_in[0] and d_in[1]. */
static weft_status pair_grad(weft_graph *g, const weft_matmul_pair *p, weft_tensor *dy,
                             weft_tensor **d_in) {
    int64_t shape[WEFT_MAX_DIMS] = {0};
    dy = weft_reshape(g, dy, find_shape(p, shape), shape);
    if (!dy) return weft_graph_status(g);
    switch (p->attr.form) {
    case WEFT_MATMUL_ROWS:
        rows_grad(g, p, dy, WEFT_MATMUL_ROWS, WEFT_MATMUL_OUTER, d_in);
        break;
    case WEFT_MATMUL_PLAIN:
        plain_grad(g, p, dy, d_in);
        break;
    case WEFT_MATMUL_GROUPED:
        rows_grad(g, p, dy, WEFT_MATMUL_GROUPED, WEFT_MATMUL_GROUPED_OUTER, d_in);
        break;
    case WEFT_MATMUL_OUTER:
    case WEFT_MATMUL_GROUPED_OUTER:
        return weft_graph_fail(g, "%s: it is a gradient and has none", form_names[p->attr.form]);
    }
    return weft_graph_status(g);
}

GRAD(matmul) {
    const weft_matmul_attr *attr = n->attr;
    weft_tensor *dy = d_out[0], *bias = n->in[WEFT_MATMUL_BIAS];
    const weft_tensor *addend = n->in[WEFT_MATMUL_ADDEND];
    weft_matmul_pair first = weft_matmul_pair_of(n, 0);
    int64_t shape[WEFT_MAX_DIMS] = {0};
    if (attr->act == WEFT_ACT_GELU_BACK) return REFUSE("gelu's slope is a gradient and has none");
    if (!dy) return WEFT_OK;
    if (addend) d_in[WEFT_MATMUL_ADDEND] = weft_reshape(g, dy, addend->ndim, addend->shape);
    dy = weft_reshape(g, dy, find_shape(&first, shape), shape);
    if (attr->act == WEFT_ACT_GELU) dy = weft_gelu_back(g, dy, n->out[1]);
    if (!dy) return weft_graph_status(g);
    for (int i = 0; i <= attr->more; i++) {
        weft_matmul_pair p = weft_matmul_pair_of(n, i);
        WEFT_TRY(pair_grad(g, &p, dy, d_in + (i == 0 ? 0 : WEFT_MATMUL_INPUTS + 2 * (i - 1))));
    }
    if (bias && bias->needs_grad) d_in[WEFT_MATMUL_BIAS] = weft_bias_back(g, dy, bias->dtype);
    return weft_graph_status(g);
}

OPERATION(bias_back, weft_dtype, dy) {
    WEFT_TRY(weft_check_float(g, n, "dy", dy));
    return weft_output_of(g, n, 0, *attr, weft_tensor_width(dy));
}

/* Neither shapes to infer nor a gradient: it is one, and takes over what the nodes made that it replaces. */
DEFINE_OP(gelu_bias_back, .inplace = weft_over_first);

/* A product of the first factor's type; `ndim` not 0: the first factor must have so many dimensions. */
static weft_tensor *append_typed_attr(weft_graph *g, int ndim, weft_tensor *a, weft_tensor *b,
                                      weft_tensor *bias, weft_matmul_attr attr) {
    if (a && ndim && a->ndim != ndim)
        return weft_graph_refuse(g, "%s: %s does not have %d dimensions",
                                 ndim == 3 ? "batched matmul" : "matmul", weft_tensor_describe(a),
                                 ndim);
    attr.alpha = attr.alpha == 0 ? 1 : attr.alpha;
    if (a) attr.dtype = a->dtype;
    return append_matmul(g, a, b, bias, attr);
}

/* The same with the attributes written out. */
#define append_typed(ndim, a, b, bias, ...)                                                        \
    append_typed_attr(g, ndim, a, b, bias, (weft_matmul_attr){__VA_ARGS__})

weft_tensor *weft_linear(weft_graph *g, weft_tensor *x, weft_tensor *w, weft_tensor *bias,
                         weft_act act) {
    return append_typed(0, x, w, bias, .form = WEFT_MATMUL_ROWS, .tb = true, .act = act);
}

weft_tensor *weft_matmul(weft_graph *g, weft_tensor *a, weft_tensor *b, bool ta, bool tb) {
    return append_typed(2, a, b, NULL, .form = WEFT_MATMUL_PLAIN, .ta = ta, .tb = tb);
}

weft_tensor *weft_matmul_alone(weft_graph *g, weft_tensor *a, weft_tensor *b) {
    return append_typed(2, a, b, NULL, .form = WEFT_MATMUL_PLAIN, .alone = true);
}

weft_tensor *weft_batched_matmul(weft_graph *g, weft_tensor *a, weft_tensor *b, bool ta, bool tb) {
    return append_typed(3, a, b, NULL, .form = WEFT_MATMUL_PLAIN, .ta = ta, .tb = tb);
}

weft_tensor *weft_gram(weft_graph *g, weft_tensor *a) {
    if (a && a->ndim != 2 && a->ndim != 3)
        return weft_graph_refuse(g, "gram: %s has neither 2 nor 3 dimensions",
                                 weft_tensor_describe(a));
    return append_typed(0, a, a, NULL, .form = WEFT_MATMUL_PLAIN, .ta = true, .symmetric = true);
}

weft_tensor *weft_gram_back(weft_graph *g, weft_tensor *a, weft_tensor *dy) {
    return append_typed(0, a, dy, NULL, .form = WEFT_MATMUL_PLAIN, .alpha = 2);
}

weft_tensor *weft_grouped_linear(weft_graph *g, weft_tensor *x, weft_tensor *w, bool tb) {
    return append_typed(0, x, w, NULL, .form = WEFT_MATMUL_GROUPED, .tb = tb);
}
