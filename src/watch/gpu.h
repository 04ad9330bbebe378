/* The GPUs of this machine as their driver tells of them: power, clock, memory. By NVIDIA's management
 * library (NVML), where the driver has brought it; nothing is linked against it. */
#pragma once

#include <jansson.h>

typedef struct weft_gpus weft_gpus;

/* NULL: there are none, or no memory. */
weft_gpus *weft_gpus_open(void);
void weft_gpus_close(weft_gpus *g);

/* [{"name", "watts", "mhz", "used_bytes", "bytes", "percent"}], null where the driver does not say. */
json_t *weft_gpus_json(const weft_gpus *g);
