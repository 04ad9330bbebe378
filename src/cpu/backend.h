/* The CPU backend. */
#pragma once

#include "core/exec.h"

/* The backend with the best kernels this processor can run: WEFT_CPU=sse2, avx2, ... in the
 * environment chooses lesser ones. NULL and an error message where those are not there. */
const weft_backend *weft_cpu_backend(void);

/* The instruction set in use: "neon", "avx2", ... */
const char *weft_cpu_isa(void);

/* Number i of the instruction sets of this build, the best first, and whether this processor runs it;
 * NULL behind the last. */
const char *weft_cpu_isa_at(int i, bool *runs);

/* Rounds of multiply-adds in registers alone on the calling thread, by the instruction set in use: what a
 * product's rate is measured against. Returns how many floating-point operations they were. bf16: by its
 * instructions for bf16; 0 where it has none. */
double weft_cpu_work(bool bf16, int64_t rounds);
