/* The kinds of positions. */
#include "model/builder.h"

/* None: a causal model still sees how many tokens came before. */
const weft_position_kind weft_position_none = {0};

/* A learned table of positions, as in GPT-2. */
const weft_position_kind weft_position_learned = {.table = true, .ends = true};

/* ALiBi: a score falls with the distance, by a slope that each head has of its own. */
const weft_position_kind weft_position_alibi = {
    .score = WEFT_POS_ALIBI,
    .check = check_distances,
    .fixed_heads = "CONFIG_POSITION=\"alibi\" gives each head its slope by its number, so none can "
                   "be removed; --sparse zeroes them in place",
};

/* A learned number per distance, shared by the heads of a layer. */
const weft_position_kind weft_position_relative = {
    .score = WEFT_POS_RELATIVE, .check = check_distances, .ends = true};

/* Rotary positions: queries and keys are rotated by angles that grow with their position, so that a
 * product depends on the distance. */

/* Numbers with commas between, as many as there are; -1: no list of such. */
static int64_t read_factors(const char *text, float out[WEFT_ROPE_PAIRS]) {
    int64_t n = 0;
    for (char *end; *text; text = *end ? end + 1 : end) {
        double value = strtod(text, &end);
        if (end == text || (*end && *end != ',') || n == WEFT_ROPE_PAIRS || !(value > 0)) return -1;
        out[n++] = (float)value;
    }
    return n;
}

static const char *factors_of(const weft_config *c) {
    return c->context > c->rope_context ? c->rope_long_factors : c->rope_short_factors;
}

weft_rope_law rope_law_of(const weft_config *c, int64_t layer) {
    static const weft_rope_scaling scalings[] = {
        [WEFT_ROPE_SCALING_NONE] = WEFT_ROPE_PLAIN,
        [WEFT_ROPE_SCALING_LINEAR] = WEFT_ROPE_LINEAR,
        [WEFT_ROPE_SCALING_LLAMA3] = WEFT_ROPE_LLAMA3,
        [WEFT_ROPE_SCALING_YARN] = WEFT_ROPE_YARN,
        [WEFT_ROPE_SCALING_LONGROPE] = WEFT_ROPE_LONG,
    };
    weft_rope_law law = {.base = c->rope_theta, .low = c->rope_low, .high = c->rope_high};
    law.scaling = scalings[c->rope_scaling];
    law.factor = c->rope_factor;
    law.context = (double)c->rope_context;
    law.amplitude = 1;
    if (c->rope_local_theta > 0 && weft_config_window(c, layer))
        return (weft_rope_law){.base = c->rope_local_theta, .factor = 1, .amplitude = 1};
    if (law.scaling == WEFT_ROPE_LONG) {
        read_factors(factors_of(c), law.factors);
        if (law.context > 1) law.amplitude = sqrt(1 + log(law.factor) / log(law.context));
        if (c->rope_amplitude > 0) law.amplitude = c->rope_amplitude;
    }
    if (law.scaling == WEFT_ROPE_YARN)
        law.amplitude = c->rope_amplitude > 0 ? c->rope_amplitude : 1 + 0.1 * log(law.factor);
    return law;
}

weft_status check_common_law(const weft_config *c, const char *where) {
    const weft_mix mixes[] = {
        {c->rope_scaling == WEFT_ROPE_SCALING_LONGROPE,
         "{ROPE_SCALING} does not go with {ATTENTION}; take another scaling"},
        {c->rope_local_theta > 0,
         "CONFIG_ROPE_LOCAL_THETA does not go with {ATTENTION}; set it to 0"},
    };
    return WEFT_REFUSE(c, where, mixes);
}

weft_status check_rotated(const weft_config *c, const char *where, int64_t width) {
    if (c->rope_dim <= width) return WEFT_OK;
    return WEFT_BAD_INPUT(
        "%s: CONFIG_ROPE_DIM=%lld columns are rotated, but there are %lld; take 0 for all of them",
        where, (long long)c->rope_dim, (long long)width);
}

int64_t rotated_width(const weft_config *c, int64_t width) {
    return c->rope_dim && c->rope_dim < width ? c->rope_dim : width;
}

weft_tensor *rotate_heads(builder *b, weft_tensor *x, int64_t width, int64_t heads) {
    return weft_rope(b->g, x, width, heads, b->start, &b->law);
}

static weft_status check_pairs(const weft_config *c, const char *where) {
    const weft_attention_kind *attention = weft_attention_of(c);
    int64_t width = attention->rotated ? attention->rotated(c) : weft_config_head_dim(c);
    WEFT_TRY(check_rotated(c, where, width));
    if (c->rope_scaling == WEFT_ROPE_SCALING_LONGROPE) {
        float factors[WEFT_ROPE_PAIRS];
        bool is_long = c->context > c->rope_context;
        int64_t pairs = rotated_width(c, width) / 2, n = read_factors(factors_of(c), factors);
        if (n != pairs)
            return WEFT_BAD_INPUT("%s: CONFIG_ROPE_%s_FACTORS has %s, but %lld pairs rotate; give "
                                  "each its factor, with commas between",
                                  where, is_long ? "LONG" : "SHORT",
                                  n < 0 ? "what is no number above 0, or too many"
                                        : "another number",
                                  (long long)pairs);
    }
    const weft_mix mixes[] = {
        {c->rope_local_theta > 0 && c->window && c->kv_share > 1,
         "{ROPE_LOCAL_THETA} gives layers angles of their own, so they cannot share keys "
         "({KV_SHARE}); set one of them back"},
        {rotated_width(c, width) % 2, "{POSITION} rotates pairs, but a head is {head_dim} wide "
                                      "(CONFIG_N_EMBD / CONFIG_N_HEAD); make it even"},
    };
    return WEFT_REFUSE(c, where, mixes);
}

const weft_position_kind weft_position_rope = {.rotate = rotate_heads, .check = check_pairs};
