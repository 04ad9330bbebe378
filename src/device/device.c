/* Choosing a backend. */
#include "device/device.h"

#include "cpu/backend.h"
#include "cuda/backend.h"

weft_status weft_device_open(int64_t device, weft_dtype dtype, const weft_backend **out) {
    *out = NULL;
    if (device == WEFT_DEVICE_CUDA && dtype == WEFT_F64)
        return WEFT_BAD_INPUT("device cuda: f64 runs on the CPU only; take --device cpu, "
                              "or --dtype f32 or bf16");
    if (device == WEFT_DEVICE_CUDA) {
        *out = weft_cuda_backend();
        return *out ? WEFT_OK : WEFT_EMISSING;
    }
    if (device == WEFT_DEVICE_AUTO && dtype != WEFT_F64) *out = weft_cuda_backend();
    if (!*out) *out = weft_cpu_backend();
    return *out ? WEFT_OK : WEFT_EMISSING;
}

weft_status weft_device_plan(int64_t device, weft_dtype dtype, const weft_backend **out) {
    weft_status status = weft_device_open(device, dtype, out);
    if (status == WEFT_OK || device != WEFT_DEVICE_CUDA || dtype == WEFT_F64) return status;
    *out = weft_cuda_planner();
    return *out ? WEFT_OK : WEFT_EMISSING;
}
