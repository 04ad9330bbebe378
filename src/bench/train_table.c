/* Every row's config is made and planned before the first one runs, so that a wrong one costs
 * nothing; then each row runs in a process of its own: whole training steps (forward, backward, clipping,
 * AdamW). The sides alternate, a step each, so that what else the machine does falls on both.
 *
 * Memory is the growth of the process from before the model is made to its peak.
 * What a first run takes once and for all (pages of code, the matrix library's buffers) is taken
 * beforehand by a smaller model of the same kind, so that the growth is the model's own. */
#include "base/clock.h"
#include "base/folders.h"
#include "base/json.h"
#include "bench/tables.h"
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "device/device.h"
#include "model/account.h"
#include "train/optimizer.h"

#include <errno.h>
#include <malloc.h>
#include <math.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define TOLERANCE 1e-3
#define TOLERANCE_BF16 1e-2

/* A GPU's first run chooses algorithms and its second is captured. */
enum { GPU_UNMEASURED = 4 };
enum { CHECKED_STEPS = 2, SMALL_LAYERS = 2, SMALL_TIME = 16, SMALL_VOCAB = 64 };
enum { ROWS_MAX = 32, NAME_ROOM = 320, PATH_ROOM = 512 };

typedef struct {
    const bench_variant *variant;
    weft_config config;
    weft_account account;
    json_t *result; /* NULL: it failed */
} row;

typedef struct {
    const bench_options *opt;
    int threads, steps;
    bench_peer *peer;
    char peer_name[NAME_ROOM];
    bench_table table;
    row *rows; /* [ROWS_MAX] */
    int count, *failed;
} bench;

static double step_tokens(const row *r) {
    return (double)(weft_config_micro_batch(&r->config) * r->config.context);
}

static double step_flops(const row *r) {
    return r->account.built_flops * step_tokens(r);
}

/* Bytes of this process, as Linux tells them: in memory now (VmRSS), and at most since it began (VmHWM); 0
 * where it does not. A process that was forked begins with what it shares with its parent. */
static int64_t read_status(const char *key) {
    WEFT_AUTO_FCLOSE FILE *file = fopen("/proc/self/status", "r");
    if (!file) return 0;
    char line[256];
    long long kilobytes = 0;
    size_t length = strlen(key);
    while (fgets(line, sizeof line, file))
        if (strncmp(line, key, length) == 0 && sscanf(line + length, "%lld", &kilobytes) == 1)
            break;
    return kilobytes * 1024;
}

/* Gives memory that was freed back to the system, so that it does not count and is not taken again
 * unseen. */
static void trim_memory(void) {
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
}

typedef struct {
    const weft_backend *backend;
    weft_pool *pool;
    int64_t batch, time;
    double rate;
    weft_model *model;
    weft_session session;
    weft_optimizer *optimizer;
    int32_t *tokens, *inputs, *targets; /* [batch, time + 1], [batch, time] twice */
    uint32_t iteration;
    double losses[CHECKED_STEPS]; /* of the first steps */
} training;

/* A row in its process. */
typedef struct {
    const bench *b;
    const row *r;
    bool eager; /* the peer compiles nothing */
    bench_limits *limits;
    training t;
    char folder[PATH_ROOM]; /* of the weights, for the peer; empty: there is none */
    json_t *out;            /* what came of it */
} job;

static bool is_bf16(const job *j) {
    return weft_config_dtype(&j->r->config) == WEFT_BF16;
}

static weft_status make_model(const weft_config *c, training *t) {
    WEFT_TRY(weft_model_create(c, weft_config_dtype(c), t->pool, &t->model));
    return weft_model_start(t->model, (uint64_t)c->seed, t->pool);
}

static weft_status open_training(const weft_config *c, training *t) {
    t->batch = weft_config_micro_batch(c);
    t->time = c->context;
    t->rate = c->learning_rate;
    weft_build build = {.batch = t->batch,
                        .time = t->time,
                        .dtype = weft_config_dtype(c),
                        .train = true,
                        .recompute = c->recompute};
    WEFT_TRY(weft_session_open(t->model, t->backend, t->pool, &build, true, false, &t->session));
    WEFT_TRY(weft_optimizer_create(t->model, t->backend, t->pool, NULL, &t->optimizer));
    WEFT_TRY(weft_optimizer_bind_session(t->optimizer, &t->session));
    /* Tokens without any order to learn. */
    size_t count = (size_t)(t->batch * t->time), width = (size_t)t->time + 1;
    WEFT_ROOM_AT(t->tokens, (size_t)t->batch * width, "bench: no memory for the tokens");
    WEFT_ROOM_AT(t->inputs, count, "bench: no memory for the tokens");
    WEFT_ROOM_AT(t->targets, count, "bench: no memory for the tokens");
    uint64_t state = 1;
    for (size_t i = 0; i < (size_t)t->batch * width; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        t->tokens[i] = (int32_t)((state >> 33) % (uint64_t)t->model->config.vocab_size);
    }
    for (size_t b = 0; b < (size_t)t->batch; b++) {
        size_t bytes = (size_t)t->time * sizeof *t->tokens;
        memcpy(t->inputs + b * (size_t)t->time, t->tokens + b * width, bytes);
        memcpy(t->targets + b * (size_t)t->time, t->tokens + b * width + 1, bytes);
    }
    return WEFT_OK;
}

static void close_training(training *t) {
    weft_optimizer_destroy(t->optimizer);
    weft_session_close(&t->session);
    weft_model_destroy(t->model);
    WEFT_FREE(t->tokens, t->inputs, t->targets);
    trim_memory();
}

static weft_status train_step(training *t) {
    weft_run run = {.seed = (uint64_t)t->model->config.seed, .iteration = t->iteration};
    WEFT_TRY(weft_session_run(&t->session, t->inputs, t->targets, &run));
    if (t->iteration < CHECKED_STEPS) {
        weft_loss_parts parts;
        WEFT_TRY(weft_session_losses(&t->session, &parts));
        t->losses[t->iteration] = parts.loss;
    }
    t->iteration++;
    return weft_optimizer_run(t->optimizer, t->rate);
}

static weft_status save_weights(job *j) {
    const char *under = getenv("TMPDIR");
    int length =
        snprintf(j->folder, PATH_ROOM, "%s/weft-bench-XXXXXX", under && *under ? under : "/tmp");
    if (length < 0 || length >= PATH_ROOM || !mkdtemp(j->folder)) {
        j->folder[0] = '\0';
        return weft_fail(WEFT_EIO, "bench: no folder for the weights: %s", strerror(errno));
    }
    WEFT_TRY(weft_folder_mark(j->folder));
    return weft_model_save(j->t.model, j->folder);
}

/* Has the peer take the same first steps; whether it is there to be measured. */
static bool prepare_peer(job *j) {
    const training *t = &j->t;
    int64_t width = t->time + 1;
    json_t *tokens = json_array();
    for (int64_t b = 0; b < t->batch; b++) {
        WEFT_JSON_LIST(list, i, width, json_integer(t->tokens[b * width + i]));
        json_array_append_new(tokens, list);
    }
    WEFT_AUTO_DECREF json_t *reply = bench_peer_ask(
        j->b->peer, weft_json_make("do:s model:s tokens:o rate:f steps:i eager:b", "prepare",
                                   j->folder, tokens, t->rate, CHECKED_STEPS, j->eager));
    if (!reply) {
        weft_json_add(j->out, "peer_error:s", bench_peer_error(j->b->peer));
        return false;
    }
    json_t *theirs = json_object_get(reply, "losses");
    double tolerance = is_bf16(j) ? TOLERANCE_BF16 : TOLERANCE;
    bool differs = (int)json_array_size(theirs) != CHECKED_STEPS;
    for (int i = 0; !differs && i < CHECKED_STEPS; i++) {
        double other = json_number_value(json_array_get(theirs, (size_t)i));
        differs = !(fabs(t->losses[i] - other) <= tolerance * fabs(other));
    }
    weft_json_add(j->out, "differs:b peer_losses:O* peer_form:O* peer_forms:O*", differs, theirs,
                  json_object_get(reply, "form"), json_object_get(reply, "forms"));
    return true;
}

/* A GPU is given no pause: it would be cooler and faster than in training. */
static weft_status measure_speed(job *j) {
    training *t = &j->t;
    bool remote = t->backend->remote, peer = j->b->peer && prepare_peer(j);
    WEFT_AUTO(bench_sides_free) bench_sides m = {0};
    int steps = j->b->steps;
    double began = weft_clock();
    for (int i = 0; i < steps; i++) {
        if (!remote) bench_pause();
        double start = weft_clock();
        WEFT_TRY(train_step(t));
        bench_samples_add(&m.ours, weft_clock() - start);
        if (!remote) bench_samples_add(&m.limit, 1 / bench_limit_gflops(j->limits, is_bf16(j)));
        if (peer) peer = bench_peer_run(j->b->peer, 1, &m.peers);
    }
    double whole = remote ? (weft_clock() - began) / (double)steps : NAN;
    double seconds = bench_median(&m.ours);
    double rate = seconds > 0 ? 1e-9 * step_flops(j->r) / seconds : 0;
    weft_json_add(j->out, "seconds:f spread:f mean_seconds:f* samples:i of_limit:f", seconds,
                  bench_spread(&m.ours), whole, (int)m.ours.count,
                  m.limit.count ? rate * bench_median(&m.limit) : 0.0);
    if (peer)
        weft_json_add(j->out, "peer_seconds:f peer_spread:f", bench_median(&m.peers),
                      bench_spread(&m.peers));
    else if (j->b->peer && !json_object_get(j->out, "peer_error"))
        weft_json_add(j->out, "peer_error:s", bench_peer_error(j->b->peer));
    return WEFT_OK;
}

/* What went by since `start`, which is then now. */
static void note_time(job *j, const char *key, double *start) {
    double now = weft_clock();
    json_object_set_new(j->out, key, json_real(now - *start));
    *start = now;
}

/* The pool and the limits, which end with the process, are there before memory is looked at. */
static weft_status run_job(job *j) {
    training *t = &j->t;
    json_t *out = j->out;
    double start = weft_clock();
    int64_t device = j->r->config.device == WEFT_DEVICE_CUDA ? WEFT_DEVICE_CUDA : WEFT_DEVICE_CPU;
    WEFT_TRY(weft_device_open(device, weft_config_dtype(&j->r->config), &t->backend));
    note_time(j, "device_seconds", &start);
    WEFT_TRY(weft_pool_create(j->b->threads, &t->pool));
    WEFT_TRY(bench_limits_create(t->pool, false, &j->limits));
    bool remote = t->backend->remote; /* then memory is the device's, above its first reading */
    /* A step of a smaller model of the same kind, for what only a first run takes. */
    if (!remote) {
        weft_config c = j->r->config;
        c.n_layer = c.n_layer < SMALL_LAYERS ? c.n_layer : SMALL_LAYERS;
        c.context = c.context < SMALL_TIME ? c.context : SMALL_TIME;
        c.vocab_size = c.vocab_size < SMALL_VOCAB ? c.vocab_size : SMALL_VOCAB;
        c.batch_size = 1;
        c.micro_batch = 0;
        WEFT_AUTO(close_training) training small = {.backend = j->t.backend, .pool = j->t.pool};
        WEFT_TRY(make_model(&c, &small));
        WEFT_TRY(open_training(&c, &small));
        WEFT_TRY(train_step(&small));
    }
    if (!remote) bench_limit_gflops(j->limits, is_bf16(j));
    if (j->b->opt->profile) setenv("WEFT_PROFILE", "1", 0);
    int64_t before = remote ? 1 : read_status("VmRSS:");
    start = weft_clock();
    WEFT_TRY(make_model(&j->r->config, t));
    if (j->b->peer) WEFT_TRY(save_weights(j));
    note_time(j, "draw_seconds", &start);
    WEFT_TRY(open_training(&j->r->config, t));
    trim_memory(); /* what drawing the weights took in passing */
    note_time(j, "open_seconds", &start);
    /* What is compared with the peer, or one to warm up where more than one is measured. */
    int unmeasured = remote ? GPU_UNMEASURED : j->b->peer ? CHECKED_STEPS : j->b->steps > 1;
    for (int i = 0; i < unmeasured; i++) {
        WEFT_TRY(train_step(t));
        if (i == 0) note_time(j, "first_step_seconds", &start);
    }
    for (start = weft_clock(); weft_clock() - start < j->b->opt->settle;)
        WEFT_TRY(train_step(t));
    weft_status status = measure_speed(j);
    if (j->b->peer) {
        json_decref(bench_peer_ask(j->b->peer, weft_json_make("do:s", "drop")));
        weft_json_add(out, "peer_gone:b", bench_peer_gone(j->b->peer));
    }
    WEFT_TRY(status);
    int64_t peak = remote ? weft_cuda_bytes_taken() + before : read_status("VmHWM:");
    if (remote) { /* after the steps, so that its memory is not counted as theirs */
        double limit = bench_product_gflops(t->backend, t->pool, is_bf16(j));
        double seconds = json_number_value(json_object_get(out, "seconds"));
        double rate = seconds > 0 ? 1e-9 * step_flops(j->r) / seconds : 0;
        weft_json_add(out, "limit_gflops:f of_limit:f", limit, limit > 0 ? rate / limit : 0.0);
    }
    uint32_t checked = t->iteration < CHECKED_STEPS ? t->iteration : CHECKED_STEPS;
    WEFT_JSON_LIST(losses, i, checked, json_real(t->losses[i]));
    weft_json_add(out, "peak_bytes:I losses:o", before && peak ? peak - before : 0, losses);
    return WEFT_OK;
}

/* Runs a row in a process of its own, since a peak of memory is a process's, and gives what came
 * of it, the caller's to json_decref; NULL and an error when it failed. Keys:
 *
 *   seconds, spread, samples   of a step: the median
 *   mean_seconds               on a GPU: the mean of a step and what lies between two of them
 *   device_seconds, draw_seconds, open_seconds, first_step_seconds
 *                              what it took to find the device, draw the weights, open the training
 *                              pass, and take the first step
 *   of_limit                   the rate of its operations against multiply-adds in registers on every thread
 *                              (bench/tables.h), of the kind of its dtype, measured in the same rounds
 *   peak_bytes                 the most memory that training added; 0: the system does not tell
 *   losses                     of the first steps
 *   peer_seconds, peer_spread, peer_form, peer_forms, peer_losses, differs
 *                              with a peer. differs: its losses are not ours
 *   peer_error                 one line on why the peer has no numbers
 *   peer_gone                  whether its process has ended */
static json_t *fork_row(job *j) {
    int ends[2];
    pid_t parent = getpid();
    fflush(NULL);
    pid_t child = pipe(ends) == 0 ? fork() : -1;
    if (child < 0) {
        weft_fail(WEFT_EIO, "bench: no process for a row: %s", strerror(errno));
        return NULL;
    }
    if (child == 0) {
        close(ends[0]);
        /* It does not go on without the process that wants its row. */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        j->out = json_object();
        weft_status failed = run_job(j);
        if (failed)
            weft_json_add(j->out, "error:o",
                          weft_json_make("status:i message:s", failed, weft_error_message()));
        close_training(&j->t); /* which prints its profile */
        if (j->folder[0]) weft_folder_remove(j->folder);
        bool sent = json_dumpfd(j->out, ends[1], JSON_COMPACT) == 0;
        fflush(stderr);
        _exit(sent ? 0 : 1); /* the parent's output buffers are not this process's to flush */
    }
    close(ends[1]);
    json_t *result = json_loadfd(ends[0], 0, NULL);
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    const json_t *error = json_object_get(result, "error");
    if (result && !error) return result;
    if (error)
        weft_fail((weft_status)json_integer_value(json_object_get(error, "status")), "%s",
                  json_string_value(json_object_get(error, "message")));
    else if (WIFSIGNALED(status))
        weft_fail(WEFT_EIO, "bench: a row's process was ended by signal %d%s", WTERMSIG(status),
                  WTERMSIG(status) == 9 ? ": was there too little memory?" : "");
    else
        weft_fail(WEFT_EBUG, "bench: a row's process gave no result");
    json_decref(result);
    return NULL;
}

static weft_status unknown_variant(const char *name) {
    char all[256] = "";
    for (int i = 0; i < bench_variant_count; i++) {
        strncat(all, i ? ", " : "", sizeof all - strlen(all) - 1);
        strncat(all, bench_variants[i].name, sizeof all - strlen(all) - 1);
    }
    return WEFT_BAD_INPUT("--variants: there is no '%.*s'; there are %s", (int)strcspn(name, ","),
                          name, all);
}

static weft_status add_row(bench *b, const bench_variant *v) {
    if (b->count == ROWS_MAX) return WEFT_BAD_INPUT("--variants: more than %d of them", ROWS_MAX);
    row *r = &b->rows[b->count++];
    r->variant = v;
    WEFT_TRY(bench_variant_config(v, &b->opt->source, &r->config));
    /* A row has a process of its own, which a driver that was used before it would not survive. */
    bool cuda = r->config.device == WEFT_DEVICE_CUDA;
    const weft_backend *backend = cuda ? weft_cuda_planner() : weft_cpu_backend();
    if (!backend) return WEFT_EMISSING;
    if (cuda && b->opt->peer)
        return WEFT_BAD_INPUT("device cuda: --peer is measured on the CPU only");
    return weft_account_make(&r->config, backend, b->threads, &r->account);
}

static double number(const row *r, const char *key) {
    return json_number_value(json_object_get(r->result, key));
}

static double peer_ratio(const row *r) {
    double peer = number(r, "peer_seconds"), ours = number(r, "seconds");
    return ours > 0 ? peer / ours : 0;
}

static void print_row(bench *b, const row *r) {
    double seconds = number(r, "seconds"), limit = number(r, "of_limit");
    double plan = (double)r->account.training_bytes, ratio = peer_ratio(r);
    double peak = number(r, "peak_bytes") > 0 ? number(r, "peak_bytes") : NAN;
    const char *form = json_string_value(json_object_get(r->result, "peer_form"));
    bench_cells(&b->table, "%s|%.2f|%.0f|%.0f%%|%.1f|%.0f%%|%.1f|%.1f|%.3f|%.0f|%.0f%%|%s|%.2f",
                r->variant->label, 1e-6 * (double)r->account.parameters, step_tokens(r) / seconds,
                100 * number(r, "spread"), 1e-9 * step_flops(r) / seconds,
                limit > 0 ? 100 * limit : NAN, 1e-6 * plan, 1e-6 * peak, peak / plan,
                ratio > 0 ? step_tokens(r) / number(r, "peer_seconds") : NAN,
                ratio > 0 ? 100 * number(r, "peer_spread") : NAN, ratio > 0 && form ? form : "-",
                ratio > 0 ? ratio : NAN);
}

static void check_row(bench *b, const row *r) {
    const char *error = json_string_value(json_object_get(r->result, "peer_error"));
    if (error) fprintf(stderr, "%s: no peer: %s\n", r->variant->name, error);
    if (!json_is_true(json_object_get(r->result, "differs"))) return;
    const json_t *ours = json_object_get(r->result, "losses");
    const json_t *theirs = json_object_get(r->result, "peer_losses");
    fprintf(stderr, "%s: the peer computes another function: losses", r->variant->name);
    for (size_t i = 0; i < json_array_size(ours); i++)
        fprintf(stderr, "%s %.6f here and %.6f there", i ? "," : "",
                json_number_value(json_array_get(ours, i)),
                json_number_value(json_array_get(theirs, i)));
    fputc('\n', stderr);
    ++*b->failed;
}

/* The peer anew: a row that broke off may have left it in the middle of an answer. */
static void start_peer(bench *b) {
    bench_peer_stop(b->peer);
    b->peer = bench_peer_start(b->opt->peer, b->threads, b->peer_name, sizeof b->peer_name);
    if (!b->peer) fprintf(stderr, "no peer: %s\n", b->peer_name);
}

static json_t *run_row(bench *b, const row *r, bool eager) {
    json_t *result = fork_row(&(job){.b = b, .r = r, .eager = eager});
    if (b->peer && (!result || json_is_true(json_object_get(result, "peer_gone")))) start_peer(b);
    return result;
}

/* A row in which the peer's process ends is measured once more, with a new one that compiles nothing:
 * code that a compiler made is what such a process has died of. */
static json_t *measure_row(bench *b, const row *r) {
    json_t *result = run_row(b, r, false);
    if (!b->peer || !json_is_string(json_object_get(result, "peer_error")) ||
        !json_is_true(json_object_get(result, "peer_gone")))
        return result;
    fprintf(stderr, "%s: the peer is gone; once more, with nothing compiled\n", r->variant->name);
    json_decref(result);
    return run_row(b, r, true);
}

static json_t *row_json(const row *r) {
    double seconds = number(r, "seconds"), ratio = peer_ratio(r);
    double plan = (double)r->account.training_bytes, peak = number(r, "peak_bytes");
    json_t *j = weft_json_make("variant:s label:s parameters:I plan_bytes:I flops_per_token:f",
                               r->variant->name, r->variant->label, r->account.parameters,
                               r->account.training_bytes, r->account.built_flops);
    if (!r->result) return weft_json_add(j, "failed:b", true);
    json_object_update(j, r->result);
    weft_json_add(j, "tokens_per_s:f gflops:f peak_of_plan:f", step_tokens(r) / seconds,
                  1e-9 * step_flops(r) / seconds, peak > 0 ? peak / plan : NAN);
    if (ratio > 0)
        weft_json_add(j, "peer_tokens_per_s:f ratio:f", step_tokens(r) / number(r, "peer_seconds"),
                      ratio);
    return j;
}

static weft_status write_json(const bench *b) {
    const weft_config *c = &b->rows[0].config;
    WEFT_JSON_LIST(rows, i, b->count, row_json(&b->rows[i]));
    json_t *shape =
        weft_json_make("layers:I width:I heads:I tokens:I batch:I vocabulary:I dtype:s", c->n_layer,
                       c->n_embd, c->n_head, c->context, weft_config_micro_batch(c), c->vocab_size,
                       weft_dtype_name(weft_config_dtype(c)));
    json_t *all = weft_json_make("version:s isa:s threads:i steps:i peer:s shape:o rows:o",
                                 weft_version(), weft_cpu_isa(), b->threads, b->steps,
                                 b->peer ? b->peer_name : NULL, shape, rows);
    return bench_write_json(b->opt->json, all);
}

static void end_bench(bench *b) {
    bench_peer_stop(b->peer);
    for (int i = 0; i < b->count; i++)
        json_decref(b->rows[i].result);
    free(b->rows);
}

weft_status bench_train_table(const bench_options *o, int *failed) {
    WEFT_AUTO(end_bench) bench run = {.opt = o, .failed = failed};
    bench *b = &run;
    weft_pool *pool;
    *failed = 0;
    WEFT_ROOM_AT(b->rows, ROWS_MAX, "bench: no memory");
    if (!weft_cpu_backend()) return WEFT_EMISSING;
    WEFT_TRY(weft_pool_create(o->threads, &pool));
    b->threads = weft_pool_size(pool);
    weft_pool_destroy(pool); /* rows are forked, and threads do not follow */
    b->steps = (int)(o->steps ? o->steps : o->source.shape->steps);
    const char *names = b->opt->variants ? b->opt->variants : b->opt->source.shape->variants;
    if (b->opt->source.file && !b->opt->variants) names = NULL;
    for (int i = 0; !names && i < bench_variant_count; i++)
        WEFT_TRY(add_row(b, &bench_variants[i]));
    while (names) {
        const bench_variant *v = bench_variant_find(names);
        if (!v) return unknown_variant(names);
        WEFT_TRY(add_row(b, v));
        names = strchr(names, ',');
        if (names) names++;
    }
    snprintf(b->peer_name, sizeof b->peer_name, "none");
    if (o->peer) start_peer(b);
    FILE *to = b->opt->table;
    const weft_config *c = &b->rows[0].config;
    if (to) {
        fprintf(to, "weft %s, %s, threads: %d\n", weft_version(), weft_cpu_isa(), b->threads);
        fprintf(
            to,
            "a training step: %lld layers, %lld wide, %lld heads, %lld tokens × %lld, vocabulary "
            "%lld, %s\n",
            (long long)c->n_layer, (long long)c->n_embd, (long long)c->n_head,
            (long long)c->context, (long long)weft_config_micro_batch(c), (long long)c->vocab_size,
            weft_dtype_name(weft_config_dtype(c)));
        fprintf(to, "peer: %s%s\n\n", b->peer_name,
                b->peer ? ", as many threads, in turns" : "; its columns say -");
    }
    bench_table_start(&b->table, b->opt->table,
                      "variant:-20|params M:8|tokens/s:9|±:4|GFLOP/s:8|of limit:8|plan MB:9|"
                      "peak MB:9|peak/plan:9|PyTorch tok/s:13|±:4|form:-17|ratio:6");
    for (int i = 0; i < b->count; i++) {
        row *r = &b->rows[i];
        if (b->opt->profile) fprintf(stderr, "%s\n", r->variant->label);
        r->result = measure_row(b, r);
        if (r->result) {
            check_row(b, r);
            print_row(b, r);
        } else {
            fprintf(stderr, "%s: %s\n", r->variant->name, weft_error_message());
            ++*b->failed;
        }
    }
    return o->json ? write_json(b) : WEFT_OK;
}
