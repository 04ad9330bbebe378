/* What a study's comparisons say when all of them are looked at together. */
#ifndef WEFT_REPORT_TOGETHER_H
#define WEFT_REPORT_TOGETHER_H

#include "report/sections.h"

#include <jansson.h>

/* The variants with the most seeds, as a two-way analysis of variance over variants and seeds: the
 * standard deviation pooled over them, with more degrees of freedom than a single comparison has. */
typedef struct {
    int variants, seeds, freedom;
    double sd;   /* what neither variant nor seed explains */
    double half; /* of the interval of a difference, at WEFT_CONFIDENCE */
} weft_report_common;

/* False: fewer than three such variants, or two seeds. Repeats and variants that leak stay out. */
bool weft_report_common_spread(const weft_report_data *d, weft_report_common *out);

/* Says which comparisons of the study are left by Holm's method (`left` of their variants), so that one of
 * them is there by chance in no more than 1 - WEFT_CONFIDENCE of studies. */
void weft_report_holm(weft_report_data *d);

/* Both as sentences below the verdicts; and "common" of the report's JSON. */
void weft_report_say_together(weft_page *p, const weft_report_data *d);
json_t *weft_report_common_json(const weft_report_data *d);

#endif
