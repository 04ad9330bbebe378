/* What becomes part of a product: where, and what becomes of the graph. */
#include "generate/fold.h"

#include "core/rewrite.h"
#include "ops/all.h"

typedef struct {
    weft_graph *graph;
    int64_t width, bytes;
    weft_fold *list;
    int64_t count;
} folding;

static weft_tensor *root_of(weft_tensor *t) {
    return t && t->view_of ? t->view_of : t;
}

/* Of so many dimensions. */
static bool is_bf16_weight(const weft_tensor *t, int ndim) {
    return t && !t->view_of && t->dtype == WEFT_BF16 && t->ndim == ndim &&
           (t->role == WEFT_ROLE_PARAM || t->role == WEFT_ROLE_INPUT);
}

/* How many read it, or a view of it; 2 where it is kept. */
static int count_readers(const folding *f, const weft_tensor *t) {
    int count = t->keep ? 2 : 0;
    for (int64_t i = 0; i < weft_graph_node_count(f->graph); i++) {
        const weft_node *n = weft_graph_node(f->graph, i);
        for (int k = 0; k < n->n_in; k++)
            count += root_of(n->in[k]) == t;
    }
    return count;
}

/* The node of an operation that makes t for one reader alone; NULL: it is none. */
static weft_node *find_maker(const folding *f, weft_tensor *t, int op) {
    weft_tensor *root = root_of(t);
    weft_node *n = root->producer;
    return n && n->op->id == op && n->out[0] == root && count_readers(f, root) == 1 ? n : NULL;
}

/* The node's attributes, to be changed: others may have them too. NULL: no memory. */
static void *own_attr(const folding *f, weft_node *n, size_t size) {
    void *attr = weft_graph_alloc(f->graph, size);
    if (attr) n->attr = memcpy(attr, n->attr, size);
    return attr;
}

/* `n` makes what another node made, an output of that. */
static void take_result(weft_node *n, weft_tensor **result) {
    n->out[0] = *result;
    n->out[0]->producer = n;
    *result = NULL;
}

/* A product of bf16 rows with a bf16 matrix [N, K], of sizes that go by fours and eights. */
static bool is_plain_product(const weft_matmul_attr *attr, const weft_tensor *a,
                             const weft_tensor *b) {
    return weft_matmul_is_by_rows(attr, a) && attr->tb && is_bf16_weight(b, 2) &&
           a->dtype == WEFT_BF16 && attr->dtype == WEFT_BF16 && b->shape[0] % 4 == 0 &&
           b->shape[1] % 8 == 0;
}

/* The product, or the gathering with an addend, that makes x and can tell its moments; NULL: none does. */
static weft_node *find_source(const folding *f, weft_tensor *x) {
    weft_node *n = x->producer;
    int64_t width = weft_tensor_width(x);
    if (!n || n->out[0] != x || width > f->width) return NULL;
    if (n->op->id == WEFT_OP_cache_gather)
        return n->in[WEFT_CACHE_ADDEND] && x->dtype == WEFT_BF16 ? n : NULL;
    if (n->op->id != WEFT_OP_matmul) return NULL;
    const weft_matmul_attr *attr = n->attr;
    weft_matmul_pair last = weft_matmul_pair_of(n, attr->more);
    bool suits = is_plain_product(&last.attr, last.a, last.b) && last.b->shape[0] == width &&
                 attr->act == WEFT_ACT_NONE && !attr->sums;
    return suits && (attr->moments || !n->out[1]) ? n : NULL;
}

/* Whether what `n` reads as its input k can be the stream in place of its norm. A sum may be written over its
 * addend, which other blocks of a kernel must not be reading as rows. */
static bool takes_norm(const weft_node *n, int k, const weft_node *norm) {
    const weft_matmul_attr *attr = n->attr;
    const weft_tensor *x = root_of(norm->in[WEFT_NORM_X]);
    if (n->op->id == WEFT_OP_gated_linear)
        return (k == WEFT_GATED_X || k == WEFT_GATED_X_AGAIN) && !n->in[WEFT_GATED_MOMENTS] &&
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
    weft_matmul_attr *attr = own_attr(f, n, sizeof *attr);
    if (!attr) return weft_graph_status(f->graph);
    attr->eps = ((const weft_norm_attr *)norm->attr)->eps;
    bool gated = n->op->id == WEFT_OP_gated_linear;
    weft_fold made;
    for (int k = 0; k <= (gated ? WEFT_GATED_X_AGAIN : 0); k += 2) {
        weft_tensor *bias = gated ? NULL : n->in[WEFT_MATMUL_BIAS];
        if (!make_fold(f, norm, n->in[k + 1], bias, &made)) return weft_graph_status(f->graph);
        weft_tensor *was = n->in[k + 1];
        n->in[k] = find_stream(f, norm, n->in[k]);
        n->in[k + 1] = made.matrix;
        /* What only this one read needs no memory. */
        if (was->role == WEFT_ROLE_INPUT && count_readers(f, was) == 0) was->role = WEFT_ROLE_TEMP;
        n->in[gated ? WEFT_GATED_SUMS + k / 2 : WEFT_MATMUL_SUMS] = made.sums;
        if (made.bias) n->in[gated ? WEFT_GATED_BIAS + k / 2 : WEFT_MATMUL_BIAS] = made.bias;
    }
    n->in[gated ? WEFT_GATED_MOMENTS : WEFT_MATMUL_MOMENTS] = moments;
    return weft_graph_status(f->graph);
}

static weft_tensor *make_moments(const folding *f, weft_tensor *x) {
    weft_node *source = find_source(f, x);
    if (source->out[1]) return source->out[1];
    if (source->op->id == WEFT_OP_cache_gather) {
        weft_cache_gather_attr *attr = own_attr(f, source, sizeof *attr);
        if (!attr) return NULL;
        attr->moments = true;
    } else {
        weft_matmul_attr *attr = own_attr(f, source, sizeof *attr);
        if (!attr) return NULL;
        attr->moments = true;
    }
    int64_t tiles = (weft_tensor_width(x) + WEFT_MOMENTS_COLUMNS - 1) / WEFT_MOMENTS_COLUMNS;
    return weft_node_output(f->graph, source, 1, WEFT_F32, 3,
                            (int64_t[]){weft_tensor_rows(x), tiles, 2});
}

/* Whether one bf16 matrix per head is all that a product does. */
static bool is_map(const weft_node *n) {
    const weft_matmul_attr *attr = n->attr;
    if (n->op->id != WEFT_OP_matmul || attr->form != WEFT_MATMUL_GROUPED || attr->more ||
        attr->alpha != 1 || attr->act != WEFT_ACT_NONE || attr->dtype != WEFT_BF16 ||
        !is_bf16_weight(n->in[WEFT_MATMUL_B], 3))
        return false;
    for (int k = WEFT_MATMUL_B + 1; k < n->n_in; k++)
        if (n->in[k]) return false;
    return true;
}

/* A product as is_plain_product, with nothing behind it yet that has to stay there. */
static bool can_join(const weft_node *n) {
    const weft_matmul_attr *attr = n->attr;
    return is_plain_product(attr, n->in[WEFT_MATMUL_A], n->in[WEFT_MATMUL_B]) && attr->more == 0 &&
           attr->alpha == 1 && attr->act == WEFT_ACT_NONE;
}

/* x w with w [K, N] reads the transpose, whose rows are the results'. */
static void transpose_weights(folding *f) {
    for (int64_t i = 0; i < weft_graph_node_count(f->graph); i++) {
        const weft_node *n = weft_graph_node(f->graph, i);
        const weft_matmul_attr *attr = n->attr;
        if (n->op->id != WEFT_OP_matmul || attr->tb || attr->alone || attr->more ||
            !weft_matmul_is_by_rows(attr, n->in[WEFT_MATMUL_A]) ||
            n->in[WEFT_MATMUL_A]->dtype != WEFT_BF16 || attr->dtype != WEFT_BF16 ||
            !is_bf16_weight(n->in[WEFT_MATMUL_B], 2))
            continue;
        const weft_tensor *from = n->in[WEFT_MATMUL_B];
        char name[112];
        snprintf(name, sizeof name, "%s.transposed", from->name);
        weft_tensor *matrix = weft_new_tensor(f->graph, WEFT_ROLE_INPUT, name, WEFT_BF16,
                                              from->shape[1], from->shape[0]);
        weft_matmul_attr *own = own_attr(f, n->out[0]->producer, sizeof *own);
        if (!matrix || !own) return;
        own->tb = true;
        n->in[WEFT_MATMUL_B] = matrix;
        f->list[f->count++] = (weft_fold){.matrix = matrix, .from = from};
    }
}

static bool make_join(folding *f, const weft_tensor *from, const weft_node *map, bool before,
                      weft_fold *made) {
    const weft_matmul_attr *attr = map->attr;
    const weft_tensor *w = map->in[WEFT_MATMUL_B];
    weft_matmul_sizes s = weft_matmul_measure(attr, map->in[WEFT_MATMUL_A], w);
    int64_t rows = before ? from->shape[0] : s.groups * s.n;
    int64_t columns = before ? s.groups * s.k : from->shape[1];
    if (from->shape[before ? 1 : 0] != s.groups * (before ? s.n : s.k)) return false;
    int64_t more = rows * columns - weft_tensor_count(from) - weft_tensor_count(w);
    if (2 * more > f->bytes) return false;
    char name[112];
    snprintf(name, sizeof name, "%s.%s", from->name, w->name);
    *made = (weft_fold){.from = from, .map = w, .tb = attr->tb, .before = before};
    made->matrix = weft_new_tensor(f->graph, WEFT_ROLE_INPUT, name, WEFT_BF16, rows, columns);
    if (made->matrix) f->list[f->count++] = *made;
    return made->matrix != NULL;
}

/* map(x wᵀ): the map's node makes both. */
static void join_behind(folding *f, weft_node *map) {
    const weft_node *product = find_maker(f, map->in[WEFT_MATMUL_A], WEFT_OP_matmul);
    weft_fold made;
    if (!product || !can_join(product) || product->in[WEFT_MATMUL_BIAS] ||
        product->in[WEFT_MATMUL_ADDEND] ||
        !make_join(f, product->in[WEFT_MATMUL_B], map, false, &made))
        return;
    map->attr = product->attr;
    map->in[WEFT_MATMUL_A] = product->in[WEFT_MATMUL_A];
    map->in[WEFT_MATMUL_B] = made.matrix;
}

/* map(x) wᵀ, with a gate of heads behind the map or not. */
static void join_before(folding *f, weft_node *product) {
    weft_node *gate = find_maker(f, product->in[WEFT_MATMUL_A], WEFT_OP_gate_mix);
    weft_node *map = find_maker(f, gate ? gate->in[0] : product->in[WEFT_MATMUL_A], WEFT_OP_matmul);
    weft_fold made;
    if (!map || !is_map(map) || !make_join(f, product->in[WEFT_MATMUL_B], map, true, &made)) return;
    weft_tensor *x = map->in[WEFT_MATMUL_A];
    if (gate) {
        gate->in[0] = x;
        x = weft_node_output_like(f->graph, gate, 0, x->dtype, x);
    }
    if (!x) return;
    product->in[WEFT_MATMUL_A] =
        weft_view(f->graph, x, weft_tensor_count(x) / made.matrix->shape[1], made.matrix->shape[1]);
    product->in[WEFT_MATMUL_B] = made.matrix;
}

/* Whether a node makes one result alone. A second that nobody reads (what a gradient would, or the number of a
 * key, which the cache makes) is left out. */
static bool makes_one(const folding *f, const weft_node *n) {
    if (n->n_out > 1 && n->out[1] && count_readers(f, n->out[1]) == 0) n->out[1] = NULL;
    return n->n_out < 2 || !n->out[1];
}

/* gelu of a product's result, or softplus of the deviations in it. */
static weft_status fold_maps(const folding *f) {
    for (int64_t i = 0; i < weft_graph_node_count(f->graph); i++) {
        const weft_node *n = weft_graph_node(f->graph, i);
        bool gaussian = n->op->id == WEFT_OP_gaussian, gelu = n->op->id == WEFT_OP_gelu;
        if (n->op->id == WEFT_OP_matmul &&
            ((const weft_matmul_attr *)n->attr)->act == WEFT_ACT_GELU)
            makes_one(f, n);
        if (!(gelu || gaussian) || !makes_one(f, n)) continue;
        int64_t group = weft_tensor_width(n->out[0]);
        if (gaussian && group % 8) continue;
        weft_node *product = find_maker(f, n->in[0], WEFT_OP_matmul);
        if (!product || !can_join(product) || product->out[1] ||
            n->out[0]->dtype != product->out[0]->dtype)
            continue;
        weft_matmul_attr *attr = own_attr(f, product, sizeof *attr);
        if (!attr) break;
        attr->act = gaussian ? WEFT_ACT_DEVIATIONS : WEFT_ACT_GELU;
        attr->group = gaussian ? group : 0;
        take_result(product, n->out);
    }
    return weft_graph_status(f->graph);
}

/* What is gathered and then has another type: the gathering makes that. y + gathered: the gathering adds. And x + (y + z),
 * the sum of which a norm takes its rows, where what makes z adds already: the product that makes y adds x, so that what
 * makes z makes the residual stream. */
static void fold_gathers(const folding *f) {
    for (int64_t i = 0; i < weft_graph_node_count(f->graph); i++) {
        const weft_node *n = weft_graph_node(f->graph, i);
        bool casts = n->op->id == WEFT_OP_cast, adds = n->op->id == WEFT_OP_add,
             sums = n->op->id == WEFT_OP_norm && n->in[WEFT_NORM_R];
        if (!casts && !adds && !sums) continue;
        weft_tensor *x = n->in[0], *z = n->in[casts ? 0 : adds ? 1 : WEFT_NORM_R];
        weft_node *last = find_maker(f, z, WEFT_OP_cache_gather);
        weft_node *later = sums ? find_maker(f, z, WEFT_OP_matmul) : NULL;
        if (casts && last) {
            take_result(last, n->out);
            n->in[0] = NULL; /* it is dropped, and counts as no reader until then */
        }
        if (later && can_join(later)) last = later;
        if (casts || !last || !weft_rewrite_is_made_before(x, last) ||
            weft_tensor_count(x) != weft_tensor_count(last->out[0]))
            continue;
        weft_tensor **added = &last->in[last == later ? WEFT_MATMUL_ADDEND : WEFT_CACHE_ADDEND];
        if (adds && !*added && ((const weft_alpha_attr *)n->attr)->alpha == 1) {
            *added = x;
            take_result(last, n->out);
            n->in[0] = n->in[1] = NULL;
        }
        weft_node *product =
            sums && *added && n->out[WEFT_NORM_S] ? find_maker(f, *added, WEFT_OP_matmul) : NULL;
        if (!product || !can_join(product) || product->in[WEFT_MATMUL_ADDEND] ||
            !weft_rewrite_is_made_before(x, product) || x->dtype != product->out[0]->dtype)
            continue;
        product->in[WEFT_MATMUL_ADDEND] = x;
        take_result(last, &n->out[WEFT_NORM_S]);
        n->in[WEFT_NORM_X] = last->out[0];
        n->in[WEFT_NORM_R] = NULL;
    }
}

weft_status weft_fold_products(weft_graph *g, int64_t width, int64_t bytes, weft_fold **folds,
                               int64_t *n) {
    /* A product has at most two matrices, and each at most a map and a norm; one that is alone a transpose too. */
    int64_t most = 4 * weft_graph_node_count(g) + 1;
    *folds = NULL;
    *n = 0;
    WEFT_ROOM(weft_fold, list, most, "generate: no memory");
    folding f = {.graph = g, .width = width, .bytes = bytes, .list = list};
    if (bytes > 0) {
        transpose_weights(&f);
        for (int64_t i = 0; i < weft_graph_node_count(f.graph); i++) {
            weft_tensor *y = weft_graph_node(f.graph, i)->out[0];
            weft_node *product = y ? y->producer : NULL;
            if (!product || product->op->id != WEFT_OP_matmul) continue;
            if (is_map(product))
                join_behind(&f, product);
            else if (can_join(product))
                join_before(&f, product);
        }
        WEFT_TRY(fold_maps(&f));
        fold_gathers(&f);
        WEFT_TRY(weft_graph_drop_unused(g));
    }
    for (int64_t i = 0; i < weft_graph_node_count(g); i++) {
        const weft_node *norm = weft_graph_node(g, i);
        if (norm->op->id != WEFT_OP_norm || !is_folded(&f, norm)) continue;
        weft_tensor *moments = make_moments(&f, root_of(norm->in[WEFT_NORM_X]));
        for (int64_t k = 0; moments && k < weft_graph_node_count(g); k++) {
            const weft_node *reader = weft_graph_node(g, k);
            if (reader->n_in > 0 && root_of(reader->in[0]) == norm->out[WEFT_NORM_Y])
                WEFT_TRY(fold_product(&f, norm, reader->out[0]->producer, moments));
        }
        WEFT_TRY(weft_graph_status(g));
    }
    if (f.count > 0) WEFT_TRY(weft_graph_drop_unused(g));
    *n = f.count;
    return weft_hand(&list, folds);
}
