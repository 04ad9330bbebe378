/* Tensors in files of safetensors. A test fails where one is not there. */
#ifndef WEFT_TESTS_TENSOR_FILE_H
#define WEFT_TESTS_TENSOR_FILE_H

#include <stdint.h>

/* The tensor of that name in a file, as doubles; malloc'd. */
double *tensor_values(const char *path, const char *name, int64_t *count);
/* The largest difference between the tensors of that name in two files. */
double tensors_apart(const char *a, const char *b, const char *name);

#endif
