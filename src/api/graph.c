/* Describing a graph over the public header: what comes in, what goes out, and each operation behind
 * the same check of what it is given. The operations' own rules say what is wrong with shapes and
 * types; here are only words turned into values, and tensors of other graphs refused. */
#include "api/api.h"
#include "base/text.h"

#include "core/graph_internal.h"
#include "ops/all.h"

bool weft_api_note(weft_graph *g, weft_block_list which, weft_tensor *t, const char *name,
                   bool wants_grad) {
    weft_api_lists *lists = g->owner;
    weft_api_list *list = &lists->list[which];
    if (list->n == WEFT_API_TENSORS_MAX)
        return weft_graph_refuse(g, "'%s': a block has up to %d inputs, weights and outputs each",
                                 name, WEFT_API_TENSORS_MAX);
    weft_api_entry *e = WEFT_ADD(list->entries, list->n);
    if (e) *e = (weft_api_entry){.tensor = t, .name = strdup(name), .wants_grad = wants_grad};
    return (e && e->name) || weft_graph_no_memory(g, "block: no memory for its tensors");
}

/* Whether operations can be added: there is a graph, made for a block, and all is well so far. */
static bool is_open(const weft_graph *g, const char *caller) {
    if (g && g->owner) return g->status == WEFT_OK;
    WEFT_BAD_INPUT("%s: the graph is %s", caller,
                   g ? "not one that a block is described in" : "NULL");
    return false;
}

static bool has_type(weft_graph *g, const char *caller, const char *type, weft_dtype *out) {
    if (type && weft_dtype_parse(type, out) == WEFT_OK && *out <= WEFT_I32) return true;
    return weft_graph_refuse(g, "%s: type '%s' is none of f32, bf16, f64, i32", caller,
                             type ? type : "NULL");
}

/* The number of a word in a list that ends on NULL; -1, and the error: it is not there. */
static int find_word(weft_graph *g, const char *caller, const char *word,
                     const char *const *words) {
    char all[128] = "";
    for (int i = 0; words[i]; i++) {
        if (word && strcmp(word, words[i]) == 0) return i;
        size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, "%s%s", used ? ", " : "", words[i]);
    }
    weft_graph_fail(g, "%s: '%s' is none of %s", caller, word ? word : "NULL", all);
    return -1;
}

/* Whether the tensors of a list, those that are there, are of this graph. */
static bool owns_all(weft_graph *g, const char *caller, weft_tensor *const *list, int n) {
    for (int k = 0; k < n; k++) {
        int64_t i = 0;
        while (list[k] && i < g->n_tensors && g->tensors[i] != list[k])
            i++;
        if (list[k] && i == g->n_tensors)
            return weft_graph_refuse(g, "%s: a tensor is not of this graph", caller);
    }
    return true;
}

/* The start of every operation: NULL from the caller if something is amiss with the graph or one of
 * the tensors that follow. */
#define OPEN(...)                                                                                  \
    do {                                                                                           \
        weft_tensor *const given_[] = {__VA_ARGS__};                                               \
        if (!is_open(g, __func__) ||                                                               \
            !owns_all(g, __func__, given_, (int)(sizeof given_ / sizeof *given_)))                 \
            return 0;                                                                              \
    } while (0)

/* And one without which there is nothing to do. */
#define NEED(t)                                                                                    \
    do {                                                                                           \
        if (!(t)) {                                                                                \
            weft_graph_fail(g, "%s: %s is missing", __func__, #t);                                 \
            return 0;                                                                              \
        }                                                                                          \
    } while (0)

static weft_tensor *new_tensor(weft_graph *g, weft_block_list which, const char *name,
                               const char *type, int ndim, const int64_t *shape, bool wants_grad) {
    weft_dtype dtype;
    const char *caller = which == WEFT_BLOCK_INPUTS ? "weft_graph_input" : "weft_graph_weight";
    if (!is_open(g, caller) || !has_type(g, caller, type, &dtype)) return NULL;
    if (!shape && ndim > 0) return weft_graph_refuse(g, "%s: shape is NULL", caller);
    if (wants_grad && dtype == WEFT_I32)
        return weft_graph_refuse(g, "%s: '%s' is i32, which has no gradient", caller,
                                 name ? name : "NULL");
    weft_role role = which == WEFT_BLOCK_INPUTS ? WEFT_ROLE_INPUT : WEFT_ROLE_PARAM;
    weft_tensor *t = weft_graph_tensor(g, role, name, dtype, ndim, shape);
    if (!t) return NULL;
    t->needs_grad = wants_grad && ((const weft_api_lists *)g->owner)->gradient;
    return weft_api_note(g, which, t, name, t->needs_grad) ? t : NULL;
}

weft_tensor *weft_graph_input(weft_graph *g, const char *name, const char *type, int ndim,
                              const int64_t *shape, int gradient) {
    return new_tensor(g, WEFT_BLOCK_INPUTS, name, type, ndim, shape, gradient);
}

weft_tensor *weft_graph_weight(weft_graph *g, const char *name, const char *type, int ndim,
                               const int64_t *shape) {
    return new_tensor(g, WEFT_BLOCK_WEIGHTS, name, type, ndim, shape, true);
}

weft_tensor *weft_graph_output(weft_graph *g, const char *name, weft_tensor *t) {
    OPEN(t);
    NEED(t);
    NEED(name);
    const weft_api_list *list = &((const weft_api_lists *)g->owner)->list[WEFT_BLOCK_OUTPUTS];
    for (int i = 0; i < list->n; i++) {
        if (strcmp(list->entries[i].name, name) != 0) continue;
        return weft_graph_refuse(g, "%s: '%s' is an output already", __func__, name);
    }
    return weft_api_note(g, WEFT_BLOCK_OUTPUTS, t, name, false) ? t : NULL;
}

weft_status weft_graph_shape(const weft_tensor *t, int64_t shape[4], int *ndim) {
    API_NEED(t, shape);
    for (int d = 0; d < 4; d++)
        shape[d] = d < t->ndim ? t->shape[d] : 1;
    if (ndim) *ndim = t->ndim;
    return WEFT_OK;
}

void weft_graph_again_begin(weft_graph *g) {
    if (is_open(g, __func__)) weft_graph_recompute_begin(g);
}

void weft_graph_again_end(weft_graph *g) {
    if (is_open(g, __func__)) weft_graph_recompute_end(g);
}

weft_tensor *weft_graph_view(weft_graph *g, weft_tensor *t, int ndim, const int64_t *shape) {
    OPEN(t);
    if (ndim > 0) NEED(shape);
    return weft_reshape(g, t, ndim, shape);
}

/* An operation that is one of src/ops behind the check of the tensors it is given; and those of one and
 * of two tensors alone. */
#define OPERATION(name, tensors, call, ...)                                                        \
    weft_tensor *weft_graph_##name(weft_graph *g, __VA_ARGS__) {                                   \
        OPEN tensors;                                                                              \
        return call;                                                                               \
    }
/* One that makes two tensors, fields of what the call returns: the second goes where *more says. */
#define OPERATION_OF_TWO_RESULTS(name, tensors, call, type, first, second, ...)                    \
    weft_tensor *weft_graph_##name(weft_graph *g, __VA_ARGS__, weft_tensor **more) {               \
        OPEN tensors;                                                                              \
        type made = call;                                                                          \
        if (more) *more = made.second;                                                             \
        return made.first;                                                                         \
    }
#define OF_ONE(name) OPERATION(name, (a), weft_##name(g, a), weft_tensor *a)
#define OF_TWO(name) OPERATION(name, (a, b), weft_##name(g, a, b), weft_tensor *a, weft_tensor *b)

OF_ONE(gelu)
OF_ONE(gaussian_query)
OF_ONE(gram)
OF_ONE(head_transpose)
OPERATION(running_mean, (a), weft_running_mean(g, a, NULL), weft_tensor *a)
OF_ONE(time_mean)
OF_TWO(dot)
OF_TWO(silu_mul)
OPERATION(add, (a, b), weft_add_scaled(g, a, b, alpha), weft_tensor *a, weft_tensor *b,
          double alpha)
OPERATION(scale, (a), weft_scale(g, a, alpha), weft_tensor *a, double alpha)
OPERATION(sum_squares, (a), weft_sum_squares(g, a, factor), weft_tensor *a, double factor)
OPERATION(grouped_linear, (x, w), weft_grouped_linear(g, x, w, transpose_w), weft_tensor *x,
          weft_tensor *w, int transpose_w)
OPERATION(softplus, (x), weft_softplus(g, x, start, floor), weft_tensor *x, int64_t start,
          double floor)
OPERATION(rope, (x), weft_rope(g, x, width, heads, NULL, &WEFT_ROPE_USUAL), weft_tensor *x,
          int64_t width, int64_t heads)
OPERATION(row_squares, (x), weft_row_squares(g, x, start), weft_tensor *x, int64_t start)
OPERATION(gather, (h, index, weight), weft_route_gather(g, h, index, weight), weft_tensor *h,
          weft_tensor *index, weft_tensor *weight)
OPERATION(gate, (o, gate), weft_gate_mix(g, o, gate, alpha), weft_tensor *o, weft_tensor *gate,
          double alpha)
OPERATION(head_repeat, (x), weft_head_repeat(g, x, heads), weft_tensor *x, int64_t heads)
OPERATION(head_pool, (x, scale), weft_head_pool(g, x, scale, width), weft_tensor *x,
          weft_tensor *scale, int64_t width)
OPERATION(head_spread, (x, scale), weft_head_spread(g, x, scale, width), weft_tensor *x,
          weft_tensor *scale, int64_t width)
OPERATION(embed, (table, ids, positions), weft_embed(g, table, ids, positions, NULL),
          weft_tensor *table, weft_tensor *ids, weft_tensor *positions)
OPERATION(contrastive, (x), weft_infonce(g, x, 0, tau, factor), weft_tensor *x, double tau,
          double factor)
OPERATION_OF_TWO_RESULTS(gaussian_key, (x), weft_gaussian_key(g, x), weft_gaussian, y, n,
                         weft_tensor *x)
OPERATION_OF_TWO_RESULTS(overlap, (x), weft_overlap_scale(g, x), weft_overlap, y, log_sigma,
                         weft_tensor *x)
OPERATION_OF_TWO_RESULTS(moments, (x), weft_moments(g, x), weft_moments_of, gram, sum,
                         weft_tensor *x)
OPERATION_OF_TWO_RESULTS(cross_entropy, (x, w, targets),
                         weft_cross_entropy(g, x, w, targets, NULL, z, false, 0), weft_losses, ce,
                         z, weft_tensor *x, weft_tensor *w, weft_tensor *targets, double z)

weft_tensor *weft_graph_unary(weft_graph *g, const char *name, weft_tensor *x) {
    OPEN(x);
    NEED(name);
    return weft_unary(g, name, x);
}

weft_tensor *weft_graph_cast(weft_graph *g, weft_tensor *a, const char *type) {
    weft_dtype dtype;
    OPEN(a);
    NEED(a);
    return has_type(g, __func__, type, &dtype) ? weft_cast(g, a, dtype) : NULL;
}

weft_tensor *weft_graph_fill(weft_graph *g, const char *type, int ndim, const int64_t *shape,
                             double value) {
    weft_dtype dtype;
    if (!is_open(g, __func__) || !has_type(g, __func__, type, &dtype)) return NULL;
    if (ndim > 0) NEED(shape);
    return weft_fill(g, dtype, ndim, shape, value);
}

weft_tensor *weft_graph_linear(weft_graph *g, weft_tensor *x, weft_tensor *w, weft_tensor *bias,
                               const char *act) {
    static const char *const words[] = {"none", "gelu", NULL};
    OPEN(x, w, bias);
    int word = find_word(g, __func__, act, words);
    return word < 0 ? NULL : weft_linear(g, x, w, bias, word ? WEFT_ACT_GELU : WEFT_ACT_NONE);
}

weft_tensor *weft_graph_matmul(weft_graph *g, weft_tensor *a, weft_tensor *b, int transpose_a,
                               int transpose_b) {
    OPEN(a, b);
    NEED(a);
    if (a->ndim == 3) return weft_batched_matmul(g, a, b, transpose_a, transpose_b);
    return weft_matmul(g, a, b, transpose_a, transpose_b);
}

/* eps 0: the kind's own. */
static weft_tensor *add_norm(weft_graph *g, const char *caller, const char *kind, weft_tensor *x,
                             weft_tensor *r, weft_tensor *w, weft_tensor *bias, double eps,
                             weft_tensor **sum) {
    static const char *const words[] = {"layernorm", "rmsnorm", NULL};
    int word = find_word(g, caller, kind, words);
    if (word < 0) return NULL;
    weft_normed n = weft_norm(g, x, r, w, bias, word ? WEFT_RMSNORM : WEFT_LAYERNORM, eps);
    if (sum) *sum = n.s;
    return n.y;
}

weft_tensor *weft_graph_norm(weft_graph *g, const char *kind, weft_tensor *x, weft_tensor *r,
                             weft_tensor *w, weft_tensor *bias, weft_tensor **sum) {
    OPEN(x, r, w, bias);
    return add_norm(g, __func__, kind, x, r, w, bias, 0, sum);
}

weft_tensor *weft_graph_norm_eps(weft_graph *g, const char *kind, weft_tensor *x, weft_tensor *r,
                                 weft_tensor *w, weft_tensor *bias, double eps, weft_tensor **sum) {
    OPEN(x, r, w, bias);
    if (eps > 0 && isfinite(eps)) return add_norm(g, __func__, kind, x, r, w, bias, eps, sum);
    return weft_graph_refuse(g, "%s: eps is %g; it must be above 0", __func__, eps);
}

weft_tensor *weft_graph_dropout(weft_graph *g, weft_tensor *x, double p, const char *site) {
    OPEN(x);
    NEED(site);
    return weft_dropout(g, x, p, site);
}

weft_tensor *weft_graph_rotate(weft_graph *g, weft_tensor *x, int64_t width, int64_t heads,
                               const weft_rotation *by) {
    OPEN(x);
    static const char *const words[] = {"none", "linear", "llama3", "yarn", NULL};
    if (!by || by->size != sizeof *by)
        return weft_graph_refuse(g, "%s: the rotation is %s", __func__,
                                 by ? "of another size; set size to sizeof(weft_rotation)"
                                    : "NULL");
    int scaling = find_word(g, __func__, by->scaling ? by->scaling : words[0], words);
    if (scaling < 0) return NULL;
    weft_rope_law law = {.base = by->base, .context = by->context, .low = by->low};
    law.scaling = (weft_rope_scaling)scaling;
    law.factor = scaling ? by->factor : 1;
    law.high = by->high;
    law.amplitude = by->amplitude != 0 ? by->amplitude : 1;
    bool bends = law.scaling == WEFT_ROPE_LLAMA3 || law.scaling == WEFT_ROPE_YARN;
    const char *wrong =
        !(law.base > 1) || !isfinite(law.base)                 ? "base must be above 1"
        : law.scaling != WEFT_ROPE_PLAIN && !(law.factor >= 1) ? "factor must be at least 1"
        : bends && !(law.context > 0)                          ? "context must be above 0"
        : bends && !(law.low > 0 && law.low < law.high)        ? "low and high: 0 < low < high"
        : !(law.amplitude > 0) ? "amplitude must be above 0, or 0 for 1"
                               : NULL;
    if (wrong) return weft_graph_refuse(g, "%s: %s", __func__, wrong);
    return weft_rope(g, x, width, heads, NULL, &law);
}

/* The engine's own form of the scores; false: the graph has the error. */
static bool read_scores(weft_graph *g, const char *caller, const weft_scores *s, weft_score *out) {
    static const char *const words[] = {"none", "alibi", "relative", NULL};
    if (!s || s->size != sizeof *s)
        return weft_graph_refuse(g, "%s: the scores are %s", caller,
                                 s ? "of another size; set size to sizeof(weft_scores)" : "NULL");
    weft_tensor *const given[] = {s->q,     s->k,    s->packed,  s->n,
                                  s->scale, s->beta, s->log_tau, s->rel};
    if (!owns_all(g, caller, given, (int)(sizeof given / sizeof *given))) return false;
    if (!s->packed == !(s->q && s->k))
        return weft_graph_refuse(g, "%s: the scores need q and k, or packed", caller);
    int position = find_word(g, caller, s->position ? s->position : "none", words);
    if (position < 0) return false;
    *out = (weft_score){.q = s->q,
                        .k = s->k,
                        .packed = s->packed,
                        .heads = s->heads,
                        .kv_heads = s->kv_heads,
                        .n = s->n,
                        .scale = s->scale,
                        .beta = s->beta,
                        .log_tau = s->log_tau,
                        .rel = s->rel,
                        .scale_value = s->scale_value,
                        .pos = (weft_attention_pos)position,
                        .causal = s->causal,
                        .band = s->window > 0,
                        .window = s->window,
                        .band_alpha = s->band};
    return true;
}

weft_tensor *weft_graph_attention(weft_graph *g, const weft_scores *scores, weft_tensor *v,
                                  weft_tensor **lse) {
    weft_score score;
    OPEN(v);
    if (!read_scores(g, __func__, scores, &score)) return NULL;
    weft_attended a = weft_attention(g, &score, v);
    if (lse) *lse = a.lse;
    return a.o;
}

weft_status weft_graph_route(weft_graph *g, const weft_scores *scores, weft_tensor *lse, int64_t k,
                             int normalize, int use_max, weft_tensor **index,
                             weft_tensor **weight) {
    weft_score score;
    API_NEED(g, index, weight);
    *index = *weight = NULL;
    if (!is_open(g, __func__) || !owns_all(g, __func__, &lse, 1) ||
        !read_scores(g, __func__, scores, &score))
        return g->owner ? weft_graph_status(g) : WEFT_EINPUT;
    weft_routes r = weft_route_topk(g, &score, lse, k, normalize, use_max);
    *index = r.index;
    *weight = r.weight;
    return weft_graph_status(g);
}

weft_tensor *weft_graph_gather_all(weft_graph *g, const weft_scores *scores, weft_tensor *lse,
                                   weft_tensor *h, double threshold, int normalize, int use_max) {
    weft_score score;
    weft_route_mode mode = threshold > 0 ? WEFT_ROUTE_RMS : WEFT_ROUTE_ALL;
    OPEN(lse, h);
    if (!read_scores(g, __func__, scores, &score)) return NULL;
    return weft_route_dense(g, &score, lse, h, mode, threshold, normalize, use_max);
}
