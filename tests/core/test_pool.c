/* The pool runs every task once, for any number of threads and tasks, and leaves nothing behind. */
#include "core/pool.h"
#include "support/test.h"

#include <dirent.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS_MOST = 8, TASKS_MOST = 1000 };

typedef struct {
    atomic_int runs[TASKS_MOST];
    atomic_int on_thread[THREADS_MOST]; /* tasks on a thread at this moment */
    atomic_int wrong;
    int threads;
} tally;

static void count_task(void *context, int64_t task, int thread) {
    tally *t = context;
    if (task < 0 || task >= TASKS_MOST || thread < 0 || thread >= t->threads) {
        atomic_fetch_add(&t->wrong, 1);
        return;
    }
    /* Scratch memory is by thread: no two tasks may have the same number at a time. */
    if (atomic_fetch_add(&t->on_thread[thread], 1) != 0) atomic_fetch_add(&t->wrong, 1);
    atomic_fetch_add(&t->runs[task], 1);
    atomic_fetch_sub(&t->on_thread[thread], 1);
}

static void check_run(weft_pool *pool, tally *t, int64_t tasks) {
    memset(t->runs, 0, sizeof t->runs);
    weft_pool_run(pool, tasks, count_task, t);
    for (int64_t i = 0; i < TASKS_MOST; i++)
        assert_int_equal(atomic_load(&t->runs[i]), i < tasks);
    assert_int_equal(atomic_load(&t->wrong), 0);
}

TEST(test_every_task_runs_once) {
    static const int64_t counts[] = {0, 1, 2, 3, 7, 8, 9, 64, TASKS_MOST};
    for (int threads = 1; threads <= THREADS_MOST; threads++) {
        weft_pool *pool;
        assert_int_equal(weft_pool_create(threads, &pool), WEFT_OK);
        assert_int_equal(weft_pool_size(pool), threads);
        tally *t = calloc(1, sizeof *t);
        t->threads = threads;
        for (int i = 0; i < (int)(sizeof counts / sizeof counts[0]); i++)
            check_run(pool, t, counts[i]);
        free(t);
        weft_pool_destroy(pool);
    }
}

TEST(test_many_short_runs_follow_each_other) {
    for (int threads = 1; threads <= THREADS_MOST; threads++) {
        weft_pool *pool;
        assert_int_equal(weft_pool_create(threads, &pool), WEFT_OK);
        tally *t = calloc(1, sizeof *t);
        t->threads = threads;
        int64_t total = 0;
        for (int64_t run = 0; run < 300; run++) {
            weft_pool_run(pool, run % 11, count_task, t);
            /* A pause now and then, so that workers are found asleep too. */
            if (run % 100 == 99) usleep(2000);
            total += run % 11;
        }
        int64_t counted = 0;
        for (int i = 0; i < TASKS_MOST; i++)
            counted += atomic_load(&t->runs[i]);
        assert_int_equal(counted, total);
        assert_int_equal(atomic_load(&t->wrong), 0);
        free(t);
        weft_pool_destroy(pool);
    }
}

/* Two kinds of tasks, each with a context of its own that is gone after its run. */
typedef struct {
    int64_t kind, tasks;
    atomic_int wrong, runs[16];
} short_run;

static void count_kind_0(void *context, int64_t task, int thread) {
    short_run *r = context;
    (void)thread;
    if (r->kind == 0 && task < r->tasks)
        atomic_fetch_add(&r->runs[task], 1);
    else
        atomic_fetch_add(&r->wrong, 1);
}

static void count_kind_1(void *context, int64_t task, int thread) {
    short_run *r = context;
    (void)thread;
    if (r->kind == 1 && task < r->tasks)
        atomic_fetch_add(&r->runs[task], 1);
    else
        atomic_fetch_add(&r->wrong, 1);
}

/* More threads than processors, so that many come late: none may touch a run that is over. */
TEST(test_late_threads_take_nothing_of_another_run) {
    weft_pool *pool;
    assert_int_equal(weft_pool_create(24, &pool), WEFT_OK);
    for (int64_t i = 0; i < 4000; i++) {
        short_run r = {.kind = i % 2, .tasks = 2 + i % 15};
        weft_pool_run(pool, r.tasks, i % 2 ? count_kind_1 : count_kind_0, &r);
        assert_int_equal(atomic_load(&r.wrong), 0);
        for (int64_t k = 0; k < 16; k++)
            assert_int_equal(atomic_load(&r.runs[k]), k < r.tasks);
        if (i % 500 == 499) usleep(3000); /* they sleep by then */
        r.kind = 2;
    }
    weft_pool_destroy(pool);
}

static void write_square(void *context, int64_t task, int thread) {
    (void)thread;
    ((int64_t *)context)[task] = task * task;
}

TEST(test_what_tasks_write_is_seen_after_the_run) {
    weft_pool *pool;
    assert_int_equal(weft_pool_create(4, &pool), WEFT_OK);
    int64_t squares[500];
    for (int run = 0; run < 50; run++) {
        memset(squares, 0, sizeof squares);
        weft_pool_run(pool, 500, write_square, squares);
        for (int64_t i = 0; i < 500; i++)
            assert_int_equal(squares[i], i * i);
    }
    weft_pool_destroy(pool);
}

typedef struct {
    atomic_int begun, ended;
} pair;

/* Ends when both have begun, on two threads then; that of a worker ends late. */
static void wait_for_the_other(void *context, int64_t task, int thread) {
    pair *p = context;
    (void)task;
    atomic_fetch_add(&p->begun, 1);
    for (int i = 0; atomic_load(&p->begun) < 2 && i < 200000; i++)
        usleep(500);
    if (thread > 0) usleep(50000);
    atomic_fetch_add(&p->ended, 1);
}

TEST(test_a_run_ends_after_its_slowest_task) {
    weft_pool *pool;
    assert_int_equal(weft_pool_create(2, &pool), WEFT_OK);
    static pair p; /* a worker that is still at it must not write into a stack */
    weft_pool_run(pool, 2, wait_for_the_other, &p);
    assert_int_equal(atomic_load(&p.begun), 2);
    assert_int_equal(atomic_load(&p.ended), 2);
    weft_pool_destroy(pool);
}

static int threads_of_process(void) {
    DIR *dir = opendir("/proc/self/task");
    int n = 0;
    for (struct dirent *e; dir && (e = readdir(dir));)
        n += e->d_name[0] != '.';
    if (dir) closedir(dir);
    return n;
}

TEST(test_destroying_a_pool_ends_its_threads) {
    int before = threads_of_process();
    if (before == 0) skip();
    for (int round = 0; round < 40; round++) {
        weft_pool *pool;
        int threads = 1 + round % THREADS_MOST;
        assert_int_equal(weft_pool_create(threads, &pool), WEFT_OK);
        assert_int_equal(threads_of_process(), before + threads - 1);
        int64_t squares[16];
        if (round % 2) weft_pool_run(pool, 16, write_square, squares);
        weft_pool_destroy(pool);
        /* A joined thread may be listed for an instant longer. */
        for (int wait = 0; wait < 60000 && threads_of_process() > before; wait++)
            usleep(1000);
        assert_int_equal(threads_of_process(), before);
    }
    weft_pool_destroy(NULL);
}

TEST(test_zero_takes_the_processors_of_the_process) {
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    weft_pool *pool;
    assert_int_equal(weft_pool_create(0, &pool), WEFT_OK);
    assert_int_equal(weft_pool_size(pool), CPU_COUNT(&set));
    weft_pool_destroy(pool);
}

TEST(test_impossible_sizes_are_refused) {
    static const int sizes[] = {-1, 1 << 20};
    for (int i = 0; i < 2; i++) {
        weft_pool *pool = (weft_pool *)&pool;
        assert_int_equal(weft_pool_create(sizes[i], &pool), WEFT_EINPUT);
        assert_null(pool);
        assert_non_null(strstr(weft_error_message(), "threads"));
    }
}

RUN_TESTS(NULL, NULL)
