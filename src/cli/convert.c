/* weft convert: a model from one layout into another. */
#include "base/json.h"
#include "base/log.h"
#include "cli/args.h"
#include "convert/attention.h"
#include "convert/hf.h"
#include "convert/measure.h"
#include "model/kinds.h"

const char weft_help_convert[] =
    "  --model DIR\twhat to convert: a checkpoint, or a folder in Hugging Face's layout (GPT-2, "
    "GPT-NeoX, Llama, Mistral, Qwen2, Qwen3, SmolLM3, OLMo 2 and 3, Phi-3, Gemma, DeepSeek-V3 "
    "without experts: config.json, safetensors, tokenizer)\n"
    "  --out DIR\twhere the result goes: a checkpoint, unless --to-hf is given\n"
    "  --to-hf\twrite Hugging Face's layout; a model that none of its families has goes with a "
    "class in plain PyTorch (trust_remote_code=True)\n"
    "  --to-mla\tmake MLA from dot attention: keys and values go through latents that hold their "
    "strongest directions; prints what each layer loses\n"
    "  --latent L\twith --to-mla: the latents' width; as wide as the keys loses nothing\n"
    "  --joint\twith --to-mla: one latent for keys and values\n"
    "  --rope R\twith --to-mla of a rotary model: columns of the rotated part that all heads "
    "share; default: as many as a head rotates\n"
    "  --to-w2\tmake W2 from dot attention: means from queries and keys, equal deviations; prints "
    "how far its weights are from dot's\n"
    "  --spread A\twith --to-w2 and --add w2: multiply queries by A and divide keys by it; "
    "default: 4. The larger, the closer are the scores to dot's\n"
    "  --add LIST\tmechanisms to put into a model without effect, by commas: gate, cross, latent "
    "(of mla), output-gate, wsffn (of swiglu), w2 (of dot, with a spread of 1024). Its logits stay "
    "as they are, and training goes on from there\n"
    "  -o KEY=VALUE\twith --add: an option of what is added; repeatable\n"
    "  --text FILE\ta text to measure on: --to-mla keeps what matters for its tokens, and the loss "
    "before and after is printed\n"
    "  --no-tokenizer\tleave the tokenizer out\n"
    "  --chat-template T\tthe checkpoint's CHAT_TEMPLATE; scripts/chat-template DIR makes it of "
    "the model's own\n"
    "  --ignore-key KEY\tread a config.json of Hugging Face's as if this key were not there; "
    "repeatable\n"
    "  --force\treplace the model's folder that is there, whole\n"
    "  --unchecked\tdo not verify the checksums in the checkpoint's state.json\n"
    "  --dtype T\tf32, bf16 or f64; default: the checkpoint's, and f32 from Hugging Face\n"
    "  --json\tone object on standard output\n"
    "\n"
    "A checkpoint has a file model.config beside it, with which it can be trained further:\n"
    "  weft train --config DIR/model.config -o DATASET=... --from DIR\n"
    "After --to-mla and --to-w2 such training recovers most of what was lost.\n";

enum { TEXT_TIME = 256, TEXT_TOKENS = 16384 };

typedef struct {
    const char *model, *out, *latent_text, *rope_text, *spread_text, *text, *add, *chat;
    bool to_hf, to_mla, to_w2, joint, no_tokenizer, force;
    int64_t latent, rope;
    double spread;
} conversion;

typedef struct {
    weft_latent_error *errors; /* [layers]; NULL: no MLA */
    double *apart;             /* [layers]; NULL: no W2 */
    double before, after;      /* losses on the text; NaN: none given */
} change;

static void end_change(change *did) {
    WEFT_FREE(did->errors, did->apart);
}

/* The tokenizer of a folder, to be closed after a failure too; NULL where it has none. */
static weft_status open_tokenizer(const conversion *v, const char *folder, const weft_config *c,
                                  weft_tokenizer **out) {
    static const char *const names[] = {"tokenizer.json", "vocab.bpe", "merges.txt"};
    bool there = false, other = false;
    *out = NULL;
    if (v->no_tokenizer) return WEFT_OK;
    for (int i = 0; i < 3 && !there; i++)
        WEFT_TRY(weft_folder_has(folder, names[i], &there));
    if (!there) WEFT_TRY(weft_folder_has(folder, "tokenizer.model", &other));
    if (other)
        return WEFT_BAD_INPUT(
            "%s: its tokenizer is SentencePiece's tokenizer.model, which is not read; "
            "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR), of transformers, writes a "
            "tokenizer.json. --no-tokenizer converts the weights alone",
            folder);
    if (!there) return WEFT_OK;
    weft_status status = weft_tokenizer_open(folder, out);
    if (status != WEFT_OK)
        return weft_fail(status, "%s. --no-tokenizer converts the weights alone",
                         weft_error_message());
    if (weft_tokenizer_vocab(*out) <= c->vocab_size) return WEFT_OK;
    return WEFT_BAD_INPUT("%s: its tokenizer has %lld tokens, but the model knows %lld; it is "
                          "another's. --no-tokenizer converts the weights alone",
                          folder, (long long)weft_tokenizer_vocab(*out), (long long)c->vocab_size);
}

/* The model of either layout, and the folder that it was found in. */
static weft_status read_model(const weft_args *args, const conversion *v, bool theirs,
                              char folder[WEFT_PATH_MAX], weft_model **out) {
    weft_config c;
    weft_config_defaults(&c);
    WEFT_TRY(theirs ? weft_path(folder, "%s", v->model) : weft_checkpoint_folder(v->model, folder));
    if (!args->unchecked) WEFT_TRY(weft_args_checked(weft_model_check_sums(folder)));
    if (!theirs) WEFT_TRY(weft_model_read_config(folder, &c));
    if (args->dtype) WEFT_TRY(weft_config_set(&c, "DTYPE", args->dtype, "--dtype"));
    if (theirs)
        return weft_hf_read(folder, weft_config_dtype(&c), args->repeated, args->n_repeated, out);
    return weft_model_load_as(folder, &c, weft_config_dtype(&c), NULL, out);
}

/* The text's tokens, or where none was given, tokens at random. */
static weft_status read_text(const conversion *v, const weft_model *m, const weft_tokenizer *t,
                             weft_windows *text) {
    int64_t time = m->config.context < TEXT_TIME ? m->config.context : TEXT_TIME;
    WEFT_AUTO(weft_tokenizer_close_at) weft_tokenizer *own = NULL;
    if (!v->text) return weft_windows_random(m->config.vocab_size, time, 2, text);
    if (!t) WEFT_TRY(weft_tokenizer_open(m->config.tokenizer, &own));
    if (!t) t = own;
    if (weft_tokenizer_vocab(t) > m->config.vocab_size)
        return WEFT_BAD_INPUT("--text: the tokenizer has %lld tokens, but the model knows %lld; "
                              "its own belongs beside it as tokenizer.json",
                              (long long)weft_tokenizer_vocab(t), (long long)m->config.vocab_size);
    return weft_windows_read(v->text, t, time, TEXT_TOKENS, text);
}

static weft_status to_mla(const conversion *v, const weft_model *m, weft_backing place,
                          const weft_windows *text, weft_model **out, change *did) {
    weft_mla_options options = {.latent = v->latent, .joint = v->joint, .rope = v->rope};
    WEFT_AUTO_FREE double *moments = NULL;
    WEFT_ROOM_AT(did->errors, m->config.n_layer, "convert: no memory");
    if (v->text) WEFT_TRY(weft_windows_moments(m, place, text, &moments));
    options.moments = moments;
    return weft_convert_to_mla(m, &options, out, did->errors);
}

static weft_status to_w2(const conversion *v, const weft_model *m, weft_backing place,
                         const weft_windows *text, weft_model **out, change *did) {
    WEFT_ROOM_AT(did->apart, m->config.n_layer, "convert: no memory");
    WEFT_TRY(weft_convert_to_w2(m, v->spread, (uint64_t)m->config.seed, out));
    return weft_windows_apart(m, *out, place, text, did->apart);
}

/* *m becomes the model with the mechanisms of --add. */
static weft_status add_mechanisms(const weft_args *args, const conversion *v, weft_model **m) {
    uint64_t seed = (uint64_t)(*m)->config.seed;
    weft_config with = (*m)->config;
    weft_model *changed = NULL;
    bool w2 = false;
    for (const char *at = v->add; *at;) {
        size_t n = strcspn(at, ",");
        WEFT_TRY(weft_convert_add_word(&(*m)->config, at, n, &with, &w2));
        at += n + (at[n] == ',');
    }
    for (int i = 0; i < args->n_overrides; i++)
        WEFT_TRY(weft_config_override(&with, args->overrides[i], "-o"));
    if (w2) {
        WEFT_TRY(weft_convert_to_w2(*m, v->spread_text ? v->spread : 1024, seed, &changed));
        weft_config only = changed->config;
        with.attention = only.attention;
        with.attention_bias = only.attention_bias;
        with.w2_kernel = only.w2_kernel;
        with.w2_tau = only.w2_tau;
        with.w2_tau_learned = only.w2_tau_learned;
        weft_model_destroy(*m);
        *m = changed;
    }
    WEFT_TRY(weft_model_check(&with, "--add"));
    WEFT_TRY(weft_model_add(*m, &with, seed, NULL, &changed));
    weft_model_destroy(*m);
    *m = changed;
    return WEFT_OK;
}

static void print_result(const weft_args *args, const conversion *v, const weft_model *m,
                         bool theirs, const weft_tokenizer *t, const change *did) {
    int64_t layers = m->config.n_layer;
    long long parameters = (long long)weft_model_parameter_count(m);
    if (!args->json) {
        bool rotated = m->config.ra_mla_rope_dim;
        if (did->errors)
            printf("layer  keys lost  values lost%s\n", rotated ? "  without rotation" : "");
        for (int64_t l = 0; did->errors && l < layers; l++) {
            printf("%5lld  %8.2f%%  %10.2f%%", (long long)l, 100 * did->errors[l].keys,
                   100 * did->errors[l].values);
            if (rotated) printf("  %15.2f%%", 100 * did->errors[l].positions);
            printf("\n");
        }
        if (did->apart) printf("layer  attention moved\n");
        for (int64_t l = 0; did->apart && l < layers; l++)
            printf("%5lld  %14.3f%%\n", (long long)l, 100 * did->apart[l]);
        if (!isnan(did->before))
            printf("loss   %.4f before, %.4f after\n", did->before, did->after);
        fflush(stdout);
        fprintf(stderr, "%s: %s, %lld parameters%s\n", v->out,
                v->to_hf ? "Hugging Face's layout" : "a checkpoint", parameters,
                t ? ", with its tokenizer" : ", without a tokenizer");
        return;
    }
    json_t *object = weft_json_make("out:s from:s to:s parameters:I tokenizer:b", v->out,
                                    theirs ? "huggingface" : "weft",
                                    v->to_hf ? "huggingface" : "weft", parameters, t != NULL);
    if (did->errors || did->apart) {
        json_t *list = json_array();
        for (int64_t l = 0; did->errors && l < layers; l++)
            weft_json_append(list, "keys:f values:f positions:f", did->errors[l].keys,
                             did->errors[l].values, did->errors[l].positions);
        for (int64_t l = 0; did->apart && l < layers; l++)
            weft_json_append(list, "moved:f", did->apart[l]);
        weft_json_add(object, "layers:o loss_before:f loss_after:f", list, did->before, did->after);
    }
    weft_args_print(object, 0);
}

/* What of their folder the config says: that there is no tokenizer, or how a message is written, where the
 * chat template is of a form that many models have. */
static weft_status set_text_options(const conversion *v, const weft_tokenizer *t,
                                    const char *folder, weft_config *c) {
    static const char *const forms[][2] = {
        {"<|im_start|>", "<|im_start|>{role}\\n{content}<|im_end|>\\n"},
        {"<|start_header_id|>",
         "<|start_header_id|>{role}<|end_header_id|>\\n\\n{content}<|eot_id|>"}};
    WEFT_AUTO_FREE char *chat = NULL;
    if (v->no_tokenizer) return weft_config_set(c, "TOKENIZER", "none", folder);
    if (v->chat) return weft_config_set(c, "CHAT_TEMPLATE", v->chat, "--chat-template");
    if (!t) return WEFT_OK;
    WEFT_TRY(weft_tokenizer_chat(t, &chat));
    for (int i = 0; chat && i < WEFT_COUNT(forms); i++)
        if (strstr(chat, forms[i][0]))
            return weft_config_set(c, "CHAT_TEMPLATE", forms[i][1], folder);
    if (chat)
        weft_log(
            WEFT_LOG_WARN,
            "%s: its chat template is kept, but weft does not render it; --chat-template, with "
            "what scripts/chat-template prints of the folder, says how a message is written",
            folder);
    return WEFT_OK;
}

static weft_status convert(const weft_args *args, const conversion *v) {
    char folder[WEFT_PATH_MAX];
    WEFT_AUTO(weft_model_destroy_at) weft_model *m = NULL;
    WEFT_AUTO(weft_tokenizer_close_at) weft_tokenizer *t = NULL;
    WEFT_AUTO(end_change) change did = {.before = NAN, .after = NAN};
    bool theirs = weft_hf_is_folder(v->model), changes = v->to_mla || v->to_w2;
    if (!theirs && weft_checkpoint_folder(v->model, folder) != WEFT_OK)
        return WEFT_BAD_INPUT(
            "%s: no model (config.json and model.safetensors) there, of weft's or in "
            "Hugging Face's layout; 'hf download NAME --local-dir DIR' fetches one",
            v->model);
    WEFT_TRY(read_model(args, v, theirs, folder, &m));
    if (!theirs && !v->to_hf && !changes && !v->add)
        return WEFT_BAD_INPUT("%s is a checkpoint of weft's already; --to-hf, --to-mla, --to-w2 "
                              "and --add make something else of it",
                              v->model);
    WEFT_TRY(open_tokenizer(v, folder, &m->config, &t));
    if (theirs || v->chat) WEFT_TRY(set_text_options(v, t, folder, &m->config));
    if (changes) {
        weft_backing place = {0};
        WEFT_AUTO(weft_pool_destroy_at) weft_pool *pool = NULL;
        WEFT_AUTO(weft_windows_free) weft_windows text = {0};
        WEFT_AUTO(weft_model_destroy_at) weft_model *changed = NULL;
        WEFT_TRY(weft_args_backend(args, &m->config, &place.backend, &pool));
        place.pool = pool;
        WEFT_TRY(read_text(v, m, t, &text));
        WEFT_TRY(v->to_mla ? to_mla(v, m, place, &text, &changed, &did)
                           : to_w2(v, m, place, &text, &changed, &did));
        if (v->text) WEFT_TRY(weft_windows_loss(m, place, &text, &did.before));
        if (v->text) WEFT_TRY(weft_windows_loss(changed, place, &text, &did.after));
        weft_model_destroy(m);
        WEFT_TRY(weft_hand(&changed, &m));
    }
    if (v->add) WEFT_TRY(add_mechanisms(args, v, &m));
    /* Whether they have a model for it, before anything is written. */
    weft_hf_family family;
    WEFT_AUTO_DECREF json_t *config = NULL;
    if (v->to_hf) WEFT_TRY(weft_hf_config_write(&m->config, NULL, &family, &config));
    WEFT_TRY(v->to_hf ? weft_hf_write(m, t, v->out, WEFT_NEW_MODEL_MAY(v->force))
                      : weft_new_model_write(v->out, v->force, m, t));
    print_result(args, v, m, theirs, t, &did);
    return WEFT_OK;
}

static weft_status wrong(const char *what) {
    return WEFT_BAD_INPUT("%s; see 'weft help convert'", what);
}

weft_status weft_cmd_convert(weft_args *args, int argc, char **argv) {
    conversion v = {.spread = 4};
    const weft_arg own[] = {
        {"--model", .value = &v.model, .rule = WEFT_ARG_NEEDED},
        {"--out", .value = &v.out, .rule = WEFT_ARG_NEEDED},
        {"--to-hf", .flag = &v.to_hf},
        {"--to-mla", .flag = &v.to_mla},
        {"--latent", .value = &v.latent_text, .number = &v.latent, .min = 1, .max = 65536},
        {"--joint", .flag = &v.joint},
        {"--rope", .value = &v.rope_text, .number = &v.rope, .min = 2, .max = 65536},
        {"--to-w2", .flag = &v.to_w2},
        {"--spread", .value = &v.spread_text, .real = &v.spread, .min = 1e-3, .max = 1e3},
        {"--add", .value = &v.add},
        {"--text", .value = &v.text},
        {"--no-tokenizer", .flag = &v.no_tokenizer},
        {"--chat-template", .value = &v.chat},
        {"--force", .flag = &v.force},
        {.name = "--ignore-key"},
        {0}};
    WEFT_TRY(weft_args_parse(
        args, argc, argv, ARGS_JSON | ARGS_DTYPE | ARGS_OVERRIDES | ARGS_UNCHECKED, own, NULL, 0));
    if (v.to_hf + v.to_mla + v.to_w2 + (v.add != NULL) > 1)
        return wrong("--to-hf, --to-mla, --to-w2 and --add do not go together");
    if (v.to_mla != (v.latent_text != NULL)) return wrong("--to-mla and --latent go together");
    if (args->n_overrides && !v.add) return wrong("-o goes with --add");
    if (v.chat && (v.to_hf || v.no_tokenizer))
        return wrong("--chat-template goes with neither --to-hf nor --no-tokenizer");
    if (v.joint && !v.to_mla) return wrong("--joint goes with --to-mla");
    if (v.rope_text && !v.to_mla) return wrong("--rope goes with --to-mla");
    if (v.spread_text && !v.to_w2 && !v.add)
        return wrong("--spread goes with --to-w2 and --add w2");
    if (v.text && !v.to_mla && !v.to_w2) return wrong("--text goes with --to-mla and --to-w2");
    WEFT_TRY(v.text ? weft_args_readable(v.text, NULL) : WEFT_OK);
    return convert(args, &v);
}
