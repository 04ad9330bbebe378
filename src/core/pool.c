/* The thread pool. Workers spin a short while for the next run before they sleep, since the
 * kernels of one step follow each other within microseconds.
 *
 * A run is over when its tasks are, not when every worker has seen it: the caller takes tasks like
 * the others, so that a run of little work does not wait for threads that are still waking up. What
 * is left of a run is one number, the ticket: a count of runs and of tasks that nobody has taken. A
 * worker that comes late finds no task left, or takes one of a later run; it reads what the run is
 * between seeing the ticket and taking from it, and a run cannot change while it has tasks left. */
#include "core/pool.h"

#include "core/beat.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

enum { POOL_THREADS_MAX = 1024, POOL_SPINS = 4000 };
static const int64_t RUN_MOST = INT64_C(1) << 31;

struct weft_pool {
    int size;
    pthread_t *threads; /* [size - 1]: the caller is thread 0 */
    int started;
    pthread_mutex_t lock;
    pthread_cond_t wake; /* a run began, or the pool closes */
    atomic_int sleeping; /* workers that wait for it */
    atomic_bool closing;
    atomic_uint_fast64_t ticket; /* runs << 32 | tasks that are not taken */
    atomic_int_fast64_t done;    /* tasks of this run, as far as they are reported */
    /* The run, written while no task is left: tasks are end - (what is left). */
    atomic_int_fast64_t end;
    _Atomic(weft_task) task;
    _Atomic(void *) context;
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

static uint32_t tasks_left(uint_fast64_t ticket) {
    return (uint32_t)(ticket & UINT32_MAX);
}

static void pool_take_tasks(weft_pool *pool, int thread) {
    int64_t done = 0;
    uint_fast64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    while (tasks_left(ticket) > 0) {
        int64_t end = atomic_load_explicit(&pool->end, memory_order_relaxed);
        weft_task task = atomic_load_explicit(&pool->task, memory_order_relaxed);
        void *context = atomic_load_explicit(&pool->context, memory_order_relaxed);
        if (!atomic_compare_exchange_weak_explicit(&pool->ticket, &ticket, ticket - 1,
                                                   memory_order_acq_rel, memory_order_acquire))
            continue;
        task(context, end - (int64_t)tasks_left(ticket), thread);
        done++;
        ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    }
    if (done > 0) atomic_fetch_add_explicit(&pool->done, done, memory_order_release);
}

static bool pool_has_news(weft_pool *pool) {
    return tasks_left(atomic_load(&pool->ticket)) > 0 || atomic_load(&pool->closing);
}

static void pool_wait_for_run(weft_pool *pool) {
    for (int spin = 0; spin < POOL_SPINS; spin++) {
        if (pool_has_news(pool)) return;
        pool_pause();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleeping, 1);
    while (!pool_has_news(pool))
        pthread_cond_wait(&pool->wake, &pool->lock);
    atomic_fetch_sub(&pool->sleeping, 1);
    pthread_mutex_unlock(&pool->lock);
}

static void *pool_worker_main(void *argument) {
    pool_worker worker = *(pool_worker *)argument;
    free(argument);
    weft_pool *pool = worker.pool;
    for (;;) {
        pool_wait_for_run(pool);
        if (atomic_load(&pool->closing)) return NULL;
        pool_take_tasks(pool, worker.thread);
    }
}

/* Wakes as many as there is something for. Whoever is about to sleep is counted first and looks at the
 * ticket then: so it sees this run, or is seen here. */
static void pool_wake(weft_pool *pool, int64_t wanted) {
    if (atomic_load(&pool->sleeping) == 0) return;
    pthread_mutex_lock(&pool->lock);
    if (wanted >= atomic_load(&pool->sleeping))
        pthread_cond_broadcast(&pool->wake);
    else
        for (int64_t i = 0; i < wanted; i++)
            pthread_cond_signal(&pool->wake);
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
    pool_wake(pool, pool->size);
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

/* Tasks first to end - 1, no more than a ticket counts. */
static void pool_run_some(weft_pool *pool, int64_t first, int64_t end, weft_task task,
                          void *context) {
    uint_fast64_t runs = (atomic_load_explicit(&pool->ticket, memory_order_relaxed) >> 32) + 1;
    atomic_store_explicit(&pool->end, end, memory_order_relaxed);
    atomic_store_explicit(&pool->task, task, memory_order_relaxed);
    atomic_store_explicit(&pool->context, context, memory_order_relaxed);
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    atomic_store(&pool->ticket, runs << 32 | (uint_fast64_t)(end - first));
    pool_wake(pool, end - first - 1);
    pool_take_tasks(pool, 0);
    /* More threads than processors: give the processor to a worker that still has a task. */
    for (int spin = 0; atomic_load_explicit(&pool->done, memory_order_acquire) < end - first;
         spin++) {
        if (spin < POOL_SPINS)
            pool_pause();
        else
            sched_yield();
    }
}

void weft_pool_run(weft_pool *pool, int64_t tasks, weft_task task, void *context) {
    weft_beat();
    if (pool->size == 1 || tasks <= 1) {
        for (int64_t i = 0; i < tasks; i++)
            task(context, i, 0);
        return;
    }
    for (int64_t first = 0; first < tasks; first += RUN_MOST)
        pool_run_some(pool, first, tasks - first < RUN_MOST ? tasks : first + RUN_MOST, task,
                      context);
}
