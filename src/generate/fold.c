/* Norms that become part of the products behind them: which, and what becomes of the graph. */
#include "generate/fold.h"

#include "base/scope.h"
#include "ops/gated.h"
#include "ops/linear.h"
#include "ops/list.h"
#include "ops/norm.h"

#include <stdio.h>

typedef struct {
    weft_graph *graph;
    int64_t width;
    weft_fold *list;
    int64_t count;
} folding;

static weft_tensor *root_of(weft_tensor *t) {
    return t && t->view_of ? t->view_of : t;
}

static bool is_bf16_weight(const weft_tensor *t) {
    return t && !t->view_of && t->dtype == WEFT_BF16 && t->ndim == 2 &&
           (t->role == WEFT_ROLE_PARAM || t->role == WEFT_ROLE_INPUT);
}

/* A product of bf16 rows with a bf16 matrix [N, K], of sizes that go by fours and eights. */
static bool is_plain_product(const weft_matmul_attr *attr, const weft_tensor *a,
                             const weft_tensor *b) {
    return weft_matmul_is_by_rows(attr, a) && attr->tb && is_bf16_weight(b) &&
           a->dtype == WEFT_BF16 && attr->dtype == WEFT_BF16 && b->shape[0] % 4 == 0 &&
           b->shape[1] % 8 == 0;
}

/* The product that makes x and can tell its moments; NULL: none does. */
static weft_node *find_source(const folding *f, weft_tensor *x) {
    weft_node *n = x->producer;
    if (!n || n->op->id != WEFT_OP_matmul || n->out[0] != x) return NULL;
    const weft_matmul_attr *attr = n->attr;
    weft_matmul_pair last = weft_matmul_pair_of(n, attr->more);
    int64_t width = weft_tensor_width(x);
    bool suits = is_plain_product(&last.attr, last.a, last.b) && last.b->shape[0] == width &&
                 width <= f->width && attr->act == WEFT_ACT_NONE && !attr->sums;
    return suits && (attr->moments || !n->out[1]) ? n : NULL;
}

/* Whether what `n` reads as its input k can be the stream in place of its norm. A sum may be written over its
 * addend, which other blocks of a kernel must not be reading as rows. */
static bool takes_norm(const weft_node *n, int k, const weft_node *norm) {
    const weft_matmul_attr *attr = n->attr;
    const weft_tensor *x = root_of(norm->in[WEFT_NORM_X]);
    if (n->op->id == WEFT_OP_gated_linear)
        return (k == WEFT_GATED_X || k == WEFT_GATED_X_AGAIN) && !n->in[WEFT_GATED_MOMENTS] &&
               ((const weft_norm_attr *)norm->attr)->kind == WEFT_RMSNORM &&
               is_plain_product(attr, n->in[k], n->in[k + 1]);
    return n->op->id == WEFT_OP_matmul && k == WEFT_MATMUL_A && attr->more == 0 &&
           attr->alpha == 1 && attr->act != WEFT_ACT_GELU_BACK && !n->in[WEFT_MATMUL_MOMENTS] &&
           root_of(n->in[WEFT_MATMUL_ADDEND]) != x &&
           is_plain_product(attr, n->in[k], n->in[WEFT_MATMUL_B]);
}

/* Whether all that read the norm do. */
static bool is_folded(const folding *f, const weft_node *norm) {
    const weft_norm_attr *attr = norm->attr;
    weft_tensor *y = norm->out[WEFT_NORM_Y], *x = root_of(norm->in[WEFT_NORM_X]);
    if (attr->heads || norm->in[WEFT_NORM_R] || y->keep || !find_source(f, x)) return false;
    for (int64_t i = 0; i < weft_graph_node_count(f->graph); i++) {
        const weft_node *n = weft_graph_node(f->graph, i);
        for (int k = 0; k < n->n_in; k++) {
            weft_tensor *t = root_of(n->in[k]);
            if (t == y && !takes_norm(n, k, norm)) return false;
            for (int out = WEFT_NORM_RSTD; t && out < WEFT_NORM_OUTPUTS; out++)
                if (t == norm->out[out]) return false;
        }
    }
    return true;
}

static weft_tensor *new_input(const folding *f, const weft_tensor *from, const weft_tensor *gain,
                              const char *what, weft_dtype dtype, int ndim) {
    char name[112];
    snprintf(name, sizeof name, "%s.%s.%s", from->name, gain->name, what);
    weft_tensor *known = weft_graph_find(f->graph, name);
    return known ? known
                 : weft_graph_tensor(f->graph, WEFT_ROLE_INPUT, name, dtype, ndim, from->shape);
}

/* The matrix with the norm's gain in it, and what goes with it. */
static bool make_fold(folding *f, const weft_node *norm, const weft_tensor *from,
                      const weft_tensor *bias, weft_fold *made) {
    const weft_norm_attr *attr = norm->attr;
    const weft_tensor *gain = norm->in[WEFT_NORM_W], *offset = norm->in[WEFT_NORM_B];
    *made = (weft_fold){.from = from, .gain = gain, .offset = offset, .was_bias = bias};
    made->matrix = new_input(f, from, gain, "folded", WEFT_BF16, 2);
    if (attr->kind == WEFT_LAYERNORM) made->sums = new_input(f, from, gain, "sums", WEFT_F32, 1);
    if (offset) made->bias = new_input(f, from, gain, bias ? bias->name : "bias", WEFT_F32, 1);
    if (!made->matrix || (attr->kind == WEFT_LAYERNORM && !made->sums) || (offset && !made->bias))
        return false;
    f->list[f->count++] = *made;
    return true;
}

/* The stream in the shape in which its norm was read; one tensor for all that read it so. */
static weft_tensor *find_stream(const folding *f, const weft_node *norm, const weft_tensor *read) {
    weft_tensor *x = norm->in[WEFT_NORM_X];
    if (weft_tensor_same_shape(x, read)) return x;
    for (int64_t i = 0; i < weft_graph_tensor_count(f->graph); i++) {
        weft_tensor *t = weft_graph_tensor_at(f->graph, i);
        if (t->view_of == root_of(x) && weft_tensor_same_shape(t, read)) return t;
    }
    return weft_reshape(f->graph, x, read->ndim, read->shape);
}

static weft_status fold_product(folding *f, const weft_node *norm, weft_node *n,
                                weft_tensor *moments) {
    weft_matmul_attr *attr = weft_graph_alloc(f->graph, sizeof *attr);
    if (!attr) return weft_graph_status(f->graph);
    *attr = *(const weft_matmul_attr *)n->attr;
    attr->eps = ((const weft_norm_attr *)norm->attr)->eps;
    n->attr = attr;
    bool gated = n->op->id == WEFT_OP_gated_linear;
    weft_fold made;
    for (int k = 0; k <= (gated ? WEFT_GATED_X_AGAIN : 0); k += 2) {
        weft_tensor *bias = gated ? NULL : n->in[WEFT_MATMUL_BIAS];
        if (!make_fold(f, norm, n->in[k + 1], bias, &made)) return weft_graph_status(f->graph);
        n->in[k] = find_stream(f, norm, n->in[k]);
        n->in[k + 1] = made.matrix;
    }
    n->in[gated ? WEFT_GATED_MOMENTS : WEFT_MATMUL_MOMENTS] = moments;
    if (gated) return weft_graph_status(f->graph);
    n->in[WEFT_MATMUL_SUMS] = made.sums;
    if (made.bias) n->in[WEFT_MATMUL_BIAS] = made.bias;
    return weft_graph_status(f->graph);
}

static weft_tensor *make_moments(const folding *f, weft_tensor *x) {
    weft_node *source = find_source(f, x);
    weft_matmul_attr *attr = weft_graph_alloc(f->graph, sizeof *attr);
    if (source->out[1] || !attr) return source->out[1];
    *attr = *(const weft_matmul_attr *)source->attr;
    attr->moments = true;
    source->attr = attr;
    int64_t tiles = (weft_tensor_width(x) + WEFT_MOMENTS_COLUMNS - 1) / WEFT_MOMENTS_COLUMNS;
    return weft_node_output(f->graph, source, 1, WEFT_F32, 3,
                            (int64_t[]){weft_tensor_rows(x), tiles, 2});
}

static weft_status fold_norm(folding *f, const weft_node *norm) {
    weft_tensor *y = norm->out[WEFT_NORM_Y];
    weft_tensor *moments = make_moments(f, root_of(norm->in[WEFT_NORM_X]));
    for (int64_t i = 0; moments && i < weft_graph_node_count(f->graph); i++) {
        const weft_node *n = weft_graph_node(f->graph, i);
        if (n->n_in > 0 && root_of(n->in[0]) == y)
            WEFT_TRY(fold_product(f, norm, n->out[0]->producer, moments));
    }
    return weft_graph_status(f->graph);
}

weft_status weft_fold_norms(weft_graph *g, int64_t width, weft_fold **folds, int64_t *n) {
    /* A product has at most two matrices. */
    size_t most = 2 * (size_t)weft_graph_node_count(g) + 1;
    WEFT_AUTO_FREE weft_fold *list = calloc(most, sizeof *list);
    folding f = {.graph = g, .width = width, .list = list};
    *folds = NULL;
    *n = 0;
    if (!list) return weft_fail(WEFT_ENOMEM, "generate: no memory");
    for (int64_t i = 0; i < weft_graph_node_count(g); i++) {
        const weft_node *norm = weft_graph_node(g, i);
        if (norm->op->id == WEFT_OP_norm && is_folded(&f, norm)) WEFT_TRY(fold_norm(&f, norm));
    }
    if (f.count > 0) WEFT_TRY(weft_graph_drop_unused(g));
    *n = f.count;
    *folds = weft_steal(&list);
    return WEFT_OK;
}
