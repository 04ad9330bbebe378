/* The optimizer's step as four operations: the gradient norm, which is two, what this step shall do, doing it.
 *
 *     norm    = weft_global_norm(g, grads, n);
 *     control = weft_adam_control(g, norm, lr, state, &options);
 *     cut     = weft_adamw(g, control, slots, n);
 *
 * No decision is left to the caller between them, and all that one step hands to the next is in
 * tensors (`state`, the moments, the parameters), so a whole training step can run without looking
 * at a value, and copying those tensors is a complete resume. Plain AdamW and AdamWSPAM are the
 * same operations with other options; Muon updates matrices behind the same norm and control
 * (weft_muon). The formulas are in optimizer.c. */
#pragma once

#include "core/graph.h"

/* What stays the same over a run. AdamW: the first five; the others 0. */
typedef struct {
    double beta1, beta2; /* in [0, 1): 0.9, 0.999 */
    double eps;          /* 0 or more: 1e-8 */
    double weight_decay; /* decoupled; acts on tensors of two or more dimensions only */
    double clip;         /* the largest global norm; 0: no clipping */

    double spike_threshold; /* deviations above the mean norm that make a spike: 2; 0: none */
    double theta;           /* spike clipping cuts g² to θ v̂: 50; 0: none */
    int64_t reset_interval; /* the moments are set to zero every so many steps; 0: never */
    int64_t warmup_steps;   /* after a reset the learning rate rises over these; 0: at once */
} weft_adam_options;

/* The state of weft_adam_control: a vector that starts as zeros. Counters are exact to 2^24 in f32. */
enum {
    WEFT_ADAM_HISTORY = 100, /* elements 0 .. 99: the norms of the last steps, in a ring */
    WEFT_ADAM_KNOWN = 100,   /* how many of them there are */
    WEFT_ADAM_NEXT,          /* where the next one goes */
    WEFT_ADAM_AGE,           /* steps since the start or the last reset: the bias corrections' t */
    WEFT_ADAM_STEPS,         /* steps done, the skipped ones not counted */
    WEFT_ADAM_SPIKES,        /* counters of events: norms that were spikes, */
    WEFT_ADAM_CLIPS,         /* steps whose norm was clipped, */
    WEFT_ADAM_RESETS,        /* resets, */
    WEFT_ADAM_SKIPS,         /* steps left out because the norm was not finite */
    WEFT_ADAM_MASKED,        /* no counter: the share that is masked, set by whoever makes masks */
    WEFT_ADAM_STATE = 112    /* length; the rest is 0 */
};

/* The control vector. The second half is for the reader of a run: what happened in this step. */
enum {
    WEFT_CONTROL_APPLY,      /* 0: leave everything as it is */
    WEFT_CONTROL_GRAD,       /* factor of the gradient: global clipping */
    WEFT_CONTROL_M,          /* factor of m before the step: ½ at a spike, else 1 */
    WEFT_CONTROL_V,          /* factor of v: 0.9 at a spike, else 1 */
    WEFT_CONTROL_CUT,        /* g² may be this times v: θ / (1 − β2^t); 0: no spike clipping */
    WEFT_CONTROL_BETA1,      /* */
    WEFT_CONTROL_BETA1_REST, /* 1 − β1 */
    WEFT_CONTROL_BETA2,      /* */
    WEFT_CONTROL_BETA2_REST, /* 1 − β2 */
    WEFT_CONTROL_STEP,       /* lr / (1 − β1^t) */
    WEFT_CONTROL_ROOT,       /* 1 / √(1 − β2^t): factor of √v */
    WEFT_CONTROL_EPS,        /* */
    WEFT_CONTROL_DECAY,      /* lr · weight decay */
    WEFT_CONTROL_RESET,      /* 1: the moments are zero after this step */

    WEFT_CONTROL_NORM = 16, /* the gradient norm before clipping */
    WEFT_CONTROL_LR,        /* the learning rate that was used, warm-up included */
    WEFT_CONTROL_WARMUP,    /* its factor from the warm-up after a reset */
    WEFT_CONTROL_SPIKE,     /* 1: the norm was a spike */
    WEFT_CONTROL_CLIPPED,   /* 1: the norm was clipped */
    WEFT_CONTROL_SKIPPED,   /* 1: the norm was not finite */
    WEFT_ADAM_CONTROL = 24  /* length; the rest is 0 */
};

/* √ Σ g² over all elements of n gradients (f32 and bf16, or f64), of any shapes: one number. The
 * sum is taken in double. NULLs in the list stand for zeros. */
weft_tensor *weft_global_norm(weft_graph *g, weft_tensor *const *grads, int n);

/* Its two halves, also for gradients of which no one process has all. A gradient is cut into chunks
 * of WEFT_NORM_CHUNK elements from its first on, and the sums of their squares are added up in the
 * order of the chunks; whoever has some of the chunks, whole, makes their sums, and whoever has all
 * sums joins them. */
enum { WEFT_NORM_CHUNK = 1 << 14 };
/* The sums of n gradients' chunks, i32 [chunks, 2]: doubles, as they lie in memory. */
weft_tensor *weft_norm_parts(weft_graph *g, weft_tensor *const *grads, int n);
/* parts [chunks, 2] to the norm, one number of that type. */
weft_tensor *weft_norm_join(weft_graph *g, weft_tensor *parts, weft_dtype dtype);

/* Decides a step. `norm` is one number; `lr` one number that the caller writes before each run;
 * `state` a WEFT_ROLE_STATE vector of WEFT_ADAM_STATE elements. All f32 or all f64. Returns the
 * control vector, kept. */
weft_tensor *weft_adam_control(weft_graph *g, weft_tensor *norm, weft_tensor *lr,
                               weft_tensor *state, const weft_adam_options *options);

/* Neighbouring matrices of one shape in a tensor, row-major, from element `first` on. */
typedef struct {
    int64_t first, count, rows, columns;
} weft_matrices;

enum { WEFT_MUON_PARTS = 2 }; /* of a tensor: its matrices have two shapes at most */

typedef struct {
    int n;
    weft_matrices part[WEFT_MUON_PARTS];
} weft_muon_parts;

/* A parameter and what belongs to it, all of one shape. */
typedef struct {
    weft_tensor *param; /* f32 or f64 */
    weft_tensor *grad;  /* of param's type, or bf16; NULL: zeros */
    weft_tensor *m, *v; /* states of param's type that start as zeros */
    weft_tensor *v_max; /* the same; with it the update is AMSGrad's. NULL: none */
    weft_tensor *copy;  /* bf16: gets the new parameter, rounded. NULL: none */
    /* bf16, may be `copy`: where it is not the parameter rounded, someone else wrote it, and the
     * parameter takes its value before the step. NULL: none. */
    weft_tensor *given;
    double rate;              /* factor of its learning rate, decay apart; 0: 1 */
    weft_muon_parts matrices; /* which fill it: Muon's, with grad and m alone. n 0: AdamW's */
    weft_tensor *mask;        /* i8: weft_zero_masked's. NULL: none */
} weft_adam_slot;

/* Updates those of n parameters that are AdamW's. Returns how many elements spike clipping cut in this
 * step: an i32 number, kept. NULL: none is. */
weft_tensor *weft_adamw(weft_graph *g, weft_tensor *control, const weft_adam_slot *slots, int n);

/* Muon's momentum as it was published. */
#define WEFT_MUON_MOMENTUM 0.95

typedef struct {
    double momentum;
    bool narrow; /* bf16 products where the parameters are f32 */
    /* Most bytes of equal shapes of several tensors that go through the products as one batch; 0: every
     * tensor's by themselves. */
    int64_t together;
} weft_muon_options;

/* What serves on a GPU (`remote`), where many matrices at a time keep it busy, and on a CPU, where that is
 * worth no memory but for small ones. */
weft_muon_options weft_muon_defaults(double momentum, bool remote);

/* Updates those of n parameters that are Muon's, each matrix orthogonalised on its own. Behind
 * weft_adam_control, whose clipping, rate and decay it takes; its moments' factors are AdamW's alone. On
 * the CPU no bit depends on what goes together. */
void weft_muon(weft_graph *g, weft_tensor *control, const weft_adam_slot *slots, int n,
               const weft_muon_options *options);

/* Sets those of n parameters that have a mask, and their copies, to zero where it is 0. Behind what updates
 * them. */
void weft_zero_masked(weft_graph *g, const weft_adam_slot *slots, int n);

/* For kernels: its inputs, of the first parameter; those of the next ones follow. */
enum { WEFT_MASKED_PARAM, WEFT_MASKED_COPY, WEFT_MASKED_MASK, WEFT_MASKED_SIZE };

/* For kernels: matrices of one shape that go together, in pieces, of one tensor each.
 * muon_direction: control, then of each piece gradient and m → Ĝ/(‖Ĝ‖ + ε), [matrices, rows, columns].
 * muon_step: control, X as the direction has it, then of each piece parameter, copy, given; the same
 * attributes. */
enum { WEFT_MUON_PIECES = 64 };

typedef struct {
    int64_t first, count; /* of its tensor: so many matrices from that element on */
    int64_t at;           /* which matrix of X is its first */
    double factor;        /* of the learning rate, for X */
} weft_muon_piece;

typedef struct {
    int64_t rows, columns;
    double momentum;
    weft_dtype dtype; /* of X */
    int n;
    weft_muon_piece piece[WEFT_MUON_PIECES];
} weft_muon_attr;

/* Inputs of the first piece; those of the next ones follow. */
enum { WEFT_MUON_GRAD = 1, WEFT_MUON_M, WEFT_MUON_DIRECTION_SIZE = 2 };
enum { WEFT_MUON_X = 1, WEFT_MUON_PARAM, WEFT_MUON_COPY, WEFT_MUON_GIVEN, WEFT_MUON_STEP_SIZE = 3 };

/* For kernels: a slot's tensors are the node's inputs 1 + WEFT_SLOT_SIZE · slot + ..., and the factor of
 * its learning rate is the slot's number of the node's attributes, doubles; no attributes: 1. */
enum {
    WEFT_SLOT_PARAM,
    WEFT_SLOT_GRAD,
    WEFT_SLOT_M,
    WEFT_SLOT_V,
    WEFT_SLOT_V_MAX,
    WEFT_SLOT_COPY,
    WEFT_SLOT_GIVEN,
    WEFT_SLOT_SIZE
};
