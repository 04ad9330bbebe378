/* How an instruction set multiplies panels: the size of the block of results that it holds, the order
 * of the numbers in a panel, and the functions that copy operands and multiply. panels.c cuts a
 * product and shares it out by these facts alone.
 *
 * A panel is `rows` rows of a or `columns` columns of b. Its terms come in groups: the terms of a group
 * lie side by side for each row, and the rows follow one another, so a panel of k terms is
 * [k / group][rows][group]. Behind the last term and the last row are zeros. */
#pragma once

#include "cpu/gemm.h"

enum { PANEL_BLOCK_MAX = 1024 }; /* most results of a block */

typedef struct {
    int64_t rows, columns; /* of a block of results */
    int64_t band;          /* panels of rows that a task holds: they stay in the second cache */
    int64_t chunk;         /* columns of c that are finished at a time; 0: all that are in hand */
    bool by_rows;  /* and of one panel of rows: their sums stay in the first cache; the kernel then
                      asks for b ahead by itself */
    int64_t depth; /* terms that are summed in registers before they are added to c */
    int64_t terms; /* k is padded to a multiple of this; divides depth */
    int64_t size;  /* bytes of a number in a panel */
    /* Multiply-adds in the time that it takes to copy a number of a, and to read one of b from afar, about:
     * products are then cut by them. 0: by rows first. */
    int64_t copy, read;
    int64_t share_rows; /* most rows of a of which all tasks share one copy; 0: never */
    /* Panels of `count` vectors of k terms each, which lie one behind the other or, `across`, side by
     * side. */
    void (*pack_rows)(gemm_matrix x, bool across, int64_t count, int64_t k, void *to);
    void (*pack_columns)(gemm_matrix x, bool across, int64_t count, int64_t k, void *to);
    /* c [rows, columns] = alpha · a b, or += where `add`, for a panel of each and k padded terms. */
    void (*multiply)(int64_t k, const void *a, const void *b, real alpha, bool add, real *c,
                     int64_t ldc);
    /* The same with the rows of a as they lie, `lda` reals from one to the next, which saves the copy;
     * NULL where the kernel cannot read them so. */
    void (*multiply_rows)(int64_t k, const real *a, int64_t lda, const void *b, real alpha,
                          bool add, real *c, int64_t ldc);
    /* Around the calls of `multiply` by a thread; NULL: nothing to do. */
    void (*begin)(void), (*end)(void);
} panel_form;

/* Operands as reals: panel_real.c. */
extern const panel_form KERNEL(panel_real);

/* Both operands bf16, by the processor's matrix or dot-product instructions: panel_bf16.c. NULL where
 * it has none. */
const panel_form *KERNEL(panel_bf16)(void);
