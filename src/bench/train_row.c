/* The sides alternate, a step each, so that what else the machine does falls on both.
 *
 * Memory is the growth of the process from before the model is made to its peak.
 * What a first run takes once and for all (pages of code, the matrix library's buffers) is taken
 * beforehand by a smaller model of the same kind, so that the growth is the model's own. */
#include "bench/train_row.h"

#include "base/clock.h"
#include "base/json.h"
#include "bench/limits.h"
#include "cuda/backend.h"
#include "device/device.h"
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
enum { CHECKED_STEPS = 2, SMALL_LAYERS = 2, SMALL_TIME = 16, SMALL_VOCAB = 64, PATH_ROOM = 512 };

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

static bool is_bf16(const bench_train_job *job) {
    return weft_config_dtype(job->config) == WEFT_BF16;
}

/* Tokens without any order to learn. */
static weft_status draw_tokens(training *t) {
    size_t count = (size_t)(t->batch * t->time), width = (size_t)t->time + 1;
    t->tokens = malloc((size_t)t->batch * width * sizeof *t->tokens);
    t->inputs = malloc(count * sizeof *t->inputs);
    t->targets = malloc(count * sizeof *t->targets);
    if (!t->tokens || !t->inputs || !t->targets)
        return weft_fail(WEFT_ENOMEM, "bench: no memory for the tokens");
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

static weft_status make_model(const weft_config *c, training *t) {
    WEFT_TRY(weft_model_create_on(c, weft_config_dtype(c), t->pool, &t->model));
    return weft_model_start_on(t->model, (uint64_t)c->seed, t->pool);
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
    return draw_tokens(t);
}

static void close_training(training *t) {
    weft_optimizer_destroy(t->optimizer);
    weft_session_close(&t->session);
    weft_model_destroy(t->model);
    free(t->tokens);
    free(t->inputs);
    free(t->targets);
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

/* A step of a smaller model of the same kind, for what only a first run takes. */
static weft_status touch_everything(const bench_train_job *job, const training *like) {
    weft_config c = *job->config;
    c.n_layer = c.n_layer < SMALL_LAYERS ? c.n_layer : SMALL_LAYERS;
    c.context = c.context < SMALL_TIME ? c.context : SMALL_TIME;
    c.vocab_size = c.vocab_size < SMALL_VOCAB ? c.vocab_size : SMALL_VOCAB;
    c.batch_size = 1;
    c.micro_batch = 0;
    WEFT_AUTO(close_training) training t = {.backend = like->backend, .pool = like->pool};
    WEFT_TRY(make_model(&c, &t));
    WEFT_TRY(open_training(&c, &t));
    return train_step(&t);
}

static void remove_folder(const char *folder) {
    static const char *const files[] = {"config.json", "model.safetensors"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char path[PATH_ROOM + 32];
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        unlink(path);
    }
    rmdir(folder);
}

static weft_status save_weights(const weft_model *m, char *folder, size_t room) {
    const char *under = getenv("TMPDIR");
    int length = snprintf(folder, room, "%s/weft-bench-XXXXXX", under && *under ? under : "/tmp");
    if (length < 0 || (size_t)length >= room || !mkdtemp(folder)) {
        folder[0] = '\0';
        return weft_fail(WEFT_EIO, "bench: no folder for the weights: %s", strerror(errno));
    }
    return weft_model_save(m, folder);
}

static json_t *row_json(const int32_t *tokens, int64_t n) {
    WEFT_JSON_LIST(row, i, n, json_integer(tokens[i]));
    return row;
}

/* Has the peer take the same first steps; whether it is there to be measured. */
static bool prepare_peer(const bench_train_job *job, const training *t, const char *folder,
                         json_t *out) {
    int64_t width = t->time + 1;
    WEFT_JSON_LIST(tokens, b, t->batch, row_json(t->tokens + b * width, width));
    json_t *reply = bench_peer_ask(
        job->peer, weft_json_make("do:s model:s tokens:o rate:f steps:i eager:b", "prepare", folder,
                                  tokens, t->rate, CHECKED_STEPS, job->eager));
    if (!reply) {
        weft_json_add(out, "peer_error:s", bench_peer_error(job->peer));
        return false;
    }
    json_t *theirs = json_object_get(reply, "losses");
    double tolerance = is_bf16(job) ? TOLERANCE_BF16 : TOLERANCE;
    bool differs = (int)json_array_size(theirs) != CHECKED_STEPS;
    for (int i = 0; !differs && i < CHECKED_STEPS; i++) {
        double other = json_number_value(json_array_get(theirs, (size_t)i));
        differs = !(fabs(t->losses[i] - other) <= tolerance * fabs(other));
    }
    weft_json_add(out, "differs:b peer_losses:O* peer_form:O* peer_forms:O*", differs, theirs,
                  json_object_get(reply, "form"), json_object_get(reply, "forms"));
    json_decref(reply);
    return true;
}

typedef struct {
    bench_sides sides;
    double whole; /* on a GPU: from the first to the last of ours */
} measured;

/* A GPU is given no pause: it would be cooler and faster than in training. */
static weft_status alternate_sides(const bench_train_job *job, training *t, bench_limits *limits,
                                   bool *peer, measured *m) {
    double began = weft_clock();
    for (int i = 0; i < job->steps; i++) {
        if (!t->backend->remote) bench_pause(0.005);
        double start = weft_clock();
        WEFT_TRY(train_step(t));
        bench_samples_add(&m->sides.ours, weft_clock() - start);
        if (!t->backend->remote)
            bench_samples_add(&m->sides.limit, 1 / bench_limit_gflops(limits, is_bf16(job)));
        if (*peer) *peer = bench_peer_run(job->peer, 1, &m->sides.peers);
    }
    if (t->backend->remote) m->whole = weft_clock() - began;
    return WEFT_OK;
}

static void report_speed(const bench_train_job *job, const measured *m, bool peer, json_t *out) {
    double seconds = bench_median(&m->sides.ours);
    double rate = seconds > 0 ? 1e-9 * job->step_flops / seconds : 0;
    weft_json_add(out, "seconds:f spread:f mean_seconds:f* samples:i of_limit:f", seconds,
                  bench_spread(&m->sides.ours), m->whole > 0 ? m->whole / (double)job->steps : NAN,
                  (int)m->sides.ours.count,
                  m->sides.limit.count ? rate * bench_median(&m->sides.limit) : 0.0);
    if (peer)
        weft_json_add(out, "peer_seconds:f peer_spread:f", bench_median(&m->sides.peers),
                      bench_spread(&m->sides.peers));
    else if (job->peer && !json_object_get(out, "peer_error"))
        weft_json_add(out, "peer_error:s", bench_peer_error(job->peer));
}

static weft_status measure_speed(const bench_train_job *job, training *t, bench_limits *limits,
                                 const char *folder, json_t *out) {
    measured m = {0};
    bool peer = job->peer && prepare_peer(job, t, folder, out);
    weft_status status = alternate_sides(job, t, limits, &peer, &m);
    if (!status) report_speed(job, &m, peer, out);
    if (job->peer) {
        json_decref(bench_peer_ask(job->peer, weft_json_make("do:s", "drop")));
        weft_json_add(out, "peer_gone:b", bench_peer_gone(job->peer));
    }
    bench_sides_free(&m.sides);
    return status;
}

/* What went by since `start`, which is then now. */
static void note_time(json_t *out, const char *key, double *start) {
    double now = weft_clock();
    json_object_set_new(out, key, json_real(now - *start));
    *start = now;
}

/* All of a row but the pool and the limits, which are there before memory is looked at. */
static weft_status measure_row(const bench_train_job *job, training *t, bench_limits *limits,
                               char *folder, json_t *out) {
    bool remote = t->backend->remote; /* then memory is the device's, above its first reading */
    if (!remote) WEFT_TRY(touch_everything(job, t));
    if (!remote) bench_limit_gflops(limits, is_bf16(job));
    if (job->profile) setenv("WEFT_PROFILE", "1", 0);
    int64_t before = remote ? 1 : read_status("VmRSS:");
    double start = weft_clock();
    WEFT_TRY(make_model(job->config, t));
    if (job->peer) WEFT_TRY(save_weights(t->model, folder, PATH_ROOM));
    note_time(out, "draw_seconds", &start);
    WEFT_TRY(open_training(job->config, t));
    trim_memory(); /* what drawing the weights took in passing */
    note_time(out, "open_seconds", &start);
    /* What is compared with the peer, or one to warm up where more than one is measured. */
    int unmeasured = remote ? GPU_UNMEASURED : job->peer ? CHECKED_STEPS : job->steps > 1;
    for (int i = 0; i < unmeasured; i++) {
        WEFT_TRY(train_step(t));
        if (i == 0) note_time(out, "first_step_seconds", &start);
    }
    for (start = weft_clock(); weft_clock() - start < job->settle;)
        WEFT_TRY(train_step(t));
    WEFT_TRY(measure_speed(job, t, limits, folder, out));
    int64_t peak = remote ? weft_cuda_bytes_taken() + before : read_status("VmHWM:");
    if (remote) { /* after the steps, so that its memory is not counted as theirs */
        double limit = bench_product_gflops(t->backend, t->pool, is_bf16(job));
        double seconds = json_number_value(json_object_get(out, "seconds"));
        double rate = seconds > 0 ? 1e-9 * job->step_flops / seconds : 0;
        weft_json_add(out, "limit_gflops:f of_limit:f", limit, limit > 0 ? rate / limit : 0.0);
    }
    uint32_t checked = t->iteration < CHECKED_STEPS ? t->iteration : CHECKED_STEPS;
    WEFT_JSON_LIST(losses, i, checked, json_real(t->losses[i]));
    weft_json_add(out, "peak_bytes:I losses:o", before && peak ? peak - before : 0, losses);
    return WEFT_OK;
}

WEFT_ENDED_BY(weft_pool_destroy, weft_pool)
WEFT_ENDED_BY(bench_limits_destroy, bench_limits)
static weft_status run_job(const bench_train_job *job, char *folder, json_t *out) {
    WEFT_AUTO(weft_pool_destroy_at) weft_pool *pool = NULL;
    WEFT_AUTO(bench_limits_destroy_at) bench_limits *limits = NULL;
    WEFT_AUTO(close_training) training t = {0};
    double start = weft_clock();
    int64_t device = job->config->device == WEFT_DEVICE_CUDA ? WEFT_DEVICE_CUDA : WEFT_DEVICE_CPU;
    WEFT_TRY(weft_device_open(device, weft_config_dtype(job->config), &t.backend));
    note_time(out, "device_seconds", &start);
    WEFT_TRY(weft_pool_create(job->threads, &pool));
    WEFT_TRY(bench_limits_create(pool, false, &limits));
    t.pool = pool;
    return measure_row(job, &t, limits, folder, out);
}

json_t *bench_train_run(const bench_train_job *job) {
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
        char folder[PATH_ROOM] = "";
        json_t *result = json_object();
        weft_status failed = run_job(job, folder, result);
        if (folder[0]) remove_folder(folder);
        if (failed)
            weft_json_add(result, "error:o",
                          weft_json_make("status:i message:s", failed, weft_error_message()));
        char *text = json_dumps(result, JSON_COMPACT);
        size_t length = text ? strlen(text) : 0;
        bool sent = text && write(ends[1], text, length) == (ssize_t)length;
        free(text);
        json_decref(result);
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
