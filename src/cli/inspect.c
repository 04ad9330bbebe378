/* weft inspect: what a model's mechanisms do on a text. */
#include "inspect/inspect.h"
#include "base/text.h"
#include "cli/args.h"

const char weft_help_inspect[] =
    "  --model DIR\ta checkpoint, or a run's folder for its best; also without --model\n"
    "  --text FILE\ta text, read by the checkpoint's tokenizer\n"
    "  --tokens FILE\tin place of it: a .npy of shape [B, T+1], or a token shard\n"
    "  --context N\ttokens of a window; default: 256, or the model's context if smaller\n"
    "  --windows N\tmost windows to read; default: 8\n"
    "  --out FILE\twrite a page with pictures as HTML\n"
    "  --force\toverwrite FILE whatever it is\n"
    "  --no-gradients\tleave out the training pass that measures gradients\n"
    "  -o KEY=VALUE\toverride a key of the checkpoint's config; repeatable\n"
    "  --unchecked\tdo not verify the checksums in the checkpoint's state.json\n"
    "  --dtype T\tf32, bf16 or f64\n"
    "  --device D\tcpu, cuda or auto\n"
    "  --threads N\tdefault: one per processor\n"
    "  --json\tone object on standard output\n"
    "\n"
    "For each head of each layer: the entropy of its weights, where they lie, W2's temperature and "
    "deviations, the gate. For each layer: what the routes of cross-token keep, the directions in "
    "MLA's latents, how alike the z-heads are. For each mechanism: the norm of its gradient.\n";

enum { CONTEXT = 256, WINDOWS = 8 };

typedef struct {
    const char *model, *text, *tokens, *out, *context_text;
    bool force, no_gradients;
    int64_t context, windows;
} inspect_job;

static weft_status inspect(const weft_args *a, const inspect_job *job) {
    WEFT_AUTO(weft_loaded_close) weft_loaded loaded = {0};
    weft_loaded *l = &loaded;
    WEFT_AUTO(weft_windows_free) weft_windows text = {0};
    WEFT_AUTO(weft_inspection_free) weft_inspection found = {0};
    WEFT_TRY(weft_loaded_open(a, job->model, job->text ? WEFT_LOADED_TEXT : WEFT_LOADED_MODEL, l));
    l->model->config.dropout = 0;
    weft_backing place = {l->backend, l->pool};
    int64_t block = l->config.context, time = job->context;
    if (job->context_text && time > block)
        return WEFT_BAD_INPUT(
            "--context %lld: the model has %lld tokens of context (CONFIG_CONTEXT)",
            (long long)time, (long long)block);
    if (time > block) time = block;
    WEFT_TRY(job->tokens ? weft_windows_tokens(job->tokens, time, job->windows, &text)
                         : weft_windows_read(job->text, l->tokenizer, time,
                                             job->windows * (time + 1), &text));
    WEFT_TRY(weft_inspect(l->model, place, &text, !job->no_gradients, &found));
    char title[256];
    snprintf(title, sizeof title, "Inside %.200s", job->model);
    if (job->out)
        WEFT_TRY(weft_inspection_page(&found, l->model, place, &text, l->tokenizer, title, job->out,
                                      job->force));
    if (!a->json) {
        weft_inspection_print(&found, stdout);
        if (job->out) printf("\npictures: %s\n", weft_shown(job->out));
        return WEFT_OK;
    }
    weft_args_print(weft_inspection_json(&found), 0);
    return WEFT_OK;
}

weft_status weft_cmd_inspect(weft_args *args, int argc, char **argv) {
    inspect_job job = {.context = CONTEXT, .windows = WINDOWS};
    const char *word = NULL;
    const weft_arg own[] = {
        {"--model", .value = &job.model},
        {"--text", .value = &job.text},
        {"--tokens", .value = &job.tokens},
        {"--context", .value = &job.context_text, .number = &job.context, .min = 2, .max = 1 << 20},
        {"--windows", .number = &job.windows, .min = 1, .max = 1 << 20},
        {"--out", .value = &job.out},
        {"--force", .flag = &job.force},
        {"--no-gradients", .flag = &job.no_gradients},
        {0}};
    WEFT_TRY(weft_args_parse(args, argc, argv, ARGS_ALL | ARGS_UNCHECKED, own, &word, 1));
    if (!job.model) job.model = word;
    if (!job.model || (word && job.model != word))
        return WEFT_BAD_INPUT(
            "one model is needed: weft inspect DIR --text FILE; see 'weft help inspect'");
    if (!job.text == !job.tokens)
        return WEFT_BAD_INPUT("--text FILE or --tokens FILE is needed%s",
                              job.text ? ", one of them at a time" : "");
    WEFT_TRY(weft_args_no_config(args));
    WEFT_TRY(weft_args_readable(job.text ? job.text : job.tokens, NULL));
    return inspect(args, &job);
}
