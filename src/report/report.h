/* Databases of runs, looked at: the report of a study, and tables, JSON and CSV of its runs.
 *
 * The report is report.html, one file that opens offline, and report.md, the same words and
 * tables with its pictures beside it. docs/guide/studies.md tells what is in it. */
#pragma once

#include "base/error.h"

#include <jansson.h>

/* The config of a study, in its folder: with it, and more STUDY_SEEDS, the study goes on. */
#define WEFT_STUDY_CONFIG "study.config"

/* Reads the database of a study, finished or not, and writes folder/report.html and
 * folder/report.md over those that were there. A report that cannot be written whole leaves the old
 * ones as they are; so does one in whose place something else lies. */
weft_status weft_report_write(const char *database, const char *folder);

/* One report of several studies, a section each. With `force` whatever lies in its place is written over. */
weft_status weft_report_write_several(const char *const *databases, int n, const char *folder,
                                      bool force);

/* Verdicts and tables as {"studies": [...]}; the caller owns the object. */
weft_status weft_report_json(const char *const *databases, int n, json_t **object);

/* What a study says, in the log: a line for each comparison, and the answer. `whole`: no run of it waits. */
void weft_report_tell(const char *database, bool whole);

/* Listings. `path` is a database, a study's folder, or a folder with runs that no study made (record/database.h)
 * everywhere. */

/* Its runs as a table for people, a line each. */
weft_status weft_listing_table(const char *path, FILE *out);
/* {"path", "study", "steps", "runs"}, every column by its name; the caller owns it. */
weft_status weft_listing_json(const char *path, json_t **object);

/* Comma-separated values, one row per run or one per line of metrics, of several databases under one
 * heading. Numbers read back as they are. */
weft_status weft_listing_csv(const char *const *paths, int n, bool metrics, FILE *out);

/* Two variants: the keys in which their configs differ, the scores seed by seed, each variant at its best
 * learning rate, and the mean difference with its interval; as a table, or as JSON. */
weft_status weft_listing_compare(const char *path, const char *a, const char *b, FILE *out,
                                 json_t **object);

/* A power law of the score over all finished runs that count, of several studies: score = factor x^power,
 * by least squares of the logarithms. `x` is parameters, flops (of a whole run), tokens, cache_bytes, or
 * any option that is a number. `variants`: only those, separated by commas; NULL: all. */
weft_status weft_listing_fit(const char *const *paths, int n, const char *x, const char *variants,
                             FILE *out, json_t **object);

/* Whether two databases have the same `contents`, which program wrote them apart; what differs is
 * written to `out`, the first few rows of it. */
weft_status weft_listing_diff(const char *a, const char *b, FILE *out, bool *same);
