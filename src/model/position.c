/* How order enters attention: rotations of queries and keys, slopes, learned biases. (The learned
 * table is added to the embedding.) */
#include "model/builder.h"
#include "ops/rope.h"

weft_tensor *rotate_heads(builder *b, weft_tensor *x, int64_t width, int64_t heads) {
    return weft_rope(b->g, x, width, heads, NULL, 0);
}

void build_score_position(builder *b, weft_score *score) {
    if (b->c->position == WEFT_POSITION_ALIBI) score->pos = WEFT_POS_ALIBI;
    if (b->c->position == WEFT_POSITION_RELATIVE) {
        score->pos = WEFT_POS_RELATIVE;
        score->rel = builder_vector(b, "attn.rel_bias", init_constant(0), b->c->gpt2_block_size);
    }
}
