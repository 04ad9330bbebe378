/* weft/step.h: the optimizer's step over one's own memory.
 *
 * weft_optimizer of weft.h owns a model's moments and takes a pass's gradients. This header is for
 * whoever has parameters and gradients elsewhere, a PyTorch optimizer for instance. AdamW and AdamWSPAM
 * are one operation with other options, and tensors of matrices may be Muon's:
 *
 *     weft_step_open(engine, groups, n_groups, tensors, n_tensors, &step);
 *     ... m, v and each group's state start as zeros; workspace: weft_step_bytes(step) ...
 *     weft_step_run(step, &call);
 *
 * A group is a set of tensors with options of its own. The gradient's norm, which clipping and the
 * detection of spikes look at, is over all tensors of all groups.
 *
 * Memory is the caller's, on the engine's device, each address a multiple of WEFT_ALIGNMENT, and may be
 * another one at every call. Streams, threads and the device are as with blocks (weft/graph.h). What
 * one step hands to the next is in m, v, v_max, the parameters and the states, so copying those is all
 * that going on later needs. */
#ifndef WEFT_STEP_H
#define WEFT_STEP_H

#include <weft/graph.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_step weft_step;

/* AdamW: the first five, and the others 0. */
typedef struct {
    size_t size;            /* sizeof(weft_step_group) */
    double beta1, beta2;    /* in [0, 1) */
    double eps;             /* 0 or more */
    double weight_decay;    /* decoupled; acts on tensors with `decay` */
    double clip;            /* the largest norm of the gradient; 0: no clipping */
    double spike_threshold; /* standard deviations above the mean norm that make a spike; 0: none */
    double theta;           /* spike clipping cuts g² to θ v̂; 0: none */
    int64_t reset_interval; /* the moments are set to zero every so many steps; 0: never */
    int64_t warmup_steps;   /* after a reset the learning rate rises over these; 0: at once */
    int amsgrad;            /* the largest v so far counts */
    double momentum;        /* of Muon's tensors, in [0, 1) */
} weft_step_group;

typedef struct {
    size_t size; /* sizeof(weft_step_tensor) */
    int64_t count;
    int group;
    int decay;
    int bf16_grad; /* the gradient is "bf16"; else it has the step's type */
    int copy; /* 1: the parameter's bf16 copy is written too; WEFT_STEP_COPY_COUNTS: and read */
    /* Muon: it is matrices of so many columns, one of `first_rows` (0: none) and behind it others of `rows`
     * each. It decays and has no v. 0: AdamW. */
    int64_t columns, rows, first_rows;
} weft_step_tensor;

/* The copy is the parameter that others see and set, and the wider one keeps what does not fit into it: where
 * the copy is not the wide one rounded, it was set since, and the step starts from its value. */
enum { WEFT_STEP_COPY_COUNTS = 2 };

/* `type`: "f32" or "f64" (CPU only), of parameters, moments, states, controls and rates. */
WEFT_API weft_status weft_step_open(weft_engine *engine, const char *type,
                                    const weft_step_group *groups, int n_groups,
                                    const weft_step_tensor *tensors, int n_tensors,
                                    weft_step **out);
/* Before its engine is closed. */
WEFT_API void weft_step_close(weft_step *step);
/* Of the workspace; 0 for NULL. */
WEFT_API int64_t weft_step_bytes(const weft_step *step);

/* Lengths of a group's state and of what a step reports about it. Of the report, element 16 is the
 * gradient's norm, 17 the rate that was used, 18 its factor from the warm-up, 19 to 21 whether the norm
 * was a spike, was clipped, was not finite (then nothing was changed). */
enum { WEFT_STEP_STATE = 112, WEFT_STEP_REPORT = 24 };

typedef struct {
    size_t size;          /* sizeof(weft_step_call) */
    void *const *rates;   /* by group: the learning rate, one number */
    void *const *states;  /* by group: WEFT_STEP_STATE numbers */
    void *const *reports; /* by group: WEFT_STEP_REPORT numbers, written */
    void *const *cuts;    /* by group: one i32, written: how many numbers spike clipping cut */
    void *const *params, *const *grads, *const *m, *const *v; /* by tensor; v not of Muon's */
    void *const *v_max;  /* by tensor, those of groups with amsgrad */
    void *const *copies; /* by tensor, those with `copy` */
    void *workspace;
    void *stream; /* a cudaStream_t; NULL: the default stream */
} weft_step_call;

WEFT_API weft_status weft_step_run(weft_step *step, const weft_step_call *call);

#ifdef __cplusplus
}
#endif
#endif
