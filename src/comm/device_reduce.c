/* The sum over ranks from GPU to GPU (reduce.h). All of it is put into one queue of the device, bucket
 * after bucket as they are sent, and waited for at the end: the device exchanges one while it still
 * makes others. */
#include "base/getter.h"
#include "base/log.h"
#include "base/scope.h"
#include "comm/launch.h"
#include "comm/reduce.h"
#include "comm/watch.h"
#include "core/rows.h"

enum { WHY_ROOM = 256, CHECKED = 1024 /* bytes of the first message */ };

struct weft_device_reduce {
    weft_reduce_options o;
    const weft_nccl *nccl;
    const weft_row_backend *device;
    void *link, *queue;
    int rank;
    int own_first, own_nodes;
    int64_t largest; /* numbers of a piece */
    float *received; /* [nodes, piece] */
    float **rows;    /* [own nodes] */
    bool *sent;      /* [buckets] */
    float factor;
    bool broken; /* a call failed */
};

static weft_status check(const weft_device_reduce *r, int error, const char *what) {
    if (!error) return WEFT_OK;
    return weft_fail(WEFT_EIO, "NCCL: %s: %s", what, r->nccl->explain(error));
}

/* What every rank tells the others. */
typedef struct {
    char machine[128], gpu[64]; /* gpu empty: it cannot, and `why` */
    char why[WHY_ROOM];
} rank_gpu;

/* Whether this rank can; opens the libraries. */
static rank_gpu look_here(weft_device_reduce *r) {
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

/* Whether all can, each with a GPU of its own; else why not. */
static weft_status agree(weft_device_reduce *r, bool *all_can, char *why) {
    int size = weft_comm_size(r->o.comm);
    rank_gpu own = look_here(r), *all = weft_message_memory((size_t)size, sizeof *all);
    if (!all) return weft_fail(WEFT_ENOMEM, "no memory for the sum over ranks");
    weft_status status = weft_comm_gather(r->o.comm, &own, sizeof own, all);
    *all_can = status == WEFT_OK;
    for (int i = 0; *all_can && i < size; i++) {
        if (!*all[i].gpu) {
            snprintf(why, WHY_ROOM, "%s", all[i].why);
            *all_can = false;
        }
        for (int k = 0; *all_can && k < i; k++) {
            if (strcmp(all[i].gpu, all[k].gpu) != 0 || strcmp(all[i].machine, all[k].machine) != 0)
                continue;
            snprintf(why, WHY_ROOM, "ranks %d and %d share a GPU", k, i);
            *all_can = false;
        }
    }
    weft_message_done(all, status);
    return status;
}

/* A message around the ring, so that what does not work is found before the first step. */
static weft_status check_link(weft_device_reduce *r) {
    int size = weft_comm_size(r->o.comm), next = (r->rank + 1) % size;
    int before = (r->rank + size - 1) % size;
    unsigned char sent[CHECKED], came[CHECKED] = {0}, expected[CHECKED];
    unsigned char *there = r->o.backend->alloc(2 * CHECKED);
    if (!there) return weft_fail(WEFT_ENOMEM, "no memory for the sum over ranks");
    memset(sent, r->rank % 251 + 1, CHECKED);
    memset(expected, before % 251 + 1, CHECKED);
    weft_status status = r->o.backend->upload(there, sent, CHECKED);
    int error = r->nccl->begin();
    if (!error) error = r->nccl->send(r->link, there, CHECKED, next, r->queue);
    if (!error) error = r->nccl->receive(r->link, there + CHECKED, CHECKED, before, r->queue);
    int ended = r->nccl->end();
    if (status == WEFT_OK) status = check(r, error ? error : ended, "no message around the ranks");
    if (status == WEFT_OK) status = r->device->wait(r->queue);
    if (status == WEFT_OK) status = r->o.backend->download(came, there + CHECKED, CHECKED);
    r->o.backend->release(there, 2 * CHECKED);
    if (status != WEFT_OK || memcmp(came, expected, CHECKED) == 0) return status;
    return weft_fail(WEFT_EIO, "NCCL: rank %d's message came otherwise", before);
}

static weft_status start(weft_device_reduce *r) {
    unsigned char id[WEFT_NCCL_ID] = {0};
    size_t nodes = (size_t)r->o.tree->n_nodes;
    int size = weft_comm_size(r->o.comm);
    weft_status status = WEFT_OK;
    if (r->rank == 0) status = check(r, r->nccl->make_id(id), "no id");
    WEFT_TRY(weft_comm_agree(r->o.comm, status));
    WEFT_TRY(weft_comm_broadcast(r->o.comm, id, sizeof id));
    status = r->device->open(&r->queue);
    WEFT_TRY(weft_comm_agree(r->o.comm, status));
    weft_comm_away(r->o.comm, true);
    status = check(r, r->nccl->start(id, r->rank, size, &r->link), "the ranks did not meet");
    weft_comm_away(r->o.comm, false);
    if (status == WEFT_OK) {
        r->received = r->o.backend->alloc((int64_t)(nodes * (size_t)r->largest + 16) * 4);
        if (!r->received) status = weft_fail(WEFT_ENOMEM, "no memory for the sum over ranks");
    }
    WEFT_TRY(weft_comm_agree(r->o.comm, status));
    weft_comm_away(r->o.comm, true);
    status = check_link(r);
    weft_comm_away(r->o.comm, false);
    return weft_comm_agree(r->o.comm, status);
}

WEFT_ENDED_BY(weft_device_reduce_close, weft_device_reduce)
weft_status weft_device_reduce_open(const weft_reduce_options *options, weft_device_reduce **out) {
    char why[WHY_ROOM] = "";
    bool all_can = false;
    *out = NULL;
    WEFT_AUTO(weft_device_reduce_close_at) weft_device_reduce *r = calloc(1, sizeof *r);
    if (!r) return weft_fail(WEFT_ENOMEM, "no memory for the sum over ranks");
    r->o = *options;
    r->rank = weft_comm_rank(options->comm);
    r->device = options->backend->rows;
    r->own_nodes = weft_tree_of_rank(options->tree, r->rank, &r->own_first);
    r->largest = weft_cut_largest(options->cut);
    r->rows = calloc((size_t)r->own_nodes, sizeof *r->rows);
    r->sent = calloc((size_t)weft_cut_buckets(options->cut) + 1, sizeof *r->sent);
    if (!r->rows || !r->sent) return weft_fail(WEFT_ENOMEM, "no memory for the sum over ranks");
    for (int k = 0; k < r->own_nodes; k++)
        r->rows[k] = options->rows[k];
    WEFT_TRY(agree(r, &all_can, why));
    if (all_can) {
        WEFT_TRY(start(r));
        weft_log(WEFT_LOG_INFO, "gradients go from GPU to GPU by NCCL");
        *out = weft_steal(&r);
    } else if (r->device) {
        weft_log(WEFT_LOG_INFO, "gradients go through the host's memory: %s", why);
    }
    return WEFT_OK;
}

void weft_device_reduce_close(weft_device_reduce *r) {
    if (!r) return;
    if (r->link && (r->broken || weft_comm_is_over(r->o.comm)))
        r->nccl->abort(r->link);
    else if (r->link)
        r->nccl->finish(r->link);
    if (r->device && r->queue) r->device->close(r->queue);
    if (r->received)
        r->o.backend->release(r->received, ((int64_t)r->o.tree->n_nodes * r->largest + 16) * 4);
    WEFT_FREE(r->rows, r->sent, r);
}

static weft_span piece_of(const weft_device_reduce *r, int64_t bucket, int rank) {
    return weft_cut_numbers(r->o.cut, weft_cut_piece(r->o.cut, bucket, rank));
}

/* Where this rank has a node's values of its own piece. */
static float *at_node(const weft_device_reduce *r, int node, weft_span p) {
    if (node >= r->own_first && node < r->own_first + r->own_nodes)
        return r->rows[node - r->own_first] + p.first;
    return r->received + (int64_t)node * r->largest;
}

static int send_piece(const weft_device_reduce *r, const float *data, int64_t count, int to) {
    return count ? r->nccl->send(r->link, data, count * 4, to, r->queue) : 0;
}

static int receive_piece(const weft_device_reduce *r, float *data, int64_t count, int from) {
    return count ? r->nccl->receive(r->link, data, count * 4, from, r->queue) : 0;
}

/* As in reduce.c: own nodes' values to the ranks whose pieces they are, others' of the own piece here. */
static weft_status scatter(const weft_device_reduce *r, int64_t bucket, weft_span own) {
    int error = r->nccl->begin();
    for (int q = 0; !error && q < r->o.cut->size; q++) {
        weft_span p = piece_of(r, bucket, q);
        for (int k = 0; !error && q != r->rank && k < r->own_nodes; k++)
            error = send_piece(r, r->rows[k] + p.first, p.count, q);
    }
    for (int i = 0; !error && i < r->o.tree->n_nodes; i++) {
        int from = r->o.tree->nodes[i].rank;
        if (from != r->rank) error = receive_piece(r, at_node(r, i, own), own.count, from);
    }
    int ended = r->nccl->end();
    return check(r, error ? error : ended, "gradients were not exchanged");
}

static weft_status gather(const weft_device_reduce *r, int64_t bucket, weft_span own) {
    int error = r->nccl->begin();
    for (int q = 0; !error && q < r->o.cut->size; q++) {
        weft_span p = piece_of(r, bucket, q);
        if (q == r->rank) continue;
        error = send_piece(r, r->rows[0] + own.first, own.count, q);
        if (!error) error = receive_piece(r, r->rows[0] + p.first, p.count, q);
    }
    int ended = r->nccl->end();
    return check(r, error ? error : ended, "sums were not exchanged");
}

static weft_status send_by_tree(const weft_device_reduce *r, int64_t bucket) {
    const weft_tree *t = r->o.tree;
    weft_span own = piece_of(r, bucket, r->rank);
    float *result = r->rows[0] + own.first;
    WEFT_TRY(scatter(r, bucket, own));
    for (int i = 0; i < t->n_merges; i++)
        r->device->add(r->queue, at_node(r, t->merges[i].to, own),
                       at_node(r, t->merges[i].from, own), own.count);
    if (at_node(r, 0, own) != result)
        r->device->copy(r->queue, result, at_node(r, 0, own), own.count);
    r->device->scale(r->queue, result, r->factor, own.count);
    return r->o.scatter ? WEFT_OK : gather(r, bucket, own);
}

static weft_status send_plain(const weft_device_reduce *r, int64_t bucket) {
    weft_span all = weft_cut_numbers(r->o.cut, weft_cut_bucket(r->o.cut, bucket));
    float *row = r->rows[0] + all.first;
    for (int k = 1; k < r->own_nodes; k++)
        r->device->add(r->queue, row, r->rows[k] + all.first, all.count);
    WEFT_TRY(check(r, r->nccl->sum(r->link, row, all.count, r->queue), "no sum over ranks"));
    r->device->scale(r->queue, row, r->factor, all.count);
    return WEFT_OK;
}

WEFT_GETTER(void *, weft_device_reduce_queue, weft_device_reduce, queue)

void weft_device_reduce_begin(weft_device_reduce *r, double factor) {
    memset(r->sent, 0, (size_t)weft_cut_buckets(r->o.cut) * sizeof *r->sent);
    r->factor = (float)factor;
}

/* The first messages between two ranks wait until both are there. */
weft_status weft_device_reduce_send(weft_device_reduce *r, int64_t bucket) {
    r->sent[bucket] = true;
    weft_comm_away(r->o.comm, true);
    weft_status status = r->o.plain ? send_plain(r, bucket) : send_by_tree(r, bucket);
    weft_comm_away(r->o.comm, false);
    r->broken |= status != WEFT_OK;
    return status;
}

weft_status weft_device_reduce_end(weft_device_reduce *r) {
    for (int64_t b = 0; b < weft_cut_buckets(r->o.cut); b++)
        if (!r->sent[b]) WEFT_TRY(weft_device_reduce_send(r, b));
    weft_comm_away(r->o.comm, true);
    weft_status status = r->device->wait(r->queue);
    weft_comm_away(r->o.comm, false);
    r->broken |= status != WEFT_OK;
    return status;
}
