/* Hugging Face's config.json and ours. Every key of theirs is in one of the tables below: taken,
 * without a bearing on what is computed, or required to have one value, since weft computes no other.
 * A key that is in none is refused, rather than read past: it may change what the model means. */
#include "convert/hf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Keys: KEY, whose value is taken or has no bearing, or KEY=VALUE, which must have it. null and absence are
 * always well. */
static const char common_keys[] =
    "model_type vocab_size tie_word_embeddings is_encoder_decoder=false "
    "add_cross_attention=false _name_or_path _attn_implementation_autoset architectures "
    "attention_dropout bos_token_id chunk_size_feed_forward dtype eos_token_id "
    "gradient_checkpointing id2label initializer_range label2id output_attentions "
    "output_hidden_states output_past pad_token_id problem_type return_dict "
    "task_specific_params tokenizer_class torch_dtype transformers_version unk_token_id "
    "use_cache";

static const char gpt2_keys[] =
    "n_embd n_head n_layer n_positions n_inner layer_norm_epsilon activation_function "
    "scale_attn_weights=true scale_attn_by_inverse_layer_idx=false "
    "reorder_and_upcast_attn n_ctx attn_pdrop embd_pdrop resid_pdrop summary_activation "
    "summary_first_dropout summary_proj_to_labels summary_type summary_use_proj";

static const char llama_keys[] =
    "hidden_size intermediate_size num_attention_heads num_hidden_layers "
    "num_key_value_heads max_position_embeddings rms_norm_eps rope_theta rope_scaling "
    "rope_parameters attention_bias head_dim sliding_window layer_types "
    "hidden_act=\"silu\" mlp_bias=false use_sliding_window max_window_layers "
    "partial_rotary_factor=1.0 use_mrope=false pretraining_tp";

static const char rope_keys[] =
    "rope_type type rope_theta factor low_freq_factor high_freq_factor "
    "original_max_position_embeddings beta_fast beta_slow attention_factor truncate=true "
    "partial_rotary_factor=1.0";

typedef struct {
    const json_t *root;
    const char *where;
    weft_status status; /* the first failure */
} source;

/* Whether the keys have it, and in `must` the value that it must have, "": any. */
static bool find_key(const char *keys, const char *key, char must[16]) {
    size_t length = strlen(key);
    while (*keys) {
        size_t word = strcspn(keys, " "), name = strcspn(keys, " =");
        if (name == length && memcmp(keys, key, length) == 0) {
            snprintf(must, 16, "%.*s", (int)(word - name - (word > name)), keys + name + 1);
            return true;
        }
        keys += word + strspn(keys + word, " ");
    }
    return false;
}

static const char *shown(const json_t *value, char text[64]) {
    char *whole = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    snprintf(text, 64, "%.60s", whole ? whole : "");
    free(whole);
    return text;
}

static bool is_the_same(const json_t *value, const char *must) {
    json_t *wanted = json_loads(must, JSON_DECODE_ANY, NULL);
    bool same = json_is_number(value) && json_is_number(wanted)
                    ? json_number_value(value) == json_number_value(wanted)
                    : json_equal(value, wanted);
    json_decref(wanted);
    return same;
}

static weft_status refuse(const source *s, const char *key, const json_t *value,
                          const char *remedy) {
    char text[64];
    return weft_fail(WEFT_EINPUT, "%s: \"%s\": %s is not supported; %s", s->where, key,
                     shown(value, text), remedy);
}

/* Every key must be known and have a value that weft can follow. */
static weft_status check_keys(const source *s, const json_t *object, const char *keys,
                              const char *more, const char *inside) {
    const char *key;
    char must[16];
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        if (!find_key(keys, key, must) && !find_key(more, key, must))
            return weft_fail(
                WEFT_EINPUT,
                "%s: the key \"%s%s%.60s\" is not known, and may change what the model "
                "computes",
                s->where, inside, *inside ? "." : "", key);
        if (*must && !json_is_null(value) && !is_the_same(value, must)) {
            char remedy[96];
            snprintf(remedy, sizeof remedy, "only %s is", must);
            return refuse(s, key, value, remedy);
        }
    }
    return WEFT_OK;
}

static void note(source *s, weft_status status) {
    if (s->status == WEFT_OK) s->status = status;
}

/* A number; `fallback` where it is not there, which is an error where that is NaN. */
static double number_of(source *s, const json_t *object, const char *key, double fallback) {
    const json_t *value = json_object_get(object, key);
    if (json_is_number(value)) return json_number_value(value);
    if (value && !json_is_null(value))
        note(s, weft_fail(WEFT_EINPUT, "%s: \"%s\" is no number", s->where, key));
    else if (isnan(fallback))
        note(s, weft_fail(WEFT_EINPUT, "%s: \"%s\" is missing", s->where, key));
    return isnan(fallback) ? 0 : fallback;
}

static void set_number(source *s, weft_config *c, const char *key, double value) {
    char text[64];
    if (s->status != WEFT_OK) return;
    snprintf(text, sizeof text, "%.17g", value);
    note(s, weft_config_set(c, key, text, s->where));
}

static void set_word(source *s, weft_config *c, const char *key, const char *word) {
    if (s->status == WEFT_OK) note(s, weft_config_set(c, key, word, s->where));
}

static void read_flag(source *s, weft_config *c, const char *key, const char *theirs,
                      bool fallback) {
    const json_t *value = json_object_get(s->root, theirs);
    bool set = json_is_boolean(value) ? json_is_true(value) : fallback;
    set_word(s, c, key, set ? "y" : "n");
}

static void read_gpt2(source *s, weft_config *c) {
    const json_t *act = json_object_get(s->root, "activation_function");
    const char *word = json_string_value(act);
    if (word && strcmp(word, "gelu_new") != 0 && strcmp(word, "gelu_pytorch_tanh") != 0)
        note(s,
             refuse(s, "activation_function", act, "\"gelu_new\" and \"gelu_pytorch_tanh\" are"));
    double e = number_of(s, s->root, "n_embd", 768);
    set_number(s, c, "N_EMBD", e);
    set_number(s, c, "N_HEAD", number_of(s, s->root, "n_head", 12));
    set_number(s, c, "N_LAYER", number_of(s, s->root, "n_layer", 12));
    set_number(s, c, "N_FFN", number_of(s, s->root, "n_inner", 4 * e));
    set_number(s, c, "VOCAB_SIZE", number_of(s, s->root, "vocab_size", 50257));
    set_number(s, c, "CONTEXT", number_of(s, s->root, "n_positions", 1024));
    set_number(s, c, "NORM_EPS", number_of(s, s->root, "layer_norm_epsilon", 1e-5));
    read_flag(s, c, "WEIGHT_TYING", "tie_word_embeddings", true);
}

static void read_rope(source *s, weft_config *c) {
    const json_t *rope = json_object_get(s->root, "rope_parameters");
    if (!json_is_object(rope)) rope = json_object_get(s->root, "rope_scaling");
    double theta = number_of(s, s->root, "rope_theta", 10000);
    set_number(s, c, "ROPE_THETA", number_of(s, rope, "rope_theta", theta));
    if (!json_is_object(rope)) return;
    note(s, check_keys(s, rope, rope_keys, "", "rope_scaling"));
    const json_t *type = json_object_get(rope, "rope_type");
    if (!type) type = json_object_get(rope, "type");
    const char *word = json_is_string(type) ? json_string_value(type) : "";
    if (!type || strcmp(word, "default") == 0) return;
    if (strcmp(word, "linear") != 0 && strcmp(word, "llama3") != 0 && strcmp(word, "yarn") != 0) {
        note(s, refuse(s, "rope_type", type, "default, linear, llama3 and yarn are"));
        return;
    }
    bool yarn = strcmp(word, "yarn") == 0;
    set_word(s, c, "ROPE_SCALING", word);
    set_number(s, c, "ROPE_FACTOR", number_of(s, rope, "factor", NAN));
    if (strcmp(word, "linear") == 0) return;
    double context = yarn ? (double)c->context : (double)NAN;
    set_number(s, c, "ROPE_CONTEXT",
               number_of(s, rope, "original_max_position_embeddings", context));
    set_number(s, c, "ROPE_LOW", number_of(s, rope, yarn ? "beta_slow" : "low_freq_factor", 1));
    set_number(s, c, "ROPE_HIGH",
               number_of(s, rope, yarn ? "beta_fast" : "high_freq_factor", yarn ? 32 : 4));
    if (yarn) set_number(s, c, "ROPE_AMPLITUDE", number_of(s, rope, "attention_factor", 0));
}

/* What a Llama-like config may say and weft computes only where it changes nothing. */
static void check_llama(source *s, const weft_config *c) {
    const json_t *window = json_object_get(s->root, "sliding_window"), *kind;
    const json_t *used = json_object_get(s->root, "use_sliding_window");
    const json_t *head = json_object_get(s->root, "head_dim");
    size_t i;
    if (s->status != WEFT_OK) return;
    if (json_is_integer(window) && !json_is_false(used) && json_integer_value(window) < c->context)
        note(s, refuse(s, "sliding_window", window,
                       "attention here sees all earlier tokens; lower max_position_embeddings to "
                       "the window, or set it to null"));
    if (json_is_integer(head) && json_integer_value(head) != c->n_embd / c->n_head)
        note(s, refuse(s, "head_dim", head, "it must be hidden_size / num_attention_heads"));
    json_array_foreach(json_object_get(s->root, "layer_types"), i, kind) {
        const char *word = json_string_value(kind);
        if (!word || strcmp(word, "full_attention") != 0)
            note(s, refuse(s, "layer_types", kind, "only \"full_attention\" is"));
    }
}

static void read_llama(source *s, weft_config *c, const char *type) {
    bool qwen = strcmp(type, "qwen2") == 0, mistral = strcmp(type, "mistral") == 0;
    double heads = number_of(s, s->root, "num_attention_heads", NAN);
    set_word(s, c, "FFN", "swiglu");
    set_word(s, c, "POSITION", "rope");
    set_word(s, c, "NORM", "rmsnorm");
    set_word(s, c, "BIAS", "n");
    set_number(s, c, "N_EMBD", number_of(s, s->root, "hidden_size", NAN));
    set_number(s, c, "N_HEAD", heads);
    set_number(s, c, "N_LAYER", number_of(s, s->root, "num_hidden_layers", NAN));
    set_number(s, c, "N_FFN", number_of(s, s->root, "intermediate_size", NAN));
    set_number(s, c, "KV_HEADS", number_of(s, s->root, "num_key_value_heads", mistral ? 8 : heads));
    set_number(s, c, "VOCAB_SIZE", number_of(s, s->root, "vocab_size", NAN));
    set_number(s, c, "CONTEXT", number_of(s, s->root, "max_position_embeddings", NAN));
    set_number(s, c, "NORM_EPS", number_of(s, s->root, "rms_norm_eps", 1e-6));
    read_flag(s, c, "WEIGHT_TYING", "tie_word_embeddings", false);
    bool biased = json_is_true(json_object_get(s->root, "attention_bias"));
    set_word(s, c, "ATTENTION_BIAS", qwen ? "qkv" : biased ? "all" : "none");
    read_rope(s, c);
    check_llama(s, c);
}

weft_status weft_hf_config_read(const json_t *root, const char *where, weft_config *c,
                                weft_hf_family *family) {
    static const char *const likes[] = {"llama", "mistral", "qwen2", NULL};
    source s = {.root = root, .where = where};
    const char *type = json_string_value(json_object_get(root, "model_type"));
    if (!type) return weft_fail(WEFT_EINPUT, "%s: \"model_type\" is missing", where);
    int like = 0;
    while (likes[like] && strcmp(likes[like], type) != 0)
        like++;
    bool gpt2 = strcmp(type, "gpt2") == 0;
    if (!gpt2 && !likes[like])
        return weft_fail(WEFT_EINPUT,
                         "%s: \"model_type\": \"%.40s\" is not supported; gpt2, llama, mistral and "
                         "qwen2 are",
                         where, type);
    *family = gpt2 ? WEFT_HF_GPT2 : WEFT_HF_LLAMA;
    weft_config_defaults(c);
    note(&s, check_keys(&s, root, common_keys, gpt2 ? gpt2_keys : llama_keys, ""));
    if (s.status == WEFT_OK && gpt2) read_gpt2(&s, c);
    if (s.status == WEFT_OK && !gpt2) read_llama(&s, c, type);
    return s.status;
}

static weft_status has_none(const weft_config *c, const weft_option *o) {
    char value[128];
    weft_config_format(c, o, value, sizeof value);
    return weft_fail(WEFT_EINPUT,
                     "config: CONFIG_%s=%s has no counterpart in GPT-2's or Llama's layout; weft "
                     "reads the checkpoint as it is",
                     o->key, value);
}

/* What neither family has. */
static weft_status check_plain(const weft_config *c) {
    if (c->attention != WEFT_ATTENTION_DOT) return has_none(c, WEFT_OPTION(attention));
    if (c->norm_placement != WEFT_PLACEMENT_PRE) return has_none(c, WEFT_OPTION(norm_placement));
    if (!c->causal) return has_none(c, WEFT_OPTION(causal));
    if (c->n_head * weft_config_head_dim(c) != c->n_embd) return has_none(c, WEFT_OPTION(head_dim));
    if (c->mup) return has_none(c, WEFT_OPTION(mup));
    if (c->qk_norm) return has_none(c, WEFT_OPTION(qk_norm));
    if (c->kv_share > 1) return has_none(c, WEFT_OPTION(kv_share));
    if (c->attention_gate) return has_none(c, WEFT_OPTION(attention_gate));
    if (c->attn_gate) return has_none(c, WEFT_OPTION(attn_gate));
    if (c->cross_token) return has_none(c, WEFT_OPTION(cross_token));
    return WEFT_OK;
}

static weft_status check_gpt2(const weft_config *c) {
    if (c->ffn != WEFT_FFN_GELU) return has_none(c, WEFT_OPTION(ffn));
    if (c->norm != WEFT_NORM_LAYERNORM) return has_none(c, WEFT_OPTION(norm));
    if (!c->bias) return has_none(c, WEFT_OPTION(bias));
    if (c->attention_bias != WEFT_ATTENTION_BIAS_AUTO &&
        c->attention_bias != WEFT_ATTENTION_BIAS_ALL)
        return has_none(c, WEFT_OPTION(attention_bias));
    if (weft_config_kv_heads(c) != c->n_head) return has_none(c, WEFT_OPTION(kv_heads));
    return WEFT_OK;
}

static weft_status check_like_llama(const weft_config *c) {
    if (c->position != WEFT_POSITION_ROPE) return has_none(c, WEFT_OPTION(position));
    if (c->ffn != WEFT_FFN_SWIGLU) return has_none(c, WEFT_OPTION(ffn));
    if (c->norm != WEFT_NORM_RMSNORM) return has_none(c, WEFT_OPTION(norm));
    return WEFT_OK;
}

static json_t *write_rope(const weft_config *c) {
    const char *word = weft_config_word(c, WEFT_OPTION(rope_scaling));
    bool yarn = c->rope_scaling == WEFT_ROPE_SCALING_YARN;
    if (c->rope_scaling == WEFT_ROPE_SCALING_NONE) return json_null();
    json_t *rope = json_pack("{s:s, s:f}", "rope_type", word, "factor", c->rope_factor);
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

static json_t *write_llama(const weft_config *c, int bias) {
    bool qwen = bias == WEFT_ATTENTION_BIAS_QKV;
    json_t *root = json_pack(
        "{s:[s], s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:o}", "architectures",
        qwen ? "Qwen2ForCausalLM" : "LlamaForCausalLM", "model_type", qwen ? "qwen2" : "llama",
        "hidden_act", "silu", "hidden_size", (json_int_t)c->n_embd, "num_attention_heads",
        (json_int_t)c->n_head, "num_hidden_layers", (json_int_t)c->n_layer, "intermediate_size",
        (json_int_t)weft_config_ffn_dim(c), "num_key_value_heads",
        (json_int_t)weft_config_kv_heads(c), "max_position_embeddings", (json_int_t)c->context,
        "rms_norm_eps", c->norm_eps > 0 ? c->norm_eps : 1e-6, "rope_theta", c->rope_theta,
        "rope_scaling", write_rope(c));
    if (!qwen)
        json_object_set_new(root, "attention_bias", json_boolean(bias == WEFT_ATTENTION_BIAS_ALL));
    return root;
}

int weft_hf_attention_bias(const weft_config *c) {
    if (c->attention_bias != WEFT_ATTENTION_BIAS_AUTO) return c->attention_bias;
    return c->bias ? WEFT_ATTENTION_BIAS_ALL : WEFT_ATTENTION_BIAS_NONE;
}

weft_status weft_hf_config_write(const weft_config *c, int32_t end, weft_hf_family *family,
                                 json_t **out) {
    *out = NULL;
    WEFT_TRY(check_plain(c));
    *family = c->position == WEFT_POSITION_LEARNED ? WEFT_HF_GPT2 : WEFT_HF_LLAMA;
    WEFT_TRY(*family == WEFT_HF_GPT2 ? check_gpt2(c) : check_like_llama(c));
    json_t *root =
        *family == WEFT_HF_GPT2 ? write_gpt2(c) : write_llama(c, weft_hf_attention_bias(c));
    if (!root) return weft_fail(WEFT_ENOMEM, "convert: no memory for config.json");
    json_object_set_new(root, "vocab_size", json_integer(c->vocab_size));
    json_object_set_new(root, "tie_word_embeddings", json_boolean(c->weight_tying));
    json_object_set_new(root, "bos_token_id", end >= 0 ? json_integer(end) : json_null());
    json_object_set_new(root, "eos_token_id", end >= 0 ? json_integer(end) : json_null());
    *out = root;
    return WEFT_OK;
}
