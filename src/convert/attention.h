/* Another attention in place of dot's, with weights made from its own; and which mechanisms a model gets. */
#pragma once

#include "model/model.h"

/* How much of a layer's keys and values a latent loses: the root of the lost share of their mean
 * squares, over the inputs that the moments tell of, or over inputs of all directions alike. */
typedef struct {
    double keys, values;
} weft_latent_error;

typedef struct {
    int64_t latent;        /* L */
    bool joint;            /* one latent for keys and values */
    const double *moments; /* [layers, E, E] of weft_windows_moments; NULL: unknown */
} weft_mla_options;

/* errors [layers]. The largest L that loses nothing is the width of all key heads, or N_EMBD where that
 * is less or the latent is joint. */
weft_status weft_convert_to_mla(const weft_model *m, const weft_mla_options *options,
                                weft_model **out, weft_latent_error *errors);

/* The means are dot's queries times `spread` and its keys divided by it, the deviations a constant but
 * for a little noise, without which they would have no gradient. The scores are dot's but for
 * −‖k‖²/(2√D spread²), one number per key. */
weft_status weft_convert_to_w2(const weft_model *m, double spread, uint64_t seed, weft_model **out);

/* The first n letters of `word` name a mechanism, as in weft convert --add: c has it afterwards, where the
 * model that `was` is of has not; but w2, which weft_convert_to_w2 makes, is only noted. */
weft_status weft_convert_add_word(const weft_config *was, const char *word, size_t n,
                                  weft_config *c, bool *w2);
