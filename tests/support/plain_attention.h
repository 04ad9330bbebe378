/* Attention as its formulas stand, in double and with every score of a row in memory: what the
 * tiled kernels are compared with at sizes for which no vectors are kept. */
#ifndef WEFT_TESTS_PLAIN_ATTENTION_H
#define WEFT_TESTS_PLAIN_ATTENTION_H

#include "ops/attention.h"

/* Shapes as in ops/attention.h; never packed (attr.packed is ignored). Inputs that are not wanted
 * are NULL; gradients are all written, where the input is there. */
typedef struct {
    weft_attention_attr attr;
    int64_t distances; /* numbers in rel */
    const double *q, *k, *v, *n, *scale, *beta, *log_tau, *rel;
    const int32_t *first;
    double *o, *lse;
    const double *d_o; /* NULL: forward only */
    double *dq, *dk, *dv, *dn, *dscale, *dbeta, *dlog_tau, *drel;
    double *row; /* scratch: 3 numbers per key */
} plain_attention_problem;

void plain_attention(const plain_attention_problem *p);

#endif
