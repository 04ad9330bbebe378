/* Long rows of f32 in a backend's memory that is not the host's: what adding gradients over micro-batches
 * and ranks needs there. Calls of one queue are done in their order, beside whatever else the device
 * does; executors' runs are over when they return. */
#pragma once

#include "core/graph.h"

typedef struct weft_row_backend {
    weft_status (*open)(void **queue);
    void (*close)(void *queue);
    void (*add)(void *queue, float *to, const float *from, int64_t n); /* to += from */
    /* to = or += what lies there as f32 or bf16; from NULL: zeros. */
    void (*take)(void *queue, float *to, const void *from, weft_dtype dtype, bool add, int64_t n);
    void (*copy)(void *queue, float *to, const float *from, int64_t n);
    void (*scale)(void *queue, float *data, float factor, int64_t n);
    /* Between the device and the host's memory, which should be pinned. */
    void (*fetch)(void *queue, void *host, const void *from, int64_t bytes);
    void (*put)(void *queue, void *to, const void *host, int64_t bytes);
    weft_status (*wait)(void *queue);
    /* A name that no other device of this machine has. */
    void (*name)(char *text, size_t room);
    /* The host's memory that the device copies from and to at full speed; NULL: no memory. */
    void *(*pin)(int64_t bytes);
    void (*unpin)(void *memory);
} weft_row_backend;
