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

/* Whether dy, found as the gradient of attention's input m->output, is that of the Gaussian's y. */
static bool is_of_gaussian(const weft_match *m) {
    const weft_tensor *y = m->reader->in[0];
    if (((const weft_attention_attr *)m->maker->attr)->packed) return false;
    if (m->output != WEFT_ATTN_Q && m->output != WEFT_ATTN_K) return false;
    const weft_tensor *from = m->maker->in[WEFT_ATTN_BACK_FIRST + m->output];
    const weft_tensor *y_root = y->view_of ? y->view_of : y;
    return (from->view_of ? from->view_of : from) == y_root && weft_tensor_same_shape(from, y);
}

/* Whether the gradient of the keys' squares, if there is one, comes from the same attention. */
static bool takes_squares(const weft_rewrite *r, const weft_match *m) {
    weft_tensor *dn = m->reader->in[2];
    if (!dn) return true;
    return m->output == WEFT_ATTN_K && weft_rewrite_find_maker(r, dn, &weft_op_attention_back,
                                                               WEFT_ATTN_N, m->reader) == m->maker;
}

bool weft_fuse_gaussian_back(weft_rewrite *r, const weft_match *m) {
    weft_node *back = m->reader, *n = m->maker;
    if (!is_of_gaussian(m) || !takes_squares(r, m)) return false;
    weft_attention_attr *attr = weft_rewrite_attr(r, n, sizeof *attr);
    if (!attr) return false;
    if (m->output == WEFT_ATTN_Q)
        attr->gaussian_q = true;
    else
        attr->gaussian_k = true;
    attr->gaussian_n = attr->gaussian_n || back->in[2];
    if (back->in[2]) weft_rewrite_make(r, n, WEFT_ATTN_N, NULL);
    weft_fuse_replace(r, n, m->output, back, false);
    return true;
}
