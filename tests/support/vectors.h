/* Reader of what is kept of the reference's values, tests/vectors/FAMILY.gz: see tests/reference/README.md. */
#ifndef WEFT_TESTS_VECTORS_H
#define WEFT_TESTS_VECTORS_H

#include <stdint.h>

typedef struct vectors vectors;

enum { VECTOR_MOST_DIMS = 8, VECTOR_SUMS = 2 };

typedef struct {
    char name[64]; /* of an operation's case: HASH/OUTPUT */
    int ndim;
    int64_t shape[VECTOR_MOST_DIMS];
    int64_t count;
    double kept[VECTOR_SUMS]; /* the values if they are so few, otherwise sums of all of them */
    double *data;             /* whole, where the test has made it: freed with the rest */
} vector;

/* NULL with a message on standard error when the file cannot be used. `config`: only what it has of that config, in
 * the file of models; otherwise NULL. */
vectors *vectors_open(const char *family, const char *config);
void vectors_close(vectors *v);

/* The kept tensor of that name; NULL if there is none. */
__attribute__((format(printf, 2, 3))) vector *vectors_find(const vectors *v, const char *format,
                                                           ...);
/* The tensors whose names begin so: how many, and the first; they stand in the order of their names. */
__attribute__((format(printf, 3, 4))) int vectors_begin(const vectors *v, vector **first,
                                                        const char *format, ...);

/* How far `got` is from the reference's tensor: the largest difference of the kept numbers. An element that is off
 * by d changes each sum by d/2 to d. Infinite where a NaN is in it. */
double vector_gap(const vector *ref, const double *got);
double vector_norm(const double *values, int64_t n);

#endif
