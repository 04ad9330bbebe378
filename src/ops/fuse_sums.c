/* Sums of products: where a product's addend is made by a product that it alone reads, both become one
 * node of several pairs of factors. A chain add(add(p1, p2), p3) has become products with addends by
 * then, each just behind the one that it adds, and so joins from its first on.
 *
 * What a product reads then has to live until the last one's place. So that memory does not grow, it
 * must be no larger than the sum, which lived there before; or the last one's inputs are all made
 * before the first one's place, and that is the node's. Shapes and the list's order decide, without
 * the nodes that make values again: a graph with recomputation has the same sums. */
#include "ops/fuse_internal.h"

#include "ops/list.h"

static weft_matmul_sizes measure(const weft_node *product) {
    return weft_matmul_measure(product->attr, product->in[0], product->in[1]);
}

static bool are_alike(const weft_node *p, const weft_node *q) {
    if (!weft_matmul_is_by_rows(p->attr, p->in[0]) || !weft_matmul_is_by_rows(q->attr, q->in[0]))
        return false;
    weft_matmul_sizes a = measure(p), b = measure(q);
    return a.m == b.m && a.n == b.n;
}

static int64_t temporary_bytes(const weft_node *product) {
    int64_t bytes = 0;
    for (int i = 0; i <= weft_fuse_attr(product)->more; i++) {
        weft_matmul_pair p = weft_matmul_pair_of(product, i);
        if (p.a->role == WEFT_ROLE_TEMP) bytes += weft_tensor_bytes(p.a);
        if (p.b->role == WEFT_ROLE_TEMP) bytes += weft_tensor_bytes(p.b);
    }
    return bytes;
}

/* Whether all that q reads beside its addend is made before p; `again`: what makes the forward pass's
 * values again counts as made there. */
static bool reads_what_is_before(const weft_rewrite *r, const weft_node *q, const weft_node *p,
                                 bool again) {
    for (int k = 0; k < q->n_in; k++) {
        if (!q->in[k] || k == WEFT_MATMUL_ADDEND || weft_rewrite_is_made_before(q->in[k], p))
            continue;
        const weft_tensor *root = q->in[k]->view_of ? q->in[k]->view_of : q->in[k];
        if (!again || !weft_rewrite_is_again(r, root->producer)) return false;
    }
    return true;
}

static bool may_sum(const weft_rewrite *r, const weft_node *p, const weft_node *q) {
    if (p->segment != q->segment || weft_fuse_attr(q)->act != WEFT_ACT_NONE || !are_alike(p, q))
        return false;
    if (p->in[WEFT_MATMUL_BIAS] && q->in[WEFT_MATMUL_BIAS]) return false;
    if (weft_fuse_attr(p)->more + weft_fuse_attr(q)->more + 2 > WEFT_MATMUL_PAIRS) return false;
    return temporary_bytes(p) <= weft_tensor_bytes(q->out[0]) ||
           reads_what_is_before(r, q, p, true);
}

/* The pairs of q behind those of p. */
static bool append_pairs(weft_rewrite *r, weft_node *p, const weft_node *q) {
    weft_tensor *in[WEFT_MATMUL_INPUTS + 2 * WEFT_MATMUL_PAIRS];
    weft_matmul_attr *attr = weft_rewrite_attr(r, p, sizeof *attr);
    int n_in = p->n_in;
    if (!attr) return false;
    for (int k = 0; k < n_in; k++)
        in[k] = p->in[k];
    for (int i = 0; i <= weft_fuse_attr(q)->more; i++) {
        weft_matmul_pair pair = weft_matmul_pair_of(q, i);
        in[n_in++] = pair.a;
        in[n_in++] = pair.b;
        attr->pair[attr->more].tb = pair.attr.tb;
        attr->pair[attr->more++].alpha = pair.attr.alpha;
    }
    return weft_rewrite_read_all(r, p, in, n_in);
}

bool weft_fuse_sum(weft_rewrite *r, const weft_match *m) {
    weft_node *q = m->reader, *p = m->maker;
    if (!weft_fuse_is_free_product(m) || !may_sum(r, p, q)) return false;
    bool waits = !reads_what_is_before(r, q, p, false);
    if (!append_pairs(r, p, q)) return false;
    if (q->in[WEFT_MATMUL_BIAS]) weft_rewrite_read(r, p, WEFT_MATMUL_BIAS, q->in[WEFT_MATMUL_BIAS]);
    weft_fuse_replace(r, p, 0, q, waits);
    return true;
}
