/* Norms and the sums before and behind them.
 *
 * Forward, a norm makes the residual sum s = x + r and its norm in one pass: x and r read, s and y
 * written. Where r comes from a product that only the norm reads, the product takes x as its addend
 * and makes s; the norm then reads s alone, half the bytes.
 *
 * Backward, the gradient of s is then a sum: what the norm gives and what arrives from further on.
 * norm_back adds the second itself, as it does for a norm with its own sum. A block ends on a linear
 * layer with a bias, whose gradient sums the columns of that sum: norm_back sums columns for its
 * gain anyway, and gives these too. */
#include "ops/fuse_internal.h"
#include "ops/list.h"
#include "ops/norm.h"

bool weft_fuse_residual(weft_rewrite *r, const weft_match *m) {
    weft_node *norm = m->reader, *product = m->maker;
    weft_tensor *x = norm->in[WEFT_NORM_X], *s = norm->out[WEFT_NORM_S];
    if (!weft_fuse_is_free_product(m) || product->in[WEFT_MATMUL_ADDEND]) return false;
    if (x->dtype != norm->in[WEFT_NORM_R]->dtype || !weft_rewrite_is_made_before(x, product))
        return false;
    weft_rewrite_read(r, product, WEFT_MATMUL_ADDEND, x);
    weft_rewrite_make(r, product, 0, s);
    weft_rewrite_read(r, norm, WEFT_NORM_X, s);
    weft_rewrite_read(r, norm, WEFT_NORM_R, NULL);
    return true;
}

bool weft_fuse_norm_addend(weft_rewrite *r, const weft_match *m) {
    weft_node *add = m->reader, *back = m->maker;
    weft_tensor *ds = add->in[1 - m->input];
    if (!weft_fuse_is_plain_sum(add) || ds->dtype != add->out[0]->dtype) return false;
    if (m->output != WEFT_NORM_BACK_DX || back->in[WEFT_NORM_BACK_DS]) return false;
    if (back->out[WEFT_NORM_BACK_SUMS]) return false; /* of what it makes now */
    if (!weft_rewrite_is_made_before(ds, back)) return false;
    weft_rewrite_read(r, back, WEFT_NORM_BACK_DS, ds);
    weft_fuse_replace(r, back, WEFT_NORM_BACK_DX, add, false);
    return true;
}

bool weft_fuse_norm_sums(weft_rewrite *r, const weft_match *m) {
    weft_node *bias = m->reader, *back = m->maker;
    if (m->output != WEFT_NORM_BACK_DX || back->out[WEFT_NORM_BACK_SUMS]) return false;
    const weft_tensor *dx = back->out[WEFT_NORM_BACK_DX];
    if (weft_tensor_width(bias->in[0]) != weft_tensor_width(dx)) return false;
    weft_rewrite_make(r, back, WEFT_NORM_BACK_SUMS, bias->out[0]);
    weft_rewrite_drop(r, bias);
    return true;
}
