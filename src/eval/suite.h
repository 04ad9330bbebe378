/* Multiple-choice questions: which of several texts does the model think likeliest behind a context? */
#ifndef WEFT_EVAL_SUITE_H
#define WEFT_EVAL_SUITE_H

#include "core/exec.h"
#include "data/tokenizer.h"
#include "model/model.h"

typedef struct {
    int64_t questions;
    double acc,
        acc_norm; /* shares of questions whose answer is the likeliest; by the log-likelihood,
                             and by that over the choice's number of characters */
    double acc_error, acc_norm_error; /* standard errors; 0 where there is one question */
} weft_suite_score;

/* Scores a file of JSON lines {"context": text, "choices": [texts], "answer": number from 0}. A choice's
 * log-likelihood is that of its tokens behind the context's, as lm-evaluation-harness counts it: blanks
 * at the context's end are the choice's, and what is too long loses its beginning. `details`, where it
 * is not NULL, gets a JSON line for each question. */
weft_status weft_suite(const weft_model *m, const weft_tokenizer *tokenizer,
                       const weft_backend *backend, weft_pool *pool, const char *path,
                       const char *details, weft_suite_score *out);

#endif
