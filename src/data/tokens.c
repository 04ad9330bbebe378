/* Readers of token files. Everything a file says of itself is checked against its size before it
 * is believed. */
#include "data/tokens.h"

#include "base/files.h"

enum { NPY_HEADER_MAX = 65536, SOME = 65536 };

static weft_status read_bytes(const weft_tokens *f, void *to, size_t bytes) {
    if (fread(to, 1, bytes, f->file) == bytes) return WEFT_OK;
    if (ferror(f->file)) return weft_path_failed(f->path);
    return WEFT_BAD_INPUT("%s: the file ends too early", f->path);
}

/* The rest of the file, from `at` on, must be `rows` × `columns` integers of `size` bytes. */
static weft_status check_size(weft_tokens *f, int64_t at) {
    int64_t rows = f->rows, columns = f->columns;
    if (rows >= 1 && columns >= 1 && columns <= (f->bytes - at) / f->size / rows &&
        rows * columns * f->size == f->bytes - at)
        return WEFT_OK;
    return WEFT_BAD_INPUT("%s: %lld x %lld tokens of %d bytes do not fill its %lld bytes", f->path,
                          (long long)rows, (long long)columns, f->size, (long long)(f->bytes - at));
}

weft_status weft_tokens_next(weft_tokens *f, int64_t count, int32_t *values) {
    WEFT_ROOM(unsigned char, raw, (size_t)(SOME * f->size), "%s: no memory for its tokens",
              f->path);
    for (int64_t done = 0, some; done < count; done += some) {
        some = count - done < SOME ? count - done : SOME;
        WEFT_TRY(read_bytes(f, raw, (size_t)some * (size_t)f->size));
        for (int64_t i = 0; i < some; i++) {
            uint64_t bits = 0;
            for (int b = 0; b < f->size; b++)
                bits |= (uint64_t)raw[i * f->size + b] << (8 * b);
            int64_t value = f->size == 4 && f->is_signed ? (int32_t)(uint32_t)bits : (int64_t)bits;
            if (value < INT32_MIN || value > INT32_MAX)
                return WEFT_BAD_INPUT("%s: token %lld is %lld, which no vocabulary has", f->path,
                                      (long long)(f->read + i), (long long)value);
            values[done + i] = (int32_t)value;
        }
        f->read += some;
    }
    return WEFT_OK;
}

/* The value of a key in the header's dictionary; NULL: it has none. */
static const char *npy_value(const char *header, const char *key) {
    const char *at = strstr(header, key);
    return at ? at + strlen(key) + strspn(at + strlen(key), " :") : NULL;
}

/* "(8, 129)" or "(129,)". A number too large for its type comes out as the largest, which no file
 * fills. */
static weft_status parse_npy_shape(weft_tokens *f, const char *shape) {
    int64_t sizes[2];
    int n = 0;
    const char *at = shape && *shape == '(' ? shape + 1 : NULL;
    while (at && n < 2) {
        at += strspn(at, " ");
        if (*at < '0' || *at > '9') break;
        char *end;
        sizes[n++] = strtoll(at, &end, 10);
        at = end + strspn(end, " ");
        if (*at == ',') at++;
    }
    if (!at || at[strspn(at, " ")] != ')' || n < 1)
        return WEFT_BAD_INPUT("%s: its shape %.*s must be of two sizes, [B, T+1]", f->path,
                              shape ? (int)strcspn(shape, ")") + (*shape == '(') : 7,
                              shape ? shape : "missing");
    f->rows = n == 2 ? sizes[0] : 1;
    f->columns = sizes[n - 1];
    return WEFT_OK;
}

static weft_status read_npy(weft_tokens *f) {
    unsigned char head[12];
    WEFT_TRY(read_bytes(f, head, 10));
    int64_t length = head[8] | head[9] << 8, at = 10;
    if (head[6] >= 2) {
        WEFT_TRY(read_bytes(f, head + 10, 2));
        length |= (int64_t)head[10] << 16 | (int64_t)head[11] << 24;
        at = 12;
    }
    if (length > NPY_HEADER_MAX || at + length > f->bytes)
        return WEFT_BAD_INPUT(
            "%s: damaged: its header would have %lld bytes, and the file has %lld", f->path,
            (long long)length, (long long)f->bytes);
    WEFT_ROOM(char, header, length + 1, "%s: no memory", f->path);
    WEFT_TRY(read_bytes(f, header, (size_t)length));
    const char *type = npy_value(header, "'descr'"), *order = npy_value(header, "'fortran_order'");
    static const char *const types[] = {"'<u2'", "'<u4'", "'<i4'", "'<i8'"};
    for (int i = 0; type && i < 4; i++)
        if (strncmp(type, types[i], strlen(types[i])) == 0) f->size = types[i][3] - '0';
    if (!f->size)
        return WEFT_BAD_INPUT(
            "%s: its type %.*s must be int32 or int64 ('<i4', '<i8'), uint16 or uint32", f->path,
            type ? (int)strcspn(type, ",}") : 7, type ? type : "missing");
    if (!order || strncmp(order, "False", 5) != 0)
        return WEFT_BAD_INPUT("%s: the array must be in C order", f->path);
    f->is_signed = type[2] == 'i';
    WEFT_TRY(parse_npy_shape(f, npy_value(header, "'shape'")));
    return check_size(f, at + length);
}

typedef enum { OTHER, NPY, SHARD } token_kind;

static token_kind look(FILE *file) {
    unsigned char first[8] = {0};
    size_t n = fread(first, 1, sizeof first, file);
    rewind(file);
    if (n >= 6 && memcmp(first, "\x93NUMPY", 6) == 0) return NPY;
    return n == 8 && weft_shard_width(first) ? SHARD : OTHER;
}

weft_status weft_are_tokens(const char *path, bool *is) {
    WEFT_AUTO_FCLOSE FILE *file = NULL;
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    weft_kind what;
    *is = false;
    /* Of what is missing, or no file, the one who reads it says so. */
    if (weft_path_kind(path, &what) != WEFT_OK || what != WEFT_KIND_FILE) return WEFT_OK;
    WEFT_TRY(weft_file_open_stream(path, &file));
    token_kind kind = look(file);
    *is = kind != OTHER || strcmp(name, "train.bin") == 0 || strcmp(name, "val.bin") == 0;
    return WEFT_OK;
}

weft_status weft_tokens_open(const char *path, bool plain, weft_tokens *f) {
    *f = (weft_tokens){.path = strdup(path)};
    if (!f->path) return weft_fail(WEFT_ENOMEM, "%s: no memory", path);
    WEFT_TRY(weft_file_size(path, &f->bytes));
    WEFT_TRY(weft_file_open_stream(path, &f->file));
    token_kind kind = look(f->file);
    if (kind == NPY) return read_npy(f);
    f->rows = 1;
    if (kind != SHARD && plain) {
        f->size = 2;
        f->columns = f->bytes / 2;
        return check_size(f, 0);
    }
    unsigned char header[WEFT_SHARD_HEADER * 4];
    WEFT_TRY(read_bytes(f, header, sizeof header));
    f->size = weft_shard_width(header);
    if (!f->size)
        return WEFT_BAD_INPUT("%s: neither a .npy nor a token shard (magic %u, version %u)",
                              f->path, weft_shard_u32(header), weft_shard_u32(header + 4));
    f->shard = true;
    f->columns = (int32_t)weft_shard_u32(header + 8);
    return check_size(f, (int64_t)sizeof header);
}

void weft_tokens_free(weft_tokens *f) {
    if (f->file) fclose(f->file);
    WEFT_FREE(f->path, f->values);
    *f = (weft_tokens){0};
}

weft_status weft_tokens_read(const char *path, weft_tokens *out) {
    *out = (weft_tokens){0};
    WEFT_AUTO(weft_tokens_free) weft_tokens f = {0};
    WEFT_TRY(weft_tokens_open(path, false, &f));
    WEFT_ROOM_AT(f.values, (f.rows * f.columns), "%s: no memory for its tokens", path);
    WEFT_TRY(weft_tokens_next(&f, f.rows * f.columns, f.values));
    *out = f;
    f = (weft_tokens){0};
    return WEFT_OK;
}
