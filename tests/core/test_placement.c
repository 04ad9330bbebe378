/* Where a pool's threads run and what memory they write first. Threads tell where they are held to by
 * tasks of which each waits for all others: every thread then has one. */
#include "core/pool.h"
#include "support/test.h"
#include "support/two_nodes.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 64, PAGES = 64 /* of a share */ };

typedef struct {
    int threads;
    atomic_int begun;
    int task[MOST];       /* that a thread had */
    cpu_set_t held[MOST]; /* where it may run */
    int64_t faults[MOST]; /* pages it was the first to touch, in its life */
} roll;

static void answer(void *context, int64_t task, int thread) {
    roll *r = context;
    struct rusage used;
    atomic_fetch_add(&r->begun, 1);
    while (atomic_load(&r->begun) < r->threads)
        usleep(50);
    r->task[thread] = (int)task;
    sched_getaffinity(0, sizeof r->held[thread], &r->held[thread]);
    r->faults[thread] = getrusage(RUSAGE_THREAD, &used) == 0 ? used.ru_minflt : 0;
}

static void call_roll(weft_pool *pool, roll *r) {
    memset(r, 0, sizeof *r);
    r->threads = weft_pool_size(pool);
    assert_true(r->threads <= MOST);
    weft_pool_run(pool, r->threads, answer, r);
}

static cpu_set_t own_set(void) {
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    return set;
}

enum { CORES = 1, ALL = 2, WRONG = 4 };

/* Where the workers of a pool are held to in a child that has this mask: to their cores, to all of
 * it, or both where that is the same. The caller's thread must be as it was. */
static int held_under(const cpu_set_t *mask, int threads, const char *pin) {
    pid_t child = fork();
    if (child == 0) {
        static roll r;
        weft_pool *pool;
        weft_topology t;
        setenv("WEFT_PIN", pin, 1);
        setenv("WEFT_LOG", "error", 1);
        if (sched_setaffinity(0, sizeof *mask, mask) != 0) _exit(WRONG);
        if (weft_topology_read(WEFT_TOPOLOGY_ROOT, mask, &t) != WEFT_OK) _exit(WRONG);
        if (weft_pool_create(threads, &pool) != WEFT_OK) _exit(WRONG);
        call_roll(pool, &r);
        bool cores = threads <= t.n, all = true;
        for (int i = 1; i < threads; i++) {
            cpu_set_t core;
            if (cores) weft_pin_place(WEFT_PIN_CORES, i, &t, &core);
            cores = cores && CPU_EQUAL(&r.held[i], &core);
            all = all && CPU_EQUAL(&r.held[i], mask);
        }
        _exit(CPU_EQUAL(&r.held[0], mask) ? cores * CORES + all * ALL : WRONG);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : WRONG;
}

TEST(test_workers_are_held_to_cores_of_the_mask) {
    cpu_set_t mask = own_set();
    if (CPU_COUNT(&mask) < 2) {
        print_message("skipped: one processor\n");
        skip();
    }
    for (int cpu = 0; CPU_COUNT(&mask) >= 2; cpu++) {
        int n = CPU_COUNT(&mask);
        if (n <= MOST) assert_int_equal(held_under(&mask, n, "cores") & (CORES | WRONG), CORES);
        CPU_CLR((size_t)cpu, &mask); /* and again without the first */
    }
}

TEST(test_nothing_is_held_unless_it_is_wanted_and_fits) {
    cpu_set_t mask = own_set();
    int n = CPU_COUNT(&mask);
    if (n >= MOST) skip();
    assert_int_equal(held_under(&mask, n + 1, "cores"), ALL);
    assert_int_equal(held_under(&mask, n + 1, "nodes"), ALL);
    assert_int_equal(held_under(&mask, n, "none") & (ALL | WRONG), ALL);
}

/* Each thread's first task; none takes a second before all have one. */
static void note_first(void *context, int64_t task, int thread) {
    roll *r = context;
    if (r->task[thread] >= 0) return;
    r->task[thread] = (int)task;
    atomic_fetch_add(&r->begun, 1);
    while (atomic_load(&r->begun) < r->threads)
        usleep(50);
}

TEST(test_threads_take_their_own_nodes_tasks_first) {
    enum { THREADS = 4, TASKS = 16, RUNS = 50 };
    static roll r;
    weft_pool *pool;
    int own = 0;
    assert_int_equal(two_nodes_pool(THREADS, &pool), WEFT_OK);
    for (int run = 0; run < RUNS; run++) {
        memset(&r, 0, sizeof r);
        memset(r.task, -1, sizeof r.task);
        r.threads = THREADS;
        weft_pool_run(pool, TASKS, note_first, &r);
        for (int i = 0; i < THREADS; i++)
            own += r.task[i] / (TASKS / 2) == i % 2;
    }
    /* A thread that looks while a run is being published may take another node's. */
    assert_in_range(own, THREADS * RUNS * 9 / 10, THREADS * RUNS);
    weft_pool_destroy(pool);
}

static void add_number(void *context, int64_t task, int thread) {
    (void)thread;
    atomic_fetch_add((atomic_int_least64_t *)context, task + 1);
}

TEST(test_every_task_runs_on_any_number_of_nodes) {
    for (int threads = 1; threads <= 5; threads++) {
        weft_pool *pool;
        assert_int_equal(two_nodes_pool(threads, &pool), WEFT_OK);
        for (int64_t tasks = 0; tasks < 200; tasks++) {
            atomic_int_least64_t sum = 0;
            weft_pool_run(pool, tasks, add_number, &sum);
            assert_int_equal(atomic_load(&sum), tasks * (tasks + 1) / 2);
        }
        weft_pool_destroy(pool);
    }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool watched = true;
#else
static const bool watched = false;
#endif

static unsigned char *fresh_pages(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    madvise(memory, bytes, MADV_NOHUGEPAGE);
    return memory;
}

/* Of share k some pages are written before, so that whoever zeroes it is told by how many it is the
 * first to touch: each node's threads have shares beside each other. */
TEST(test_each_thread_is_the_first_to_write_its_share) {
    enum { THREADS = 4, STEP = 12 };
    static const int share_of[THREADS] = {0, 2, 1, 3}; /* nodes 0, 1, 0, 1 */
    static roll before, after;
    size_t page = (size_t)sysconf(_SC_PAGE_SIZE), share = PAGES * page;
    unsigned char *memory = fresh_pages(THREADS * share);
    for (size_t k = 0; k < THREADS; k++)
        memset(memory + k * share, 0xff, k * STEP * page);
    weft_pool *pool;
    assert_int_equal(two_nodes_pool(THREADS, &pool), WEFT_OK);
    call_roll(pool, &before);
    call_roll(pool, &before);
    weft_pool_zero(pool, memory, (int64_t)(THREADS * share));
    call_roll(pool, &after);
    for (int i = 0; i < THREADS; i++) {
        int64_t faults = after.faults[i] - before.faults[i], want = PAGES - share_of[i] * STEP;
        if (!watched && llabs(faults - want) > STEP / 2 - 1)
            fail_msg("thread %d was the first on %lld pages, not %lld", i, (long long)faults,
                     (long long)want);
    }
    for (size_t i = 0; i < THREADS * share; i++)
        if (memory[i]) fail_msg("byte %zu is not zero", i);
    munmap(memory, THREADS * share);
    weft_pool_destroy(pool);
    if (watched)
        print_message("a sanitizer touches pages of its own: only the zeros are looked at\n");
}

TEST(test_any_number_of_bytes_is_zeroed_and_no_more) {
    for (int threads = 1; threads <= 3; threads++) {
        weft_pool *pool = NULL;
        if (threads > 1) assert_int_equal(two_nodes_pool(threads, &pool), WEFT_OK);
        for (int64_t bytes = 0; bytes < 20; bytes++) {
            unsigned char memory[21];
            memset(memory, 0xff, sizeof memory);
            weft_pool_zero(pool, memory, bytes);
            for (int64_t i = 0; i < 21; i++)
                assert_int_equal(memory[i], i < bytes ? 0 : 0xff);
        }
        weft_pool_destroy(pool);
    }
}

/* Threads do not follow a fork: the child's zeros do not wait for them. */
TEST(test_a_forked_process_zeroes_alone) {
    weft_pool *pool;
    assert_int_equal(two_nodes_pool(4, &pool), WEFT_OK);
    pid_t child = fork();
    if (child == 0) {
        unsigned char memory[100];
        alarm(300); /* it hangs */
        memset(memory, 0xff, sizeof memory);
        weft_pool_zero(pool, memory, sizeof memory);
        for (size_t i = 0; i < sizeof memory; i++)
            if (memory[i]) _exit(1);
        _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    weft_pool_destroy(pool);
}

/* The node that a page lies on, as the system says. */
static int node_of(void *page) {
    int node = -1;
    return syscall(SYS_move_pages, 0, 1UL, &page, NULL, &node, 0) == 0 ? node : -1;
}

TEST(test_shares_lie_on_their_nodes) {
    cpu_set_t mask = own_set();
    weft_topology t;
    weft_pool *pool = NULL;
    assert_int_equal(weft_topology_read(WEFT_TOPOLOGY_ROOT, &mask, &t), WEFT_OK);
    int nodes = t.nodes, threads = t.n;
    if (nodes > 1)
        assert_int_equal(weft_pool_create_on(threads, WEFT_PIN_NODES, &t, &pool), WEFT_OK);
    weft_topology_free(&t);
    if (nodes == 1) {
        print_message("skipped: the machine has one node\n");
        skip();
    }
    size_t page = (size_t)sysconf(_SC_PAGE_SIZE), all = (size_t)threads * PAGES;
    unsigned char *memory = fresh_pages(all * page);
    weft_pool_zero(pool, memory, (int64_t)(all * page));
    /* The last share is a worker's, and so is the last but one; the first is the caller's, which is
     * not held. */
    int last = node_of(memory + (all - 1) * page), first = node_of(memory + (PAGES + 1) * page);
    if (last < 0) skip(); /* the question is refused */
    assert_int_not_equal(first, last);
    for (size_t i = all - PAGES; i < all; i++)
        assert_int_equal(node_of(memory + i * page), last);
    munmap(memory, all * page);
    weft_pool_destroy(pool);
}

RUN_TESTS(NULL, NULL)
