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

static const weft_matmul_attr *attr_of(const weft_node *product) {
    return product->attr;
}

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
    for (int i = 0; i <= attr_of(product)->more; i++) {
        weft_matmul_pair p = weft_matmul_pair_of(product, i);
        if (p.a->role == WEFT_ROLE_TEMP) bytes += weft_tensor_bytes(p.a);
        if (p.b->role == WEFT_ROLE_TEMP) bytes += weft_tensor_bytes(p.b);
    }
    return bytes;
}

/* Whether all that q reads beside its addend is made before p; `again`: what makes the forward pass's
 * values again counts as made there. */
static bool reads_what_is_before(const weft_fuser *f, const weft_node *q, const weft_node *p,
                                 bool again) {
    for (int k = 0; k < q->n_in; k++) {
        if (!q->in[k] || k == WEFT_MATMUL_ADDEND || weft_fuser_is_made_before(q->in[k], p))
            continue;
        const weft_node *maker = weft_tensor_root(q->in[k])->producer;
        if (!again || f->first == 0 || maker->segment == 0) return false;
    }
    return true;
}

static bool may_sum(const weft_fuser *f, const weft_node *p, const weft_node *q) {
    if (p->segment != q->segment || attr_of(q)->act != WEFT_ACT_NONE || !are_alike(p, q))
        return false;
    if (p->in[WEFT_MATMUL_BIAS] && q->in[WEFT_MATMUL_BIAS]) return false;
    if (attr_of(p)->more + attr_of(q)->more + 2 > WEFT_MATMUL_PAIRS) return false;
    return temporary_bytes(p) <= weft_tensor_bytes(q->out[0]) ||
           reads_what_is_before(f, q, p, true);
}

/* The pairs of q behind those of p. */
static bool append_pairs(weft_fuser *f, weft_node *p, const weft_node *q) {
    int more = attr_of(q)->more + 1, n_in = p->n_in + 2 * more;
    weft_tensor **in = weft_graph_alloc(f->g, (size_t)n_in * sizeof *in);
    weft_matmul_attr *attr = weft_fuser_copy_attr(f, p);
    if (!in || !attr) return false;
    for (int k = 0; k < p->n_in; k++)
        in[k] = p->in[k];
    for (int i = 0; i < more; i++) {
        weft_matmul_pair pair = weft_matmul_pair_of(q, i);
        in[p->n_in + 2 * i] = pair.a;
        in[p->n_in + 2 * i + 1] = pair.b;
        attr->pair[attr->more].tb = pair.attr.tb;
        attr->pair[attr->more++].alpha = pair.attr.alpha;
    }
    p->in = in;
    p->n_in = n_in;
    return true;
}

void weft_fuse_sum(weft_fuser *f, weft_node *q) {
    if (!q->in[WEFT_MATMUL_ADDEND]) return;
    weft_node *p = weft_fuser_product(f, q->in[WEFT_MATMUL_ADDEND], q);
    if (!p || !may_sum(f, p, q)) return;
    bool waits = !reads_what_is_before(f, q, p, false);
    if (!append_pairs(f, p, q)) return;
    if (q->in[WEFT_MATMUL_BIAS]) p->in[WEFT_MATMUL_BIAS] = q->in[WEFT_MATMUL_BIAS];
    weft_fuser_replace_reader(f, p, q, waits);
}
