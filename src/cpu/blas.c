/* One thread for the CBLAS library, by its own call. Each library has another one, so the build
 * says which it found: WEFT_BLAS_OPENBLAS, WEFT_BLAS_BLIS or WEFT_BLAS_MKL. */
#include "cpu/blas.h"

#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

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

#if defined(WEFT_BLAS_OPENBLAS)
/* A buffer, by the library's own definition. */
#if defined(__x86_64__)
enum { BUFFER_MIB = 128 };
#else
enum { BUFFER_MIB = 32 };
#endif
enum { SETTLE_MS = 20, SETTLE_MOST = 100 };

/* Bytes of address space in use; 0: this system does not tell. */
static int64_t space_in_use(void) {
    long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file) return 0;
    if (fscanf(file, "%lld", &pages) != 1) pages = 0;
    fclose(file);
    return (int64_t)pages * sysconf(_SC_PAGESIZE);
}

/* Until the library's threads have what there is to have. */
static void let_settle(void) {
    int64_t before = -1, now = space_in_use();
    for (int i = 0; i < SETTLE_MOST && now != before; i++) {
        before = now;
        nanosleep(&(struct timespec){.tv_nsec = SETTLE_MS * 1000000L}, NULL);
        now = space_in_use();
    }
}

static bool has_room(int64_t bytes) {
    void *room =
        mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) return false;
    munmap(room, (size_t)bytes);
    return true;
}

weft_status weft_blas_check_room(void) {
    const int64_t buffer = (int64_t)BUFFER_MIB << 20;
    int threads = openblas_get_num_threads();
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return WEFT_OK;
    if (has_room((threads + 1) * buffer)) return WEFT_OK;
    let_settle();
    if (has_room(buffer)) return WEFT_OK;
    return weft_fail(
        WEFT_ENOMEM,
        "the limit of address space (ulimit -v) is %lld KiB, too little for the buffers "
        "of the BLAS on %d threads: %d MiB each; raise it, or set "
        "OPENBLAS_NUM_THREADS=1",
        (long long)(limit.rlim_cur / 1024), threads, BUFFER_MIB);
}
#else
weft_status weft_blas_check_room(void) {
    return WEFT_OK;
}
#endif

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
