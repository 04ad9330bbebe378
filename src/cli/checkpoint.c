/* Checkpoints, opened for what a command does with them and written when it has made one. */
#include "cli/args.h"

#include "generate/decoder.h"
#include "model/kinds.h"

weft_status weft_checkpoint_folder(const char *path, char out[WEFT_PATH_MAX]) {
    static const char *const inside[] = {"", "/best", "/last"};
    struct stat s;
    bool is;
    for (int i = 0; i < WEFT_COUNT(inside); i++) {
        WEFT_TRY(weft_path(out, "%s%s", path, inside[i]));
        WEFT_TRY(weft_folder_has(out, "config.json", &is));
        if (is) WEFT_TRY(weft_folder_has(out, "model.safetensors", &is));
        if (is) return WEFT_OK;
    }
    if (stat(path, &s) == 0 && !S_ISDIR(s.st_mode))
        return WEFT_BAD_INPUT(
            "%s is a file; a checkpoint is a folder with config.json and model.safetensors", path);
    if (weft_folder_has(path, "runs.db", &is) == WEFT_OK && is)
        return WEFT_BAD_INPUT("%s is a study's folder; name one of its runs, in %s/runs", path,
                              path);
    return WEFT_BAD_INPUT("%s: no checkpoint (config.json and model.safetensors) there, nor in its "
                          "best/ or last/; weft train --out DIR makes one",
                          path);
}

weft_status weft_loaded_open(const weft_args *a, const char *path, weft_loaded_for purpose,
                             weft_loaded *out) {
    *out = (weft_loaded){0};
    weft_config *c = &out->config;
    WEFT_TRY(weft_checkpoint_folder(path, out->folder));
    if (!a->unchecked) WEFT_TRY(weft_args_checked(weft_model_check_sums(out->folder)));
    WEFT_TRY(weft_model_read_config(out->folder, c));
    for (int i = 0; i < a->n_settings; i++)
        WEFT_TRY(weft_config_override(c, a->settings[i].text, a->settings[i].where));
    WEFT_TRY(weft_model_check(c, out->folder));
    bool there = purpose != WEFT_LOADED_MODEL;
    if (purpose == WEFT_LOADED_ANY_TOKENIZER || purpose == WEFT_LOADED_NUMBERS)
        WEFT_TRY(weft_folder_has(out->folder, weft_parts[WEFT_PART_TOKENIZER], &there));
    if (there) { /* its own, or what the config names; to be closed after a failure too */
        WEFT_PATH(own, "%s/%s", out->folder, weft_parts[WEFT_PART_TOKENIZER]);
        WEFT_TRY(weft_path_there(own, &there));
        WEFT_TRY(weft_tokenizer_open(there ? own : c->tokenizer, &out->tokenizer));
        int64_t tokens = weft_tokenizer_vocab(out->tokenizer);
        if (tokens > c->vocab_size)
            return WEFT_BAD_INPUT(
                "%s: its tokenizer has %lld tokens, but the model knows %lld; it is another's",
                out->folder, (long long)tokens, (long long)c->vocab_size);
    }
    if (purpose == WEFT_LOADED_GENERATION)
        WEFT_TRY(weft_encoder_open(out->tokenizer, &out->encoder));
    WEFT_TRY(weft_args_backend(a, c, &out->backend, &out->pool));
    if (purpose >= WEFT_LOADED_GENERATION) weft_generation_set_dtype(c, out->backend);
    return weft_model_load_as(out->folder, c, weft_config_dtype(c), out->pool, &out->model);
}

/* Whether every number is the same token of both. */
static bool have_same_tokens(const weft_tokenizer *a, const weft_tokenizer *b) {
    bool same = weft_tokenizer_vocab(a) == weft_tokenizer_vocab(b);
    for (int64_t i = 0; same && i < weft_tokenizer_vocab(a); i++) {
        int32_t n = 0, m = 0;
        const char *x = weft_tokenizer_token(a, (int32_t)i, &n);
        const char *y = weft_tokenizer_token(b, (int32_t)i, &m);
        same = !x == !y && n == m && (!x || memcmp(x, y, (size_t)n) == 0);
    }
    return same;
}

weft_status weft_speculation_open(const weft_args *a, const char *how, const weft_loaded *model,
                                  weft_loaded *draft, weft_generator_limits *limits) {
    limits->ngram = how && strcmp(how, "ngram") == 0;
    if (!how || limits->ngram) return WEFT_OK;
    weft_status status = weft_loaded_open(
        a, how, model->encoder ? WEFT_LOADED_GENERATION : WEFT_LOADED_NUMBERS, draft);
    weft_pool_destroy(weft_steal(&draft->pool)); /* it runs on the model's */
    if (status == WEFT_OK && model->tokenizer && draft->tokenizer &&
        !have_same_tokens(model->tokenizer, draft->tokenizer))
        status = WEFT_BAD_INPUT("its tokenizer is not the model's; a draft model must have "
                                "the same tokens");
    limits->draft = draft->model;
    return status == WEFT_OK ? status
                             : weft_fail(status, "--speculate %s: %s", how, weft_error_message());
}

void weft_loaded_close(weft_loaded *l) {
    weft_pool_destroy(l->pool);
    weft_model_destroy(l->model);
    weft_encoder_close(l->encoder);
    weft_tokenizer_close(l->tokenizer);
}

typedef struct {
    const weft_model *model;
    const weft_tokenizer *tokenizer;
} made_parts;

/* The options that make the model, DTYPE and CHAT_TEMPLATE, are a config that training takes. */
static bool makes_model(const weft_option *o) {
    return o->owner == WEFT_OWNER_MODEL || o == WEFT_OPTION(dtype) ||
           o == WEFT_OPTION(chat_template);
}

static weft_status write_parts(void *context, const char *folder, weft_sum sums[WEFT_PARTS]) {
    const made_parts *p = context;
    WEFT_PATH(path, "%s/model.config", folder);
    WEFT_TRY(weft_model_save_summed(p->model, folder, sums));
    WEFT_TRY(weft_config_save_changes(&p->model->config, "", makes_model, path));
    WEFT_TRY(weft_path(path, "%s/%s", folder, weft_parts[WEFT_PART_TOKENIZER]));
    return p->tokenizer ? weft_tokenizer_save(p->tokenizer, path, &sums[WEFT_PART_TOKENIZER])
                        : WEFT_OK;
}

weft_status weft_new_model_write(const char *folder, bool force, const weft_model *m,
                                 const weft_tokenizer *t) {
    return weft_model_publish(folder, WEFT_NEW_MODEL_MAY(force), write_parts, &(made_parts){m, t});
}
