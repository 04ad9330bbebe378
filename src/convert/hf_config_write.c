/* Our config as Hugging Face's config.json: which of their families has a model for it, if one has. */
#include "base/json.h"
#include "base/scope.h"
#include "convert/hf.h"
#include "convert/hf_likes.h"
#include "model/kinds.h"

#include <math.h>

/* Whether nothing is in it that no family has. */
static bool is_plain(const weft_config *c) {
    return c->causal && !c->mup && c->kv_share == 1 && !c->attention_gate && !c->document_mask &&
           !c->attn_gate && !c->cross_token;
}

/* Whether nothing is in it that only Gemma has. */
static bool is_unscaled(const weft_config *c) {
    return !(c->softcap_attention > 0) && !(c->softcap_logits > 0) && c->embed_scale == 1 &&
           !(c->attention_scale > 0);
}

/* Whether layers with a window have a law of angles of their own. */
static bool has_local_law(const weft_config *c) {
    return c->window && c->rope_local_theta > 0;
}

/* Gemma's query_pre_attn_scalar, which is a whole number; 0: there is none. */
static int64_t query_scalar(const weft_config *c) {
    if (!(c->attention_scale > 0)) return weft_config_head_dim(c);
    double scalar = 1 / (c->attention_scale * c->attention_scale), near = round(scalar);
    return fabs(scalar - near) <= 1e-9 * near ? (int64_t)near : 0;
}

/* What its three forms have beside the parts of Llama. */
static bool is_gemma(const weft_config *c, int like) {
    bool first = like == GEMMA, third = like == GEMMA3;
    double root = sqrt((double)c->n_embd);
    return fabs(c->embed_scale - root) <= 1e-12 * root && query_scalar(c) > 0 &&
           c->n_embd % c->n_head == 0 && c->rope_scaling != WEFT_ROPE_SCALING_LONGROPE &&
           c->norm_placement == (first ? WEFT_PLACEMENT_PRE : WEFT_PLACEMENT_BOTH) &&
           (like == GEMMA2 || !(c->softcap_attention > 0)) &&
           (!first || (!(c->softcap_logits > 0) && !(c->attention_scale > 0) && !c->window)) &&
           (!c->window || third == has_local_law(c));
}

/* GPT-2's and GPT-NeoX's blocks have the same parts, in another order. */
static bool is_gpt2(const weft_config *c, bool neox) {
    return c->attention == WEFT_ATTENTION_DOT && !c->window && is_unscaled(c) &&
           c->norm_placement == WEFT_PLACEMENT_PRE && c->norm == WEFT_NORM_LAYERNORM && c->bias &&
           (c->ffn == WEFT_FFN_GELU || (neox && c->ffn == WEFT_FFN_GELU_ERF)) &&
           (neox || !c->parallel_residual) && !c->nope_every && !c->qk_norm &&
           weft_hf_attention_bias(c) == WEFT_ATTENTION_BIAS_ALL &&
           weft_config_kv_heads(c) == c->n_head && c->n_head * weft_config_head_dim(c) == c->n_embd;
}

/* Which of the likes has all of it. */
static int choose_like(const weft_config *c) {
    bool qkv = weft_hf_attention_bias(c) == WEFT_ATTENTION_BIAS_QKV;
    if (c->attention == WEFT_ATTENTION_MLA) return DEEPSEEK;
    if (c->ffn == WEFT_FFN_GEGLU)
        return c->norm_placement == WEFT_PLACEMENT_PRE ? GEMMA : c->qk_norm ? GEMMA3 : GEMMA2;
    if (c->norm_placement == WEFT_PLACEMENT_REORDERED) return c->window ? OLMO3 : OLMO2;
    if (c->rope_dim || c->rope_scaling == WEFT_ROPE_SCALING_LONGROPE) return PHI3;
    if (c->window) return MISTRAL;
    return c->nope_every ? SMOLLM3 : c->qk_norm ? QWEN3 : qkv ? QWEN2 : LLAMA;
}

/* DeepSeek's form of MLA. Its latent is always normed: where ours is not, the weights are written so that its
 * norm changes nothing, which takes the usual epsilon (hf_pieces.c). */
static bool is_deepseek(const weft_config *c) {
    bool usual = !(c->norm_eps > 0) || c->norm_eps == 1e-6;
    return c->ra_mla_rope_dim && c->ra_mla_joint_kv && c->ra_mla_latent_heads == 1 &&
           c->ra_mla_per_head_q_latent && c->ra_mla_per_head_v_up &&
           c->ra_mla_score == WEFT_SCORE_DOT && !(c->ra_mla_ra_alpha > 0) && !c->latent_recip &&
           (c->position == WEFT_POSITION_NONE || c->position == WEFT_POSITION_ROPE) &&
           weft_hf_attention_bias(c) == WEFT_ATTENTION_BIAS_NONE &&
           (c->ra_mla_latent_norm || usual);
}

static bool is_like_llama(const weft_config *c) {
    int like = choose_like(c);
    int bias = weft_hf_attention_bias(c);
    bool dot = c->attention == WEFT_ATTENTION_DOT && c->position == WEFT_POSITION_ROPE;
    bool gemma = weft_hf_likes[like].gemma, by_layer = weft_hf_likes[like].full_every > 0;
    bool is_long = c->rope_scaling == WEFT_ROPE_SCALING_LONGROPE;
    return (like == DEEPSEEK ? is_deepseek(c) : dot) &&
           (gemma ? is_gemma(c, like)
                  : c->ffn == WEFT_FFN_SWIGLU && is_unscaled(c) &&
                        c->norm_placement != WEFT_PLACEMENT_BOTH) &&
           !c->parallel_residual && c->norm == WEFT_NORM_RMSNORM &&
           c->norm_placement != WEFT_PLACEMENT_POST && c->qk_norm == weft_hf_likes[like].qk_norm &&
           (!c->nope_every || like == SMOLLM3) &&
           (bias != WEFT_ATTENTION_BIAS_QKV || like == QWEN2) &&
           (bias != WEFT_ATTENTION_BIAS_ALL || (like != PHI3 && like != MISTRAL)) &&
           (!c->ffn_bias || like == LLAMA || like == SMOLLM3) && (by_layer || !c->window_every) &&
           (!c->window || like == MISTRAL || like == PHI3 || by_layer) &&
           (!has_local_law(c) || weft_hf_likes[like].local_theta > 0) &&
           (like != OLMO3 || has_local_law(c) || c->rope_scaling == WEFT_ROPE_SCALING_NONE) &&
           (!c->rope_dim || like == PHI3) &&
           (is_long || like != PHI3 || c->rope_scaling == WEFT_ROPE_SCALING_NONE) &&
           (like == PHI3 ? c->n_head * weft_config_head_dim(c) == c->n_embd : !is_long) &&
           (!c->qk_norm || (c->qk_norm_whole == weft_hf_likes[like].reordered &&
                            (!(c->norm_eps > 0) || c->norm_eps == 1e-6)));
}

static json_t *list_factors(const char *text) {
    json_t *list = json_array();
    for (char *end; *text; text = *end ? end + 1 : end)
        json_array_append_new(list, json_real(strtod(text, &end)));
    return list;
}

static json_t *write_rope(const weft_config *c) {
    const char *word = weft_config_word(c, WEFT_OPTION(rope_scaling));
    bool yarn = c->rope_scaling == WEFT_ROPE_SCALING_YARN;
    if (c->rope_scaling == WEFT_ROPE_SCALING_NONE) return json_null();
    json_t *rope = json_pack("{s:s, s:f}", "rope_type", word, "factor", c->rope_factor);
    if (c->rope_scaling == WEFT_ROPE_SCALING_LONGROPE) {
        json_object_set_new(rope, "short_factor", list_factors(c->rope_short_factors));
        json_object_set_new(rope, "long_factor", list_factors(c->rope_long_factors));
        if (c->rope_amplitude > 0)
            json_object_set_new(rope, "attention_factor", json_real(c->rope_amplitude));
        return rope;
    }
    if (c->rope_scaling == WEFT_ROPE_SCALING_LINEAR) return rope;
    json_object_set_new(rope, "original_max_position_embeddings", json_integer(c->rope_context));
    json_object_set_new(rope, yarn ? "beta_slow" : "low_freq_factor", json_real(c->rope_low));
    json_object_set_new(rope, yarn ? "beta_fast" : "high_freq_factor", json_real(c->rope_high));
    if (yarn && c->rope_amplitude > 0)
        json_object_set_new(rope, "attention_factor", json_real(c->rope_amplitude));
    return rope;
}

static json_t *write_gpt2(const weft_config *c) {
    return json_pack("{s:[s], s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f}",
                     "architectures", "GPT2LMHeadModel", "model_type", "gpt2",
                     "activation_function", "gelu_new", "n_embd", (json_int_t)c->n_embd, "n_head",
                     (json_int_t)c->n_head, "n_layer", (json_int_t)c->n_layer, "n_inner",
                     (json_int_t)weft_config_ffn_dim(c), "n_positions", (json_int_t)c->context,
                     "layer_norm_epsilon", c->norm_eps > 0 ? c->norm_eps : 1e-5, "resid_pdrop",
                     c->dropout, "embd_pdrop", 0.0, "attn_pdrop", 0.0);
}

/* The share of a head's columns that is rotated. */
static double rotated_share(const weft_config *c) {
    return c->rope_dim ? (double)c->rope_dim / (double)weft_config_head_dim(c) : 1;
}

static json_t *write_neox(const weft_config *c) {
    return json_pack("{s:[s], s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:b, s:o}",
                     "architectures", "GPTNeoXForCausalLM", "model_type", "gpt_neox", "hidden_act",
                     c->ffn == WEFT_FFN_GELU ? "gelu_new" : "gelu", "hidden_size",
                     (json_int_t)c->n_embd, "num_attention_heads", (json_int_t)c->n_head,
                     "num_hidden_layers", (json_int_t)c->n_layer, "intermediate_size",
                     (json_int_t)weft_config_ffn_dim(c), "max_position_embeddings",
                     (json_int_t)c->context, "layer_norm_eps", c->norm_eps > 0 ? c->norm_eps : 1e-5,
                     "rotary_pct", rotated_share(c), "rotary_emb_base", c->rope_theta,
                     "use_parallel_residual", c->parallel_residual, "rope_scaling", write_rope(c));
}

/* No layer is one of experts. */
static void write_deepseek(const weft_config *c, json_t *root) {
    json_t *more =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:I, s:i, s:I}", "head_dim",
                  (json_int_t)c->ra_mla_rope_dim, "kv_lora_rank", (json_int_t)c->ra_mla_latent_dim,
                  "qk_nope_head_dim", (json_int_t)weft_config_head_dim(c), "qk_rope_head_dim",
                  (json_int_t)c->ra_mla_rope_dim, "v_head_dim", (json_int_t)weft_config_head_dim(c),
                  "rope_interleave", 1, "first_k_dense_replace", (json_int_t)c->n_layer,
                  "num_key_value_heads", (json_int_t)c->n_head, "num_nextn_predict_layers", 0,
                  "moe_intermediate_size", (json_int_t)weft_config_ffn_dim(c));
    json_object_set_new(root, "q_lora_rank",
                        c->ra_mla_q_rank ? json_integer(c->ra_mla_q_rank) : json_null());
    json_object_update(root, more);
    json_decref(more);
}

static json_t *number_or_null(double number) {
    return number > 0 ? json_real(number) : json_null();
}

static void write_windows(const weft_config *c, json_t *root) {
    json_t *kinds = json_array();
    for (int64_t i = 0; i < c->n_layer; i++)
        json_array_append_new(
            kinds, json_string(weft_config_window(c, i) ? "sliding_attention" : "full_attention"));
    json_object_set_new(root, "layer_types", kinds);
    json_object_set_new(root, "sliding_window", json_integer(c->window ? c->window : c->context));
}

/* OLMo 3's rotations: of layers without a window, and of those with one. */
static void write_both_laws(const weft_config *c, json_t *root) {
    json_t *full = c->rope_scaling == WEFT_ROPE_SCALING_NONE
                       ? json_pack("{s:s}", "rope_type", "default")
                       : write_rope(c);
    double local = has_local_law(c) ? c->rope_local_theta : c->rope_theta;
    json_object_set_new(full, "rope_theta", json_real(c->rope_theta));
    json_object_del(root, "rope_scaling");
    json_object_set_new(root, "rope_parameters",
                        json_pack("{s:o, s:{s:s, s:f}}", "full_attention", full,
                                  "sliding_attention", "rope_type", "default", "rope_theta",
                                  local));
}

static void write_gemma(const weft_config *c, int number, json_t *root) {
    json_object_set_new(root, "hidden_act", json_string("gelu_pytorch_tanh"));
    json_object_set_new(root, "hidden_activation", json_string("gelu_pytorch_tanh"));
    if (number == GEMMA) return;
    write_windows(c, root);
    json_object_set_new(root, "query_pre_attn_scalar", json_integer(query_scalar(c)));
    json_object_set_new(root, "attn_logit_softcapping", number_or_null(c->softcap_attention));
    json_object_set_new(root, "final_logit_softcapping", number_or_null(c->softcap_logits));
    if (number == GEMMA3 && c->window)
        json_object_set_new(root, "rope_local_base_freq", json_real(c->rope_local_theta));
}

static json_t *write_llama(const weft_config *c) {
    int number = choose_like(c);
    const llama_like *like = &weft_hf_likes[number];
    json_t *root = json_pack(
        "{s:[s], s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:o}", "architectures",
        like->architecture, "model_type", like->type, "hidden_act", "silu", "hidden_size",
        (json_int_t)c->n_embd, "num_attention_heads", (json_int_t)c->n_head, "head_dim",
        (json_int_t)weft_config_head_dim(c), "num_hidden_layers", (json_int_t)c->n_layer,
        "intermediate_size", (json_int_t)weft_config_ffn_dim(c), "num_key_value_heads",
        (json_int_t)weft_config_kv_heads(c), "max_position_embeddings", (json_int_t)c->context,
        "rms_norm_eps", c->norm_eps > 0 ? c->norm_eps : 1e-6, "rope_theta", c->rope_theta,
        "rope_scaling", write_rope(c));
    bool all = weft_hf_attention_bias(c) == WEFT_ATTENTION_BIAS_ALL;
    if (number != QWEN2 && number != PHI3 && number != MISTRAL)
        json_object_set_new(root, "attention_bias", json_boolean(all));
    if (c->ffn_bias) json_object_set_new(root, "mlp_bias", json_true());
    if (c->nope_every)
        json_object_set_new(root, "no_rope_layer_interval", json_integer(c->nope_every));
    if (number == MISTRAL || number == PHI3)
        json_object_set_new(root, "sliding_window",
                            c->window ? json_integer(c->window) : json_null());
    if (number == PHI3)
        json_object_set_new(root, "partial_rotary_factor", json_real(rotated_share(c)));
    if (c->rope_scaling == WEFT_ROPE_SCALING_LONGROPE)
        json_object_set_new(root, "original_max_position_embeddings",
                            json_integer(c->rope_context));
    if (number == DEEPSEEK) write_deepseek(c, root);
    if (like->gemma) write_gemma(c, number, root);
    if (number == OLMO3) write_windows(c, root);
    if (number == OLMO3) write_both_laws(c, root);
    return root;
}

int weft_hf_attention_bias(const weft_config *c) {
    if (c->attention_bias != WEFT_ATTENTION_BIAS_AUTO) return c->attention_bias;
    return c->bias && weft_attention_of(c)->biased ? WEFT_ATTENTION_BIAS_ALL
                                                   : WEFT_ATTENTION_BIAS_NONE;
}

/* As they were where the tokenizer came from, or else the token that ends a text. */
static void write_specials(const weft_tokenizer *t, json_t *root) {
    static const char *const keys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    const char *text = t ? weft_tokenizer_generation(t) : NULL;
    json_error_t error;
    WEFT_AUTO_DECREF json_t *was = text ? weft_json_read(text, strlen(text), 0, &error) : NULL;
    int32_t end = t && !was ? weft_tokenizer_end(t) : -1;
    for (int i = 0; i < 3; i++) {
        json_t *value = json_object_get(was, keys[i]);
        if (value)
            json_object_set(root, keys[i], value);
        else
            json_object_set_new(root, keys[i], end >= 0 && i < 2 ? json_integer(end) : json_null());
    }
}

weft_status weft_hf_config_write(const weft_config *c, const weft_tokenizer *t,
                                 weft_hf_family *family, json_t **out) {
    *out = NULL;
    bool neox = c->position == WEFT_POSITION_ROPE && c->norm == WEFT_NORM_LAYERNORM;
    bool gpt2 = c->position == WEFT_POSITION_LEARNED;
    int like = choose_like(c);
    *family = gpt2                        ? WEFT_HF_GPT2
              : neox                      ? WEFT_HF_NEOX
              : like == DEEPSEEK          ? WEFT_HF_LLAMA_PAIRS
              : like == PHI3              ? WEFT_HF_PHI3
              : weft_hf_likes[like].gemma ? WEFT_HF_GEMMA
                                          : WEFT_HF_LLAMA;
    if (!is_plain(c) || !(gpt2 || neox ? is_gpt2(c, neox) : is_like_llama(c))) {
        *family = WEFT_HF_OWN;
        WEFT_TRY(weft_hf_own_config(c, out));
        write_specials(t, *out);
        return WEFT_OK;
    }
    json_t *root = gpt2 ? write_gpt2(c) : neox ? write_neox(c) : write_llama(c);
    if (!root) return weft_fail(WEFT_ENOMEM, "convert: no memory for config.json");
    json_object_set_new(root, "vocab_size", json_integer(c->vocab_size));
    json_object_set_new(root, "tie_word_embeddings", json_boolean(c->weight_tying));
    write_specials(t, root);
    *out = root;
    return WEFT_OK;
}
