/* The thread that talks. Jobs are a queue; those begun are polled until all their requests are done.
 * Between polls it sleeps for a moment, so that those who compute have the processors; where its own
 * working thread waits, it looks more often, as far as ranks do not share processors.
 *
 * There is no lock between the two. A working thread that is stopped, at whatever instruction, keeps the
 * other one from nothing: heartbeats go on, and say that it hangs. */
#include "comm/comm.h"

#include "base/clock.h"
#include "comm/launch.h"

#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/prctl.h>

enum {
    WHY_ROOM = 480,
    TAGS = 30000,       /* MPI promises 32767 */
    SPINS = 200,        /* polls before the first sleep */
    LEAVE_SECONDS = 5,  /* the longest that a call of MPI's may take after a fault */
    SLEEP_LEAST = 2000, /* nanoseconds; */
    SLEEP_MOST = 50000  /* without a way of the kernel's, large messages move only at a poll */
};
static const double TELL_SECONDS = 0.3; /* to let others hear of a fault */
static const double MEET_LEAST = 20;    /* seconds, for all ranks to find each other */
static const double LOOK_SECONDS = 1;   /* to find out whose it is */
static const double IDLE_SECONDS = 0.02;

/* By what one thread wakes another: a semaphore that is posted only where somebody listens. Whoever
 * listens first says so, then looks at what it waits for, then sleeps. Whoever changes that rings
 * afterwards; both by sequentially consistent atomics, so that one of them sees the other. A bell may
 * ring without need: the listener looks again. */
typedef struct {
    sem_t rung;
    atomic_bool heard;
} bell;

static void ring(bell *b) {
    if (atomic_load(&b->heard)) sem_post(&b->rung);
}

/* Until it rings, a signal comes, or so many seconds are over. */
static void sleep_by(bell *b, double seconds) {
    struct timespec until;
    time_t whole = (time_t)seconds;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += whole;
    until.tv_nsec += (long)((seconds - (double)whole) * 1e9);
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    sem_timedwait(&b->rung, &until);
}

struct weft_comm {
    const weft_mpi *mpi;
    int rank, size, local_rank, local_size;
    _Atomic(weft_watch *) watch; /* NULL until the ranks know each other */
    pthread_t thread;
    bell changed;                   /* for the working thread: a job is done, or it failed */
    bell work;                      /* for the talking one */
    _Atomic(weft_comm_job *) queue; /* the last one first */
    weft_comm_job *active;          /* the talking thread's */
    atomic_bool started, waiting, closing;
    atomic_bool ending, failed; /* somebody has the word; `why` is said */
    atomic_bool alone;          /* no rank shares its processor with another one */
    atomic_bool away;           /* the working thread waits elsewhere */
    atomic_bool left;           /* the talking thread touches nothing any more */
    bool agreed;                /* all ranks know that the run is over */
    double meet_by;             /* when the ranks must have found each other; 0: any time */
    char why[WHY_ROOM];
};

static void nap(long nanoseconds) {
    struct timespec t = {.tv_nsec = nanoseconds};
    nanosleep(&t, NULL);
}

#define NUMBER(name, alone)                                                                        \
    int weft_comm_##name(const weft_comm *c) {                                                     \
        return c ? c->name : (alone);                                                              \
    }
NUMBER(rank, 0)
NUMBER(size, 1)
NUMBER(local_rank, 0)
NUMBER(local_size, 1)

/* The run is over: the working thread takes the error where it waits, else this one ends the
 * process. */
static void end_run(weft_comm *c, const char *why) {
    if (atomic_exchange(&c->ending, true)) return;
    snprintf(c->why, sizeof c->why, "%s", why);
    atomic_store(&c->failed, true);
    bool waiting = atomic_load(&c->waiting);
    ring(&c->changed);
    if (waiting) return;
    fprintf(stderr, "weft: rank %d of %d ends: %s\n", c->rank, c->size, why);
    _exit(1);
}

static void tell_all(weft_comm *c, const char *why) {
    double start = weft_clock();
    weft_watch_tell(c->watch, why);
    while (weft_clock() - start < TELL_SECONDS) {
        char ignored[WHY_ROOM];
        weft_watch_look(c->watch, weft_clock(), false, ignored, sizeof ignored);
        nap(SLEEP_MOST);
    }
}

/* An error of MPI's mostly is another rank's end, seen from here: whoever is gone is named. */
static void fail_mpi(weft_comm *c, int error) {
    char text[256], why[WHY_ROOM];
    weft_watch_state verdict = WEFT_WATCH_WELL;
    double start = weft_clock();
    c->mpi->explain(error, text, sizeof text);
    while (c->watch && verdict == WEFT_WATCH_WELL && weft_clock() - start < LOOK_SECONDS) {
        verdict = weft_watch_look(c->watch, weft_clock(), true, why, sizeof why);
        nap(SLEEP_MOST);
    }
    if (verdict == WEFT_WATCH_WELL)
        snprintf(why, sizeof why, "MPI failed on rank %d: %s", c->rank, text);
    if (c->watch && verdict != WEFT_WATCH_TOLD) tell_all(c, why);
    end_run(c, why);
}

static int start_job(weft_comm *c, weft_comm_job *job) {
    if (job->kind == WEFT_JOB_GATHER)
        return c->mpi->gather(job->data, job->part_bytes, job->part_offsets, job->requests);
    if (job->kind == WEFT_JOB_BROADCAST)
        return c->mpi->broadcast(job->data, job->bytes, job->requests);
    if (job->kind == WEFT_JOB_SUM)
        return c->mpi->sum(job->data, job->count, job->is_double, job->requests);
    int error = 0, tag = (int)(job->tag % TAGS);
    for (int64_t i = 0; !error && i < job->count; i++) {
        const weft_transfer *t = &job->transfers[i];
        error = t->send ? c->mpi->send(t->data, t->bytes, t->rank, tag, &job->requests[i])
                        : c->mpi->receive(t->data, t->bytes, t->rank, tag, &job->requests[i]);
    }
    return error;
}

static bool start_jobs(weft_comm *c) {
    weft_comm_job *last = atomic_exchange(&c->queue, NULL), *job = NULL;
    while (last) { /* the first one first */
        weft_comm_job *before = last->next;
        last->next = job;
        job = last;
        last = before;
    }
    bool any = job != NULL;
    while (job) {
        weft_comm_job *next = job->next;
        int error = start_job(c, job);
        if (error) {
            fail_mpi(c, error);
            return true;
        }
        job->next = c->active;
        c->active = job;
        job = next;
    }
    return any;
}

/* Looks at a job's requests, from the last one on, up to one that is not done: each look lets MPI move the
 * data of all of them, and costs as much. */
static bool poll_jobs(weft_comm *c) {
    bool any = false;
    for (weft_comm_job **at = &c->active; *at;) {
        weft_comm_job *job = *at;
        int error = 0;
        for (int done; job->pending > 0; job->pending--, any = true) {
            error = c->mpi->test(&job->requests[job->pending - 1], &done);
            if (error || !done) break;
        }
        if (error) {
            fail_mpi(c, error);
            return true;
        }
        if (job->pending > 0) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        atomic_store(&job->done, true);
        ring(&c->changed);
        any = true;
    }
    return any;
}

/* While the working thread computes, messages have time, and looking for them takes the processor from
 * somebody. While it waits, its processor is free, unless ranks share it. */
static void rest(weft_comm *c, bool busy, int *idle) {
    *idle = busy ? 0 : *idle + 1;
    if (!c->active) {
        atomic_store(&c->work.heard, true);
        if (!atomic_load(&c->queue) && !atomic_load(&c->closing)) sleep_by(&c->work, IDLE_SECONDS);
        atomic_store(&c->work.heard, false);
        *idle = 0;
        return;
    }
    if (busy) return;
    long grown = SLEEP_LEAST * ((long)*idle - SPINS);
    bool waits = atomic_load(&c->waiting);
    if (waits && (grown <= 0 || atomic_load(&c->alone)))
        sched_yield();
    else
        nap(!waits || grown > SLEEP_MOST ? SLEEP_MOST : grown);
}

/* Seconds for all ranks to find each other; 0: any time. Before they have, no rank is watched. */
static double meet_limit(void) {
    double limit = 1.5 * weft_watch_limit();
    return limit > 0 && limit < MEET_LEAST ? MEET_LEAST : limit;
}

static bool is_late(const weft_comm *c) {
    return c->meet_by > 0 && weft_clock() > c->meet_by;
}

static void describe_late(char *why, size_t room) {
    snprintf(why, room,
             "not all ranks have come within %.0f s: one hangs, or cannot be reached; where that "
             "takes longer, WEFT_HEARTBEAT=SECONDS sets two thirds of it (0: any time)",
             meet_limit());
}

static void watch_ranks(weft_comm *c) {
    char why[WHY_ROOM];
    bool waiting = atomic_load(&c->waiting) || atomic_load(&c->away);
    weft_watch *watch = atomic_load(&c->watch);
    if (atomic_load(&c->failed)) return;
    if (!watch && is_late(c)) {
        describe_late(why, sizeof why);
        end_run(c, why);
    }
    if (!watch) return;
    weft_watch_state verdict = weft_watch_look(watch, weft_clock(), waiting, why, sizeof why);
    if (verdict == WEFT_WATCH_FOUND) tell_all(c, why);
    if (verdict != WEFT_WATCH_WELL) end_run(c, why);
}

bool weft_comm_is_over(weft_comm *c) {
    return atomic_load(&c->failed);
}

static bool is_over(weft_comm *c) {
    if (atomic_load(&c->failed)) return true;
    return atomic_load(&c->closing) && !atomic_load(&c->queue) && !c->active;
}

static void *talk(void *context) {
    weft_comm *c = context;
    int idle = 0, error = c->mpi->start(&c->rank, &c->size);
    prctl(PR_SET_TIMERSLACK, SLEEP_LEAST, 0L, 0L, 0L);
    if (error) {
        c->mpi->explain(error, c->why, sizeof c->why);
        atomic_store(&c->failed, true);
    }
    atomic_store(&c->started, true);
    ring(&c->changed);
    while (!is_over(c)) {
        bool busy = start_jobs(c);
        if (!is_over(c)) busy = poll_jobs(c) || busy;
        watch_ranks(c);
        rest(c, busy, &idle);
    }
    /* After a fault not all ranks would come to finish. */
    if (!weft_comm_is_over(c)) c->mpi->finish();
    atomic_store(&c->left, true);
    ring(&c->changed);
    return NULL;
}

/* Signals are for the thread that works. */
static weft_status start_thread(weft_comm *c) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&c->thread, NULL, talk, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) return weft_fail(WEFT_ENOMEM, "cannot start a thread for MPI: %s", strerror(error));
    /* A rank that does not come keeps the others inside MPI, and nothing can call them back. */
    char why[WHY_ROOM];
    atomic_store(&c->changed.heard, true);
    while (!atomic_load(&c->started) && !is_late(c))
        sleep_by(&c->changed, 1);
    atomic_store(&c->changed.heard, false);
    if (!atomic_load(&c->started)) {
        describe_late(why, sizeof why);
        fprintf(stderr, "weft: this rank ends: %s\n", why);
        _exit(1);
    }
    return weft_comm_is_over(c) ? weft_fail(WEFT_EMISSING, "MPI did not start: %s", c->why)
                                : WEFT_OK;
}

static weft_status meet(weft_comm *c) {
    weft_rank_place own = weft_watch_place();
    WEFT_ROOM(weft_rank_place, all, c->size, "no memory for %d ranks", c->size);
    WEFT_TRY(weft_comm_gather(c, &own, sizeof own, all));
    for (int i = 0; i < c->size; i++) {
        bool here = strcmp(all[i].machine, own.machine) == 0;
        c->local_rank += here && i < c->rank;
        c->local_size += here;
    }
    weft_watch *watch = NULL;
    WEFT_TRY(weft_watch_open(c->mpi, c->rank, c->size, all, &watch));
    cpu_set_t own_set; /* the processors that this process may use */
    CPU_ZERO(&own_set);
    bool known = sched_getaffinity(0, sizeof own_set, &own_set) == 0;
    atomic_store(&c->alone, c->local_size <= (known ? CPU_COUNT(&own_set) : 1));
    atomic_store(&c->watch, watch);
    return WEFT_OK;
}

weft_status weft_comm_open(weft_comm **out) {
    bool several;
    *out = NULL;
    WEFT_TRY(weft_launch_look(&several));
    if (!several) return WEFT_OK;
    weft_comm *c = calloc(1, sizeof *c);
    if (!c) return weft_fail(WEFT_ENOMEM, "no memory for MPI");
    if (meet_limit() > 0) c->meet_by = weft_clock() + meet_limit();
    sem_init(&c->changed.rung, 0, 0);
    sem_init(&c->work.rung, 0, 0);
    /* On an error its memory stays: the process is about to end, and the thread with it. */
    WEFT_TRY(weft_launch_open(&c->mpi));
    WEFT_TRY(start_thread(c));
    WEFT_TRY(meet(c));
    return weft_hand(&c, out);
}

void weft_comm_close(weft_comm *c) {
    if (!c) return;
    bool ignored;
    if (!weft_comm_is_over(c)) {
        weft_watch_leave(c->watch);
        weft_comm_any(c, false, &ignored);
    }
    atomic_store(&c->closing, true);
    ring(&c->work);
    pthread_join(c->thread, NULL);
    weft_watch_close(c->watch);
    sem_destroy(&c->changed.rung);
    sem_destroy(&c->work.rung);
    free(c);
}

void weft_comm_away(weft_comm *c, bool away) {
    atomic_store(&c->away, away);
}

void weft_comm_fail(weft_comm *c, const char *message) {
    char why[WHY_ROOM];
    if (!c || c->agreed) return;
    weft_watch_describe(c->watch, c->rank, ": ", message, why, sizeof why);
    if (weft_comm_is_over(c)) return;
    weft_watch_resign(c->watch, why);
    double start = weft_clock();
    while (weft_clock() - start < TELL_SECONDS)
        nap(SLEEP_MOST);
    if (!atomic_exchange(&c->ending, true)) {
        snprintf(c->why, sizeof c->why, "%s", why);
        atomic_store(&c->failed, true);
    }
    ring(&c->work);
    /* Until jobs under way are nobody's: whoever made them may free them then. */
    double by = weft_clock() + LEAVE_SECONDS;
    atomic_store(&c->changed.heard, true);
    while (!atomic_load(&c->left) && weft_clock() < by)
        sleep_by(&c->changed, by - weft_clock());
    atomic_store(&c->changed.heard, false);
}

weft_status weft_comm_begin(weft_comm *c, weft_comm_job *job) {
    int n = job->kind == WEFT_JOB_EXCHANGE ? (int)job->count : 1;
    job->requests = malloc(((size_t)n + 1) * sizeof *job->requests);
    if (!job->requests) return weft_fail(WEFT_ENOMEM, "no memory for a message");
    job->pending = n;
    atomic_store(&job->done, false);
    job->next = atomic_load(&c->queue);
    while (!atomic_compare_exchange_weak(&c->queue, &job->next, job))
        continue;
    ring(&c->work);
    return WEFT_OK;
}

weft_status weft_comm_wait(weft_comm *c, weft_comm_job *job) {
    atomic_store(&c->waiting, true);
    atomic_store(&c->changed.heard, true);
    while (!atomic_load(&job->done) && !atomic_load(&c->failed))
        sleep_by(&c->changed, 1);
    atomic_store(&c->changed.heard, false);
    atomic_store(&c->waiting, false);
    bool done = atomic_load(&job->done);
    /* After a fault the library may still write into what it was given. */
    if (!done) return weft_fail(WEFT_EIO, "%s", c->why);
    free(job->requests);
    job->requests = NULL;
    return WEFT_OK;
}

typedef struct {
    int status;
    char message[WHY_ROOM];
} rank_status;

weft_status weft_comm_agree(weft_comm *c, weft_status own) {
    if (!c || weft_comm_is_over(c)) return own;
    rank_status mine = {.status = (int)own};
    if (own != WEFT_OK) snprintf(mine.message, sizeof mine.message, "%s", weft_error_message());
    rank_status *all = weft_message_memory((size_t)c->size, sizeof *all);
    if (!all) return weft_fail(WEFT_ENOMEM, "no memory for a message");
    weft_status gathered = weft_comm_gather(c, &mine, sizeof mine, all), status = gathered;
    for (int i = 0; status == WEFT_OK && i < c->size; i++) {
        char why[WHY_ROOM + 128];
        if (all[i].status == WEFT_OK) continue;
        weft_watch_describe(c->watch, i, ": ", all[i].message, why, sizeof why);
        status = weft_fail((weft_status)all[i].status, "%s", why);
        c->agreed = true;
    }
    weft_message_done(all, gathered);
    return status;
}
