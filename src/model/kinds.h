/* The table of kinds. An attention, a feed-forward or a position is one file, which defines
 * `weft_attention_NAME`, `weft_ffn_NAME` or `weft_position_NAME`, and one line in config/kinds.h.
 * Nothing else in the program asks which kind a config has: it asks the kind. */
#pragma once

#include "config/config.h"
#include "ops/cache.h"

struct builder;
struct weft_unit_list;

typedef struct {
    /* Heads' outputs o [B, T, H, D] from x [B, T, E], before gate and output projection: makes the
     * score in the builder and ends in builder_attend (builder.h). */
    weft_tensor *(*build)(struct builder *b, weft_tensor *x);
    /* Refuses what of a config does not go with this kind; NULL: nothing. */
    weft_status (*check)(const weft_config *c, const char *where);
    /* What one layer keeps of a token for generation: parts[0 ..], all but their type, at most two;
     * how many. NULL: a key and a value of D for each of the KV heads. */
    int (*cache)(const weft_config *c, weft_cache_part *parts);
    /* Columns of a query that POSITION="rope" rotates; NULL: D. */
    int64_t (*rotated)(const weft_config *c);
    /* The weights that make a head or read it, for pruning (units.h); NULL: those of dot's. And why none can be
     * taken out, as it ends an error; NULL: they can. */
    void (*heads)(const weft_config *c, struct weft_unit_list *l);
    const char *(*fixed_heads)(const weft_config *c);
    bool shares_heads;  /* KV_HEADS may be fewer than N_HEAD */
    bool shares_layers; /* it heeds builder.shares, so that KV_SHARE may be more than 1 */
    bool biased;        /* with BIAS its projections have biases */
    bool norms_whole;   /* QK_NORM_WHOLE: queries and keys come from one map, heads in a row */
    bool latent;        /* sets the builder's latent, which LATENT_RECIP needs */
    bool mup;           /* MUP knows how its maps and scores go with the width */
} weft_attention_kind;

typedef struct {
    /* Hidden activations h [B, T, F] from x [B, T, E]; what follows h is reciprocal.c's. Adds its
     * losses, if it has any, to the builder's. */
    weft_tensor *(*build)(struct builder *b, weft_tensor *x);
    /* Behind the last layer: what is made of all layers at once; NULL: nothing. */
    void (*finish)(struct builder *b);
    weft_status (*check)(const weft_config *c, const char *where);
    /* F must be a multiple of this; NULL: any F will do. */
    int64_t (*unit)(const weft_config *c);
    /* Whether one of its losses compares all the sequences of a step; NULL: none does. */
    bool (*contrasts)(const weft_config *c);
    const char *out;    /* the output projection's name: "ffn.proj" */
    bool biased;        /* with BIAS its maps have biases */
    bool may_be_biased; /* or with FFN_BIAS */
    bool mup;           /* MUP knows how its maps go with the width */
} weft_ffn_kind;

/* Each is NULL where the kind has nothing of the sort. */
typedef struct {
    /* The first `width` columns of the first `heads` heads of x [B, T, *, *], by their rows'
     * positions. */
    weft_tensor *(*rotate)(struct builder *b, weft_tensor *x, int64_t width, int64_t heads);
    /* Its share of the score; WEFT_POS_RELATIVE: a learned number per distance. */
    weft_attention_pos score;
    weft_status (*check)(const weft_config *c, const char *where);
    const char *fixed_heads; /* as of an attention */
    bool table;              /* a learned one [CONTEXT, E] is added to the embedding */
    bool ends; /* it has parameters for CONTEXT positions or distances, and none beyond */
} weft_position_kind;

const weft_attention_kind *weft_attention_of(const weft_config *c);
const weft_ffn_kind *weft_ffn_of(const weft_config *c);
const weft_position_kind *weft_position_of(const weft_config *c);

/* "MLA", for reports. */
const char *weft_attention_title(const weft_config *c);

/* weft_config_check, and what the config's kinds refuse. */
weft_status weft_model_check(const weft_config *c, const char *where);
