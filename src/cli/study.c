/* weft study: every variant of a study, each run in a process of its own, then the report. */
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "bench/tables.h"
#include "cli/args.h"
#include "comm/launch.h"
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "report/page.h"
#include "report/report.h"
#include "study/statistics.h"
#include "supervise/supervise.h"
#include "train/stop.h"

#include <errno.h>
#include <math.h>

const char weft_help_study[] =
    "  --config FILE\tthe config, or the name of a study that comes with weft, with its study: "
    "RA_MLA_ABLATION_STEPS or STUDY_VARIANTS, and STUDY_SEEDS, STUDY_LEARNING_RATES, STUDY_EQUAL, "
    "STUDY_SCORE, STUDY_TAIL\n"
    "  --variants A,B\tonly these variants; the others wait\n"
    "  --out DIR\tthe study's folder; without it, runs/ and the config's name, or runs/study for "
    ".config; a file named study: the folder it is in\n"
    "  --jobs N\truns at a time, each with its share of the threads; default: 1\n"
    "  --gpus 0,1,...\tone run at a time on each of these GPUs\n"
    "  --restart RUN\tstart a failed run over, its folder set aside: VARIANT-lrR-seedN, or failed "
    "for all of them\n"
    "  --minutes M\tthe study ends in M minutes: what then runs is stopped and saved; the same "
    "command continues it\n"
    "  --slurm[=OPTIONS]\tsubmit an array of jobs to Slurm, one for each variant, and a job after "
    "them that joins their databases and writes the report; OPTIONS go to sbatch. A job has "
    "--threads processors (default: 4), the memory of the largest variant, and a GPU where DEVICE "
    "is cuda. The same command continues what is not done\n"
    "  --list\tthe variants and what they cost; nothing is run\n"
    "  -o KEY=VALUE\toverride a config key in every variant; repeatable\n"
    "  --seed N, --dtype T, --device D, --threads N\tas in 'weft help train'\n"
    "  --json\tone object on standard output at the end\n"
    "\n"
    "DIR holds runs.db ('weft runs'), report.html and report.md, and runs/VARIANT-lrR-seedN: "
    "config, log, last/, best/ and metrics.jsonl of each run. The same command continues what was "
    "cut off or failed; DIR of another config is refused. SIGINT and SIGTERM let the runs finish "
    "their training step and save. Exits 1 where a run is neither done nor diverged, or a variant "
    "cannot be built.\n";

enum {
    GPUS_ROOM = 256,
    GPUS_MOST = 64,
    JOBS_MOST = 1024,
    SETS_ROOM = 2 * WEFT_TEXT_MAX,
    SLURM_CPUS = 4
};

typedef struct {
    const char *variants, *out, *jobs_text, *gpus_text, *restart, *slurm_options;
    bool list, slurm;
    const char **words; /* of each job */
    int64_t jobs;
    char gpus_room[GPUS_ROOM];
    const char *gpus[GPUS_MOST];
    double minutes;
} study_args;

/* "a,b" as a choice among the variants, to be freed after a failure too; NULL: all. */
static weft_status choose_variants(const weft_study *s, const char *text, bool **chosen) {
    *chosen = NULL;
    if (!text) return WEFT_OK;
    WEFT_ROOM_AT(*chosen, s->variants.n, "study: no memory");
    while (*text) {
        char name[WEFT_VARIANT_NAME];
        size_t n = strcspn(text, ",");
        snprintf(name, sizeof name, "%.*s", (int)n, text);
        int at = weft_variants_find(&s->variants, name);
        if (at < 0) return WEFT_BAD_INPUT("--variants: %s", weft_error_message());
        (*chosen)[at] = true;
        text += n + (text[n] == ',');
    }
    return WEFT_OK;
}

static json_t *variant_json(const weft_study *s, int variant) {
    const weft_study_variant *p = &s->built[variant];
    char sets[SETS_ROOM];
    weft_study_overrides(s, variant, sets, sizeof sets);
    const weft_variant *v = p->variant, *all = s->variants.list;
    json_t *row = weft_json_make(
        "variant:s step:s title:s overrides:s baseline:s* repeats:s* error:s*", v->name, v->name,
        v->title, sets, v->baseline >= 0 ? all[v->baseline].name : NULL,
        v->repeats >= 0 ? all[v->repeats].name : NULL, *p->error ? p->error : NULL);
    if (*p->error) return row;
    const weft_account *a = &p->account;
    return weft_json_add(row,
                         "iters:o tokens:o parameters:I flops_per_token:f training_bytes:I "
                         "cache_bytes_per_token:I leaks:b config:o",
                         p->iters > 0 ? json_integer(p->iters) : NULL,
                         p->iters > 0 ? json_integer(weft_study_tokens(s, variant)) : NULL,
                         a->parameters, a->forward_flops + a->backward_flops, a->training_bytes,
                         a->cache_bytes_token, weft_config_leaks(&p->config),
                         weft_config_to_json(&p->config));
}

static void list_json(const weft_study *s, double seconds) {
    int runs = 0;
    WEFT_JSON_LIST(variants, i, s->variants.n, variant_json(s, (int)i));
    WEFT_JSON_LIST(rates, k, s->n_rates, json_real(s->rates[k]));
    for (int i = 0; i < s->variants.n; i++)
        if (!*s->built[i].error) runs += weft_study_variant_runs(s, i);
    double times = weft_power_difference((int)s->base.study_seeds, WEFT_POWER);
    json_t *power =
        weft_json_make("probability:f difference_in_spreads:f difference:f", WEFT_POWER, times,
                       s->base.study_spread > 0 ? times * s->base.study_spread : NAN);
    weft_args_print(
        weft_json_make(
            "name:s seeds:I first_seed:I learning_rates:o runs:i steps:o seconds:f power:o",
            s->name, s->base.study_seeds, s->base.seed, rates, runs, variants, seconds, power),
        0);
}

/* Seconds that all runs take one after the other; NaN: nothing is known of the device's speed, or how
 * long variants run is measured. */
static double seconds_of(const weft_study *s, double peak) {
    double flops = 0;
    for (int i = 0; i < s->variants.n; i++) {
        const weft_study_variant *p = &s->built[i];
        if (*p->error) continue;
        if (p->iters <= 0) return NAN;
        double tokens = (double)weft_study_tokens(s, i) * weft_study_variant_runs(s, i);
        flops += tokens * (p->account.forward_flops + p->account.backward_flops);
    }
    return peak > 0 ? flops / (BENCH_TRAINING_SHARE * peak) : NAN;
}

void weft_study_list(const weft_study *s, double seconds, bool json) {
    if (json) {
        list_json(s, seconds);
        return;
    }
    int width = 7, runs = 0;
    for (int i = 0; i < s->variants.n; i++)
        if ((int)strlen(s->variants.list[i].name) > width)
            width = (int)strlen(s->variants.list[i].name);
    printf("%-*s %10s %14s %12s %12s  %s\n", width, "variant", "iterations", "tokens", "parameters",
           "MFLOP/token", "what it sets");
    for (int i = 0; i < s->variants.n; i++) {
        const weft_study_variant *p = &s->built[i];
        char sets[SETS_ROOM];
        if (*p->error) {
            printf("%-*s cannot be built: %s\n", width, p->variant->name, p->error);
            continue;
        }
        runs += weft_study_variant_runs(s, i);
        weft_study_overrides(s, i, sets, sizeof sets);
        bool known = p->iters > 0;
        bool labelled = weft_variant_labelled(p->variant->title, p->variant->name, sets);
        const char *label = labelled ? weft_shown(p->variant->title) : "";
        printf("%-*s %10s %14s %12s %12.4g  %s%s%s\n", width, p->variant->name,
               known ? weft_count_text(p->iters) : "measured",
               known ? weft_count_text(weft_study_tokens(s, i)) : "measured",
               weft_count_text(p->account.parameters),
               (p->account.forward_flops + p->account.backward_flops) / 1e6, label,
               *label ? ": " : "", *sets ? sets : "baseline");
    }
    int rates = weft_study_variant_rates(s);
    long long seeds = (long long)s->base.study_seeds;
    printf("%d runs: %d learning rate%s%s and %lld seed%s per variant\n", runs, rates,
           rates == 1 ? "" : "s",
           weft_study_chooses(s) ? " on a seed apart, the best of them on the study's seeds," : "",
           seeds, seeds == 1 ? "" : "s");
    char power[WEFT_STUDY_LINE];
    if (*s->base.study_rate_as) printf("learning rates taken over: %s\n", s->base.study_rate_as);
    weft_power_text((int)s->base.study_seeds, s->base.study_spread, power, sizeof power);
    if (weft_study_fits(s))
        printf("compared at the minima over the learning rates; one at the edge adds a rate, %d at "
               "most\n",
               WEFT_RATES_ADDED);
    else if (s->variants.n > 1)
        printf("%s\n", power);
    static const struct {
        double seconds;
        const char *name;
    } units[] = {{86400, "days"}, {3600, "hours"}, {60, "minutes"}, {1, "seconds"}};
    int unit = 0;
    while (unit < 3 && seconds < 2 * units[unit].seconds)
        unit++;
    if (isfinite(seconds))
        printf("about %.0f %s here, one run after the other\n",
               fmax(seconds / units[unit].seconds, 1), units[unit].name);
}

static void advise(const weft_study *s) {
    WEFT_AUTO_FREE const weft_config **configs = calloc((size_t)s->variants.n, sizeof *configs);
    for (int i = 0; configs && i < s->variants.n; i++)
        configs[i] = &s->built[i].config;
    if (configs) weft_config_advise(configs, s->variants.n, s->where);
}

/* What can be known before the first run: how small a difference the seeds can show, and keys that
 * cannot matter. */
static void announce(const weft_study *s) {
    char power[WEFT_STUDY_LINE];
    weft_power_text((int)s->base.study_seeds, s->base.study_spread, power, sizeof power);
    if (s->variants.n > 1) weft_log(WEFT_LOG_INFO, "%s", power);
    advise(s);
}

/* The words of this command that each job has too; the caller frees the list. */
static const char **job_words(int argc, char **argv) {
    static const char *const own[] = {"--slurm", "--out", "--variants", "--threads", "--json"};
    const char **words = calloc((size_t)argc + 2, sizeof *words);
    int n = 0;
    if (!words) return NULL;
    words[n++] = "study";
    for (int i = 1; i < argc; i++) {
        bool skip = false, has_value = false;
        for (int k = 0; k < WEFT_COUNT(own); k++) {
            if (!weft_args_is(argv[i], own[k])) continue;
            skip = true;
            has_value = k >= 1 && k <= 3 && !strchr(argv[i], '=');
        }
        if (!skip) words[n++] = argv[i];
        i += has_value;
    }
    return words;
}

static const char *out_of(const study_args *own, const weft_study *s, char name[WEFT_PATH_MAX]) {
    if (own->out) return own->out;
    if (!weft_study_own_folder(s->where, name)) snprintf(name, WEFT_PATH_MAX, "runs/%s", s->name);
    return name;
}

static weft_status submit_study(const weft_args *args, const study_args *own, const weft_study *s) {
    char name[WEFT_PATH_MAX];
    WEFT_AUTO_FREE bool *chosen = NULL;
    weft_slurm_jobs jobs;
    if (s->base.study_equal == WEFT_EQUAL_TIME)
        return WEFT_BAD_INPUT("study: STUDY_EQUAL=\"time\" is measured on one machine; "
                              "--slurm cannot share it out");
    if (*s->base.study_rate_as)
        return WEFT_BAD_INPUT("study: CONFIG_STUDY_RATE_AS makes variants wait for others; "
                              "--slurm runs each by itself");
    WEFT_TRY(choose_variants(s, own->variants, &chosen));
    weft_slurm_options o = {.out = out_of(own, s, name),
                            .variants = chosen,
                            .words = own->words,
                            .more = own->slurm_options,
                            .cpus = args->threads ? args->threads : SLURM_CPUS,
                            .host = weft_cpu_backend(),
                            .gpu = s->base.device == WEFT_DEVICE_CUDA};
    WEFT_TRY(weft_slurm_submit(s, &o, &jobs));
    if (args->json)
        printf("{\"out\": \"%s\", \"jobs\": %d, \"array\": %s, \"gather\": %s}\n", o.out, jobs.jobs,
               jobs.array, jobs.gather);
    else
        weft_log(WEFT_LOG_INFO,
                 "%d jobs are submitted as array %s; job %s then writes %s/report.html", jobs.jobs,
                 jobs.array, jobs.gather, o.out);
    return WEFT_OK;
}

static double peak_flops(const weft_study *s, const weft_backend *backend, weft_pool *pool) {
    return backend->remote ? 0 : bench_peak_flops(pool, weft_config_dtype(&s->base) == WEFT_BF16);
}

/* The live page of a study that runs on a terminal, as long as the study runs. 0: none, because standard error
 * is no terminal, WEFT_WATCH is "no", or this build has no HTTP. A page that does not start keeps no study from
 * running. */
static pid_t start_page(const char *folder) {
    const char *wish = getenv("WEFT_WATCH");
    pid_t pid = 0;
#ifdef WEFT_HAVE_MICROHTTPD
    bool wanted = isatty(STDERR_FILENO) && !(wish && strcmp(wish, "no") == 0);
#else
    bool wanted = false && wish;
#endif
    if (!wanted || weft_folder_make(folder) != WEFT_OK) return 0;
    WEFT_AUTO_DECREF json_t *line = NULL;
    weft_child_start((const char *const[]){"watch", folder, NULL}, true, 5000, &pid, &line);
    if (line)
        weft_log(WEFT_LOG_INFO, "live at http://127.0.0.1:%lld",
                 (long long)json_integer_value(json_object_get(line, "port")));
    return pid;
}

static weft_status run_study(const weft_args *args, const study_args *own, weft_study *s,
                             const weft_backend *backend, weft_pool **pool, weft_study_result *r) {
    char name[WEFT_PATH_MAX];
    WEFT_AUTO_FREE bool *chosen = NULL;
    weft_study_options o = {.out = out_of(own, s, name),
                            .jobs = (int)own->jobs,
                            .gpus = own->gpus_text ? own->gpus : NULL,
                            .threads = weft_pool_size(*pool),
                            .peak_flops = peak_flops(s, backend, *pool),
                            .device = backend->remote ? weft_cuda_device_name() : "cpu",
                            .restart = own->restart,
                            .seconds = 60 * own->minutes,
                            .begins = args->json ? NULL : announce};
    /* From here on this process has one thread: it starts others. */
    weft_pool_destroy(weft_steal(pool));
    weft_status status = choose_variants(s, own->variants, &chosen);
    o.variants = chosen;
    if (status == WEFT_OK) status = weft_page_vacant(o.out, false);
    pid_t page = status == WEFT_OK && !args->json ? start_page(o.out) : 0;
    if (status == WEFT_OK) status = weft_study_run(s, &o, r);
    weft_child_stop(page);
    WEFT_TRY(status);
    WEFT_PATH(database, "%s/runs.db", o.out);
    WEFT_PATH(config, "%s/" WEFT_STUDY_CONFIG, o.out);
    WEFT_TRY(weft_config_save(&s->base, config));
    bool stopped = r->signal && r->waiting > 0;
    if (!stopped) status = weft_report_write(database, o.out);
    if (status != WEFT_OK && *r->why) weft_log(WEFT_LOG_ERROR, "%s", r->why);
    WEFT_TRY(status);
    if (args->json) {
        char report[WEFT_PATH_MAX + 16];
        snprintf(report, sizeof report, "%s/report.html", o.out);
        json_t *object = weft_json_make(
            "out:s database:s report:s runs:i done:i diverged:i failed:i waiting:i errors:i "
            "equal:i unequal:i why:s",
            o.out, database, report, r->runs, r->done, r->diverged, r->failed, r->waiting,
            r->errors, r->repeats.equal, r->repeats.unequal, *r->why ? r->why : NULL);
        weft_args_print(object, 0);
    }
    if (args->json || stopped) return WEFT_OK;
    weft_report_tell(database, r->waiting == 0);
    weft_log(WEFT_LOG_INFO, "%d of %d runs done; the report is %s/report.html",
             r->done + r->diverged, r->runs, o.out);
    return WEFT_OK;
}

static weft_status study(const weft_args *args, const study_args *own, weft_study_result *r) {
    weft_source source = {args->config, args->settings, args->n_settings};
    const weft_backend *backend;
    WEFT_AUTO(weft_pool_destroy_at) weft_pool *pool = NULL;
    weft_config c;
    WEFT_AUTO(weft_study_close_at) weft_study *s = NULL;
    WEFT_TRY(weft_source_read(&source, NULL, &c));
    WEFT_TRY(weft_args_backend(args, &c, &backend, &pool));
    WEFT_TRY(weft_study_open(&source, backend, weft_pool_size(pool), &s));
    if (own->list && !args->json) advise(s);
    if (own->list) {
        weft_study_list(s, seconds_of(s, peak_flops(s, backend, pool)), args->json);
        return WEFT_OK;
    }
    if (own->slurm) return submit_study(args, own, s);
    weft_stop_install();
    weft_status status = run_study(args, own, s, backend, &pool, r);
    weft_stop_remove();
    return status;
}

weft_status weft_cmd_study(weft_args *args, int argc, char **argv) {
    study_args own = {.jobs = 1};
    weft_study_result result = {0};
    const weft_arg list[] = {
        {"--variants", .value = &own.variants},
        {"--out", .value = &own.out},
        {"--gpus", .value = &own.gpus_text},
        {"--jobs", .value = &own.jobs_text, .number = &own.jobs, .min = 1, .max = JOBS_MOST},
        {"--restart", .value = &own.restart},
        {"--minutes", .real = &own.minutes, .min = 1e-6, .max = 1e6},
        {"--list", .flag = &own.list},
        {"--slurm", .value = &own.slurm_options, .flag = &own.slurm},
        {0}};
    WEFT_TRY(weft_args_parse(args, argc, argv, ARGS_ALL, list, NULL, 0));
    if (args->variant) return WEFT_BAD_INPUT("--variant is weft train's; --variants A,B chooses");
    if (!args->config) return WEFT_BAD_INPUT("--config is needed; see 'weft help study'");
    WEFT_TRY(weft_args_readable(args->config, NULL));
    /* "0,1" as one run at a time on each. */
    if (own.gpus_text) {
        char *at = own.gpus_room;
        int length = snprintf(own.gpus_room, sizeof own.gpus_room, "%s", own.gpus_text);
        if (own.jobs_text) return WEFT_BAD_INPUT("--jobs and --gpus: one run goes on each GPU");
        if (length >= GPUS_ROOM) return WEFT_BAD_INPUT("--gpus names too many GPUs");
        own.jobs = 0;
        for (char *one; (one = strsep(&at, ","));) {
            int64_t number;
            weft_arg option = {"--gpus", .number = &number, .max = JOBS_MOST};
            WEFT_TRY(weft_args_number(&option, one));
            if (own.jobs == GPUS_MOST)
                return WEFT_BAD_INPUT("--gpus names more than %d GPUs", GPUS_MOST);
            own.gpus[own.jobs++] = one;
        }
    }
    bool several = false; /* ranks would each run the whole study, in one folder */
    if (weft_launch_look(&several) != WEFT_OK || several)
        return WEFT_BAD_INPUT("a study starts its runs itself: without mpirun or srun; --jobs, "
                              "--gpus or --slurm run several at a time");
    WEFT_AUTO_FREE const char **words = own.words = job_words(argc, argv);
    if (!words) return weft_no_memory("study");
    WEFT_TRY(study(args, &own, &result));
    if (!*result.why) return WEFT_OK;
    fprintf(stderr, "weft study: %s\n", result.why);
    if (result.failed + result.waiting > 0) {
        fprintf(stderr, "next: %s study", weft_args_word(program_invocation_name));
        for (int i = 1; i < argc; i++)
            fprintf(stderr, " %s", weft_args_word(argv[i]));
        fputs("\n", stderr);
    }
    args->exit = WEFT_EXIT_FAILED;
    return WEFT_OK;
}
