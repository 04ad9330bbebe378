/* Another attention in place of dot's, with weights made from its own; and which mechanisms a model gets. */
#pragma once

#include "model/model.h"

/* How much of a layer's keys and values a latent loses: the root of the lost share of their mean
 * squares, over the inputs that the moments tell of, or over inputs of all directions alike. Of rotated keys also
 * `positions`, the share, by the root likewise, that is without its rotation. */
typedef struct {
    double keys, values, positions;
} weft_latent_error;

typedef struct {
    int64_t latent; /* L */
    bool joint;     /* one latent for keys and values */
    int64_t rope;   /* R, columns of the rotated part of a rotary model; 0: as many as a head has */
    const double *moments; /* [layers, E, E] of weft_windows_moments; NULL: unknown */
} weft_mla_options;

/* Keys of a rotary model become a rotated part that all heads share (rotated.h) and a latent without positions.
 * errors [layers]. The largest L that loses nothing is the width of all key heads, or N_EMBD where that
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
