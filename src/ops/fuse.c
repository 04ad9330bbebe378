/* Fusion: what each rule does, and at the end the table of rules. fuse.h says what becomes of what. */
#include "ops/fuse.h"

#include "core/program.h"
#include "ops/all.h"

static const weft_matmul_attr *fuse_attr(const weft_node *product) {
    return product->attr;
}

/* Whether a product does nothing after its sum yet, and its result has the type of what `reader`
 * makes. */
static bool fuse_is_free(const weft_node *product, const weft_node *reader) {
    const weft_matmul_attr *attr = fuse_attr(product);
    return attr->act == WEFT_ACT_NONE && attr->dtype == reader->out[0]->dtype;
}

/* The same of what a rule has found: the match is of the product's result. */
static bool fuse_is_free_product(const weft_match *m) {
    return m->output == 0 && fuse_is_free(m->maker, m->reader);
}

/* What a product does with its sums before it writes them: a factor, an addend, gelu's slope, and the
 * sums of rows for a bias behind that. Where no product makes what gelu's gradient reads, that and the
 * bias's are one pass. */

/* Bytes of temporaries that pair i of a product reads. */
static int64_t temporary_bytes(const weft_node *product, int i) {
    weft_matmul_pair p = weft_matmul_pair_of(product, i);
    return (p.a->role == WEFT_ROLE_TEMP ? weft_tensor_bytes(p.a) : 0) +
           (p.b->role == WEFT_ROLE_TEMP ? weft_tensor_bytes(p.b) : 0);
}

/* Whether a product may wait for its addend: what may have to live longer then, for each pair that it
 * sums, is no larger than the result that need not live until then. An addend that it has waits
 * itself. Shapes alone decide, so that a graph with recomputation, where lives differ, has the same
 * products and the same bits. */
static bool fuse_may_wait(const weft_node *product) {
    for (int i = 0; i <= fuse_attr(product)->more; i++)
        if (temporary_bytes(product, i) > weft_tensor_bytes(product->out[0])) return false;
    return true;
}

/* The maker makes the reader's first output in place of the one that the reader read, and the reader
 * goes; the maker stays in its place in the list, or waits until the reader's. */
static void fuse_replace(weft_rewrite *r, weft_node *maker, int output, weft_node *reader,
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

/* Whether an add is of as many numbers: nothing is repeated. */
static bool has_one_count(const weft_node *add) {
    return weft_tensor_count(add->in[0]) == weft_tensor_count(add->in[1]);
}

/* (p + product) + addend, p a product of its own: p takes the addend, and both wait for it. */
static bool pass_addend(weft_rewrite *r, weft_node *add, weft_node *product, weft_tensor *addend) {
    weft_tensor *sum = product->in[WEFT_MATMUL_ADDEND];
    weft_node *p = weft_rewrite_find_maker(r, sum, &weft_op_matmul, 0, product);
    if (!p || !fuse_is_free(p, product) || p->in[WEFT_MATMUL_ADDEND]) return false;
    if (!weft_rewrite_is_quiet(r, p, add)) return false;
    bool waits = !weft_rewrite_is_made_before(addend, p);
    if (waits && !(fuse_may_wait(p) && fuse_may_wait(product))) return false;
    weft_rewrite_read(r, p, WEFT_MATMUL_ADDEND, addend);
    if (addend->needs_grad) p->out[0]->needs_grad = sum->needs_grad = true;
    fuse_replace(r, product, 0, add, waits);
    if (waits) weft_rewrite_move_before(r, p, product);
    return true;
}

/* sum + alpha · product: of two products the later one takes the other, so that neither has to move. */
static bool fuse_addend(weft_rewrite *r, const weft_match *m) {
    weft_node *add = m->reader, *product = m->maker;
    weft_tensor *addend = add->in[1 - m->input];
    double alpha = m->input == 1 ? alpha_of(add) : 1;
    if (!has_one_count(add)) return false;
    if (m->input == 0 && alpha_of(add) != 1) return false;
    if (!fuse_is_free_product(m) || addend->dtype != add->out[0]->dtype) return false;
    if (product->in[WEFT_MATMUL_ADDEND]) return alpha == 1 && pass_addend(r, add, product, addend);
    if (alpha != 1 && product->in[WEFT_MATMUL_BIAS]) return false;
    bool waits = !weft_rewrite_is_made_before(addend, product);
    if (waits && !fuse_may_wait(product)) return false;
    if (!scale_product(r, product, alpha)) return false;
    weft_rewrite_read(r, product, WEFT_MATMUL_ADDEND, addend);
    fuse_replace(r, product, 0, add, waits);
    weft_rewrite_again(r, product);
    return true;
}

static bool fuse_factor(weft_rewrite *r, const weft_match *m) {
    weft_node *product = m->maker;
    if (!fuse_is_free_product(m)) return false;
    if (product->in[WEFT_MATMUL_ADDEND] || product->in[WEFT_MATMUL_BIAS]) return false;
    if (!scale_product(r, product, alpha_of(m->reader))) return false;
    fuse_replace(r, product, 0, m->reader, false);
    return true;
}

/* Whether a bias_back sums the rows of `dx` as they are. */
static bool sums_rows_of(const weft_node *bias, const weft_tensor *dx) {
    return weft_tensor_width(bias->in[0]) == weft_tensor_width(dx);
}

static bool fuse_slope(weft_rewrite *r, const weft_match *m) {
    weft_node *back = m->reader, *product = m->maker;
    weft_tensor *at = back->in[1];
    weft_matmul_form form = fuse_attr(product)->form;
    bool one = form == WEFT_MATMUL_ROWS || (form == WEFT_MATMUL_PLAIN && product->in[0]->ndim == 2);
    if (!fuse_is_free_product(m) || !one) return false;
    if (at->dtype != back->out[0]->dtype) return false;
    weft_matmul_attr *attr = weft_rewrite_attr(r, product, sizeof *attr);
    if (!attr) return false;
    attr->act = WEFT_ACT_GELU_BACK;
    bool waits = !weft_rewrite_is_made_before(at, product);
    weft_rewrite_read(r, product, WEFT_MATMUL_AT, at);
    fuse_replace(r, product, 0, back, waits);
    return true;
}

/* And then the sums for a bias that are wanted behind it. */
static bool fuse_product_sums(weft_rewrite *r, const weft_match *m) {
    weft_node *bias = m->reader, *product = m->maker;
    if (m->output != 0 || fuse_attr(product)->act != WEFT_ACT_GELU_BACK) return false;
    if (product->out[1] || !sums_rows_of(bias, product->out[0])) return false;
    int64_t columns = weft_matmul_measure(product->attr, product->in[0], product->in[1]).n;
    if (columns != weft_tensor_width(bias->in[0])) return false;
    weft_matmul_attr *attr = weft_rewrite_attr(r, product, sizeof *attr);
    if (!attr) return false;
    attr->sums = true;
    weft_rewrite_make(r, product, 1, bias->out[0]);
    weft_rewrite_drop(r, bias);
    return true;
}

/* Both in the first one's place. */
static bool fuse_slope_sums(weft_rewrite *r, const weft_match *m) {
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

/* Sums of products: where a product's addend is made by a product that it alone reads, both become one
 * node of several pairs of factors. A chain add(add(p1, p2), p3) has become products with addends by
 * then, each just behind the one that it adds, and so joins from its first on.
 *
 * What a product reads then has to live until the last one's place. So that memory does not grow, it
 * must be no larger than the sum, which lived there before; or the last one's inputs are all made
 * before the first one's place, and that is the node's. Shapes and the list's order decide, without
 * the nodes that make values again: a graph with recomputation has the same sums. */

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

static bool fuse_sum(weft_rewrite *r, const weft_match *m) {
    weft_node *q = m->reader, *p = m->maker;
    if (!fuse_is_free_product(m)) return false;
    if (p->segment != q->segment || fuse_attr(q)->act != WEFT_ACT_NONE) return false;
    if (!weft_matmul_is_by_rows(p->attr, p->in[0]) || !weft_matmul_is_by_rows(q->attr, q->in[0]))
        return false;
    weft_matmul_sizes a = weft_matmul_measure(p->attr, p->in[0], p->in[1]);
    weft_matmul_sizes b = weft_matmul_measure(q->attr, q->in[0], q->in[1]);
    if (a.m != b.m || a.n != b.n) return false;
    if (p->in[WEFT_MATMUL_BIAS] && q->in[WEFT_MATMUL_BIAS]) return false;
    if (fuse_attr(p)->more + fuse_attr(q)->more + 2 > WEFT_MATMUL_PAIRS) return false;
    int64_t bytes = 0;
    for (int i = 0; i <= fuse_attr(p)->more; i++)
        bytes += temporary_bytes(p, i);
    if (bytes > weft_tensor_bytes(q->out[0]) && !reads_what_is_before(r, q, p, true)) return false;
    bool waits = !reads_what_is_before(r, q, p, false);
    weft_tensor *in[WEFT_MATMUL_INPUTS + 2 * WEFT_MATMUL_PAIRS];
    weft_matmul_attr *attr = weft_rewrite_attr(r, p, sizeof *attr);
    int n_in = p->n_in;
    if (!attr) return false;
    memcpy(in, p->in, (size_t)n_in * sizeof *in);
    for (int i = 0; i <= fuse_attr(q)->more; i++) { /* its pairs behind those of p */
        weft_matmul_pair pair = weft_matmul_pair_of(q, i);
        in[n_in++] = pair.a;
        in[n_in++] = pair.b;
        attr->pair[attr->more].tb = pair.attr.tb;
        attr->pair[attr->more++].alpha = pair.attr.alpha;
    }
    if (!weft_rewrite_read_all(r, p, in, n_in)) return false;
    if (q->in[WEFT_MATMUL_BIAS]) weft_rewrite_read(r, p, WEFT_MATMUL_BIAS, q->in[WEFT_MATMUL_BIAS]);
    fuse_replace(r, p, 0, q, waits);
    return true;
}

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

static bool fuse_residual(weft_rewrite *r, const weft_match *m) {
    weft_node *norm = m->reader, *product = m->maker;
    weft_tensor *x = norm->in[WEFT_NORM_X], *s = norm->out[WEFT_NORM_S];
    if (!fuse_is_free_product(m) || product->in[WEFT_MATMUL_ADDEND]) return false;
    if (x->dtype != norm->in[WEFT_NORM_R]->dtype || !weft_rewrite_is_made_before(x, product))
        return false;
    weft_rewrite_read(r, product, WEFT_MATMUL_ADDEND, x);
    weft_rewrite_make(r, product, 0, s);
    weft_rewrite_read(r, norm, WEFT_NORM_X, s);
    weft_rewrite_read(r, norm, WEFT_NORM_R, NULL);
    return true;
}

/* Whether the norm passes some rows by: what is added to all of them is not its to add. */
static bool norms_heads(const weft_node *back) {
    return ((const weft_norm_attr *)back->attr)->heads > 0;
}

static bool fuse_norm_addend(weft_rewrite *r, const weft_match *m) {
    weft_node *add = m->reader, *back = m->maker;
    weft_tensor *ds = add->in[1 - m->input];
    if (alpha_of(add) != 1 || !has_one_count(add) || ds->dtype != add->out[0]->dtype) return false;
    if (m->output != WEFT_NORM_BACK_DX || back->in[WEFT_NORM_BACK_DS]) return false;
    if (back->out[WEFT_NORM_BACK_SUMS] || norms_heads(back))
        return false; /* of what it makes now */
    if (!weft_rewrite_is_made_before(ds, back)) return false;
    weft_rewrite_read(r, back, WEFT_NORM_BACK_DS, ds);
    fuse_replace(r, back, WEFT_NORM_BACK_DX, add, false);
    return true;
}

static bool fuse_norm_sums(weft_rewrite *r, const weft_match *m) {
    weft_node *bias = m->reader, *back = m->maker;
    if (m->output != WEFT_NORM_BACK_DX || back->out[WEFT_NORM_BACK_SUMS]) return false;
    if (norms_heads(back)) return false;
    if (!sums_rows_of(bias, back->out[WEFT_NORM_BACK_DX])) return false;
    weft_rewrite_make(r, back, WEFT_NORM_BACK_SUMS, bias->out[0]);
    weft_rewrite_drop(r, bias);
    return true;
}

/* The gradient of a table that embeds tokens and classifies them. The classifier's is there first;
 * embed_back adds its rows to it, so that only rows of tokens that occur are touched, in place of a
 * table of its own, mostly zeros, and a sum of two tables. */
static bool fuse_embed_addend(weft_rewrite *r, const weft_match *m) {
    weft_node *add = m->reader, *back = m->maker;
    weft_tensor *addend = add->in[1 - m->input], *table = add->in[m->input];
    weft_dtype dtype = add->out[0]->dtype;
    if (alpha_of(add) != 1 || !has_one_count(add) || back->in[WEFT_EMBED_BACK_ADDEND]) return false;
    if (m->output != 0 || table->dtype != dtype || addend->dtype != dtype) return false;
    if (!weft_rewrite_is_made_before(addend, back)) return false;
    weft_rewrite_read(r, back, WEFT_EMBED_BACK_ADDEND, addend);
    fuse_replace(r, back, 0, add, false);
    return true;
}

/* Attention of Gaussians: the gradient of q̂ = [μ, σ] is made by attention_back and read by
 * gaussian_back alone, which multiplies what arrives at σ by softplus' slope there; of keys it adds
 * the gradient of their squares before. Both need nothing but q̂ or k̂ beside it, and attention_back
 * has read them: it finishes each row itself, and gaussian_back goes, and dn with it.
 *
 * Queries and keys are looked at one by one. Nothing moves and nothing lives longer: q̂ and k̂ are read
 * no later than before, and gaussian_back wrote over what it read. */
static bool fuse_gaussian_back(weft_rewrite *r, const weft_match *m) {
    weft_node *back = m->reader, *n = m->maker;
    /* dy, found as the gradient of attention's input m->output, must be that of the Gaussian's y. */
    const weft_tensor *y = back->in[0];
    if (((const weft_attention_attr *)n->attr)->packed) return false;
    if (m->output != WEFT_ATTN_Q && m->output != WEFT_ATTN_K) return false;
    const weft_tensor *from = n->in[WEFT_ATTN_BACK_FIRST + m->output];
    const weft_tensor *y_root = y->view_of ? y->view_of : y;
    if ((from->view_of ? from->view_of : from) != y_root || !weft_tensor_same_shape(from, y))
        return false;
    /* The gradient of the keys' squares, if there is one, must come from the same attention. */
    weft_tensor *dn = back->in[2];
    if (dn && (m->output != WEFT_ATTN_K ||
               weft_rewrite_find_maker(r, dn, &weft_op_attention_back, WEFT_ATTN_N, back) != n))
        return false;
    weft_attention_attr *attr = weft_rewrite_attr(r, n, sizeof *attr);
    if (!attr) return false;
    if (m->output == WEFT_ATTN_Q)
        attr->gaussian_q = true;
    else
        attr->gaussian_k = true;
    attr->gaussian_n = attr->gaussian_n || dn;
    if (dn) weft_rewrite_make(r, n, WEFT_ATTN_N, NULL);
    fuse_replace(r, n, m->output, back, false);
    return true;
}

/* Fusing SwiGLU: its two products and the gate between them become gated_linear.
 *
 * It stands where the later product stood, so autodiff meets it where it would have met the products.
 * All three nodes must be of one segment: a gate that is made again from stored products would else be
 * stored itself. */

/* Whether a product is a linear layer, y = x wᵀ and nothing else, whose result silu_mul reads as it is. */
static bool is_layer(const weft_node *p, const weft_tensor *t, const weft_node *silu_mul) {
    if (!p || !fuse_is_free(p, silu_mul) || p->out[0] != t) return false;
    for (int k = 0; k < p->n_in; k++)
        if (k != WEFT_MATMUL_A && k != WEFT_MATMUL_B && p->in[k]) return false;
    const weft_matmul_attr *attr = fuse_attr(p);
    bool bare = attr->form == WEFT_MATMUL_ROWS && attr->alpha == 1;
    return bare && p->segment == silu_mul->segment && attr->tb;
}

static bool fuse_silu_mul(weft_rewrite *r, const weft_match *m) {
    weft_node *silu_mul = m->reader, *up = m->maker;
    weft_node *gate = weft_rewrite_find_maker(r, silu_mul->in[1], &weft_op_matmul, 0, silu_mul);
    if (!is_layer(up, silu_mul->in[0], silu_mul) || !is_layer(gate, silu_mul->in[1], silu_mul))
        return false;
    if (up->in[WEFT_MATMUL_A] != gate->in[WEFT_MATMUL_A]) return false;
    weft_tensor *in[WEFT_GATED_INPUTS] = {gate->in[WEFT_MATMUL_A], gate->in[WEFT_MATMUL_B],
                                          up->in[WEFT_MATMUL_A], up->in[WEFT_MATMUL_B]};
    weft_node *n = weft_rewrite_new(r, &weft_op_gated_linear, in, WEFT_GATED_INPUTS,
                                    WEFT_GATED_OUTPUTS, gate->attr);
    if (!n) return false;
    n->segment = silu_mul->segment;
    weft_rewrite_make(r, n, WEFT_GATED_Y, silu_mul->out[0]);
    weft_rewrite_make(r, n, WEFT_GATED_GATE, gate->out[0]);
    weft_rewrite_drop(r, up);
    weft_rewrite_drop(r, gate);
    weft_rewrite_drop(r, silu_mul);
    weft_rewrite_place(r, n, up->index > gate->index ? up : gate);
    return true;
}

/* Its gradient comes right behind the product that makes what it reads, so that nothing else takes memory
 * between them. A product that makes sums too stays where it is: they may be read before. */
static bool fuse_silu_mul_back(weft_rewrite *r, const weft_match *m) {
    if (m->maker->out[1]) return false;
    weft_rewrite_move_before(r, m->maker, m->reader);
    return true;
}

/* The table. Each names two nodes that follow each other and the function that makes one of
 * them (core/rewrite.h).
 *
 * Autodiff sums the gradients of a tensor as a chain, add(add(p1, p2), p3), each product just before
 * its add: p2 takes p1 as its addend, p3 takes their sum, and no product moves; "sum of products"
 * makes one node of them where it can. */

/* name, the reader and its input, the maker, may others read it, what is done */
const weft_rule weft_fusion_rules[] = {
    {"a sum in a norm's gradient", &weft_op_add, WEFT_ANY_INPUT, &weft_op_norm_back, false,
     fuse_norm_addend},
    {"a sum in a table's gradient", &weft_op_add, WEFT_ANY_INPUT, &weft_op_embed_back, false,
     fuse_embed_addend},
    {"a product's addend", &weft_op_add, WEFT_ANY_INPUT, &weft_op_matmul, false, fuse_addend},
    {"sum of products", &weft_op_matmul, WEFT_MATMUL_ADDEND, &weft_op_matmul, false, fuse_sum},
    {"a product's factor", &weft_op_scale, 0, &weft_op_matmul, false, fuse_factor},
    {"a norm's residual", &weft_op_norm, WEFT_NORM_R, &weft_op_matmul, false, fuse_residual},
    {"a bias behind a norm", &weft_op_bias_back, 0, &weft_op_norm_back, true, fuse_norm_sums},
    {"gelu's slope", &weft_op_gelu_back, 0, &weft_op_matmul, false, fuse_slope},
    {"a bias before gelu, with its slope", &weft_op_bias_back, 0, &weft_op_matmul, true,
     fuse_product_sums},
    {"a bias before gelu", &weft_op_bias_back, 0, &weft_op_gelu_back, true, fuse_slope_sums},
    {"a Gaussian's gradient", &weft_op_gaussian_back, 1, &weft_op_attention_back, false,
     fuse_gaussian_back},
    {"SwiGLU", &weft_op_silu_mul, 0, &weft_op_matmul, false, fuse_silu_mul},
    {"SwiGLU's gradient", &weft_op_silu_mul_back, 0, &weft_op_matmul, false, fuse_silu_mul_back},
    {0},
};

weft_status weft_fuse(weft_graph *g) {
    return weft_graph_rewrite(g, weft_fusion_rules);
}
