/* A learned number per distance, shared by the heads of a layer. */
#include "model/builder.h"

static void add_biases(builder *b, weft_score *score) {
    score->pos = WEFT_POS_RELATIVE;
    score->rel = builder_vector(b, "attn.rel_bias", init_constant(0), b->c->context);
}

const weft_position_kind weft_position_relative = {
    .score = add_biases,
    .check = check_distances,
    .ends = true,
};
