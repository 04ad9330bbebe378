/* The CBLAS library: two products and its name. Only blas.c sees the library's own header.
 *
 * The library must work on one thread, since the pool shares out the tiles of a product and their
 * cut, not the library's mood, decides the order of the sums. */
#pragma once

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* Holds the library to one thread. Fails where the build's library has no call for that. May be
 * called again. */
weft_status weft_blas_init(void);

/* Whether the address space has room for the library's own buffers, where that is limited (ulimit
 * -v). OpenBLAS asks for a buffer when a thread of it starts, and asks again without end where there
 * is none; it also waits for those threads when the program ends. So after a failure the program
 * should leave by _exit. */
weft_status weft_blas_check_room(void);

/* "OpenBLAS 0.3.21 neoversev1", for the log. */
const char *weft_blas_name(void);

/* c [m, n] = alpha · op(a) op(b) + beta · c, all row-major; op transposes where ta or tb is set, so
 * that a is [k, m] and b is [n, k] in memory. ld* are the elements between rows. With beta 0 c is
 * not read. Sizes are below 2^31. */
void weft_blas_sgemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                     int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
void weft_blas_dgemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, double alpha,
                     const double *a, int64_t lda, const double *b, int64_t ldb, double beta,
                     double *c, int64_t ldc);
