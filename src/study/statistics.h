/* What a few numbers allow to be said: mean, spread, Student's t, and the verdict on one variant
 * against another from the differences seed by seed. */
#pragma once

#include "base/error.h"

/* How sure an interval is. */
#define WEFT_CONFIDENCE 0.95
/* How sure one is that shows two variants to be equivalent, by two tests of one side each. */
#define WEFT_EQUIVALENCE 0.90

double weft_mean(const double *values, int n); /* NaN for none */
double weft_sd(const double *values, int n);   /* with n - 1; NaN for fewer than two */

/* P(T <= t) and its inverse for Student's t with `freedom` degrees of freedom (any number > 0).
 * The quantile of 0 or 1 is infinite; one outside [0, 1] is NaN. */
double weft_t_probability(double t, double freedom);
double weft_t_quantile(double probability, double freedom);

/* NOT_YET: runs are still to come that may decide it. weft_compare, which knows of none, never says it, nor EQUIVALENT:
 * that is for minima. */
typedef enum {
    WEFT_NO_DIFFERENCE,
    WEFT_BETTER,
    WEFT_WORSE,
    WEFT_NOT_YET,
    WEFT_EQUIVALENT
} weft_verdict;
/* "no difference shown", "better", "worse", "not yet", "equivalent" */
const char *weft_verdict_word(weft_verdict v);

/* Differences, variant minus baseline, over the seeds that both finished. What cannot be known is
 * NaN: the mean without pairs, the interval of fewer than two. */
typedef struct {
    weft_verdict verdict;
    int pairs;
    double mean, sd;          /* of the differences */
    double low, high;         /* the interval of the mean at WEFT_CONFIDENCE */
    double variant, baseline; /* mean scores over the pairs */
    double percent;           /* mean, of the baseline's; NaN where that is 0 */
    bool minima;              /* of two minima over learning rates; there are no pairs, but runs */
    double p;                 /* of minima: what weft_comparison_p returns */
} weft_comparison;

/* The verdict in a word; of minima "undecided", "helps", "hurts". */
const char *weft_comparison_word(const weft_comparison *c);

/* variant[i] and baseline[i] belong to one seed. */
weft_comparison weft_compare(const double *variant, const double *baseline, int pairs,
                             bool higher_is_better);

/* How likely a mean at least so far from 0 is where there is no difference: two-sided. NaN without an
 * interval. */
double weft_comparison_p(const weft_comparison *c);

/* The fewest seeds whose interval would leave out 0, were the mean and the spread of the differences
 * to stay as they are; 0: more than WEFT_SEEDS_MOST, or nothing is known of the spread. */
enum { WEFT_SEEDS_MOST = 1000 };
int weft_seeds_needed(const weft_comparison *c);

/* What so many pairs can show, before any is run: how likely it is that their interval leaves out 0 where the
 * true difference is so many standard deviations of the differences; and the difference, in the same unit,
 * that is shown with that probability. NaN for fewer than two pairs. */
double weft_power(double difference, int pairs);
double weft_power_difference(int pairs, double probability);
/* The statistical power that is spoken of. */
#define WEFT_POWER 0.8
/* "With 3 seeds, a true difference of 0.098 would be found 4 times in 5, ...": `spread` is the standard deviation of the
 * differences as it is expected; 0: unknown. */
void weft_power_text(int pairs, double spread, char *text, size_t room);

/* The line y = at + slope x of least squares. The interval of the slope is at WEFT_CONFIDENCE; `spread`
 * is the standard deviation of the points around the line, with n - 2. Both are NaN for fewer than three
 * points, all of it for fewer than two or for one x. */
typedef struct {
    double at, slope, low, high, spread;
} weft_line;
weft_line weft_line_fit(const double *x, const double *y, int n);

/* Variants at their own best learning rates (study/minimum.c): a parabola in the logarithm of the rate through a
 * variant's runs, its minimum, and the difference of two minima with an interval that has the uncertainty of the rates
 * in it. */

/* A run at a rate; a score that is not finite: it diverged. */
typedef struct {
    double rate, score;
    int64_t seed;
} weft_rate_run;

/* A fitted minimum; where higher is better, a maximum. A rate at which a run diverged takes no part. */
typedef struct {
    double rate, score;   /* where it is and what it is; NaN: there are fewer than three rates */
    double first, last;   /* the lowest and the highest rate that the parabola is fitted through */
    double middle, at[3]; /* at[0] + at[1] u + at[2] u², u = log(rate / middle) */
    int edge;             /* -1, 1: it is at the lowest or highest of all rates; 0: between them */
    double beyond;        /* the rate that should be tried for it; NaN: none */
} weft_minimum;

weft_minimum weft_minimum_fit(const weft_rate_run *runs, int n, bool higher_is_better);
/* The parabola's score at a rate. */
double weft_minimum_at(const weft_minimum *m, double rate);

/* The minimum of a variant minus that of its baseline, by a bootstrap over their runs. Beyond `effect`, the smallest
 * difference of interest, it is better or worse where its interval at WEFT_CONFIDENCE lies there; equivalent where the one at
 * WEFT_EQUIVALENCE lies within. `pairs` counts the runs of the side that has fewer; without as many as an interval
 * takes it is 1, without a minimum 0. */
weft_status weft_compare_minima(const weft_rate_run *variant, int n, const weft_rate_run *baseline,
                                int m, double effect, bool higher_is_better, weft_comparison *c);
