/* How much memory this process holds, as the system counts it. */
#ifndef WEFT_BENCH_MEMORY_H
#define WEFT_BENCH_MEMORY_H

#include <stdint.h>

/* Bytes in memory now, and at most since the process began; 0 where the system does not tell. A
 * process that was forked begins with what it shares with its parent. */
int64_t bench_resident_bytes(void);
int64_t bench_peak_bytes(void);

/* Gives memory that was freed back to the system, so that it does not count and is not taken again
 * unseen. */
void bench_trim_memory(void);

#endif
