/* Parts. What a layer takes from the one before, and what attention hands to the feed-forward, are
 * inputs and outputs here; within a layer they are what they are in a model. */
#include "model/part.h"

#include "model/builder.h"
#include "ops/arith.h"

#include <stdlib.h>

typedef struct {
    builder b;
    weft_model_part *out;
    const weft_part_form *form;
} part_builder;

static weft_tensor *add_input(part_builder *p, const char *name, weft_dtype dtype, int ndim,
                              const int64_t *shape) {
    weft_tensor *t = weft_graph_tensor(p->b.g, WEFT_ROLE_INPUT, name, dtype, ndim, shape);
    if (!t) return NULL;
    t->needs_grad = p->form->gradient && dtype == p->b.dtype;
    p->out->inputs[p->out->n_inputs++] = (weft_part_tensor){name, t};
    return t;
}
#define input(p, name, dtype, ...)                                                                 \
    add_input((p), (name), (dtype), (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),     \
              (int64_t[]){__VA_ARGS__})

static void add_output(part_builder *p, const char *name, weft_tensor *t) {
    if (t) p->out->outputs[p->out->n_outputs++] = (weft_part_tensor){name, t};
}

static bool routes_by_topk(const weft_config *c) {
    return c->cross_token && c->sparse_mode == WEFT_SPARSE_TOPK;
}

/* Routes that come from an attention elsewhere: they are in the builder from the start. */
static void keep_routes(builder *b) {
    (void)b;
}

static void gather_given(builder *b, weft_tensor **x, weft_tensor **second) {
    weft_attend_whole.gather(b, x, second);
}

static weft_tensor *mean_given(builder *b, weft_tensor *x) {
    return weft_attend_whole.running_mean(b, x);
}

static const weft_attend attend_given = {
    .route = keep_routes,
    .gather = gather_given,
    .running_mean = mean_given,
};

/* What the layer before sends to attention. */
static void receive(part_builder *p) {
    builder *b = &p->b;
    const weft_config *c = b->c;
    int64_t rows = c->gate_pool == WEFT_GATE_SEQUENCE ? 1 : b->time;
    if (c->attn_gate) b->gate = input(p, "gate", b->dtype, b->batch, rows, b->heads);
    if (c->latent_recip)
        b->received = input(p, "received", b->dtype, b->batch, b->time, c->ra_mla_latent_dim);
}

/* What attention hands to a feed-forward that is built elsewhere. */
static void hand_over(part_builder *p) {
    builder *b = &p->b;
    if (b->c->latent_recip) add_output(p, "latent", b->latent);
    if (!routes_by_topk(b->c)) return;
    builder_route(b);
    add_output(p, "routes.index", b->routes.index);
    add_output(p, "routes.weight", b->routes.weight);
}

static void take_over(part_builder *p) {
    builder *b = &p->b;
    const weft_config *c = b->c;
    if (c->latent_recip)
        b->latent = input(p, "latent", b->dtype, b->batch, b->time, c->ra_mla_latent_dim);
    if (!routes_by_topk(c)) return;
    b->attend = &attend_given;
    b->routes.index = input(p, "routes.index", WEFT_I32, b->batch, b->time, c->sparse_k);
    b->routes.weight = input(p, "routes.weight", b->stat, b->batch, b->time, c->sparse_k);
    if (b->routes.weight) b->routes.weight->needs_grad = false;
}

static weft_tensor *build_one(part_builder *p, weft_part_kind part, weft_tensor *x) {
    builder *b = &p->b;
    if (part == WEFT_PART_LAYER) {
        weft_tensor *branch = NULL;
        build_layer(b, &x, &branch);
        return add_optional(b, x, branch);
    }
    if (b->recompute) weft_graph_recompute_begin(b->g);
    weft_tensor *y = part == WEFT_PART_ATTENTION ? build_attention(b, x) : build_ffn(b, x);
    if (b->recompute) weft_graph_recompute_end(b->g);
    return y;
}

static void add_losses(part_builder *p) {
    builder *b = &p->b;
    if (p->form->one_loss) {
        add_output(p, "aux", add_optional(b, b->aux_z, b->aux_contrastive));
        return;
    }
    add_output(p, "aux_z", b->aux_z);
    add_output(p, "aux_contrastive", b->aux_contrastive);
}

static void build_part(part_builder *p) {
    builder *b = &p->b;
    weft_part_kind part = p->form->kind;
    weft_tensor *x = input(p, "x", b->dtype, b->batch, b->time, b->width);
    b->layer = -1;
    if (part != WEFT_PART_ATTENTION) begin_reciprocal(b);
    b->layer = 0;
    if (part == WEFT_PART_FFN)
        take_over(p);
    else if (!p->form->first)
        receive(p);
    add_output(p, "y", build_one(p, part, x));
    if (part == WEFT_PART_ATTENTION) {
        hand_over(p);
        return;
    }
    if (b->ffn_kind->finish) b->ffn_kind->finish(b);
    if (b->c->attn_gate) add_output(p, "gate", b->gate);
    if (b->c->latent_recip) add_output(p, "sent", b->received);
    add_losses(p);
}

weft_status weft_model_build_part(const weft_config *c, const weft_build *build,
                                  const weft_part_form *form, weft_graph *g, weft_model_part *out) {
    *out = (weft_model_part){.model = {.graph = g}};
    weft_config one = *c;
    one.n_layer = 1; /* losses over all layers are of this one */
    /* A layer has no table of positions, but may have biases for so many distances. */
    const weft_position_kind *position = weft_position_of(&one);
    bool ends = position->ends && position->score;
    if (build->time > one.context && !ends) one.context = build->time;
    WEFT_TRY(weft_model_check(&one, "block"));
    if (build->time > one.context)
        return weft_fail(WEFT_EINPUT, "block: %lld tokens, but CONTEXT is %lld",
                         (long long)build->time, (long long)one.context);
    if (form->kind != WEFT_PART_LAYER && one.cross_token && !routes_by_topk(&one))
        return weft_fail(WEFT_EINPUT, "block: only a whole layer routes with "
                                      "RA_MLA_MLP_SPARSE_MODE other than topk");
    part_builder p = {.b = builder_of(&one, build, &out->model), .out = out, .form = form};
    build_part(&p);
    weft_status status = weft_graph_status(g);
    if (status != WEFT_OK) weft_model_part_free(out);
    return status;
}

void weft_model_part_free(weft_model_part *part) {
    free(part->model.parameters);
    *part = (weft_model_part){0};
}
