/* What a finished model can do beyond its held-out loss. */
#pragma once

#include "data/tokenizer.h"
#include "model/model.h"

/* A line of details; releases it. NULL: memory ran out when it was made. */
weft_status weft_eval_put(weft_new_file *f, json_t *line, size_t flags);

/* Does a model find a pass key in a long text? Accuracy by the text's length and by the key's depth in it.
 *
 * A prompt is text with a line that has the key (data/tasks.h) at a depth of 0 (its beginning) to 1 (its
 * end), and the question for the key behind it. The model goes on greedily, over its cache, for as many
 * tokens as the answer has; right is what is the answer token by token. */
enum { WEFT_NEEDLE_CELLS = 32 };

typedef struct {
    const char *text; /* a file to hide keys in; NULL: embedded text, for tokenizers of bytes */
    int64_t lengths[WEFT_NEEDLE_CELLS]; /* tokens of a prompt with its answer, ascending */
    int n_lengths;
    double depths[WEFT_NEEDLE_CELLS];
    int n_depths;
    int64_t trials; /* of each length and depth, each with a key and a piece of text of its own */
    uint64_t seed;
    bool quiet;          /* no word on how far it is */
    const char *details; /* a file for every prompt and answer, as JSON lines; NULL: none */
} weft_needle_options;

typedef struct {
    double right;  /* share of answers that are right */
    double tokens; /* share of their tokens that are */
} weft_needle_cell;

typedef struct {
    weft_needle_cell cells[WEFT_NEEDLE_CELLS][WEFT_NEEDLE_CELLS]; /* [length][depth] */
    int64_t cache_bytes[WEFT_NEEDLE_CELLS]; /* in use for one sequence of that length at its end */
} weft_needle_score;

/* A length beyond CONTEXT needs positions that have no end. */
weft_status weft_needle(const weft_model *m, const weft_tokenizer *t, const weft_backend *backend,
                        weft_pool *pool, const weft_needle_options *options,
                        weft_needle_score *out);

/* Multiple-choice questions: which of several texts does the model think likeliest behind a context? */
typedef struct {
    int64_t questions;
    /* Shares of questions whose answer is the likeliest; by the log-likelihood, and by that over the
     * choice's number of characters. */
    double acc, acc_norm;
    double acc_error, acc_norm_error; /* standard errors; 0 where there is one question */
} weft_suite_score;

/* Scores a file of JSON lines {"context": text, "choices": [texts], "answer": number from 0}. A choice's
 * log-likelihood is that of its tokens behind the context's, as lm-evaluation-harness counts it: blanks
 * at the context's end are the choice's, and what is too long loses its beginning. `details`, where it
 * is not NULL, gets a JSON line for each question. */
weft_status weft_suite(const weft_model *m, const weft_tokenizer *tokenizer,
                       const weft_backend *backend, weft_pool *pool, const char *path,
                       const char *details, weft_suite_score *out);
