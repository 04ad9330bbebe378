/* Eigenvalues and eigenvectors of a symmetric matrix, in double. */
#pragma once

#include "base/error.h"

#include <stdint.h>

/* a [n, n] is symmetric and is overwritten. values [n] fall; row i of vectors [n, n] belongs to
 * values[i] and has length 1. */
weft_status weft_spectrum(double *a, int64_t n, double *values, double *vectors);
