/* WsFFN's losses. A latent z = W_z h₁ of n heads gets a penalty on its size and a contrastive loss
 * on its means over time; it changes nothing else, and in evaluation it is not made at all.
 *
 * z need not exist either: h₁ = W_1 x, so with Q = W_z W_1 and S = Σ x xᵀ the penalty is
 * λ/N · tr(Qᵀ Q S), at E² a token in place of F², and the means over time are Q · mean x. The shape
 * decides which form is built. */
#include "model/builder.h"
#include "ops/arith.h"
#include "ops/contrastive.h"
#include "ops/linear.h"
#include "ops/time.h"

#include <math.h>

static weft_tensor *make_z_projection(builder *b) {
    int64_t heads = b->c->wsffn_n_head, z = b->ffn / heads;
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

/* Q = W_z W_1: [F, E]. */
static weft_tensor *project_weights(builder *b, weft_tensor *w1, weft_tensor *w_z) {
    int64_t heads = b->c->wsffn_n_head, z = b->ffn / heads;
    if (b->c->wsffn_z_proj == WEFT_Z_DENSE) return weft_matmul(b->g, w_z, w1, false, false);
    weft_tensor *blocks = weft_view(b->g, w1, heads, z, b->width);
    weft_tensor *q = weft_batched_matmul(b->g, w_z, blocks, false, false);
    return weft_view(b->g, q, b->ffn, b->width);
}

/* Products of the two forms, forward and backward about alike: z for every token, against Q, S and
 * Q S. */
static bool cheap_form_pays(const builder *b) {
    if (b->form != WEFT_FORM_BY_SHAPE) return b->form == WEFT_FORM_CHEAP;
    double tokens = (double)(b->batch * b->time), f = (double)b->ffn, e = (double)b->width;
    double z = b->c->wsffn_z_proj == WEFT_Z_DENSE ? f : f / (double)b->c->wsffn_n_head;
    return f * z * e + tokens * e * e + f * e * e < tokens * f * z;
}

void build_wsffn_losses(builder *b, weft_tensor *x, weft_tensor *h1, weft_tensor *w1) {
    const weft_config *c = b->c;
    weft_tensor *w_z = make_z_projection(b);
    if (!b->train || !c->wsffn_aux_loss) return;
    int64_t tokens = b->batch * b->time, heads = c->wsffn_n_head;
    double factor = c->wsffn_lambda_z / (double)(tokens * heads);
    weft_tensor *flat = weft_view(b->g, x, tokens, b->width);
    weft_tensor *penalty, *context;
    if (cheap_form_pays(b)) {
        weft_tensor *q = project_weights(b, w1, w_z);
        weft_tensor *s = weft_matmul(b->g, flat, flat, true, false);
        weft_tensor *qs = weft_matmul(b->g, q, s, false, false);
        penalty = weft_scale(b->g, weft_dot(b->g, q, qs), factor);
        weft_tensor *mean = weft_view(b->g, weft_time_mean(b->g, x), b->batch, b->width);
        context = weft_linear(b->g, mean, q, NULL, WEFT_ACT_NONE);
    } else {
        weft_tensor *z = project(b, weft_view(b->g, h1, tokens, b->ffn), w_z);
        penalty = weft_sum_squares(b->g, z, factor);
        weft_tensor *mean = weft_view(b->g, weft_time_mean(b->g, h1), b->batch, b->ffn);
        context = project(b, mean, w_z);
    }
    context = weft_view(b->g, context, b->batch * heads, b->ffn / heads);
    weft_tensor *contrast = weft_infonce(b->g, context, c->wsffn_tau, c->wsffn_lambda_c);
    b->aux_z = add_optional(b, b->aux_z, penalty);
    b->aux_contrastive = add_optional(b, b->aux_contrastive, contrast);
}
