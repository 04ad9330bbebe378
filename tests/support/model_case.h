/* A small model of tests/model/configs, its drawn weights and tokens, ready to run: see
 * tests/model/CONFIGS.md. */
#ifndef WEFT_TESTS_MODEL_CASE_H
#define WEFT_TESTS_MODEL_CASE_H

#include "core/exec.h"
#include "model/model.h"
#include "model/session.h"
#include "support/test.h"
#include "vectors.h"

typedef struct {
    char name[96];
    uint64_t key; /* of its random numbers */
    weft_config config;
    int64_t batch, time;
    bool ignore;      /* some targets are -1 */
    int32_t *tokens;  /* [B, T] */
    int32_t *targets; /* [B, T] */
} model_case;

/* The names of all configs, sorted; freed with model_case_names_free. */
int model_case_names(char ***out);
void model_case_names_free(char **names, int n);

/* A check of every config, whose name is its state, and what it says behind that name; NULL: nothing. */
typedef struct {
    const char *what;
    CMUnitTestFunction run;
} model_case_check;
/* main: lists and runs n of them; where WEFT_CASES is set, of the configs whose names hold it. */
int model_cases_run(const model_case_check *checks, int n);

/* Reads a config and draws its tokens. Fails the running test if it cannot. */
void model_case_open(model_case *c, const char *name);
void model_case_close(model_case *c);
/* Its tokens with those that follow them, [B, T+1], none ignored. */
void model_case_token_rows(const model_case *c, int32_t *rows);

/* The model with its drawn weights. */
weft_model *model_case_weights(const model_case *c, weft_dtype dtype);

/* One run of a built model. */
typedef struct {
    weft_model *model;
    weft_pool *pool;
    weft_session session;
} model_run;

typedef struct {
    weft_dtype dtype;
    bool train, grads, recompute, scores, inside, given_routes;
    weft_form form;
    int threads;                 /* 0: 1 */
    const weft_backend *backend; /* NULL: the CPU */
} model_run_options;

/* Builds, binds and runs once with the case's tokens (not with given_routes: write those first). */
void model_run_open(model_run *r, const model_case *c, const model_run_options *options);
/* Runs again with other tokens [B, T]. */
void model_run_again(model_run *r, const int32_t *tokens, const int32_t *targets);
void model_run_close(model_run *r);
/* A kept tensor's values as doubles; malloc'd. NULL tensor: n zeros. */
double *model_run_values(const model_run *r, const weft_tensor *t, int64_t n);
double model_run_number(const model_run *r, const weft_tensor *t);

/* The reference's values of a case, each tensor whole: what a run in f64 on the CPU gives, once it is held to what is
 * kept. Fails the running test where it strays: 1e-10 of a tensor's norm. */
vectors *model_case_kept(const char *name);

#endif
