/* The report of a study: report.html, one file that opens offline, and report.md, the same words and
 * tables without the pictures. docs/guide/studies.md tells what is in it. */
#ifndef WEFT_REPORT_REPORT_H
#define WEFT_REPORT_REPORT_H

#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>

/* Reads the database of a study, finished or not, and writes folder/report.html and
 * folder/report.md over those that were there. A report that cannot be written whole leaves the old
 * ones as they are; so does one in whose place something else lies. */
weft_status weft_report_write(const char *database, const char *folder);

/* One report of several studies, a section each. With `force` whatever lies in its place is written
 * over. */
weft_status weft_report_write_several(const char *const *databases, int n, const char *folder,
                                      bool force);
/* An error where the report of a study would find something else in its place. */
weft_status weft_report_vacant(const char *folder);

/* Verdicts and tables as {"studies": [...]}; the caller owns the object. */
weft_status weft_report_json(const char *const *databases, int n, json_t **object);

#endif
