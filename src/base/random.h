/* Counter-based random numbers: Philox 4x32-10.
 *
 * A number is a pure function of (seed, where it is used), so there is no state to save, to share
 * between threads or to lose: a resumed run, another number of threads and a recomputed segment
 * all draw the same bits. The key is the seed; the counter is (index / 4, sequence, iteration,
 * site), where `site` hashes the name of the tensor or of the place in the model, `sequence` is
 * the sequence's place in the whole batch (0 where there is none), and `index` counts the
 * elements within it. */
#pragma once

#include <stdint.h>

/* The functions below are the GPU's too: the same bits. */
#ifdef __CUDACC__
#define WEFT_BOTH __host__ __device__
#else
#define WEFT_BOTH
#endif

typedef struct {
    uint32_t word[4];
} weft_random4;

/* One block of four 32-bit words: Philox 4x32 with ten rounds. */
WEFT_BOTH static inline weft_random4 weft_philox(uint64_t key, uint32_t c0, uint32_t c1,
                                                 uint32_t c2, uint32_t c3) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0;
        uint64_t b = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    weft_random4 r = {{c0, c1, c2, c3}};
    return r;
}

/* The word at `index` of the stream (seed, iteration, sequence, site). */
WEFT_BOTH static inline uint32_t weft_random_word(uint64_t seed, uint32_t iteration,
                                                  uint32_t sequence, uint32_t site,
                                                  uint64_t index) {
    weft_random4 r = weft_philox(seed, (uint32_t)(index >> 2), sequence, iteration, site);
    return r.word[index & 3];
}

/* A word as a number in [0, 1): its upper 24 bits, so that float and double agree. */
WEFT_BOTH static inline double weft_random_unit(uint32_t word) {
    return (double)(word >> 8) * 0x1p-24;
}

/* The 32-bit FNV-1a hash of a name: the `site` of its random numbers. */
uint32_t weft_random_site(const char *name);

/* Fills out[0..n) with draws from a normal distribution (mean 0, deviation 1) from element `first` of the
 * stream on, element i from its words 2i and 2i+1 by Box and Muller. */
void weft_random_normal(uint64_t seed, uint32_t iteration, uint32_t site, int64_t first, int64_t n,
                        double *out);

/* The same from [0, 1), element i from word i of the stream. */
void weft_random_uniform(uint64_t seed, uint32_t iteration, uint32_t site, int64_t first, int64_t n,
                         double *out);
