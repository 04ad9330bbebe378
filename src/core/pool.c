/* The thread pool. Workers spin a short while for the next run before they sleep, since the
 * kernels of one step follow each other within microseconds.
 *
 * A run is over when its tasks are, not when every worker has seen it: the caller takes tasks like
 * the others, so that a run of little work does not wait for threads that are still waking up. What
 * is left of a run is one number, the ticket: a count of runs and of tasks that nobody has taken. A
 * worker that comes late finds no task left, or takes one of a later run; it reads what the run is
 * between seeing the ticket and taking from it, and a run cannot change while it has tasks left. With
 * several nodes there is a ticket for each: threads take from their own first. */
#include "core/pool.h"

#include "base/clock.h"

enum { POOL_THREADS_MAX = 1024, POOL_NODES_MAX = 16, POOL_SPINS = 4000, LINE = 64 };
static const int64_t RUN_MOST = INT64_C(1) << 31;

/* A node's part of a run, on a cache line of its own. */
typedef struct {
    _Alignas(LINE) atomic_uint_fast64_t ticket; /* runs << 32 | tasks that are not taken */
    atomic_int_fast64_t end;                    /* tasks are end - (what is left) */
} pool_share;

_Static_assert(sizeof(pool_share) == LINE, "nodes do not write to each other's line");

typedef struct {
    weft_pool *pool;
    int thread, node;
    pthread_t id;
} pool_worker;

struct weft_pool {
    int size, nodes;
    pid_t process;                  /* that has the threads: a fork of it has none */
    int before[POOL_NODES_MAX + 1]; /* threads on the nodes before this one */
    pool_worker *workers;           /* [size]: the caller is the first */
    int started;                    /* of the others */
    pthread_mutex_t lock;
    pthread_cond_t wake; /* a run began, or the pool closes */
    atomic_int sleeping; /* workers that wait for it */
    atomic_bool closing;
    atomic_int_fast64_t done; /* tasks of this run, as far as they are reported */
    /* The run, written while no task is left. */
    _Atomic(weft_task) task;
    _Atomic(void *) context;
    pool_share shares[POOL_NODES_MAX];
};

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

/* What was done is reported once, so that no other run begins in between. */
static void pool_take_tasks(const pool_worker *w) {
    weft_pool *pool = w->pool;
    int64_t done = 0;
    for (int i = 0; i < pool->nodes; i++) { /* a share until nothing of it is left */
        pool_share *share = &pool->shares[(w->node + i) % pool->nodes];
        uint_fast64_t ticket = atomic_load_explicit(&share->ticket, memory_order_acquire);
        while (tasks_left(ticket) > 0) {
            int64_t end = atomic_load_explicit(&share->end, memory_order_relaxed);
            weft_task task = atomic_load_explicit(&pool->task, memory_order_relaxed);
            void *context = atomic_load_explicit(&pool->context, memory_order_relaxed);
            if (!atomic_compare_exchange_weak_explicit(&share->ticket, &ticket, ticket - 1,
                                                       memory_order_acq_rel, memory_order_acquire))
                continue;
            task(context, end - (int64_t)tasks_left(ticket), w->thread);
            done++;
            ticket = atomic_load_explicit(&share->ticket, memory_order_acquire);
        }
    }
    if (done > 0) atomic_fetch_add_explicit(&pool->done, done, memory_order_release);
}

static bool pool_has_news(weft_pool *pool) {
    for (int i = 0; i < pool->nodes; i++)
        if (tasks_left(atomic_load(&pool->shares[i].ticket)) > 0) return true;
    return atomic_load(&pool->closing);
}

static void *pool_worker_main(void *argument) {
    const pool_worker *w = argument;
    weft_pool *pool = w->pool;
    for (;;) {
        for (int spin = 0; spin < POOL_SPINS && !pool_has_news(pool); spin++)
            pool_pause();
        if (!pool_has_news(pool)) {
            WEFT_LOCK(&pool->lock);
            atomic_fetch_add(&pool->sleeping, 1);
            while (!pool_has_news(pool))
                pthread_cond_wait(&pool->wake, &pool->lock);
            atomic_fetch_sub(&pool->sleeping, 1);
        }
        if (atomic_load(&pool->closing)) return NULL;
        pool_take_tasks(w);
    }
}

/* Wakes as many as there is something for. Whoever is about to sleep is counted first and looks at the
 * ticket then: so it sees this run, or is seen here. */
static void pool_wake(weft_pool *pool, int64_t wanted) {
    if (atomic_load(&pool->sleeping) == 0) return;
    WEFT_LOCK(&pool->lock);
    if (wanted >= atomic_load(&pool->sleeping))
        pthread_cond_broadcast(&pool->wake);
    else
        for (int64_t i = 0; i < wanted; i++)
            pthread_cond_signal(&pool->wake);
}

weft_status weft_pool_create(int threads, weft_pool **out) {
    *out = NULL;
    if (threads < 0 || threads > POOL_THREADS_MAX)
        return WEFT_BAD_INPUT("threads: %d is outside 0 to %d; 0 takes one a processor", threads,
                              POOL_THREADS_MAX);
    weft_pin wish;
    cpu_set_t allowed;
    WEFT_AUTO(weft_topology_free) weft_topology t = {0};
    WEFT_TRY(weft_pin_wish(&wish));
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) CPU_ZERO(&allowed);
    if (threads == 0) threads = CPU_COUNT(&allowed);
    if (threads == 0) { /* the mask of a very large machine does not fit in a cpu_set_t */
        long n = sysconf(_SC_NPROCESSORS_ONLN);
        threads = n < 1 ? 1 : n > POOL_THREADS_MAX ? POOL_THREADS_MAX : (int)n;
    }
    WEFT_TRY(weft_topology_read(WEFT_TOPOLOGY_ROOT, &allowed, &t));
    return weft_pool_create_on(threads, wish, &t, out);
}

weft_status weft_pool_create_on(int threads, weft_pin wish, const weft_topology *t,
                                weft_pool **out) {
    *out = NULL;
    weft_pool *pool = aligned_alloc(_Alignof(weft_pool), sizeof *pool);
    if (!pool) return weft_fail(WEFT_ENOMEM, "threads: no memory for the pool");
    memset(pool, 0, sizeof *pool);
    pool->size = threads;
    pool->process = getpid();
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->workers = calloc((size_t)threads, sizeof *pool->workers);
    bool ok = pool->workers;
    weft_pin pin = threads > 1 ? weft_pin_choose(wish, threads, t) : WEFT_PIN_NONE;
    if (ok) { /* threads are shared out among nodes; without a pin all are on one */
        for (int i = 0; i < pool->size; i++) {
            int node = pin == WEFT_PIN_NONE ? 0 : t->list[i].node % POOL_NODES_MAX;
            pool->workers[i] = (pool_worker){.pool = pool, .thread = i, .node = node};
            pool->before[node + 1]++;
            if (pool->nodes <= node) pool->nodes = node + 1;
        }
        for (int i = 0; i < pool->nodes; i++)
            pool->before[i + 1] += pool->before[i];
    }
    for (int i = 1; ok && i < threads; i++) {
        cpu_set_t place;
        pool_worker *w = &pool->workers[i];
        ok = pthread_create(&w->id, NULL, pool_worker_main, w) == 0;
        pool->started += ok;
        if (!ok || pin == WEFT_PIN_NONE) continue;
        weft_pin_place(pin, i, t, &place); /* where the system will not hold it, it runs anywhere */
        pthread_setaffinity_np(w->id, sizeof place, &place);
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
    for (int i = 1; i <= pool->started; i++)
        pthread_join(pool->workers[i].id, NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    WEFT_FREE(pool->workers, pool);
}

WEFT_GETTER(int, weft_pool_size, weft_pool, size)

/* Tasks first to end - 1, no more than a ticket counts. */
static void pool_run_some(weft_pool *pool, int64_t first, int64_t end, weft_task task,
                          void *context) {
    atomic_store_explicit(&pool->task, task, memory_order_relaxed);
    atomic_store_explicit(&pool->context, context, memory_order_relaxed);
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    int64_t begin = first;
    for (int i = 0; i < pool->nodes; i++) {
        pool_share *share = &pool->shares[i];
        int64_t behind = first + (end - first) * pool->before[i + 1] / pool->size;
        uint_fast64_t runs = (atomic_load_explicit(&share->ticket, memory_order_relaxed) >> 32) + 1;
        atomic_store_explicit(&share->end, behind, memory_order_relaxed);
        atomic_store(&share->ticket, runs << 32 | (uint_fast64_t)(behind - begin));
        begin = behind;
    }
    pool_wake(pool, end - first - 1);
    pool_take_tasks(&pool->workers[0]);
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
    if (!pool || pool->size == 1 || tasks <= 1) {
        for (int64_t i = 0; i < tasks; i++)
            task(context, i, 0);
        return;
    }
    for (int64_t first = 0; first < tasks; first += RUN_MOST)
        pool_run_some(pool, first, tasks - first < RUN_MOST ? tasks : first + RUN_MOST, task,
                      context);
}

typedef struct {
    const weft_pool *pool;
    unsigned char *memory;
    int64_t bytes;
    atomic_int begun;
} zeroing;

/* Each thread takes one task, since none ends before all have begun, and writes its own share,
 * whichever task it has. */
WEFT_TASK(zero_share, zeroing *z) {
    const weft_pool *pool = z->pool;
    (void)task;
    atomic_fetch_add(&z->begun, 1);
    while (atomic_load(&z->begun) < pool->size)
        sched_yield();
    int node = pool->workers[thread].node;
    int64_t share = pool->before[node];
    for (int i = 0; i < thread; i++)
        share += pool->workers[i].node == node;
    int64_t each = z->bytes / pool->size, first = each * share;
    int64_t bytes = share + 1 < pool->size ? each : z->bytes - first;
    memset(z->memory + first, 0, (size_t)bytes);
}

void weft_pool_zero(weft_pool *pool, void *memory, int64_t bytes) {
    zeroing z = {.pool = pool, .memory = memory, .bytes = bytes};
    if (pool && pool->nodes > 1 && pool->process == getpid())
        weft_pool_run(pool, pool->size, zero_share, &z);
    else
        memset(memory, 0, (size_t)bytes);
}
