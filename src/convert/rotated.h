/* What of a layer's rotated keys one key that all heads share can keep: MLA's rotated part. */
#pragma once

#include "base/error.h"
#include "core/rope_law.h"

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
