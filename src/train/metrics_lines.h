/* The lines of a metrics.jsonl as they are found: which may stay, and what is missing. */
#ifndef WEFT_TRAIN_METRICS_LINES_H
#define WEFT_TRAIN_METRICS_LINES_H

#include "base/files.h"

#include <stdio.h>

typedef struct {
    int64_t bytes;     /* of the lines before the first that does not stay */
    int64_t last;      /* step of the last line that stays; 0: none */
    int64_t bad;       /* lines that are damaged; a torn one at the end is none of them */
    int64_t bad_line;  /* number of the first, from 1, */
    int64_t bad_after; /* and the step before it */
    int64_t gap_from, gap_to, gaps; /* the first gap in steps, and how many there are */
} weft_lines;

/* Reads the file from its start. Lines of steps up to `step` stay. Each step that `every` divides has
 * a line; 0: that is not known. */
weft_status weft_lines_read(FILE *file, const char *path, int64_t step, int64_t every,
                            weft_lines *out);
/* Says what is damaged and what is missing. */
void weft_lines_warn(const weft_lines *lines, const char *path);
/* Gives the damaged file the name PATH.damaged (or .damaged-2 and so on) and puts one with its good
 * lines up to `step` in its place; *file is closed and opened anew, with its lock. */
weft_status weft_lines_repair(FILE **file, const char *path, int64_t step);

#endif
