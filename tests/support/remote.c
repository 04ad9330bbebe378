/* A queue is a list of calls. */
#include "remote.h"

#include "core/rows.h"
#include "cpu/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    enum { ADD, TAKE, COPY, SCALE } kind;
    void *to;
    const void *from;
    weft_dtype dtype;
    bool add;
    float factor;
    int64_t n; /* numbers; COPY: bytes */
} call;

typedef struct {
    call *calls;
    int64_t n, room;
} queue;

static bool under_way;
static int64_t early, late;
static int fails_in; /* watched runs; 0: never */

static weft_status queue_open(void **out) {
    *out = calloc(1, sizeof(queue));
    return *out ? WEFT_OK : weft_fail(WEFT_ENOMEM, "no memory for a queue");
}

static void queue_close(void *context) {
    queue *q = context;
    free(q->calls);
    free(q);
}

static void put_call(queue *q, call c) {
    if (q->n == q->room) {
        q->room = 2 * q->room + 64;
        q->calls = realloc(q->calls, (size_t)q->room * sizeof *q->calls);
        if (!q->calls) abort();
    }
    q->calls[q->n++] = c;
}

static void put_add(void *q, float *to, const float *from, int64_t n) {
    put_call(q, (call){.kind = ADD, .to = to, .from = from, .n = n});
}

static void put_take(void *q, float *to, const void *from, weft_dtype dtype, bool add, int64_t n) {
    put_call(q, (call){.kind = TAKE, .to = to, .from = from, .dtype = dtype, .add = add, .n = n});
}

static void put_copy(void *q, float *to, const float *from, int64_t n) {
    put_call(q, (call){.kind = COPY, .to = to, .from = from, .n = 4 * n});
}

static void put_scale(void *q, float *data, float factor, int64_t n) {
    put_call(q, (call){.kind = SCALE, .to = data, .factor = factor, .n = n});
}

static void put_fetch(void *q, void *host, const void *from, int64_t bytes) {
    early += under_way;
    late += !under_way;
    put_call(q, (call){.kind = COPY, .to = host, .from = from, .n = bytes});
}

static void put_put(void *q, void *to, const void *host, int64_t bytes) {
    put_call(q, (call){.kind = COPY, .to = to, .from = host, .n = bytes});
}

static float number_at(const call *c, int64_t i) {
    if (!c->from) return 0;
    if (c->kind == TAKE && c->dtype == WEFT_BF16)
        return weft_bf16_to_float(((const uint16_t *)c->from)[i]);
    return ((const float *)c->from)[i];
}

static void do_call(const call *c) {
    float *to = c->to;
    if (c->kind == COPY) memcpy(c->to, c->from, (size_t)c->n);
    for (int64_t i = 0; c->kind != COPY && i < c->n; i++) {
        if (c->kind == SCALE)
            to[i] *= c->factor;
        else if (c->kind == ADD || (c->add && c->from))
            to[i] += number_at(c, i);
        else if (!c->add)
            to[i] = number_at(c, i);
    }
}

static weft_status queue_wait(void *context) {
    queue *q = context;
    for (int64_t i = 0; i < q->n; i++)
        do_call(&q->calls[i]);
    q->n = 0;
    return WEFT_OK;
}

static void say_name(char *text, size_t room) {
    snprintf(text, room, "remote");
}

static void *take_memory(int64_t bytes) {
    return malloc((size_t)bytes);
}

static const weft_row_backend rows = {
    .open = queue_open,
    .close = queue_close,
    .add = put_add,
    .take = put_take,
    .copy = put_copy,
    .scale = put_scale,
    .fetch = put_fetch,
    .put = put_put,
    .wait = queue_wait,
    .name = say_name,
    .pin = take_memory,
    .unpin = free,
};

static weft_status run(weft_exec *x) {
    const int64_t *ends;
    int n = weft_exec_parts(x, &ends);
    WEFT_TRY(weft_exec_walk_part(x, 0, weft_graph_node_count(weft_exec_graph(x))));
    for (int i = 0; weft_exec_is_watched(x) && i < n; i++) {
        under_way = i + 1 < n;
        weft_exec_made(x, i ? ends[i - 1] : 0, ends[i]);
    }
    under_way = false;
    if (weft_exec_is_watched(x) && fails_in > 0 && --fails_in == 0)
        return weft_fail(WEFT_EIO, "the device is lost");
    return WEFT_OK;
}

void remote_fail(int n) {
    fails_in = n;
}

const weft_backend *remote_backend(void) {
    static weft_backend remote;
    remote = *weft_cpu_backend();
    remote.name = "remote";
    remote.remote = true;
    remote.run = run;
    remote.rows = &rows;
    return &remote;
}

int64_t remote_early_copies(void) {
    return early;
}

int64_t remote_late_copies(void) {
    return late;
}
