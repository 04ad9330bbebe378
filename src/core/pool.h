/* One pool of threads, its size fixed when it is made.
 *
 * Work is a count of independent tasks; threads take the next number until none is left. Which
 * thread runs a task is chance, so a task must depend on its number alone, and reductions over
 * tasks are done afterwards in the order of the numbers. That is what keeps results equal for any
 * number of threads.
 *
 * Where the threads are held to several nodes (core/topology.h), the tasks of a run are shared out among
 * the nodes by their numbers: the first to node 0, the last to the last. A node whose tasks are done
 * takes those of others. So what belongs to a task is mostly used on one node, run after run, and
 * memory that is first written there (weft_pool_zero) lies there. */
#pragma once

#include "core/topology.h"

typedef struct weft_pool weft_pool;

/* `thread` is 0 .. weft_pool_size - 1: an index for scratch memory, never for results. */
typedef void (*weft_task)(void *context, int64_t task, int thread);
/* One by name, with its context as what it is: WEFT_TASK(add_chunk, const sum *s) { ... } of s, task and
 * thread; without, of `void *context`. */
#define WEFT_TASK(...) WEFT_TASK_OF(__VA_ARGS__, void *context, )
#define WEFT_TASK_OF(name, own, ...)                                                               \
    static inline void name##_body(own, int64_t task, int thread);                                 \
    static void name(void *context, int64_t task, int thread) {                                    \
        name##_body(context, task, thread);                                                        \
    }                                                                                              \
    static inline void name##_body(own, int64_t task, __attribute__((unused)) int thread)

/* A pool of `threads` (0: one a processor this process may use). The caller's thread is one of
 * them, so 1 starts none. */
weft_status weft_pool_create(int threads, weft_pool **out);
/* The same, of 1 or more threads on processors that were read before. */
weft_status weft_pool_create_on(int threads, weft_pin wish, const weft_topology *t,
                                weft_pool **out);
void weft_pool_destroy(weft_pool *pool);
int weft_pool_size(const weft_pool *pool);

/* Runs task(context, 0 .. tasks-1, thread) and returns when all are done; with no pool the caller does
 * them. Not reentrant: a task may not start another run on the same pool. */
void weft_pool_run(weft_pool *pool, int64_t tasks, weft_task task, void *context);

/* Zeros, each share of the memory written by the node that has this share of a run's tasks: the
 * system puts a page where it is first written. On one node, with no pool, or in a fork of the process
 * that made the pool, it is memset. */
void weft_pool_zero(weft_pool *pool, void *memory, int64_t bytes);
