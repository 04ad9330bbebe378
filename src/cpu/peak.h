/* Multiply-adds in registers alone, for a benchmark: the rate that no product exceeds. */
#ifndef WEFT_CPU_PEAK_H
#define WEFT_CPU_PEAK_H

#include "cpu/kernel.h"

/* So many rounds on the calling thread; returns the floating-point operations of them. By the vectors'
 * multiply-add, and by the instructions for bf16 in use: 0 where there are none. */
double KERNEL(peak_real)(int64_t rounds);
double KERNEL(peak_bf16)(int64_t rounds);

#endif
