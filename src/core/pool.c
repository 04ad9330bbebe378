/* The thread pool. Workers spin a short while for the next run before they sleep, since the
 * kernels of one step follow each other within microseconds. */
#include "core/pool.h"

#include "core/beat.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

enum { POOL_THREADS_MAX = 1024, POOL_SPINS = 4000 };

struct weft_pool {
    int size;
    pthread_t *threads; /* [size - 1]: the caller is thread 0 */
    int started;
    pthread_mutex_t lock;
    pthread_cond_t wake;      /* a run began, or the pool closes */
    atomic_uint_fast64_t run; /* counts runs; a worker waits for it to move */
    atomic_bool closing;
    atomic_int_fast64_t next; /* the next task to take */
    atomic_int working;       /* workers that have not finished this run */
    int64_t tasks;
    weft_task task;
    void *context;
};

typedef struct {
    weft_pool *pool;
    int thread;
} pool_worker;

static inline void pool_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void pool_take_tasks(weft_pool *pool, int thread) {
    int64_t tasks = pool->tasks;
    for (;;) {
        int64_t i = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (i >= tasks) return;
        pool->task(pool->context, i, thread);
    }
}

static void pool_wait_for_run(weft_pool *pool, uint_fast64_t seen) {
    for (int spin = 0; spin < POOL_SPINS; spin++) {
        if (atomic_load_explicit(&pool->run, memory_order_acquire) != seen) return;
        pool_pause();
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load_explicit(&pool->run, memory_order_acquire) == seen)
        pthread_cond_wait(&pool->wake, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

static void *pool_worker_main(void *argument) {
    pool_worker worker = *(pool_worker *)argument;
    free(argument);
    weft_pool *pool = worker.pool;
    uint_fast64_t seen = 0;
    for (;;) {
        pool_wait_for_run(pool, seen);
        seen++;
        if (atomic_load(&pool->closing)) return NULL;
        pool_take_tasks(pool, worker.thread);
        atomic_fetch_sub_explicit(&pool->working, 1, memory_order_release);
    }
}

static void pool_announce(weft_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add_explicit(&pool->run, 1, memory_order_release);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

static int processors_allowed(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int count = CPU_COUNT(&set);
    return count > 0 ? count : 1;
}

weft_status weft_pool_create(int threads, weft_pool **out) {
    *out = NULL;
    if (threads < 0 || threads > POOL_THREADS_MAX)
        return weft_fail(WEFT_EINPUT, "threads: %d is outside 0 to %d; 0 takes one a processor",
                         threads, POOL_THREADS_MAX);
    if (threads == 0) threads = processors_allowed();
    weft_pool *pool = calloc(1, sizeof *pool);
    if (!pool) return weft_fail(WEFT_ENOMEM, "threads: no memory for the pool");
    pool->size = threads;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->threads = calloc((size_t)threads, sizeof *pool->threads);
    bool ok = pool->threads != NULL;
    for (int i = 1; ok && i < threads; i++) {
        pool_worker *worker = malloc(sizeof *worker);
        ok = worker != NULL;
        if (!ok) break;
        *worker = (pool_worker){pool, i};
        ok = pthread_create(&pool->threads[i - 1], NULL, pool_worker_main, worker) == 0;
        if (ok)
            pool->started++;
        else
            free(worker);
    }
    if (!ok) {
        weft_pool_destroy(pool);
        return weft_fail(WEFT_ENOMEM, "threads: the system would not start %d of them; try fewer",
                         threads);
    }
    *out = pool;
    return WEFT_OK;
}

void weft_pool_destroy(weft_pool *pool) {
    if (!pool) return;
    atomic_store(&pool->closing, true);
    pool_announce(pool);
    for (int i = 0; i < pool->started; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    free(pool->threads);
    free(pool);
}

int weft_pool_size(const weft_pool *pool) {
    return pool->size;
}

void weft_pool_run(weft_pool *pool, int64_t tasks, weft_task task, void *context) {
    weft_beat();
    if (pool->size == 1 || tasks <= 1) {
        for (int64_t i = 0; i < tasks; i++)
            task(context, i, 0);
        return;
    }
    pool->tasks = tasks;
    pool->task = task;
    pool->context = context;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->working, pool->started, memory_order_relaxed);
    pool_announce(pool);
    pool_take_tasks(pool, 0);
    /* More threads than processors: give the processor to a worker that still has a task. */
    for (int spin = 0; atomic_load_explicit(&pool->working, memory_order_acquire) > 0; spin++) {
        if (spin < POOL_SPINS)
            pool_pause();
        else
            sched_yield();
    }
}
