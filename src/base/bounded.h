/* Sums and products of sizes that end at the largest number instead of going past it. */
#pragma once

#include <stdint.h>

/* Of numbers from 0 on. */
static inline int64_t weft_bounded_sum(int64_t a, int64_t b) {
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

static inline int64_t weft_bounded_product(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}
