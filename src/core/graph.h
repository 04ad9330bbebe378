/* The static graph: a list of nodes, each an operation on tensors, in the order they run.
 *
 * A model is built once for a shape. weft_graph_backward appends the gradient's nodes to the same
 * list, so the planner (plan.h) sees every lifetime before anything runs, and the executor
 * (exec.h) just walks the list.
 *
 * Building does not need a check after every call: the first error is kept in the graph, a failed
 * call returns NULL, a NULL where a tensor is required makes the next call fail quietly, and
 * weft_graph_status gives the first error at the end. */
#pragma once

#include "base/dtype.h"

/* A tensor: a type, a shape, and who makes the values. Row-major and dense; there are no strides.
 * It is a name for values in a graph: the memory belongs to whoever runs the graph. */
enum { WEFT_MAX_DIMS = 4 };

typedef enum {
    WEFT_ROLE_INPUT, /* the caller writes it before a run */
    WEFT_ROLE_PARAM, /* the same, and backward makes its gradient */
    WEFT_ROLE_STATE, /* the same, and an operation may write it: optimizer moments, caches */
    WEFT_ROLE_TEMP   /* an operation makes it */
} weft_role;

typedef struct weft_tensor weft_tensor;
typedef struct weft_node weft_node;
typedef struct weft_graph weft_graph;

struct weft_tensor {
    int32_t id; /* index in the graph's list of tensors */
    weft_dtype dtype;
    weft_role role;
    int ndim;
    int64_t shape[WEFT_MAX_DIMS]; /* outermost first; ndim 0 is one number */
    const char *name;             /* inputs, parameters, states: unique; others may be NULL */
    bool needs_grad;              /* a gradient flows into it */
    bool keep;                    /* read after the run: its memory is not given to another */
    weft_node *producer;          /* the node that makes it; NULL for inputs and the like */
    weft_tensor *view_of;         /* the same memory under another shape; NULL: its own */
    weft_tensor *grad;            /* set by weft_graph_backward; NULL: nothing depends on it */
};

/* Number of elements, and of bytes. */
int64_t weft_tensor_count(const weft_tensor *t);
int64_t weft_tensor_bytes(const weft_tensor *t);
/* Elements before the last dimension: what a row-wise operation calls its rows. 1 for ndim 0. */
int64_t weft_tensor_rows(const weft_tensor *t);
/* The last dimension: a row's width. 1 for ndim 0. */
int64_t weft_tensor_width(const weft_tensor *t);
bool weft_tensor_same_shape(const weft_tensor *a, const weft_tensor *b);

/* "f32 [2, 3, 4]" in a buffer of the calling thread; eight may be alive at a time. */
const char *weft_tensor_describe(const weft_tensor *t);

typedef struct weft_op weft_op;

struct weft_node {
    const weft_op *op;
    int32_t index; /* place in the list */
    int n_in, n_out;
    weft_tensor **in;  /* optional inputs that were not given are NULL */
    weft_tensor **out; /* optional outputs that are not made are NULL */
    const void *attr;  /* the operation's own attribute struct; NULL: it has none */
    int32_t segment;   /* recomputation segment; 0: none. Of the backward pass: it is a double */
};

/* What the core knows of an operation: everything but the arithmetic. src/ops defines them, one
 * file a family; a backend has a kernel for each `id`. */
struct weft_op {
    const char *name;
    int id; /* index in the backends' tables: WEFT_OP_... of ops/list.h */

    /* Checks n->in and n->attr, and makes n->out with weft_node_output. Errors name the operation
     * and both shapes. */
    weft_status (*infer)(weft_graph *g, weft_node *n);

    /* Appends the nodes of the gradient. d_out[i] is the gradient of n->out[i], NULL where nothing
     * depends on it; sets d_in[i] for the inputs with needs_grad (others are ignored). NULL: the
     * operation has no gradient (it is one itself). Returning WEFT_OK with d_in[i] left NULL means
     * a gradient of zero. */
    weft_status (*grad)(weft_graph *g, const weft_node *n, weft_tensor *const *d_out,
                        weft_tensor **d_in);

    /* Which input's memory output `out` may take over when that input is not read again: its
     * index, or -1. NULL: none. The kernel must then be right when the two are the same memory. */
    int (*inplace)(const weft_node *n, int out);

    /* Floating-point operations of one run, for `weft plan` and benchmarks. NULL: not counted. */
    int64_t (*flops)(const weft_node *n);

    /* Writes to its inputs (optimizer steps, caches): never dropped as unused. */
    bool side_effect;
};

weft_status weft_graph_create(weft_graph **out);
void weft_graph_destroy(weft_graph *g);
WEFT_ENDED_BY(weft_graph_destroy, weft_graph)

/* The first error of a build, WEFT_OK if none; the message is set again for the caller. */
weft_status weft_graph_status(const weft_graph *g);

/* Inputs, parameters and states. The name is copied and must be new in the graph. Sizes must be
 * positive. */
weft_tensor *weft_graph_tensor(weft_graph *g, weft_role role, const char *name, weft_dtype dtype,
                               int ndim, const int64_t *shape);
/* The same with the shape written out: weft_new_tensor(g, WEFT_ROLE_INPUT, "x", WEFT_F32, 3, 4). */
#define weft_new_tensor(g, role, name, dtype, ...)                                                 \
    weft_graph_tensor((g), (role), (name), (dtype), WEFT_DIMS(__VA_ARGS__))
/* The last two arguments of a function that wants ndim and shape. */
#define WEFT_DIMS(...)                                                                             \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), ((int64_t[]){__VA_ARGS__})

/* The tensor of that name; NULL if there is none. */
weft_tensor *weft_graph_find(const weft_graph *g, const char *name);

/* Marks a tensor as read after the run. Returns it. */
weft_tensor *weft_keep(weft_tensor *t);

/* Names the nodes that follow ("h.3.attn") in the messages of errors. */
void weft_graph_scope(weft_graph *g, const char *name);

/* Between begin and end, what the nodes make is thrown away after the forward pass and made again
 * when the gradient needs it. Segments do not nest. */
void weft_graph_recompute_begin(weft_graph *g);
void weft_graph_recompute_end(weft_graph *g);

/* Appends a node: copies the lists and `attr_size` bytes of attributes, runs op->infer. Returns
 * NULL on error, and when one of `required` leading inputs is NULL. `n_out` is how many outputs
 * the operation can have. */
weft_node *weft_graph_append(weft_graph *g, const weft_op *op, weft_tensor *const *in, int n_in,
                             int required, int n_out, const void *attr, size_t attr_size);

/* For infer: makes output `index`. needs_grad is set where op->grad is there and an input has it. */
weft_tensor *weft_node_output(weft_graph *g, weft_node *n, int index, weft_dtype dtype, int ndim,
                              const int64_t *shape);
/* The same shape as another tensor. */
weft_tensor *weft_node_output_like(weft_graph *g, weft_node *n, int index, weft_dtype dtype,
                                   const weft_tensor *like);

/* The same values under another shape of as many elements; no work, no memory. */
weft_tensor *weft_reshape(weft_graph *g, weft_tensor *t, int ndim, const int64_t *shape);
#define weft_view(g, t, ...) weft_reshape((g), (t), WEFT_DIMS(__VA_ARGS__))

/* The two operations that autodiff needs for itself: a + b, and a tensor of ones shaped like
 * another. The core knows no operation, so src/ops/arith.c defines this. */
typedef struct {
    weft_tensor *(*add)(weft_graph *g, weft_tensor *a, weft_tensor *b);
    weft_tensor *(*ones)(weft_graph *g, const weft_tensor *like);
} weft_autodiff;
extern const weft_autodiff weft_autodiff_ops;

/* Appends the gradient of `loss` (one number) for every parameter, and for every tensor that
 * has needs_grad set by the caller: afterwards t->grad is its gradient, kept; NULL where the loss
 * does not depend on it. `dloss` is the gradient of the loss itself, NULL for 1. Nodes that nothing
 * kept depends on are dropped. Once a graph. */
weft_status weft_graph_backward(weft_graph *g, weft_tensor *loss, weft_tensor *dloss);

/* Gradients of several outputs at once: the gradient of Σ ⟨loss[i], dloss[i]⟩, where dloss[i] has
 * loss[i]'s shape. This is what tests of an operation with several outputs use. */
weft_status weft_graph_backward_many(weft_graph *g, int n, weft_tensor *const *loss,
                                     weft_tensor *const *dloss);

/* Drops the nodes that make nothing which is kept or read, and numbers the rest anew. The functions
 * above end with it; a graph without a gradient may ask for it. */
weft_status weft_graph_drop_unused(weft_graph *g);

/* Read access for planner, executor and tools. */
int64_t weft_graph_node_count(const weft_graph *g);
const weft_node *weft_graph_node(const weft_graph *g, int64_t i);
int64_t weft_graph_tensor_count(const weft_graph *g);
weft_tensor *weft_graph_tensor_at(const weft_graph *g, int64_t i);
/* Nodes before this index are the forward pass (all of them before weft_graph_backward). */
int64_t weft_graph_forward_count(const weft_graph *g);

/* For operations: records an error in the graph as weft_fail does, with the scope's name. */
weft_status weft_graph_fail(weft_graph *g, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The same for functions that return a pointer or a truth: NULL. And that there is no memory, as it says. */
#define weft_graph_refuse(...) ((void)weft_graph_fail(__VA_ARGS__), NULL)
void *weft_graph_no_memory(weft_graph *g, const char *message);

/* For operations: memory that lives as long as the graph; zeroed. NULL (and the graph's error
 * set) when there is none. */
void *weft_graph_alloc(weft_graph *g, size_t bytes);
