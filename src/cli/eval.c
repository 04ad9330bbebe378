/* weft eval: a checkpoint's loss by parts on a file of tokens, and what else can be read off the
 * pass; or its score on multiple-choice questions, or at finding a key in a long text. */
#include "eval/eval.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/args.h"
#include "cli/needle.h"
#include "generate/folder.h"
#include "model/account.h"
#include "model/evaluate.h"
#include "model/kinds.h"

#include <jansson.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

const char weft_help_eval[] =
    "  --model DIR        a checkpoint: config.json and model.safetensors; a run's folder stands "
    "for\n"
    "                     its best\n"
    "  --text FILE        a text, read by the checkpoint's tokenizer\n"
    "  --tokens FILE      a .npy of shape [B, T+1] (int32 or int64), one batch; or a token shard\n"
    "  --targets FILE     a .npy of shape [B, T], -1 for ignored; without it, the tokens that "
    "follow\n"
    "  --logits OUT       write the logits [B, T, V] as safetensors\n"
    "  --grads OUT        write every tensor's gradient: one train-mode pass without dropout, "
    "from\n"
    "                     which loss and logits come too\n"
    "  --scores OUT       write the raw attention scores [B, H, T, T] of each layer; with W2\n"
    "                     attention these are minus the squared distances over the temperature\n"
    "  --suite FILE       in place of --tokens: multiple-choice questions, JSON lines with "
    "context,\n"
    "                     choices and answer (from 0); prints the share of answers that are the\n"
    "                     likeliest choice by log-likelihood (acc) and by that per character\n"
    "                     (acc_norm). A choice follows its context as it is: a blank between them\n"
    "                     is part of the choice\n"
    "  --needle           in place of --tokens: hide a pass key of five digits in text, ask for it "
    "at\n"
    "                     the end, and print the share of right answers by length and depth. The\n"
    "                     text is --text, or for tokenizers of bytes text made by the program\n"
    "  --lengths A,B      tokens of a prompt with its answer; default: a quarter, a half and all "
    "of\n"
    "                     the model's context; more only with positions that have no end (rope,\n"
    "                     alibi, none; -o ROPE_SCALING=... slows rotations)\n"
    "  --depths A,B       where the key is, 0 the beginning, 1 the end; default: "
    "0,0.25,0.5,0.75,1\n"
    "  --trials N         keys for each length and depth; default: 10\n"
    "  --seed N           random seed of the texts and keys\n"
    "  --details OUT      write each question's log-likelihoods, or each prompt and answer, as "
    "JSON\n"
    "                     lines\n"
    "  -o KEY=VALUE       override a key of the checkpoint's config; repeatable\n"
    "  --unchecked        do not verify the checksums in the checkpoint's state.json\n"
    "  --dtype T          f32, bf16 or f64\n"
    "  --device D         cpu, cuda or auto\n"
    "  --threads N        default: one per processor\n"
    "  --json             one object on standard output\n";

/* NaN where it is not known what the tokens stand for. */
static double bits_per_byte(const weft_evaluated *e) {
    double nats = e->parts.cross_entropy * (double)e->tokens;
    return e->bytes > 0 ? nats / log(2) / (double)e->bytes : NAN;
}

static void print_parts(const weft_args *args, const weft_evaluated *e) {
    const weft_loss_parts *p = &e->parts;
    char tokens[WEFT_COUNT_ROOM];
    double perplexity = exp(p->cross_entropy), bits = bits_per_byte(e);
    if (!args->json) {
        printf("tokens          %s\nloss            %.6f\ncross_entropy   %.6f\n"
               "perplexity      %.4f\n",
               weft_count_text(e->tokens, tokens), p->loss, p->cross_entropy, perplexity);
        if (isfinite(bits)) printf("bits_per_byte   %.4f\n", bits);
        printf("aux_z           %.6g\naux_contrastive %.6g\nlogits_z        %.6g\n", p->aux_z,
               p->aux_contrastive, p->logits_z);
        return;
    }
    json_t *object = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:I, s:o, s:o}", "loss", weft_json_number(p->loss),
        "cross_entropy", weft_json_number(p->cross_entropy), "aux_z", weft_json_number(p->aux_z),
        "aux_contrastive", weft_json_number(p->aux_contrastive), "logits_z",
        weft_json_number(p->logits_z), "tokens", (json_int_t)e->tokens, "perplexity",
        weft_json_number(perplexity), "bits_per_byte", weft_json_number(bits));
    json_dumpf(object, stdout, JSON_INDENT(2));
    printf("\n");
    json_decref(object);
}

static void print_score(const weft_args *args, const char *path, const weft_suite_score *s) {
    if (!args->json) {
        printf("questions  %lld\nacc        %.4f ± %.4f\nacc_norm   %.4f ± %.4f\n",
               (long long)s->questions, s->acc, s->acc_error, s->acc_norm, s->acc_norm_error);
        return;
    }
    json_t *object = json_pack("{s:s, s:I, s:f, s:f, s:f, s:f}", "suite", path, "questions",
                               (json_int_t)s->questions, "acc", s->acc, "acc_norm", s->acc_norm,
                               "acc_stderr", s->acc_error, "acc_norm_stderr", s->acc_norm_error);
    json_dumpf(object, stdout, JSON_INDENT(2));
    printf("\n");
    json_decref(object);
}

/* The checkpoint's own config, with what the arguments change of it. */
static weft_status checkpoint_config(const weft_args *args, const char *folder, weft_config *c) {
    WEFT_TRY(weft_model_read_config(folder, c));
    for (int i = 0; i < args->n_overrides; i++)
        WEFT_TRY(weft_config_override(c, args->overrides[i], "-o"));
    if (args->dtype) WEFT_TRY(weft_config_set(c, "DTYPE", args->dtype, "--dtype"));
    if (args->device) WEFT_TRY(weft_config_set(c, "DEVICE", args->device, "--device"));
    return weft_model_check(c, folder);
}

static int misuse(const char *what) {
    fprintf(stderr, "weft eval: %s\n", what);
    return WEFT_EXIT_USAGE;
}

/* What goes with what. */
static int check_usage(const weft_evaluation *what, const char *suite, const char *details,
                       const weft_needle_args *needle) {
    bool outputs = what->targets || what->logits || what->grads || what->scores;
    if (!needle->on && (needle->lengths || needle->depths || needle->trials))
        return misuse("--lengths, --depths and --trials go with --needle");
    if (needle->on && (what->tokens || outputs || suite))
        return misuse("--needle goes with --text and --details alone");
    if (!what->tokens && !what->text && !suite && !needle->on)
        return misuse(
            "--text or --tokens is needed, or --suite or --needle; 'weft help eval' tells "
            "more");
    if (what->tokens && what->text) return misuse("--text and --tokens: one of them at a time");
    if ((suite && (what->tokens || what->text || outputs)) || (details && !suite && !needle->on))
        return misuse("--suite FILE goes with --details alone, and --details with it or --needle");
    return WEFT_EXIT_DONE;
}

/* What the user named must be there, and must be what this command reads. */
static int check_inputs(const weft_args *args, const char *folder, const weft_evaluation *what,
                        const char *suite) {
    if (args->config || args->variant) {
        fprintf(stderr,
                "weft eval: %s does not go with --model, which has a config of its own; "
                "-o KEY=VALUE overrides a key\n",
                args->config ? "--config" : "--variant");
        return WEFT_EXIT_USAGE;
    }
    int status = weft_args_readable(args, folder, "config.json");
    if (!status) status = weft_args_readable(args, folder, "model.safetensors");
    const char *input = suite ? suite : what->text ? what->text : what->tokens;
    if (!status && input) status = weft_args_readable(args, input, NULL);
    if (!status && what->targets) status = weft_args_readable(args, what->targets, NULL);
    return status;
}

static bool is_same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* What is written must not take the place of what is read. */
static weft_status check_output(const char *out, const char *folder, const weft_evaluation *what) {
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "config.json",
                                        "state.json", "tokenizer.json"};
    char path[WEFT_PATH_MAX];
    bool input = out && ((what->tokens && is_same_file(out, what->tokens)) ||
                         (what->text && is_same_file(out, what->text)) ||
                         (what->targets && is_same_file(out, what->targets)));
    for (int i = 0; out && !input && i < 5; i++) {
        WEFT_TRY(weft_path(path, "%s/%s", folder, names[i]));
        input = is_same_file(out, path);
    }
    if (!input) return WEFT_OK;
    return weft_fail(WEFT_EINPUT, "%s: is read here and cannot be written too; name another file",
                     out);
}

static weft_status check_outputs(const char *folder, const weft_evaluation *what) {
    WEFT_TRY(check_output(what->logits, folder, what));
    WEFT_TRY(check_output(what->grads, folder, what));
    return check_output(what->scores, folder, what);
}

/* What is to be read off a model, and what it comes to. */
typedef struct {
    const char *folder, *suite, *details;
    weft_evaluation what;
    char checkpoint[WEFT_FOLDER_PATH];
    weft_evaluated found;
    weft_suite_score score;
    weft_needle_args needle;
    weft_needle_options hidden;
    weft_needle_score answers;
} eval_job;

/* A run's folder stands for its best. One of the two files alone is a checkpoint that lacks the other, as
 * check_inputs says. */
static int find_checkpoint(const weft_args *args, eval_job *job) {
    static const char *const files[] = {"config.json", "model.safetensors"};
    char path[WEFT_PATH_MAX];
    bool one = false;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        one = one || (weft_path(path, "%s/%s", job->folder, files[i]) == WEFT_OK &&
                      access(path, F_OK) == 0);
    if (weft_generation_folder(job->folder, job->checkpoint) == WEFT_OK)
        job->folder = job->checkpoint;
    else if (!one)
        return weft_args_fail(args, WEFT_EINPUT);
    return WEFT_EXIT_DONE;
}

static weft_status score_suite(eval_job *job, const weft_model *m, const weft_backend *backend,
                               weft_pool *pool) {
    weft_tokenizer *tokenizer = NULL;
    WEFT_TRY(check_output(job->details, job->folder, &(weft_evaluation){.tokens = job->suite}));
    WEFT_TRY(weft_generation_tokenizer(job->folder, &m->config, &tokenizer));
    weft_status status =
        weft_suite(m, tokenizer, backend, pool, job->suite, job->details, &job->score);
    weft_tokenizer_close(tokenizer);
    return status;
}

static weft_status find_needles(eval_job *job, const weft_model *m, const weft_backend *backend,
                                weft_pool *pool) {
    weft_tokenizer *tokenizer = NULL;
    WEFT_TRY(check_output(job->details, job->folder, &job->what));
    WEFT_TRY(weft_generation_tokenizer(job->folder, &m->config, &tokenizer));
    weft_status status = weft_needle(m, tokenizer, backend, pool, &job->hidden, &job->answers);
    weft_tokenizer_close(tokenizer);
    return status;
}

/* The checkpoint's tokenizer, where it has one; a text needs it. */
static weft_status evaluate(eval_job *job, const weft_model *m, const weft_backend *backend,
                            weft_pool *pool) {
    weft_tokenizer *tokenizer = NULL;
    char path[WEFT_PATH_MAX];
    WEFT_TRY(weft_path(path, "%s/tokenizer.json", job->folder));
    bool has;
    WEFT_TRY(weft_path_there(path, &has));
    if (has || job->what.text)
        WEFT_TRY(weft_generation_tokenizer(job->folder, &m->config, &tokenizer));
    job->what.tokenizer = tokenizer;
    weft_status status = weft_evaluate(m, backend, pool, &job->what, &job->found);
    weft_tokenizer_close(tokenizer);
    return status;
}

static weft_status run_job(const weft_args *args, eval_job *job) {
    weft_config c;
    weft_model *m = NULL;
    weft_pool *pool = NULL;
    const weft_backend *backend;
    WEFT_TRY(check_outputs(job->folder, &job->what));
    WEFT_TRY(checkpoint_config(args, job->folder, &c));
    weft_status status = weft_args_backend(args, &c, &backend, &pool);
    if (status == WEFT_OK)
        status = weft_model_load_as(job->folder, &c, weft_config_dtype(&c), pool, &m);
    if (status == WEFT_OK)
        status = job->needle.on ? find_needles(job, m, backend, pool)
                 : job->suite   ? score_suite(job, m, backend, pool)
                                : evaluate(job, m, backend, pool);
    weft_pool_destroy(pool);
    weft_model_destroy(m);
    return status;
}

/* The default lengths follow from the checkpoint's config. */
static int read_needle_options(const weft_args *args, eval_job *job) {
    weft_config c;
    weft_status status = checkpoint_config(args, job->folder, &c);
    if (status != WEFT_OK) return weft_args_fail(args, status);
    job->hidden =
        (weft_needle_options){.text = job->what.text, .details = job->details, .quiet = args->json};
    return weft_needle_args_read(args, &job->needle, c.context, &job->hidden);
}

int weft_cmd_eval(int argc, char **argv) {
    weft_args args;
    eval_job job = {0};
    weft_evaluation *what = &job.what;
    bool unchecked = false;
    const weft_arg own[] = {{"--model", &job.folder, NULL, true},
                            {"--tokens", &what->tokens, NULL, false},
                            {"--targets", &what->targets, NULL, false},
                            {"--logits", &what->logits, NULL, false},
                            {"--grads", &what->grads, NULL, false},
                            {"--scores", &what->scores, NULL, false},
                            {"--suite", &job.suite, NULL, false},
                            {"--details", &job.details, NULL, false},
                            {"--unchecked", NULL, &unchecked, false},
                            {"--text", &what->text, NULL, false},
                            {"--needle", NULL, &job.needle.on, false},
                            {"--lengths", &job.needle.lengths, NULL, false},
                            {"--depths", &job.needle.depths, NULL, false},
                            {"--trials", &job.needle.trials, NULL, false},
                            {NULL, NULL, NULL, false}};
    int exit_status = weft_args_parse(&args, argc, argv, own, NULL, 0);
    if (!exit_status) exit_status = check_usage(what, job.suite, job.details, &job.needle);
    if (!exit_status) exit_status = find_checkpoint(&args, &job);
    if (!exit_status) exit_status = check_inputs(&args, job.folder, what, job.suite);
    if (!exit_status && job.needle.on) exit_status = read_needle_options(&args, &job);
    if (exit_status) return exit_status;
    weft_status status = unchecked ? WEFT_OK : weft_args_check_model(job.folder);
    if (status == WEFT_OK) status = run_job(&args, &job);
    if (status != WEFT_OK) return weft_args_fail(&args, status);
    if (job.needle.on)
        weft_needle_print(&args, &job.hidden, &job.answers);
    else if (job.suite)
        print_score(&args, job.suite, &job.score);
    else
        print_parts(&args, &job.found);
    return WEFT_EXIT_DONE;
}
