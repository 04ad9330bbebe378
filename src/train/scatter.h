/* The sum of a step's gradients where no rank keeps a whole one: SHARD=gradients.
 *
 * Micro-batches are dealt out in rounds: rank r has r, r + P, r + 2P and so on, so that those of a round
 * are neighbours in the tree that they are added in (comm/share.h). After each, a rank sends every owner
 * its pieces of the gradient, and an owner adds what it gets, in the order of the tree, to
 * sums of its own pieces alone. The bits are those of one process. Of the f32 sums, one for each level
 * of the tree, a rank so has one part in P; in exchange gradients travel once for each micro-batch, not
 * once for each step.
 *
 *     for each round
 *         weft_scatter_begin(s);
 *         weft_reduce_send(reduce, bucket);      its gradients are made; the same order on all ranks
 *         weft_scatter_end(s);              the buckets that were not sent, and waits for all
 */
#pragma once

#include "comm/reduce.h"
#include "train/optimizer.h"

typedef struct weft_scatter weft_scatter;

typedef struct {
    weft_comm *comm;
    const weft_backend *backend; /* that the gradients lie with */
    weft_pool *pool;
    const weft_partition *shards;
    const weft_gradient *from; /* [weights]: a micro-batch's; data NULL: zeros */
    int64_t count;             /* micro-batches of a step, of all ranks */
} weft_scatter_options;

/* What the options point to must stay. *reduce sends its buckets; it is the scatter's. */
weft_status weft_scatter_create(const weft_scatter_options *options, weft_scatter **out,
                                weft_reduce **reduce);
void weft_scatter_destroy(weft_scatter *s);

void weft_scatter_restart(weft_scatter *s);
/* Whether all rounds of a step are over. */
bool weft_scatter_is_over(const weft_scatter *s);
void weft_scatter_begin(weft_scatter *s);
weft_status weft_scatter_end(weft_scatter *s);

/* After the last round: the mean of what this rank owns (weft_partition_owned), in the backend's memory;
 * the place stays the same. */
void *weft_scatter_mean(const weft_scatter *s);
