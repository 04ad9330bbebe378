/* What ranks say to each other, made of jobs that are waited for at once; and the memory of messages. What
 * of that is kept is a list, so that it stays reachable: a leak that a tool finds is another one. */
#include "comm/comm.h"
#include "comm/share.h"

enum { CHUNK = 1 << 28 /* bytes of one broadcast */ };

/* Stands before the memory of a message. */
typedef union message {
    union message *next;
    max_align_t aligned;
} message;

static message *kept;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void *weft_message_memory(size_t count, size_t size) {
    if (size && count > (SIZE_MAX - sizeof(message)) / size) return NULL;
    char *memory = calloc(1, sizeof(message) + count * size);
    if (memory) memory += sizeof(message);
    return memory;
}

void weft_message_done(void *memory, weft_status status) {
    if (!memory) return;
    message *m = (message *)memory - 1;
    if (status == WEFT_OK) {
        free(m);
        return;
    }
    WEFT_LOCK(&lock);
    m->next = kept;
    kept = m;
}

static weft_status run_job(weft_comm *c, weft_comm_job *job) {
    WEFT_TRY(weft_comm_begin(c, job));
    return weft_comm_wait(c, job);
}

weft_status weft_comm_gather(weft_comm *c, const void *own, int64_t bytes, void *all) {
    memcpy((char *)all + (size_t)(weft_comm_rank(c) * bytes), own, (size_t)bytes);
    return weft_comm_gather_records(c, all, weft_comm_size(c), bytes, false);
}

weft_status weft_comm_gather_parts(weft_comm *c, void *all, const int *bytes, const int *offsets) {
    weft_comm_job job = {
        .kind = WEFT_JOB_GATHER, .data = all, .part_bytes = bytes, .part_offsets = offsets};
    return c ? run_job(c, &job) : WEFT_OK;
}

weft_status weft_comm_exchange(weft_comm *c, const weft_transfer *transfers, int64_t n) {
    weft_comm_job job = {.kind = WEFT_JOB_EXCHANGE, .transfers = transfers, .count = n};
    return c ? run_job(c, &job) : WEFT_OK;
}

/* Spans go at once; of records that were dealt out, one of every rank. */
weft_status weft_comm_gather_records(weft_comm *c, void *all, int64_t count, int64_t bytes,
                                     bool dealt) {
    if (!c) return WEFT_OK;
    if (bytes > INT32_MAX / count)
        return WEFT_BAD_INPUT("%lld records of %lld bytes are too many for one message",
                              (long long)count, (long long)bytes);
    int size = weft_comm_size(c), *parts = weft_message_memory(2 * (size_t)size, sizeof *parts);
    if (!parts) return weft_fail(WEFT_ENOMEM, "no memory for a message");
    weft_status status = WEFT_OK;
    for (int64_t first = 0; status == WEFT_OK && first < (dealt ? count : 1); first += size) {
        for (int i = 0; i < size; i++) {
            weft_span s = weft_tree_span(count, i, size);
            if (dealt) s = (weft_span){first + i, first + i < count};
            parts[i] = (int)(s.count * bytes);
            parts[size + i] = s.count ? (int)(s.first * bytes) : 0;
        }
        status = weft_comm_gather_parts(c, all, parts, parts + size);
    }
    weft_message_done(parts, status);
    return status;
}

weft_status weft_comm_broadcast(weft_comm *c, void *data, int64_t bytes) {
    for (int64_t at = 0; c && at < bytes; at += CHUNK) {
        int64_t left = bytes - at;
        weft_comm_job job = {.kind = WEFT_JOB_BROADCAST,
                             .data = (char *)data + at,
                             .bytes = left < CHUNK ? left : CHUNK};
        WEFT_TRY(run_job(c, &job));
    }
    return WEFT_OK;
}

weft_status weft_comm_any(weft_comm *c, bool own, bool *any) {
    *any = own;
    if (!c) return WEFT_OK;
    bool *all = weft_message_memory((size_t)weft_comm_size(c), sizeof *all);
    if (!all) return weft_fail(WEFT_ENOMEM, "no memory for a message");
    weft_status status = weft_comm_gather(c, &own, sizeof own, all);
    for (int i = 0; status == WEFT_OK && i < weft_comm_size(c); i++)
        *any |= all[i];
    weft_message_done(all, status);
    return status;
}

/* The first line that differs, of both. */
static weft_status report_difference(const char *name, const char *own, const char *first) {
    for (size_t at = 0; own[at] && own[at] == first[at]; at++) {
        if (own[at] != '\n') continue;
        own += at + 1;
        first += at + 1;
        at = (size_t)-1;
    }
    return WEFT_BAD_INPUT("its %s is not rank 0's: %.*s in place of %.*s", name,
                          (int)strcspn(own, "\n"), own, (int)strcspn(first, "\n"), first);
}

weft_status weft_comm_same(weft_comm *c, const char *name, const char *text) {
    if (!c) return WEFT_OK;
    int64_t length = (int64_t)strlen(text) + 1;
    WEFT_TRY(weft_comm_broadcast(c, &length, sizeof length));
    char *first = weft_message_memory((size_t)length, 1);
    if (!first) return weft_fail(WEFT_ENOMEM, "no memory for a message");
    if (weft_comm_rank(c) == 0) memcpy(first, text, (size_t)length);
    weft_status sent = weft_comm_broadcast(c, first, length), status = sent;
    if (sent == WEFT_OK && strcmp(first, text) != 0) status = report_difference(name, text, first);
    weft_message_done(first, sent);
    return sent == WEFT_OK ? weft_comm_agree(c, status) : sent;
}
