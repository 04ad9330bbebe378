/* A study as its database tells it, and what follows: each variant's learning rate, its mean score, its comparison with its
 * baseline; and the parts of a report, in the order in which they stand, which print this and look up nothing themselves but
 * curves. Each prints what it has to say of a study, and nothing where there is nothing to say. */
#pragma once

#include "record/database.h"
#include "report/page.h"
#include "study/statistics.h"

typedef struct weft_report_data weft_report_data;
typedef struct weft_report_variant weft_report_variant;

/* Numbers that the database does not have are NaN, texts are "". */
struct weft_report_variant {
    const weft_report_data *study;
    int place; /* in its study's `variants` */
    const char *name, *title, *overrides, *error;
    const char *label; /* what pages call it: its title, or what differs in words */
    const weft_report_variant *baseline, *repeats; /* NULL: none */
    double iters, tokens, parameters, flops, training_bytes, cache_bytes;
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
};

/* A number of a variant by its place, as offsetof(weft_report_variant, flops). */
static inline double weft_variant_number(const weft_report_variant *v, size_t at) {
    return *(const double *)(const void *)((const char *)v + at);
}

typedef struct {
    int64_t id, seed;
    const weft_report_variant *variant;
    double rate;
    const char *folder, *status, *config, *metric, *weights, *started, *ended;
    double score, iters, seconds, speed, memory;
    bool finished; /* done, with a score that is a number */
    bool to_come;  /* it waits or runs */
    bool chooses;  /* with STUDY_RATE_SEED: it chose a rate, and counts for nothing else */
    json_t *facts; /* what its record says beside its results (record/record.h), by name */
} weft_report_run;

/* Positions whose loss is a fact. */
enum { WEFT_REPORT_RANGES = 40 };
typedef struct {
    long long first, last;
    char name[64]; /* of the fact */
} weft_report_range;

struct weft_report_data {
    weft_database *database;
    const char *path, *name, *config, *equal, *score, *version, *commit, *created, *machine;
    double tail;
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
    int finished, waiting;  /* runs: finished, and those that wait or run */
    int comparisons;        /* with an interval; repeats are the same ones again */
    int most_pairs;         /* the seeds of the comparison that has most of them */

    weft_report_variant *variants;
    const weft_report_variant
        *baseline; /* what all are compared with; NULL: not all with the same */
    weft_report_run *runs;
    json_t *facts; /* of any run, each under its name */
    int n_variants, n_runs;
    int64_t rate_seed; /* the seed that only chose rates; -1: none */
    int64_t *seeds;    /* of all runs but those, ascending */
    double *rates;
    int n_seeds, n_rates, n_ranges;
    weft_report_range ranges[WEFT_REPORT_RANGES]; /* in their order */

    json_t *texts; /* every text above, freed together */
};

#define EACH_VARIANT(v, d)                                                                         \
    for (weft_report_variant *v = (d)->variants; v - (d)->variants < (d)->n_variants; v++)
#define EACH_RUN(run, d)                                                                           \
    for (weft_report_run *run = (d)->runs; run - (d)->runs < (d)->n_runs; run++)
#define EACH_RUN_OF(run, v)                                                                        \
    EACH_RUN(run, (v)->study)                                                                      \
        if (run->variant == (v))
#define EACH_RANGE(r, d)                                                                           \
    for (const weft_report_range *r = (d)->ranges; r - (d)->ranges < (d)->n_ranges; r++)

/* `path` is a database or a study's folder and must outlive the data, which the caller frees on failure, too. */
weft_status weft_report_read(const char *path, weft_report_data *d);
void weft_report_free(weft_report_data *d);

/* A variant's label, cut at `room`. report/words.c */
void weft_report_label(const weft_report_variant *v, char *label, size_t room);

/* The run of a variant at a rate; NULL: none. */
const weft_report_run *weft_report_find(const weft_report_variant *v, double rate, int64_t seed);

/* Whether a run is one of those that its variant's score is the mean of. */
bool weft_report_run_counts(const weft_report_run *run);
/* The mean of a number over the runs of a variant that count; NaN: none has it. */
double weft_report_fact_mean(const weft_report_variant *v, const char *name);
/* What can be said of one variant against another over the seeds that both finished, by the score, or by a fact of
 * that name. */
weft_status weft_report_compare_seeds(const weft_report_variant *v,
                                      const weft_report_variant *baseline, const char *fact,
                                      bool higher_is_better, weft_comparison *out);

/* What each seed is to the comparison of a variant with another. */
typedef struct {
    int n; /* of them so far */
    int64_t seed;
    const weft_report_run *variant, *baseline; /* NULL: no such run */
    bool counts;                               /* both finished */
} weft_report_pair;
bool weft_report_next_pair(const weft_report_variant *v, const weft_report_variant *baseline,
                           weft_report_pair *pair);
#define EACH_PAIR(pair, v, baseline)                                                               \
    for (weft_report_pair pair = {0}; weft_report_next_pair(v, baseline, &pair);)

/* What can be said of one variant against another, each at the rate chosen for it, over the seeds that
 * both finished, or at their minima over all rates; and why no difference is shown ("" where one is). */
weft_status weft_report_compare(const weft_report_variant *v, const weft_report_variant *baseline,
                                weft_comparison *out, const char **why);

/* How a run of a variant ended, in a few words. */
const char *weft_report_ended(const weft_report_run *run);

typedef enum { WEFT_REPEAT_UNKNOWN, WEFT_REPEAT_EQUAL, WEFT_REPEAT_UNEQUAL } weft_repeat;

/* One run of a repeat and the run that it repeats (NULL: there is none). */
typedef struct {
    const weft_report_run *run, *first;
    weft_repeat result;
    bool files;         /* the study compared the files byte for byte */
    const char *detail; /* what the study found */
    int64_t rows;       /* metrics rows of the run that differ, either way; -1: not compared */
} weft_report_repeat;
weft_status weft_report_repeat_of(const weft_report_run *run, weft_report_repeat *out);

typedef weft_status weft_report_section(weft_page *p, const weft_report_data *d);

weft_report_section weft_report_answer, weft_report_forest, weft_report_verdicts, weft_report_table,
    weft_report_repeats, weft_report_curves, weft_report_fronts, weft_report_sweep,
    weft_report_positions, weft_report_minima, weft_report_yardstick, weft_report_samples,
    weft_report_attention, weft_report_inside, weft_report_decode, weft_report_differences,
    weft_report_trouble, weft_report_equality, weft_report_environment;

/* Words and numbers for people; a result is a text that lasts, or one of the calling thread's own, of which sixteen may
 * be in use at a time. report/words.c */
const char *weft_say(const char *format, ...) PRINTF(1, 2);
const char *weft_say_variant(const weft_report_variant *v); /* "All three", "variant 3" */
const char *weft_say_score(double value);
const char *weft_say_bytes(double bytes);  /* "33.8 GiB" */
const char *weft_say_count(double value);  /* "115.0M" */
const char *weft_say_number(double value); /* all its digits that matter */
/* Signed, with as many decimals as the interval's width deserves. */
const char *weft_say_change(const weft_comparison *c, double value);
/* "-0.0119 [-0.0150, -0.0088]"; without an interval it says so. */
const char *weft_say_interval(const weft_comparison *c);
/* The same in percent of the baseline's score; empty where that is 0. */
const char *weft_say_share_interval(const weft_comparison *c);
/* When a run began and ended: "2026-01-31 10:00:00.000 to 10:05:00.000". */
const char *weft_say_times(const weft_report_run *run);
/* "2.1%", of the baseline's score; an absolute number where that is 0. */
const char *weft_say_share(const weft_comparison *c, double difference);
/* A comparison's word; "better so far" where runs of it are still to come. */
const char *weft_say_verdict(const weft_report_variant *v);
/* What stands before the next of n things in a sentence: "A, B and C". */
const char *weft_say_between(int said, int n);
const char *weft_say_plural(int n, const char *thing); /* "1 seed", "3 seeds" */
const char *weft_say_pairs(const weft_report_data *d,
                           int n); /* what a comparison counts: seeds or runs */

/* The next KEY=VALUE of lines, up to `end`, or of a variant's overrides, where that is a blank and values with blanks are
 * in quotes; false: there is no more. report/words.c */
enum { WEFT_SETTING_KEY = 96, WEFT_SETTING_VALUE = 4200 };
bool weft_next_setting(const char **at, char end, char key[WEFT_SETTING_KEY],
                       char value[WEFT_SETTING_VALUE]);

/* What a variant is. Compared: it has a baseline and is no repeat. Counted: its comparison counts, too: it can be
 * built, and sees later tokens only where its baseline does. A repeat of another, which pictures leave out. Finished:
 * some run of it that counts is. In doubt: a difference is shown that a caveat takes back. report/answer.c */
typedef bool weft_variant_is(const weft_report_variant *v);
weft_variant_is weft_report_is_compared, weft_report_counts, weft_report_is_repeat,
    weft_report_is_finished, weft_report_is_in_doubt;
/* The comparison that the answer is about, which pictures colour: the largest that is shown; NULL: none. */
const weft_report_variant *weft_report_headline(const weft_report_data *d);
/* How many variants are that. */
int weft_report_count(const weft_report_data *d, weft_variant_is *is);
/* Opens a table with a column for each of them, or for all (NULL), behind the first. */
void weft_report_open_table(weft_page *p, const weft_report_data *d, const char *first,
                            weft_variant_is *is);

/* The answer in a sentence; the caller's to free. NULL: no memory. report/answer.c */
char *weft_report_sentence(const weft_report_data *d);
/* What must be known beside it, a list of sentences: two seeds, a leak, the edge of a
 * sweep, what is not left of all comparisons, two versions of the program, failures, repeats that are not
 * equal. The sentence names no comparison that one of these takes back. The caller owns the list. */
json_t *weft_report_caveats(const weft_report_data *d);

/* Pictures of variants. Series with room for so many points each, named and styled by their variants; the page has
 * their memory. */
weft_status weft_report_plot_series(weft_page *p, const weft_report_data *d, int room,
                                    weft_plot_series **out);
/* Puts them beside each other: what charts.js draws, with these x axes for curves, which it takes over, and for
 * where there are no scripts the static pictures. Without axes (NULL) these alone. report/pictures.c */
void weft_report_put_plots(weft_page *p, const weft_report_data *d, json_t *axes,
                           const weft_plot *plots, int n);

/* For each list of STUDY_YARDSTICK its laws, and how far the other variants are from them. report/laws.c */
weft_status weft_report_yardstick_json(const weft_report_data *d, json_t *lists);

/* Says which comparisons of the study are left by Holm's method (`left` of their variants), so that one of
 * them is there by chance in no more than 1 - WEFT_CONFIDENCE of studies. report/results.c */
void weft_report_holm(weft_report_data *d);

/* "common" of the report's JSON. */
json_t *weft_report_common_json(const weft_report_data *d);
