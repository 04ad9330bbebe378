/* A study as its database tells it, and what follows: each variant's learning rate, its mean score,
 * its comparison with its baseline. The report's sections print this and look up nothing
 * themselves but curves. */
#pragma once

#include "base/error.h"
#include "record/database.h"
#include "study/statistics.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* Numbers that the database does not have are NaN, texts are "". */
typedef struct {
    int64_t id; /* the database's number of it */
    const char *name, *title, *overrides, *error;
    const char *label;     /* what pages call it: its title, or what differs in words */
    int baseline, repeats; /* places in `variants`; -1: none */
    double iters, tokens, parameters, flops, training_bytes, cache_bytes, seconds_per_iter;
    double work; /* FLOPs of the whole training */
    bool leaks;

    double rate;                  /* the learning rate chosen; NaN: no run finished */
    int runs, done;               /* at that rate (at any, without one) */
    double mean, sd, least, most; /* score over the finished runs at that rate */
    double memory;         /* the largest peak of them, bytes; the device's where it has its own */
    double speed, seconds; /* their means: tokens per second, seconds a run */
    weft_minimum minimum;  /* over its learning rates (STUDY_COMPARE) */
    weft_comparison compared; /* with the baseline, where there is one */
    bool left;       /* its difference is, when all comparisons are counted (report/results.c) */
    const char *why; /* no difference shown, or not yet, because ...; "" else */
    int waiting;     /* its runs that wait or run, at whatever rate */
} weft_report_variant;

/* A number of a variant by its place, as offsetof(weft_report_variant, flops). */
static inline double weft_variant_number(const weft_report_variant *v, size_t at) {
    return *(const double *)(const void *)((const char *)v + at);
}

typedef struct {
    int64_t id, seed;
    int variant;
    double rate;
    const char *folder, *status, *why, *config, *metric, *weights, *started, *ended;
    double score, iters, skipped, seconds, speed, memory, resumes;
    bool finished;       /* done, with a score that is a number */
    bool chooses;        /* with STUDY_RATE_SEED: it chose a rate, and counts for nothing else */
    double device_bytes; /* of the device's memory; NaN: the host's was used */
} weft_report_run;

/* What a run's record says beside its results (record/record.h). */
typedef struct {
    int run; /* its place in `runs` */
    const char *name, *text;
    double value; /* NaN: it is a text */
} weft_report_fact;

typedef struct {
    int64_t run, step; /* -1: none; a run's iteration, or the number of a variant */
    const char *kind, *detail;
} weft_report_event;

typedef struct {
    weft_database *database;
    const char *path;
    const char *name, *config, *seeds_text, *rates_text, *equal, *score, *version, *commit,
        *created, *host, *machine, *device;
    double tail, threads;
    bool higher_is_better;
    const char *score_name; /* "held-out loss" */
    const char *question;   /* STUDY_QUESTION */
    const char *rate_as;    /* STUDY_RATE_AS */
    const char *yardstick;  /* STUDY_YARDSTICK */
    double spread;          /* STUDY_SPREAD; 0: unknown */
    int planned_seeds;      /* STUDY_SEEDS */
    bool minima;            /* STUDY_COMPARE: variants are compared at their minima */
    double effect;          /* STUDY_EFFECT */
    double vocabulary;      /* VOCAB_SIZE; NaN: unknown */
    bool nothing_learned;   /* every finished run is at the loss of guessing */

    weft_report_variant *variants;
    weft_report_run *runs;
    weft_report_event *events;
    weft_report_fact *facts; /* ordered by run and name */
    int n_variants, n_runs, n_events, n_facts;
    int64_t rate_seed; /* the seed that only chose rates; -1: none */
    int64_t *seeds;    /* of all runs but those, ascending */
    double *rates;
    int n_seeds, n_rates;

    json_t *texts; /* every text above, freed together */
} weft_report_data;

/* `path` is a database or a study's folder and must outlive the data, which the caller frees on failure, too. */
weft_status weft_report_read(const char *path, weft_report_data *d);
void weft_report_free(weft_report_data *d);

/* A variant's label, cut at `room`. report/words.c */
void weft_report_label(const weft_report_data *d, int variant, char *label, size_t room);

/* The run of a variant at a rate; NULL: none. */
const weft_report_run *weft_report_find(const weft_report_data *d, int variant, double rate,
                                        int64_t seed);

/* Whether a run is one of those that its variant's score is the mean of. */
bool weft_report_run_counts(const weft_report_data *d, const weft_report_run *run);
/* A fact of a run; NULL: its record has none of that name. */
const weft_report_fact *weft_report_fact_of(const weft_report_data *d, const weft_report_run *run,
                                            const char *name);
/* The mean of a number over the runs of a variant that count; NaN: none has it. */
double weft_report_fact_mean(const weft_report_data *d, int variant, const char *name);
/* What can be said of one variant against another by a number other than the score, where less is better. */
weft_status weft_report_fact_compare(const weft_report_data *d, int variant, int baseline,
                                     const char *name, weft_comparison *out);

/* What a seed is to the comparison of a variant with another (-1: none). */
typedef struct {
    const weft_report_run *variant, *baseline; /* NULL: no such run */
    bool counts;                               /* both finished */
} weft_report_pair;
weft_report_pair weft_report_pair_of(const weft_report_data *d, int variant, int baseline,
                                     int64_t seed);

/* What can be said of one variant against another, each at the rate chosen for it, over the seeds that
 * both finished, or at their minima over all rates; and why no difference is shown ("" where one is). */
weft_status weft_report_compare(const weft_report_data *d, int variant, int baseline,
                                weft_comparison *out, const char **why);

/* Whether a variant's rate, or its minimum, is at the least or the most of those that were tried for it. */
bool weft_report_at_edge(const weft_report_data *d, int variant);

/* How a run of a variant ended, in a few words. */
const char *weft_report_ended(const weft_report_run *run);

/* How many comparisons there are; repeats are the same ones again. */
int weft_report_comparisons(const weft_report_data *d);

typedef enum { WEFT_REPEAT_UNKNOWN, WEFT_REPEAT_EQUAL, WEFT_REPEAT_UNEQUAL } weft_repeat;

/* One run of a repeat and the run that it repeats (NULL: there is none). */
typedef struct {
    const weft_report_run *run, *first;
    weft_repeat result;
    bool files;         /* the study compared the files byte for byte */
    const char *detail; /* what the study found */
    int64_t rows;       /* metrics rows of the run that differ, either way; -1: not compared */
} weft_report_repeat;
weft_status weft_report_repeat_of(const weft_report_data *d, const weft_report_run *run,
                                  weft_report_repeat *out);
