/* Messages from GPU to GPU, by NCCL. All of them are put into one queue of the device and waited for at the
 * end: the device exchanges one bucket while it still makes others. */
#include "base/log.h"
#include "comm/launch.h"
#include "comm/reduce.h"
#include "core/rows.h"

enum { WHY_ROOM = 256, CHECKED = 1024 /* bytes of the first message */ };

struct weft_device_link {
    weft_comm *comm;
    const weft_backend *backend;
    const weft_nccl *nccl;
    const weft_row_backend *device;
    void *link, *queue;
    bool broken; /* a call failed */
};

static weft_status check(weft_device_link *r, int error, const char *what) {
    if (!error) return WEFT_OK;
    r->broken = true;
    return weft_fail(WEFT_EIO, "NCCL: %s: %s", what, r->nccl->explain(error));
}

typedef struct {
    char machine[128], gpu[64]; /* gpu empty: it cannot, and `why` */
    char why[WHY_ROOM];
} rank_gpu;

/* Whether this rank can; opens the libraries. */
static rank_gpu look_here(weft_device_link *r) {
    rank_gpu own = {.gpu = ""};
    const char *named = getenv("WEFT_NCCL");
    memcpy(own.machine, weft_watch_place().machine, sizeof own.machine);
    if (!r->device)
        snprintf(own.why, sizeof own.why, "a rank has no GPU");
    else if (named && strcmp(named, "none") == 0)
        snprintf(own.why, sizeof own.why, "WEFT_NCCL is none");
    else if (weft_launch_nccl(&r->nccl) != WEFT_OK)
        snprintf(own.why, sizeof own.why, "%s", weft_error_message());
    else if (r->nccl->open(own.why, sizeof own.why) == 0)
        r->device->name(own.gpu, sizeof own.gpu);
    return own;
}

/* The first messages between two ranks wait until both are there. */
weft_status weft_device_link_exchange(weft_device_link *r, const weft_transfer *transfers,
                                      int64_t n) {
    weft_comm_away(r->comm, true);
    int error = r->nccl->begin();
    for (int64_t i = 0; !error && i < n; i++) {
        const weft_transfer *t = &transfers[i];
        error = t->send ? r->nccl->send(r->link, t->data, t->bytes, t->rank, r->queue)
                        : r->nccl->receive(r->link, t->data, t->bytes, t->rank, r->queue);
    }
    int ended = r->nccl->end();
    weft_comm_away(r->comm, false);
    return check(r, error ? error : ended, "gradients were not exchanged");
}

weft_status weft_device_link_sum(weft_device_link *r, float *row, int64_t count) {
    weft_comm_away(r->comm, true);
    int error = r->nccl->sum(r->link, row, count, r->queue);
    weft_comm_away(r->comm, false);
    return check(r, error, "no sum over ranks");
}

weft_status weft_device_link_wait(weft_device_link *r) {
    weft_comm_away(r->comm, true);
    weft_status status = r->device->wait(r->queue);
    weft_comm_away(r->comm, false);
    r->broken |= status != WEFT_OK;
    return status;
}

WEFT_GETTER(void *, weft_device_link_queue, weft_device_link, queue)

/* A message around the ring, so that what does not work is found before the first step. */
static weft_status check_link(weft_device_link *r) {
    int rank = weft_comm_rank(r->comm), size = weft_comm_size(r->comm);
    int before = (rank + size - 1) % size;
    unsigned char sent[CHECKED], came[CHECKED] = {0}, expected[CHECKED];
    unsigned char *there = r->backend->alloc(2 * CHECKED);
    if (!there) return weft_fail(WEFT_ENOMEM, "no memory for the sum over ranks");
    const weft_transfer ring[] = {{(rank + 1) % size, true, there, CHECKED},
                                  {before, false, there + CHECKED, CHECKED}};
    memset(sent, rank % 251 + 1, CHECKED);
    memset(expected, before % 251 + 1, CHECKED);
    weft_status status = r->backend->upload(there, sent, CHECKED);
    if (status == WEFT_OK) status = weft_device_link_exchange(r, ring, 2);
    if (status == WEFT_OK) status = weft_device_link_wait(r);
    if (status == WEFT_OK) status = r->backend->download(came, there + CHECKED, CHECKED);
    r->backend->release(there, 2 * CHECKED);
    if (status != WEFT_OK || memcmp(came, expected, CHECKED) == 0) return status;
    return weft_fail(WEFT_EIO, "NCCL: rank %d's message came otherwise", before);
}

static weft_status start(weft_device_link *r) {
    unsigned char id[WEFT_NCCL_ID] = {0};
    int rank = weft_comm_rank(r->comm), size = weft_comm_size(r->comm);
    weft_status status = WEFT_OK;
    if (rank == 0) status = check(r, r->nccl->make_id(id), "no id");
    WEFT_TRY(weft_comm_agree(r->comm, status));
    WEFT_TRY(weft_comm_broadcast(r->comm, id, sizeof id));
    WEFT_TRY(weft_comm_agree(r->comm, r->device->open(&r->queue)));
    weft_comm_away(r->comm, true);
    status = check(r, r->nccl->start(id, rank, size, &r->link), "the ranks did not meet");
    weft_comm_away(r->comm, false);
    WEFT_TRY(weft_comm_agree(r->comm, status));
    return weft_comm_agree(r->comm, check_link(r));
}

weft_status weft_device_link_open(weft_comm *comm, const weft_backend *backend,
                                  weft_device_link **out) {
    char why[WHY_ROOM] = "";
    *out = NULL;
    WEFT_NEW(weft_device_link, r, weft_device_link_close, "no memory for the sum over ranks");
    *r = (weft_device_link){.comm = comm, .backend = backend, .device = backend->rows};
    /* Whether all can, each with a GPU of its own; else why not. */
    int size = weft_comm_size(r->comm);
    rank_gpu own = look_here(r), *all = weft_message_memory((size_t)size, sizeof *all);
    if (!all) return weft_fail(WEFT_ENOMEM, "no memory for the sum over ranks");
    weft_status status = weft_comm_gather(r->comm, &own, sizeof own, all);
    bool all_can = status == WEFT_OK;
    for (int i = 0; all_can && i < size; i++) {
        if (!*all[i].gpu) {
            snprintf(why, WHY_ROOM, "%s", all[i].why);
            all_can = false;
        }
        for (int k = 0; all_can && k < i; k++) {
            if (strcmp(all[i].gpu, all[k].gpu) != 0 || strcmp(all[i].machine, all[k].machine) != 0)
                continue;
            snprintf(why, WHY_ROOM, "ranks %d and %d share a GPU", k, i);
            all_can = false;
        }
    }
    weft_message_done(all, status);
    WEFT_TRY(status);
    if (all_can) {
        WEFT_TRY(start(r));
        weft_log(WEFT_LOG_INFO, "gradients go from GPU to GPU by NCCL");
        *out = weft_steal(&r);
    } else if (r->device) {
        weft_log(WEFT_LOG_INFO, "gradients go through the host's memory: %s", why);
    }
    return WEFT_OK;
}

void weft_device_link_close(weft_device_link *r) {
    if (!r) return;
    if (r->link && (r->broken || weft_comm_is_over(r->comm)))
        r->nccl->abort(r->link);
    else if (r->link)
        r->nccl->finish(r->link);
    if (r->queue) r->device->close(r->queue);
    free(r);
}
