/* Which of Hugging Face's tensors is which of ours. */
#pragma once

#include "convert/hf.h"

/* One of their tensors, and the rows of ours that hold it. */
typedef struct {
    char ours[96], theirs[128];
    int64_t first, rows; /* of ours */
    int64_t columns;     /* 0: it has one dimension */
    bool transposed;     /* theirs is [columns, rows] */
    /* Theirs has so many blocks of `block` rows, of which ours are those from `at` on; 0: as ours. With
     * `pairs` rows 2i and 2i + 1 of them are i and i + n/2 of our n; with `turned` our columns are their rows,
     * block by block. */
    int64_t blocks, block, at;
    bool pairs, turned;
    int64_t heads; /* theirs has q, k and v of one head after the other, of so many; 0: not so */
    /* Theirs is ours times the factor, 0: 1; with `ours` empty, theirs is the factor. And less `lessened`. */
    double factor, lessened;
} hf_piece;

/* Before the names of a body ("transformer.", "model."), and a tensor that every body has. */
typedef struct {
    const char *prefix, *first;
} hf_body;

extern const hf_body weft_hf_bodies[];

/* All pieces of a model that is read, with that prefix, or written; malloc'd. NULL: no memory, said in an error. */
hf_piece *weft_hf_pieces(const weft_config *c, weft_hf_family family, const char *prefix,
                         bool written, int64_t *count);

/* The shape of their tensor; columns 0: it has one dimension. */
int64_t weft_hf_rows(const hf_piece *p);
int64_t weft_hf_columns(const hf_piece *p);
/* Where their tensor has the element (i, j) of our rows. */
int64_t weft_hf_place(const hf_piece *p, int64_t i, int64_t j);
