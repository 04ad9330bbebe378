/* A model's graph for generation: rows of tokens that find what came before them in a cache
 * (ops/cache.h). The same description of the model as for training, with another way to attend
 * (builder.h). */
#pragma once

#include "model/transformer.h"
#include "ops/cache.h"

typedef struct {
    int64_t rows;    /* R: tokens of a run */
    int64_t wanted;  /* rows whose logits are made, at most */
    bool block;      /* rows need not have the bits that they have alone */
    int64_t slots;   /* sequences that have a place */
    int64_t pages;   /* of the pool */
    int64_t context; /* tokens that a row sees at most */
    /* Of a sequence; weft_cached_table_pages, or more where rows of one run may take the place of what
     * its first rows still see. */
    int64_t table_pages;
    weft_dtype dtype, cache_dtype;
    bool head_copy; /* the head's matrix is its own: kept in another type than the table */
} weft_cached_shape;

/* A matrix that is formed once when generation begins: factor times the product of some parameters of the
 * model, or a copy of one. An input of the graph. */
enum { WEFT_DERIVED_OF = 4 };
typedef struct {
    weft_tensor *tensor;
    char of[WEFT_DERIVED_OF][96]; /* names */
    int n_of;
    double factor;
} weft_derived;

/* A graph of generation. Its states, named "h.I.cache.*" (pages, [pages, bytes] i8) and
 * "h.I.sequence.*" ([slots, ...]), are the same for every number of rows and are bound to one memory. */
typedef struct {
    weft_model_graph model; /* tokens [R, 1] */
    weft_rows rows;
    /* [WEFT_KEY_BLOCK, 2, n/2]: weft_cached_rotations fills it; NULL: not there */
    weft_tensor *rotations;
    weft_rope_law law;   /* of rotations */
    weft_tensor *wanted; /* [wanted] i32: rows */
    weft_tensor *logits; /* [wanted, 1, V] kept */
    weft_derived *derived;
    int64_t n_derived, cap_derived;
    weft_cached_shape shape;
    weft_tensor *weights;  /* of the layer that is being built */
    weft_cache_query kept; /* of the last layer that made keys, for those that share them */
} weft_cached_graph;

/* Refuses configs that cannot generate. */
weft_status weft_cached_check(const weft_config *c);
weft_status weft_cached_build(const weft_config *c, const weft_cached_shape *shape,
                              weft_cached_graph *out);
void weft_cached_destroy(weft_cached_graph *g);

/* Pages that a sequence of `context` tokens needs at most: the width of the table. */
int64_t weft_cached_table_pages(int64_t context);
/* Cosines and sines for `rotations`. */
void weft_cached_rotations(const weft_cached_graph *g, double *out);

/* Bytes that one layer, and that all layers keep of a token. */
int64_t weft_cached_layer_bytes(const weft_config *c, int64_t layer, weft_dtype dtype);
int64_t weft_cached_token_bytes(const weft_config *c, weft_dtype dtype);
/* CACHE_DTYPE as a type, in a model that computes in `dtype`. */
weft_dtype weft_cached_dtype(const weft_config *c, weft_dtype dtype);
/* Bytes that all layers keep of a sequence beside that, its context being CONTEXT. */
int64_t weft_cached_sequence_bytes(const weft_config *c, weft_dtype dtype);
