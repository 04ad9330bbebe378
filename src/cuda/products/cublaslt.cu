/* Opening cuBLASLt: by its name where the system finds it, else in the folder of the toolkit that
 * this build was made with. */
#include "cuda/products/cublaslt.cuh"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#ifndef WEFT_CUDA_LIBRARIES
#define WEFT_CUDA_LIBRARIES "/usr/local/cuda/lib64"
#endif

#define TEXT_OF_(x) #x
#define TEXT_OF(x) TEXT_OF_(x)
#define LIBRARY "libcublasLt.so." TEXT_OF(CUBLAS_VER_MAJOR)

static weft_cuda_blas blas;
static char problem[512];
static bool is_open;

static void open_library(void) {
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) library = dlopen(WEFT_CUDA_LIBRARIES "/" LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(problem, sizeof problem,
                 "cuda: " LIBRARY " was not found; install cuBLAS, or say where it is with "
                 "LD_LIBRARY_PATH");
        return;
    }
#define FIND(name)                                                                                 \
    blas.name = (decltype(blas.name))dlsym(library, "cublasLt" #name);                             \
    if (!blas.name) {                                                                              \
        snprintf(problem, sizeof problem, "cuda: " LIBRARY " has no cublasLt" #name);              \
        return;                                                                                    \
    }
    WEFT_BLAS_FUNCTIONS(FIND)
#undef FIND
    cublasStatus_t status = blas.Create(&blas.handle);
    is_open = status == CUBLAS_STATUS_SUCCESS;
    if (!is_open)
        snprintf(problem, sizeof problem, "cuda: cuBLASLt did not start: %s",
                 blas.GetStatusString(status));
}

const weft_cuda_blas *weft_cuda_blas_open(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_library);
    if (is_open) return &blas;
    weft_fail(WEFT_EMISSING, "%s", problem);
    return NULL;
}
