/* The kinds of positions. */
#include "model/builder.h"
#include "ops/rope.h"

/* None: a causal model still sees how many tokens came before. */

const weft_position_kind weft_position_none = {0};

/* A learned table of positions, as in GPT-2. */

static weft_tensor *make_table(builder *b) {
    return matrix(b, "wpe.weight", init_normal(0.02), b->c->context, b->width);
}

const weft_position_kind weft_position_learned = {.table = make_table, .ends = true};

/* ALiBi: a score falls with the distance, by a slope that each head has of its own. */

static void add_slopes(builder *b, weft_score *score) {
    (void)b;
    score->pos = WEFT_POS_ALIBI;
}

const weft_position_kind weft_position_alibi = {
    .score = add_slopes,
    .check = check_distances,
    .fixed_heads = "CONFIG_POSITION=\"alibi\" gives each head its slope by its number, so none can "
                   "be removed; --sparse zeroes them in place",
};

/* A learned number per distance, shared by the heads of a layer. */

static void add_biases(builder *b, weft_score *score) {
    score->pos = WEFT_POS_RELATIVE;
    score->rel = builder_vector(b, "attn.rel_bias", init_constant(0), b->c->context);
}

const weft_position_kind weft_position_relative = {
    .score = add_biases,
    .check = check_distances,
    .ends = true,
};

/* Rotary positions: queries and keys are rotated by angles that grow with their position, so that a
 * product depends on the distance. */

weft_rope_law rope_law_of(const weft_config *c) {
    static const weft_rope_scaling scalings[] = {
        [WEFT_ROPE_SCALING_NONE] = WEFT_ROPE_PLAIN,
        [WEFT_ROPE_SCALING_LINEAR] = WEFT_ROPE_LINEAR,
        [WEFT_ROPE_SCALING_LLAMA3] = WEFT_ROPE_LLAMA3,
        [WEFT_ROPE_SCALING_YARN] = WEFT_ROPE_YARN,
    };
    weft_rope_law law = {.base = c->rope_theta,
                         .scaling = scalings[c->rope_scaling],
                         .factor = c->rope_factor,
                         .context = (double)c->rope_context,
                         .low = c->rope_low,
                         .high = c->rope_high,
                         .amplitude = 1};
    if (law.scaling == WEFT_ROPE_YARN)
        law.amplitude = c->rope_amplitude > 0 ? c->rope_amplitude : 1 + 0.1 * log(law.factor);
    return law;
}

int64_t rotated_width(const weft_config *c, int64_t width) {
    return c->rope_dim && c->rope_dim < width ? c->rope_dim : width;
}

weft_tensor *rotate_heads(builder *b, weft_tensor *x, int64_t width, int64_t heads) {
    return weft_rope_by(b->g, x, width, heads, b->start, 0, &b->law);
}

static weft_status check_pairs(const weft_config *c, const char *where) {
    const weft_attention_kind *attention = weft_attention_of(c);
    int64_t width = attention->rotated ? attention->rotated(c) : weft_config_head_dim(c);
    if (c->rope_dim > width)
        return weft_fail(WEFT_EINPUT,
                         "%s: CONFIG_ROPE_DIM=%lld columns are rotated, but there are %lld; take 0 "
                         "for all of them",
                         where, (long long)c->rope_dim, (long long)width);
    if (rotated_width(c, width) % 2 == 0) return WEFT_OK;
    return weft_fail(WEFT_EINPUT,
                     "%s: CONFIG_POSITION=\"rope\" rotates pairs, but a head is %lld wide "
                     "(CONFIG_N_EMBD / CONFIG_N_HEAD); make it even",
                     where, (long long)width);
}

const weft_position_kind weft_position_rope = {.rotate = rotate_heads, .check = check_pairs};
