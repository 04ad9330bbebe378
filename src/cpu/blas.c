/* One thread for the CBLAS library, by its own call. Each library has another one, so the build
 * says which it found: WEFT_BLAS_OPENBLAS, WEFT_BLAS_BLIS or WEFT_BLAS_MKL. */
#include "cpu/blas.h"

#include <stdio.h>

#if defined(WEFT_BLAS_MKL)
#include <mkl.h>
typedef MKL_INT blas_int;
#elif defined(WEFT_BLAS_OPENBLAS)
#include <cblas.h>
typedef blasint blas_int;
#elif defined(WEFT_BLAS_BLIS)
#include <blis.h>
#include <cblas.h>
typedef f77_int blas_int;
#else
#include <cblas.h>
typedef int blas_int;
#endif

weft_status weft_blas_init(void) {
#if defined(WEFT_BLAS_OPENBLAS)
    openblas_set_num_threads(1);
    return WEFT_OK;
#elif defined(WEFT_BLAS_BLIS)
    bli_thread_set_num_threads(1);
    return WEFT_OK;
#elif defined(WEFT_BLAS_MKL)
    mkl_set_dynamic(0);
    mkl_set_num_threads(1);
    return WEFT_OK;
#else
    return weft_fail(WEFT_EMISSING,
                     "blas: this build's CBLAS is not one that weft can hold to one thread; build "
                     "with BLAS=openblas, BLAS=blis or BLAS=mkl");
#endif
}

const char *weft_blas_name(void) {
#if defined(WEFT_BLAS_OPENBLAS)
    static _Thread_local char name[64];
    char version[32] = "";
    sscanf(openblas_get_config(), "OpenBLAS %31s", version);
    snprintf(name, sizeof name, "OpenBLAS %s %s", version, openblas_get_corename());
    return name;
#elif defined(WEFT_BLAS_BLIS)
    static _Thread_local char name[64];
    snprintf(name, sizeof name, "BLIS %s", bli_info_get_version_str());
    return name;
#elif defined(WEFT_BLAS_MKL)
    return "MKL";
#else
    return "an unknown CBLAS";
#endif
}

void weft_blas_sgemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                     int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
    cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans,
                (blas_int)m, (blas_int)n, (blas_int)k, alpha, a, (blas_int)lda, b, (blas_int)ldb,
                beta, c, (blas_int)ldc);
}

void weft_blas_dgemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, double alpha,
                     const double *a, int64_t lda, const double *b, int64_t ldb, double beta,
                     double *c, int64_t ldc) {
    cblas_dgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans,
                (blas_int)m, (blas_int)n, (blas_int)k, alpha, a, (blas_int)lda, b, (blas_int)ldb,
                beta, c, (blas_int)ldc);
}
