/* Sizes, names and descriptions of tensors. */
#include "core/tensor.h"

#include <stdio.h>
#include <string.h>

int64_t weft_tensor_count(const weft_tensor *t) {
    int64_t count = 1;
    for (int d = 0; d < t->ndim; d++)
        count *= t->shape[d];
    return count;
}

int64_t weft_tensor_bytes(const weft_tensor *t) {
    return weft_tensor_count(t) * (int64_t)weft_dtype_size(t->dtype);
}

int64_t weft_tensor_width(const weft_tensor *t) {
    return t->ndim ? t->shape[t->ndim - 1] : 1;
}

int64_t weft_tensor_rows(const weft_tensor *t) {
    int64_t rows = 1;
    for (int d = 0; d + 1 < t->ndim; d++)
        rows *= t->shape[d];
    return rows;
}

bool weft_tensor_same_shape(const weft_tensor *a, const weft_tensor *b) {
    return a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof a->shape[0]) == 0;
}

const char *weft_tensor_describe(const weft_tensor *t) {
    static _Thread_local char texts[8][128];
    static _Thread_local unsigned next;
    char *text = texts[next++ % 8];
    if (!t) return "none";
    int at = snprintf(text, sizeof texts[0], "%s [", weft_dtype_name(t->dtype));
    for (int d = 0; d < t->ndim; d++)
        at += snprintf(text + at, sizeof texts[0] - (size_t)at, "%s%lld", d ? ", " : "",
                       (long long)t->shape[d]);
    snprintf(text + at, sizeof texts[0] - (size_t)at, "]");
    return text;
}
