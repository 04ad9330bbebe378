/* A study before anything runs: its variants with their configs and costs, its seeds and rates.
 *
 * What a variant cannot do (a mix that makes no sense, data that is not there) is found here and kept
 * as the variant's error; the other variants are none the worse for it. */
#pragma once

#include "model/account.h"
#include "study/variants.h"

enum { WEFT_STUDY_LINE = 1024, WEFT_STUDY_RATES_MAX = 64, WEFT_RATES_ADDED = 4 };

typedef struct {
    const weft_variant *variant;
    weft_config config;          /* as its runs have it, but for rate and seed */
    weft_account account;        /* of that config */
    int64_t iters;               /* 0: not known before it is measured (equal time) */
    double seconds_per_iter;     /* equal time: as measured; NaN: not */
    bool widened;                /* N_FFN is STUDY_EQUAL's */
    bool counted;                /* STEPS is STUDY_EQUAL's */
    char error[WEFT_STUDY_LINE]; /* why it cannot be built; empty: it can */
} weft_study_variant;

typedef struct {
    char name[WEFT_VARIANT_NAME];
    const char *where; /* the config's file, for messages */
    weft_config base;  /* file and overrides, without any variant */
    weft_variants variants;
    weft_study_variant *built; /* one for each of them */
    double rates[WEFT_STUDY_RATES_MAX];
    int n_rates;  /* 0: each variant has its config's LEARNING_RATE */
    int *rate_as; /* for each variant, whose rate it takes over (STUDY_RATE_AS); -1: its own */
} weft_study;

/* Reads and builds. `file` of the source is needed. Fails where the study as a whole makes no
 * sense, and where no variant can be built: then with the first one's reason. `threads` counts for
 * the workspaces in its costs. */
weft_status weft_study_open(const weft_source *source, const weft_backend *backend, int threads,
                            weft_study **out);
void weft_study_close(weft_study *s);

/* How many rates variant i is run with, and the k-th of them. */
int weft_study_variant_rates(const weft_study *s);
double weft_study_rate(const weft_study *s, int variant, int k);
int64_t weft_study_seed(const weft_study *s, int k);
/* Whether each variant's rate is chosen by runs with STUDY_RATE_SEED, which count for nothing else. */
bool weft_study_chooses(const weft_study *s);
/* Whether variants are compared at the minima of parabolas through their runs (STUDY_COMPARE). A variant whose minimum is
 * at the edge of its rates gets more of them, WEFT_RATES_ADDED at most. */
bool weft_study_fits(const weft_study *s);
/* How many runs variant i comes to, without those of rates that are added. */
int weft_study_variant_runs(const weft_study *s, int variant);
/* Tokens in one iteration of a config, and of variant i's whole training. */
int64_t weft_study_iter_tokens(const weft_config *c);
int64_t weft_study_tokens(const weft_study *s, int variant);

/* The config of one run: the study's own keys are at their defaults, so that it is a plain one. */
void weft_study_run_config(const weft_study *s, int variant, double rate, int64_t seed,
                           weft_config *c);

/* What a variant sets, with the values its runs have, and what STUDY_EQUAL set: "KEY=VALUE KEY=VALUE",
 * values with blanks in quotes. Cut at `room`. */
void weft_study_overrides(const weft_study *s, int variant, char *text, size_t room);
/* Lists with commas: the seeds; the learning rates. */
void weft_study_seeds_text(const weft_study *s, char *text, size_t room);
void weft_study_rates_text(const weft_study *s, char *text, size_t room);

/* What the variants have in common (STUDY_EQUAL). The first one is the measure: it stays as it
 * is configured, and the others are fitted to it.
 *
 *     iters        nothing to do
 *     tokens       iterations so that all see as many tokens
 *     flops        iterations so that all do as many nominal operations (weft plan's)
 *     time         iterations so that all take as long, by seconds an iteration measured before
 *     parameters   N_FFN so that all have as many parameters, as near as its steps allow
 *
 * A number of iterations is rounded to the nearest, and at least 1. */

/* Time, once every buildable variant's seconds_per_iter is there. */
weft_status weft_equal_time(weft_study *s);
/* N_FFN must be a multiple of this for a config: 8, z-heads, and what per_head_scalar needs. */
int64_t weft_equal_unit(const weft_config *c);

/* Sums and products of sizes that end at the largest number instead of going past it. */

/* Of numbers from 0 on. */
static inline int64_t weft_bounded_sum(int64_t a, int64_t b) {
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

static inline int64_t weft_bounded_product(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}
