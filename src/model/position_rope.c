/* Rotary positions: queries and keys are turned by angles that grow with their position, so that a
 * product depends on the distance. */
#include "model/builder.h"
#include "ops/rope.h"

weft_tensor *rotate_heads(builder *b, weft_tensor *x, int64_t width, int64_t heads) {
    return weft_rope(b->g, x, width, heads, b->start, 0);
}

static weft_status check_pairs(const weft_config *c, const char *where) {
    const weft_attention_kind *attention = weft_attention_of(c);
    int64_t width = attention->turned ? attention->turned(c) : weft_config_head_dim(c);
    if (width % 2 == 0) return WEFT_OK;
    return weft_fail(WEFT_EINPUT,
                     "%s: CONFIG_POSITION=\"rope\" turns pairs, but a head is %lld wide "
                     "(CONFIG_N_EMBD / CONFIG_N_HEAD); make it even",
                     where, (long long)width);
}

const weft_position_kind weft_position_rope = {.turn = rotate_heads, .check = check_pairs};
