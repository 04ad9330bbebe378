/* The sum over ranks of a long row of numbers, with the bits that one process would give it.
 *
 * Each rank has the sums of its nodes of the tree. The row goes out in buckets, and each rank owns a
 * piece of every bucket (share.h). A rank gets all nodes' values of its own piece, adds them as
 * the tree says, and gives the result to all: a reduce-scatter of exact pieces and a gather. Where
 * every rank has one node, as with powers of two, that moves as many bytes as a plain all-reduce,
 * 2 (P - 1)/P of the row; with k nodes a rank, 1 + k in place of the 2. With `scatter` the results stay
 * with their owners, which saves the gather. With `plain` it is a plain all-reduce in MPI's own order,
 * and the last bits depend on the ranks.
 *
 * A bucket may be sent as soon as it is there, while the caller goes on to make others:
 *
 *     weft_reduce_begin(r, factor);
 *     weft_reduce_send(r, bucket);       each of them once, in the same order on every rank
 *     weft_reduce_look(r);               now and then: others wait for what this rank adds
 *     weft_reduce_end(r);                those that were not sent yet, and waits for all */
#pragma once

#include "comm/comm.h"
#include "comm/share.h"
#include "core/exec.h"

typedef struct weft_reduce weft_reduce;
typedef struct weft_reduce_bucket weft_reduce_bucket; /* one that is under way */
typedef struct weft_device_link weft_device_link;

typedef struct {
    weft_comm *comm;
    const weft_backend *backend;
    weft_device_link *link; /* carries it, the rows being its backend's; NULL: the host does */
    weft_pool *pool;
    const weft_tree *tree; /* must stay; may change before a begin */
    const weft_cut *cut;   /* of the row; must stay */
    bool is_double;        /* f64, else f32 */
    bool plain, scatter;
    /* [own nodes] of the backend's memory; rows[0] gets the result. NULL: there are `pack` and `add`. A backend
     * that has its own memory and no link copies them, bucket by bucket, by way of its queue. */
    void *const *rows;
    void *queue;
    /* For a caller that keeps no rows: puts a bucket of its own node into memory that a device copies to
     * at full speed; takes numbers of the own piece of all nodes (weft_reduce_values). Then `scatter` is set, and
     * nothing else is done with them. */
    weft_status (*pack)(void *context, int64_t bucket, unsigned char *to);
    void (*add)(void *context, const weft_reduce_bucket *b, int64_t bucket, weft_span own);
    void *context;
} weft_reduce_options;

weft_status weft_reduce_create(const weft_reduce_options *options, weft_reduce **out);
void weft_reduce_destroy(weft_reduce *r);

/* rows[0] = factor · the sum: all of it on every rank, with `scatter` the own pieces. */
void weft_reduce_begin(weft_reduce *r, double factor);
weft_status weft_reduce_send(weft_reduce *r, int64_t bucket);
/* Takes up what has come meanwhile, without waiting. */
weft_status weft_reduce_look(weft_reduce *r);
weft_status weft_reduce_end(weft_reduce *r);

/* While a bucket is added: a node's values of the own piece. */
const unsigned char *weft_reduce_values(const weft_reduce_bucket *b, int node);

/* A way from GPU to GPU, on which NCCL carries the messages of a sum over rows that are f32 in their memory:
 * the same pieces, added in the same order, so the same bits. Its calls are put into a queue of the device. */

/* By all ranks, whatever their backends. *out is NULL where NCCL is missing, where two ranks share a GPU,
 * or where one has none: gradients then go through the host's memory, which rank 0 logs with why. */
weft_status weft_device_link_open(weft_comm *comm, const weft_backend *backend,
                                  weft_device_link **out);
/* Before the sums that it carries are destroyed. */
void weft_device_link_close(weft_device_link *l);
WEFT_ENDED_BY(weft_device_link_close, weft_device_link)

/* What is put into its queue before a bucket is sent is done before. */
void *weft_device_link_queue(const weft_device_link *l);
weft_status weft_device_link_exchange(weft_device_link *l, const weft_transfer *transfers,
                                      int64_t n);
weft_status weft_device_link_sum(weft_device_link *l, float *row, int64_t count);
/* Until all of the queue is done. */
weft_status weft_device_link_wait(weft_device_link *l);
