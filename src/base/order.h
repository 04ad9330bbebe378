/* The order of numbers, for qsort. The operators say of a NaN that it is neither below nor above nor equal,
 * which is no order: what a sort then leaves depends on where the NaN stood. Here it comes last. */
#pragma once

#include <math.h>

/* Negative, 0 or positive, as a stands before, beside or behind b. All NaNs are one. */
static inline int weft_order(double a, double b) {
    if (isnan(a) || isnan(b)) return !!isnan(a) - !!isnan(b);
    return (a > b) - (a < b);
}

/* The same of two addresses of doubles. */
static inline int weft_order_doubles(const void *a, const void *b) {
    return weft_order(*(const double *)a, *(const double *)b);
}
