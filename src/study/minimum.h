/* Variants at their own best learning rates: a parabola in the logarithm of the rate through a variant's runs, its
 * minimum, and the difference of two minima with an interval that has the uncertainty of the rates in it. */
#pragma once

#include "base/error.h"
#include "study/statistics.h"

#include <stdint.h>

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
