/* A device without one: the CPU's kernels over memory that only upload and download may touch. Runs are
 * over at once, but are said to be done part by part, as a GPU's are; what is put into a queue is done
 * when it is waited for, and not before. Whoever reads too early reads something else. */
#ifndef WEFT_TESTS_REMOTE_H
#define WEFT_TESTS_REMOTE_H

#include "core/exec.h"

const weft_backend *remote_backend(void);

/* A call of a queue, and the queue, which `queue` is in what core/rows.h calls so. */
typedef struct remote_call {
    void (*run)(const struct remote_call *c);
    void *to;
    const void *from;
    weft_dtype dtype;
    bool add;
    float factor;
    int64_t n; /* numbers; of a copy or a message bytes */
    int rank;  /* of a message, the other one */
} remote_call;
typedef struct {
    remote_call *calls;
    int64_t n, room;
} remote_queue;
static inline void remote_put(void *queue, remote_call c) {
    remote_queue *q = queue;
    if (q->n == q->room) {
        q->room = 2 * q->room + 64;
        q->calls = realloc(q->calls, (size_t)q->room * sizeof *q->calls);
        if (!q->calls) abort();
    }
    q->calls[q->n++] = c;
}

/* Copies to the host that were asked for while a run was said to be under way, and all others. */
int64_t remote_early_copies(void);
int64_t remote_late_copies(void);

/* The n-th watched run from now on fails when all of it is done. */
void remote_fail(int n);

#endif
