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

void weft_fuse_norm(weft_fuser *f, weft_node *norm) {
    weft_tensor *x = norm->in[WEFT_NORM_X], *r = norm->in[WEFT_NORM_R];
    weft_tensor *s = norm->out[WEFT_NORM_S];
    weft_node *product = r ? weft_fuser_product(f, r, norm) : NULL;
    if (!product || product->in[WEFT_MATMUL_ADDEND] || x->dtype != r->dtype) return;
    if (!weft_fuser_is_made_before(x, product)) return;
    product->out[0]->producer = norm; /* its output no more: a later use is refused */
    product->in[WEFT_MATMUL_ADDEND] = x;
    product->out[0] = s;
    s->producer = product;
    norm->in[WEFT_NORM_X] = s;
    norm->in[WEFT_NORM_R] = norm->out[WEFT_NORM_S] = NULL;
    f->reads[s->id]++;
}

/* The norm_back that makes `t` for `add` alone and adds nothing yet; NULL: it is none. */
static weft_node *find_norm_back(const weft_fuser *f, weft_tensor *t, const weft_node *add) {
    const weft_tensor *root = weft_tensor_root(t);
    weft_node *n = root->producer;
    if (!n || n->op != &weft_op_norm_back || n->out[WEFT_NORM_BACK_DX] != root) return NULL;
    if (!weft_fuser_reads_once(f, root) || n->in[WEFT_NORM_BACK_DS]) return NULL;
    if (n->out[WEFT_NORM_BACK_SUMS]) return NULL; /* of what it makes now */
    return weft_fuser_is_open(f, n) && weft_fuser_is_quiet(f, n, add) ? n : NULL;
}

bool weft_fuse_norm_back(weft_fuser *f, weft_node *add) {
    for (int i = 0; i < 2; i++) {
        weft_tensor *ds = add->in[1 - i];
        weft_node *back = find_norm_back(f, add->in[i], add);
        if (!back || ds->dtype != add->out[0]->dtype || !weft_fuser_is_made_before(ds, back))
            continue;
        back->in[WEFT_NORM_BACK_DS] = ds;
        back->out[WEFT_NORM_BACK_DX]->producer = add;
        back->out[WEFT_NORM_BACK_DX] = add->out[0];
        add->out[0]->producer = back;
        f->g->nodes[add->index] = NULL;
        return true;
    }
    return false;
}

void weft_fuse_norm_sums(weft_fuser *f, weft_node *bias) {
    const weft_tensor *dx = weft_tensor_root(bias->in[0]);
    weft_node *back = dx->producer;
    if (!back || back->op != &weft_op_norm_back || back->out[WEFT_NORM_BACK_SUMS]) return;
    if (back->out[WEFT_NORM_BACK_DX] != dx || !weft_fuser_is_open(f, back)) return;
    if (weft_tensor_width(bias->in[0]) != weft_tensor_width(dx)) return;
    back->out[WEFT_NORM_BACK_SUMS] = bias->out[0];
    bias->out[0]->producer = back;
    f->reads[dx->id]--;
    f->g->nodes[bias->index] = NULL;
}
