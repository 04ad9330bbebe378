/* An optimizer over a model's weights: AdamW, AdamWSPAM or Muon as the config says.
 *
 * It owns what a step hands to the next one (the moments, the controlling state, f32 masters of
 * bf16 weights) and a small graph of the operations of ops/optimizer.h, bound to that memory, to
 * the model's weights and to gradients: those of a session where they lie, so that nothing is
 * copied, or others', such as a sum over micro-batches.
 *
 *     weft_optimizer_create(model, backend, pool, &o);
 *     weft_optimizer_bind_session(o, &session);       once; again for another session
 *     for each step
 *         weft_session_run(&session, ...);
 *         weft_optimizer_run(o, rate);                no allocation inside
 *         weft_optimizer_events(o, &events);
 *
 * All of the state is in named tensors (weft_optimizer_state): written and read back they make a
 * resume that is exact to the bit. */
#pragma once

#include "comm/comm.h"
#include "comm/share.h"
#include "model/session.h"

/* How ranks share what belongs to a model's weights: gradients, the optimizer's state, the update. All
 * weights one after the other are a row, each begun at a multiple of WEFT_ARENA_ALIGN. It is cut into
 * the chunks that the gradient's norm is added up in (WEFT_NORM_CHUNK numbers of one weight; a weight that
 * Muon updates is one chunk, of several such), and a rank owns whole chunks (comm/share.h). So no sum
 * depends on the number of ranks. */

/* Neighbouring numbers of one weight. */
typedef struct {
    int64_t weight, first, count;
    int64_t at; /* of one that is owned: where it begins among all that its rank owns, in numbers */
} weft_stretch;

typedef struct {
    const weft_model *model;
    int rank;
    weft_dtype dtype;     /* of the row's numbers: f32, or f64 beside f64 */
    weft_stretch *chunks; /* the blocks of `cut` */
    int64_t *first;       /* [weights + 1]: the chunks of a weight */
    int64_t *borders;     /* [chunks + 1]: where they begin in the row, in numbers */
    int64_t n_norms;      /* parts that the norm is added up in */
    weft_cut cut;
} weft_partition;

/* The model must outlive it. comm NULL: one rank owns all. To be freed after a failure too. */
weft_status weft_partition_make(const weft_model *m, const weft_comm *comm, weft_partition *out);
void weft_partition_free(weft_partition *s);

/* Where a weight begins in the row, in bytes; of the number of weights: its end. */
int64_t weft_partition_offset(const weft_partition *s, int64_t weight);

/* What a rank owns as stretches, in the order of the row; those that touch are one. Room for one a
 * chunk of the rank's; NULL: only counts them. */
int64_t weft_partition_owned(const weft_partition *s, int rank, weft_stretch *out);

/* What the last step did, and the counters over all steps. */
typedef struct {
    double norm;   /* of the gradient, before clipping */
    double rate;   /* the learning rate used: the one given, times `warmup` */
    double warmup; /* 1 but after a reset */
    bool spike, clipped, reset, skipped;
    int64_t cut; /* elements that spike clipping cut */
    int64_t steps, spikes, clips, resets, skips;
    double sparsity; /* the share that is masked: of the weights that may be, or of the units */
    bool pruned;     /* masks were made in this step */
} weft_step_events;

/* One weight's gradient: where it lies in the backend's memory, aligned to WEFT_ARENA_ALIGN. NULL: no
 * loss depends on the weight, and a step leaves it as it is, without decay. */
typedef struct {
    weft_dtype dtype; /* the weight's, or what its masters are kept in */
    void *data;
} weft_gradient;

/* State of zeros, masters from the weights. The model, the pool and the backend are the caller's
 * and must outlive it. With several ranks the state is shared out over them as SHARD of the config says:
 * each has the moments and masters of what it owns, updates that, and gives the new weights to all.
 * Every rank then makes the same calls. comm NULL: this one has all. */
weft_status weft_optimizer_create(weft_model *m, const weft_backend *backend, weft_pool *pool,
                                  weft_comm *comm, weft_optimizer **out);
void weft_optimizer_destroy(weft_optimizer *o);
/* How its state is shared out; NULL: it has all. */
const weft_partition *weft_optimizer_shards(const weft_optimizer *o);
const weft_model *weft_optimizer_model(const weft_optimizer *o);
const weft_backend *weft_optimizer_backend(const weft_optimizer *o);

/* Takes gradients from these places from now on: `gradients` has one for each of the model's
 * weights, in their order. Of a shared optimizer `own` may be where what this rank owns of them lies, in
 * the row's type, stretch behind stretch; NULL: they are parts of `gradients`. On an error the optimizer
 * is bound to nothing. */
weft_status weft_optimizer_bind(weft_optimizer *o, const weft_gradient *gradients, void *own);
/* The gradients of a session that was opened with them; it must stay open while it is bound. */
weft_status weft_optimizer_bind_session(weft_optimizer *o, const weft_session *s);
/* The gradients of a session as they lie there: [weights]. */
void weft_optimizer_find_gradients(const weft_optimizer *o, const weft_session *s,
                                   weft_gradient *out);

/* Before a step: makes the masks that PRUNE asks for, so that this share of the weights or units is masked:
 * those with the lowest scores, and all that were before. Nothing to do where as many are. Of several ranks
 * all call it. */
weft_status weft_optimizer_prune(weft_optimizer *o, double sparsity);
/* One step at that learning rate. What is masked is zero after it. */
weft_status weft_optimizer_run(weft_optimizer *o, double rate);
weft_status weft_optimizer_events(const weft_optimizer *o, weft_step_events *out);
/* Whether numbers in the host's memory are. */
bool weft_all_finite(weft_dtype dtype, const void *data, int64_t count);
/* The name of the first weight with a gradient that is not finite; NULL: all are, or cannot be read. Of a
 * shared optimizer all ranks call it. */
const char *weft_optimizer_find_bad(const weft_optimizer *o);

/* Takes up weights that others wrote: a master which does not round to its bf16 weight is set to
 * it. Nothing to do for f32 and f64, where the weights themselves are updated. */
weft_status weft_optimizer_refresh(weft_optimizer *o);

/* The state by name, of one that is not shared, ascending: "m.NAME", "v.NAME" (not of Muon's matrices), "v_max.NAME" (AMSGrad), "master.NAME" (bf16),
 * "mask.NAME" and "start.NAME" (PRUNE),
 * and "state", as in ops/optimizer.h. The memory may be read and written between steps. */
weft_status weft_optimizer_state(const weft_optimizer *o, const weft_weight **list, int64_t *count);
/* The same as a safetensors file. Reading asks for the same names, types and shapes, and changes
 * nothing on an error. *sum, where not NULL, is of what was meant to be written. */
weft_status weft_optimizer_write(const weft_optimizer *o, const char *path, weft_sum *sum);
weft_status weft_optimizer_read(weft_optimizer *o, const char *path);
/* Of a shared optimizer rank 0 alone writes and reads. While it writes, the others serve it, until it
 * says that it is done, however that went; what it has read is given out by all of them together. Both
 * do nothing where the state is not shared. */
weft_status weft_optimizer_serve(weft_optimizer *o);
weft_status weft_optimizer_served(weft_optimizer *o);
weft_status weft_optimizer_give_out(weft_optimizer *o);

/* For whoever binds by turns: a mark of what is bound, 0 after each bind until it is set. */
void weft_optimizer_mark(weft_optimizer *o, uint64_t mark);
uint64_t weft_optimizer_marked(const weft_optimizer *o);
