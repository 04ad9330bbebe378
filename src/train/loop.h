/* A training run: from a config to weights, in a folder that it can go on from. */
#pragma once

#include "train/validation.h"

/* So many steps in a row that came to nothing end a run. */
enum { WEFT_TRAIN_SKIPS_MAX = 10 };

typedef struct {
    weft_comm *comm;  /* the ranks that train together; NULL: one. Rank 0 alone logs, reports, and
                         reads and writes the run's folder */
    const char *out;  /* the run's folder; made where it is not */
    const char *from; /* a checkpoint whose weights a fresh run starts from; NULL: drawn ones */
    bool resume;      /* go on from out/last where there is one; else a used folder is an error */
    /* A checkpoint of out by name, "step-N", to go on from instead; NULL: last. */
    const char *resume_name;
    bool keep_last;    /* out/last is written whatever SAVE_CHECKPOINT says; out/best is not */
    double peak_flops; /* operations a second that count as full use; 0: unknown */
    /* Called before each step with its number from 0; NULL: nothing is. It may look at the weights,
     * and tests change them. */
    void (*before_step)(void *context, int64_t step, weft_model *m);
    /* Called once on rank 0 when all steps are done, with the final weights; NULL: nothing is. */
    weft_status (*at_end)(void *context, const weft_model *m);
    void *context;
    /* When the run is to be over, by `clock` (NULL: weft_clock); 0: when its steps are done. Where the time is too
     * short for all of them it does fewer, and the learning rate falls towards the end that is expected. */
    double deadline;
    double (*clock)(void);
} weft_train_options;

typedef enum {
    WEFT_TRAIN_DONE,    /* all steps */
    WEFT_TRAIN_STOPPED, /* a signal asked for it (stop.h); saved */
    WEFT_TRAIN_DIVERGED /* WEFT_TRAIN_SKIPS_MAX steps in a row were not finite; the last
                           checkpoint is as it was */
} weft_train_end;

typedef struct {
    weft_train_end end;
    char why[512];                  /* one line, where it is not DONE */
    int64_t steps;                  /* done, earlier runs' included */
    int64_t skipped;                /* of them left out because something was not finite */
    weft_loss_parts parts;          /* of the last step; NaN: none was done */
    double val_loss, best_val_loss; /* NaN: not evaluated */
    char metric[32];                /* the dataset's own; empty: none */
    double metric_value;
    double tokens_per_s, mfu; /* over this run's steps */
    double seconds;           /* of this run, all included */
    int64_t device_bytes;   /* of the device's memory at the end, by its own count; 0: the host's */
    double bytes_per_token; /* of the held-out text; 0: the tokens are no text */
    int64_t train_tokens, val_tokens; /* that the dataset has; -1: without end */
    weft_position_loss positions[WEFT_POSITION_RANGES_MAX]; /* with EVAL_POSITIONS */
    int n_positions;
} weft_train_result;

/* The last step of a run that has done `done` of `planned` steps and has `left` seconds, at `pace` seconds a
 * step: no later than planned, and at once where no time is left. */
int64_t weft_train_last_step(int64_t done, int64_t planned, double left, double pace);

/* What a run would say of its data and tokenizer, before anything else is done. `metric` is the
 * dataset's own; empty: none. */
weft_status weft_train_check(const weft_config *c, char *metric, size_t room);

/* Fills in what a config leaves to its data: DOCUMENT_TOKEN, where the tokenizer has an end of text. */
weft_status weft_train_settle(weft_config *c);

/* Runs it. An error (data that cannot be read, a full disk) leaves the last checkpoint as it was. */
weft_status weft_train(const weft_config *c, const weft_backend *backend, weft_pool *pool,
                       const weft_train_options *options, weft_train_result *out);
