/* weft eval: a checkpoint's loss by parts on a file of tokens, and what else can be read off the
 * pass; or its score on multiple-choice questions, or at finding a key in a long text. */
#include "eval/eval.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/args.h"
#include "data/tasks.h"
#include "model/evaluate.h"

#include <math.h>

const char weft_help_eval[] =
    "  --model DIR\ta checkpoint: config.json and model.safetensors; a run's folder stands for its "
    "best\n"
    "  --text FILE\ta text, read by the checkpoint's tokenizer\n"
    "  --tokens FILE\ta .npy of shape [B, T+1] (int32 or int64), one batch; or a token shard\n"
    "  --targets FILE\ta .npy of shape [B, T], -1 for ignored; without it, the tokens that follow\n"
    "  --logits OUT\twrite the logits [B, T, V] as safetensors\n"
    "  --grads OUT\twrite every tensor's gradient: one train-mode pass without dropout, from which "
    "loss and logits come too\n"
    "  --scores OUT\twrite the raw attention scores [B, H, T, T] of each layer; with W2 attention "
    "these are minus the squared distances over the temperature\n"
    "  --suite FILE\tin place of --tokens: multiple-choice questions, JSON lines with context, "
    "choices and answer (from 0); prints the share of answers that are the likeliest choice by "
    "log-likelihood (acc) and by that per character (acc_norm). A choice follows its context as it "
    "is: a blank between them is part of the choice\n"
    "  --needle\tin place of --tokens: hide a pass key of five digits in text, ask for it at the "
    "end, and print the share of right answers by length and depth. The text is --text, or for "
    "tokenizers of bytes text made by the program\n"
    "  --lengths A,B\ttokens of a prompt with its answer; default: a quarter, a half and all of "
    "the model's context; more only with positions that have no end (rope, alibi, none; -o "
    "ROPE_SCALING=... slows rotations)\n"
    "  --depths A,B\twhere the key is, 0 the beginning, 1 the end; default: 0,0.25,0.5,0.75,1\n"
    "  --trials N\tkeys for each length and depth; default: 10\n"
    "  --seed N\trandom seed of the texts and keys\n"
    "  --details OUT\twrite each question's log-likelihoods, or each prompt and answer, as JSON "
    "lines\n"
    "  -o KEY=VALUE\toverride a key of the checkpoint's config; repeatable\n"
    "  --unchecked\tdo not verify the checksums in the checkpoint's state.json\n"
    "  --dtype T\tf32, bf16 or f64\n"
    "  --device D\tcpu, cuda or auto\n"
    "  --threads N\tdefault: one per processor\n"
    "  --json\tone object on standard output\n";

/* What is to be read off a model. */
typedef struct {
    const char *folder, *suite, *details;
    bool needle;
    const char *lengths, *depths, *trials; /* of --needle as they were given; NULL: not */
    weft_evaluation what;
    char checkpoint[WEFT_PATH_MAX];
    weft_needle_options hidden;
} eval_job;

enum { TRIALS = 10, LENGTH_MOST = 1 << 24, ITEM_ROOM = 32 };

/* A list of at most WEFT_NEEDLE_CELLS numbers of the option o, which says where the first goes. */
static weft_status read_list(weft_arg o, const char *list, int *n) {
    char item[ITEM_ROOM];
    for (*n = 0; *list; ++*n) {
        size_t letters = strcspn(list, ",");
        snprintf(item, ITEM_ROOM, "%.*s", (int)letters, list);
        list += letters + (list[letters] == ',');
        if (*n == WEFT_NEEDLE_CELLS)
            return WEFT_BAD_INPUT("%s has more than %d items", o.name, WEFT_NEEDLE_CELLS);
        WEFT_TRY(weft_args_number(&o, item));
        if (o.number) o.number++;
        if (o.real) o.real++;
    }
    return WEFT_OK;
}

static void print_needles(const weft_args *a, const weft_needle_options *o,
                          const weft_needle_score *s) {
    if (!a->json) {
        printf("answers that are right, of %lld each\n   depth", (long long)o->trials);
        for (int i = 0; i < o->n_lengths; i++)
            printf(" %10s", weft_count_text(o->lengths[i]));
        printf("  tokens\n");
        for (int d = 0; d < o->n_depths; d++) {
            printf("%8.3g", o->depths[d]);
            for (int i = 0; i < o->n_lengths; i++)
                printf(" %9.1f%%", 100 * s->cells[i][d].right);
            printf("\n");
        }
        printf("   cache");
        for (int i = 0; i < o->n_lengths; i++)
            printf(" %10s", weft_count_text(s->cache_bytes[i]));
        printf("  bytes\n");
        return;
    }
    json_t *cells = json_array(), *caches = json_array();
    for (int i = 0; i < o->n_lengths; i++) {
        for (int d = 0; d < o->n_depths; d++)
            weft_json_append(cells, "length:I depth:f accuracy:f token_accuracy:f", o->lengths[i],
                             o->depths[d], s->cells[i][d].right, s->cells[i][d].tokens);
        weft_json_append(caches, "length:I bytes:I", o->lengths[i], s->cache_bytes[i]);
    }
    weft_args_print(weft_json_make("trials:I needle:o cache:o", o->trials, cells, caches), 0);
}

static void print_parts(const weft_args *args, const weft_evaluated *e) {
    const weft_loss_parts *p = &e->parts;
    double perplexity = exp(p->cross_entropy), nats = p->cross_entropy * (double)e->tokens;
    /* By the byte; NaN where it is not known what the tokens stand for. */
    double bits = e->bytes > 0 ? nats / log(2) / (double)e->bytes : NAN;
    if (!args->json) {
        printf("tokens          %s\nloss            %.6f\ncross_entropy   %.6f\n"
               "perplexity      %.4f\n",
               weft_count_text(e->tokens), p->loss, p->cross_entropy, perplexity);
        if (isfinite(bits)) printf("bits_per_byte   %.4f\n", bits);
        printf("aux_z           %.6g\naux_contrastive %.6g\nlogits_z        %.6g\n", p->aux_z,
               p->aux_contrastive, p->logits_z);
        return;
    }
    json_t *object = weft_json_make("loss:f cross_entropy:f aux_z:f aux_contrastive:f logits_z:f "
                                    "tokens:I perplexity:f bits_per_byte:f",
                                    p->loss, p->cross_entropy, p->aux_z, p->aux_contrastive,
                                    p->logits_z, e->tokens, perplexity, bits);
    weft_args_print(object, 0);
}

/* What the user named must be there, and must be what this command reads. A run's folder stands for its best. One of
 * the two files alone is a checkpoint that lacks the other. */
static weft_status find_inputs(eval_job *job) {
    const weft_evaluation *what = &job->what;
    bool config = false, model = false;
    weft_folder_has(job->folder, "config.json", &config);
    weft_folder_has(job->folder, "model.safetensors", &model);
    weft_status status = weft_checkpoint_folder(job->folder, job->checkpoint);
    if (status == WEFT_OK) job->folder = job->checkpoint;
    if (status != WEFT_OK && !config && !model) return WEFT_EINPUT;
    WEFT_TRY(weft_args_readable(job->folder, "config.json"));
    WEFT_TRY(weft_args_readable(job->folder, "model.safetensors"));
    const char *input = job->suite ? job->suite : what->text ? what->text : what->tokens;
    if (input) WEFT_TRY(weft_args_readable(input, NULL));
    return what->targets ? weft_args_readable(what->targets, NULL) : WEFT_OK;
}

static bool is_same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* What is written must not take the place of what is read. */
static weft_status check_output(const char *out, const char *folder, const weft_evaluation *what) {
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "config.json",
                                        "state.json", "tokenizer.json"};
    bool input = out && ((what->tokens && is_same_file(out, what->tokens)) ||
                         (what->text && is_same_file(out, what->text)) ||
                         (what->targets && is_same_file(out, what->targets)));
    for (int i = 0; out && !input && i < 5; i++) {
        WEFT_PATH(path, "%s/%s", folder, names[i]);
        input = is_same_file(out, path);
    }
    if (!input) return WEFT_OK;
    return WEFT_BAD_INPUT("%s: is read here and cannot be written too; name another file", out);
}

static weft_status run_job(const weft_args *args, eval_job *job) {
    WEFT_AUTO(weft_loaded_close) weft_loaded loaded = {0};
    weft_loaded *l = &loaded;
    bool text = job->suite || job->needle || job->what.text;
    WEFT_TRY(check_output(job->what.logits, job->folder, &job->what));
    WEFT_TRY(check_output(job->what.grads, job->folder, &job->what));
    WEFT_TRY(check_output(job->what.scores, job->folder, &job->what));
    WEFT_TRY(weft_loaded_open(args, job->folder,
                              text ? WEFT_LOADED_TEXT : WEFT_LOADED_ANY_TOKENIZER, l));
    if (job->needle) {
        weft_needle_score answers;
        WEFT_TRY(check_output(job->details, l->folder, &job->what));
        /* A quarter, a half and the whole of the context, where the key's line and question fit. */
        for (int64_t part = 4; part >= 1 && !job->lengths; part /= 2)
            if (l->config.context / part >= WEFT_NEEDLE_TIME || part == 1)
                job->hidden.lengths[job->hidden.n_lengths++] = l->config.context / part;
        WEFT_TRY(weft_needle(l->model, l->tokenizer, l->backend, l->pool, &job->hidden, &answers));
        print_needles(args, &job->hidden, &answers);
    } else if (job->suite) {
        weft_suite_score s;
        WEFT_TRY(check_output(job->details, l->folder, &(weft_evaluation){.tokens = job->suite}));
        WEFT_TRY(
            weft_suite(l->model, l->tokenizer, l->backend, l->pool, job->suite, job->details, &s));
        if (args->json)
            weft_args_print(
                weft_json_make(
                    "suite:s questions:I acc:f acc_norm:f acc_stderr:f acc_norm_stderr:f",
                    job->suite, s.questions, s.acc, s.acc_norm, s.acc_error, s.acc_norm_error),
                0);
        else
            printf("questions  %lld\nacc        %.4f ± %.4f\nacc_norm   %.4f ± %.4f\n",
                   (long long)s.questions, s.acc, s.acc_error, s.acc_norm, s.acc_norm_error);
    } else {
        weft_evaluated found;
        job->what.tokenizer = l->tokenizer;
        WEFT_TRY(weft_evaluate(l->model, l->backend, l->pool, &job->what, &found));
        print_parts(args, &found);
    }
    return WEFT_OK;
}

weft_status weft_cmd_eval(weft_args *args, int argc, char **argv) {
    eval_job job = {.hidden.trials = TRIALS};
    weft_evaluation *what = &job.what;
    const weft_arg own[] = {
        {"--model", .value = &job.folder, .rule = WEFT_ARG_NEEDED},
        {"--tokens", .value = &what->tokens},
        {"--targets", .value = &what->targets},
        {"--logits", .value = &what->logits},
        {"--grads", .value = &what->grads},
        {"--scores", .value = &what->scores},
        {"--suite", .value = &job.suite},
        {"--details", .value = &job.details},
        {"--text", .value = &what->text},
        {"--needle", .flag = &job.needle},
        {"--lengths", .value = &job.lengths},
        {"--depths", .value = &job.depths},
        {"--trials", .value = &job.trials, .number = &job.hidden.trials, .min = 1, .max = 1000000},
        {0}};
    WEFT_TRY(weft_args_parse(args, argc, argv, ARGS_ALL | ARGS_UNCHECKED, own, NULL, 0));
    bool outputs = what->targets || what->logits || what->grads || what->scores;
    if (!job.needle && (job.lengths || job.depths || job.trials))
        return WEFT_BAD_INPUT("--lengths, --depths and --trials go with --needle");
    if (job.needle && (what->tokens || outputs || job.suite))
        return WEFT_BAD_INPUT("--needle goes with --text and --details alone");
    if (!what->tokens && !what->text && !job.suite && !job.needle)
        return WEFT_BAD_INPUT(
            "--text or --tokens is needed, or --suite or --needle; 'weft help eval' tells more");
    if (what->tokens && what->text)
        return WEFT_BAD_INPUT("--text and --tokens: one of them at a time");
    if ((job.suite && (what->tokens || what->text || outputs)) ||
        (job.details && !job.suite && !job.needle))
        return WEFT_BAD_INPUT(
            "--suite FILE goes with --details alone, and --details with it or --needle");
    WEFT_TRY(weft_args_no_config(args));
    WEFT_TRY(find_inputs(&job));
    const weft_arg lengths = {"--lengths", .number = job.hidden.lengths, .min = 1,
                              .max = LENGTH_MOST};
    const weft_arg depths = {"--depths", .real = job.hidden.depths, .max = 1};
    const char *given = job.depths ? job.depths : "0,0.25,0.5,0.75,1";
    if (job.lengths) WEFT_TRY(read_list(lengths, job.lengths, &job.hidden.n_lengths));
    WEFT_TRY(read_list(depths, given, &job.hidden.n_depths));
    if (args->seed >= 0) job.hidden.seed = (uint64_t)args->seed;
    job.hidden.text = what->text;
    job.hidden.details = job.details;
    job.hidden.quiet = args->json;
    return run_job(args, &job);
}
