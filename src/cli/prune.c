/* weft prune: a smaller model from a trained one. */
#include "convert/prune.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/args.h"
#include "inspect/inspect.h"

#include <errno.h>
#include <math.h>

const char weft_help_prune[] =
    "  --model DIR\tthe model: a checkpoint, or a run's folder for its best\n"
    "  --out DIR\twhere the smaller checkpoint goes\n"
    "  --what W\twhat is removed: heads (of attention), ffn (columns of the feed-forward), z-heads "
    "(of WsFFN, with their columns), cross (columns of cross-token's matrix, or directions of it "
    "if its rank is limited)\n"
    "  --keep X\tthe share that stays, between 0 and 1; each layer keeps as many\n"
    "  --by B\twhat makes a part important: magnitude (the default: the sum of its squared "
    "weights), state (squared weights times AdamW's second moments, from the checkpoint's "
    "optimizer.safetensors), gate (heads alone: the mean of their gates over --text; the first "
    "layer, which has none, by magnitude)\n"
    "  --sparse\tzeros in place of what is removed: all shapes stay\n"
    "  --text FILE\ta text to measure the loss on, before and after; needed by --by gate\n"
    "  --force\treplace the model's folder that is there, whole\n"
    "  -o KEY=VALUE\toverride a key of the checkpoint's config; repeatable\n"
    "  --unchecked\tdo not verify the checksums in the checkpoint's state.json\n"
    "  --dtype T\tf32, bf16 or f64; default: the checkpoint's\n"
    "  --device D\tcpu, cuda or auto\n"
    "  --threads N\tdefault: one per processor\n"
    "  --json\tone object on standard output\n"
    "\n"
    "The model that is left computes what the whole one does with the removed parts' outputs at "
    "zero. Training recovers most of what was lost; DIR/model.config is a config for it:\n"
    "  weft train --config DIR/model.config -o DATASET=... --from DIR\n";

enum { TEXT_TIME = 256, TEXT_WINDOWS = 32 };

typedef struct {
    const char *model, *out, *what_text, *by_text, *keep_text, *text;
    bool sparse, force;
    weft_prune_what what;
    double keep;
} prune_job;

typedef struct {
    weft_pruned did;
    weft_model *model;
    int64_t before, after;          /* parameters */
    double loss_before, loss_after; /* NaN without a text */
} prune_result;

static void end_result(prune_result *r) {
    weft_model_destroy(r->model);
    weft_pruned_free(&r->did);
}

static const char *const whats[] = {"heads", "ffn", "z-heads", "cross"};
static const char *const bys[] = {"magnitude", "state", "gate"};

static int find_word(const char *const *words, int n, const char *word) {
    for (int i = 0; i < n; i++)
        if (strcmp(words[i], word) == 0) return i;
    return -1;
}

static weft_status wrong(const char *what, const char *word) {
    return WEFT_BAD_INPUT("%s '%s'; see 'weft help prune'", what, word);
}

static weft_status prune(const weft_args *args, const prune_job *job, const weft_loaded *l,
                         const weft_windows *text, prune_result *r) {
    weft_backing place = {l->backend, l->pool};
    WEFT_AUTO(weft_safetensors_close_at) weft_safetensors *state = NULL;
    WEFT_AUTO_FREE double *given = NULL;
    if (strcmp(job->by_text, "state") == 0) {
        bool there;
        WEFT_PATH(file, "%s/optimizer.safetensors", l->folder);
        WEFT_TRY(weft_path_there(file, &there));
        if (!there)
            return WEFT_BAD_INPUT("%s: is not there, and --by state reads it; a run's checkpoints "
                                  "have it. --by magnitude needs none",
                                  file);
        /* A state of another model would rank by what has nothing to do with the weights. */
        if (!args->unchecked) WEFT_TRY(weft_args_checked(weft_model_check_optimizer(l->folder)));
        WEFT_TRY(weft_safetensors_open(file, &state));
    }
    if (strcmp(job->by_text, "gate") == 0) {
        /* The mean gate of each unit: [layers, units]; the first layer has none. */
        const weft_config *c = &l->model->config;
        int64_t units = weft_config_kv_heads(c), group = c->n_head / units;
        WEFT_AUTO(weft_inspection_free) weft_inspection i = {0};
        if (!c->attn_gate)
            return WEFT_BAD_INPUT(
                "--by gate: the model has no gates (CONFIG_RA_MLA_MLP_ATTN_GATE); "
                "--by magnitude and --by state need none");
        WEFT_TRY(weft_inspect(l->model, place, text, false, &i));
        WEFT_ROOM_AT(given, c->n_layer * units, "prune: no memory");
        for (int64_t k = 0; k < c->n_layer * c->n_head; k++)
            given[k / group] +=
                i.layers[k / c->n_head].heads[k % c->n_head].number[WEFT_HEAD_GATE] / (double)group;
    }
    weft_prune_options options = {.what = job->what,
                                  .keep = job->keep,
                                  .sparse = job->sparse,
                                  .given = given,
                                  .state = state};
    WEFT_TRY(weft_prune(l->model, &options, &r->model, &r->did));
    if (!job->text) return WEFT_OK;
    WEFT_TRY(weft_windows_loss(l->model, place, text, &r->loss_before));
    return weft_windows_loss(r->model, place, text, &r->loss_after);
}

static void print_text(const prune_job *job, const prune_result *r) {
    printf("layer  importance kept\n");
    for (int64_t l = 0; l < r->did.n_layers; l++)
        printf("%5lld  %14.1f%%\n", (long long)l, 100 * r->did.layers[l].share);
    printf("%s: %lld of %lld in each layer%s\n", job->what_text, (long long)r->did.left,
           (long long)r->did.units, job->sparse ? ", zeros in place of the others" : "");
    printf("parameters: %s of %s\n", weft_count_text(r->after), weft_count_text(r->before));
    if (job->text) printf("loss: %.4f before, %.4f after\n", r->loss_before, r->loss_after);
    fflush(stdout);
    /* The program as it was called, so that the line can be copied. */
    char config[WEFT_PATH_MAX];
    snprintf(config, sizeof config, "%s/model.config", job->out);
    fprintf(stderr, "%s: a checkpoint\n", weft_shown(job->out));
    fprintf(stderr, "next: %s train --config %s --from %s -o DATASET=DATA\n",
            weft_args_word(program_invocation_name), weft_args_word(config),
            weft_args_word(job->out));
}

static void print_json(const prune_job *job, const prune_result *r) {
    json_t *layers = json_array();
    for (int64_t l = 0; l < r->did.n_layers; l++) {
        WEFT_JSON_LIST(kept, k, r->did.left, json_integer(r->did.layers[l].kept[k]));
        weft_json_append(layers, "importance_kept:f kept:o", r->did.layers[l].share, kept);
    }
    json_t *object =
        weft_json_make("out:s what:s by:s sparse:b units:I left:I parameters_before:I parameters:I "
                       "loss_before:f loss_after:f layers:o",
                       job->out, job->what_text, job->by_text, job->sparse, r->did.units,
                       r->did.left, r->before, r->after, r->loss_before, r->loss_after, layers);
    weft_args_print(object, 0);
}

weft_status weft_cmd_prune(weft_args *args, int argc, char **argv) {
    prune_job job = {0};
    const weft_arg own[] = {{"--model", .value = &job.model, .rule = WEFT_ARG_NEEDED},
                            {"--out", .value = &job.out, .rule = WEFT_ARG_NEEDED},
                            {"--what", .value = &job.what_text, .rule = WEFT_ARG_NEEDED},
                            {"--keep", .value = &job.keep_text, .real = &job.keep, .min = 1e-6,
                             .max = 1, .rule = WEFT_ARG_NEEDED},
                            {"--by", .value = &job.by_text},
                            {"--text", .value = &job.text},
                            {"--sparse", .flag = &job.sparse},
                            {"--force", .flag = &job.force},
                            {0}};
    WEFT_TRY(weft_args_parse(args, argc, argv, ARGS_ALL | ARGS_UNCHECKED, own, NULL, 0));
    int what = find_word(whats, 4, job.what_text);
    if (what < 0) return wrong("--what is heads, ffn, z-heads or cross, not", job.what_text);
    job.what = (weft_prune_what)what;
    if (!job.by_text) job.by_text = bys[0];
    if (find_word(bys, 3, job.by_text) < 0)
        return wrong("--by is magnitude, state or gate, not", job.by_text);
    bool gate = strcmp(job.by_text, "gate") == 0;
    if (gate && job.what != WEFT_PRUNE_HEADS)
        return wrong("--by gate goes with --what heads, not", job.what_text);
    if (gate && !job.text)
        return WEFT_BAD_INPUT("--by gate needs a --text on which the gates are measured");
    WEFT_TRY(weft_args_no_config(args));
    WEFT_TRY(job.text ? weft_args_readable(job.text, NULL) : WEFT_OK);
    WEFT_AUTO(weft_loaded_close) weft_loaded loaded = {0};
    weft_loaded *l = &loaded;
    WEFT_AUTO(weft_windows_free) weft_windows text = {0};
    WEFT_AUTO(end_result) prune_result r = {.loss_before = NAN, .loss_after = NAN};
    WEFT_TRY(weft_loaded_open(args, job.model,
                              job.text ? WEFT_LOADED_TEXT : WEFT_LOADED_ANY_TOKENIZER, l));
    int64_t time = l->config.context < TEXT_TIME ? l->config.context : TEXT_TIME;
    if (job.text)
        WEFT_TRY(weft_windows_read(job.text, l->tokenizer, time, TEXT_WINDOWS * (time + 1), &text));
    WEFT_TRY(prune(args, &job, l, &text, &r));
    WEFT_TRY(weft_new_model_write(job.out, job.force, r.model, l->tokenizer));
    r.before = weft_model_parameter_count(l->model);
    r.after = weft_model_parameter_count(r.model);
    if (args->json)
        print_json(&job, &r);
    else
        print_text(&job, &r);
    return WEFT_OK;
}
