/* weft train: one run, in a folder of its own. */
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "bench/tables.h"
#include "cli/args.h"
#include "cuda/backend.h"
#include "inspect/inspect.h"
#include "model/cached.h"
#include "record/record.h"
#include "train/stop.h"

#include <errno.h>

const char weft_help_train[] =
    "  --config FILE\tthe config\n"
    "  --text FILE\tin place of --config: train on this text; repeatable. A tokenizer is learned "
    "from it, a twentieth of it is held out, and the model's size follows the text and the "
    "machine; all of it is in DIR/data and DIR/config\n"
    "  --minutes M\tthe run is over in M minutes, with as many of its steps as there is time for; "
    "with --text, the model is chosen for them, default: 10\n"
    "  --variant NAME|N\ta variant of the study, or 0 to 5 of the ablation; default: the first\n"
    "  --out DIR\tthe run's folder; without it, runs/ and the config's or text's name, with the "
    "variant's behind it\n"
    "  --resume\tcontinue from DIR/last; in an empty folder, start; --resume=NAME: from DIR/NAME "
    "(step-N, best). With --out alone, the run's own DIR/config is used\n"
    "  --from DIR\tstart from a checkpoint's weights with a fresh optimizer; a run's folder stands "
    "for its best\n"
    "  --unchecked\twith --from: do not verify the checksums in its state.json\n"
    "  -o KEY=VALUE\toverride a config key; repeatable\n"
    "  --seed N\trandom seed; default: the config's\n"
    "  --dtype T\tf32, bf16 or f64\n"
    "  --device D\tcpu, cuda or auto\n"
    "  --threads N\tdefault: one per processor; the result does not depend on it\n"
    "  --save-last\twrite DIR/last even where SAVE_CHECKPOINT is n\n"
    "  --peak-flops X\tthe machine's peak in operations per second, for mfu; 0: no mfu; default: "
    "measured\n"
    "  --json\tone object on standard output at the end\n"
    "\n"
    "DIR holds last/ and best/ (checkpoints), config, metrics.jsonl (a line per logged step) and "
    "an event file for TensorBoard. SIGINT, SIGTERM, SIGHUP and SIGUSR1 finish the step, save and "
    "leave; a second one leaves at once. --resume continues an interrupted run, with the bits of "
    "an uninterrupted one.\n"
    "\n"
    "'mpirun -n P weft train ...' or 'srun --mpi=pmix weft train ...' share each step's "
    "micro-batches over P processes; the result does not depend on P. Rank 0 logs and writes. "
    "SIGINT, SIGTERM or SIGUSR1 to any of them stops all after the same step. WEFT_HEARTBEAT=S: a "
    "rank that is silent for S seconds ends all of them (30; 0: never).\n";

enum { OUT_ROOM = 512 };

typedef struct {
    weft_train_options options;
    const char *peak, *minutes_text;
    double minutes;
    char out[OUT_ROOM], config[WEFT_PATH_MAX], from[WEFT_PATH_MAX];
} train_args;

/* runs/NAME, or runs/NAME-VARIANT, once runs/NAME-stepVARIANT: a run that is there goes on. Of a text, its name
 * without its ending. */
static void name_out(const weft_args *args, char *out) {
    const char *path = args->config ? args->config : args->repeated[0];
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const char *dot = args->config ? NULL : strrchr(name, '.');
    int length = dot && dot > name ? (int)(dot - name) : (int)strlen(name);
    int at = snprintf(out, OUT_ROOM, "runs/%.*s", length < 200 ? length : 200, name);
    if (!args->variant) return;
    snprintf(out + at, OUT_ROOM - (size_t)at, "-step%.63s", args->variant);
    if (access(out, F_OK) != 0) snprintf(out + at, OUT_ROOM - (size_t)at, "-%.63s", args->variant);
}

/* Of the best held-out loss; NaN where the tokens are no text. */
static double bits_per_byte(const weft_train_result *r) {
    return r->bytes_per_token > 0 ? r->best_val_loss / log(2) / r->bytes_per_token : NAN;
}

static json_t *result_object(const weft_train_result *r, const char *out, json_t *facts) {
    static const char *const ends[] = {"done", "stopped", "diverged"};
    json_t *object = weft_json_make(
        "out:s finished:b step:I skipped:I loss:f cross_entropy:f aux_z:f aux_contrastive:f "
        "logits_z:f val_loss:f best_val_loss:f tokens_per_s:f mfu:f seconds:f end:s why:s "
        "bits_per_byte:f",
        out, r->end == WEFT_TRAIN_DONE, r->steps, r->skipped, r->parts.loss, r->parts.cross_entropy,
        r->parts.aux_z, r->parts.aux_contrastive, r->parts.logits_z, r->val_loss, r->best_val_loss,
        r->tokens_per_s, r->mfu, r->seconds, ends[r->end], *r->why ? r->why : NULL,
        bits_per_byte(r));
    if (*r->metric) json_object_set_new(object, r->metric, weft_json_number(r->metric_value));
    return weft_json_add(object, "facts:O*", facts);
}

static weft_status finish(weft_args *args, const weft_train_result *r, const char *out,
                          json_t *facts) {
    /* DIR/result.json, for whoever looks at runs; a study has its own hand on it. */
    struct stat a, b;
    WEFT_PATH(path, "%s/result.json", out);
    bool same = fstat(STDOUT_FILENO, &a) == 0 && stat(path, &b) == 0 && a.st_dev == b.st_dev &&
                a.st_ino == b.st_ino;
    if (!same) WEFT_TRY(weft_json_write(path, result_object(r, out, facts), NULL));
    if (args->json) weft_args_print(result_object(r, out, facts), 0);
    if (r->end != WEFT_TRAIN_DONE) {
        fprintf(stderr, "weft %s: %s: %s\n", args->command, out, r->why);
        args->exit = WEFT_EXIT_FAILED;
    }
    if (args->json || r->end != WEFT_TRAIN_DONE) return WEFT_OK;
    /* Where the run is, how good it became, and what can be done with it. */
    char loss[96] = "", bits[48] = "", best[WEFT_PATH_MAX];
    if (isfinite(r->best_val_loss))
        snprintf(loss, sizeof loss, ", best held-out loss %.4f, perplexity %.2f", r->best_val_loss,
                 exp(r->best_val_loss));
    if (isfinite(bits_per_byte(r)))
        snprintf(bits, sizeof bits, ", %.3f bits per byte", bits_per_byte(r));
    weft_log(WEFT_LOG_INFO, "%s: %s steps%s%s", weft_shown(out), weft_count_text(r->steps), loss,
             bits);
    if (weft_checkpoint_folder(out, best) != WEFT_OK) return WEFT_OK;
    /* The program as it was called, so that the line can be copied. */
    const char *weft = weft_args_word(program_invocation_name), *run = weft_args_word(out);
    if (r->bytes_per_token > 0) {
        weft_log(WEFT_LOG_INFO, "next: %s generate --model %s --prompt 'Once'", weft, run);
        weft_log(WEFT_LOG_INFO, "next: %s serve --model %s", weft, run);
        weft_log(WEFT_LOG_INFO, "next: %s inspect %s --text FILE --out inside.html", weft, run);
    } else {
        weft_log(WEFT_LOG_INFO, "next: %s eval --model %s --tokens FILE", weft, run);
    }
    return WEFT_OK;
}

/* A text becomes shards and a config, unless there is a run to go on with. */
static weft_status prepare_text(const weft_args *args, const train_args *own) {
    weft_kind kind;
    if (!args->n_repeated || weft_comm_rank(own->options.comm) > 0) return WEFT_OK;
    WEFT_TRY(weft_path_kind(own->config, &kind));
    if (own->options.resume && kind == WEFT_KIND_FILE) return WEFT_OK;
    return weft_own_text_prepare(args, args->repeated, args->n_repeated, own->options.out,
                                 own->minutes);
}

/* A dataset beside the config, in a run's folder that may have been moved: one that weft made there. */
static weft_status find_data(const char *config, weft_config *c) {
    const char *slash = strrchr(config, '/');
    weft_kind kind;
    bool marked;
    if (*c->dataset == '/') return WEFT_OK;
    WEFT_PATH(path, "%.*s%s", slash ? (int)(slash + 1 - config) : 0, config, c->dataset);
    WEFT_TRY(weft_path_kind(path, &kind));
    if (kind != WEFT_KIND_FOLDER) return WEFT_OK;
    WEFT_TRY(weft_folder_is_marked(path, &marked));
    return marked ? weft_config_set(c, "DATASET", path, config) : WEFT_OK;
}

/* MICRO_BATCH=auto: what fits on rank 0, or what the run that goes on has had so far. */
static weft_status cut_batch(const weft_train_options *o, weft_config *c,
                             const weft_backend *backend, const weft_pool *pool) {
    char last[WEFT_PATH_MAX];
    weft_kind kind = WEFT_KIND_NOTHING;
    weft_config kept;
    int ranks = weft_comm_size(o->comm);
    if (c->micro_batch >= 0) return WEFT_OK;
    if (o->resume && weft_path(last, "%s/last", o->out) == WEFT_OK) weft_path_kind(last, &kind);
    /* One that cannot be read is told of where it is loaded. */
    if (kind == WEFT_KIND_FOLDER && weft_model_read_config(last, &kept) == WEFT_OK)
        c->micro_batch = kept.micro_batch;
    WEFT_TRY(
        weft_comm_agree(o->comm, weft_config_cut_batch(c, backend, weft_pool_size(pool), ranks)));
    WEFT_TRY(weft_comm_broadcast(o->comm, &c->micro_batch, sizeof c->micro_batch));
    weft_log(WEFT_LOG_INFO, "%lld of a batch's %lld sequences run at a time",
             (long long)weft_config_micro_batch(c), (long long)c->batch_size);
    return WEFT_OK;
}

/* What EVAL_INSIDE and EVAL_DECODE find, and where the model is. */
typedef struct {
    weft_backing place;
    json_t *facts;
} look_after;

/* As report/inside.c shows it. */
static weft_status measure_generation(const weft_model *m, const look_after *l) {
    static const int64_t batches[] = {1, 8};
    for (int i = 0; i < 2; i++) {
        char name[64];
        double rate;
        WEFT_TRY(bench_decode_model(m, l->place.backend, l->place.pool, batches[i], &rate));
        snprintf(name, sizeof name, "decode_tokens_per_s_%lld", (long long)batches[i]);
        json_object_set_new(l->facts, name, json_real(rate));
    }
    weft_json_add(l->facts, "decode_cache_bytes_per_token:I",
                  weft_cached_token_bytes(&m->config, m->dtype));
    return WEFT_OK;
}

/* The run is done whatever comes of it. */
static weft_status look(void *context, const weft_model *m) {
    look_after *l = context;
    weft_model quiet = *m; /* the same weights, without dropout */
    quiet.config.dropout = 0;
    if (m->config.eval_inside && weft_inspect_held_out(&quiet, l->place, l->facts) != WEFT_OK)
        weft_log(WEFT_LOG_WARN, "EVAL_INSIDE: nothing is told: %s", weft_error_message());
    if (m->config.eval_decode && measure_generation(&quiet, l) != WEFT_OK)
        weft_log(WEFT_LOG_WARN, "EVAL_DECODE: nothing is told: %s", weft_error_message());
    return WEFT_OK;
}

static weft_status run(weft_args *args, train_args *own, weft_train_result *result,
                       json_t **facts) {
    weft_config c;
    WEFT_AUTO(weft_pool_destroy_at) weft_pool *pool = NULL;
    const weft_backend *backend;
    weft_train_options *options = &own->options;
    weft_comm *comm = options->comm;
    bool kept = !args->config;
    WEFT_TRY(weft_comm_agree(comm, prepare_text(args, own)));
    if (kept) args->config = own->config;
    WEFT_TRY(weft_comm_agree(comm, weft_args_config(args, &c)));
    WEFT_TRY(weft_comm_agree(comm, find_data(args->config, &c)));
    bool reads = options->from && !args->unchecked && weft_comm_rank(comm) == 0;
    WEFT_TRY(weft_comm_agree(comm, reads ? weft_args_checked(weft_model_check_sums(options->from))
                                         : WEFT_OK));
    /* Ranks on one machine share its processors, unless the launcher has shared them out already. */
    cpu_set_t allowed;
    int ranks = weft_comm_local_size(comm), all = (int)sysconf(_SC_NPROCESSORS_ONLN);
    bool whole = sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) >= all;
    if (!args->threads && ranks != 1 && whole) args->threads = all / ranks > 1 ? all / ranks : 1;
    /* A GPU each, as far as they go. */
    if (ranks != 1 && c.device != WEFT_DEVICE_CPU) {
        int gpus = weft_cuda_set_rank(weft_comm_local_rank(comm));
        if (gpus > 0 && gpus < ranks)
            weft_log(WEFT_LOG_INFO, "%d ranks share %d GPU%s on this machine", ranks, gpus,
                     gpus > 1 ? "s" : "");
    }
    WEFT_TRY(weft_comm_agree(comm, weft_args_backend(args, &c, &backend, &pool)));
    WEFT_TRY(cut_batch(options, &c, backend, pool));
    /* A study's keys may be another variant's. */
    if (!weft_variants_listed(&c) && !args->json)
        weft_config_advise(&(const weft_config *){&c}, 1, args->config);
    weft_stop_install();
    if (!own->peak && !backend->remote && weft_comm_rank(comm) == 0)
        options->peak_flops =
            bench_peak_flops(pool, weft_config_dtype(&c) == WEFT_BF16) * weft_comm_size(comm);
    WEFT_AUTO_DECREF json_t *found = json_object();
    look_after after = {{backend, pool}, found};
    if (c.eval_inside || c.eval_decode) options->at_end = look;
    options->context = &after;
    WEFT_TRY(weft_train(&c, backend, pool, options, result));
    *facts = weft_facts_of_run(&c, backend->remote ? weft_cuda_device_name() : "cpu", result);
    if (*facts) json_object_update(*facts, found);
    return WEFT_OK;
}

/* Where the config comes from: a file, a text, or the run itself. */
static weft_status find_config(weft_args *args, train_args *own) {
    weft_train_options *o = &own->options;
    bool texts = args->n_repeated > 0;
    if (args->config && texts)
        return WEFT_BAD_INPUT("--text makes a config of its own; leave --config out");
    if (texts && args->variant) return WEFT_BAD_INPUT("--variant goes with --config");
    if (!args->config && !texts && !(o->resume && o->out))
        return WEFT_BAD_INPUT("--config or --text is needed, or, to continue a run, "
                              "--resume --out DIR; see 'weft help train'");
    for (int i = 0; i < args->n_repeated; i++)
        WEFT_TRY(weft_args_readable(args->repeated[i], NULL));
    if (args->config || texts) name_out(args, own->out);
    if (!o->out) o->out = own->out;
    if (args->config) return weft_args_readable(args->config, NULL);
    WEFT_TRY(weft_path(own->config, "%s/config", o->out));
    if (texts) return WEFT_OK;
    if (access(own->config, F_OK) != 0)
        return WEFT_BAD_INPUT("%s: no run to continue is there; --config FILE starts one",
                              weft_shown(o->out));
    return weft_args_readable(own->config, NULL);
}

weft_status weft_cmd_train(weft_args *args, int argc, char **argv) {
    double begun = weft_clock();
    train_args own = {.minutes = WEFT_OWN_TEXT_MINUTES};
    weft_train_options *o = &own.options;
    weft_train_result result;
    WEFT_AUTO_DECREF json_t *facts = NULL;
    bool study = false;
    const weft_arg list[] = {
        {"--out", .value = &o->out},
        {.name = "--text"},
        {"--minutes", .value = &own.minutes_text, .real = &own.minutes, .min = 0.01, .max = 1e6},
        {"--resume", .value = &o->resume_name, .flag = &o->resume},
        {"--from", .value = &o->from},
        {"--save-last", .flag = &o->keep_last},
        {"--peak-flops", .value = &own.peak, .real = &o->peak_flops, .max = 1e30},
        {0}};
    WEFT_TRY(weft_args_parse(args, argc, argv, ARGS_ALL | ARGS_UNCHECKED, list, NULL, 0));
    WEFT_TRY(find_config(args, &own));
    WEFT_TRY(weft_folder_has(o->out, "runs.db", &study));
    if (study)
        return WEFT_BAD_INPUT("%s is a study's folder (it has a runs.db); take another --out, or "
                              "'weft study --out %s' to go on with the study",
                              o->out, o->out);
    if (o->from) { /* a run's folder stands for its best checkpoint */
        WEFT_TRY(weft_checkpoint_folder(o->from, own.from));
        o->from = own.from;
    }
    if (own.minutes_text || args->n_repeated) o->deadline = begun + 60 * own.minutes;
    WEFT_TRY(weft_comm_open(&o->comm));
    if (weft_comm_rank(o->comm) > 0) weft_log_set_level(WEFT_LOG_ERROR);
    weft_status status = run(args, &own, &result, &facts);
    /* Other ranks hear of an error that is this one's alone. How a run ended is rank 0's to say, before
     * the launcher sees any of them end. */
    if (status != WEFT_OK)
        weft_comm_fail(o->comm, weft_error_message());
    else if (weft_comm_rank(o->comm) == 0)
        status = finish(args, &result, o->out, facts);
    args->exit = weft_args_end(args, status);
    weft_stop_remove(); /* a signal that comes when all is done does not keep it from being told */
    weft_comm_close(o->comm);
    return WEFT_OK;
}
