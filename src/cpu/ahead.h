/* Asking for weights before they are read, by products of one row, which wait for memory and for little
 * else. The prefetchers of x86-64's processors mostly stop at the end of a page of 4 KiB, where each of
 * the product's streams would begin anew; those of Arm's cores were seen to keep up. */
#pragma once

enum {
#if defined(__SSE2__)
    ASKS_AHEAD = 1,
#else
    ASKS_AHEAD = 0,
#endif
    /* Bytes from what is read to what is asked for, in each stream: the next column's, where a column is
     * shorter. Of 256 to 2,048 bytes these were the fastest, or as fast, with f32, bf16 and int8 weights
     * by AVX-512 on a Xeon, in the better of two readings; by AVX2 512 were read alone. */
    ASKED_AHEAD = 2048
};

/* The line may lie behind the end of the weights: asking never faults. */
static inline void ask_for(const char *at) {
    __builtin_prefetch(at + ASKED_AHEAD);
}
