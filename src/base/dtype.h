/* The types of numbers in tensors and files. */
#pragma once

#include "base/error.h"

typedef enum { WEFT_F32, WEFT_F64, WEFT_BF16, WEFT_I32, WEFT_I8, WEFT_DTYPE_COUNT } weft_dtype;

/* Bytes of one element. */
size_t weft_dtype_size(weft_dtype dtype);
/* "f32", "f64", "bf16", "i32", "i8". */
const char *weft_dtype_name(weft_dtype dtype);
weft_status weft_dtype_parse(const char *name, weft_dtype *out);

/* bf16 is a float cut to its upper half, rounded to nearest even; NaN stays NaN. */
static inline float weft_bf16_to_float(uint16_t bits) {
    union {
        uint32_t u;
        float f;
    } v = {.u = (uint32_t)bits << 16};
    return v.f;
}

static inline uint16_t weft_float_to_bf16(float value) {
    union {
        float f;
        uint32_t u;
    } v = {.f = value};
    if ((v.u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((v.u >> 16) | 0x40u);
    return (uint16_t)((v.u + 0x7fffu + ((v.u >> 16) & 1u)) >> 16);
}
