/* The graph's own fields, for the files of the core that build and rewrite it. */
#pragma once

#include "core/graph.h"

typedef struct graph_block graph_block;

struct weft_graph {
    weft_node **nodes;
    int64_t n_nodes, cap_nodes;
    int64_t n_forward; /* nodes of the forward pass; -1 before backward: all of them */
    weft_tensor **tensors;
    int64_t n_tensors, cap_tensors;
    weft_tensor **named; /* [named_slots]: tensors by the hash of their names; NULL: a free slot */
    int64_t n_named, named_slots;
    graph_block *blocks; /* memory of nodes, tensors, names: one list of large blocks */
    const char *scope;
    int32_t segment, n_segments;
    void *owner;        /* of whoever builds it over the public header (api/graph.c); else NULL */
    bool constant;      /* there will be no gradient: parameters need none */
    weft_status status; /* the first error */
    char *message;
};

/* The tensor whose memory `t` is: itself unless it is a view. */
static inline weft_tensor *weft_tensor_root(weft_tensor *t) {
    return t->view_of ? t->view_of : t;
}

/* The maker of tensors that a rewrite has done away with; its index is -1. In no list. */
extern weft_node weft_node_gone;

/* A node without inputs checked or outputs made, not yet in the list. NULL: no memory. */
weft_node *weft_graph_node_new(weft_graph *g, const weft_op *op, weft_tensor *const *in, int n_in,
                               int n_out, const void *attr);
/* Closes the holes (NULL) in the list of nodes, and tells views who makes them now. */
void weft_graph_close_holes(weft_graph *g);
/* Appends a node to the list. */
weft_status weft_graph_node_push(weft_graph *g, weft_node *n);
/* A tensor without a name, in the list of tensors. */
weft_tensor *weft_graph_tensor_new(weft_graph *g, weft_role role, weft_dtype dtype, int ndim,
                                   const int64_t *shape);
