/* Token files as others write them: NumPy arrays and shards, good and bad. */
#ifndef WEFT_TESTS_TOKEN_FILE_H
#define WEFT_TESTS_TOKEN_FILE_H

#include <stddef.h>
#include <stdint.h>

/* A .npy of shape [rows, columns], numbers of `size` bytes (4 or 8). */
void npy_write(const char *path, int size, int64_t rows, int64_t columns, const int32_t *values);
/* A .npy with any header: "{'descr': '<i4', ...}". It is padded as NumPy does. */
void npy_write_raw(const char *path, const char *header, const void *data, size_t bytes);
/* A shard whose header says `count`, with n tokens of `size` bytes (2 or 4). */
void shard_write(const char *path, int32_t magic, int32_t version, int32_t count, int size,
                 const int32_t *values, int64_t n);

#endif
