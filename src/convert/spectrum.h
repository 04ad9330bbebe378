/* Eigenvalues and eigenvectors of a symmetric matrix, in double. */
#pragma once

#include "base/error.h"

/* W M [n, e] with M [e, e]. */
void weft_times_moments(const double *w, int64_t n, int64_t e, const double *m, double *out);

/* a [n, n] is symmetric and is overwritten. values [n] fall; row i of vectors [n, n] belongs to
 * values[i] and has length 1. */
weft_status weft_spectrum(double *a, int64_t n, double *values, double *vectors);
