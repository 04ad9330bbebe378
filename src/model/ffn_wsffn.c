/* WsFFN's losses. A latent z = W_z h₁ of n heads gets a penalty on its size and a contrastive loss
 * on its means over time; it changes nothing else, and in evaluation it is not made at all.
 *
 * z need not exist either: h₁ = W_1 x, so with Q = W_z W_1 and S = Σ x xᵀ the penalty is
 * λ/N · ⟨Qᵀ Q, S⟩, at E² a token in place of F², and the means over time are Q · mean x. The shape
 * decides which form is built. A layer then makes no more than S and Σ_t x, which need its x;
 * everything else is small, and is made of all layers at once behind the last: a product of a batch
 * in place of a short one a layer. */
#include "model/builder.h"
#include "ops/arith.h"
#include "ops/heads.h"
#include "ops/linear.h"
#include "ops/loss.h"
#include "ops/time.h"

#include <math.h>
#include <stddef.h>

/* What a layer leaves for the losses of all layers. */
struct wsffn_layer {
    weft_tensor *w1, *w_z;
    weft_tensor *gram; /* S [E, E] */
    weft_tensor *sum;  /* of x over time, [B, E] */
};

static weft_tensor *make_z_projection(builder *b) {
    int64_t heads = b->c->wsffn_n_head, z = b->ffn / heads;
    b->part = "z-heads";
    weft_init init = {.start = WEFT_START_BLOCKS, .a = 1 / sqrt((double)z), .n = heads};
    if (b->c->wsffn_z_proj == WEFT_Z_DENSE)
        return matrix(b, "ffn.z_proj.weight", init, b->ffn, b->ffn);
    init.start = WEFT_START_UNIFORM;
    return matrix(b, "ffn.z_proj.weight", init, heads, z, z);
}

/* W_z h for rows h [M, F]. */
static weft_tensor *project(builder *b, weft_tensor *h, weft_tensor *w_z) {
    int64_t heads = b->c->wsffn_n_head, rows = weft_tensor_rows(h);
    if (b->c->wsffn_z_proj == WEFT_Z_DENSE) return weft_linear(b->g, h, w_z, NULL, WEFT_ACT_NONE);
    weft_tensor *grouped = weft_view(b->g, h, rows, heads, b->ffn / heads);
    return weft_grouped_linear(b->g, grouped, w_z, true);
}

/* One of the four tensors, of every layer, as one: [N, ...]. */
static weft_tensor *stack_layers(builder *b, size_t which) {
    int64_t n = b->c->n_layer;
    weft_tensor **parts = weft_graph_alloc(b->g, (size_t)n * sizeof *parts);
    if (!parts) return NULL;
    for (int64_t i = 0; i < n; i++)
        parts[i] = *(weft_tensor **)((char *)&b->wsffn[i] + which);
    return weft_stack(b->g, parts, n);
}
#define stack_of(b, name) stack_layers((b), offsetof(struct wsffn_layer, name))

/* Q = W_z W_1 of every layer: [N, F, E]. */
static weft_tensor *project_weights(builder *b) {
    int64_t n = b->c->n_layer, heads = b->c->wsffn_n_head, z = b->ffn / heads;
    weft_tensor *w1 = stack_of(b, w1), *w_z = stack_of(b, w_z);
    if (b->c->wsffn_z_proj == WEFT_Z_DENSE) return weft_batched_matmul(b->g, w_z, w1, false, false);
    w1 = weft_view(b->g, w1, n * heads, z, b->width);
    w_z = weft_view(b->g, w_z, n * heads, z, z);
    weft_tensor *q = weft_batched_matmul(b->g, w_z, w1, false, false);
    return weft_view(b->g, q, n, b->ffn, b->width);
}

/* Products of the two forms, forward and backward about alike: z for every token, against Q, S and
 * Q S. */
static bool cheap_form_pays(const builder *b) {
    if (b->form != WEFT_FORM_BY_SHAPE) return b->form == WEFT_FORM_CHEAP;
    double tokens = (double)(b->batch * b->time), f = (double)b->ffn, e = (double)b->width;
    double z = b->c->wsffn_z_proj == WEFT_Z_DENSE ? f : f / (double)b->c->wsffn_n_head;
    return f * z * e + tokens * e * e + f * e * e < tokens * f * z;
}

/* λ_z over the number of latents. */
static double penalty_factor(const builder *b) {
    return b->c->wsffn_lambda_z / (double)(b->batch * b->time * b->c->wsffn_n_head);
}

/* Contexts [..., B, F] as the rows that the contrastive loss compares. */
static weft_tensor *view_contexts(builder *b, weft_tensor *context, int64_t layers) {
    int64_t heads = b->c->wsffn_n_head;
    return weft_view(b->g, context, layers, b->batch * heads, b->ffn / heads);
}

static weft_tensor *contrast_contexts(builder *b, weft_tensor *rows) {
    return weft_infonce(b->g, rows, b->c->wsffn_tau, b->c->wsffn_lambda_c);
}

/* Contexts of all layers, [layers, B · n_head, z], that are compared elsewhere. */
static void hand_contexts(builder *b, weft_tensor *rows) {
    weft_model_graph *m = b->out;
    m->contexts = rows;
    if (b->contrast == WEFT_CONTRAST_MEANS)
        weft_keep(rows);
    else if (rows)
        m->d_contexts = weft_graph_tensor(b->g, WEFT_ROLE_INPUT, "d_contexts", rows->dtype,
                                          rows->ndim, rows->shape);
}

/* z itself. */
static void add_direct_losses(builder *b, weft_tensor *h1, weft_tensor *w_z) {
    int64_t first = weft_graph_node_count(b->g);
    weft_tensor *z = project(b, weft_view(b->g, h1, b->batch * b->time, b->ffn), w_z);
    weft_tensor *penalty = weft_sum_squares(b->g, z, penalty_factor(b));
    weft_tensor *mean = weft_view(b->g, weft_time_mean(b->g, h1), b->batch, b->ffn);
    weft_tensor *rows = view_contexts(b, project(b, mean, w_z), 1);
    b->aux_z = add_optional(b, b->aux_z, penalty);
    if (b->contrast == WEFT_CONTRAST_HERE)
        b->aux_contrastive = add_optional(b, b->aux_contrastive, contrast_contexts(b, rows));
    b->out->z_flops += flops_since(b, first, NULL);
    if (b->contrast == WEFT_CONTRAST_HERE) return;
    size_t room = (size_t)b->c->n_layer * sizeof(weft_tensor *);
    if (!b->contexts) b->contexts = weft_graph_alloc(b->g, room);
    if (b->contexts) b->contexts[b->layer] = rows;
}

static void add_losses(builder *b, weft_tensor *x, weft_tensor *h1, weft_tensor *w1) {
    weft_tensor *w_z = make_z_projection(b);
    if (!b->train || !b->c->wsffn_aux_loss) return;
    if (!cheap_form_pays(b)) {
        add_direct_losses(b, h1, w_z);
        return;
    }
    if (!b->wsffn) b->wsffn = weft_graph_alloc(b->g, (size_t)b->c->n_layer * sizeof *b->wsffn);
    if (!b->wsffn) return;
    weft_moments_of moments = weft_moments(b->g, x);
    b->wsffn[b->layer] = (struct wsffn_layer){
        .w1 = w1,
        .w_z = w_z,
        .gram = moments.gram,
        .sum = weft_view(b->g, moments.sum, b->batch, b->width),
    };
}

static void add_sums(builder *b) {
    int64_t heads = b->c->wsffn_n_head, layers = b->c->n_layer;
    if (b->contexts) {
        weft_tensor *all = weft_stack(b->g, b->contexts, layers);
        hand_contexts(b, weft_view(b->g, all, layers, b->batch * heads, b->ffn / heads));
    }
    if (!b->wsffn) return;
    weft_tensor *q = project_weights(b), *s = stack_of(b, gram), *sum = stack_of(b, sum);
    weft_tensor *penalty = weft_dot(b->g, weft_gram(b->g, q), s);
    b->aux_z = weft_scale(b->g, penalty, penalty_factor(b));
    weft_tensor *context = weft_batched_matmul(b->g, sum, q, false, true);
    context = weft_scale(b->g, context, 1 / (double)b->time);
    context = view_contexts(b, context, layers);
    if (b->contrast == WEFT_CONTRAST_HERE)
        b->aux_contrastive = contrast_contexts(b, context);
    else
        hand_contexts(b, context);
}

static weft_tensor *build_wsffn(builder *b, weft_tensor *x) {
    const char *part = b->part;
    gated_maps maps = build_gated_maps(b, x);
    add_losses(b, x, maps.h1, maps.w1);
    b->part = part;
    return build_gated_hidden(b, maps);
}

static weft_status check(const weft_config *c, const char *where) {
    long long f = weft_config_ffn_dim(c), heads = c->wsffn_n_head;
    if (f % heads == 0) return WEFT_OK;
    return weft_fail(WEFT_EINPUT,
                     "%s: the feed-forward's width %lld (CONFIG_N_FFN, or 4 x CONFIG_N_EMBD) does "
                     "not divide by CONFIG_WSFFN_N_HEAD=%lld",
                     where, f, heads);
}

static int64_t width_unit(const weft_config *c) {
    return c->wsffn_n_head;
}

static bool contrasts(const weft_config *c) {
    return c->wsffn_aux_loss && c->wsffn_lambda_c > 0;
}

const weft_ffn_kind weft_ffn_wsffn = {
    .build = build_wsffn,
    .finish = add_sums,
    .check = check,
    .unit = width_unit,
    .contrasts = contrasts,
    .out = "ffn.w2",
};
