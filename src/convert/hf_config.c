/* Hugging Face's config.json and ours. One table says of their keys which are taken, which have no bearing
 * on what is computed, and which change it and so must have the one value that weft computes. A key that
 * is in none of its lists is passed over with a warning: most of those are notes of the program that wrote
 * the file. */
#include "convert/hf.h"

#include "base/json.h"
#include "base/log.h"

#include <math.h>

/* KEY, whose value is taken or has no bearing, or KEY=VALUE, which must have it. null and absence are always
 * well. */
static const char common_keys[] =
    "model_type vocab_size tie_word_embeddings "
    /* of every model's config, of generation, and of programs that wrote one */
    "_attn_implementation _attn_implementation_autoset _commit_hash _name_or_path _num_labels "
    "architectures attention_dropout attn_implementation bad_words_ids begin_suppress_tokens "
    "bos_token_id chunk_size_feed_forward decoder_start_token_id diversity_penalty do_sample dtype "
    "early_stopping encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty "
    "finetuning_task forced_bos_token_id forced_eos_token_id gradient_checkpointing id2label "
    "initializer_range is_decoder is_llama_config label2id length_penalty max_length min_length "
    "model_max_length no_repeat_ngram_size num_beam_groups num_beams num_labels "
    "num_return_sequences output_attentions output_hidden_states output_past output_scores "
    "pad_token_id prefix problem_type remove_invalid_values repetition_penalty return_dict "
    "return_dict_in_generate sep_token_id suppress_tokens task_specific_params temperature "
    "tf_legacy_loss tie_encoder_decoder tokenizer_class top_k top_p torch_dtype torchscript "
    "attention_probs_dropout_prob auto_map custom_pipelines hidden_dropout_prob "
    "transformers.js_config transformers_version typical_p unk_token_id unsloth_fixed "
    "unsloth_version use_bfloat16 use_cache use_flash_attn "
    /* what would change the function */
    "add_cross_attention=false alibi=false attention_multiplier=null attn_logit_softcapping=null "
    "clip_qkv=null cross_attention_hidden_size=null embedding_multiplier=1 "
    "final_logit_softcapping=null is_encoder_decoder=false kv_lora_rank=null logit_scale=1 "
    "logits_scaling=1 n_routed_experts=null num_experts=null num_local_experts=null "
    "parallel_attn=false pruned_heads={} qk_layernorm=false qk_norm=false quantization_config=null "
    "query_pre_attn_scalar=null residual_multiplier=1 rope_interleaved=false scale_depth=null "
    "scale_emb=1 use_parallel_residual=false use_qk_norm=false";

static const char gpt2_keys[] =
    "n_embd n_head n_layer n_positions n_inner layer_norm_epsilon activation_function "
    "scale_attn_weights=true scale_attn_by_inverse_layer_idx=false reorder_and_upcast_attn n_ctx "
    "attn_pdrop embd_pdrop resid_pdrop summary_activation n_special predict_special_tokens "
    "summary_first_dropout summary_proj_to_labels summary_type summary_use_proj";

static const char llama_keys[] =
    "hidden_size intermediate_size num_attention_heads num_hidden_layers num_key_value_heads "
    "max_position_embeddings rms_norm_eps rope_theta rope_scaling rope_parameters attention_bias "
    "mlp_bias head_dim sliding_window layer_types hidden_act=\"silu\" use_sliding_window "
    "max_window_layers no_rope_layers no_rope_layer_interval partial_rotary_factor=1 "
    "use_mrope=false pretraining_tp";

/* Of DeepSeek's models those whose layers are all dense, so that what is said of experts has no bearing. */
static const char deepseek_keys[] =
    "kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim qk_head_dim "
    "rope_interleave attention_bias=false first_k_dense_replace n_routed_experts n_shared_experts "
    "moe_intermediate_size moe_layer_freq routed_scaling_factor n_group topk_group topk_method "
    "num_experts_per_tok norm_topk_prob scoring_func seq_aux aux_loss_alpha ep_size "
    "output_router_logits num_nextn_predict_layers";

static const char phi3_keys[] =
    "partial_rotary_factor embd_pdrop resid_pdrop original_max_position_embeddings full_attn_mod=1 "
    "interpolate_factor=1 lm_head_bias=false";

#define GEMMA_KEYS                                                                                 \
    "hidden_activation=\"gelu_pytorch_tanh\" hidden_act cache_implementation "                     \
    "use_bidirectional_attention=false "
static const char gemma_keys[] = GEMMA_KEYS;
static const char gemma2_keys[] = GEMMA_KEYS
    "query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping sliding_window_size";
static const char gemma3_keys[] =
    GEMMA_KEYS "query_pre_attn_scalar final_logit_softcapping rope_local_base_freq "
               "sliding_window_pattern _sliding_window_pattern";

static const char smollm3_keys[] = "use_sliding_window=false";

static const char neox_keys[] =
    "hidden_size intermediate_size num_attention_heads num_hidden_layers max_position_embeddings "
    "layer_norm_eps hidden_act rotary_pct rotary_emb_base rope_theta rope_scaling rope_parameters "
    "partial_rotary_factor use_parallel_residual attention_bias=true classifier_dropout "
    "hidden_dropout";

static const char rope_keys[] =
    "rope_type type rope_theta factor low_freq_factor high_freq_factor "
    "original_max_position_embeddings beta_fast beta_slow attention_factor truncate=true "
    "partial_rotary_factor=1 mscale=null mscale_all_dim=null short_factor long_factor "
    "short_mscale=null long_mscale=null mrope_section=null";

const llama_like weft_hf_likes[LIKES] = {
    [LLAMA] = {"llama", "LlamaForCausalLM", .no_window = true},
    [MISTRAL] = {"mistral", "MistralForCausalLM", .windows = true, .kv_heads = 8, .window = 4096},
    [QWEN2] = {"qwen2", "Qwen2ForCausalLM", .qkv_bias = true},
    [QWEN3] = {"qwen3", "Qwen3ForCausalLM", .qk_norm = true, .head_dim = 128},
    [SMOLLM3] = {"smollm3", "SmolLM3ForCausalLM", .tied = true, .kv_heads = 4, .nope_every = 4,
                 .theta = 2e6, .keys = smollm3_keys},
    [OLMO2] = {"olmo2", "Olmo2ForCausalLM", .qk_norm = true, .reordered = true, .no_window = true,
               .eps = 1e-5},
    [OLMO3] = {"olmo3", "Olmo3ForCausalLM", .qk_norm = true, .reordered = true, .full_every = 4,
               .window = 4096, .theta = 5e5, .eps = 1e-5, .local_theta = 5e5},
    [PHI3] = {"phi3", "Phi3ForCausalLM", WEFT_HF_PHI3, .windows = true, .partial = true,
              .eps = 1e-5, .keys = phi3_keys},
    [DEEPSEEK] = {"deepseek_v3", "DeepseekV3ForCausalLM", .no_window = true, .keys = deepseek_keys},
    [GEMMA] = {"gemma", "GemmaForCausalLM", WEFT_HF_GEMMA, .tied = true, .no_window = true,
               .kv_heads = 16, .head_dim = 256, .keys = gemma_keys},
    [GEMMA2] = {"gemma2", "Gemma2ForCausalLM", WEFT_HF_GEMMA, .tied = true, .full_every = 2,
                .kv_heads = 4, .head_dim = 256, .window = 4096, .scalar = 256,
                .softcap_attention = 50, .softcap_end = 30, .keys = gemma2_keys},
    [GEMMA3] = {"gemma3_text", "Gemma3ForCausalLM", WEFT_HF_GEMMA, .qk_norm = true, .tied = true,
                .full_every = 6, .heads = 8, .kv_heads = 4, .head_dim = 256, .window = 4096,
                .vocab = 262208, .context = 131072, .theta = 1e6, .scalar = 256,
                .local_theta = 10000, .keys = gemma3_keys},
    [GPT2] = {"gpt2", "GPT2LMHeadModel", WEFT_HF_GPT2, .tied = true, .keys = gpt2_keys},
    [NEOX] = {"gpt_neox", "GPTNeoXForCausalLM", WEFT_HF_NEOX, .partial = true, .keys = neox_keys},
};

/* Families that are known, and what of them is not computed here. */
static const struct {
    const char *types, *why;
} refused[] = {
    {" gemma3 ", "it has a vision tower; its text model alone, gemma3_text, is"},
    {" gemma3n gemma3n_text ", "its layers add up several streams"},
    {" olmo ", "its norms have no gains"},
    {" mixtral qwen2_moe qwen3_moe olmoe phimoe deepseek_v2 gpt_oss ",
     "its feed-forwards are mixtures of experts"},
    {" phi ", "attention and feed-forward read one norm"},
};

typedef struct {
    const json_t *root;
    const char *where;
    const llama_like *like;
    char unknown[256];  /* keys, as text */
    weft_status status; /* the first failure */
} source;

/* Whether the keys have it, and in `must` the value that it must have, "": any. */
static bool find_key(const char *keys, const char *key, char must[32]) {
    size_t length = strlen(key);
    while (*keys) {
        size_t word = strcspn(keys, " "), name = strcspn(keys, " =");
        if (name == length && memcmp(keys, key, length) == 0) {
            snprintf(must, 32, "%.*s", (int)(word - name - (word > name)), keys + name + 1);
            return true;
        }
        keys += word + strspn(keys + word, " ");
    }
    return false;
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
    WEFT_AUTO_FREE char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    return WEFT_BAD_INPUT("%s: \"%s\": %.60s is not supported; %s", s->where, key, text ? text : "",
                          remedy);
}

/* Refuses values that weft cannot follow, and adds the keys that are not known to `unknown`. The first of
 * `lists` that has a key says what it may be. */
static weft_status check_keys(const source *s, const json_t *object, const char *const lists[3],
                              const char *inside, char unknown[256]) {
    char must[32];
    EACH_MEMBER(m, object) {
        const char *key = m.key;
        const json_t *value = m.value;
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

/* A key's value, which is not supported. */
static void refuse_key(source *s, const char *key, const char *remedy) {
    note(s, refuse(s, key, json_object_get(s->root, key), remedy));
}

/* A number; `fallback` where it is not there, which is an error where that is NaN. */
static double number_of(source *s, const json_t *object, const char *key, double fallback) {
    const json_t *value = json_object_get(object, key);
    if (json_is_number(value)) return json_number_value(value);
    if (value && !json_is_null(value))
        note(s, WEFT_BAD_INPUT("%s: \"%s\" is no number", s->where, key));
    else if (isnan(fallback))
        note(s, WEFT_BAD_INPUT("%s: \"%s\" is missing", s->where, key));
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
    const char *word = json_string_value(json_object_get(s->root, "activation_function"));
    if (word && strcmp(word, "gelu_new") != 0 && strcmp(word, "gelu_pytorch_tanh") != 0)
        refuse_key(s, "activation_function", "\"gelu_new\" and \"gelu_pytorch_tanh\" are");
    double e = number_of(s, s->root, "n_embd", 768);
    set_number(s, c, "N_EMBD", e);
    set_number(s, c, "N_HEAD", number_of(s, s->root, "n_head", 12));
    set_number(s, c, "N_LAYER", number_of(s, s->root, "n_layer", 12));
    set_number(s, c, "N_FFN", number_of(s, s->root, "n_inner", 4 * e));
    set_number(s, c, "VOCAB_SIZE", number_of(s, s->root, "vocab_size", 50257));
    set_number(s, c, "CONTEXT", number_of(s, s->root, "n_positions", 1024));
    set_number(s, c, "NORM_EPS", number_of(s, s->root, "layer_norm_epsilon", 1e-5));
}

/* The share of a head's columns that is rotated, where it may be less than all. */
static void read_share(source *s, double share, weft_config *c) {
    const json_t *rope = json_object_get(s->root, "rope_parameters");
    share = number_of(s, s->root, "partial_rotary_factor", share);
    share = number_of(s, s->root, "rotary_pct", share);
    share = number_of(s, rope, "partial_rotary_factor", share);
    if (s->status == WEFT_OK && share < 1)
        set_number(s, c, "ROPE_DIM", trunc((double)weft_config_head_dim(c) * share));
}

static void read_local(source *s, const json_t *rope, weft_config *c) {
    const json_t *type = json_object_get(rope, "rope_type");
    double theta = number_of(s, s->root, "rope_local_base_freq", s->like->local_theta);
    set_number(s, c, "ROPE_LOCAL_THETA", number_of(s, rope, "rope_theta", theta));
    if (type && !is_the_same(type, "\"default\""))
        note(s, refuse(s, "rope_scaling.sliding_attention.rope_type", type, "\"default\" is"));
}

static void read_factors(source *s, const json_t *rope, const char *key, weft_config *c,
                         const char *ours) {
    char text[WEFT_TEXT_MAX] = "";
    EACH_ITEM(factor, json_object_get(rope, key)) {
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s%.9g", used ? "," : "",
                 json_number_value(factor.value));
    }
    set_word(s, c, ours, text);
}

static void read_rope(source *s, double usual, weft_config *c) {
    const llama_like *like = s->like;
    const json_t *rope = json_object_get(s->root, "rope_parameters");
    if (json_object_get(rope, "full_attention")) {
        read_local(s, json_object_get(rope, "sliding_attention"), c);
        rope = json_object_get(rope, "full_attention");
    } else if (like->local_theta > 0) {
        read_local(s, NULL, c);
    }
    if (!json_is_object(rope)) rope = json_object_get(s->root, "rope_scaling");
    double theta = number_of(s, s->root, "rope_theta", usual > 0 ? usual : 10000);
    set_number(s, c, "ROPE_THETA", number_of(s, rope, "rope_theta", theta));
    if (!json_is_object(rope)) return;
    const char *lists[3] = {like->partial ? "partial_rotary_factor" : NULL, rope_keys};
    note(s, check_keys(s, rope, lists, "rope_scaling.", s->unknown));
    const json_t *type = json_object_get(rope, "rope_type");
    if (!type) type = json_object_get(rope, "type");
    const char *word = json_is_string(type) ? json_string_value(type) : "";
    if (!type || strcmp(word, "default") == 0) return;
    if (strcmp(word, "longrope") == 0 || (like->partial && strcmp(word, "su") == 0)) {
        double context =
            number_of(s, s->root, "original_max_position_embeddings", (double)c->context);
        context = number_of(s, rope, "original_max_position_embeddings", context);
        double factor = number_of(s, rope, "factor", (double)c->context / context);
        set_word(s, c, "ROPE_SCALING", "longrope");
        set_number(s, c, "ROPE_CONTEXT", context);
        set_number(s, c, "ROPE_FACTOR", factor > 1 ? factor : 1);
        set_number(s, c, "ROPE_AMPLITUDE", number_of(s, rope, "attention_factor", 0));
        read_factors(s, rope, "short_factor", c, "ROPE_SHORT_FACTORS");
        read_factors(s, rope, "long_factor", c, "ROPE_LONG_FACTORS");
        return;
    }
    if (strcmp(word, "linear") != 0 && strcmp(word, "llama3") != 0 && strcmp(word, "yarn") != 0) {
        note(s, refuse(s, "rope_type", type, "default, linear, llama3, yarn and longrope are"));
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

/* n, where every n-th of the layers and no other is so; 0: none is. Another order is refused by `key`. */
static double every_nth(source *s, int64_t layers, bool (*is_so)(const source *, int64_t),
                        const char *key) {
    int64_t n = 1;
    while (n <= layers && !is_so(s, n - 1))
        n++;
    for (int64_t i = 0; i < layers; i++)
        if (is_so(s, i) != ((i + 1) % n == 0)) {
            refuse_key(s, key, "every n-th layer may be other than the rest");
            return 0;
        }
    return n <= layers ? (double)n : 0;
}

static bool sees_all(const source *s, int64_t layer) {
    const json_t *kinds = json_object_get(s->root, "layer_types");
    const json_t *first = json_object_get(s->root, "max_window_layers");
    const json_t *pattern = json_object_get(s->root, "sliding_window_pattern");
    int64_t every = json_is_integer(pattern) ? json_integer_value(pattern) : s->like->full_every;
    if (s->like->windows) return false;
    if (json_is_array(kinds)) {
        const char *kind = json_string_value(json_array_get(kinds, (size_t)layer));
        return kind && strcmp(kind, "full_attention") == 0;
    }
    if (every >= 1) return (layer + 1) % every == 0;
    return layer < (first ? json_integer_value(first) : 28);
}

/* A window as long as the context is none, unless it says how a layer rotates. */
static void read_windows(source *s, weft_config *c) {
    const json_t *window = json_object_get(s->root, "sliding_window");
    const json_t *used = json_object_get(s->root, "use_sliding_window");
    double width = window ? json_number_value(window) : (double)s->like->window;
    bool in_use = s->like->windows || s->like->full_every || json_is_true(used) ||
                  (s->like->no_window && !used);
    bool counts = width < (double)c->context || c->rope_local_theta > 0;
    if (s->status != WEFT_OK || !in_use || width <= 0 || !counts) return;
    if (s->like->no_window) {
        refuse_key(s, "sliding_window",
                   "this family sees all earlier tokens; --ignore-key sliding_window reads the "
                   "model as such");
        return;
    }
    const json_t *pattern = json_object_get(s->root, "sliding_window_pattern");
    if (json_is_number(pattern) && json_integer_value(pattern) < 1)
        refuse_key(s, "sliding_window_pattern", "a whole number from 1 on is");
    const char *key = json_object_get(s->root, "layer_types") ? "layer_types" : "max_window_layers";
    double every = every_nth(s, c->n_layer, sees_all, key);
    if (every == 1) return;
    set_number(s, c, "WINDOW", width);
    set_number(s, c, "WINDOW_EVERY", every);
}

/* null is none, and absence what the family has. */
static void read_softcap(source *s, weft_config *c, const char *key, const char *theirs,
                         double fallback) {
    bool none = json_is_null(json_object_get(s->root, theirs));
    set_number(s, c, key, none ? 0 : number_of(s, s->root, theirs, fallback));
}

static void read_gemma(source *s, weft_config *c) {
    const llama_like *like = s->like;
    const json_t *act = json_object_get(s->root, "hidden_act");
    double scalar = number_of(s, s->root, "query_pre_attn_scalar", like->scalar);
    /* "gelu" there means the formula with tanh, as the others do */
    if (json_is_string(act) && strncmp(json_string_value(act), "gelu", 4) != 0)
        refuse_key(s, "hidden_act", "\"gelu_pytorch_tanh\" is");
    set_word(s, c, "FFN", "geglu");
    set_number(s, c, "EMBED_SCALE", sqrt((double)c->n_embd));
    if (like->full_every) set_word(s, c, "NORM_PLACEMENT", "both");
    if (scalar > 0 && scalar != (double)weft_config_head_dim(c))
        set_number(s, c, "ATTENTION_SCALE", 1 / sqrt(scalar));
    read_softcap(s, c, "SOFTCAP_ATTENTION", "attn_logit_softcapping", like->softcap_attention);
    read_softcap(s, c, "SOFTCAP_LOGITS", "final_logit_softcapping", like->softcap_end);
}

/* Layers that rotate nothing: 0 in a list, or every n-th. */
static bool rotates_nothing(const source *s, int64_t layer) {
    const json_t *list = json_object_get(s->root, "no_rope_layers");
    return json_integer_value(json_array_get(list, (size_t)layer)) == 0;
}

/* DeepSeek's attention, and that its layers are all dense. */
static void read_deepseek(source *s, weft_config *c) {
    const json_t *experts = json_object_get(s->root, "n_routed_experts");
    double head = number_of(s, s->root, "qk_nope_head_dim", NAN);
    double rope = number_of(s, s->root, "qk_rope_head_dim", NAN);
    if (json_is_integer(experts) &&
        number_of(s, s->root, "first_k_dense_replace", 0) < (double)c->n_layer)
        refuse_key(s, "n_routed_experts",
                   "only layers without experts are: first_k_dense_replace must be as many as "
                   "num_hidden_layers");
    if (rope < 2) refuse_key(s, "qk_rope_head_dim", "it must be 2 at least");
    if (number_of(s, s->root, "v_head_dim", NAN) != head)
        refuse_key(s, "v_head_dim", "it must be qk_nope_head_dim");
    static const char latent[] =
        "ATTENTION=mla POSITION=none RA_MLA_JOINT_KV=y RA_MLA_LATENT_NORM=y KV_HEADS=0";
    note(s, weft_config_override_all(c, latent, s->where));
    set_number(s, c, "HEAD_DIM", head);
    set_number(s, c, "RA_MLA_LATENT_DIM", number_of(s, s->root, "kv_lora_rank", NAN));
    set_number(s, c, "RA_MLA_ROPE_DIM", rope);
    set_number(s, c, "RA_MLA_Q_RANK", number_of(s, s->root, "q_lora_rank", 0));
}

/* What the family has where a config says nothing; 0: a config must say it. */
static double or_missing(int usual) {
    return usual ? (double)usual : (double)NAN;
}

static void read_sizes(source *s, weft_config *c) {
    const llama_like *like = s->like;
    set_number(s, c, "N_EMBD", number_of(s, s->root, "hidden_size", NAN));
    set_number(s, c, "N_HEAD",
               number_of(s, s->root, "num_attention_heads", or_missing(like->heads)));
    set_number(s, c, "N_LAYER", number_of(s, s->root, "num_hidden_layers", NAN));
    set_number(s, c, "N_FFN", number_of(s, s->root, "intermediate_size", NAN));
    set_number(s, c, "VOCAB_SIZE", number_of(s, s->root, "vocab_size", or_missing(like->vocab)));
    set_number(s, c, "CONTEXT",
               number_of(s, s->root, "max_position_embeddings", or_missing(like->context)));
}

static void read_llama(source *s, weft_config *c) {
    const llama_like *like = s->like;
    note(s, weft_config_override_all(c, "FFN=swiglu POSITION=rope NORM=rmsnorm BIAS=n", s->where));
    read_sizes(s, c);
    double heads = (double)c->n_head, head = number_of(s, s->root, "head_dim", like->head_dim);
    set_number(s, c, "HEAD_DIM", head * heads == (double)c->n_embd ? 0 : head);
    set_number(
        s, c, "KV_HEADS",
        number_of(s, s->root, "num_key_value_heads", like->kv_heads ? like->kv_heads : heads));
    double eps = like->eps > 0 ? like->eps : 1e-6;
    set_number(s, c, "NORM_EPS", number_of(s, s->root, "rms_norm_eps", eps));
    bool biased = json_is_true(json_object_get(s->root, "attention_bias"));
    set_word(s, c, "ATTENTION_BIAS", like->qkv_bias ? "qkv" : biased ? "all" : "none");
    read_flag(s, c, "FFN_BIAS", "mlp_bias", false);
    if (like->qk_norm) set_word(s, c, "QK_NORM", "y");
    if (like->reordered)
        note(s, weft_config_override_all(c, "QK_NORM_WHOLE=y NORM_PLACEMENT=reordered", s->where));
    if (like->partial) read_share(s, 1, c);
    read_rope(s, like->theta, c);
    bool listed = json_is_array(json_object_get(s->root, "no_rope_layers"));
    double every = number_of(s, s->root, "no_rope_layer_interval", like->nope_every);
    if (listed) every = every_nth(s, c->n_layer, rotates_nothing, "no_rope_layers");
    if (listed || like->nope_every) set_number(s, c, "NOPE_EVERY", every);
    read_windows(s, c);
    if (like->family == WEFT_HF_GEMMA) read_gemma(s, c);
    if (like == &weft_hf_likes[DEEPSEEK]) read_deepseek(s, c);
    if (c->qk_norm && c->norm_eps > 0 && c->norm_eps != 1e-6)
        refuse_key(s, "rms_norm_eps", "where queries and keys are normed only 1e-6 is");
}

static void read_neox(source *s, weft_config *c) {
    /* GELU by either formula, as they call it. */
    static const char *const tanhs[] = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"};
    const json_t *act = json_object_get(s->root, "hidden_act");
    const char *word = json_is_string(act) ? json_string_value(act) : "gelu";
    bool by_tanh = false;
    for (int i = 0; i < 3; i++)
        by_tanh = by_tanh || strcmp(word, tanhs[i]) == 0;
    if (!by_tanh && strcmp(word, "gelu") != 0)
        refuse_key(s, "hidden_act", "\"gelu\" and \"gelu_new\" are");
    set_word(s, c, "FFN", by_tanh ? "gelu" : "gelu_erf");
    set_word(s, c, "POSITION", "rope");
    read_sizes(s, c);
    set_number(s, c, "NORM_EPS", number_of(s, s->root, "layer_norm_eps", 1e-5));
    read_flag(s, c, "PARALLEL_RESIDUAL", "use_parallel_residual", true);
    read_share(s, 0.25, c);
    read_rope(s, number_of(s, s->root, "rotary_emb_base", 0), c);
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
    return WEFT_BAD_INPUT("%s: has no key \"%.60s\", which --ignore-key names", where, key);
}

weft_status weft_hf_config_read(const json_t *root, const char *where, weft_config *c,
                                weft_hf_family *family) {
    source s = {.root = root, .where = where};
    const char *type = json_string_value(json_object_get(root, "model_type"));
    if (!type) return WEFT_BAD_INPUT("%s: \"model_type\" is missing", where);
    if (strcmp(type, "weft") == 0) {
        *family = WEFT_HF_OWN;
        weft_config_defaults(c);
        return weft_config_from_json(c, json_object_get(root, "weft"), where);
    }
    int like = 0;
    while (like < LIKES && strcmp(weft_hf_likes[like].type, type) != 0)
        like++;
    if (like == LIKES) {
        char word[48];
        const char *why = "it is not known";
        snprintf(word, sizeof word, " %.40s ", type);
        for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
            if (strstr(refused[i].types, word)) why = refused[i].why;
        return WEFT_BAD_INPUT(
            "%s: \"model_type\": \"%.40s\" is not supported: %s. gpt2, gpt_neox, llama, "
            "mistral, qwen2, qwen3, smollm3, olmo2, olmo3, phi3, gemma, gemma2, gemma3_text and "
            "deepseek_v3 are",
            where, type, why);
    }
    s.like = &weft_hf_likes[like];
    const char *lists[3] = {s.like->keys, like < GPT2 ? llama_keys : NULL, common_keys};
    *family = s.like->family;
    if (like == DEEPSEEK && !json_is_false(json_object_get(root, "rope_interleave")))
        *family = WEFT_HF_LLAMA_PAIRS;
    weft_config_defaults(c);
    note(&s, check_keys(&s, root, lists, "", s.unknown));
    if (s.status == WEFT_OK)
        (like == GPT2 ? read_gpt2 : like == NEOX ? read_neox : read_llama)(&s, c);
    read_flag(&s, c, "WEIGHT_TYING", "tie_word_embeddings", s.like->tied);
    if (s.status == WEFT_OK && *s.unknown)
        weft_log(WEFT_LOG_WARN,
                 "%s: passed over what is not known: %s; if one of them changes what the model "
                 "computes, weft does not",
                 where, s.unknown);
    return s.status;
}
