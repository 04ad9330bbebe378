/* Where a config's work is done. */
#pragma once

#include "config/config.h"
#include "core/exec.h"

/* The backend for WEFT_DEVICE_...: `auto` is the GPU where there is one that this build can use, and
 * the CPU elsewhere. f64 runs on the CPU only. An error says what is missing. */
weft_status weft_device_open(int64_t device, weft_dtype dtype, const weft_backend **out);

/* The same for plans, which need no GPU: where none can be used, `cuda` is planned as for an H200. */
weft_status weft_device_plan(int64_t device, weft_dtype dtype, const weft_backend **out);
