/* What the mechanisms of a trained model do on a text, as numbers.
 *
 * One forward pass a window keeps what each layer made (weft_build.scores, .inside); everything here is computed from
 * that in double, by the plain formulas. What a model does not have is NaN, or 0 of them. */
#pragma once

#include "convert/measure.h"

enum { WEFT_GATE_BINS = 10, WEFT_LOOK_PARTS = 16 };

/* What is measured of a head, in the mean over the tokens that see another one, in the order of weft_inside_heads
 * (report/page.h), which says what each number is. With W2, MOVED is the share of the weight that would lie elsewhere
 * if all tokens had the same deviations. */
enum {
    WEFT_HEAD_ENTROPY,
    WEFT_HEAD_ENTROPY_SHARE,
    WEFT_HEAD_FIRST,
    WEFT_HEAD_SELF,
    WEFT_HEAD_BACK,
    WEFT_HEAD_TAU,
    WEFT_HEAD_SIGMA, /* of queries, then of keys */
    WEFT_HEAD_SPREAD = WEFT_HEAD_SIGMA + 2,
    WEFT_HEAD_MOVED = WEFT_HEAD_SPREAD + 2,
    WEFT_HEAD_GATE,
    WEFT_HEAD_GATE_SPREAD,
    WEFT_HEAD_NUMBERS
};

/* While windows are looked at, the numbers are sums over tokens: ENTROPY_SHARE of the entropy of equal weights,
 * GATE_SPREAD of squares. */
typedef struct {
    double number[WEFT_HEAD_NUMBERS];
    int64_t gates[WEFT_GATE_BINS]; /* how many lie in each tenth of 0 to 1 */
    double rows, moved_rows;       /* that were added */
    double *sigma;                 /* of queries, then keys: sum and sum of squares [width] */
    int64_t width;                 /* of the deviations; 0: none */
    double tokens;                 /* that were added to sigma */
} weft_head_look;

/* Directions that tokens take in a latent of `width` numbers: the singular values of the latents
 * without their mean, over the root of the number of tokens, so that their squares are variances. */
typedef struct {
    int64_t width;  /* 0: there is no such latent */
    double *values; /* [width], falling */
    double rank;    /* effective: exp of the entropy of the values as shares of their sum */
    int64_t dirs_90, dirs_99; /* how many directions hold 90% and 99% of the variance */
    double *sums,
        rows; /* the sum [L] and that of products [L, L] of the tokens so far, and how many */
} weft_spectrum_look;

/* What is measured of a layer, in the order of weft_inside_layers. Routes are those by SPARSE_MODE of the heads' weights,
 * whether cross-token uses them or not, in the mean over tokens that see more than could be kept (SPARSE_K, or one).
 * LATENTS begins three of c^K, then three of c^V: width, rank, dirs_99. The cosine of one z-head in two sequences is NaN
 * where there is one sequence. */
enum {
    WEFT_LAYER_ROUTES,
    WEFT_LAYER_ROUTES_WEIGHT,
    WEFT_LAYER_LAYER_BEFORE,
    WEFT_LAYER_TOKEN_BEFORE,
    WEFT_LAYER_LATENTS,
    WEFT_LAYER_Z_OFF = WEFT_LAYER_LATENTS + 6,
    WEFT_LAYER_Z_BETWEEN,
    WEFT_LAYER_Z_ACROSS,
    WEFT_LAYER_NUMBERS
};

typedef struct {
    weft_head_look *heads; /* [H] */
    double number[WEFT_LAYER_NUMBERS];
    double rows[WEFT_LAYER_LATENTS]; /* whose sums the numbers of routes are at first */
    weft_spectrum_look latents[2];   /* c^K and c^V; a joint latent is the first alone */
    double *contexts;                /* of z-heads, of all windows: [windows, F] */
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

/* `gradients` adds a training pass over the first windows, for `parts`. To be freed after a failure too. */
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

/* The object that report/inside.c draws. NULL: no memory. */
json_t *weft_inspection_inside(const weft_inspection *i);

/* Adds `inside`, that object as text with four digits a number, and by name as numbers: inside_NAME, the mean
 * over heads and layers; inside_gradient PART and inside_weight PART, the norms of a mechanism. */
void weft_inspection_facts(const weft_inspection *i, json_t *facts);

/* Inspects a model on the first held-out sequences of its dataset, and adds what is found. */
weft_status weft_inspect_held_out(const weft_model *m, weft_backing place, json_t *facts);

/* Between the files of this folder: each looks at one thing in what a session kept of one window, and adds
 * it to what was seen of a layer so far. */

/* scores [H, T, T] become weights; adds them to the heads' sums. */
void weft_look_weights(const weft_config *c, double *scores, int64_t time, weft_layer_look *look);
/* The routes of these weights, which become those that routing takes: chosen [T, T] is set to 0 and 1;
 * `before` is the layer's before, or NULL. */
weft_status weft_look_routes(const weft_session *s, int64_t layer, double *weights, int64_t time,
                             const unsigned char *before, unsigned char *chosen,
                             weft_layer_look *look);

/* Deviations; `scores` are still scores. */
weft_status weft_look_gaussians(const weft_session *s, int64_t layer, const double *scores,
                                weft_layer_look *look);
/* Means in the place of the sums. */
void weft_finish_heads(weft_layer_look *look, int64_t heads);
