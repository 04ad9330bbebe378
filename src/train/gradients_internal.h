/* The sums' own struct, for the files that they are made of: gradients.c, and gradients_early.c, which
 * sends them while the backward pass still runs. */
#ifndef WEFT_TRAIN_GRADIENTS_INTERNAL_H
#define WEFT_TRAIN_GRADIENTS_INTERNAL_H

#include "comm/device_reduce.h"
#include "comm/reduce.h"
#include "core/rows.h"
#include "train/gradient_graphs.h"
#include "train/gradients.h"
#include "train/scatter.h"

enum { WEFT_GRADIENT_LEVELS = 40 };

/* One addition of the tree: into a level, from the session (-1) or from the level above it. */
typedef struct {
    const weft_gradients *g;
    int to, from;
    bool add;
    double factor; /* of the finished mean */
    int64_t first; /* chunk */
} weft_gradient_addition;

struct weft_gradients {
    weft_optimizer *optimizer;
    const weft_backend *backend;
    weft_pool *pool;
    weft_gradient_graphs *graphs; /* NULL: the host adds */
    int64_t n, count;             /* weights; micro-batches of a step, of all ranks */
    weft_comm *comm;
    weft_tree tree;
    int first_node, nodes;      /* of the tree, that are this rank's */
    int node;                   /* the one in the making, */
    int64_t taken;              /* and how many micro-batches of it were taken */
    weft_device_reduce *device; /* NULL: not from GPU to GPU */
    weft_reduce *reduce;        /* NULL: one rank, or */
    weft_scatter *scatter;      /* sums that ranks share */
    void **staged;              /* [nodes]: copies in the host's memory; NULL: the sums are there */
    void *queue;                /* of the backend's rows, beside its runs; NULL: it has none */
    weft_gradient *from;        /* [n]: the session's; data NULL: zeros */
    weft_dtype dtype;           /* of the sums */
    const weft_weight *weights;
    weft_partition shards; /* a level is its row, and a task a chunk */
    unsigned char
        *levels[WEFT_GRADIENT_LEVELS]; /* partial sums; levels[0] are the optimizer's buffers */
    int64_t level_bytes;
    int64_t *offsets; /* [n]: where a weight begins in a level */
    int depth;        /* sums on the stack */
    /* While the last micro-batch's backward pass runs: what is left to do for each weight, and how many
     * weights of a bucket have yet to be done. */
    weft_gradient_addition last[2 * WEFT_GRADIENT_LEVELS];
    int n_last;
    const weft_session *session;
    int64_t *made_by;   /* [n]: the node that ends a weight's gradient; -1: none */
    int64_t *due;       /* [buckets] */
    bool *finished;     /* [n] */
    bool early;         /* the last micro-batch runs, watched */
    weft_status status; /* of the early part */
};

/* Lists in `last` the additions of the next micro-batch's gradient. */
void weft_gradients_list(weft_gradients *g);
/* Does them for the chunks first .. first + count - 1, in the host's memory. */
void weft_gradients_add_chunks(weft_gradients *g, int64_t first, int64_t count);

/* Where a bucket lies in a level. */
typedef struct {
    int64_t first, count;
} weft_gradients_bytes;
weft_gradients_bytes weft_gradients_bucket(const weft_gradients *g, int64_t bucket);

/* The sum over ranks of the levels that are this rank's nodes, bucket by bucket. */
void weft_gradients_begin(weft_gradients *g);
weft_status weft_gradients_send(weft_gradients *g, int64_t bucket);
weft_status weft_gradients_end(weft_gradients *g);

/* Finds out which node makes a weight's gradient, unless WEFT_OVERLAP=0: then gradients leave after the
 * backward pass, to measure what the overlap is worth. */
weft_status weft_gradients_watch(weft_gradients *g, const weft_session *s);
/* After a run that was watched: what has not left yet. */
weft_status weft_gradients_finish(weft_gradients *g);

#endif
