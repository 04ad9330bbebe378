/* What a product does with its sums before it writes them: a factor, an addend, gelu's slope, and the
 * sums of rows for a bias behind that. Where no product makes what gelu's gradient reads, that and the
 * bias's are one pass. */
#include "ops/fuse_internal.h"

#include "ops/arith.h"
#include "ops/list.h"

bool weft_fuse_may_wait(const weft_node *product) {
    for (int i = 0; i <= weft_fuse_attr(product)->more; i++) {
        weft_matmul_pair p = weft_matmul_pair_of(product, i);
        int64_t longer = 0;
        if (p.a->role == WEFT_ROLE_TEMP) longer += weft_tensor_bytes(p.a);
        if (p.b->role == WEFT_ROLE_TEMP) longer += weft_tensor_bytes(p.b);
        if (longer > weft_tensor_bytes(product->out[0])) return false;
    }
    return true;
}

void weft_fuse_replace(weft_rewrite *r, weft_node *maker, int output, weft_node *reader,
                       bool waits) {
    weft_rewrite_make(r, maker, output, reader->out[0]);
    weft_rewrite_drop(r, reader);
    if (waits) weft_rewrite_place(r, maker, reader);
}

/* A factor for all that the product sums. */
static bool scale_product(weft_rewrite *r, weft_node *product, double alpha) {
    weft_matmul_attr *attr = weft_rewrite_attr(r, product, sizeof *attr);
    if (!attr) return false;
    attr->alpha *= alpha;
    for (int i = 0; i < attr->more; i++)
        attr->pair[i].alpha *= alpha;
    return true;
}

static double alpha_of(const weft_node *n) {
    return ((const weft_alpha_attr *)n->attr)->alpha;
}

static bool has_one_count(const weft_node *add) {
    return weft_tensor_count(add->in[0]) == weft_tensor_count(add->in[1]);
}

bool weft_fuse_is_plain_sum(const weft_node *add) {
    return alpha_of(add) == 1 && has_one_count(add);
}

/* (p + product) + addend, p a product of its own: p takes the addend, and both wait for it. */
static bool pass_addend(weft_rewrite *r, weft_node *add, weft_node *product, weft_tensor *addend) {
    weft_tensor *sum = product->in[WEFT_MATMUL_ADDEND];
    weft_node *p = weft_rewrite_find_maker(r, sum, &weft_op_matmul, 0, product);
    if (!p || !weft_fuse_is_free(p, product) || p->in[WEFT_MATMUL_ADDEND]) return false;
    if (!weft_rewrite_is_quiet(r, p, add)) return false;
    bool waits = !weft_rewrite_is_made_before(addend, p);
    if (waits && !(weft_fuse_may_wait(p) && weft_fuse_may_wait(product))) return false;
    weft_rewrite_read(r, p, WEFT_MATMUL_ADDEND, addend);
    if (addend->needs_grad) p->out[0]->needs_grad = sum->needs_grad = true;
    weft_fuse_replace(r, product, 0, add, waits);
    if (waits) weft_rewrite_move_before(r, p, product);
    return true;
}

/* sum + alpha · product: of two products the later one takes the other, so that neither has to move. */
bool weft_fuse_addend(weft_rewrite *r, const weft_match *m) {
    weft_node *add = m->reader, *product = m->maker;
    weft_tensor *addend = add->in[1 - m->input];
    double alpha = m->input == 1 ? alpha_of(add) : 1;
    if (!has_one_count(add)) return false;
    if (m->input == 0 && alpha_of(add) != 1) return false;
    if (!weft_fuse_is_free_product(m) || addend->dtype != add->out[0]->dtype) return false;
    if (product->in[WEFT_MATMUL_ADDEND]) return alpha == 1 && pass_addend(r, add, product, addend);
    if (alpha != 1 && product->in[WEFT_MATMUL_BIAS]) return false;
    bool waits = !weft_rewrite_is_made_before(addend, product);
    if (waits && !weft_fuse_may_wait(product)) return false;
    if (!scale_product(r, product, alpha)) return false;
    weft_rewrite_read(r, product, WEFT_MATMUL_ADDEND, addend);
    weft_fuse_replace(r, product, 0, add, waits);
    weft_rewrite_again(r, product);
    return true;
}

bool weft_fuse_factor(weft_rewrite *r, const weft_match *m) {
    weft_node *product = m->maker;
    if (!weft_fuse_is_free_product(m)) return false;
    if (product->in[WEFT_MATMUL_ADDEND] || product->in[WEFT_MATMUL_BIAS]) return false;
    if (!scale_product(r, product, alpha_of(m->reader))) return false;
    weft_fuse_replace(r, product, 0, m->reader, false);
    return true;
}

static bool is_one_matrix(const weft_node *product) {
    weft_matmul_form form = weft_fuse_attr(product)->form;
    return form == WEFT_MATMUL_ROWS || (form == WEFT_MATMUL_PLAIN && product->in[0]->ndim == 2);
}

/* Whether a bias_back sums the rows of `dx` as they are. */
static bool sums_rows_of(const weft_node *bias, const weft_tensor *dx) {
    return weft_tensor_width(bias->in[0]) == weft_tensor_width(dx);
}

/* The product takes gelu's slope. */
bool weft_fuse_slope(weft_rewrite *r, const weft_match *m) {
    weft_node *back = m->reader, *product = m->maker;
    weft_tensor *at = back->in[1];
    if (!weft_fuse_is_free_product(m) || !is_one_matrix(product)) return false;
    if (at->dtype != back->out[0]->dtype) return false;
    weft_matmul_attr *attr = weft_rewrite_attr(r, product, sizeof *attr);
    if (!attr) return false;
    attr->act = WEFT_ACT_GELU_BACK;
    bool waits = !weft_rewrite_is_made_before(at, product);
    weft_rewrite_read(r, product, WEFT_MATMUL_AT, at);
    weft_fuse_replace(r, product, 0, back, waits);
    return true;
}

/* And then the sums for a bias that are wanted behind it. */
bool weft_fuse_product_sums(weft_rewrite *r, const weft_match *m) {
    weft_node *bias = m->reader, *product = m->maker;
    if (m->output != 0 || weft_fuse_attr(product)->act != WEFT_ACT_GELU_BACK) return false;
    if (product->out[1] || !sums_rows_of(bias, product->out[0])) return false;
    int64_t columns = weft_matmul_measure(product->attr, product->in[0], product->in[1]).n;
    if (columns != weft_tensor_width(bias->in[0])) return false;
    weft_matmul_attr *attr = weft_rewrite_attr(r, product, sizeof *attr);
    if (!attr) return false;
    attr->sums = true;
    attr->sums_dtype = bias->out[0]->dtype;
    weft_rewrite_make(r, product, 1, bias->out[0]);
    weft_rewrite_drop(r, bias);
    return true;
}

/* Both in the first one's place. */
bool weft_fuse_slope_sums(weft_rewrite *r, const weft_match *m) {
    weft_node *back = m->maker, *bias = m->reader;
    weft_tensor *dx = back->out[0], *db = bias->out[0];
    if (!sums_rows_of(bias, dx)) return false;
    if (back->in[0]->dtype != dx->dtype || back->in[1]->dtype != dx->dtype) return false;
    weft_node *n = weft_rewrite_new(r, &weft_op_gelu_bias_back, back->in, 2, 2, bias->attr);
    if (!n) return false;
    weft_rewrite_make(r, n, 0, dx);
    weft_rewrite_make(r, n, 1, db);
    weft_rewrite_drop(r, bias);
    weft_rewrite_drop(r, back);
    weft_rewrite_place(r, n, back);
    return true;
}
