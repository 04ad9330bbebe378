/* The sum over ranks of a long row of numbers, with the bits that one process would give it.
 *
 * Each rank has the sums of its nodes of the tree (tree.h). The row goes out in buckets, and each rank
 * owns a piece of every bucket (cut.h). A rank gets all nodes' values of its own piece, adds them as
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
 *     weft_reduce_end(r);                those that were not sent yet, and waits for all
 */
#ifndef WEFT_COMM_REDUCE_H
#define WEFT_COMM_REDUCE_H

#include "comm/comm.h"
#include "comm/cut.h"
#include "comm/tree.h"
#include "core/pool.h"

typedef struct weft_reduce weft_reduce;

typedef struct {
    weft_comm *comm;
    weft_pool *pool;
    const weft_tree *tree; /* must stay */
    const weft_cut *cut;   /* of the row; must stay */
    bool is_double;        /* f64, else f32 */
    bool plain, scatter;
    void *const *rows; /* [own nodes], the host's memory; rows[0] gets the result */
    /* Called when the result of a bucket is there; NULL: nobody wants to know. */
    weft_status (*done)(void *context, int64_t bucket);
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

#endif
