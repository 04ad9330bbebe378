/* The thread pool of these programs, which have no library behind them: runs tasks one by one
 * in place of threads, the last task first. What depends on the number of threads is the cut into
 * tasks. */
#ifndef WEFT_TESTS_EMULATED_SERIAL_POOL_H
#define WEFT_TESTS_EMULATED_SERIAL_POOL_H

#include "core/pool.h"

struct weft_pool {
    int size;
};

int weft_pool_size(const weft_pool *pool) {
    return pool->size;
}

void weft_pool_run(weft_pool *pool, int64_t tasks, weft_task task, void *context) {
    for (int64_t i = tasks - 1; i >= 0; i--)
        task(context, i, (int)(i % pool->size));
}

#endif
