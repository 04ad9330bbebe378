/* The nearest known name to one that is not: for "did you mean". Each known name is offered in turn. */
#ifndef WEFT_BASE_NEAREST_H
#define WEFT_BASE_NEAREST_H

#include <stddef.h>

/* How many letters to insert, drop or change to make b of a, in either case. Names of 64 letters
 * and more are as far from everything as can be. */
size_t weft_edit_distance(const char *a, const char *b);

typedef struct {
    const char *wanted;
    const char *name; /* the first of the nearest so far; "": none */
    size_t distance;
} weft_nearest;

/* Any name, however far away; or only one that could be a slip of the finger: half of the letters
 * are right. */
weft_nearest weft_nearest_to(const char *wanted);
weft_nearest weft_nearest_slip(const char *wanted);
void weft_nearest_offer(weft_nearest *n, const char *name);

#endif
