/* Another attention in place of dot's, with weights made from its own; and which mechanisms a model gets. */
#pragma once

#include "core/rope_law.h"
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

/* Keys of a rotary model become a rotated part that all heads share and a latent without positions.
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

/* What of a layer's rotated keys one key that all heads share can keep: MLA's rotated part. */
typedef struct {
    int64_t e, heads, kv, width; /* E, H, KV, D */
    int64_t columns, kept;       /* P of a head's columns are rotated; the shared key has R */
    int64_t stride;              /* of the pairs 0, 1, .. it has 0, s, 2s, .. */
    weft_rope_law law;           /* of the P columns */
} weft_rotated;

/* Rows of queries [H D, E], keys [KV D, E] and their biases. */
typedef struct {
    double *q, *k, *bq, *bk;
} weft_rotated_rows;

/* E[(w x)²] of each row, with M = E[x xᵀ]; M NULL: 1. */
weft_status weft_rotated_squares(const double *rows, int64_t n, int64_t e, const double *moments,
                                 double *squares);

/* Adds to `pairs` [P/2] what a layer's scores owe each pair: Σ_h √(E|q|² E|k|²). */
void weft_rotated_weigh(const weft_rotated *f, const double *q_squares, const double *k_squares,
                        double *pairs);
/* The base of the R columns' rotations. */
double weft_rotated_base(const weft_rotated *f, int64_t stride);
/* The stride by which least of them is left without its rotation. */
int64_t weft_rotated_stride(const weft_rotated *f, const double *pairs);

/* Fills `part`: queries [H R, E] and keys [R, E] that are rotated. The keys of `all` become what is left for
 * the part without positions. `gram` [KV D, KV D] are E[k kᵀ], `q_squares` [H D] E[q²]. */
weft_status weft_rotated_split(const weft_rotated *f, const weft_rotated_rows *all,
                               const double *gram, const double *q_squares,
                               const weft_rotated_rows *part);
