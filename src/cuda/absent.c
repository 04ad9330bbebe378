/* The backend of a build without CUDA: the reason why there is none. */
#include "cuda/backend.h"
#include "cuda/device.h"

#ifndef WEFT_HAVE_CUDA
const weft_backend *weft_cuda_backend(void) {
    weft_fail(WEFT_EMISSING,
              "cuda: this weft was built without it; install the CUDA toolkit, put its nvcc on "
              "PATH, then make configure build");
    return NULL;
}

int weft_cuda_set_rank(int rank) {
    (void)rank;
    return 0;
}

const weft_backend *weft_cuda_planner(void) {
    return weft_cuda_backend();
}

const char *weft_cuda_device_name(void) {
    return "none";
}

const weft_cuda_facts *weft_cuda_device(void) {
    static const weft_cuda_facts assumed = WEFT_CUDA_H200(90, true);
    return &assumed;
}

int64_t weft_cuda_bytes_taken(void) {
    return 0;
}

double weft_cuda_read_rate(void) {
    return 0;
}
#endif
