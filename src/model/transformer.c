/* The stack: embedding, layers of attention and feed-forward around the residual stream, final
 * norm, loss. Pre-norm fuses each residual sum with the norm that follows it, so the stream is
 * written once a branch. */
#include "model/transformer.h"

#include "core/program.h"
#include "model/builder.h"

static const double NORMAL_STD = 0.02;

bool weft_is_hidden(const char *part) {
    return strcmp(part, "attention") == 0 || strcmp(part, "feed-forward") == 0;
}

typedef struct {
    weft_tensor *weight, *bias;
} norm_parameters;

static norm_parameters make_norm(builder *b, const char *name) {
    char full[32];
    norm_parameters p = {0};
    b->part = "norm";
    snprintf(full, sizeof full, "%s.weight", name);
    p.weight = builder_vector(b, full, init_constant(1), b->width);
    if (b->c->norm == WEFT_NORM_LAYERNORM && b->c->bias) {
        snprintf(full, sizeof full, "%s.bias", name);
        p.bias = builder_vector(b, full, init_constant(0), b->width);
    }
    return p;
}

/* norm(x + branch), and the sum itself where asked for. */
static weft_tensor *apply_norm(builder *b, norm_parameters p, weft_tensor *x, weft_tensor *branch,
                               weft_tensor **sum) {
    weft_norm_kind kind = b->c->norm == WEFT_NORM_LAYERNORM ? WEFT_LAYERNORM : WEFT_RMSNORM;
    weft_normed n = weft_norm(b->g, x, branch, p.weight, p.bias, kind, b->c->norm_eps);
    if (sum) *sum = n.s;
    return n.y;
}

static weft_tensor *drop(builder *b, weft_tensor *x, const char *name) {
    if (!b->build->train || b->c->dropout <= 0) return x;
    char site[64];
    snprintf(site, sizeof site, "h.%d.%s.drop", b->layer, name);
    return weft_dropout(b->g, x, b->c->dropout, site);
}

/* Whether attention's projections have a bias: that of the output, or the others. */
static bool has_bias(const builder *b, bool output) {
    int asked = b->c->attention_bias;
    if (asked == WEFT_ATTENTION_BIAS_AUTO) return b->attention->biased && b->c->bias;
    return asked == WEFT_ATTENTION_BIAS_ALL || (asked == WEFT_ATTENTION_BIAS_QKV && !output);
}

weft_tensor *attention_bias(builder *b, const char *name, int64_t size) {
    return has_bias(b, false) ? builder_vector(b, name, init_constant(0), size) : NULL;
}

weft_tensor *ffn_bias(builder *b, const char *name, int64_t size) {
    const weft_ffn_kind *kind = b->ffn_kind;
    bool there = kind->biased ? b->c->bias : kind->may_be_biased && b->c->ffn_bias;
    return there ? builder_vector(b, name, init_constant(0), size) : NULL;
}

/* ATTENTION_GATE's logits [B, T, H] or [B, T, H D] from what attention reads; NULL: there is no gate. */
static weft_tensor *build_output_gate(builder *b, weft_tensor *x) {
    if (b->c->attention_gate == WEFT_ATTENTION_GATE_NONE) return NULL;
    int64_t rows = b->c->attention_gate == WEFT_ATTENTION_GATE_HEAD ? b->heads : b->inner;
    weft_tensor *w = matrix(b, "attn.out_gate.weight", init_normal(NORMAL_STD), rows, b->width);
    return weft_linear(b->g, x, w, NULL, WEFT_ACT_NONE);
}

/* o (1 − α + α σ(gate)), gate the layer's before; a learned α as o + α (o σ(gate) − o). */
static weft_tensor *mix_gate(builder *b, weft_tensor *o) {
    const weft_config *c = b->c;
    if (!c->alpha_learned) return weft_gate_mix(b->g, o, b->gate, c->gate_alpha);
    b->part = "reciprocal";
    weft_tensor *alpha = builder_vector(b, "attn.gate_alpha", init_constant(c->gate_alpha), 1);
    b->part = "attention";
    weft_tensor *change = weft_add_scaled(b->g, weft_gate_mix(b->g, o, b->gate, 1), o, -1);
    return weft_add(b->g, o, scale_learned(b, change, alpha));
}

/* One layer's branches, each [B, T, E] to [B, T, E]. */
static weft_tensor *build_attention(builder *b, weft_tensor *x) {
    const weft_config *c = b->c;
    int64_t first = weft_graph_node_count(b->g);
    b->score = (weft_score){.causal = c->causal, .softcap = c->softcap_attention};
    b->score.reach = weft_config_window(c, b->layer);
    b->score.first = b->documents.first;
    b->law = rope_law_of(c, b->layer);
    b->shares = b->layer % c->kv_share != 0;
    if (!b->shares) b->latent = b->latent_v = NULL;
    b->rho_q = b->rho_k = b->lse = NULL;
    b->distance = b->positioned = false;
    b->means = 0;
    b->routes = (weft_routes){0};
    b->part = "attention";
    if (b->out->moments) {
        weft_tensor *rows = weft_view(b->g, x, b->batch * b->time, b->width);
        b->out->moments[b->layer] = weft_keep(weft_gram(b->g, rows));
    }
    weft_tensor *o = b->attention->build(b, x), *own = build_output_gate(b, x);
    /* Keeps what this layer's raw scores are made from. */
    if (b->out->scores) {
        weft_layer_scores *to = &b->out->scores[b->layer];
        weft_score *s = &to->score;
        *to = (weft_layer_scores){.score = b->score, .distance = b->distance, .means = b->means};
        weft_tensor *const kept[] = {s->q, s->k, s->packed, s->n, s->scale, s->beta, s->first};
        for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
            weft_keep(kept[i]);
        s->heads = b->heads;
        s->kv_heads = s->k ? s->k->shape[2] : weft_config_kv_heads(b->c);
        to->dqk = s->q ? s->q->shape[3] : b->head_dim;
    }
    /* Keeps what this layer's mechanisms made; the feed-forward adds what it reads. */
    if (b->out->inside)
        b->out->inside[b->layer] = (weft_layer_inside){.gate = weft_keep(b->gate),
                                                       .latent = weft_keep(b->latent),
                                                       .latent_v = weft_keep(b->latent_v),
                                                       .rho_q = weft_keep(b->rho_q),
                                                       .rho_k = weft_keep(b->rho_k)};
    /* The gated outputs are cheap to make again, so only the ungated ones are stored. */
    bool again = (b->gate || own) && !b->build->recompute;
    bool by_head = c->attention_gate == WEFT_ATTENTION_GATE_HEAD;
    if (again) weft_graph_recompute_begin(b->g);
    if (b->gate) o = mix_gate(b, o);
    if (own && by_head) o = weft_gate_mix(b->g, o, own, 1);
    o = weft_view(b->g, o, b->batch, b->time, b->inner);
    if (own && !by_head) o = weft_sigmoid_mul(b->g, o, own);
    weft_tensor *w = matrix(b, "attn.out.weight", init_residual(b), b->width, b->inner);
    weft_tensor *bias = NULL;
    if (has_bias(b, true)) bias = builder_vector(b, "attn.out.bias", init_constant(0), b->width);
    o = weft_linear(b->g, o, w, bias, WEFT_ACT_NONE);
    if (again) weft_graph_recompute_end(b->g);
    b->out->attention_flops += flops_of(b->g, first, NULL);
    return drop(b, o, "attn");
}

static weft_tensor *build_ffn(builder *b, weft_tensor *x) {
    const weft_ffn_kind *kind = b->ffn_kind;
    char name[64];
    int64_t first = weft_graph_node_count(b->g);
    b->normed = x;
    if (b->out->inside) b->out->inside[b->layer].normed = weft_keep(x);
    b->part = "feed-forward";
    weft_tensor *hidden = kind->build(b, x);
    snprintf(name, sizeof name, "%s.weight", kind->out);
    weft_tensor *w = matrix(b, name, init_residual(b), b->width, b->ffn);
    snprintf(name, sizeof name, "%s.bias", kind->out);
    weft_tensor *bias = ffn_bias(b, name, b->width);
    int64_t second = weft_graph_node_count(b->g);
    weft_tensor *y = build_reciprocal(b, hidden, w, bias);
    double back = flops_of(b->g, second, NULL) - flops_of(b->g, second, w);
    b->out->reciprocal_flops += back;
    b->out->ffn_flops += flops_of(b->g, first, NULL) - back;
    return drop(b, y, "ffn");
}

/* *x is the residual stream, *branch what is still to be added to it (NULL: nothing), which pre-norm does in the
 * next norm. */
static void build_layer(builder *b, weft_tensor **x, weft_tensor **branch) {
    if (b->build->recompute) weft_graph_recompute_begin(b->g);
    norm_parameters first = make_norm(b, "ln_1"), second = make_norm(b, "ln_2");
    norm_parameters behind_first = {0}, behind_second = {0};
    bool both = b->c->norm_placement == WEFT_PLACEMENT_BOTH;
    if (both) behind_first = make_norm(b, "ln_1_post"), behind_second = make_norm(b, "ln_2_post");
    if (b->c->norm_placement == WEFT_PLACEMENT_POST) {
        *x = apply_norm(b, first, *x, build_attention(b, *x), NULL);
        *x = apply_norm(b, second, *x, build_ffn(b, *x), NULL);
    } else if (b->c->norm_placement == WEFT_PLACEMENT_REORDERED) {
        *x = add_optional(b, *x, *branch);
        *x = weft_add(b->g, *x, apply_norm(b, first, build_attention(b, *x), NULL, NULL));
        *branch = apply_norm(b, second, build_ffn(b, *x), NULL, NULL);
    } else {
        weft_tensor *y = apply_norm(b, first, *x, *branch, x);
        *branch = build_attention(b, y);
        if (both) {
            *branch = apply_norm(b, behind_first, *branch, NULL, NULL);
            y = apply_norm(b, second, *x, *branch, x);
            *branch = apply_norm(b, behind_second, build_ffn(b, y), NULL, NULL);
        } else if (b->c->parallel_residual) {
            y = apply_norm(b, second, *x, NULL, NULL);
            *branch = weft_add(b->g, *branch, build_ffn(b, y));
        } else {
            y = apply_norm(b, second, *x, *branch, x);
            *branch = build_ffn(b, y);
        }
    }
    if (b->build->recompute) weft_graph_recompute_end(b->g);
}

/* Cross-entropy and z-loss of logits that the head makes of x [B, T, E]. */
static weft_losses read_out(builder *b, weft_tensor *x, weft_tensor *head, double lambda_z) {
    weft_model_graph *m = b->out;
    weft_tensor *flat = weft_view(b->g, x, b->batch * b->time, b->width);
    weft_tensor *targets = weft_view(b->g, m->targets, b->batch * b->time);
    return weft_cross_entropy(b->g, flat, head, targets, m->count, lambda_z, b->c->logits_z_detach,
                              b->c->softcap_logits);
}

static void build_loss(builder *b, weft_tensor *x, weft_tensor *head) {
    weft_model_graph *m = b->out;
    weft_losses parts = read_out(b, x, head, b->c->lambda_logits_z);
    if (b->z_read) {
        weft_tensor *of_z = read_out(b, b->z_read, head, 0).ce;
        b->aux_z = add_optional(b, b->aux_z, weft_scale(b->g, of_z, b->c->wsffn_z_logits));
    }
    m->cross_entropy = weft_keep(parts.ce);
    m->logits_z = weft_keep(parts.z);
    m->aux_z = weft_keep(b->aux_z);
    m->aux_contrastive = weft_keep(b->aux_contrastive);
    weft_tensor *loss = weft_add(b->g, parts.ce, parts.z);
    loss = add_optional(b, loss, b->aux_z);
    loss = add_optional(b, loss, b->aux_contrastive);
    if (m->d_contexts) loss = weft_add(b->g, loss, weft_dot(b->g, m->contexts, m->d_contexts));
    m->loss = weft_keep(loss);
    if (!b->build->logits) return;
    x = weft_linear(b->g, x, head, NULL, WEFT_ACT_NONE);
    m->logits = weft_keep(apply_softcap(b, x, b->c->softcap_logits));
}

static void build_model(builder *b) {
    const weft_config *c = b->c;
    weft_model_graph *m = b->out;
    b->layer = -1;
    b->part = "embedding";
    if (b->attend->begin) b->attend->begin(b);
    m->tokens = weft_new_tensor(b->g, WEFT_ROLE_INPUT, "tokens", WEFT_I32, b->batch, b->time);
    if (!b->attend->finish)
        m->targets = weft_new_tensor(b->g, WEFT_ROLE_INPUT, "targets", WEFT_I32, b->batch, b->time);
    weft_tensor *wte = matrix(b, "wte.weight", init_normal(NORMAL_STD), c->vocab_size, b->width);
    weft_tensor *wpe = NULL;
    if (b->position->table)
        wpe = matrix(b, "wpe.weight", init_normal(NORMAL_STD), c->context, b->width);
    begin_reciprocal(b);
    /* The tokens' rows, and those of their places: in the sequence, or in their documents. */
    if (c->document_mask)
        b->documents = b->attend->documents(b, m->tokens, (int32_t)c->document_token);
    bool restart = wpe && c->document_mask && c->document_positions == WEFT_DOCUMENT_RESTART;
    weft_tensor *table = restart ? NULL : wpe;
    weft_tensor *x = weft_embed(b->g, wte, m->tokens, table, table ? b->start : NULL);
    if (restart) x = weft_add(b->g, x, weft_embed(b->g, wpe, b->documents.place, NULL, NULL));
    if (c->embed_scale != 1) x = weft_scale(b->g, x, c->embed_scale);
    weft_tensor *branch = NULL;
    for (b->layer = 0; b->layer < b->c->n_layer; b->layer++) {
        char scope[32];
        snprintf(scope, sizeof scope, "h.%d", b->layer);
        weft_graph_scope(b->g, scope);
        build_layer(b, &x, &branch);
    }
    b->layer = -1;
    weft_graph_scope(b->g, NULL);
    norm_parameters last = make_norm(b, "ln_f");
    if (b->z_read) b->z_read = apply_norm(b, last, b->z_read, NULL, NULL);
    x = apply_norm(b, last, x, branch, NULL);
    if (c->mup) x = weft_scale(b->g, x, 1 / weft_config_mup(c)); /* the logits' scale */
    if (b->ffn_kind->finish) b->ffn_kind->finish(b);
    b->part = "head";
    weft_tensor *head = wte;
    if (!c->weight_tying)
        head = matrix(b, "lm_head.weight", init_normal(NORMAL_STD), c->vocab_size, b->width);
    if (b->build->contrast == WEFT_CONTRAST_MEANS) return;
    if (b->attend->finish) {
        b->attend->finish(b, x, head);
        return;
    }
    if (b->build->counted)
        m->count = weft_graph_tensor(b->g, WEFT_ROLE_INPUT, "count", b->stat, 0, NULL);
    build_loss(b, x, head);
}

static builder builder_of(const weft_config *c, const weft_build *build, weft_model_graph *out) {
    return (builder){.g = out->graph,
                     .c = c,
                     .out = out,
                     .attention = weft_attention_of(c),
                     .ffn_kind = weft_ffn_of(c),
                     .position = weft_position_of(c),
                     .attend = build->attend ? build->attend : &weft_attend_whole,
                     .build = build,
                     .dtype = build->dtype,
                     .stat = build->dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32,
                     .batch = build->batch,
                     .time = build->time,
                     .width = c->n_embd,
                     .heads = c->n_head,
                     .head_dim = weft_config_head_dim(c),
                     .inner = c->n_head * weft_config_head_dim(c),
                     .ffn = weft_config_ffn_dim(c)};
}

weft_status weft_model_build(const weft_config *c, const weft_build *build, weft_model_graph *out) {
    *out = (weft_model_graph){0};
    WEFT_TRY(weft_model_check(c, "config"));
    if (build->time > c->context)
        return WEFT_BAD_INPUT("model: %lld tokens, but CONFIG_CONTEXT is %lld",
                              (long long)build->time, (long long)c->context);
    WEFT_TRY(weft_graph_create(&out->graph));
    size_t layers = (size_t)c->n_layer;
    weft_graph *g = out->graph; /* where there is no memory the graph has failed */
    if (build->scores) out->scores = weft_graph_alloc(g, layers * sizeof *out->scores);
    if (build->moments) out->moments = weft_graph_alloc(g, layers * sizeof *out->moments);
    if (build->inside) out->inside = weft_graph_alloc(g, layers * sizeof *out->inside);
    builder b = builder_of(c, build, out);
    build_model(&b);
    weft_status status = weft_graph_status(out->graph);
    if (status != WEFT_OK) weft_model_graph_destroy(out);
    return status;
}

weft_status weft_model_build_nominal(const weft_config *c, weft_model_graph *out) {
    weft_build build = {.batch = 1, .time = c->context, .train = true, .form = WEFT_FORM_DIRECT};
    build.dtype = weft_config_dtype(c);
    return weft_model_build(c, &build, out);
}

void weft_model_graph_destroy(weft_model_graph *m) {
    weft_graph_destroy(m->graph);
    free(m->parameters);
    *m = (weft_model_graph){0};
}

weft_status weft_model_program(const weft_config *c, const weft_build *build, bool grads,
                               const weft_backend *backend, int threads, int64_t memory_limit,
                               weft_model_graph *out, weft_plan **plan) {
    *plan = NULL;
    WEFT_TRY(weft_model_build(c, build, out));
    weft_program_options options = {.n_losses = grads,
                                    .losses = &out->loss,
                                    .outside = 1u << WEFT_ROLE_PARAM,
                                    .plan = {.memory_limit = memory_limit}};
    weft_status status = WEFT_OK;
    if (build->contrast == WEFT_CONTRAST_MEANS) status = weft_graph_drop_unused(out->graph);
    if (status == WEFT_OK) status = weft_program_make(out->graph, backend, threads, &options, plan);
    if (status != WEFT_OK) weft_model_graph_destroy(out);
    return status;
}

/* Parts. What a layer takes from the one before, and what attention hands to the feed-forward, are
 * inputs and outputs here; within a layer they are what they are in a model. */

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
#define input(p, name, dtype, ...) add_input((p), (name), (dtype), WEFT_DIMS(__VA_ARGS__))

static void add_output(part_builder *p, const char *name, weft_tensor *t) {
    if (t) p->out->outputs[p->out->n_outputs++] = (weft_part_tensor){name, t};
}

static bool routes_by_topk(const weft_config *c) {
    return c->cross_token && c->sparse_mode == WEFT_SPARSE_TOPK;
}

static void take_over(part_builder *p) {
    builder *b = &p->b;
    const weft_config *c = b->c;
    if (c->latent_recip)
        b->latent = input(p, "latent", b->dtype, b->batch, b->time, c->ra_mla_latent_dim);
    if (b->latent && c->latent_detach) b->latent->needs_grad = false;
    if (!routes_by_topk(c)) return;
    b->routes.index = input(p, "routes.index", WEFT_I32, b->batch, b->time, c->sparse_k);
    b->routes.weight = input(p, "routes.weight", b->stat, b->batch, b->time, c->sparse_k);
    if (b->routes.weight) b->routes.weight->needs_grad = false;
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
    else if (!p->form->first) {
        /* What the layer before sends to attention. */
        const weft_config *c = b->c;
        int64_t rows = c->gate_pool == WEFT_GATE_SEQUENCE ? 1 : b->time;
        if (c->attn_gate) b->gate = input(p, "gate", b->dtype, b->batch, rows, b->heads);
        if (c->latent_recip)
            b->received = input(p, "received", b->dtype, b->batch, b->time, c->ra_mla_latent_dim);
    }
    if (part == WEFT_PART_LAYER) {
        weft_tensor *branch = NULL;
        build_layer(b, &x, &branch);
        x = add_optional(b, x, branch);
    } else {
        if (b->build->recompute) weft_graph_recompute_begin(b->g);
        x = part == WEFT_PART_ATTENTION ? build_attention(b, x) : build_ffn(b, x);
        if (b->build->recompute) weft_graph_recompute_end(b->g);
    }
    add_output(p, "y", x);
    if (part == WEFT_PART_ATTENTION) {
        /* What it hands to a feed-forward that is built elsewhere. */
        if (b->c->latent_recip) add_output(p, "latent", b->latent);
        if (!routes_by_topk(b->c)) return;
        b->attend->route(b);
        add_output(p, "routes.index", b->routes.index);
        add_output(p, "routes.weight", b->routes.weight);
        return;
    }
    if (b->ffn_kind->finish) b->ffn_kind->finish(b);
    if (b->c->attn_gate) add_output(p, "gate", b->gate);
    if (b->c->latent_recip) add_output(p, "sent", b->received);
    bool one = p->form->one_loss;
    if (one) add_output(p, "aux", add_optional(b, b->aux_z, b->aux_contrastive));
    if (!one) add_output(p, "aux_z", b->aux_z);
    if (!one) add_output(p, "aux_contrastive", b->aux_contrastive);
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
        return WEFT_BAD_INPUT("block: %lld tokens, but CONTEXT is %lld", (long long)build->time,
                              (long long)one.context);
    const weft_mix mixes[] = {
        {one.document_mask,
         "{DOCUMENT_MASK} goes by tokens, which only a whole model has; set it to n"},
        {form->kind != WEFT_PART_LAYER && one.cross_token && !routes_by_topk(&one),
         "only a whole layer routes with RA_MLA_MLP_SPARSE_MODE other than topk"},
        {weft_ffn_of(&one)->contrasts && one.wsffn_z_logits > 0,
         "{WSFFN_Z_LOGITS} is a loss of the output layer, which only a whole model has; set it to "
         "0"},
        {one.kv_share > 1, "{KV_SHARE}, but a layer by itself has none before it whose keys it "
                           "could read; set it to 1"},
    };
    WEFT_TRY(WEFT_REFUSE(&one, "block", mixes));
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
