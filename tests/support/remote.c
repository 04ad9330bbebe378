/* A queue is a list of calls. */
#include "remote.h"

#include "core/rows.h"
#include "cpu/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool under_way;
static int64_t early, late;
static int fails_in; /* watched runs; 0: never */

static weft_status queue_open(void **out) {
    *out = calloc(1, sizeof(remote_queue));
    return *out ? WEFT_OK : weft_fail(WEFT_ENOMEM, "no memory for a queue");
}

static void queue_close(void *context) {
    remote_queue *q = context;
    free(q->calls);
    free(q);
}

static void add(const remote_call *c) {
    for (int64_t i = 0; i < c->n; i++)
        ((float *)c->to)[i] += ((const float *)c->from)[i];
}

static void take(const remote_call *c) {
    float *to = c->to;
    for (int64_t i = 0; i < c->n; i++) {
        float x = !c->from                ? 0
                  : c->dtype == WEFT_BF16 ? weft_bf16_to_float(((const uint16_t *)c->from)[i])
                                          : ((const float *)c->from)[i];
        to[i] = c->add && c->from ? to[i] + x : c->add ? to[i] : x;
    }
}

static void copy(const remote_call *c) {
    memcpy(c->to, c->from, (size_t)c->n);
}

static void scale(const remote_call *c) {
    for (int64_t i = 0; i < c->n; i++)
        ((float *)c->to)[i] *= c->factor;
}

static void put_add(void *q, float *to, const float *from, int64_t n) {
    remote_put(q, (remote_call){.run = add, .to = to, .from = from, .n = n});
}

static void put_take(void *q, float *to, const void *from, weft_dtype dtype, bool add, int64_t n) {
    remote_put(
        q, (remote_call){.run = take, .to = to, .from = from, .dtype = dtype, .add = add, .n = n});
}

static void put_copy(void *q, float *to, const float *from, int64_t n) {
    remote_put(q, (remote_call){.run = copy, .to = to, .from = from, .n = 4 * n});
}

static void put_scale(void *q, float *data, float factor, int64_t n) {
    remote_put(q, (remote_call){.run = scale, .to = data, .factor = factor, .n = n});
}

static void put_fetch(void *q, void *host, const void *from, int64_t bytes) {
    early += under_way;
    late += !under_way;
    remote_put(q, (remote_call){.run = copy, .to = host, .from = from, .n = bytes});
}

static void put_put(void *q, void *to, const void *host, int64_t bytes) {
    remote_put(q, (remote_call){.run = copy, .to = to, .from = host, .n = bytes});
}

static weft_status queue_wait(void *context) {
    remote_queue *q = context;
    for (int64_t i = 0; i < q->n; i++)
        q->calls[i].run(&q->calls[i]);
    q->n = 0;
    return WEFT_OK;
}

static void say_name(char *text, size_t room) {
    snprintf(text, room, "remote %d", (int)getpid());
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
