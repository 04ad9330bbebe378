/* weft train: one run, in a folder of its own. */
#include "bench/limits.h"
#include "cli/args.h"
#include "core/json.h"
#include "core/log.h"
#include "cuda/backend.h"
#include "study/facts.h"
#include "train/loop.h"
#include "train/stop.h"

#include <jansson.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char weft_help_train[] =
    "  --config FILE      the config\n"
    "  --step S           a study's step by name, the ablation's 0 to 5; also as\n"
    "                     --ra-mla-ablation-step N; without it, a study's first\n"
    "  --out DIR          the run's folder; without it, runs/ and the config's name\n"
    "  --resume           continue from DIR/last; in an empty folder, start; --resume=NAME: from\n"
    "                     DIR/NAME (step-N, best)\n"
    "  --from DIR         start from a checkpoint's weights with a fresh optimizer\n"
    "  --unchecked        with --from: do not verify the checksums in its state.json\n"
    "  -o KEY=VALUE       override a config key; repeatable\n"
    "  --seed N           random seed; default: the config's\n"
    "  --dtype T          f32, bf16 or f64\n"
    "  --device D         cpu, cuda or auto\n"
    "  --threads N        default: one per processor; the result does not depend on it\n"
    "  --save-last        write DIR/last even where SAVE_CHECKPOINT is n\n"
    "  --peak-flops X     the machine's peak in operations per second, for mfu; 0: no mfu; "
    "default:\n"
    "                     measured\n"
    "  --json             one object on standard output at the end\n"
    "\n"
    "DIR holds last/ and best/ (checkpoints), metrics.jsonl (a line per logged step) and an event\n"
    "file for TensorBoard. SIGINT, SIGTERM, SIGHUP and SIGUSR1 finish the step, save and leave; a "
    "second "
    "one "
    "leaves\n"
    "at once. --resume continues an interrupted run, with the bits of an uninterrupted one.\n"
    "\n"
    "'mpirun -n P weft train ...' or 'srun --mpi=pmix weft train ...' share each step's "
    "micro-batches\n"
    "over P processes; the result does not depend on P. Rank 0 logs and writes. SIGINT, SIGTERM "
    "or\n"
    "SIGUSR1 to any of them stops all after the same step. WEFT_HEARTBEAT=S: a rank that is "
    "silent\n"
    "for S seconds ends all of them (30; 0: never).\n";

enum { OUT_ROOM = 512 };

static int read_peak(const char *text, double *out) {
    char *end = "";
    double value = text ? strtod(text, &end) : 0;
    if (!*end && isfinite(value) && value >= 0) {
        *out = value;
        return WEFT_EXIT_DONE;
    }
    fprintf(stderr, "weft train: --peak-flops '%s' must be a number of 0 or more\n", text);
    return WEFT_EXIT_USAGE;
}

/* runs/NAME, or runs/NAME-stepN. */
static void name_out(const weft_args *args, char *out) {
    const char *slash = strrchr(args->config, '/');
    int at = snprintf(out, OUT_ROOM, "runs/%.200s", slash ? slash + 1 : args->config);
    if (args->step) snprintf(out + at, OUT_ROOM - (size_t)at, "-step%.63s", args->step);
}

static void print_result(const weft_train_result *r, const char *out, json_t *facts) {
    json_t *object = json_pack(
        "{s:s, s:b, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "out", out,
        "finished", r->end == WEFT_TRAIN_DONE, "step", (json_int_t)r->steps, "skipped",
        (json_int_t)r->skipped, "loss", weft_json_number(r->parts.loss), "cross_entropy",
        weft_json_number(r->parts.cross_entropy), "aux_z", weft_json_number(r->parts.aux_z),
        "aux_contrastive", weft_json_number(r->parts.aux_contrastive), "logits_z",
        weft_json_number(r->parts.logits_z), "val_loss", weft_json_number(r->val_loss),
        "best_val_loss", weft_json_number(r->best_val_loss), "tokens_per_s",
        weft_json_number(r->tokens_per_s), "mfu", weft_json_number(r->mfu), "seconds",
        weft_json_number(r->seconds));
    static const char *const ends[] = {"done", "stopped", "diverged"};
    json_object_set_new(object, "end", json_string(ends[r->end]));
    json_object_set_new(object, "why", *r->why ? json_string(r->why) : json_null());
    if (*r->metric) json_object_set_new(object, r->metric, weft_json_number(r->metric_value));
    if (facts) json_object_set(object, "facts", facts);
    json_dumpf(object, stdout, JSON_INDENT(2));
    printf("\n");
    json_decref(object);
}

static int finish(const weft_args *args, const weft_train_result *r, const char *out,
                  json_t *facts) {
    if (args->json) print_result(r, out, facts);
    if (r->end == WEFT_TRAIN_DONE) return WEFT_EXIT_DONE;
    fprintf(stderr, "weft %s: %s: %s\n", args->command, out, r->why);
    return WEFT_EXIT_FAILED;
}

/* Ranks on one machine share its processors, unless the launcher has shared them out already. */
static int share_threads(const weft_args *args, const weft_comm *comm) {
    cpu_set_t allowed;
    int local = weft_comm_local_size(comm), all = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (args->threads || local == 1) return args->threads;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_COUNT(&allowed) < all) return 0;
    return all / local > 1 ? all / local : 1;
}

/* A GPU each, as far as they go. */
static void share_gpus(const weft_config *c, const weft_comm *comm) {
    int ranks = weft_comm_local_size(comm);
    if (ranks == 1 || c->device == WEFT_DEVICE_CPU) return;
    int gpus = weft_cuda_take_turn(weft_comm_local_rank(comm));
    if (gpus > 0 && gpus < ranks)
        weft_log(WEFT_LOG_INFO, "%d ranks share %d GPU%s on this machine", ranks, gpus,
                 gpus > 1 ? "s" : "");
}

/* The run, once its arguments are right. */
static weft_status run(weft_args *args, weft_train_options *options, const char *peak,
                       bool unchecked, weft_train_result *result, json_t **facts) {
    weft_config c;
    weft_pool *pool = NULL;
    const weft_backend *backend;
    weft_comm *comm = options->comm;
    WEFT_TRY(weft_comm_agree(comm, weft_args_config(args, &c)));
    bool reads = options->from && !unchecked && weft_comm_rank(comm) == 0;
    WEFT_TRY(weft_comm_agree(comm, reads ? weft_args_check_model(options->from) : WEFT_OK));
    args->threads = share_threads(args, comm);
    share_gpus(&c, comm);
    weft_status status = weft_comm_agree(comm, weft_args_backend(args, &c, &backend, &pool));
    /* A study's keys may be another step's. */
    bool alone = !*c.study_steps && !*c.ra_mla_ablation_steps;
    if (status == WEFT_OK && alone && !args->json)
        weft_config_advise(&(const weft_config *){&c}, 1, args->config);
    if (status == WEFT_OK) {
        weft_stop_install();
        if (!peak && !backend->remote && weft_comm_rank(comm) == 0)
            options->peak_flops =
                bench_peak_flops(pool, weft_config_dtype(&c) == WEFT_BF16) * weft_comm_size(comm);
        status = weft_train(&c, backend, pool, options, result);
        weft_stop_remove();
        if (status == WEFT_OK)
            *facts =
                weft_facts_of_run(&c, backend->remote ? weft_cuda_device_name() : "cpu", result);
    }
    weft_pool_destroy(pool);
    return status;
}

/* Other ranks hear of an error that is this one's alone. How a run ended is rank 0's to say, before
 * the launcher sees any of them end. */
static int end_ranks(const weft_args *args, const weft_train_options *options, weft_status status,
                     const weft_train_result *result, json_t *facts) {
    int exit_status = WEFT_EXIT_DONE;
    if (status != WEFT_OK) {
        weft_comm_fail(options->comm, weft_error_message());
        exit_status = weft_args_fail(args, status);
    } else if (weft_comm_rank(options->comm) == 0) {
        exit_status = finish(args, result, options->out, facts);
    }
    weft_comm_close(options->comm);
    return exit_status;
}

int weft_cmd_train(int argc, char **argv) {
    weft_args args;
    char default_out[OUT_ROOM];
    weft_train_options options = {0};
    weft_train_result result;
    const char *peak = NULL;
    bool unchecked = false;
    json_t *facts = NULL;
    const weft_arg own[] = {{"--out", &options.out, NULL, false},
                            {"--resume", &options.resume_name, &options.resume, false},
                            {"--from", &options.from, NULL, false},
                            {"--save-last", NULL, &options.keep_last, false},
                            {"--peak-flops", &peak, NULL, false},
                            {"--unchecked", NULL, &unchecked, false},
                            {NULL, NULL, NULL, false}};
    int exit_status = weft_args_parse(&args, argc, argv, own, NULL, 0);
    if (!exit_status && !args.config) {
        fprintf(stderr, "weft train: --config is needed; 'weft help train' tells more\n");
        exit_status = WEFT_EXIT_USAGE;
    }
    if (!exit_status) exit_status = weft_args_readable(&args, args.config, NULL);
    if (!exit_status && options.from)
        exit_status = weft_args_readable(&args, options.from, "model.safetensors");
    if (!exit_status) exit_status = read_peak(peak, &options.peak_flops);
    if (exit_status) return exit_status;
    name_out(&args, default_out);
    if (!options.out) options.out = default_out;
    weft_status status = weft_comm_open(&options.comm);
    if (status != WEFT_OK) return weft_args_fail(&args, status);
    if (weft_comm_rank(options.comm) > 0) weft_log_set_level(WEFT_LOG_ERROR);
    status = run(&args, &options, peak, unchecked, &result, &facts);
    exit_status = end_ranks(&args, &options, status, &result, facts);
    json_decref(facts);
    return exit_status;
}
