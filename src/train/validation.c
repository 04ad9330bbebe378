/* Evaluation on the held-out set. Logits are made only where the dataset scores them: without a
 * metric the loss needs none. */
#include "train/validation.h"

#include "comm/share.h"
#include "data/prefetch.h"
#include "model/account.h"

#include <math.h>
#include <stdlib.h>

enum { AHEAD = 2 };

/* Which positions of a sequence count: first .. last - 1. */
typedef struct {
    int64_t first, last;
} range;

struct weft_validation {
    const weft_model *model;
    const weft_dataset *dataset;
    weft_session session;
    double *logits; /* [B, T, V] of a run, where there is a metric */
    int64_t batch, time, parts;
    int64_t samples;
    weft_run_loss *runs; /* [samples, parts] */
    weft_comm *comm;
    range counted;    /* all positions, but while the loss is told by position */
    int32_t *targets; /* [B, T] of a run in which only some count */
};

weft_status weft_validation_open(const weft_model *m, const weft_dataset *d,
                                 const weft_backend *backend, weft_pool *pool, weft_comm *comm,
                                 weft_validation **out) {
    *out = NULL;
    weft_validation *v = calloc(1, sizeof *v);
    if (!v) return weft_fail(WEFT_ENOMEM, "evaluation: no memory");
    const weft_config *c = &m->config;
    bool scored = weft_dataset_metric(d) != NULL;
    v->model = m;
    v->dataset = d;
    v->batch = weft_config_micro_batch(c);
    v->time = c->context;
    v->parts = c->batch_size / v->batch;
    v->samples = c->eval_samples;
    v->runs = calloc((size_t)(v->samples * v->parts), sizeof *v->runs);
    v->comm = comm;
    weft_build build = {.batch = v->batch, .time = v->time, .dtype = m->dtype, .logits = scored};
    weft_status status = v->runs ? WEFT_OK : weft_fail(WEFT_ENOMEM, "evaluation: no memory");
    if (status == WEFT_OK)
        status = weft_session_open(m, backend, pool, &build, false, false, &v->session);
    if (status == WEFT_OK && scored) {
        v->logits = malloc((size_t)(v->batch * v->time * c->vocab_size) * sizeof *v->logits);
        if (!v->logits) status = weft_fail(WEFT_ENOMEM, "evaluation: no memory for the logits");
    }
    if (status != WEFT_OK) {
        weft_validation_close(v);
        return status;
    }
    *out = v;
    return WEFT_OK;
}

void weft_validation_close(weft_validation *v) {
    if (!v) return;
    weft_session_close(&v->session);
    free(v->logits);
    free(v->runs);
    free(v->targets);
    free(v);
}

static int64_t first_choice(const double *logits, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static weft_status count_right(weft_validation *v, const weft_batch *b, weft_run_loss *out) {
    int64_t rows = v->batch * v->time, vocab = v->model->config.vocab_size;
    WEFT_TRY(weft_session_values(&v->session, v->session.graph.logits, rows * vocab, v->logits));
    for (int64_t i = 0; i < rows; i++) {
        if (!b->scored[i]) continue;
        out->asked++;
        out->right += first_choice(v->logits + i * vocab, vocab) == b->targets[i];
    }
    return WEFT_OK;
}

static bool counts_all(const weft_validation *v) {
    return v->counted.last == 0;
}

/* The batch's targets, those that do not count ignored. Positions left of the range are read all the
 * same. */
static const int32_t *targets_in(weft_validation *v, const weft_batch *b) {
    range r = v->counted;
    if (counts_all(v)) return b->targets;
    for (int64_t i = 0; i < v->batch * v->time; i++) {
        int64_t at = i % v->time;
        v->targets[i] = at >= r.first && at < r.last ? b->targets[i] : -1;
    }
    return v->targets;
}

static weft_status run_one(weft_validation *v, const weft_batch *b, weft_run_loss *out) {
    const int32_t *targets = targets_in(v, b);
    *out = (weft_run_loss){0};
    for (int64_t i = 0; i < v->batch * v->time; i++)
        out->targets += targets[i] >= 0;
    WEFT_TRY(weft_session_run(&v->session, b->tokens, targets, &(weft_run){0}));
    WEFT_TRY(
        weft_session_values(&v->session, v->session.graph.cross_entropy, 1, &out->cross_entropy));
    return v->logits && counts_all(v) ? count_right(v, b, out) : WEFT_OK;
}

double weft_run_losses_join(const weft_run_loss *runs, int64_t n) {
    double sum = 0, targets = 0;
    if (n == 1) return runs[0].cross_entropy;
    for (int64_t i = 0; i < n; i++) {
        sum += runs[i].cross_entropy * (double)runs[i].targets;
        targets += (double)runs[i].targets;
    }
    return targets > 0 ? sum / targets : 0;
}

/* This rank's share of the runs, then everyone's. */
static weft_status run_all(weft_validation *v, weft_prefetch *feed, weft_span share) {
    for (int64_t i = share.first; i < share.first + share.count; i++) {
        const weft_batch *b;
        WEFT_TRY(weft_prefetch_next(feed, &b));
        WEFT_TRY(run_one(v, b, &v->runs[i]));
    }
    return weft_comm_gather_spans(v->comm, v->runs, v->samples * v->parts, sizeof *v->runs);
}

static void join_all(const weft_validation *v, double *loss, double *metric) {
    int64_t right = 0, asked = 0;
    double sum = 0;
    for (int64_t s = 0; s < v->samples; s++)
        sum += weft_run_losses_join(v->runs + s * v->parts, v->parts);
    for (int64_t i = 0; i < v->samples * v->parts; i++) {
        right += v->runs[i].right;
        asked += v->runs[i].asked;
    }
    *loss = sum / (double)v->samples;
    *metric = asked ? (double)right / (double)asked : NAN;
}

weft_status weft_validation_run(weft_validation *v, double *loss, double *metric) {
    weft_prefetch *feed;
    weft_span share =
        weft_tree_span(v->samples * v->parts, weft_comm_rank(v->comm), weft_comm_size(v->comm));
    weft_prefetch_options options = {.split = WEFT_SPLIT_VAL,
                                     .sequences = v->batch,
                                     .parts = v->parts,
                                     .skip = share.first,
                                     .time = v->time,
                                     .scored = v->logits != NULL,
                                     .ahead = AHEAD};
    WEFT_TRY(weft_prefetch_open(v->dataset, &options, &feed));
    weft_status status = run_all(v, feed, share);
    weft_prefetch_close(feed);
    WEFT_TRY(status);
    join_all(v, loss, metric);
    return WEFT_OK;
}

/* An end of text stands for none. */
static int64_t target_bytes(const weft_validation *v, const weft_batch *b, const weft_tokenizer *t,
                            int64_t *targets) {
    int64_t sum = 0;
    for (int64_t i = 0; i < v->batch * v->time; i++) {
        int32_t bytes = 0;
        if (b->targets[i] < 0) continue;
        ++*targets;
        if (b->targets[i] != weft_tokenizer_end(t)) weft_tokenizer_token(t, b->targets[i], &bytes);
        sum += bytes;
    }
    return sum;
}

weft_status weft_validation_bytes(const weft_validation *v, const weft_tokenizer *t, double *out) {
    weft_prefetch *feed;
    int64_t bytes = 0, targets = 0;
    weft_prefetch_options options = {.split = WEFT_SPLIT_VAL,
                                     .sequences = v->batch,
                                     .parts = v->parts,
                                     .time = v->time,
                                     .ahead = AHEAD};
    WEFT_TRY(weft_prefetch_open(v->dataset, &options, &feed));
    weft_status status = WEFT_OK;
    for (int64_t i = 0; status == WEFT_OK && i < v->samples * v->parts; i++) {
        const weft_batch *b;
        status = weft_prefetch_next(feed, &b);
        if (status == WEFT_OK) bytes += target_bytes(v, b, t, &targets);
    }
    weft_prefetch_close(feed);
    *out = targets ? (double)bytes / (double)targets : 0;
    return status;
}

/* 0, 1, 4, 16, 64, 256, 512, 1024 ... */
static int64_t next_edge(int64_t at) {
    return at == 0 ? 1 : at < 256 ? 4 * at : 2 * at;
}

static weft_status run_ranges(weft_validation *v, weft_position_loss *out, int *count) {
    double metric;
    for (int64_t at = 0; at < v->time && *count < WEFT_POSITION_RANGES_MAX; at = next_edge(at)) {
        int64_t end = next_edge(at) < v->time ? next_edge(at) : v->time;
        weft_position_loss *p = &out[(*count)++];
        *p = (weft_position_loss){.first = at, .last = end};
        v->counted = (range){at, end};
        WEFT_TRY(weft_validation_run(v, &p->loss, &metric));
    }
    return WEFT_OK;
}

weft_status weft_validation_positions(weft_validation *v, weft_position_loss *out, int *count) {
    *count = 0;
    if (!v->targets) v->targets = malloc((size_t)(v->batch * v->time) * sizeof *v->targets);
    if (!v->targets) return weft_fail(WEFT_ENOMEM, "evaluation: no memory for its targets");
    weft_status status = run_ranges(v, out, count);
    v->counted = (range){0, 0};
    return status;
}
