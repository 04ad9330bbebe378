/* A part of a model by itself: one layer, or its attention or feed-forward alone, for others to put
 * into models of their own. */
#ifndef WEFT_MODEL_PART_H
#define WEFT_MODEL_PART_H

#include "model/transformer.h"

typedef enum { WEFT_PART_ATTENTION, WEFT_PART_FFN, WEFT_PART_LAYER } weft_part_kind;

enum { WEFT_PART_TENSORS = 8 };

typedef struct {
    const char *name;
    weft_tensor *tensor;
} weft_part_tensor;

typedef struct {
    weft_model_graph model; /* its parameters; "h.0." begins their names */
    weft_part_tensor inputs[WEFT_PART_TENSORS], outputs[WEFT_PART_TENSORS];
    int n_inputs, n_outputs;
} weft_model_part;

typedef struct {
    weft_part_kind kind;
    bool first;    /* there is no layer before, which would send a gate and a latent */
    bool gradient; /* the inputs that can have one do */
    bool one_loss; /* auxiliary losses are one output, their sum */
} weft_part_form;

/* Builds it into a graph that is the caller's. weft/graph.h (weft_block_open_part) tells which inputs
 * and outputs there are. */
weft_status weft_model_build_part(const weft_config *c, const weft_build *build,
                                  const weft_part_form *form, weft_graph *g, weft_model_part *out);
void weft_model_part_free(weft_model_part *part);

#endif
