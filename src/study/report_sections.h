/* The parts of a report, in the order in which they stand. Each prints what it has to say of a
 * study, and nothing where there is nothing to say. */
#ifndef WEFT_STUDY_REPORT_SECTIONS_H
#define WEFT_STUDY_REPORT_SECTIONS_H

#include "study/report_data.h"
#include "study/report_page.h"

typedef weft_status weft_report_section(weft_page *p, const weft_report_data *d);

/* report_results.c */
weft_report_section weft_report_verdicts, weft_report_table, weft_report_repeats;
/* report_pictures.c */
weft_report_section weft_report_curves, weft_report_fronts, weft_report_sweep;
/* report_samples.c */
weft_report_section weft_report_samples;
/* report_notes.c */
weft_report_section weft_report_differences, weft_report_trouble, weft_report_equality,
    weft_report_environment;

/* Words and numbers for people; a result is in `room`, or a text that lasts. report_words.c */
typedef struct {
    char text[512];
} weft_words;
const char *weft_say_step(const weft_report_data *d, int step, weft_words *room); /* "3 (All)" */
const char *weft_say_score(double value, weft_words *room);
const char *weft_say_bytes(double bytes, weft_words *room);  /* "33.8 GiB" */
const char *weft_say_count(double value, weft_words *room);  /* "115.0M" */
const char *weft_say_number(double value, weft_words *room); /* all its digits that matter */
/* Signed, with as many decimals as the interval's width deserves. */
const char *weft_say_change(const weft_comparison *c, double value, weft_words *room);
/* "-0.0119 [-0.0150, -0.0088]"; without an interval it says so. */
const char *weft_say_interval(const weft_comparison *c, weft_words *room);
/* When a run began and ended: "2026-01-31 10:00:00.000 to 10:05:00.000". */
const char *weft_say_times(const weft_report_run *run, weft_words *room);
/* "1 seed", "3 seeds" */
const char *weft_say_plural(int n, const char *thing, weft_words *room);

#endif
