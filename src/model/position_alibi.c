/* ALiBi: a score falls with the distance, by a slope that each head has of its own. */
#include "model/builder.h"

static void add_slopes(builder *b, weft_score *score) {
    (void)b;
    score->pos = WEFT_POS_ALIBI;
}

const weft_position_kind weft_position_alibi = {.score = add_slopes, .check = check_distances};
