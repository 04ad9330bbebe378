/* Rewriting a graph by rules.
 *
 * A rule looks at two nodes that follow each other: one that makes a tensor and one that reads it.
 *
 *     {"norm's residual", &weft_op_norm, WEFT_NORM_R, &weft_op_matmul, false, fuse_residual}
 *
 * says: where input WEFT_NORM_R of a norm is made by a matmul, for this norm alone, try
 * fuse_residual on the two. The function looks at the rest (shapes, types, what is made before what)
 * and either leaves everything as it is and returns false, or changes the graph with the functions
 * below and returns true. They keep the books: who makes a tensor, how many read it, and that a
 * tensor which is no longer made cannot be used.
 *
 * weft_graph_rewrite walks over the nodes once, in order, and tries at each the rules of its
 * operation in the order of the table; after one has changed something the next node's turn comes. */
#pragma once

#include "core/graph.h"

typedef struct weft_rewrite weft_rewrite;

/* What a rule was found to fit: reader->in[input] is maker->out[output], or a view of it. */
typedef struct {
    weft_node *reader, *maker;
    int input, output;
} weft_match;

/* Instead of an input's number: each of them, the one that is made last first. */
enum { WEFT_ANY_INPUT = -1 };

typedef struct {
    const char *name;      /* in a few words; NULL ends a table */
    const weft_op *reader; /* the node that is looked at */
    int input;             /* which of its inputs, or WEFT_ANY_INPUT */
    const weft_op *maker;  /* what makes that input */
    bool shared;           /* others may read it too; false: the reader alone, and it is not kept */
    bool (*apply)(weft_rewrite *r, const weft_match *m); /* true: the graph is changed */
} weft_rule;

/* Rewrites what has been built: all of a forward pass, or of a graph with its gradient the backward
 * pass, without the nodes that make the forward pass's values again: what is recomputed stays what it
 * was. Kept tensors stay what they are. */
weft_status weft_graph_rewrite(weft_graph *g, const weft_rule *rules);

/* Asking. */

/* The node of operation `op` that makes `t` (or what it is a view of) as its output `output`, for
 * `reader` alone; NULL: it is none, or may not be changed. */
weft_node *weft_rewrite_find_maker(const weft_rewrite *r, weft_tensor *t, const weft_op *op,
                                   int output, const weft_node *reader);
/* Whether it is there before node n runs. */
bool weft_rewrite_is_made_before(weft_tensor *t, const weft_node *n);
/* Whether no node between the two writes to its inputs: what is read may be read sooner or later. */
bool weft_rewrite_is_quiet(const weft_rewrite *r, const weft_node *from, const weft_node *to);
/* Whether the node makes values of the forward pass again, for the backward pass. */
bool weft_rewrite_is_again(const weft_rewrite *r, const weft_node *n);

/* Changing. */

/* The node's attributes, its own to change; NULL: no memory. */
void *weft_rewrite_attr(weft_rewrite *r, weft_node *n, size_t size);
/* Node n reads `t` (NULL: nothing) as that input from now on. */
void weft_rewrite_read(weft_rewrite *r, weft_node *n, int input, weft_tensor *t);
/* Node n has these inputs from now on; false: no memory. */
bool weft_rewrite_read_all(weft_rewrite *r, weft_node *n, weft_tensor *const *in, int n_in);
/* Node n makes `t` (NULL: nothing) as that output from now on, and whoever made it does not. What n
 * made there before is gone: a later use of it is refused. */
void weft_rewrite_make(weft_rewrite *r, weft_node *n, int output, weft_tensor *t);
/* A node that makes nothing yet and has no place in the list; NULL: no memory. */
weft_node *weft_rewrite_new(weft_rewrite *r, const weft_op *op, weft_tensor *const *in, int n_in,
                            int n_out, const void *attr);
/* The node leaves the list, and what it still makes is gone. Its place stays free. */
void weft_rewrite_drop(weft_rewrite *r, weft_node *n);
/* Puts a node, new or from elsewhere in the list, into the place of one that was dropped. */
void weft_rewrite_place(weft_rewrite *r, weft_node *n, const weft_node *dropped);
/* Moves a node to right before a later one; what lies between closes up. */
void weft_rewrite_move_before(weft_rewrite *r, weft_node *n, const weft_node *other);
/* Has the rules tried at this node too, right after the one that says so. */
void weft_rewrite_again(weft_rewrite *r, weft_node *n);
