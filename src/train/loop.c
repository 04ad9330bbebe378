/* The loop: step, evaluate, report, save. In this order, so that what a checkpoint says of the best
 * loss is true of the step it was made at, and a resumed run finds nothing left to do for it. */
#include "train/loop.h"

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/text.h"
#include "base/version.h"
#include "model/account.h"
#include "train/checkpoint.h"
#include "train/metrics.h"
#include "train/samples.h"
#include "train/step.h"
#include "train/stop.h"

#include <math.h>

enum { NOTE_ROOM = 160, TEXT_ROOM = 512, SAMPLES = 8 /* sequences that ranks compare */ };

typedef struct {
    const weft_config *config;
    const weft_train_options *options;
    weft_comm *comm; /* the options' */
    bool leads;      /* rank 0 */
    weft_train_result *result;
    weft_dataset *dataset;
    weft_tokenizer *tokenizer; /* what checkpoints carry; NULL: none */
    weft_model *model;
    weft_optimizer *optimizer;
    weft_train_step *step;
    weft_validation *validation;
    weft_samples *samples;
    const weft_backend *backend;
    weft_pool *pool;
    weft_metrics *metrics;
    weft_progress *progress;
    weft_train_state state;
    int64_t tokens;                      /* of a step */
    double flops_per_token;              /* nominal, forward and backward */
    double seconds, pending;             /* of training: all of this run, and since the last line */
    int64_t steps, unlogged;             /* the same in steps */
    int64_t saved;                       /* steps done when out/last was written; -1: not yet */
    int64_t saved_best;                  /* the same of out/best, in this run */
    double began, looked, pace, closing; /* for the deadline: see plan_end */
    int log;                             /* out/log; -1: none */
    char resumed[WEFT_CHECKPOINT_NAME];  /* the checkpoint it goes on from; empty: it starts */
} trainer;

static weft_status open_data(trainer *t) {
    const weft_config *c = t->config;
    WEFT_TRY(weft_dataset_open(c, &t->dataset));
    int64_t vocab = weft_dataset_vocab(t->dataset);
    if (vocab > c->vocab_size)
        return WEFT_BAD_INPUT(
            "CONFIG_DATASET=\"%s\" has a vocabulary of %lld, but CONFIG_VOCAB_SIZE is "
            "%lld; set it to %lld or more",
            c->dataset, (long long)vocab, (long long)c->vocab_size, (long long)vocab);
    const char *metric = weft_dataset_metric(t->dataset);
    if (metric) snprintf(t->result->metric, sizeof t->result->metric, "%s", metric);
    return weft_dataset_tokenizer(c, &t->tokenizer);
}

static bool keeps_last(const trainer *t) {
    return t->config->save_checkpoint || t->options->keep_last;
}

static weft_status check_dataset(trainer *t) {
    int64_t now;
    WEFT_TRY(weft_dataset_sum(t->dataset, &now));
    if (now >= 0 && t->state.data >= 0 && now != t->state.data)
        return WEFT_BAD_INPUT("%s: its files are not those that %s was trained on so far (checksum "
                              "%08x, now %08x); put those back, or start a run with another --out",
                              weft_dataset_name(t->dataset), t->options->out,
                              (uint32_t)t->state.data, (uint32_t)now);
    t->state.data = now;
    return WEFT_OK;
}

/* The run's folder, and the weights it begins with: the last checkpoint's, another's, or drawn ones. */
static weft_status open_model(trainer *t) {
    const weft_config *c = t->config;
    const weft_train_options *o = t->options;
    weft_dtype dtype = weft_config_dtype(c);
    if (t->leads) WEFT_TRY(weft_folder_make(o->out));
    if (t->backend->remote) { /* memory with an end that nothing goes beyond */
        weft_fit fit;
        WEFT_TRY(weft_account_fit(c, t->backend, weft_pool_size(t->pool), weft_comm_size(t->comm),
                                  &fit));
        WEFT_TRY(weft_fit_check(&fit, t->backend));
    }
    if (t->leads) {
        if (!o->resume) WEFT_TRY(weft_checkpoint_unused(o->out));
        WEFT_TRY(weft_metrics_hold(o->out, &t->metrics));
        WEFT_TRY(weft_checkpoint_choose(o->out, o->resume_name, t->resumed));
    }
    if (!*t->resumed) WEFT_TRY(check_dataset(t));
    if (*t->resumed) {
        WEFT_TRY(weft_checkpoint_check(o->out, t->resumed, c));
        WEFT_TRY(weft_checkpoint_load(o->out, t->resumed, &t->model, c, dtype, t->pool, &t->state));
        if (t->state.logged_every != c->log_interval) t->state.logged_every = 0;
        WEFT_TRY(check_dataset(t));
        if (strcmp(t->resumed, "last") == 0) t->saved = t->state.iteration;
    } else if (o->from && t->leads) {
        WEFT_TRY(weft_model_load_more(o->from, c, dtype, t->pool, &t->model));
    } else {
        WEFT_TRY(weft_model_create(c, dtype, t->pool, &t->model));
        WEFT_TRY(weft_model_start(t->model, (uint64_t)c->seed, t->pool));
    }
    WEFT_TRY(weft_optimizer_create(t->model, t->backend, t->pool, t->comm, &t->optimizer));
    if (!*t->resumed) return WEFT_OK;
    WEFT_PATH(path, "%s/%s/optimizer.safetensors", o->out, t->resumed);
    return weft_optimizer_read(t->optimizer, path);
}

static weft_status open_passes(trainer *t) {
    const weft_config *c = t->config;
    t->tokens = weft_config_micro_batch(c) * weft_config_micro_batches(c) * c->context;
    weft_train_step_options step = {
        .comm = t->comm, .dataset = t->dataset, .iteration = t->state.iteration};
    WEFT_TRY(weft_train_step_open(t->optimizer, t->pool, &step, &t->step));
    return weft_validation_open(t->model, t->dataset, t->backend, t->pool, t->comm, &t->validation);
}

/* The run's own config, by which it can be gone on with and looked at. A dataset in the run's folder is
 * named from there, so that both can be moved. */
static weft_status keep_config(const trainer *t) {
    weft_config c = *t->config;
    c.steps = t->model->config.steps;
    WEFT_PATH(path, "%s/", t->options->out);
    size_t n = strlen(path);
    if (strncmp(c.dataset, path, n) == 0)
        memmove(c.dataset, c.dataset + n, strlen(c.dataset + n) + 1);
    WEFT_TRY(weft_path(path, "%s/config", t->options->out));
    return weft_config_save(&c, path);
}

/* out/log, for whoever looks at the run; a study has it as standard error already. That it cannot be
 * written stops no run. */
static void keep_log(trainer *t) {
    char path[WEFT_PATH_MAX];
    struct stat file, error;
    if (weft_path(path, "%s/log", t->options->out) != WEFT_OK ||
        weft_file_open_own(path, &t->log) != WEFT_OK) {
        weft_log(WEFT_LOG_WARN, "no log is kept: %s", weft_error_message());
        t->log = -1;
        return;
    }
    bool same = fstat(t->log, &file) == 0 && fstat(STDERR_FILENO, &error) == 0 &&
                file.st_dev == error.st_dev && file.st_ino == error.st_ino;
    if (!same && lseek(t->log, 0, SEEK_END) >= 0) weft_log_copy(t->log);
}

/* How much there is, and the checksum of some sequences of either split. */
static weft_status describe_data(const weft_config *c, const weft_dataset *d, char *text,
                                 size_t room) {
    int64_t time = c->context;
    WEFT_ROOM(int32_t, tokens, 2 * time, "no memory for a sequence");
    uint32_t crc = 0;
    for (int i = 0; i < 2 * SAMPLES; i++) {
        weft_split split = i < SAMPLES ? WEFT_SPLIT_TRAIN : WEFT_SPLIT_VAL;
        WEFT_TRY(weft_dataset_fill(d, split, (uint64_t)c->seed, (uint32_t)(i * i * 977),
                                   (uint32_t)i, time, tokens, tokens + time, NULL));
        crc = weft_crc32c(crc, tokens, 2 * (size_t)time * sizeof *tokens);
    }
    snprintf(text, room, "%s: %lld and %lld tokens, checksum of some %08x", weft_dataset_name(d),
             (long long)weft_dataset_tokens(d, WEFT_SPLIT_TRAIN),
             (long long)weft_dataset_tokens(d, WEFT_SPLIT_VAL), crc);
    return WEFT_OK;
}

/* Rank 0's weights, optimizer and state to all: only rank 0 reads checkpoints, so only its machine
 * needs the run's folder. */
static weft_status share_start(weft_comm *c, weft_model *m, weft_optimizer *o,
                               weft_train_state *state) {
    int64_t n;
    if (!c) return WEFT_OK;
    WEFT_TRY(weft_comm_broadcast(c, state, sizeof *state));
    WEFT_TRY(weft_mirror_use(m->mirror, NULL));
    WEFT_TRY(weft_comm_broadcast(c, m->memory, m->memory_bytes));
    weft_mirror_wrote(m->mirror, NULL);
    if (weft_optimizer_shards(o)) {
        WEFT_TRY(weft_optimizer_refresh(o));
        return weft_optimizer_give_out(o);
    }
    const weft_weight *list;
    WEFT_TRY(weft_optimizer_state(o, &list, &n));
    for (int64_t i = 0; i < n; i++)
        WEFT_TRY(weft_comm_broadcast(c, list[i].data, list[i].bytes));
    return WEFT_OK;
}

static weft_status open_trainer(trainer *t) {
    weft_account account;
    WEFT_TRY(weft_comm_agree(t->comm, open_data(t)));
    /* Every rank must have rank 0's program, config and data, each a line of text; else all of
     * them fail with one that says which rank has what. */
    weft_comm *c = t->comm;
    char text[TEXT_ROOM];
    weft_sum sum = {0};
    if (c) {
        if (weft_file_sum("/proc/self/exe", &sum) != WEFT_OK) sum.bytes = -1;
        snprintf(text, sizeof text, "commit %.12s, %lld bytes, checksum %08x", weft_git_commit(),
                 (long long)sum.bytes, sum.crc);
        WEFT_TRY(weft_comm_same(c, "program", text));
        WEFT_AUTO_DECREF json_t *object = weft_config_to_json(t->config);
        WEFT_AUTO_FREE char *lines =
            object ? json_dumps(object, JSON_INDENT(1) | JSON_SORT_KEYS) : NULL;
        if (!lines) return weft_fail(WEFT_ENOMEM, "no memory for the config's text");
        WEFT_TRY(weft_comm_same(c, "config", lines));
        WEFT_TRY(weft_comm_agree(c, describe_data(t->config, t->dataset, text, sizeof text)));
        WEFT_TRY(weft_comm_same(c, "data", text));
    }
    WEFT_TRY(weft_comm_agree(t->comm, open_model(t)));
    WEFT_TRY(share_start(t->comm, t->model, t->optimizer, &t->state));
    WEFT_TRY(weft_comm_broadcast(t->comm, t->resumed, sizeof t->resumed));
    WEFT_TRY(weft_comm_broadcast(t->comm, &t->saved, sizeof t->saved));
    WEFT_TRY(weft_comm_agree(t->comm, open_passes(t)));
    if (!t->leads) return WEFT_OK;
    WEFT_TRY(weft_account_make(t->config, t->backend, weft_pool_size(t->pool), &account));
    t->flops_per_token = account.forward_flops + account.backward_flops;
    WEFT_TRY(weft_metrics_start(t->metrics, t->state.iteration, t->state.logged_every));
    WEFT_TRY(keep_config(t));
    keep_log(t);
    if (t->tokenizer)
        WEFT_TRY(weft_validation_bytes(t->validation, t->tokenizer, &t->result->bytes_per_token));
    WEFT_TRY(weft_samples_open(t->options->out, t->state.iteration, t->config, t->tokenizer,
                               &t->samples));
    weft_log(WEFT_LOG_INFO, "%s: %s parameters on %s, %s tokens per step%s", t->options->out,
             weft_count_text(account.parameters), weft_dataset_name(t->dataset),
             weft_count_text(t->tokens), *t->resumed ? ", resumed" : "");
    t->progress = weft_progress_begin(&(weft_progress_options){
        .label = "train", .unit = "steps", .total = t->config->steps, .done = t->state.iteration});
    return WEFT_OK;
}

/* A step that came to nothing: counted, told, and at the limit the end of the run. */
static void note_skip(trainer *t, const char *culprit) {
    t->state.skipped++;
    t->state.skipped_row++;
    weft_log(WEFT_LOG_WARN, "step %lld skipped: %s is not finite (%lld in a row, %d end the run)",
             (long long)t->state.iteration, culprit, (long long)t->state.skipped_row,
             WEFT_TRAIN_SKIPS_MAX);
    if (t->state.skipped_row < WEFT_TRAIN_SKIPS_MAX) return;
    t->result->end = WEFT_TRAIN_DIVERGED;
    snprintf(t->result->why, sizeof t->result->why,
             "step %lld: %s is not finite, %d steps in a row; the last good checkpoint is kept: a "
             "lower LEARNING_RATE or GRAD_CLIP may help",
             (long long)t->state.iteration, culprit, WEFT_TRAIN_SKIPS_MAX);
}

/* After the first step here: what the backend chose for it, and whether that is what the run was
 * made with so far. */
static void note_choices(trainer *t) {
    if (!t->backend->choices) return;
    uint32_t choices = t->backend->choices();
    if (t->state.choices >= 0 && t->state.choices != choices)
        weft_log(WEFT_LOG_WARN,
                 "%s was trained with other algorithms for its matrix products (%08x, now %08x): "
                 "the GPU, its driver, its library or the file of algorithms is another one; the "
                 "last bits may differ from those of an unbroken run",
                 t->options->out, (uint32_t)t->state.choices, choices);
    t->state.choices = choices;
}

static weft_status train_step(trainer *t, weft_metrics_row *row) {
    double start = weft_clock();
    weft_train_step_result step;
    if (t->options->before_step) {
        WEFT_TRY(weft_mirror_use(t->model->mirror, NULL));
        t->options->before_step(t->options->context, t->state.iteration, t->model);
        weft_mirror_wrote(t->model->mirror, NULL);
    }
    WEFT_TRY(weft_train_step_run(t->step, t->state.iteration++, &step));
    if (*step.culprit)
        note_skip(t, step.culprit);
    else
        t->state.skipped_row = 0;
    *row = (weft_metrics_row){.step = t->state.iteration,
                              .parts = step.parts,
                              .events = step.events,
                              .rate = step.rate,
                              .skipped = t->state.skipped};
    const weft_step_events *e = &row->events;
    if (e->spike)
        weft_log(WEFT_LOG_INFO, "step %lld: the gradient's norm %.4g is a spike, the %lld. so far",
                 (long long)row->step, e->norm, (long long)e->spikes);
    if (e->reset)
        weft_log(WEFT_LOG_INFO, "step %lld: the moments are reset, the %lld. time",
                 (long long)row->step, (long long)e->resets);
    if (e->pruned)
        weft_log(WEFT_LOG_INFO, "step %lld: sparsity %.4f", (long long)row->step, e->sparsity);
    if (t->steps == 0) note_choices(t);
    double took = weft_clock() - start;
    t->seconds += took;
    t->pending += took;
    t->steps++;
    t->unlogged++;
    t->result->parts = row->parts;
    return WEFT_OK;
}

/* Rank 0 saves; where the optimizer's state is shared out the others give it theirs. */
static weft_status save(const trainer *t, const char *name, int64_t keep) {
    if (!t->leads) return weft_optimizer_serve(t->optimizer);
    WEFT_TRY(weft_metrics_sync(t->metrics));
    weft_checkpoint checkpoint = {t->model, t->optimizer, t->tokenizer, &t->state};
    bool best = t->saved_best == t->state.iteration;
    weft_status status =
        weft_checkpoint_save(t->options->out, name, keep, &checkpoint, best ? "best" : NULL);
    return status == WEFT_OK ? weft_optimizer_served(t->optimizer) : status;
}

static weft_status evaluate(trainer *t, weft_metrics_row *row) {
    weft_train_result *r = t->result;
    WEFT_TRY(weft_validation_run(t->validation, &r->val_loss, &r->metric_value));
    row->evaluated = true;
    row->val_loss = r->val_loss;
    row->metric = *r->metric ? r->metric : NULL;
    row->metric_value = r->metric_value;
    char metric[64] = "";
    if (*r->metric) snprintf(metric, sizeof metric, ", %s %.4f", r->metric, r->metric_value);
    weft_log(WEFT_LOG_INFO, "step %lld: loss %.4f, val_loss %.4f%s", (long long)row->step,
             row->parts.loss, r->val_loss, metric);
    if (t->config->eval_positions && row->step >= t->model->config.steps)
        return weft_validation_positions(t->validation, r->positions, &r->n_positions);
    return WEFT_OK;
}

static weft_status save_best(trainer *t) {
    if (!(t->result->val_loss < t->state.best_val)) return WEFT_OK;
    t->state.best_val = t->result->val_loss;
    if (!t->config->save_checkpoint) return WEFT_OK;
    WEFT_TRY(save(t, "best", 1));
    t->saved_best = t->state.iteration;
    return WEFT_OK;
}

static double tokens_rate(const trainer *t, int64_t steps, double seconds) {
    return seconds > 0 ? (double)t->tokens * (double)steps / seconds : 0;
}

static double use_of_peak(const trainer *t, double tokens_per_s) {
    double peak = t->options->peak_flops;
    return peak > 0 ? tokens_per_s * t->flops_per_token / peak : 0;
}

/* While steps fail, weights that are not finite must not take the place of the last good ones. */
static weft_status save_last(trainer *t) {
    if (!keeps_last(t) || t->saved == t->state.iteration) return WEFT_OK;
    const char *bad = NULL;
    if (t->state.skipped_row > 0) WEFT_TRY(weft_find_bad_weight(t->model, &bad));
    if (bad) return WEFT_OK;
    WEFT_TRY(save(t, "last", t->config->checkpoint_keep));
    t->saved = t->state.iteration;
    return WEFT_OK;
}

int64_t weft_train_last_step(int64_t done, int64_t planned, double left, double pace) {
    if (!(left > 0)) return done < planned ? done : planned;
    return pace > 0 ? (int64_t)fmin((double)planned, (double)done + left / pace) : planned;
}

static double read_clock(const trainer *t) {
    return t->options->clock ? t->options->clock() : weft_clock();
}

/* After a step: which one is the last, if there is a deadline. The pace is the mean of the last steps with all that
 * came between them, so that it follows a load that changes; time is kept for what comes after the last step,
 * as long as that has taken so far; before it is known, a forward pass is taken for a third of a step. The plan changes with every step, and the learning rate, which falls with the
 * part of the plan that is done, falls with the time that has passed. */
static weft_status plan_end(trainer *t) {
    enum { FIRST_STEPS = 5, MEAN_OF = 50 };
    int64_t *steps = &t->model->config.steps;
    if (!t->options->deadline) return WEFT_OK;
    double now = read_clock(t), took = now - t->looked;
    t->looked = now;
    t->pace += (took - t->pace) / (double)(t->steps < MEAN_OF ? t->steps : MEAN_OF);
    double guess = t->pace * (double)t->config->eval_samples / 3;
    double closing =
        t->closing > 0 ? t->closing : fmin(guess, (t->options->deadline - t->began) / 20);
    double left = t->options->deadline - now - closing;
    bool judges = t->steps >= FIRST_STEPS || left <= 0;
    if (judges) *steps = weft_train_last_step(t->state.iteration, t->config->steps, left, t->pace);
    WEFT_TRY(weft_comm_broadcast(t->comm, steps, sizeof *steps));
    weft_progress_set_total(t->progress, *steps);
    return WEFT_OK;
}

/* A run that the deadline ends is done: its config says so, before the checkpoint that nothing follows, and so does a
 * line. */
static weft_status close_plan(const trainer *t) {
    int64_t steps = t->model->config.steps;
    if (!t->leads || steps == t->config->steps) return WEFT_OK;
    weft_log(WEFT_LOG_INFO, "%s: time was up after %s of %s steps", t->options->out,
             weft_count_text(steps), weft_count_text(t->config->steps));
    return keep_config(t);
}

/* What a run that goes on after its last step tells at its end: it was killed when that was saved and not told. */
static weft_status close_again(trainer *t) {
    if (!*t->resumed || t->steps > 0 || t->result->end != WEFT_TRAIN_DONE) return WEFT_OK;
    weft_metrics_row row;
    if (t->leads) weft_metrics_last(t->options->out, &row.step, &t->result->parts);
    row = (weft_metrics_row){.step = t->state.iteration, .parts = t->result->parts};
    return evaluate(t, &row);
}

static weft_status run_steps(trainer *t) {
    const weft_config *c = t->config;
    t->began = t->looked = read_clock(t);
    while (t->state.iteration < t->model->config.steps && t->result->end == WEFT_TRAIN_DONE) {
        weft_metrics_row row;
        bool early = false; /* a signal that came while all was set up; all ranks leave then */
        if (t->steps == 0) WEFT_TRY(weft_comm_any(t->comm, weft_stop_asked() != 0, &early));
        if (early) {
            t->result->end = WEFT_TRAIN_STOPPED;
            snprintf(t->result->why, sizeof t->result->why,
                     "stopped by a signal before a step was done; --resume continues it");
            return WEFT_OK;
        }
        WEFT_TRY(train_step(t, &row));
        WEFT_TRY(plan_end(t));
        bool last = row.step == t->model->config.steps;
        bool diverged = t->result->end == WEFT_TRAIN_DIVERGED;
        bool told =
            row.events.spike || row.events.reset || row.events.pruned || t->state.skipped_row > 0;
        if (!diverged && (last || row.step % c->eval_interval == 0)) WEFT_TRY(evaluate(t, &row));
        /* Short enough for a bar of 80 columns beside the step and the time that is left. */
        char note[NOTE_ROOM], val[32] = "";
        double rate = tokens_rate(t, t->steps, t->seconds);
        bool large = rate >= 1e4;
        if (isfinite(t->result->val_loss))
            snprintf(val, sizeof val, " val %.3f", t->result->val_loss);
        snprintf(note, sizeof note, "loss %.3f%s %.*f%s tok/s", row.parts.loss, val,
                 large && rate < 1e5, large ? rate / 1e3 : rate, large ? "k" : "");
        weft_progress_value(t->progress, row.parts.loss);
        weft_progress_update(t->progress, row.step, note);
        if (last || told || row.evaluated || row.step % c->log_interval == 0) {
            row.tokens_per_s = tokens_rate(t, t->unlogged, t->pending);
            row.mfu = use_of_peak(t, row.tokens_per_s);
            t->unlogged = 0;
            t->pending = 0;
            if (t->leads) WEFT_TRY(weft_metrics_add(t->metrics, &row));
        }
        if (diverged) return WEFT_OK;
        /* Before any checkpoint: whoever goes on from one finds what was made up to it. */
        WEFT_TRY(weft_samples_make(t->samples, t->model, t->backend, t->pool, row.step, last));
        if (row.evaluated) WEFT_TRY(save_best(t));
        bool asked;
        WEFT_TRY(weft_comm_any(t->comm, weft_stop_asked() != 0, &asked));
        /* There is no best without a last: a last that is missing is known to be lost. */
        bool first = t->saved < 0 && t->saved_best >= 0;
        if (last) WEFT_TRY(close_plan(t));
        if (last || asked || first || row.step % c->checkpoint_interval == 0)
            WEFT_TRY(save_last(t));
        if (row.evaluated && !last) t->closing = fmax(t->closing, read_clock(t) - t->looked);
        if (!asked || last) continue;
        t->result->end = WEFT_TRAIN_STOPPED;
        snprintf(t->result->why, sizeof t->result->why,
                 "stopped by a signal after step %lld of %lld%s", (long long)row.step,
                 (long long)c->steps,
                 keeps_last(t) ? "; saved, --resume continues it" : "; SAVE_CHECKPOINT is n");
    }
    return WEFT_OK;
}

weft_status weft_train_check(const weft_config *c, char *metric, size_t room) {
    weft_train_result result = {0};
    trainer t = {.config = c, .result = &result};
    weft_status status = open_data(&t);
    snprintf(metric, room, "%s", result.metric);
    weft_tokenizer_close(t.tokenizer);
    weft_dataset_close(t.dataset);
    return status;
}

weft_status weft_train_settle(weft_config *c) {
    WEFT_AUTO(weft_tokenizer_close_at) weft_tokenizer *tokenizer = NULL;
    if (!c->document_mask || c->document_token >= 0) return WEFT_OK;
    WEFT_TRY(weft_dataset_tokenizer(c, &tokenizer));
    if (tokenizer) c->document_token = weft_tokenizer_end(tokenizer);
    return WEFT_OK;
}

weft_status weft_train(const weft_config *c, const weft_backend *backend, weft_pool *pool,
                       const weft_train_options *options, weft_train_result *out) {
    double start = weft_clock();
    *out = (weft_train_result){.val_loss = NAN,
                               .metric_value = NAN,
                               .parts = {NAN, NAN, NAN, NAN, NAN},
                               .best_val_loss = NAN};
    trainer t = {
        .config = c,
        .options = options,
        .comm = options->comm,
        .leads = weft_comm_rank(options->comm) == 0,
        .backend = backend,
        .pool = pool,
        .result = out,
        .state = {.best_val = INFINITY, .logged_every = c->log_interval, .data = -1, .choices = -1},
        .saved = -1,
        .saved_best = -1,
        .log = -1};
    weft_status status = open_trainer(&t);
    /* Gone on from another than last, which must not be missing at the end. */
    bool done = t.state.iteration >= c->steps;
    if (status == WEFT_OK && *t.resumed && (done || !options->resume_name)) status = save_last(&t);
    if (status == WEFT_OK) status = run_steps(&t);
    if (status == WEFT_OK) status = close_again(&t);
    if (status == WEFT_OK && t.leads && options->at_end && out->end == WEFT_TRAIN_DONE)
        status = options->at_end(options->context, t.model);
    out->steps = t.state.iteration;
    out->skipped = t.state.skipped;
    out->best_val_loss = isfinite(t.state.best_val) ? t.state.best_val : NAN;
    out->tokens_per_s = tokens_rate(&t, t.steps, t.seconds);
    out->mfu = use_of_peak(&t, out->tokens_per_s);
    out->seconds = weft_clock() - start;
    out->train_tokens = t.dataset ? weft_dataset_tokens(t.dataset, WEFT_SPLIT_TRAIN) : -1;
    out->val_tokens = t.dataset ? weft_dataset_tokens(t.dataset, WEFT_SPLIT_VAL) : -1;
    if (t.backend->taken) out->device_bytes = t.backend->taken();
    if (status != WEFT_OK) weft_comm_fail(t.comm, weft_error_message());
    weft_progress_end(t.progress, status == WEFT_OK && out->end == WEFT_TRAIN_DONE);
    weft_log_copy(-1);
    if (t.log >= 0) close(t.log);
    weft_metrics_close(t.metrics);
    weft_validation_close(t.validation);
    weft_samples_close(t.samples);
    weft_train_step_close(t.step);
    weft_optimizer_destroy(t.optimizer);
    weft_model_destroy(t.model);
    weft_tokenizer_close(t.tokenizer);
    weft_dataset_close(t.dataset);
    return status;
}
