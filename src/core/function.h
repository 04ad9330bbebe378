/* A graph as a function and its gradient, over memory that is another's.
 *
 * An executor (exec.h) owns the memory it runs in. A function owns none: its plan is cut between
 * forward and backward pass, and every call brings the addresses of inputs, weights, outputs and
 * gradients, of what is saved between the passes and of a workspace. They may be others at each call.
 * A call allocates nothing. On a GPU it puts its kernels on the stream that it is given and returns
 * without waiting. One whose addresses came before may be a replay of kernels that were captured then;
 * a stream that the caller captures gets the kernels themselves.
 *
 * Calls may come from any thread, also at the same time where the backend's kernels run on a device;
 * on the CPU the caller sees to it that one call at a time uses the pool. */
#pragma once

#include "core/exec.h"

typedef struct weft_function weft_function;

/* A call as a backend starts it. */
typedef struct {
    int64_t first, last; /* nodes, the last one excluded */
    void *memory;        /* the backend's own bytes of the workspace */
    void *stream;
    /* All that the addresses of the pass's tensors and workspaces follow from. */
    const void *const *addresses;
    int n_addresses;
} weft_call_start;

/* What a backend whose kernels only start their work does for a call. */
struct weft_call_backend {
    int64_t bytes; /* of each workspace that a call takes for itself, before the plan's */
    /* What weft_exec_state gives kernels during a call: one for each call that runs at a time. */
    weft_status (*open)(void **state);
    void (*close)(void *state);
    weft_status (*start)(weft_exec *x, const weft_call_start *call);
    /* The node that met a value it could not use since the last time one asked, and the place that its
     * kernel noted; false: none that has become known. */
    bool (*fault)(void *state, int64_t *node, int64_t *place);
    /* Waits for everything that was started, and keeps what was chosen by measuring. */
    weft_status (*settle)(void);
};

typedef enum { WEFT_HALF_FORWARD, WEFT_HALF_BACKWARD } weft_half;

/* The memory of a call. What a pass does not use may be NULL (weft_function_uses). */
typedef struct {
    void *const *bound; /* in the order of weft_function_create */
    void *saved;        /* the same for both passes */
    void *workspace;
    void *stream; /* the GPU's; NULL: its default one */
    weft_run run; /* the same for both passes */
} weft_call_memory;

/* `bound`: the tensors whose addresses calls bring: every input, parameter and state, and every kept
 * tensor; places that are NULL count, and nothing uses them. The graph is complete (program.h) and stays the caller's; it outlives the function. */
weft_status weft_function_create(weft_graph *g, const weft_backend *backend, weft_pool *pool,
                                 const weft_tensor *const *bound, int n_bound, weft_function **out);
void weft_function_destroy(weft_function *f);

/* Bytes of what is saved, and of a pass's workspace. */
int64_t weft_function_saved_bytes(const weft_function *f);
int64_t weft_function_workspace_bytes(const weft_function *f, weft_half half);
/* Whether a pass reads or writes the bound tensor of that number. */
bool weft_function_uses(const weft_function *f, weft_half half, int bound);

/* One pass. An address that it uses must not be NULL and lies at a multiple of WEFT_ARENA_ALIGN. */
weft_status weft_function_call(weft_function *f, weft_half half, const weft_call_memory *memory);

/* The first value that a call since the last check could not use (a token outside the vocabulary), as
 * far as it is known: on a GPU, when the call's work is done. */
weft_status weft_function_check(weft_function *f);

/* Runs both passes once on memory of its own, so that whatever is chosen or loaded once is before a
 * call needs it. Nothing to do on the CPU. */
weft_status weft_function_prepare(weft_function *f);
