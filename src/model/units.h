/* Units of a model's layers (heads, columns of the feed-forward and the like), the weights that make or read
 * each, how important weights and units are, and which of them stay. `weft prune` removes the others;
 * training with PRUNE masks them. */
#pragma once

#include "model/model.h"

typedef enum {
    WEFT_PRUNE_HEADS,   /* attention heads; with shared keys and values, groups of them */
    WEFT_PRUNE_FFN,     /* columns of the feed-forward; of wsffn, as many of each z-head */
    WEFT_PRUNE_Z_HEADS, /* z-heads with their columns */
    WEFT_PRUNE_CROSS    /* columns of W_c, or directions of it where its rank is limited */
} weft_prune_what;

/* A tensor of a layer that units have a part of: along `axis`, unit u has the
 * indices from `first` + u · `size` on, `size` of them. A tensor may have several of these. */
typedef struct {
    char name[64]; /* without "h.I." */
    int axis;
    int64_t first, size;
    bool counts; /* its weights count for importance */
    bool zeroed; /* in a sparse model; others are left as they are, since nothing reads them then */
    bool next;   /* it is about the units of the next layer: the gates of its heads */
} weft_unit_piece;

enum { WEFT_UNIT_PIECES = 32 };

/* A list of them being made, of at most that many. */
typedef struct weft_unit_list {
    weft_unit_piece *pieces;
    int n;
} weft_unit_list;

/* Adds a piece that counts; zeroed: one without which nothing reads the others. */
weft_unit_piece *weft_unit_add(weft_unit_list *l, const char *name, int axis, int64_t first,
                               int64_t size);
void weft_unit_add_zeroed(weft_unit_list *l, const char *name, int axis, int64_t first,
                          int64_t size);

typedef struct {
    weft_prune_what what;
    bool sparse;             /* zeros in place: all shapes stay */
    int64_t n_layers, units; /* of each layer */
    int64_t block;           /* so many neighbours among them lose alike; all: one block */
    bool *kept;              /* [layers, units]: those that stay; false to begin with */
    int n_pieces;
    weft_unit_piece pieces[WEFT_UNIT_PIECES];
} weft_units;

/* The units of a model. Refuses what it has none of, and what cannot be removed; `option` begins the
 * message: "--what ". */
weft_status weft_units_make(const weft_config *c, weft_prune_what what, bool sparse,
                            const char *option, weft_units *out);
void weft_units_free(weft_units *u);

/* How important a weight is: */
typedef enum {
    WEFT_BY_MAGNITUDE, /* w² */
    WEFT_BY_CURVATURE, /* w² v, v its second moment: about twice what the loss rises by without it */
    WEFT_BY_STATE,     /* w² √v, the square of |w| v^¼ */
    WEFT_BY_MOVEMENT   /* w (w − w0), w0 where it began: below 0 where it has gone towards zero */
} weft_prune_by;

typedef struct {
    weft_prune_by by;
    /* What goes with the weights: v or w0, [count]. Not called by magnitude. */
    weft_status (*read)(void *context, const weft_weight *w, double *out);
    /* Which are left, [count]: the others are less important than any. NULL: all are. */
    weft_status (*left)(void *context, const weft_weight *w, bool *out);
    void *context;
} weft_weighing;

/* The importance of each element: *out is malloc'd. */
weft_status weft_weigh(const weft_weight *w, const weft_weighing *how, double **out);
/* Of each unit of a layer: the sums over its weights that count. */
weft_status weft_units_weigh(const weft_units *u, const weft_model *m, int64_t layer,
                             const weft_weighing *how, double *sums);

/* Marks the `left` largest of n; of equal ones the first. */
void weft_mark_largest(const double *scores, int64_t n, int64_t left, bool *kept);
/* Marks the units of a layer that stay, `left` of each block. */
void weft_units_choose(weft_units *u, int64_t layer, const double *sums, int64_t left);
/* Which elements of a weight stay with the units that do: [count]. */
void weft_units_mark(const weft_units *u, const weft_weight *w, bool *stay);

weft_weight *weft_layer_weight(const weft_model *m, int64_t layer, const char *name);
/* The layer and the name within it of "h.I.NAME"; false: it is no layer's. */
bool weft_in_layer(const char *full, int64_t *layer, const char **name);

/* Training with PRUNE: refuses what cannot be; *units are those of PRUNE_WHAT, none with "weights". */
weft_status weft_prune_check(const weft_config *c, const char *where, weft_units *units);
/* Whether a weight has a mask then. */
bool weft_weight_is_masked(const weft_config *c, const char *name, int ndim);
/* How many of n are masked at a sparsity; never all. */
int64_t weft_masked_of(double sparsity, int64_t n);
