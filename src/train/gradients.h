/* The gradient of a whole step: the mean over its micro-batches, added in the tree of comm/share.h, which their
 * number fixes alone. Only one buffer a level of the tree is alive, log2 of their number.
 *
 * There are two ways. Whole sums: each rank takes its span of the micro-batches (comm/share.h), keeps the
 * sums of the nodes it can finish, and the end of the step adds those of all ranks (comm/reduce.h); where
 * they share the optimizer's state, a rank then has the mean of what it owns. One process is the same with
 * no ranks to add.
 *
 * Shared sums (SHARD=gradients): no rank keeps a whole one. Micro-batches are dealt out in rounds: rank r has r,
 * r + P, r + 2P and so on, so that those of a round are neighbours in the tree. After each, a rank sends every
 * owner its pieces of the gradient, and an owner adds what it gets, in the order of the tree, to sums of its own
 * pieces alone. Of the f32 sums, one for each level of the tree, a rank so has one part in P; in exchange
 * gradients travel once for each micro-batch, not once for each step.
 *
 *     weft_gradients_begin(g);
 *     for each micro-batch of this rank's
 *         weft_gradients_expect(g);
 *         weft_session_run(s, ...);
 *         weft_gradients_add(g);
 *     weft_gradients_mean(g);            the optimizer may run
 */
#pragma once

#include "train/optimizer.h"

typedef struct weft_gradients weft_gradients;

/* For `count` micro-batches of all ranks by that session, which was opened with gradients. With one
 * micro-batch nothing is copied: the optimizer reads the session's. Binds the optimizer. comm NULL: one
 * rank. */
weft_status weft_gradients_create(weft_optimizer *o, const weft_session *s, weft_pool *pool,
                                  weft_comm *comm, int64_t count, weft_gradients **out);
void weft_gradients_destroy(weft_gradients *g);

/* Forgets the micro-batches taken so far. */
void weft_gradients_begin(weft_gradients *g);
/* Before the run of the session whose gradient is added next. With several ranks the last run's gradients
 * leave in buckets while it still makes others, where the backend lets one see them. */
void weft_gradients_expect(weft_gradients *g);
/* Takes what the run left as the gradient of this rank's next micro-batch. Fails only where the backend or
 * another rank does, as the next one. */
weft_status weft_gradients_add(weft_gradients *g);
/* After this rank's last one, if it had any: the optimizer has the mean over all ranks' micro-batches. */
weft_status weft_gradients_mean(weft_gradients *g);

/* Whether they are dealt out in rounds, in place of neighbours. */
bool weft_gradients_are_dealt(const weft_gradients *g);
/* After the mean: where a weight's lies in the backend's memory; data NULL: zeros. Not where ranks share
 * it. */
weft_gradient weft_gradients_of(const weft_gradients *g, int64_t weight);
