/* Philox streams as arrays of normal and uniform numbers. */
#include "core/random.h"

#include <math.h>

uint32_t weft_random_site(const char *name) {
    uint32_t hash = 2166136261u;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++)
        hash = (hash ^ *c) * 16777619u;
    return hash;
}

void weft_random_normal(uint64_t seed, uint32_t iteration, uint32_t site, int64_t n, double *out) {
    const double tau = 6.283185307179586476925286766559;
    for (int64_t i = 0; i < n; i++) {
        uint64_t index = 2 * (uint64_t)i;
        weft_random4 r = weft_philox(seed, (uint32_t)(index >> 2), 0, iteration, site);
        uint32_t a = r.word[index & 3], b = r.word[(index & 3) + 1];
        /* a + 1 keeps the logarithm away from zero. */
        double radius = sqrt(-2.0 * log(((double)a + 1.0) * 0x1p-32));
        out[i] = radius * cos(tau * (double)b * 0x1p-32);
    }
}

void weft_random_uniform(uint64_t seed, uint32_t iteration, uint32_t site, int64_t n, double *out) {
    for (int64_t i = 0; i < n; i++)
        out[i] = weft_random_unit(weft_random_word(seed, iteration, 0, site, (uint64_t)i));
}
