/* Evaluation on the held-out set. Logits are made only where the dataset scores them: without a
 * metric the loss needs none. */
#include "train/validation.h"

#include "comm/share.h"
#include "data/prefetch.h"
#include "model/account.h"

#include <math.h>

struct weft_validation {
    const weft_model *model;
    const weft_dataset *dataset;
    weft_session session;
    double *logits; /* [B, T, V] of a run, where there is a metric */
    int64_t batch, time, parts, samples;
    weft_run_loss *runs; /* [samples, parts] */
    weft_comm *comm;
    int64_t first, last; /* the positions that count: first .. last - 1; last 0: all */
    int32_t *targets;    /* [B, T] of a run in which only some count */
};

WEFT_ENDED_BY(weft_validation_close, weft_validation)
weft_status weft_validation_open(const weft_model *m, const weft_dataset *d,
                                 const weft_backend *backend, weft_pool *pool, weft_comm *comm,
                                 weft_validation **out) {
    *out = NULL;
    WEFT_NEW(weft_validation, v, weft_validation_close, "evaluation: no memory");
    const weft_config *c = &m->config;
    bool scored = weft_dataset_metric(d) != NULL;
    v->model = m;
    v->dataset = d;
    v->batch = weft_config_micro_batch(c);
    v->time = c->context;
    v->parts = c->batch_size / v->batch;
    v->samples = c->eval_samples;
    WEFT_ROOM_AT(v->runs, v->samples * v->parts, "evaluation: no memory");
    v->comm = comm;
    weft_build build = {.batch = v->batch, .time = v->time, .dtype = m->dtype, .logits = scored};
    WEFT_TRY(weft_session_open(m, backend, pool, &build, false, false, &v->session));
    if (scored)
        WEFT_ROOM_AT(v->logits, v->batch * v->time * c->vocab_size,
                     "evaluation: no memory for the logits");
    return weft_hand(&v, out);
}

void weft_validation_close(weft_validation *v) {
    if (!v) return;
    weft_session_close(&v->session);
    WEFT_FREE(v->logits, v->runs, v->targets, v);
}

static weft_status count_right(weft_validation *v, const weft_batch *b, weft_run_loss *out) {
    int64_t rows = v->batch * v->time, vocab = v->model->config.vocab_size;
    WEFT_TRY(weft_session_values(&v->session, v->session.graph.logits, rows * vocab, v->logits));
    for (int64_t i = 0; i < rows; i++) {
        if (!b->scored[i]) continue;
        const double *logits = v->logits + i * vocab;
        int64_t best = 0; /* the model's first choice */
        for (int64_t k = 1; k < vocab; k++)
            if (logits[k] > logits[best]) best = k;
        out->asked++;
        out->right += best == b->targets[i];
    }
    return WEFT_OK;
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

static weft_status open_feed(const weft_validation *v, int64_t skip, bool scored,
                             weft_prefetch **out) {
    weft_prefetch_options options = {.split = WEFT_SPLIT_VAL,
                                     .sequences = v->batch,
                                     .parts = v->parts,
                                     .skip = skip,
                                     .time = v->time,
                                     .scored = scored};
    return weft_prefetch_open(v->dataset, &options, out);
}

weft_status weft_validation_run(weft_validation *v, double *loss, double *metric) {
    WEFT_AUTO(weft_prefetch_close_at) weft_prefetch *feed = NULL;
    int64_t runs = v->samples * v->parts, right = 0, asked = 0;
    weft_span share = weft_tree_span(runs, weft_comm_rank(v->comm), weft_comm_size(v->comm));
    double sum = 0;
    WEFT_TRY(open_feed(v, share.first, v->logits != NULL, &feed));
    for (int64_t i = share.first; i < share.first + share.count; i++) {
        const weft_batch *b;
        WEFT_TRY(weft_prefetch_next(feed, &b));
        /* Targets at positions that do not count are ignored; what is left of the range is read all
         * the same. */
        const int32_t *targets = v->last ? v->targets : b->targets;
        v->runs[i] = (weft_run_loss){0};
        for (int64_t k = 0; k < v->batch * v->time; k++) {
            int64_t at = k % v->time;
            if (v->last) v->targets[k] = at >= v->first && at < v->last ? b->targets[k] : -1;
            v->runs[i].targets += targets[k] >= 0;
        }
        WEFT_TRY(weft_session_run(&v->session, b->tokens, targets, &(weft_run){0}));
        WEFT_TRY(weft_session_values(&v->session, v->session.graph.cross_entropy, 1,
                                     &v->runs[i].cross_entropy));
        if (v->logits && !v->last) WEFT_TRY(count_right(v, b, &v->runs[i]));
    }
    WEFT_TRY(weft_comm_gather_records(v->comm, v->runs, runs, sizeof *v->runs, false));
    for (int64_t s = 0; s < v->samples; s++)
        sum += weft_run_losses_join(v->runs + s * v->parts, v->parts);
    for (int64_t i = 0; i < runs; i++) {
        right += v->runs[i].right;
        asked += v->runs[i].asked;
    }
    *loss = sum / (double)v->samples;
    *metric = asked ? (double)right / (double)asked : NAN;
    return WEFT_OK;
}

weft_status weft_validation_bytes(const weft_validation *v, const weft_tokenizer *t, double *out) {
    WEFT_AUTO(weft_prefetch_close_at) weft_prefetch *feed = NULL;
    int64_t bytes = 0, targets = 0;
    WEFT_TRY(open_feed(v, 0, false, &feed));
    for (int64_t i = 0; i < v->samples * v->parts; i++) {
        const weft_batch *b;
        WEFT_TRY(weft_prefetch_next(feed, &b));
        for (int64_t k = 0; k < v->batch * v->time; k++) {
            int32_t length = 0, target = b->targets[k]; /* an end of text stands for none */
            if (target >= 0 && target != weft_tokenizer_end(t))
                weft_tokenizer_token(t, target, &length);
            targets += target >= 0;
            bytes += length;
        }
    }
    *out = targets ? (double)bytes / (double)targets : 0;
    return WEFT_OK;
}

weft_status weft_validation_positions(weft_validation *v, weft_position_loss *out, int *count) {
    *count = 0;
    if (!v->targets)
        WEFT_ROOM_AT(v->targets, v->batch * v->time, "evaluation: no memory for its targets");
    weft_status status = WEFT_OK;
    for (int64_t at = 0, next; status == WEFT_OK && at < v->time; at = next) {
        if (*count == WEFT_POSITION_RANGES_MAX) break;
        double metric;
        next = at == 0 ? 1 : at < 256 ? 4 * at : 2 * at; /* 0, 1, 4, 16, 64, 256, 512 ... */
        v->first = at;
        v->last = next < v->time ? next : v->time;
        weft_position_loss *p = &out[(*count)++];
        *p = (weft_position_loss){.first = v->first, .last = v->last};
        status = weft_validation_run(v, &p->loss, &metric);
    }
    v->first = v->last = 0;
    return status;
}
