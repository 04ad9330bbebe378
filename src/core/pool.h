/* One pool of threads, its size fixed when it is made.
 *
 * Work is a count of independent tasks; threads take the next number until none is left. Which
 * thread runs a task is chance, so a task must depend on its number alone, and reductions over
 * tasks are done afterwards in the order of the numbers. That is what keeps results equal for any
 * number of threads. */
#ifndef WEFT_CORE_POOL_H
#define WEFT_CORE_POOL_H

#include "core/error.h"

#include <stdint.h>

typedef struct weft_pool weft_pool;

/* `thread` is 0 .. weft_pool_size - 1: an index for scratch memory, never for results. */
typedef void (*weft_task)(void *context, int64_t task, int thread);

/* A pool of `threads` (0: one a processor this process may use). The caller's thread is one of
 * them, so 1 starts none. */
weft_status weft_pool_create(int threads, weft_pool **out);
void weft_pool_destroy(weft_pool *pool);
int weft_pool_size(const weft_pool *pool);

/* Runs task(context, 0 .. tasks-1, thread) and returns when all are done. Not reentrant: a task
 * may not start another run on the same pool. */
void weft_pool_run(weft_pool *pool, int64_t tasks, weft_task task, void *context);

#endif
