/* The gradient of a whole batch: the mean over its micro-batches, added in a binary tree.
 *
 * The tree is fixed by the micro-batches' index alone: neighbours 2k and 2k+1 are added, then
 * neighbouring pairs, and so on; what is left over where their number is no power of two is added
 * from the right. So whoever holds an aligned power of two of them (another process, a GPU) makes a
 * node of the same tree, and the bits do not depend on who added what. Only one buffer a level of
 * the tree is alive, log2 of their number.
 *
 * With several ranks each takes its span of them (comm/tree.h), keeps the sums of the nodes it can
 * finish, and the last call of a step adds those of all ranks (comm/reduce.h). Where they share the
 * optimizer's state, a rank then has the mean of what it owns; where they share the sums too, scatter.h
 * makes them. */
#ifndef WEFT_TRAIN_GRADIENTS_H
#define WEFT_TRAIN_GRADIENTS_H

#include "comm/comm.h"
#include "train/optimizer.h"

typedef struct weft_gradients weft_gradients;

/* For `count` micro-batches of all ranks by that session, which was opened with gradients, summed into
 * the optimizer's own buffers. With one micro-batch nothing is copied: the optimizer reads the
 * session's. Binds the optimizer. comm NULL: one rank. */
weft_status weft_gradients_create(weft_optimizer *o, const weft_session *s, weft_pool *pool,
                                  weft_comm *comm, int64_t count, weft_gradients **out);
void weft_gradients_destroy(weft_gradients *g);

/* To be called before each run of the session whose gradient is added next. With several ranks the last
 * run's gradients leave in buckets while it still makes others, where the backend lets one see them. */
void weft_gradients_expect(weft_gradients *g);
/* Takes what the session's last run left as the gradient of the next micro-batch of this rank's; after
 * the last of them the optimizer's buffers hold the mean over all ranks' micro-batches, and the next
 * call begins anew. Fails only where the backend or another rank does. */
weft_status weft_gradients_add(weft_gradients *g);
/* Where ranks share the sums (SHARD=gradients), micro-batches are dealt out in rounds, and a rank that has
 * none in the last round says so. */
bool weft_gradients_are_dealt(const weft_gradients *g);
weft_status weft_gradients_pass(weft_gradients *g);
/* Forgets the micro-batches taken so far. */
void weft_gradients_restart(weft_gradients *g);

/* After the last micro-batch: where a weight's mean lies in the backend's memory; data NULL: zeros. Not
 * where ranks share it. */
weft_gradient weft_gradients_of(const weft_gradients *g, int64_t weight);

/* The name of the first weight with a gradient that is not finite, after the last micro-batch;
 * NULL: all are. Where ranks share gradients, all of them call it. */
const char *weft_gradients_find_bad(const weft_gradients *g);

#endif
