/* Writers of token files, by the formats' descriptions. */
#include "token_file.h"
#include "command.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NPY_ALIGN = 64, SHARD_WORDS = 256 };

/* The low `size` bytes of each value, sign extended, little end first. */
static unsigned char *pack(const int32_t *values, int64_t n, int size) {
    unsigned char *bytes = malloc((size_t)n * (size_t)size + 1);
    assert_non_null(bytes);
    for (int64_t i = 0; i < n; i++)
        for (int b = 0; b < size; b++)
            bytes[i * size + b] = (unsigned char)((uint64_t)(int64_t)values[i] >> (8 * b));
    return bytes;
}

void npy_write_raw(const char *path, const char *header, const void *data, size_t bytes) {
    size_t length = strlen(header) + 1,
           start = (10 + length + NPY_ALIGN - 1) / NPY_ALIGN * NPY_ALIGN;
    char *file = malloc(start + bytes);
    assert_non_null(file);
    memset(file, ' ', start);
    static const char magic[] = {'\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0};
    memcpy(file, magic, sizeof magic);
    file[8] = (char)((start - 10) & 255);
    file[9] = (char)((start - 10) >> 8);
    memcpy(file + 10, header, length - 1);
    file[start - 1] = '\n';
    if (bytes) memcpy(file + start, data, bytes);
    file_write(path, file, start + bytes);
    free(file);
}

void npy_write(const char *path, int size, int64_t rows, int64_t columns, const int32_t *values) {
    const char *header =
        format_text("{'descr': '<i%d', 'fortran_order': False, 'shape': (%lld, %lld), }", size,
                    (long long)rows, (long long)columns);
    unsigned char *data = pack(values, rows * columns, size);
    npy_write_raw(path, header, data, (size_t)(rows * columns) * (size_t)size);
    free(data);
}

void shard_write(const char *path, int32_t magic, int32_t version, int32_t count, int size,
                 const int32_t *values, int64_t n) {
    int32_t header[SHARD_WORDS] = {magic, version, count};
    size_t bytes = (size_t)n * (size_t)size;
    unsigned char *start = pack(header, SHARD_WORDS, 4), *data = pack(values, n, size);
    unsigned char *file = malloc(SHARD_WORDS * 4 + bytes);
    assert_non_null(file);
    memcpy(file, start, SHARD_WORDS * 4);
    memcpy(file + SHARD_WORDS * 4, data, bytes);
    file_write(path, file, SHARD_WORDS * 4 + bytes);
    free(file);
    free(start);
    free(data);
}
