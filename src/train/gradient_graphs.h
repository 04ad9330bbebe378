/* The additions of gradients.h as graphs, for a backend whose memory the host cannot reach: the same
 * sums in the same order, by the operations add, scale and cast. */
#ifndef WEFT_TRAIN_GRADIENT_GRAPHS_H
#define WEFT_TRAIN_GRADIENT_GRAPHS_H

#include "train/optimizer.h"

typedef struct weft_gradient_graphs weft_gradient_graphs;

/* Where everything lies, in the backend's memory. */
typedef struct {
    const weft_backend *backend;
    weft_pool *pool;
    int64_t n;
    const weft_weight *weights;   /* [n] */
    const weft_gradient *from;    /* [n]: a micro-batch's; data NULL: zeros */
    unsigned char *const *levels; /* [depth] of f32 sums */
    int depth;
    const int64_t *offsets; /* [n]: where a weight begins in a level */
    int64_t bytes;          /* of a level */
    int64_t count;          /* micro-batches */
} weft_gradient_places;

weft_status weft_gradient_graphs_create(const weft_gradient_places *places,
                                        weft_gradient_graphs **out);
void weft_gradient_graphs_destroy(weft_gradient_graphs *g);

/* level = or += what the session made. */
weft_status weft_gradient_graphs_take(weft_gradient_graphs *g, int level, bool add);
/* The level below += level. */
weft_status weft_gradient_graphs_merge(weft_gradient_graphs *g, int level);
/* Level 0, the sum, becomes the mean. */
weft_status weft_gradient_graphs_mean(weft_gradient_graphs *g);

#endif
