/* Weights for steps of one launch: read from the model, brought into one form by the attention's kind,
 * and packed, a task a layer. */
#include "model/step.h"

#include "model/builder.h"
#include "model/units.h"

/* What a step of one launch knows nothing of. */
static bool has_mechanism(const weft_config *c) {
    return c->attn_gate || c->cross_token || c->latent_recip || c->qk_norm || c->nope_every ||
           c->parallel_residual || c->ffn_bias || c->attention_gate != WEFT_ATTENTION_GATE_NONE ||
           c->window || c->document_mask || c->softcap_attention > 0 || c->softcap_logits > 0 ||
           c->rope_dim || c->kv_share > 1 || c->embed_scale != 1;
}

bool weft_step_form_of(const weft_config *c, weft_dtype cache_dtype, weft_step_form *form) {
    const weft_attention_kind *attention = weft_attention_of(c);
    const weft_position_kind *position = weft_position_of(c);
    const weft_ffn_kind *ffn = weft_ffn_of(c);
    *form = (weft_step_form){.layers = c->n_layer,
                             .width = c->n_embd,
                             .hidden = weft_config_ffn_dim(c),
                             .vocab = c->vocab_size,
                             .heads = c->n_head,
                             .kv_heads = c->n_head,
                             .rms = c->norm != WEFT_NORM_LAYERNORM,
                             .gated = ffn->gate != NULL,
                             .law = rope_law_of(c, 0)};
    form->eps = c->norm_eps > 0 ? c->norm_eps : form->rms ? 1e-6 : 1e-5;
    return cache_dtype == WEFT_BF16 && attention->step && (ffn->in || ffn->gate) &&
           !position->score && !has_mechanism(c) && !c->mup &&
           c->norm_placement == WEFT_PLACEMENT_PRE && c->causal && attention->step(c, form) &&
           (!position->rotate || form->rotated);
}

static const weft_weight *find(const weft_step_source *s, const char *name) {
    return s->layer < 0 ? weft_model_find(s->model, name)
                        : weft_layer_weight(s->model, s->layer, name);
}

int64_t weft_step_count(const weft_step_source *s, const char *name) {
    const weft_weight *w = find(s, name);
    return w ? w->count : 0;
}

weft_status weft_step_read(const weft_step_source *s, const char *name, float *out) {
    const weft_weight *w = find(s, name);
    if (!w) return weft_fail(WEFT_EBUG, "generate: no weight '%s'", name);
    weft_weight_floats(w, out);
    return WEFT_OK;
}

weft_status weft_step_read_optional(const weft_step_source *s, const char *name, float *out) {
    return find(s, name) ? weft_step_read(s, name, out) : WEFT_OK;
}

static weft_status no_memory(void) {
    return weft_fail(WEFT_ENOMEM, "generate: no memory for the weights of a step");
}

/* A vector that may not be there. */
static weft_status read_vector(const weft_step_source *s, const char *name, float **out) {
    int64_t count = weft_step_count(s, name);
    if (count == 0) return WEFT_OK;
    *out = calloc((size_t)count, sizeof **out);
    return *out ? weft_step_read(s, name, *out) : no_memory();
}

static weft_status pack(const float *w, int64_t columns, int64_t depth, weft_step_matrix *to) {
    to->columns = columns;
    to->depth = depth;
    to->weights = malloc((size_t)weft_step_packed(columns, depth) * sizeof *to->weights);
    if (!to->weights) return no_memory();
    weft_step_pack(w, columns, depth, to->weights);
    return WEFT_OK;
}

/* The norm NAME before a product w [columns, depth]: (x g + o) wᵀ = x (w diag(g))ᵀ + w o. */
static weft_status fold_norm(const weft_step_source *s, const char *name, int64_t columns,
                             int64_t depth, float *w, float **bias) {
    char full[64];
    WEFT_AUTO_FREE float *gain = NULL, *offset = NULL;
    snprintf(full, sizeof full, "%s.weight", name);
    WEFT_TRY(read_vector(s, full, &gain));
    snprintf(full, sizeof full, "%s.bias", name);
    WEFT_TRY(read_vector(s, full, &offset));
    if (offset && !*bias) *bias = calloc((size_t)columns, sizeof **bias);
    if (offset && !*bias) return no_memory();
    for (int64_t n = 0; n < columns; n++) {
        double sum = 0;
        for (int64_t k = 0; offset && k < depth; k++)
            sum += (double)w[n * depth + k] * (double)offset[k];
        if (offset) (*bias)[n] = (float)((double)(*bias)[n] + sum);
        for (int64_t k = 0; gain && k < depth; k++)
            w[n * depth + k] *= gain[k];
    }
    return WEFT_OK;
}

/* NAME.weight [columns, depth] and NAME.bias, behind a norm or not. */
static weft_status read_matrix(const weft_step_source *s, const char *name, const char *norm,
                               int64_t columns, int64_t depth, float *scratch,
                               weft_step_matrix *to) {
    char full[64];
    snprintf(full, sizeof full, "%s.weight", name);
    if (weft_step_count(s, full) != columns * depth)
        return weft_fail(WEFT_EBUG, "generate: '%s' is not as a step takes it", full);
    WEFT_TRY(weft_step_read(s, full, scratch));
    snprintf(full, sizeof full, "%s.bias", name);
    WEFT_TRY(read_vector(s, full, &to->bias));
    if (norm) WEFT_TRY(fold_norm(s, norm, columns, depth, scratch, &to->bias));
    return pack(scratch, columns, depth, to);
}

/* Rotated pairs beside each other: rows [dqk, width] of `heads` heads, and their biases. */
static weft_status pair_rows(const weft_step_form *f, int64_t heads, float *w, float *bias) {
    int64_t half = f->dqk / 2, row = f->width;
    WEFT_AUTO_FREE float *was = malloc((size_t)(f->dqk * (row + 1)) * sizeof *was);
    if (!was) return no_memory();
    for (int64_t h = 0; h < heads; h++, w += f->dqk * row, bias += f->dqk) {
        float *was_bias = was + f->dqk * row;
        memcpy(was, w, (size_t)(f->dqk * row) * sizeof *was);
        memcpy(was_bias, bias, (size_t)f->dqk * sizeof *was);
        for (int64_t n = 0; n < f->dqk; n++) {
            int64_t from = n / 2 + n % 2 * half;
            memcpy(w + n * row, was + from * row, (size_t)row * sizeof *was);
            bias[n] = was_bias[from];
        }
    }
    return WEFT_OK;
}

static weft_status read_attention(const weft_step_source *s, float *heads, float *out,
                                  weft_step_layer *to) {
    const weft_step_form *f = s->form;
    const weft_attention_kind *kind = weft_attention_of(&s->model->config);
    int64_t columns = f->heads * f->dqk + f->kv_heads * (f->dqk + (f->joint ? 0 : f->dv));
    to->scale = malloc((size_t)f->heads * sizeof *to->scale);
    if (f->gaussian) to->beta = malloc((size_t)f->heads * sizeof *to->beta);
    to->heads.bias = calloc((size_t)columns, sizeof *to->heads.bias);
    if (!to->scale || (f->gaussian && !to->beta) || !to->heads.bias) return no_memory();
    weft_step_maps maps = {heads, to->heads.bias, out, to->scale, to->beta};
    WEFT_TRY(kind->step_layer(s, &maps));
    if (f->rotated) WEFT_TRY(pair_rows(f, f->heads + f->kv_heads, heads, to->heads.bias));
    WEFT_TRY(fold_norm(s, "ln_1", columns, f->width, heads, &to->heads.bias));
    WEFT_TRY(pack(heads, columns, f->width, &to->heads));
    WEFT_TRY(pack(out, f->width, f->heads * f->dv, &to->out));
    return read_vector(s, "attn.out.bias", &to->out.bias);
}

/* Two matrices [hidden, width], a row of each in turn. */
static weft_status read_gated(const weft_step_source *s, const weft_ffn_kind *ffn, float *scratch,
                              weft_step_matrix *to) {
    const weft_step_form *f = s->form;
    const char *names[] = {ffn->gate, ffn->up};
    int64_t count = f->hidden * f->width;
    WEFT_AUTO_FREE float *one = malloc((size_t)count * sizeof *one);
    if (!one) return no_memory();
    for (int64_t i = 0; i < 2; i++) {
        char full[64];
        snprintf(full, sizeof full, "%s.weight", names[i]);
        if (weft_step_count(s, full) != count)
            return weft_fail(WEFT_EBUG, "generate: '%s' is not as a step takes it", full);
        WEFT_TRY(weft_step_read(s, full, one));
        for (int64_t n = 0; n < f->hidden; n++)
            memcpy(scratch + (2 * n + i) * f->width, one + n * f->width,
                   (size_t)f->width * sizeof *one);
    }
    WEFT_TRY(fold_norm(s, "ln_2", 2 * f->hidden, f->width, scratch, &to->bias));
    return pack(scratch, 2 * f->hidden, f->width, to);
}

static weft_status read_layer(const weft_step_source *s, float *scratch, float *out,
                              weft_step_layer *to) {
    const weft_step_form *f = s->form;
    const weft_ffn_kind *ffn = weft_ffn_of(&s->model->config);
    WEFT_TRY(read_attention(s, scratch, out, to));
    if (f->gated)
        WEFT_TRY(read_gated(s, ffn, scratch, &to->in));
    else
        WEFT_TRY(read_matrix(s, ffn->in, "ln_2", f->hidden, f->width, scratch, &to->in));
    return read_matrix(s, ffn->out, NULL, f->width, f->hidden, scratch, &to->back);
}

typedef struct {
    const weft_model *model;
    weft_step_model *out;
    weft_status *status; /* [layers + 1] */
} reading;

static weft_status read_part(const reading *r, int64_t task) {
    weft_step_model *out = r->out;
    const weft_step_form *f = &out->form;
    bool last = task == f->layers;
    weft_step_source s = {r->model, f, last ? -1 : task};
    int64_t heads = f->heads * f->dqk + f->kv_heads * (f->dqk + f->dv);
    int64_t columns = last ? f->vocab : heads;
    int64_t most = f->width * (columns > 2 * f->hidden ? columns : 2 * f->hidden);
    WEFT_AUTO_FREE float *scratch = malloc((size_t)most * sizeof *scratch);
    WEFT_AUTO_FREE float *found = malloc((size_t)(f->width * f->heads * f->dv) * sizeof *found);
    if (!scratch || !found) return no_memory();
    if (!last) return read_layer(&s, scratch, found, out->layer + task);
    const char *head = r->model->config.weight_tying ? "wte" : "lm_head";
    return read_matrix(&s, head, "ln_f", f->vocab, f->width, scratch, &out->head);
}

WEFT_TASK(read_task) {
    const reading *r = context;
    r->status[task] = read_part(r, task);
}

static weft_status read_all(const weft_model *m, weft_pool *pool, weft_step_model *out) {
    int64_t tasks = out->form.layers + 1;
    WEFT_AUTO_FREE weft_status *status = calloc((size_t)tasks, sizeof *status);
    reading r = {m, out, status};
    out->layer = calloc((size_t)out->form.layers, sizeof *out->layer);
    if (!status || !out->layer) return no_memory();
    weft_pool_run(pool, tasks, read_task, &r);
    for (int64_t i = 0; i < tasks; i++) {
        if (status[i] == WEFT_ENOMEM) return no_memory();
        if (status[i] != WEFT_OK)
            return weft_fail(status[i], "generate: the weights do not make a step");
    }
    return WEFT_OK;
}

weft_status weft_step_make(const weft_model *m, const weft_backend *backend, weft_pool *pool,
                           const weft_step_form *form, weft_step_model *out) {
    *out = (weft_step_model){.form = *form};
    const weft_weight *wte = weft_model_find(m, "wte.weight");
    const weft_weight *wpe = weft_model_find(m, "wpe.weight");
    WEFT_TRY(weft_mirror_place(m->mirror, backend));
    WEFT_TRY(weft_mirror_use(m->mirror, NULL));
    weft_status status = read_all(m, pool, out);
    if (status == WEFT_OK) status = weft_mirror_use(m->mirror, backend);
    if (status != WEFT_OK) {
        weft_step_model_free(out);
        return status;
    }
    out->table = weft_mirror_at(m->mirror, backend, wte->data);
    out->table_dtype = wte->dtype;
    if (!wpe) return WEFT_OK;
    out->place = weft_mirror_at(m->mirror, backend, wpe->data);
    out->place_dtype = wpe->dtype;
    return WEFT_OK;
}
