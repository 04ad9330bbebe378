/* A learned table of positions, as in GPT-2. */
#include "model/builder.h"

static weft_tensor *make_table(builder *b) {
    return matrix(b, "wpe.weight", init_normal(0.02), b->c->context, b->width);
}

const weft_position_kind weft_position_learned = {.table = make_table, .ends = true};
