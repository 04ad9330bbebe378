/* Between the files of this folder: each looks at one thing in what a session kept of one window, and adds
 * it up over windows. */
#pragma once

#include "inspect/inspect.h"

/* Sums over tokens so far, of one head or of one layer; see the files. */
typedef struct {
    double number
        [WEFT_HEAD_NUMBERS]; /* ENTROPY_SHARE: the entropy of equal weights; GATE_SPREAD: squares */
    double rows, moved_rows, gates; /* that were added */
    double *sigma;                  /* of queries, then keys: sum and sum of squares [width] */
    int64_t width;                  /* of the deviations; 0: none */
    double tokens;                  /* that were added to sigma */
} weft_head_sums;

typedef struct {
    weft_head_sums *heads;                                       /* [H] */
    double routes[WEFT_LAYER_LATENTS], rows[WEFT_LAYER_LATENTS]; /* sums, and how many */
    double *latents[2]; /* of c^K and c^V: the sum [L], and that of products [L, L] */
    double latent_rows;
    double *contexts; /* of z-heads, of all windows: [windows, F] */
} weft_layer_sums;

/* scores [H, T, T] become weights; adds them to the heads' sums. */
void weft_look_weights(const weft_config *c, double *scores, int64_t time, weft_layer_sums *sums);
/* The routes of these weights, which become those that routing takes: chosen [T, T] is set to 0 and 1;
 * `before` is the layer's before, or NULL. */
weft_status weft_look_routes(const weft_session *s, int64_t layer, double *weights, int64_t time,
                             const unsigned char *before, unsigned char *chosen,
                             weft_layer_sums *sums);

/* Deviations; `scores` are still scores. */
weft_status weft_look_gaussians(const weft_session *s, int64_t layer, const double *scores,
                                weft_layer_look *out, weft_layer_sums *sums);
void weft_finish_heads(weft_layer_look *out, const weft_layer_sums *sums, int64_t heads);
