/* The sum of reduce.h where the rows lie in GPUs' memory and NCCL carries the messages: the same pieces,
 * added in the same order, so the same bits. */
#ifndef WEFT_COMM_DEVICE_REDUCE_H
#define WEFT_COMM_DEVICE_REDUCE_H

#include "comm/comm.h"
#include "comm/cut.h"
#include "comm/tree.h"
#include "core/exec.h"

typedef struct weft_device_reduce weft_device_reduce;

typedef struct {
    weft_comm *comm;
    const weft_backend *backend;
    const weft_tree *tree; /* must stay */
    const weft_cut *cut;   /* of the row; must stay */
    bool plain, scatter;   /* as in reduce.h */
    void *const *rows;     /* [own nodes] of f32, the backend's memory; rows[0] gets the result */
} weft_device_reduce_options;

/* By all ranks, whatever their backends. *out is NULL where NCCL is missing, where two ranks share a GPU,
 * or where one has none: gradients then go through the host's memory, which rank 0 logs with why. */
weft_status weft_device_reduce_open(const weft_device_reduce_options *options,
                                    weft_device_reduce **out);
void weft_device_reduce_close(weft_device_reduce *r);

/* The queue that it puts its work into: what is put there before a bucket is sent is done before. */
void *weft_device_reduce_queue(const weft_device_reduce *r);

/* As in reduce.h: rows[0] = factor · the sum, all of it on every rank, with `scatter` the own pieces.
 * Only the end waits. */
void weft_device_reduce_begin(weft_device_reduce *r, double factor);
weft_status weft_device_reduce_send(weft_device_reduce *r, int64_t bucket);
weft_status weft_device_reduce_end(weft_device_reduce *r);

#endif
