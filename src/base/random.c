/* Philox streams as arrays of normal and uniform numbers. */
#include "base/random.h"

#include <math.h>

uint32_t weft_random_site(const char *name) {
    uint32_t hash = 2166136261u;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++)
        hash = (hash ^ *c) * 16777619u;
    return hash;
}

/* A block of four words makes two numbers. */
void weft_random_normal(uint64_t seed, uint32_t iteration, uint32_t site, int64_t first, int64_t n,
                        double *out) {
    const double tau = 6.283185307179586476925286766559;
    weft_random4 r = {{0}};
    for (int64_t i = first; i < first + n; i++) {
        if (i == first || i % 2 == 0) r = weft_philox(seed, (uint32_t)(i / 2), 0, iteration, site);
        /* 1 more keeps the logarithm away from zero. */
        double radius = sqrt(-2.0 * log(((double)r.word[2 * (i % 2)] + 1.0) * 0x1p-32));
        out[i - first] = radius * cos(tau * (double)r.word[2 * (i % 2) + 1] * 0x1p-32);
    }
}

void weft_random_uniform(uint64_t seed, uint32_t iteration, uint32_t site, int64_t first, int64_t n,
                         double *out) {
    weft_random4 r = {{0}};
    for (int64_t i = first; i < first + n; i++) {
        if (i == first || i % 4 == 0) r = weft_philox(seed, (uint32_t)(i / 4), 0, iteration, site);
        out[i - first] = weft_random_unit(r.word[i % 4]);
    }
}
