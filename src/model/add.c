/* Mechanisms put into a finished model. Each of them ends in a map whose zeros leave everything as it was,
 * and whose gradient is not zero there, since what it reads is drawn or is the model's own:
 *
 *     cross-token    h + α W_c Σ R h              W_c = 0; of low rank the map up
 *     latent         h + α W_a c, c + α W_m u     both 0
 *     z-heads        losses in training           nothing to do
 *     gates          o σ(W x)                     W = 0: σ = ½, which the output projection makes good
 *
 * The reciprocal gate leaves 1 − α/2 of a head in every layer but the first, the output gate a half; with
 * GATE_OPEN its bias is there, and the first leaves 1 − α (1 − σ(b)). An α that is learned, of a mechanism that
 * is new or was there, begins as the config's. */
#include "model/kinds.h"
#include "model/units.h"

/* Tensors that mechanisms bring, after "h.I." or, of the whole model, as they are. */
static const struct {
    const char *name;
    bool zero;
} brought[] = {
    {"ffn.gate_proj.weight", false},  {"ffn.gate_heads.weight", true},
    {"ffn.cross_proj.weight", true},  {"ffn.cross_down.weight", false},
    {"ffn.cross_up.weight", true},    {"ffn.couple.weight", true},
    {"ffn.mlp_down.weight", false},   {"ffn.attn_to_mlp.weight", true},
    {"ffn.mlp_to_attn.weight", true}, {"couple.attn_to_mlp", true},
    {"couple.mlp_to_attn", true},     {"attn.out_gate.weight", true},
    {"ffn.z_proj.weight", false},     {"ffn.z_logits.weight", false},
    {"ffn.gate_heads.bias", false},   {"attn.gate_alpha", false},
    {"ffn.cross_alpha", false},       {"ffn.recip_alpha", false},
};

static weft_status refuse(const weft_weight *w, const char *what) {
    return WEFT_BAD_INPUT(
        "tensor '%s' %s; a gate, cross-token routing, a latent coupling, learned alphas, an output "
        "gate and wsffn in place of swiglu can be added, nothing else",
        w->name, what);
}

weft_status weft_model_add(const weft_model *m, const weft_config *c, uint64_t seed,
                           weft_pool *pool, weft_model **out) {
    WEFT_AUTO(weft_model_destroy_at) weft_model *made = NULL;
    *out = NULL;
    WEFT_TRY(weft_mirror_use(m->mirror, NULL));
    WEFT_TRY(weft_model_create(c, m->dtype, pool, &made));
    WEFT_TRY(weft_model_start(made, seed, pool));
    for (const weft_weight *w = m->weights; w < m->weights + m->n_weights; w++)
        if (!weft_model_find(made, w->name))
            return refuse(w, "of the checkpoint is not in the config's model");
    for (weft_weight *w = made->weights; w < made->weights + made->n_weights; w++) {
        const weft_weight *from = weft_model_find(m, w->name);
        if (!from) {
            const char *name = w->name;
            int64_t layer;
            int i = 0;
            weft_in_layer(w->name, &layer, &name);
            while (i < WEFT_COUNT(brought) && strcmp(name, brought[i].name) != 0)
                i++;
            if (i == WEFT_COUNT(brought)) return refuse(w, "is not in the checkpoint");
            if (brought[i].zero) memset(w->data, 0, (size_t)w->bytes);
        } else if (from->ndim != w->ndim || from->bytes != w->bytes ||
                   memcmp(from->shape, w->shape, (size_t)w->ndim * sizeof w->shape[0]) != 0) {
            return refuse(w, "has another shape in the checkpoint");
        } else {
            memcpy(w->data, from->data, (size_t)w->bytes);
        }
    }
    /* Makes good what new gates take from a layer's heads. */
    const weft_config *was = &m->config;
    for (int64_t layer = 0; layer < c->n_layer; layer++) {
        double factor = 1;
        if (c->attention_gate && !was->attention_gate) factor = 2;
        if (c->attn_gate && !was->attn_gate && layer > 0)
            factor /= 1 - c->gate_alpha / (1 + exp(c->gate_open));
        weft_weight *w = weft_layer_weight(made, layer, "attn.out.weight");
        if (w && factor != 1) weft_weight_scale(w, factor);
    }
    weft_mirror_wrote(made->mirror, NULL);
    return weft_hand(&made, out);
}

weft_status weft_model_load_more(const char *folder, const weft_config *c, weft_dtype dtype,
                                 weft_pool *pool, weft_model **out) {
    weft_config own;
    WEFT_AUTO(weft_model_destroy_at) weft_model *m = NULL;
    *out = NULL;
    /* Others' weights need no config beside them. */
    bool ours = weft_model_read_config(folder, &own) == WEFT_OK;
    /* A mechanism that the other has not, or that it does not learn the weights of. */
    bool more = ours && ((c->attn_gate && !own.attn_gate) || (c->cross_token && !own.cross_token) ||
                         (c->latent_recip && !own.latent_recip) ||
                         (c->attention_gate && !own.attention_gate) ||
                         (c->alpha_learned && !own.alpha_learned) ||
                         (weft_ffn_of(c)->contrasts && !weft_ffn_of(&own)->contrasts));
    if (!more) return weft_model_load_as(folder, c, dtype, pool, out);
    WEFT_TRY(weft_model_check(c, "config"));
    WEFT_TRY(weft_model_load_as(folder, &own, dtype, pool, &m));
    return weft_model_add(m, c, (uint64_t)c->seed, pool, out);
}
