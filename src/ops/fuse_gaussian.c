/* Attention of Gaussians: the gradient of q̂ = [μ, σ] is made by attention_back and read by
 * gaussian_back alone, which multiplies what arrives at σ by softplus' slope there; of keys it adds
 * the gradient of their squares before. Both need nothing but q̂ or k̂ beside it, and attention_back
 * has read them: it finishes each row itself, and gaussian_back goes, and dn with it.
 *
 * Queries and keys are looked at one by one. Nothing moves and nothing lives longer: q̂ and k̂ are read
 * no later than before, and gaussian_back wrote over what it read. */
#include "ops/attention.h"
#include "ops/fuse_internal.h"
#include "ops/list.h"

/* The attention_back that makes dy for `back` alone, and of which input it is the gradient; NULL: it
 * is none, or that input is not the Gaussian's y. */
static weft_node *find_attention(const weft_fuser *f, const weft_node *back, int *which) {
    weft_tensor *y = back->in[0], *dy = weft_tensor_root(back->in[1]);
    weft_node *n = dy->producer;
    if (!n || n->op != &weft_op_attention_back || !weft_fuser_reads_once(f, dy)) return NULL;
    if (((const weft_attention_attr *)n->attr)->packed) return NULL;
    if (!weft_fuser_is_open(f, n) || !weft_fuser_is_quiet(f, n, back)) return NULL;
    *which = dy == n->out[WEFT_ATTN_Q] ? WEFT_ATTN_Q : WEFT_ATTN_K;
    weft_tensor *from = n->in[WEFT_ATTN_BACK_FIRST + *which];
    if (dy != n->out[*which] || weft_tensor_root(from) != weft_tensor_root(y)) return NULL;
    return weft_tensor_same_shape(from, y) ? n : NULL;
}

/* Output `out` is made no more: a later use of it is refused. */
static void drop_output(weft_node *n, int out, weft_node *back) {
    n->out[out]->producer = back;
    n->out[out] = NULL;
}

void weft_fuse_gaussian_back(weft_fuser *f, weft_node *back) {
    int which;
    weft_tensor *dn = back->in[2] ? weft_tensor_root(back->in[2]) : NULL;
    weft_node *n = back->in[1] ? find_attention(f, back, &which) : NULL;
    if (!n) return;
    if (dn && (which != WEFT_ATTN_K || dn != n->out[WEFT_ATTN_N] || !weft_fuser_reads_once(f, dn)))
        return;
    weft_attention_attr *attr = weft_graph_alloc(f->g, sizeof *attr);
    if (!attr) return;
    *attr = *(const weft_attention_attr *)n->attr;
    n->attr = attr;
    if (which == WEFT_ATTN_Q)
        attr->gaussian_q = true;
    else
        attr->gaussian_k = true;
    attr->gaussian_n = attr->gaussian_n || dn;
    if (dn) drop_output(n, WEFT_ATTN_N, back);
    drop_output(n, which, back);
    n->out[which] = back->out[0];
    back->out[0]->producer = n;
    f->reads[weft_tensor_root(back->in[0])->id]--;
    f->g->nodes[back->index] = NULL;
}
