/* Hugging Face's config.json and ours. One table says of their keys which are taken, which have no bearing
 * on what is computed, and which change it and so must have the one value that weft computes. A key that
 * is in none of its lists is passed over with a warning: most of those are notes of the program that wrote
 * the file. */
#include "convert/hf.h"

#include "base/json.h"
#include "base/log.h"
#include "base/scope.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* KEY, whose value is taken or has no bearing, or KEY=VALUE, which must have it. null and absence are always
 * well. */
static const char common_keys[] =
    "model_type vocab_size tie_word_embeddings "
    /* of every model's config, of generation, and of programs that wrote one */
    "_attn_implementation _attn_implementation_autoset _commit_hash _name_or_path _num_labels "
    "architectures "
    "attention_dropout attn_implementation bad_words_ids begin_suppress_tokens bos_token_id "
    "chunk_size_feed_forward decoder_start_token_id diversity_penalty do_sample dtype "
    "early_stopping "
    "encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task "
    "forced_bos_token_id forced_eos_token_id gradient_checkpointing id2label initializer_range "
    "is_decoder "
    "is_llama_config label2id length_penalty max_length min_length model_max_length "
    "no_repeat_ngram_size "
    "num_beam_groups num_beams num_labels num_return_sequences output_attentions "
    "output_hidden_states "
    "output_past output_scores pad_token_id prefix problem_type remove_invalid_values "
    "repetition_penalty "
    "return_dict return_dict_in_generate sep_token_id suppress_tokens task_specific_params "
    "temperature "
    "tf_legacy_loss tie_encoder_decoder tokenizer_class top_k top_p torch_dtype torchscript "
    "transformers.js_config transformers_version typical_p unk_token_id unsloth_fixed "
    "unsloth_version "
    "use_bfloat16 use_cache use_flash_attn "
    /* what would change the function */
    "add_cross_attention=false alibi=false attention_multiplier=null attn_logit_softcapping=null "
    "clip_qkv=null cross_attention_hidden_size=null embedding_multiplier=1 "
    "final_logit_softcapping=null "
    "is_encoder_decoder=false kv_lora_rank=null logit_scale=1 logits_scaling=1 "
    "n_routed_experts=null "
    "num_experts=null num_local_experts=null parallel_attn=false pruned_heads={} "
    "qk_layernorm=false "
    "qk_norm=false quantization_config=null query_pre_attn_scalar=null residual_multiplier=1 "
    "rope_interleaved=false scale_depth=null scale_emb=1 use_parallel_residual=false "
    "use_qk_norm=false";

static const char gpt2_keys[] =
    "n_embd n_head n_layer n_positions n_inner layer_norm_epsilon activation_function "
    "scale_attn_weights=true scale_attn_by_inverse_layer_idx=false "
    "reorder_and_upcast_attn n_ctx attn_pdrop embd_pdrop resid_pdrop summary_activation "
    "summary_first_dropout summary_proj_to_labels summary_type summary_use_proj";

static const char llama_keys[] =
    "hidden_size intermediate_size num_attention_heads num_hidden_layers "
    "num_key_value_heads max_position_embeddings rms_norm_eps rope_theta rope_scaling "
    "rope_parameters attention_bias mlp_bias head_dim sliding_window layer_types "
    "hidden_act=\"silu\" use_sliding_window max_window_layers no_rope_layers "
    "no_rope_layer_interval "
    "partial_rotary_factor=1 use_mrope=false pretraining_tp";

/* Of DeepSeek's models those whose layers are all dense, so that what is said of experts has no bearing. */
static const char deepseek_keys[] =
    "kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim qk_head_dim "
    "rope_interleave attention_bias=false first_k_dense_replace n_routed_experts n_shared_experts "
    "moe_intermediate_size moe_layer_freq routed_scaling_factor n_group topk_group topk_method "
    "num_experts_per_tok norm_topk_prob scoring_func seq_aux aux_loss_alpha ep_size "
    "output_router_logits num_nextn_predict_layers";

static const char neox_keys[] =
    "hidden_size intermediate_size num_attention_heads num_hidden_layers max_position_embeddings "
    "layer_norm_eps hidden_act rotary_pct rotary_emb_base rope_theta rope_scaling rope_parameters "
    "partial_rotary_factor use_parallel_residual attention_bias=true classifier_dropout "
    "hidden_dropout";

static const char rope_keys[] =
    "rope_type type rope_theta factor low_freq_factor high_freq_factor "
    "original_max_position_embeddings beta_fast beta_slow attention_factor truncate=true "
    "partial_rotary_factor=1 mscale=null mscale_all_dim=null short_factor=null long_factor=null "
    "mrope_section=null";

/* The families that are Llama but for what is said here; `kv_heads` and what follows are for a config that
 * says nothing, 0: as Llama has it. */
typedef struct {
    const char *type, *architecture;
    bool qkv_bias; /* in these three maps, and nowhere else */
    bool qk_norm;
    bool tied;
    bool windows; /* a sliding_window is in use unless use_sliding_window says no */
    bool
        reordered; /* the norms come behind the branches, and those of queries and keys are whole */
    bool partial;  /* some columns of a head may be left unrotated */
    int kv_heads, head_dim, nope_every, window;
    double theta, eps;
    const char *keys; /* that the others do not have, or not with these values */
} llama_like;

enum { LLAMA, MISTRAL, QWEN2, QWEN3, SMOLLM3, OLMO2, DEEPSEEK, LIKES };

static const llama_like likes[LIKES] = {
    [LLAMA] = {"llama", "LlamaForCausalLM", .windows = true},
    [MISTRAL] = {"mistral", "MistralForCausalLM", .windows = true, .kv_heads = 8, .window = 4096},
    [QWEN2] = {"qwen2", "Qwen2ForCausalLM", .qkv_bias = true},
    [QWEN3] = {"qwen3", "Qwen3ForCausalLM", .qk_norm = true, .head_dim = 128},
    [SMOLLM3] = {"smollm3", "SmolLM3ForCausalLM", .tied = true, .kv_heads = 4, .nope_every = 4,
                 .theta = 2e6},
    [OLMO2] = {"olmo2", "Olmo2ForCausalLM", .qk_norm = true, .reordered = true, .eps = 1e-5},
    [DEEPSEEK] = {"deepseek_v3", "DeepseekV3ForCausalLM", .keys = deepseek_keys},
};

typedef struct {
    const json_t *root;
    const char *where;
    char unknown[256];  /* keys, as text */
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

/* Refuses values that weft cannot follow, and adds the keys that are not known to `unknown`. The first of
 * `lists` that has a key says what it may be. */
static weft_status check_keys(const source *s, const json_t *object, const char *const lists[3],
                              const char *inside, char unknown[256]) {
    const char *key;
    char must[16];
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        char full[128];
        snprintf(full, sizeof full, "%s%.60s", inside, key);
        if (json_is_null(value)) continue;
        int list = 0;
        while (list < 3 && (!lists[list] || !find_key(lists[list], key, must)))
            list++;
        if (list == 3) {
            size_t used = strlen(unknown);
            snprintf(unknown + used, 256 - used, "%s\"%s\"", used ? ", " : "", full);
        } else if (*must && !is_the_same(value, must)) {
            char remedy[256];
            snprintf(remedy, sizeof remedy,
                     "only %s is. --ignore-key %s reads the model as if it were not there", must,
                     full);
            return refuse(s, full, value, remedy);
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

static void read_rope(source *s, const llama_like *like, weft_config *c) {
    const json_t *rope = json_object_get(s->root, "rope_parameters");
    if (!json_is_object(rope)) rope = json_object_get(s->root, "rope_scaling");
    double theta = number_of(s, s->root, "rope_theta", like->theta > 0 ? like->theta : 10000);
    set_number(s, c, "ROPE_THETA", number_of(s, rope, "rope_theta", theta));
    if (!json_is_object(rope)) return;
    const char *lists[3] = {like->partial ? "partial_rotary_factor" : NULL, rope_keys};
    note(s, check_keys(s, rope, lists, "rope_scaling.", s->unknown));
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
static void check_llama(source *s, const llama_like *like, const weft_config *c) {
    const json_t *window = json_object_get(s->root, "sliding_window"), *kind;
    const json_t *used = json_object_get(s->root, "use_sliding_window");
    bool in_use = like->windows ? !json_is_false(used) : json_is_true(used);
    size_t i;
    if (s->status != WEFT_OK) return;
    double width = window ? json_number_value(window) : (double)like->window;
    if (in_use && width > 0 && width < (double)c->context)
        note(s,
             weft_fail(
                 WEFT_EINPUT,
                 "%s: \"sliding_window\": %.0f is not supported; attention here sees all earlier "
                 "tokens: lower max_position_embeddings to the window, or set it to null",
                 s->where, width));
    if (c->qk_norm && c->norm_eps > 0 && c->norm_eps != 1e-6)
        note(s, refuse(s, "rms_norm_eps", json_object_get(s->root, "rms_norm_eps"),
                       "where queries and keys are normed only 1e-6 is"));
    json_array_foreach(json_object_get(s->root, "layer_types"), i, kind) {
        const char *word = json_string_value(kind);
        if (!word || strcmp(word, "full_attention") != 0)
            note(s, refuse(s, "layer_types", kind, "only \"full_attention\" is"));
    }
}

/* Layers that rotate nothing: 0 in a list, which must have it at every n-th place, or every n-th. */
static void read_nope(source *s, const llama_like *like, weft_config *c) {
    const json_t *list = json_object_get(s->root, "no_rope_layers");
    double every = number_of(s, s->root, "no_rope_layer_interval", like->nope_every);
    if (!json_is_array(list)) {
        if (like->nope_every) set_number(s, c, "NOPE_EVERY", every);
        return;
    }
    size_t layers = (size_t)c->n_layer, first = 0;
    while (first < layers && json_integer_value(json_array_get(list, first)) != 0)
        first++;
    for (size_t i = 0; i < layers; i++)
        if ((json_integer_value(json_array_get(list, i)) == 0) != ((i + 1) % (first + 1) == 0))
            note(s, refuse(s, "no_rope_layers", list, "every n-th layer without rotation is"));
    if (first < layers) set_number(s, c, "NOPE_EVERY", (double)first + 1);
}

/* DeepSeek's attention, and that its layers are all dense. */
static void read_deepseek(source *s, weft_config *c) {
    const json_t *experts = json_object_get(s->root, "n_routed_experts");
    double head = number_of(s, s->root, "qk_nope_head_dim", NAN);
    double rope = number_of(s, s->root, "qk_rope_head_dim", NAN);
    if (json_is_integer(experts) &&
        number_of(s, s->root, "first_k_dense_replace", 0) < (double)c->n_layer)
        note(s, refuse(s, "n_routed_experts", experts,
                       "only layers without experts are: first_k_dense_replace must be as many as "
                       "num_hidden_layers"));
    if (rope < 2)
        note(s, refuse(s, "qk_rope_head_dim", json_object_get(s->root, "qk_rope_head_dim"),
                       "it must be 2 at least"));
    if (number_of(s, s->root, "v_head_dim", NAN) != head)
        note(s, refuse(s, "v_head_dim", json_object_get(s->root, "v_head_dim"),
                       "it must be qk_nope_head_dim"));
    set_word(s, c, "ATTENTION", "mla");
    set_word(s, c, "POSITION", "none");
    set_word(s, c, "RA_MLA_JOINT_KV", "y");
    set_word(s, c, "RA_MLA_LATENT_NORM", "y");
    set_number(s, c, "KV_HEADS", 0);
    set_number(s, c, "HEAD_DIM", head);
    set_number(s, c, "RA_MLA_LATENT_DIM", number_of(s, s->root, "kv_lora_rank", NAN));
    set_number(s, c, "RA_MLA_ROPE_DIM", rope);
    set_number(s, c, "RA_MLA_Q_RANK", number_of(s, s->root, "q_lora_rank", 0));
}

static void read_llama(source *s, weft_config *c, const llama_like *like) {
    double heads = number_of(s, s->root, "num_attention_heads", NAN);
    double width = number_of(s, s->root, "hidden_size", NAN);
    double head = number_of(s, s->root, "head_dim", like->head_dim);
    set_word(s, c, "FFN", "swiglu");
    set_word(s, c, "POSITION", "rope");
    set_word(s, c, "NORM", "rmsnorm");
    set_word(s, c, "BIAS", "n");
    set_number(s, c, "N_EMBD", width);
    set_number(s, c, "N_HEAD", heads);
    set_number(s, c, "HEAD_DIM", head * heads == width ? 0 : head);
    set_number(s, c, "N_LAYER", number_of(s, s->root, "num_hidden_layers", NAN));
    set_number(s, c, "N_FFN", number_of(s, s->root, "intermediate_size", NAN));
    set_number(
        s, c, "KV_HEADS",
        number_of(s, s->root, "num_key_value_heads", like->kv_heads ? like->kv_heads : heads));
    set_number(s, c, "VOCAB_SIZE", number_of(s, s->root, "vocab_size", NAN));
    set_number(s, c, "CONTEXT", number_of(s, s->root, "max_position_embeddings", NAN));
    double eps = like->eps > 0 ? like->eps : 1e-6;
    set_number(s, c, "NORM_EPS", number_of(s, s->root, "rms_norm_eps", eps));
    read_flag(s, c, "WEIGHT_TYING", "tie_word_embeddings", like->tied);
    bool biased = json_is_true(json_object_get(s->root, "attention_bias"));
    set_word(s, c, "ATTENTION_BIAS", like->qkv_bias ? "qkv" : biased ? "all" : "none");
    read_flag(s, c, "FFN_BIAS", "mlp_bias", false);
    if (like->qk_norm) set_word(s, c, "QK_NORM", "y");
    if (like->reordered) set_word(s, c, "QK_NORM_WHOLE", "y");
    if (like->reordered) set_word(s, c, "NORM_PLACEMENT", "reordered");
    read_rope(s, like, c);
    read_nope(s, like, c);
    if (like == &likes[DEEPSEEK]) read_deepseek(s, c);
    check_llama(s, like, c);
}

/* GELU by either formula, as they call it. */
static void read_gelu(source *s, weft_config *c) {
    static const char *const tanhs[] = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"};
    const json_t *act = json_object_get(s->root, "hidden_act");
    const char *word = json_is_string(act) ? json_string_value(act) : "gelu";
    bool by_tanh = false;
    for (int i = 0; i < 3; i++)
        by_tanh = by_tanh || strcmp(word, tanhs[i]) == 0;
    if (!by_tanh && strcmp(word, "gelu") != 0)
        note(s, refuse(s, "hidden_act", act, "\"gelu\" and \"gelu_new\" are"));
    set_word(s, c, "FFN", by_tanh ? "gelu" : "gelu_erf");
}

static void read_neox(source *s, weft_config *c) {
    const json_t *rope = json_object_get(s->root, "rope_parameters");
    double heads = number_of(s, s->root, "num_attention_heads", NAN);
    double width = number_of(s, s->root, "hidden_size", NAN);
    double share = number_of(s, s->root, "partial_rotary_factor", 0.25);
    share = number_of(s, s->root, "rotary_pct", share);
    share = number_of(s, rope, "partial_rotary_factor", share);
    llama_like like = {.partial = true, .theta = number_of(s, s->root, "rotary_emb_base", 10000)};
    read_gelu(s, c);
    set_word(s, c, "POSITION", "rope");
    set_number(s, c, "N_EMBD", width);
    set_number(s, c, "N_HEAD", heads);
    set_number(s, c, "N_LAYER", number_of(s, s->root, "num_hidden_layers", NAN));
    set_number(s, c, "N_FFN", number_of(s, s->root, "intermediate_size", NAN));
    set_number(s, c, "VOCAB_SIZE", number_of(s, s->root, "vocab_size", NAN));
    set_number(s, c, "CONTEXT", number_of(s, s->root, "max_position_embeddings", NAN));
    set_number(s, c, "NORM_EPS", number_of(s, s->root, "layer_norm_eps", 1e-5));
    read_flag(s, c, "WEIGHT_TYING", "tie_word_embeddings", false);
    read_flag(s, c, "PARALLEL_RESIDUAL", "use_parallel_residual", true);
    if (share < 1 && heads > 0) set_number(s, c, "ROPE_DIM", trunc(width / heads * share));
    read_rope(s, &like, c);
}

weft_status weft_hf_config_ignore(json_t *root, const char *where, const char *key) {
    char first[64];
    const char *dot = strchr(key, '.');
    json_t *object = root;
    if (!json_object_get(root, key) && dot) {
        snprintf(first, sizeof first, "%.*s", (int)(dot - key), key);
        object = json_object_get(root, first);
        /* errors call both forms of the rotations' keys by the older name */
        if (!object && strcmp(first, "rope_scaling") == 0)
            object = json_object_get(root, "rope_parameters");
        key = dot + 1;
    }
    if (json_object_del(object, key) == 0) return WEFT_OK;
    return weft_fail(WEFT_EINPUT, "%s: has no key \"%.60s\", which --ignore-key names", where, key);
}

weft_status weft_hf_config_read(const json_t *root, const char *where, weft_config *c,
                                weft_hf_family *family) {
    source s = {.root = root, .where = where};
    const char *type = json_string_value(json_object_get(root, "model_type"));
    if (!type) return weft_fail(WEFT_EINPUT, "%s: \"model_type\" is missing", where);
    if (strcmp(type, "weft") == 0) {
        *family = WEFT_HF_OWN;
        weft_config_defaults(c);
        return weft_config_from_json(c, json_object_get(root, "weft"), where);
    }
    int like = 0;
    while (like < LIKES && strcmp(likes[like].type, type) != 0)
        like++;
    bool gpt2 = strcmp(type, "gpt2") == 0, neox = strcmp(type, "gpt_neox") == 0;
    if (!gpt2 && !neox && like == LIKES)
        return weft_fail(WEFT_EINPUT,
                         "%s: \"model_type\": \"%.40s\" is not supported; gpt2, gpt_neox, llama, "
                         "mistral, qwen2, qwen3, smollm3, olmo2 and deepseek_v3 are",
                         where, type);
    const char *lists[3] = {gpt2   ? gpt2_keys
                            : neox ? neox_keys
                                   : likes[like].keys,
                            gpt2 || neox ? NULL : llama_keys, common_keys};
    *family = gpt2 ? WEFT_HF_GPT2 : neox ? WEFT_HF_NEOX : WEFT_HF_LLAMA;
    if (like == DEEPSEEK && !json_is_false(json_object_get(root, "rope_interleave")))
        *family = WEFT_HF_LLAMA_PAIRS;
    weft_config_defaults(c);
    note(&s, check_keys(&s, root, lists, "", s.unknown));
    if (s.status == WEFT_OK && gpt2) read_gpt2(&s, c);
    if (s.status == WEFT_OK && neox) read_neox(&s, c);
    if (s.status == WEFT_OK && !gpt2 && !neox) read_llama(&s, c, &likes[like]);
    if (s.status == WEFT_OK && *s.unknown)
        weft_log(WEFT_LOG_WARN,
                 "%s: passed over what is not known: %s; if one of them changes what the model "
                 "computes, weft does not",
                 where, s.unknown);
    return s.status;
}

/* Whether nothing is in it that no family has. */
static bool is_plain(const weft_config *c) {
    return c->attention == WEFT_ATTENTION_DOT && c->causal && !c->mup && c->kv_share == 1 &&
           !c->attention_gate && !c->window && !(c->softcap_attention > 0) &&
           !(c->softcap_logits > 0) && !c->document_mask && !c->attn_gate && !c->cross_token;
}

/* GPT-2's and GPT-NeoX's blocks have the same parts, in another order. */
static bool is_gpt2(const weft_config *c, bool neox) {
    return c->norm_placement == WEFT_PLACEMENT_PRE && c->norm == WEFT_NORM_LAYERNORM && c->bias &&
           (c->ffn == WEFT_FFN_GELU || (neox && c->ffn == WEFT_FFN_GELU_ERF)) &&
           (neox || !c->parallel_residual) && !c->nope_every && !c->qk_norm &&
           weft_hf_attention_bias(c) == WEFT_ATTENTION_BIAS_ALL &&
           weft_config_kv_heads(c) == c->n_head && c->n_head * weft_config_head_dim(c) == c->n_embd;
}

/* Which of the likes has all of it. */
static int choose_like(const weft_config *c) {
    bool qkv = weft_hf_attention_bias(c) == WEFT_ATTENTION_BIAS_QKV;
    if (c->norm_placement == WEFT_PLACEMENT_REORDERED) return OLMO2;
    return c->nope_every ? SMOLLM3 : c->qk_norm ? QWEN3 : qkv ? QWEN2 : LLAMA;
}

static bool is_like_llama(const weft_config *c) {
    int like = choose_like(c);
    bool qkv = weft_hf_attention_bias(c) == WEFT_ATTENTION_BIAS_QKV;
    return c->position == WEFT_POSITION_ROPE && !c->rope_dim && c->ffn == WEFT_FFN_SWIGLU &&
           !c->parallel_residual && c->norm == WEFT_NORM_RMSNORM &&
           c->norm_placement != WEFT_PLACEMENT_POST && c->qk_norm == likes[like].qk_norm &&
           (!c->nope_every || like == SMOLLM3) && (!qkv || like == QWEN2) &&
           (!c->ffn_bias || like == LLAMA || like == SMOLLM3) &&
           (!c->qk_norm || (c->qk_norm_whole == likes[like].reordered &&
                            (!(c->norm_eps > 0) || c->norm_eps == 1e-6)));
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

static json_t *write_llama(const weft_config *c) {
    int number = choose_like(c);
    const llama_like *like = &likes[number];
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
    if (number != QWEN2) json_object_set_new(root, "attention_bias", json_boolean(all));
    if (c->ffn_bias) json_object_set_new(root, "mlp_bias", json_true());
    if (c->nope_every)
        json_object_set_new(root, "no_rope_layer_interval", json_integer(c->nope_every));
    return root;
}

int weft_hf_attention_bias(const weft_config *c) {
    if (c->attention_bias != WEFT_ATTENTION_BIAS_AUTO) return c->attention_bias;
    return c->bias ? WEFT_ATTENTION_BIAS_ALL : WEFT_ATTENTION_BIAS_NONE;
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
    *family = c->position == WEFT_POSITION_LEARNED ? WEFT_HF_GPT2
              : neox                               ? WEFT_HF_NEOX
                                                   : WEFT_HF_LLAMA;
    if (!is_plain(c) || !(*family == WEFT_HF_LLAMA ? is_like_llama(c) : is_gpt2(c, neox))) {
        *family = WEFT_HF_OWN;
        WEFT_TRY(weft_hf_own_config(c, out));
        write_specials(t, *out);
        return WEFT_OK;
    }
    json_t *root = *family == WEFT_HF_GPT2 ? write_gpt2(c) : neox ? write_neox(c) : write_llama(c);
    if (!root) return weft_fail(WEFT_ENOMEM, "convert: no memory for config.json");
    json_object_set_new(root, "vocab_size", json_integer(c->vocab_size));
    json_object_set_new(root, "tie_word_embeddings", json_boolean(c->weight_tying));
    write_specials(t, root);
    *out = root;
    return WEFT_OK;
}
