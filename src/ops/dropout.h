/* Dropout by counter-based random numbers. */
#ifndef WEFT_OPS_DROPOUT_H
#define WEFT_OPS_DROPOUT_H

#include "core/graph.h"

/* x: [B, ..]. Each element is set to 0 with probability p, 0 ≤ p < 1, and the others are divided
 * by 1 − p. `site` names the place in the model ("h.3.attn.drop"): element i of sequence b has
 * word i of the stream (the run's seed and iteration, the run's sequence + b, the site), so the
 * gradient and a recomputed segment drop the same ones. p = 0 is x itself. */
weft_tensor *weft_dropout(weft_graph *g, weft_tensor *x, double p, const char *site);

/* Attributes of the node, for the kernel. */
typedef struct {
    double p;
    uint32_t site;
} weft_dropout_attr;

#endif
