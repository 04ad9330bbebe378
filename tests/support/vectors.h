/* Reader of the reference's kept values, tests/vectors/FAMILY.safetensors: see
 * tests/reference/README.md. */
#ifndef WEFT_TESTS_VECTORS_H
#define WEFT_TESTS_VECTORS_H

#include <stdint.h>

typedef struct vectors vectors;

enum { VECTOR_MOST_DIMS = 8 };

typedef struct {
    char name[64]; /* HASH/OUTPUT */
    int ndim;
    int64_t shape[VECTOR_MOST_DIMS];
    int64_t count;
    const double *data;
} vector;

/* NULL with a message on standard error when the file cannot be used. */
vectors *vectors_open(const char *family);
void vectors_close(vectors *v);

/* The kept tensor `name` of the case with this hash; NULL if there is none. */
const vector *vectors_find(const vectors *v, uint32_t hash, const char *name);
/* How many tensors are kept for that case. */
int vectors_count(const vectors *v, uint32_t hash);

#endif
