/* Readers of token files. Everything a file says of itself is checked against its size before it
 * is believed. */
#include "data/tokens.h"
#include "base/scope.h"

#include "base/files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NPY_HEADER_MAX = 65536 };

typedef struct {
    const char *path;
    FILE *file;
    int64_t bytes; /* of the whole file */
} token_file;

static weft_status read_bytes(const token_file *f, void *to, size_t bytes) {
    if (fread(to, 1, bytes, f->file) == bytes) return WEFT_OK;
    if (ferror(f->file)) return weft_fail(WEFT_EIO, "%s: %s", f->path, strerror(errno));
    return weft_fail(WEFT_EINPUT, "%s: the file ends too early", f->path);
}

/* Reads the rest of the file as `rows` × `columns` integers of `size` bytes. */
static weft_status read_values(const token_file *f, int64_t at, int size, bool is_signed,
                               weft_tokens *out) {
    int64_t rows = out->rows, columns = out->columns;
    if (rows < 1 || columns < 1 || columns > (f->bytes - at) / size / rows ||
        rows * columns * size != f->bytes - at)
        return weft_fail(WEFT_EINPUT,
                         "%s: %lld x %lld tokens of %d bytes do not fill its %lld bytes", f->path,
                         (long long)rows, (long long)columns, size, (long long)(f->bytes - at));
    int64_t count = rows * columns;
    WEFT_AUTO_FREE unsigned char *raw = malloc((size_t)(count * size));
    out->values = malloc((size_t)count * sizeof *out->values);
    if (!raw || !out->values)
        return weft_fail(WEFT_ENOMEM, "%s: no memory for its tokens", f->path);
    WEFT_TRY(read_bytes(f, raw, (size_t)(count * size)));
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = 0;
        for (int b = 0; b < size; b++)
            bits |= (uint64_t)raw[i * size + b] << (8 * b);
        int64_t value = size == 4 && is_signed ? (int32_t)(uint32_t)bits : (int64_t)bits;
        if (value < INT32_MIN || value > INT32_MAX)
            return weft_fail(WEFT_EINPUT, "%s: token %lld is %lld, which no vocabulary has",
                             f->path, (long long)i, (long long)value);
        out->values[i] = (int32_t)value;
    }
    return WEFT_OK;
}

/* The value of a key in the header's dictionary; NULL: it has none. */
static const char *npy_value(const char *header, const char *key) {
    const char *at = strstr(header, key);
    return at ? at + strlen(key) + strspn(at + strlen(key), " :") : NULL;
}

static weft_status read_npy(const token_file *f, weft_tokens *out) {
    unsigned char head[12];
    WEFT_TRY(read_bytes(f, head, 10));
    int64_t length = head[8] | head[9] << 8, at = 10;
    if (head[6] >= 2) {
        WEFT_TRY(read_bytes(f, head + 10, 2));
        length |= (int64_t)head[10] << 16 | (int64_t)head[11] << 24;
        at = 12;
    }
    if (length > NPY_HEADER_MAX || at + length > f->bytes)
        return weft_fail(WEFT_EINPUT,
                         "%s: damaged: its header would have %lld bytes, and the file has %lld",
                         f->path, (long long)length, (long long)f->bytes);
    WEFT_AUTO_FREE char *header = calloc((size_t)length + 1, 1);
    if (!header) return weft_fail(WEFT_ENOMEM, "%s: no memory", f->path);
    WEFT_TRY(read_bytes(f, header, (size_t)length));
    const char *type = npy_value(header, "'descr'"), *order = npy_value(header, "'fortran_order'");
    int size = 0;
    if (type && strncmp(type, "'<i4'", 5) == 0) size = 4;
    if (type && strncmp(type, "'<i8'", 5) == 0) size = 8;
    if (!size)
        return weft_fail(WEFT_EINPUT, "%s: its type %.*s must be int32 or int64 ('<i4', '<i8')",
                         f->path, type ? (int)strcspn(type, ",}") : 7, type ? type : "missing");
    if (!order || strncmp(order, "False", 5) != 0)
        return weft_fail(WEFT_EINPUT, "%s: the array must be in C order", f->path);
    /* "(8, 129)" or "(129,)". A number too large for its type comes out as the largest, which no file
     * fills. */
    const char *shape = npy_value(header, "'shape'");
    int64_t sizes[2];
    int n = 0;
    const char *place = shape && *shape == '(' ? shape + 1 : NULL;
    while (place && n < 2) {
        place += strspn(place, " ");
        if (*place < '0' || *place > '9') break;
        char *end;
        sizes[n++] = strtoll(place, &end, 10);
        place = end + strspn(end, " ");
        if (*place == ',') place++;
    }
    if (!place || place[strspn(place, " ")] != ')' || n < 1)
        return weft_fail(WEFT_EINPUT, "%s: its shape %.*s must be of two sizes, [B, T+1]", f->path,
                         shape ? (int)strcspn(shape, ")") + (*shape == '(') : 7,
                         shape ? shape : "missing");
    out->rows = n == 2 ? sizes[0] : 1;
    out->columns = sizes[n - 1];
    return read_values(f, at + length, size, true, out);
}

static weft_status read_shard(const token_file *f, weft_tokens *out) {
    unsigned char header[WEFT_SHARD_HEADER * 4];
    WEFT_TRY(read_bytes(f, header, sizeof header));
    int width = weft_shard_width(header);
    if (!width)
        return weft_fail(WEFT_EINPUT, "%s: neither a .npy nor a token shard (magic %u, version %u)",
                         f->path, weft_shard_u32(header), weft_shard_u32(header + 4));
    out->shard = true;
    out->rows = 1;
    out->columns = (int32_t)weft_shard_u32(header + 8);
    return read_values(f, (int64_t)sizeof header, width, false, out);
}

weft_status weft_tokens_read(const char *path, weft_tokens *out) {
    *out = (weft_tokens){0};
    token_file f = {.path = path};
    WEFT_TRY(weft_file_size(path, &f.bytes));
    WEFT_TRY(weft_file_open_stream(path, &f.file));
    unsigned char first[6] = {0};
    bool npy = fread(first, 1, 6, f.file) == 6 && memcmp(first, "\x93NUMPY", 6) == 0;
    rewind(f.file);
    weft_status status = npy ? read_npy(&f, out) : read_shard(&f, out);
    fclose(f.file);
    if (status != WEFT_OK) weft_tokens_free(out);
    return status;
}

void weft_tokens_free(weft_tokens *t) {
    free(t->values);
    *t = (weft_tokens){0};
}
