/* The executor: a planned graph on a backend, ready to run again and again.
 *
 *     weft_exec_create(graph, weft_cpu_backend(), pool, NULL, &exec);
 *     weft_exec_write(exec, x, values);             inputs and parameters
 *     weft_exec_run(exec, &(weft_run){.seed = 1});  no allocation inside
 *     weft_exec_read(exec, loss, &value);
 */
#pragma once

#include "core/plan.h"
#include "core/pool.h"

typedef struct weft_exec weft_exec;

/* What a run's random numbers depend on beside the site: see random.h. */
typedef struct {
    uint64_t seed;
    uint32_t iteration;
    uint32_t sequence; /* place in the whole batch of this graph's first sequence */
    bool alone; /* of a decode graph: a row's bits are those of a run of one (core/decoding.h) */
} weft_run;

/* One operation on one backend. */
typedef struct {
    /* Does the node's work. Fails only on values that cannot be used (a token outside the
     * vocabulary), never on shapes: infer has checked them. */
    weft_status (*run)(weft_exec *x, const weft_node *n);
    /* Bytes of scratch the node needs; NULL: none. May depend on the number of threads, results
     * may not. */
    int64_t (*workspace)(const weft_node *n, int threads);
    /* Where run only starts the work and a bad value is found later (a GPU): the error for what
     * the kernel noted at `place`, a number of its own. NULL: it notes nothing. */
    weft_status (*explain)(weft_exec *x, const weft_node *n, int64_t place);
} weft_kernel;

struct weft_backend {
    const char *name;
    /* The kernel for a node, by operation and type; NULL: this backend has none. */
    const weft_kernel *(*kernel)(const weft_node *n);
    void *(*alloc)(int64_t bytes); /* the arena; NULL: no memory */
    void (*release)(void *memory, int64_t bytes);
    /* Copies between the host's memory and the backend's. They fail where a device is lost; what was
     * to be written is then worth nothing. */
    weft_status (*upload)(void *to, const void *from, int64_t bytes)
        __attribute__((warn_unused_result));
    weft_status (*download)(void *to, const void *from, int64_t bytes)
        __attribute__((warn_unused_result));
    int64_t (*memory)(void); /* bytes a process may use on this machine; 0: unknown */

    /* The rest is for backends whose memory or time is not the host's; NULL: as on the CPU. */
    bool remote; /* the host cannot read what alloc gives; only upload and download can */
    weft_status (*fill)(void *to, int byte, int64_t bytes) /* memset */
        __attribute__((warn_unused_result));
    /* What an executor holds on the device beside its arena: weft_exec_state gives it back. */
    weft_status (*open)(weft_exec *x, void **state);
    void (*close)(void *state);
    /* One whole run: calls weft_exec_walk, or repeats what it did. */
    weft_status (*run)(weft_exec *x);
    /* The hash of what this process chose by measuring, where the last bits depend on it. */
    uint32_t (*choices)(void);
    /* For calls over memory that is another's (function.h); NULL: kernels are just run. */
    const struct weft_call_backend *calls;
    /* Bytes of the device's memory that this process holds, by the device's own count. */
    int64_t (*taken)(void);
    /* Adding rows there (rows.h): a remote backend that trains has them. */
    const struct weft_row_backend *rows;
    /* Runs of generation that do not wait for the host (core/decoding.h); NULL: it waits for each. */
    const struct weft_sampler_backend *samplers;
};

typedef struct {
    /* The plan of program.h, which the executor takes over, come what may. It must have been made for
     * this graph and this backend, and the bindings below are what it left outside. NULL: that
     * of the graph as it is, by the options below. */
    weft_plan *planned;
    weft_plan_options plan;
    /* Memory of tensors that several graphs share (parameters, states): pairs that end on NULL.
     * Aligned to WEFT_ARENA_ALIGN. */
    const struct weft_binding *bindings;
    bool poison; /* tests: fill the arena with NaN before each run, inputs apart */
} weft_exec_options;

typedef struct weft_binding {
    const weft_tensor *tensor; /* NULL ends the list */
    void *data;
} weft_binding;

weft_status weft_exec_create(weft_graph *g, const weft_backend *backend, weft_pool *pool,
                             const weft_exec_options *options, weft_exec **out);
void weft_exec_destroy(weft_exec *x);
WEFT_ENDED_BY(weft_exec_destroy, weft_exec)

/* From now on `after` is called for each node in their order, from the thread that runs, when what it makes
 * is there; NULL: not called. */
void weft_exec_watch(weft_exec *x, void (*after)(void *context, const weft_node *n), void *context);
/* Where the kernels of a backend only start their work, a watched run looks at it no more often than
 * this: parts[i] is the node after the last of the i-th part, ascending up to the number of nodes, and
 * `after` is called for all nodes of a part when the last of them is done. To be set once, before the
 * first run; without it there is one part. */
weft_status weft_exec_cut(weft_exec *x, const int64_t *parts, int n);

/* Walks the nodes. On an error the message names the node. */
weft_status weft_exec_run(weft_exec *x, const weft_run *run);

/* Copies a tensor's bytes in and out. A temporary can be read only if it is kept. */
weft_status weft_exec_write(weft_exec *x, const weft_tensor *t, const void *from);
weft_status weft_exec_read(weft_exec *x, const weft_tensor *t, void *to);
const weft_plan *weft_exec_plan(const weft_exec *x);

/* For kernels. */
void *weft_data(const weft_exec *x, const weft_tensor *t); /* NULL for a NULL tensor */
void *weft_workspace(const weft_exec *x, const weft_node *n);
weft_pool *weft_exec_pool(const weft_exec *x);
const weft_run *weft_exec_current_run(const weft_exec *x);

/* For backends. */
const weft_graph *weft_exec_graph(const weft_exec *x);
const weft_kernel *weft_exec_kernel(const weft_exec *x, int64_t node);
void *weft_exec_state(const weft_exec *x);
/* Whether the time of each node is taken (WEFT_PROFILE). Such a run is not replayed. */
bool weft_exec_profiled(const weft_exec *x);
/* Whether `after` is wanted in this run, and the parts; a backend with a `run` of its own calls
 * weft_exec_made when the nodes first .. last - 1 are done, in their order. */
bool weft_exec_is_watched(const weft_exec *x);
int weft_exec_parts(const weft_exec *x, const int64_t **parts);
void weft_exec_made(weft_exec *x, int64_t first, int64_t last);
/* Runs the kernels in order. Where kernels only start their work, `mark` is called before the first
 * (with -1) and after each of a profiled run, to note the time on the device; when the run is over
 * the times are given to weft_exec_timed, by node in seconds. NULL: the host's clock is right. */
weft_status weft_exec_walk(weft_exec *x, void (*mark)(weft_exec *x, int64_t node));
/* Runs the kernels of nodes first .. last - 1. */
weft_status weft_exec_walk_part(weft_exec *x, int64_t first, int64_t last);
void weft_exec_timed(weft_exec *x, const double *seconds);
