/* A ring of batches between one worker and one taker.
 *
 * The worker is ahead by two batches; the ring's third slot is the one that the taker holds. Batches
 * are numbered from the start, and batch n is in slot n modulo the ring. `made` of them exist and
 * `released` of them are over with; the worker waits while the difference fills the ring. */
#include "data/prefetch.h"

#include <signal.h>
#include <stdatomic.h>

enum { SLOTS = 3, MESSAGE_ROOM = 1024 };

struct weft_prefetch {
    const weft_dataset *dataset;
    weft_prefetch_options options;
    weft_batch ring[SLOTS];
    bool working; /* there is a worker */
    pthread_t worker;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t made, released;
    atomic_bool stop;
    weft_status status; /* of the batch `made`, once that failed; nothing is made after it */
    char message[MESSAGE_ROOM];
    int64_t next; /* the taker's: the batch to take */
};

/* Makes batch `number`. What an ending leaves half made is never taken. */
static weft_status make_batch(weft_prefetch *p, int64_t number) {
    const weft_prefetch_options *o = &p->options;
    weft_batch *b = &p->ring[number % SLOTS];
    int64_t part = o->skip + number;
    b->iteration = o->iteration + (uint32_t)(part / o->parts);
    b->part = part % o->parts;
    for (int64_t s = 0; s < o->sequences; s++) {
        if (atomic_load(&p->stop)) break;
        int64_t at = s * o->time, place = b->part * o->sequences + s;
        if (o->group) place = place / o->group * o->step + place % o->group;
        WEFT_TRY(weft_dataset_fill(p->dataset, o->split, o->seed, b->iteration,
                                   (uint32_t)(o->first + place), o->time, b->tokens + at,
                                   b->targets + at, b->scored ? b->scored + at : NULL));
    }
    return WEFT_OK;
}

static void *work(void *context) {
    weft_prefetch *p = context;
    WEFT_LOCK(&p->lock);
    while (!p->stop && p->status == WEFT_OK) {
        if (p->made - p->released == SLOTS) {
            pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        weft_status status = make_batch(p, p->made);
        pthread_mutex_lock(&p->lock);
        p->status = status;
        p->made += status == WEFT_OK;
        if (status != WEFT_OK) snprintf(p->message, sizeof p->message, "%s", weft_error_message());
        pthread_cond_broadcast(&p->changed);
    }
    return NULL;
}

weft_status weft_prefetch_open(const weft_dataset *d, const weft_prefetch_options *options,
                               weft_prefetch **out) {
    *out = NULL;
    const weft_prefetch_options *o = options;
    if (o->sequences < 1 || o->parts < 1 || o->time < 1 ||
        o->time > INT64_MAX / 64 / o->sequences || o->parts > UINT32_MAX / o->sequences)
        return WEFT_BAD_INPUT("prefetch: %lld x %lld sequences of %lld tokens", (long long)o->parts,
                              (long long)o->sequences, (long long)o->time);
    WEFT_NEW(weft_prefetch, p, weft_prefetch_close, "no memory for batches");
    *p = (weft_prefetch){.dataset = d, .options = *options};
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    size_t count = (size_t)(o->sequences * o->time);
    for (weft_batch *b = p->ring; b < p->ring + SLOTS; b++) {
        b->tokens = malloc(count * sizeof *b->tokens);
        b->targets = malloc(count * sizeof *b->targets);
        b->scored = o->scored ? malloc(count) : NULL;
        if (!b->tokens || !b->targets || (o->scored && !b->scored))
            return weft_fail(WEFT_ENOMEM, "no memory for %d batches of %lld x %lld tokens", SLOTS,
                             (long long)o->sequences, (long long)o->time);
    }
    /* Signals are for the thread that trains. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&p->worker, NULL, work, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) return weft_fail(WEFT_ENOMEM, "cannot start a thread for data: %s", strerror(error));
    p->working = true;
    return weft_hand(&p, out);
}

weft_status weft_prefetch_next(weft_prefetch *p, const weft_batch **batch) {
    *batch = NULL;
    WEFT_LOCK(&p->lock);
    p->released = p->next;
    pthread_cond_broadcast(&p->changed);
    while (p->made <= p->next && p->status == WEFT_OK)
        pthread_cond_wait(&p->changed, &p->lock);
    if (p->made <= p->next) return weft_fail(p->status, "%s", p->message);
    *batch = &p->ring[p->next++ % SLOTS];
    return WEFT_OK;
}

void weft_prefetch_close(weft_prefetch *p) {
    if (!p) return;
    if (p->working) {
        pthread_mutex_lock(&p->lock);
        p->stop = true;
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
        pthread_join(p->worker, NULL);
    }
    for (int i = 0; i < SLOTS; i++)
        WEFT_FREE(p->ring[i].tokens, p->ring[i].targets, p->ring[i].scored);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
