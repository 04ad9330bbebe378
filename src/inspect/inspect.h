/* What the mechanisms of a trained model do on a text, as numbers.
 *
 * One forward pass a window keeps what each layer made (weft_build.scores, .inside); everything here is
 * computed from that in double, by the plain formulas. What a model does not have is NaN, or 0 of
 * them. */
#pragma once

#include "convert/measure.h"

#include <jansson.h>
#include <stdio.h>

enum { WEFT_GATE_BINS = 10, WEFT_LOOK_PARTS = 16 };

/* One head of one layer, in the mean over the tokens that see another one. */
typedef struct {
    double entropy; /* of its weights, in nats */
    double most;    /* the entropy of equal weights over the same tokens */
    double first;   /* weight on the first token */
    double self;    /* weight on the token itself */
    double back;    /* how many tokens back it looks, weighted */

    /* W2: the temperature (NaN: none); the mean deviation of queries and of keys; how much it varies from
     * token to token, as the standard deviation over the mean, in the mean over dimensions; and the
     * share of the weight that would lie elsewhere if all tokens had the same deviations. */
    double tau, sigma_q, sigma_k, spread_q, spread_k, moved;

    /* The gate: its mean and standard deviation over tokens, and how many lie in each tenth of 0 to 1. */
    double gate, gate_spread;
    int64_t gates[WEFT_GATE_BINS];
} weft_head_look;

/* Directions that tokens take in a latent of `width` numbers: the singular values of the latents
 * without their mean, over the root of the number of tokens, so that their squares are variances. */
typedef struct {
    int64_t width;  /* 0: there is no such latent */
    double *values; /* [width], falling */
    double rank;    /* effective: exp of the entropy of the values as shares of their sum */
    int64_t dirs_90, dirs_99; /* how many directions hold 90% and 99% of the variance */
} weft_spectrum_look;

typedef struct {
    weft_head_look *heads; /* [H] */

    /* The routes by SPARSE_MODE of the heads' weights, whether cross-token uses them or not, in the mean
     * over tokens that see more than could be kept (SPARSE_K, or one): how many are kept, the share of the weight that
     * they hold, and the shares of them that the same token kept in the layer before and that the token
     * before kept in this one. */
    double routes, kept, same_layer, same_token;

    weft_spectrum_look keys, values; /* of c^K and c^V; a joint latent is in keys alone */

    /* z-heads: the share of W_z's squared norm outside its blocks; the mean |cosine| between the context
     * vectors of two heads of one sequence; the mean cosine between those of one head in two
     * sequences (NaN: there is one sequence). */
    double z_off, z_between, z_across;
} weft_layer_look;

/* Tensors of one mechanism in a training pass. */
typedef struct {
    const char *name; /* "attention", "gate" */
    int64_t parameters;
    double weight_norm, gradient_norm;
} weft_part_look;

typedef struct {
    int64_t n_layers, n_heads, windows, time;
    weft_layer_look *layers;
    double loss; /* cross-entropy on the text */
    weft_part_look parts[WEFT_LOOK_PARTS];
    int n_parts;
} weft_inspection;

/* `gradients` adds a training pass over the first windows, for `parts`. */
weft_status weft_inspect(const weft_model *m, weft_backing place, const weft_windows *text,
                         bool gradients, weft_inspection *out);
void weft_inspection_free(weft_inspection *i);

/* Tables of text: what a model does not have is left out. */
void weft_inspection_print(const weft_inspection *i, FILE *out);
/* One object; numbers that there are none of are null. */
json_t *weft_inspection_json(const weft_inspection *i);
/* A page: the first tokens of the text with what each head looks at from them, heads named by what they do with
 * their numbers, heads by layers as grids, the latents' directions as curves. */
weft_status weft_inspection_page(const weft_inspection *i, const weft_model *m, weft_backing place,
                                 const weft_windows *text, const weft_tokenizer *t,
                                 const char *title, const char *path, bool force);

/* The object that report/inside.h draws. NULL: no memory. */
json_t *weft_inspection_inside(const weft_inspection *i);

/* Adds `inside`, that object as text with four digits a number, and by name as numbers: inside_NAME, the mean
 * over heads and layers; inside_gradient PART and inside_weight PART, the norms of a mechanism. */
void weft_inspection_facts(const weft_inspection *i, json_t *facts);

/* Inspects a model on the first held-out sequences of its dataset, and adds what is found. */
weft_status weft_inspect_held_out(const weft_model *m, weft_backing place, json_t *facts);
