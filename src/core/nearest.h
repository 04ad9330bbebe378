/* The nearest known name to one that is not: for "did you mean". */
#ifndef WEFT_CORE_NEAREST_H
#define WEFT_CORE_NEAREST_H

#include <stddef.h>

/* How many letters to insert, drop or change to make b of a, in either case. Names of 64 letters
 * and more are as far from everything as can be. */
size_t weft_edit_distance(const char *a, const char *b);

#endif
