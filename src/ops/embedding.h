/* Token and position embedding. */
#pragma once

#include "core/graph.h"

/* y [B, T, E] = wte[ids] + wpe[position]: wte [V, E], ids [B, T] i32, wpe [P, E] or NULL for no
 * positions. The position of token t is t, plus start[b] where start [B] i32 is given
 * (generation: how many tokens a sequence already has). A token outside [0, V) or a position
 * outside [0, P) fails the run with a message that names it. */
weft_tensor *weft_embed(weft_graph *g, weft_tensor *wte, weft_tensor *ids, weft_tensor *wpe,
                        weft_tensor *start);

/* Inputs of embed: wte, ids, wpe, start.
 *
 * embed_back: dwte [V, E] from dy, ids, and what it is added to: like the result, or NULL.
 * position_back: dwpe [P, E] from dy, start. Rows that nothing points to are 0. */
typedef struct {
    int64_t rows;     /* V or P */
    weft_dtype dtype; /* of the result */
} weft_embed_back_attr;

enum { WEFT_EMBED_BACK_DY, WEFT_EMBED_BACK_IDS, WEFT_EMBED_BACK_ADDEND, WEFT_EMBED_BACK_INPUTS };
