/* Sizes and names of the types of numbers. */
#include "base/dtype.h"

static const struct {
    const char *name;
    size_t size;
} dtypes[WEFT_DTYPE_COUNT] = {
    [WEFT_F32] = {"f32", 4}, [WEFT_F64] = {"f64", 8}, [WEFT_BF16] = {"bf16", 2},
    [WEFT_I32] = {"i32", 4}, [WEFT_I8] = {"i8", 1},
};

size_t weft_dtype_size(weft_dtype dtype) {
    return dtypes[dtype].size;
}

const char *weft_dtype_name(weft_dtype dtype) {
    return dtypes[dtype].name;
}

weft_status weft_dtype_parse(const char *name, weft_dtype *out) {
    for (int i = 0; i < WEFT_DTYPE_COUNT; i++) {
        if (strcmp(name, dtypes[i].name) == 0) {
            *out = (weft_dtype)i;
            return WEFT_OK;
        }
    }
    return WEFT_BAD_INPUT("type '%s' is none of f32, f64, bf16, i32, i8", name);
}
