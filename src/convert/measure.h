/* What a model does on a text: its loss, the second moments of what its attention reads, and how far
 * another model's attention is from it. */
#pragma once

#include "data/tokenizer.h"
#include "model/session.h"

/* A text as windows of `time` + 1 tokens, of which the first `time` are read. */
typedef struct {
    int32_t *tokens; /* [windows, time + 1] */
    int64_t windows, time;
} weft_windows;

typedef struct {
    const weft_backend *backend;
    weft_pool *pool;
} weft_backing;

/* At most `most` tokens of a file, in windows of at most `time`. */
weft_status weft_windows_read(const char *path, const weft_tokenizer *t, int64_t time, int64_t most,
                              weft_windows *out);
/* At most so many windows of a file of tokens: the rows of a .npy [B, T+1], whatever `time` is, or
 * windows of at most `time` of a shard. */
weft_status weft_windows_tokens(const char *path, int64_t time, int64_t windows, weft_windows *out);
/* Tokens at random, where there is no text. */
weft_status weft_windows_random(int64_t vocab, int64_t time, int64_t windows, weft_windows *out);
void weft_windows_free(weft_windows *text);

weft_status weft_windows_loss(const weft_model *m, weft_backing place, const weft_windows *text,
                              double *loss);
/* The mean of x xᵀ [E, E] over the text, for each layer: moments[layer], all malloc'd in one piece. */
weft_status weft_windows_moments(const weft_model *m, weft_backing place, const weft_windows *text,
                                 double **moments);
/* For each layer: half the sum of the differences between the two models' attention weights, from 0
 * (the same) to 1 (none in common), in the mean over heads and tokens of the first windows. */
weft_status weft_windows_apart(const weft_model *a, const weft_model *b, weft_backing place,
                               const weft_windows *text, double *apart);

/* Eigenvalues and eigenvectors of a symmetric matrix, in double. */

/* W M [n, e] with M [e, e]. */
void weft_times_moments(const double *w, int64_t n, int64_t e, const double *m, double *out);

/* a [n, n] is symmetric and is overwritten. values [n] fall; row i of vectors [n, n] belongs to
 * values[i] and has length 1. */
weft_status weft_spectrum(double *a, int64_t n, double *values, double *vectors);
