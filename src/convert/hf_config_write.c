/* Our config as Hugging Face's config.json: which of their families has a model for it, if one has. */
#include "base/json.h"
#include "convert/hf.h"
#include "model/kinds.h"

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
    return c->ffn == WEFT_FFN_GEGLU && fabs(c->embed_scale - root) <= 1e-12 * root &&
           query_scalar(c) > 0 && c->n_embd % c->n_head == 0 &&
           c->norm_placement == (first ? WEFT_PLACEMENT_PRE : WEFT_PLACEMENT_BOTH) &&
           (like == GEMMA2 || !(c->softcap_attention > 0)) &&
           (!first || (!(c->softcap_logits > 0) && !(c->attention_scale > 0) && !c->window)) &&
           (!c->window || third == has_local_law(c));
}

/* GPT-2's and GPT-NeoX's blocks have the same parts, in another order. */
static bool is_gpt2(const weft_config *c, int like) {
    bool neox = like == NEOX;
    return c->attention == WEFT_ATTENTION_DOT && !c->window && is_unscaled(c) &&
           c->position == (neox ? WEFT_POSITION_ROPE : WEFT_POSITION_LEARNED) &&
           c->norm_placement == WEFT_PLACEMENT_PRE && c->norm == WEFT_NORM_LAYERNORM && c->bias &&
           (c->ffn == WEFT_FFN_GELU || (neox && c->ffn == WEFT_FFN_GELU_ERF)) &&
           (neox || !c->parallel_residual) && !c->nope_every && !c->qk_norm &&
           weft_hf_attention_bias(c) == WEFT_ATTENTION_BIAS_ALL &&
           weft_config_kv_heads(c) == c->n_head && c->n_head * weft_config_head_dim(c) == c->n_embd;
}

/* DeepSeek's form of MLA. Its latent is always normed: where ours is not, the weights are written so that its
 * norm changes nothing, which takes the usual epsilon (hf_pieces.c). */
static bool is_deepseek(const weft_config *c) {
    bool usual = !(c->norm_eps > 0) || c->norm_eps == 1e-6;
    return c->attention == WEFT_ATTENTION_MLA && c->ra_mla_rope_dim && c->ra_mla_joint_kv &&
           c->ra_mla_latent_heads == 1 && c->ra_mla_per_head_q_latent && c->ra_mla_per_head_v_up &&
           c->ra_mla_score == WEFT_SCORE_DOT && !(c->ra_mla_ra_alpha > 0) && !c->latent_recip &&
           (c->position == WEFT_POSITION_NONE || c->position == WEFT_POSITION_ROPE) &&
           weft_hf_attention_bias(c) == WEFT_ATTENTION_BIAS_NONE &&
           (c->ra_mla_latent_norm || usual);
}

static bool is_like_llama(const weft_config *c, int number) {
    const llama_like *like = &weft_hf_likes[number];
    int bias = weft_hf_attention_bias(c);
    bool dot = c->attention == WEFT_ATTENTION_DOT && c->position == WEFT_POSITION_ROPE;
    bool phi3 = number == PHI3, by_layer = like->full_every > 0;
    bool is_long = c->rope_scaling == WEFT_ROPE_SCALING_LONGROPE;
    bool plain = c->rope_scaling == WEFT_ROPE_SCALING_NONE;
    int placement = like->reordered ? WEFT_PLACEMENT_REORDERED : WEFT_PLACEMENT_PRE;
    bool llama = c->ffn == WEFT_FFN_SWIGLU && c->norm_placement == placement && is_unscaled(c);
    return (number == DEEPSEEK ? is_deepseek(c) : dot) &&
           (like->family == WEFT_HF_GEMMA ? is_gemma(c, number) : llama) && !c->parallel_residual &&
           c->norm == WEFT_NORM_RMSNORM && c->qk_norm == like->qk_norm &&
           (!c->nope_every || like->nope_every) &&
           (bias == WEFT_ATTENTION_BIAS_QKV) == like->qkv_bias &&
           (bias != WEFT_ATTENTION_BIAS_ALL || !like->windows) &&
           (!c->ffn_bias || number == LLAMA || number == SMOLLM3) &&
           (!c->window || like->windows || by_layer) && (!c->window_every || by_layer) &&
           (!has_local_law(c) || like->local_theta > 0) &&
           (number != OLMO3 || has_local_law(c) || (c->window && plain)) &&
           (!c->rope_dim || phi3) && (phi3 ? is_long || plain : !is_long) &&
           (!phi3 || c->n_head * weft_config_head_dim(c) == c->n_embd) &&
           (!c->qk_norm ||
            (c->qk_norm_whole == like->reordered && (!(c->norm_eps > 0) || c->norm_eps == 1e-6)));
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
    json_t *rope = weft_json_make("rope_type:s factor:f", word, c->rope_factor);
    double amplitude = c->rope_amplitude > 0 ? c->rope_amplitude : NAN;
    if (c->rope_scaling == WEFT_ROPE_SCALING_LONGROPE)
        weft_json_add(rope, "short_factor:o long_factor:o attention_factor:f*",
                      list_factors(c->rope_short_factors), list_factors(c->rope_long_factors),
                      amplitude);
    else if (c->rope_scaling != WEFT_ROPE_SCALING_LINEAR)
        weft_json_add(rope,
                      yarn ? "original_max_position_embeddings:I beta_slow:f beta_fast:f "
                             "attention_factor:f*"
                           : "original_max_position_embeddings:I low_freq_factor:f "
                             "high_freq_factor:f",
                      c->rope_context, c->rope_low, c->rope_high, amplitude);
    return rope;
}

static json_t *write_gpt2(const weft_config *c) {
    return weft_json_make(
        "architectures:o model_type:s activation_function:s n_embd:I n_head:I n_layer:I n_inner:I "
        "n_positions:I layer_norm_epsilon:f resid_pdrop:f embd_pdrop:f attn_pdrop:f",
        json_pack("[s]", "GPT2LMHeadModel"), "gpt2", "gelu_new", c->n_embd, c->n_head, c->n_layer,
        weft_config_ffn_dim(c), c->context, c->norm_eps > 0 ? c->norm_eps : 1e-5, c->dropout, 0.0,
        0.0);
}

/* The share of a head's columns that is rotated. */
static double rotated_share(const weft_config *c) {
    return c->rope_dim ? (double)c->rope_dim / (double)weft_config_head_dim(c) : 1;
}

static json_t *write_neox(const weft_config *c) {
    return weft_json_make(
        "architectures:o model_type:s hidden_act:s hidden_size:I num_attention_heads:I "
        "num_hidden_layers:I intermediate_size:I max_position_embeddings:I layer_norm_eps:f "
        "rotary_pct:f rotary_emb_base:f use_parallel_residual:b rope_scaling:o",
        json_pack("[s]", "GPTNeoXForCausalLM"), "gpt_neox",
        c->ffn == WEFT_FFN_GELU ? "gelu_new" : "gelu", c->n_embd, c->n_head, c->n_layer,
        weft_config_ffn_dim(c), c->context, c->norm_eps > 0 ? c->norm_eps : 1e-5, rotated_share(c),
        c->rope_theta, c->parallel_residual, write_rope(c));
}

static void write_windows(const weft_config *c, json_t *root) {
    WEFT_JSON_LIST(kinds, i, c->n_layer,
                   json_string(weft_config_window(c, i) ? "sliding_attention" : "full_attention"));
    weft_json_add(root, "layer_types:o sliding_window:I", kinds,
                  c->window ? c->window : c->context);
}

static void write_gemma(const weft_config *c, int number, json_t *root) {
    weft_json_add(root, "hidden_act:s hidden_activation:s", "gelu_pytorch_tanh",
                  "gelu_pytorch_tanh");
    if (number == GEMMA) return;
    write_windows(c, root);
    weft_json_add(root,
                  "query_pre_attn_scalar:I attn_logit_softcapping:f final_logit_softcapping:f "
                  "rope_local_base_freq:f*",
                  query_scalar(c), c->softcap_attention > 0 ? c->softcap_attention : NAN,
                  c->softcap_logits > 0 ? c->softcap_logits : NAN,
                  number == GEMMA3 && c->window ? c->rope_local_theta : NAN);
}

static json_t *write_llama(const weft_config *c, int number) {
    const llama_like *like = &weft_hf_likes[number];
    json_t *root = weft_json_make(
        "architectures:o model_type:s hidden_act:s hidden_size:I num_attention_heads:I head_dim:I "
        "num_hidden_layers:I intermediate_size:I num_key_value_heads:I max_position_embeddings:I "
        "rms_norm_eps:f rope_theta:f rope_scaling:o",
        json_pack("[s]", like->architecture), like->type, "silu", c->n_embd, c->n_head,
        weft_config_head_dim(c), c->n_layer, weft_config_ffn_dim(c), weft_config_kv_heads(c),
        c->context, c->norm_eps > 0 ? c->norm_eps : 1e-6, c->rope_theta, write_rope(c));
    bool all = weft_hf_attention_bias(c) == WEFT_ATTENTION_BIAS_ALL;
    if (number != QWEN2 && number != PHI3 && number != MISTRAL)
        weft_json_add(root, "attention_bias:b", all);
    if (c->ffn_bias) weft_json_add(root, "mlp_bias:b", true);
    if (c->nope_every) weft_json_add(root, "no_rope_layer_interval:I", c->nope_every);
    if (number == MISTRAL || number == PHI3)
        weft_json_add(root, "sliding_window:o", c->window ? json_integer(c->window) : NULL);
    if (number == PHI3) weft_json_add(root, "partial_rotary_factor:f", rotated_share(c));
    if (c->rope_scaling == WEFT_ROPE_SCALING_LONGROPE)
        weft_json_add(root, "original_max_position_embeddings:I", c->rope_context);
    if (number == DEEPSEEK) /* no layer is one of experts */
        weft_json_add(
            root,
            "q_lora_rank:o head_dim:I kv_lora_rank:I qk_nope_head_dim:I qk_rope_head_dim:I "
            "v_head_dim:I rope_interleave:b first_k_dense_replace:I num_key_value_heads:I "
            "num_nextn_predict_layers:i moe_intermediate_size:I",
            c->ra_mla_q_rank ? json_integer(c->ra_mla_q_rank) : NULL, c->ra_mla_rope_dim,
            c->ra_mla_latent_dim, weft_config_head_dim(c), c->ra_mla_rope_dim,
            weft_config_head_dim(c), true, c->n_layer, c->n_head, 0, weft_config_ffn_dim(c));
    if (like->family == WEFT_HF_GEMMA) write_gemma(c, number, root);
    if (number == OLMO3) { /* its rotations: of layers without a window, and of those with one */
        write_windows(c, root);
        json_t *full = c->rope_scaling == WEFT_ROPE_SCALING_NONE
                           ? weft_json_make("rope_type:s", "default")
                           : write_rope(c);
        double local = has_local_law(c) ? c->rope_local_theta : c->rope_theta;
        weft_json_add(full, "rope_theta:f", c->rope_theta);
        json_object_del(root, "rope_scaling");
        weft_json_add(root, "rope_parameters:o",
                      weft_json_make("full_attention:o sliding_attention:o", full,
                                     weft_json_make("rope_type:s rope_theta:f", "default", local)));
    }
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
    WEFT_AUTO_DECREF json_t *was = text ? weft_json_read(text, strlen(text), 0, NULL) : NULL;
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
    /* The first that has all of it. */
    int like = 0;
    while (like < LIKES && !(like < GPT2 ? is_like_llama : is_gpt2)(c, like))
        like++;
    /* What no family has. */
    bool other = !c->causal || c->mup || c->kv_share != 1 || c->attention_gate ||
                 c->document_mask || c->attn_gate || c->cross_token;
    if (other || like == LIKES) {
        *family = WEFT_HF_OWN;
        /* Of a model that none of their own classes computes: the folder brings the class along, in plain PyTorch, and its
         * config.json says so (auto_map). Tensors keep weft's names, and the options are in "weft": all that say what
         * a model computes, each of which the class knows. */
        WEFT_AUTO_DECREF json_t *all = weft_config_to_json(c), *ours = json_object();
        for (const weft_option *o = weft_options(NULL); o->key; o++) {
            char key[64];
            if (o->owner != WEFT_OWNER_MODEL) continue;
            weft_option_json_key(o, key, sizeof key);
            json_object_set(ours, key, json_object_get(all, key));
        }
        /* A path of this machine. */
        json_object_set_new(ours, "tokenizer", json_string("bytes"));
        *out =
            json_pack("{s:s, s:[s], s:{s:s, s:s}, s:O}", "model_type", "weft", "architectures",
                      "WeftForCausalLM", "auto_map", "AutoConfig", "configuration_weft.WeftConfig",
                      "AutoModelForCausalLM", "modeling_weft.WeftForCausalLM", "weft", ours);
        if (!*out) return weft_fail(WEFT_ENOMEM, "convert: no memory for config.json");
        write_specials(t, *out);
        return WEFT_OK;
    }
    *family = like == DEEPSEEK ? WEFT_HF_LLAMA_PAIRS : weft_hf_likes[like].family;
    json_t *root = like == GPT2   ? write_gpt2(c)
                   : like == NEOX ? write_neox(c)
                                  : write_llama(c, like);
    if (!root) return weft_fail(WEFT_ENOMEM, "convert: no memory for config.json");
    weft_json_add(root, "vocab_size:I tie_word_embeddings:b", c->vocab_size, c->weight_tying);
    write_specials(t, root);
    *out = root;
    return WEFT_OK;
}
