/* Fusing: a walk over the nodes in order. Each add, scale and gelu_back looks whether a product that
 * it alone reads can do its work; the product then makes that node's output, and the node goes. A
 * gelu_back brings the bias_back behind it along, and joins it where there is no product.
 *
 * Autodiff sums the gradients of a tensor as a chain, add(add(p1, p2), p3), each product just before
 * its add: p2 takes p1 as its addend, p3 takes their sum, and no product moves; fuse_sums.c makes one
 * node of them where it can. Where another node's result is the third, p1 takes that. */
#include "ops/fuse_internal.h"

#include "ops/arith.h"
#include "ops/linear.h"
#include "ops/list.h"

#include <stdlib.h>

static void count_reads(weft_fuser *f) {
    for (int64_t i = 0; i < f->g->n_nodes; i++) {
        const weft_node *n = f->g->nodes[i];
        for (int k = 0; k < n->n_in; k++)
            if (n->in[k]) f->reads[weft_tensor_root(n->in[k])->id]++;
    }
}

static const weft_matmul_attr *attr_of(const weft_node *product) {
    return product->attr;
}

bool weft_fuser_is_quiet(const weft_fuser *f, const weft_node *from, const weft_node *to) {
    for (int64_t i = from->index + 1; i < to->index; i++)
        if (f->g->nodes[i] && f->g->nodes[i]->op->side_effect) return false;
    return true;
}

bool weft_fuser_is_open(const weft_fuser *f, const weft_node *n) {
    return n->index >= f->first && (f->first == 0 || n->segment == 0);
}

weft_node *weft_fuser_product(const weft_fuser *f, weft_tensor *t, const weft_node *reader) {
    const weft_tensor *root = weft_tensor_root(t);
    weft_node *n = root->producer;
    if (!n || n->op != &weft_op_matmul || n->out[0] != root) return NULL;
    if (!weft_fuser_reads_once(f, root) || attr_of(n)->act != WEFT_ACT_NONE) return NULL;
    if (attr_of(n)->dtype != reader->out[0]->dtype) return NULL;
    return weft_fuser_is_open(f, n) && weft_fuser_is_quiet(f, n, reader) ? n : NULL;
}

bool weft_fuser_is_made_before(weft_tensor *t, const weft_node *n) {
    const weft_node *maker = weft_tensor_root(t)->producer;
    return !maker || maker->index < n->index;
}

bool weft_fuser_may_wait(const weft_node *product) {
    for (int i = 0; i <= attr_of(product)->more; i++) {
        weft_matmul_pair p = weft_matmul_pair_of(product, i);
        int64_t longer = 0;
        if (p.a->role == WEFT_ROLE_TEMP) longer += weft_tensor_bytes(p.a);
        if (p.b->role == WEFT_ROLE_TEMP) longer += weft_tensor_bytes(p.b);
        if (longer > weft_tensor_bytes(product->out[0])) return false;
    }
    return true;
}

weft_matmul_attr *weft_fuser_copy_attr(weft_fuser *f, weft_node *product) {
    weft_matmul_attr *attr = weft_graph_alloc(f->g, sizeof *attr);
    if (!attr) return NULL;
    *attr = *attr_of(product);
    product->attr = attr;
    return attr;
}

void weft_fuser_replace_reader(weft_fuser *f, weft_node *product, weft_node *reader, bool waits) {
    weft_node **nodes = f->g->nodes;
    product->out[0]->producer = reader; /* in no list any more: a later use is refused */
    product->out[0] = reader->out[0];
    product->out[0]->producer = product;
    nodes[reader->index] = NULL;
    if (!waits) return;
    nodes[product->index] = NULL;
    nodes[reader->index] = product;
    product->index = reader->index;
}

void weft_fuser_move_before(weft_fuser *f, weft_node *n, const weft_node *other) {
    weft_node **nodes = f->g->nodes;
    for (int64_t i = n->index; i < other->index - 1; i++) {
        nodes[i] = nodes[i + 1];
        if (nodes[i]) nodes[i]->index = (int32_t)i;
    }
    n->index = other->index - 1;
    nodes[n->index] = n;
}

/* A factor for all that the product sums. */
static bool scale_product(weft_fuser *f, weft_node *product, double alpha) {
    weft_matmul_attr *attr = weft_fuser_copy_attr(f, product);
    if (!attr) return false;
    attr->alpha *= alpha;
    for (int i = 0; i < attr->more; i++)
        attr->pair[i].alpha *= alpha;
    return true;
}

/* (p + product) + addend, p a product of its own: p takes the addend, and both wait for it. */
static bool pass_addend(weft_fuser *f, weft_node *add, weft_node *product, weft_tensor *addend) {
    weft_node *p = weft_fuser_product(f, product->in[WEFT_MATMUL_ADDEND], product);
    if (!p || p->in[WEFT_MATMUL_ADDEND] || !weft_fuser_is_quiet(f, p, add)) return false;
    bool waits = !weft_fuser_is_made_before(addend, p);
    if (waits && !(weft_fuser_may_wait(p) && weft_fuser_may_wait(product))) return false;
    p->in[WEFT_MATMUL_ADDEND] = addend;
    if (addend->needs_grad)
        p->out[0]->needs_grad = product->in[WEFT_MATMUL_ADDEND]->needs_grad = true;
    weft_fuser_replace_reader(f, product, add, waits);
    if (waits) weft_fuser_move_before(f, p, product);
    return true;
}

/* sum + alpha · product, both inputs of an add. */
static bool take_addend(weft_fuser *f, weft_node *add, int which, double alpha) {
    weft_tensor *addend = add->in[1 - which];
    weft_node *product = weft_fuser_product(f, add->in[which], add);
    if (!product || addend->dtype != add->out[0]->dtype) return false;
    if (product->in[WEFT_MATMUL_ADDEND]) return alpha == 1 && pass_addend(f, add, product, addend);
    if (alpha != 1 && product->in[WEFT_MATMUL_BIAS]) return false;
    bool waits = !weft_fuser_is_made_before(addend, product);
    if (waits && !weft_fuser_may_wait(product)) return false;
    if (!scale_product(f, product, alpha)) return false;
    product->in[WEFT_MATMUL_ADDEND] = addend;
    weft_fuser_replace_reader(f, product, add, waits);
    weft_fuse_sum(f, product);
    return true;
}

/* Of two products the later one takes the other: neither has to move. */
static void fuse_add(weft_fuser *f, weft_node *add) {
    double alpha = ((const weft_alpha_attr *)add->attr)->alpha;
    if (weft_tensor_count(add->in[0]) != weft_tensor_count(add->in[1])) return;
    if (alpha == 1 && (weft_fuse_norm_back(f, add) || weft_fuse_embed_back(f, add))) return;
    const weft_node *a = weft_tensor_root(add->in[0])->producer;
    const weft_node *b = weft_tensor_root(add->in[1])->producer;
    int first = a && (!b || a->index > b->index) ? 0 : 1;
    for (int i = 0; i < 2; i++) {
        int which = i == 0 ? first : 1 - first;
        if (which == 0 && alpha != 1) continue;
        if (take_addend(f, add, which, which == 1 ? alpha : 1)) return;
    }
}

static void fuse_scale(weft_fuser *f, weft_node *scale) {
    weft_node *product = weft_fuser_product(f, scale->in[0], scale);
    if (!product || product->in[WEFT_MATMUL_ADDEND] || product->in[WEFT_MATMUL_BIAS]) return;
    if (scale_product(f, product, ((const weft_alpha_attr *)scale->attr)->alpha))
        weft_fuser_replace_reader(f, product, scale, false);
}

static bool is_one_matrix(const weft_node *product) {
    weft_matmul_form form = attr_of(product)->form;
    return form == WEFT_MATMUL_ROWS || (form == WEFT_MATMUL_PLAIN && product->in[0]->ndim == 2);
}

/* The node that sums the rows of what `back` makes; NULL: there is none. */
static weft_node *find_bias_back(const weft_fuser *f, const weft_node *back) {
    const weft_tensor *dx = back->out[0];
    for (int64_t i = back->index + 1; i < f->g->n_nodes; i++) {
        weft_node *n = f->g->nodes[i];
        if (!n || n->op != &weft_op_bias_back || weft_tensor_root(n->in[0]) != dx) continue;
        if (weft_tensor_width(n->in[0]) == weft_tensor_width(dx)) return n;
    }
    return NULL;
}

/* Both in the first one's place. */
static void join_bias_back(weft_fuser *f, weft_node *back, weft_node *bias) {
    weft_tensor *dx = back->out[0], *db = bias->out[0];
    if (back->in[0]->dtype != dx->dtype || back->in[1]->dtype != dx->dtype) return;
    weft_node *n = weft_graph_node_new(f->g, &weft_op_gelu_bias_back, back->in, 2, 2, bias->attr);
    if (!n) return;
    n->index = back->index;
    n->out[0] = dx;
    n->out[1] = db;
    dx->producer = db->producer = n;
    f->reads[dx->id]--;
    f->g->nodes[back->index] = n;
    f->g->nodes[bias->index] = NULL;
}

/* The product takes gelu's slope, and the sums for a bias that are wanted behind it. */
static bool take_slope(weft_fuser *f, weft_node *back, weft_node *product, weft_node *bias) {
    weft_tensor *at = back->in[1], *dx = back->out[0];
    if (!is_one_matrix(product) || at->dtype != dx->dtype) return false;
    int64_t columns = weft_matmul_measure(product->attr, product->in[0], product->in[1]).n;
    if (bias && columns != weft_tensor_width(dx)) return false;
    weft_matmul_attr *attr = weft_fuser_copy_attr(f, product);
    if (!attr) return false;
    attr->act = WEFT_ACT_GELU_BACK;
    product->in[WEFT_MATMUL_AT] = at;
    if (bias) {
        attr->sums = true;
        attr->sums_dtype = bias->out[0]->dtype;
        product->out[1] = bias->out[0];
        bias->out[0]->producer = product;
        f->reads[dx->id]--;
        f->g->nodes[bias->index] = NULL;
    }
    weft_fuser_replace_reader(f, product, back, !weft_fuser_is_made_before(at, product));
    return true;
}

static void fuse_gelu_back(weft_fuser *f, weft_node *back) {
    weft_node *bias = find_bias_back(f, back), *product = weft_fuser_product(f, back->in[0], back);
    if (product && take_slope(f, back, product, bias)) return;
    if (bias) join_bias_back(f, back, bias);
}

/* Closes the gaps in the list, and tells views who makes them now. */
static void close_gaps(weft_graph *g) {
    int64_t count = 0, forward = 0;
    for (int64_t i = 0; i < g->n_nodes; i++) {
        if (!g->nodes[i]) continue;
        forward += i < g->n_forward;
        g->nodes[i]->index = (int32_t)count;
        g->nodes[count++] = g->nodes[i];
    }
    g->n_nodes = count;
    if (g->n_forward >= 0) g->n_forward = forward;
    for (int64_t i = 0; i < g->n_tensors; i++)
        if (g->tensors[i]->view_of) g->tensors[i]->producer = g->tensors[i]->view_of->producer;
}

weft_status weft_fuse(weft_graph *g) {
    WEFT_TRY(weft_graph_status(g));
    weft_fuser f = {.g = g, .first = g->n_forward < 0 ? 0 : g->n_forward};
    f.reads = calloc((size_t)g->n_tensors + 1, sizeof *f.reads);
    if (!f.reads) return weft_fail(WEFT_ENOMEM, "fuse: no memory");
    count_reads(&f);
    for (int64_t i = f.first; i < g->n_nodes; i++) {
        weft_node *n = g->nodes[i];
        if (!n || !weft_fuser_is_open(&f, n)) continue;
        if (n->op == &weft_op_add) fuse_add(&f, n);
        if (n->op == &weft_op_scale) fuse_scale(&f, n);
        if (n->op == &weft_op_norm) weft_fuse_norm(&f, n);
        if (n->op == &weft_op_bias_back) weft_fuse_norm_sums(&f, n);
        if (n->op == &weft_op_gelu_back) fuse_gelu_back(&f, n);
        if (n->op == &weft_op_gaussian_back) weft_fuse_gaussian_back(&f, n);
        if (n->op == &weft_op_silu_mul) weft_fuse_silu_mul(&f, n);
        if (n->op == &weft_op_silu_mul_back) weft_fuse_silu_mul_back(&f, n);
    }
    close_gaps(g);
    free(f.reads);
    return weft_graph_status(g);
}
