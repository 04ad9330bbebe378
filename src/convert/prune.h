/* A smaller model from a trained one: attention heads, feed-forward columns, z-heads, or what cross-token
 * reads, removed from every layer.
 *
 * A unit is what is removed or kept as a whole, with all the weights that make it or read it. Each layer
 * keeps its most important units, the same number in each, so that one config describes them all. What
 * is left computes what the whole model does with the removed units' outputs at zero, to the last
 * rounding; but routes of cross-token, which are made of all heads' weights, are made of the heads that
 * are left. */
#pragma once

#include "core/safetensors.h"
#include "model/units.h"

typedef struct {
    weft_prune_what what;
    double keep; /* the share of units that stays */
    bool sparse; /* zeros in place: the config and all shapes stay */
    /* How important a unit is: */
    const double *given;           /* [layers, units]; NaN: by magnitude */
    const weft_safetensors *state; /* an optimizer's: Σ w² v over the unit's weights, v their second
                                      moments */
    /* both NULL: by magnitude, Σ w² */
} weft_prune_options;

typedef struct {
    int64_t *kept; /* the units that stay, ascending */
    double share;  /* of the layer's importance that they have */
} weft_pruned_layer;

typedef struct {
    int64_t units, left; /* of each layer */
    int64_t n_layers;
    weft_pruned_layer *layers;
} weft_pruned;

/* `did` is to be freed after a failure too. */
weft_status weft_prune(const weft_model *m, const weft_prune_options *options, weft_model **out,
                       weft_pruned *did);
void weft_pruned_free(weft_pruned *did);
