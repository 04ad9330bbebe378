/* weft convert: a model from one layout into another. */
#include "cli/args.h"
#include "convert/hf.h"
#include "core/folders.h"
#include "generate/folder.h"
#include "model/sums.h"

#include <string.h>
#include <unistd.h>

const char weft_help_convert[] =
    "  --model DIR        what to convert: a checkpoint, or a folder in Hugging Face's layout\n"
    "                     (GPT-2, Llama, Mistral, Qwen2: config.json, safetensors, tokenizer)\n"
    "  --out DIR          where the result goes: a checkpoint, unless --to-hf is given\n"
    "  --to-hf            write Hugging Face's layout\n"
    "  --no-tokenizer     leave the tokenizer out\n"
    "  --force            overwrite the model that is there\n"
    "  --unchecked        do not verify the checksums in the checkpoint's state.json\n"
    "  --dtype T          f32, bf16 or f64; default: the checkpoint's, and f32 from Hugging Face\n"
    "  --json             one object on standard output\n"
    "\n"
    "A checkpoint made so has a file model.config, so that it can be trained further:\n"
    "  weft train --config DIR/model.config -o DATASET=... --from DIR\n";

typedef struct {
    const char *model, *out;
    bool to_hf, no_tokenizer, force, unchecked;
} conversion;

/* The folder, with no model in it that would be overwritten unasked. */
static weft_status make_room(const conversion *v) {
    static const char *const names[] = {"config.json", "model.safetensors", "state.json",
                                        "model.config", "tokenizer.json"};
    char path[WEFT_PATH_MAX];
    WEFT_TRY(weft_folder_make_one(v->out));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        WEFT_TRY(weft_path(path, "%s/%s", v->out, names[i]));
        WEFT_TRY(weft_file_vacant(path, v->force));
    }
    return weft_state_remove(v->out);
}

/* The options that make the model, as a config that training takes. */
static weft_status write_model_config(const weft_config *c, const char *folder) {
    char path[WEFT_PATH_MAX], value[WEFT_TEXT_MAX], usual[WEFT_TEXT_MAX], *text = NULL;
    size_t bytes = 0;
    weft_config defaults;
    int count;
    const weft_option *options = weft_options(&count);
    weft_config_defaults(&defaults);
    WEFT_TRY(weft_path(path, "%s/model.config", folder));
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return weft_fail(WEFT_ENOMEM, "%s: no memory", path);
    for (int i = 0; i < count; i++) {
        const weft_option *o = &options[i];
        bool plain = o->type == WEFT_OPT_BOOL || o->type == WEFT_OPT_INT;
        weft_config_format(c, o, value, sizeof value);
        weft_config_format(&defaults, o, usual, sizeof usual);
        if (o->owner != WEFT_OWNER_MODEL || strcmp(value, usual) == 0) continue;
        fprintf(out, plain ? "CONFIG_%s=%s\n" : "CONFIG_%s=\"%s\"\n", o->key, value);
    }
    if (fclose(out) != 0) {
        free(text);
        return weft_fail(WEFT_ENOMEM, "%s: no memory", path);
    }
    weft_status status = weft_file_write(path, text, bytes, NULL);
    free(text);
    return status;
}

static weft_status write_checkpoint(const conversion *v, const weft_model *m,
                                    const weft_tokenizer *t) {
    char path[WEFT_PATH_MAX];
    weft_sum sum;
    WEFT_TRY(weft_model_save(m, v->out));
    WEFT_TRY(write_model_config(&m->config, v->out));
    WEFT_TRY(weft_path(path, "%s/tokenizer.json", v->out));
    return t ? weft_tokenizer_save(t, path, &sum) : WEFT_OK;
}

static bool has_file(const char *folder, const char *name) {
    char path[WEFT_PATH_MAX];
    return weft_path(path, "%s/%s", folder, name) == WEFT_OK && access(path, R_OK) == 0;
}

/* The tokenizer of a folder; NULL where it has none. */
static weft_status open_tokenizer(const conversion *v, const char *folder, const weft_config *c,
                                  weft_tokenizer **out) {
    static const char *const names[] = {"tokenizer.json", "vocab.bpe", "merges.txt"};
    bool there = false;
    *out = NULL;
    for (int i = 0; i < 3; i++)
        there |= has_file(folder, names[i]);
    if (v->no_tokenizer) return WEFT_OK;
    if (!there && has_file(folder, "tokenizer.model"))
        return weft_fail(WEFT_EINPUT,
                         "%s: its tokenizer is SentencePiece's tokenizer.model, which is not "
                         "supported; byte-level BPE is. --no-tokenizer converts the weights alone",
                         folder);
    if (!there) return WEFT_OK;
    weft_status status = weft_tokenizer_open(folder, out);
    if (status != WEFT_OK)
        return weft_fail(status, "%s. --no-tokenizer converts the weights alone",
                         weft_error_message());
    if (weft_tokenizer_vocab(*out) <= c->vocab_size) return WEFT_OK;
    status = weft_fail(WEFT_EINPUT,
                       "%s: its tokenizer has %lld tokens, but the model knows %lld; it is "
                       "another's. --no-tokenizer converts the weights alone",
                       folder, (long long)weft_tokenizer_vocab(*out), (long long)c->vocab_size);
    weft_tokenizer_close(*out);
    *out = NULL;
    return status;
}

/* The model of either layout, and the folder that it was found in. */
static weft_status read_model(const weft_args *args, const conversion *v, bool theirs,
                              char folder[WEFT_FOLDER_PATH], weft_model **out) {
    weft_config c;
    weft_config_defaults(&c);
    if (theirs) {
        if (snprintf(folder, WEFT_FOLDER_PATH, "%s", v->model) >= WEFT_FOLDER_PATH)
            return weft_fail(WEFT_EINPUT, "%.200s...: the path is too long", v->model);
        if (args->dtype) WEFT_TRY(weft_config_set(&c, "DTYPE", args->dtype, "--dtype"));
        return weft_hf_read(folder, weft_config_dtype(&c), out);
    }
    WEFT_TRY(weft_generation_folder(v->model, folder));
    if (!v->unchecked) WEFT_TRY(weft_args_check_model(folder));
    WEFT_TRY(weft_model_read_config(folder, &c));
    if (args->dtype) WEFT_TRY(weft_config_set(&c, "DTYPE", args->dtype, "--dtype"));
    return weft_model_load_as(folder, &c, weft_config_dtype(&c), out);
}

static void print_result(const weft_args *args, const conversion *v, const weft_model *m,
                         bool theirs, const weft_tokenizer *t) {
    long long parameters = (long long)weft_model_parameter_count(m);
    if (!args->json) {
        fprintf(stderr, "%s: %s, %lld parameters%s\n", v->out,
                v->to_hf ? "Hugging Face's layout" : "a checkpoint", parameters,
                t ? ", with its tokenizer" : ", without a tokenizer");
        return;
    }
    json_t *object =
        json_pack("{s:s, s:s, s:s, s:I, s:b}", "out", v->out, "from",
                  theirs ? "huggingface" : "weft", "to", v->to_hf ? "huggingface" : "weft",
                  "parameters", (json_int_t)parameters, "tokenizer", t != NULL);
    json_dumpf(object, stdout, JSON_INDENT(2));
    printf("\n");
    json_decref(object);
}

/* Whether they have a model for it, before anything is written. */
static weft_status check_theirs(const weft_config *c) {
    weft_hf_family family;
    json_t *config;
    WEFT_TRY(weft_hf_config_write(c, -1, &family, &config));
    json_decref(config);
    return WEFT_OK;
}

static weft_status convert(const weft_args *args, const conversion *v) {
    char folder[WEFT_FOLDER_PATH];
    weft_model *m = NULL;
    weft_tokenizer *t = NULL;
    bool theirs = weft_hf_is_folder(v->model);
    if (!theirs && !v->to_hf)
        return weft_fail(
            WEFT_EINPUT,
            "%s is a checkpoint of weft's already; --to-hf writes Hugging Face's layout", v->model);
    weft_status status = read_model(args, v, theirs, folder, &m);
    if (status == WEFT_OK) status = open_tokenizer(v, folder, &m->config, &t);
    if (status == WEFT_OK && v->to_hf) status = check_theirs(&m->config);
    if (status == WEFT_OK) status = make_room(v);
    if (status == WEFT_OK)
        status = v->to_hf ? weft_hf_write(m, t, v->out) : write_checkpoint(v, m, t);
    if (status == WEFT_OK) print_result(args, v, m, theirs, t);
    weft_tokenizer_close(t);
    weft_model_destroy(m);
    return status;
}

int weft_cmd_convert(int argc, char **argv) {
    weft_args args;
    conversion v = {0};
    const weft_arg own[] = {
        {"--model", &v.model, NULL, true},  {"--out", &v.out, NULL, true},
        {"--to-hf", NULL, &v.to_hf, false}, {"--no-tokenizer", NULL, &v.no_tokenizer, false},
        {"--force", NULL, &v.force, false}, {"--unchecked", NULL, &v.unchecked, false},
        {NULL, NULL, NULL, false}};
    int exit_status = weft_args_parse(&args, argc, argv, own, NULL, 0);
    if (exit_status) return exit_status;
    weft_status status = convert(&args, &v);
    return status == WEFT_OK ? WEFT_EXIT_DONE : weft_args_fail(&args, status);
}
