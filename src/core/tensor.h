/* Tensors: a type, a shape, and who makes the values. Row-major and dense; there are no strides.
 * A tensor is a name for values in a graph: the memory belongs to whoever runs the graph. */
#ifndef WEFT_CORE_TENSOR_H
#define WEFT_CORE_TENSOR_H

#include "base/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

#endif
