/* What every CPU kernel file starts from.
 *
 * A file in src/cpu is compiled for float once for each instruction set the build knows (WEFT_ISA: neon;
 * sse2, avx2, avx512; plain), and for double (WEFT_REAL) once, so the code is written in terms of `real`. bf16 tensors run in the float build: values are widened tile by tile as they
 * are read and rounded as they are written. backend.c picks the instruction set at run time.
 *
 * Names that cross files are wrapped: KERNEL(norm) is weft_cpu_norm_avx2_32 in one of the
 * compilations. table.c lists them all. */
#pragma once

#include "core/exec.h"

#include <math.h>

#ifndef WEFT_ISA
#define WEFT_ISA plain
#endif
#ifndef WEFT_REAL
#define WEFT_REAL 32
#endif

#if WEFT_REAL == 64
typedef double real;
#else
typedef float real;
#endif

#define WEFT_PASTE4_(a, b, c, d) a##b##_##c##_##d
#define WEFT_PASTE4(a, b, c, d) WEFT_PASTE4_(a, b, c, d)
#define KERNEL(name) WEFT_PASTE4(weft_cpu_, name, WEFT_ISA, WEFT_REAL)

#define ATTR(n, type) ((const type *)(n)->attr)

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define UNUSED __attribute__((unused))
/* for (int i = 0; i < n; i++), n a constant, unrolled before the compiler decides what is in registers. */
#define UNROLLED(i, n) _Pragma("GCC unroll 24") for (int i = 0; i < (n); i++)
/* f(..., flag), compiled for either value of the flag. */
#define EITHER(flag, f, ...) ((flag) ? f(__VA_ARGS__, true) : f(__VA_ARGS__, false))

/* What follows, for t to t + n - 1 of `count`, n a constant of `most`, 2 and 1. */
#define EACH_TILES(t, n, count, most, ...)                                                         \
    do {                                                                                           \
        const int64_t end_ = (count);                                                              \
        int64_t t = 0;                                                                             \
        for (const int n = (most); t + n <= end_; t += n)                                          \
            __VA_ARGS__;                                                                           \
        for (const int n = 2; t + n <= end_; t += n)                                               \
            __VA_ARGS__;                                                                           \
        for (const int n = 1; t < end_; t = end_)                                                  \
            __VA_ARGS__;                                                                           \
    } while (0)

/* `tasks` tasks of an operation by all threads. */
static inline weft_status run_tasks(const weft_exec *x, int64_t tasks, weft_task each,
                                    void *context) {
    weft_pool_run(weft_exec_pool(x), tasks, each, context);
    return WEFT_OK;
}

/* An operation's kernel, by what runs it: DEFINE_KERNEL(dot, .workspace = sum_workspace) { ... } of x and n. */
#define DEFINE_KERNEL(name, ...)                                                                   \
    static weft_status name##_run(weft_exec *x, const weft_node *n);                               \
    const weft_kernel KERNEL(name) = {.run = name##_run, ##__VA_ARGS__};                           \
    static weft_status name##_run(weft_exec *x, const weft_node *n)
/* The same of one expression in x and n; with a workspace of so many bytes, in n and threads; and those alone. */
#define DEFINE_KERNEL_AS(name, result, ...)                                                        \
    DEFINE_KERNEL(name, ##__VA_ARGS__) {                                                           \
        return result;                                                                             \
    }
#define DEFINE_KERNEL_IN(name, bytes)                                                              \
    DEFINE_WORKSPACE(name, bytes)                                                                  \
    DEFINE_KERNEL(name, .workspace = name##_workspace)
#define DEFINE_WORKSPACE(name, bytes)                                                              \
    static int64_t name##_workspace(UNUSED const weft_node *n, UNUSED int threads) {               \
        return bytes;                                                                              \
    }

static inline void widen_bf16(real *to, const uint16_t *from, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        to[i] = (real)weft_bf16_to_float(from[i]);
}

static inline void round_bf16(uint16_t *to, const real *from, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        to[i] = weft_float_to_bf16((float)from[i]);
}

/* n reals from element `at` of what lies at `data`: its own memory, or widened into `scratch` if bf16. */
static ALWAYS_INLINE const real *row_in(const void *data, bool bf16, int64_t at, int64_t n,
                                        real *scratch) {
    if (!bf16) return (const real *)data + at;
    widen_bf16(scratch, (const uint16_t *)data + at, n);
    return scratch;
}

/* The same of a tensor. */
static inline const real *tile_in(const weft_exec *x, const weft_tensor *t, int64_t at, int64_t n,
                                  real *scratch) {
    return row_in(weft_data(x, t), t->dtype == WEFT_BF16, at, n, scratch);
}

/* Where to write n reals bound for element `at`: the tensor's own memory, or `scratch` if bf16.
 * Call tile_done afterwards with the same arguments. */
static inline real *tile_out(const weft_exec *x, const weft_tensor *t, int64_t at, real *scratch) {
    return t->dtype == WEFT_BF16 ? scratch : (real *)weft_data(x, t) + at;
}

static inline void tile_done(const weft_exec *x, const weft_tensor *t, int64_t at, int64_t n,
                             const real *scratch) {
    if (t->dtype == WEFT_BF16) round_bf16((uint16_t *)weft_data(x, t) + at, scratch, n);
}

/* n reals to element `at` on. */
static inline void write_reals(const weft_exec *x, const weft_tensor *t, int64_t at, int64_t n,
                               const real *from) {
    if (t->dtype != WEFT_BF16) memcpy((real *)weft_data(x, t) + at, from, (size_t)n * sizeof(real));
    tile_done(x, t, at, n, from);
}

static inline int64_t min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t max_i64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static inline int64_t round_up(int64_t n, int64_t to) {
    return ceil_div(n, to) * to;
}

/* How many of `tasks` short tasks one task should take, one after the other: long runs through memory
 * are faster than many that alternate between threads, but each thread should get a few. */
static inline int64_t tasks_together(int64_t tasks, int threads) {
    enum { MOST = 16, EACH = 8 };
    return max_i64(1, min_i64(MOST, tasks / (EACH * threads)));
}

/* Which of n ascending numbers, the first of them at most `at`, is the last that is. */
static inline int64_t find_last(const int64_t *list, int64_t n, int64_t at) {
    int64_t low = 0, high = n;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (list[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Lists, for each number below n, where `index` has it, in ascending order: those of j are from at[first[j]] on,
 * up to at[first[j + 1]]. Negative ones are in no list. first [n + 1]: first[j + 1] counts j, then becomes the
 * place of its next one, and so ends as the beginning of j + 1. */
static inline void list_places(const int32_t *index, int64_t count, int64_t n, int32_t *first,
                               int32_t *at) {
    int32_t before = 0;
    memset(first, 0, (size_t)(n + 1) * sizeof *first);
    for (int64_t e = 0; e < count; e++)
        if (index[e] >= 0) first[index[e] + 1]++;
    for (int64_t j = 1; j <= n; j++) {
        int32_t those = first[j];
        first[j] = before;
        before += those;
    }
    for (int64_t e = 0; e < count; e++)
        if (index[e] >= 0) at[first[index[e] + 1]++] = (int32_t)e;
}

/* Bytes of `n` reals rounded up so that the next block is aligned too. */
static inline int64_t real_bytes(int64_t n) {
    return weft_arena_bytes(n * (int64_t)sizeof(real));
}

/* Memory from `at` on in pieces, each aligned; one of no bytes is NULL, and without memory all are. Returns
 * the bytes of all. */
typedef struct {
    void *to; /* the address of a pointer */
    int64_t bytes;
} memory_piece;
#define CUT_MEMORY(at, ...)                                                                        \
    cut_memory(at, (memory_piece[]){__VA_ARGS__},                                                  \
               sizeof((memory_piece[]){__VA_ARGS__}) / sizeof(memory_piece))

static inline int64_t cut_memory(char *at, const memory_piece *pieces, size_t n) {
    int64_t used = 0;
    for (size_t i = 0; i < n; i++) {
        void *piece = at && pieces[i].bytes ? at + used : NULL;
        memcpy(pieces[i].to, &piece, sizeof piece);
        used += weft_arena_bytes(pieces[i].bytes);
    }
    return used;
}
