/* Reading and writing safetensors.
 *
 * The reader believes nothing. Each entry is checked by itself (a known type, sizes that do not
 * overflow, a range inside the file that is as long as shape and type say); then the entries are
 * put in the order of their ranges, and each must begin where the last one ended, the first at 0
 * and the last at the end of the file. So there are no overlaps and no holes in which something
 * could hide, and every byte of the file is accounted for. */
#include "core/safetensors.h"

#include "base/clock.h"
#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/mman.h>
#include <sys/stat.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors are little endian");

enum { LENGTH_BYTES = 8, ALIGN = 8 };

static const struct {
    const char *name;
    int64_t size;
} file_dtypes[] = {
    [WEFT_FILE_F64] = {"F64", 8}, [WEFT_FILE_F32] = {"F32", 4}, [WEFT_FILE_BF16] = {"BF16", 2},
    [WEFT_FILE_F16] = {"F16", 2}, [WEFT_FILE_I64] = {"I64", 8}, [WEFT_FILE_I32] = {"I32", 4},
    [WEFT_FILE_I8] = {"I8", 1},
};

enum { FILE_DTYPES = sizeof file_dtypes / sizeof file_dtypes[0] };

int64_t weft_file_dtype_size(weft_file_dtype dtype) {
    return file_dtypes[dtype].size;
}

const char *weft_file_dtype_name(weft_file_dtype dtype) {
    return file_dtypes[dtype].name;
}

weft_file_dtype weft_file_dtype_of(weft_dtype dtype) {
    static const weft_file_dtype of[WEFT_DTYPE_COUNT] = {
        [WEFT_F32] = WEFT_FILE_F32, [WEFT_F64] = WEFT_FILE_F64, [WEFT_BF16] = WEFT_FILE_BF16,
        [WEFT_I32] = WEFT_FILE_I32, [WEFT_I8] = WEFT_FILE_I8,
    };
    return of[dtype];
}

/* One tensor of a file, and its range in the data. */
typedef struct {
    weft_safetensor tensor;
    int64_t begin;
} entry;

struct weft_safetensors {
    const char *path; /* the caller's; for messages while opening only */
    unsigned char *map;
    int64_t map_bytes;
    json_t *header;           /* owns the names */
    const json_t *metadata;   /* inside header; NULL: none */
    weft_safetensor *tensors; /* by name */
    int64_t count;
};

/* A name from a file as a message may show it: on one line and not too long. Four may be alive at
 * a time. */
static const char *shown(const char *text) {
    static _Thread_local char buffers[4][160];
    static _Thread_local unsigned next;
    char *buffer = buffers[next++ % 4];
    size_t n = 0, limit = sizeof buffers[0] - 4;
    for (; n < limit && text[n]; n++) {
        unsigned char c = (unsigned char)text[n];
        buffer[n] = c < 0x20 || c == 0x7f ? '?' : text[n];
    }
    snprintf(buffer + n, 4, "%s", text[n] ? "..." : "");
    return buffer;
}

static weft_status bad_file(const weft_safetensors *f, const char *what) {
    return WEFT_BAD_INPUT("%s: not a usable safetensors file: %s", shown(f->path), what);
}

static weft_status bad_tensor(const weft_safetensors *f, const char *name, const char *what) {
    return WEFT_BAD_INPUT("%s: tensor '%s': %s", shown(f->path), shown(name), what);
}

static weft_status system_failed(const char *path, const char *what) {
    return weft_fail(WEFT_EIO, "%s: %s: %s", shown(path), what, strerror(errno));
}

/* Elements times size; false for a negative size and for more bytes than can be counted. A zero
 * makes the product zero only after the other sizes were seen to be sane. */
static bool shape_bytes(int ndim, const int64_t *shape, weft_file_dtype dtype, int64_t *out) {
    int64_t bytes = file_dtypes[dtype].size;
    bool empty = false;
    for (int d = 0; d < ndim; d++) {
        if (shape[d] < 0) return false;
        if (shape[d] == 0)
            empty = true;
        else if (__builtin_mul_overflow(bytes, shape[d], &bytes))
            return false;
    }
    *out = empty ? 0 : bytes;
    return true;
}

static weft_status read_dtype(const weft_safetensors *f, const char *name, const json_t *value,
                              weft_file_dtype *out) {
    const char *text = json_string_value(value);
    if (!text) return bad_tensor(f, name, "'dtype' is missing or no string");
    for (int i = 0; i < FILE_DTYPES; i++) {
        if (strcmp(text, file_dtypes[i].name) != 0) continue;
        *out = (weft_file_dtype)i;
        return WEFT_OK;
    }
    return WEFT_BAD_INPUT("%s: tensor '%s' is of type '%.20s', which is not supported: convert it "
                          "to F64, F32, BF16, F16, I64 or I32",
                          shown(f->path), shown(name), shown(text));
}

static weft_status read_shape(const weft_safetensors *f, const char *name, const json_t *value,
                              weft_safetensor *out) {
    if (!json_is_array(value)) return bad_tensor(f, name, "'shape' is missing or no list");
    size_t ndim = json_array_size(value);
    if (ndim > WEFT_SAFETENSORS_DIMS)
        return WEFT_BAD_INPUT("%s: tensor '%s' has %zu dimensions; at most %d can be read",
                              shown(f->path), shown(name), ndim, (int)WEFT_SAFETENSORS_DIMS);
    out->ndim = (int)ndim;
    for (size_t d = 0; d < ndim; d++) {
        const json_t *size = json_array_get(value, d);
        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return bad_tensor(f, name, "a size in 'shape' is no whole number of 0 or more");
        out->shape[d] = json_integer_value(size);
    }
    if (!shape_bytes(out->ndim, out->shape, out->dtype, &out->bytes))
        return bad_tensor(f, name, "'shape' asks for more bytes than can be counted");
    return WEFT_OK;
}

static weft_status read_range(const weft_safetensors *f, const char *name, const json_t *value,
                              int64_t data_bytes, entry *out) {
    const json_t *first = json_array_get(value, 0), *last = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return bad_tensor(f, name, "'data_offsets' is missing or not two whole numbers");
    int64_t begin = json_integer_value(first), end = json_integer_value(last);
    if (begin < 0 || end < begin)
        return bad_tensor(f, name, "'data_offsets' are negative or in the wrong order");
    if (end > data_bytes)
        return WEFT_BAD_INPUT("%s: tensor '%s' ends at byte %lld of the data, but there are %lld: "
                              "the file is cut short or damaged",
                              shown(f->path), shown(name), (long long)end, (long long)data_bytes);
    if (end - begin != out->tensor.bytes)
        return WEFT_BAD_INPUT("%s: tensor '%s' has %lld bytes, but its shape and type ask for %lld",
                              shown(f->path), shown(name), (long long)(end - begin),
                              (long long)out->tensor.bytes);
    out->begin = begin;
    return WEFT_OK;
}

static int by_range(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    /* Empty ones first: they end where they begin. */
    return (x->tensor.bytes > y->tensor.bytes) - (x->tensor.bytes < y->tensor.bytes);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const weft_safetensor *)a)->name, ((const weft_safetensor *)b)->name);
}

static weft_status read_entries(weft_safetensors *f, const unsigned char *data, int64_t data_bytes,
                                entry *entries) {
    int64_t n = 0;
    EACH_MEMBER(m, f->header) {
        if (strcmp(m.key, "__metadata__") == 0) {
            if (!json_is_object(m.value)) return bad_file(f, "'__metadata__' is no object");
            EACH_MEMBER(own, m.value)
                if (!json_is_string(own.value))
                    return bad_file(f, "a value of '__metadata__' is no string");
            f->metadata = m.value;
            continue;
        }
        if (!json_is_object(m.value))
            return bad_tensor(f, m.key, "its entry in the header is no object");
        entries[n] = (entry){.tensor.name = m.key};
        WEFT_TRY(read_dtype(f, m.key, json_object_get(m.value, "dtype"), &entries[n].tensor.dtype));
        WEFT_TRY(read_shape(f, m.key, json_object_get(m.value, "shape"), &entries[n].tensor));
        WEFT_TRY(read_range(f, m.key, json_object_get(m.value, "data_offsets"), data_bytes,
                            &entries[n]));
        entries[n].tensor.data = data + entries[n].begin;
        n++;
    }
    /* They must cover the data without overlap or hole, in the order of their ranges. */
    int64_t at = 0;
    qsort(entries, (size_t)n, sizeof *entries, by_range);
    for (int64_t i = 0; i < n; i++) {
        const char *name = entries[i].tensor.name;
        if (entries[i].begin < at) return bad_tensor(f, name, "its data overlap another tensor's");
        if (entries[i].begin > at)
            return bad_tensor(f, name, "there is a hole in the data before it");
        at += entries[i].tensor.bytes;
    }
    if (at != data_bytes)
        return WEFT_BAD_INPUT(
            "%s: not a usable safetensors file: %lld bytes at its end belong to no tensor",
            shown(f->path), (long long)(data_bytes - at));
    for (int64_t i = 0; i < n; i++)
        f->tensors[i] = entries[i].tensor;
    qsort(f->tensors, (size_t)n, sizeof *f->tensors, by_name);
    f->count = n;
    return WEFT_OK;
}

weft_status weft_safetensors_open(const char *path, weft_safetensors **out) {
    *out = NULL;
    WEFT_NEW(weft_safetensors, f, weft_safetensors_close, "%s: no memory to open it", shown(path));
    f->path = path;
    /* O_NONBLOCK: a pipe in place of a file must not keep us waiting. */
    WEFT_AUTO_CLOSE int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return system_failed(f->path, "cannot be opened");
    struct stat info;
    if (fstat(fd, &info) != 0) return system_failed(f->path, "cannot be looked at");
    if (!S_ISREG(info.st_mode)) return bad_file(f, "it is a folder or a device");
    if (info.st_size < LENGTH_BYTES) return bad_file(f, "it is shorter than 8 bytes");
    void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) return system_failed(f->path, "cannot be mapped");
    f->map = map;
    f->map_bytes = info.st_size;
    uint64_t length;
    memcpy(&length, f->map, LENGTH_BYTES);
    if (length > WEFT_SAFETENSORS_HEADER_MAX)
        return bad_file(f, "its header would be longer than 100 MB");
    if ((int64_t)length > f->map_bytes - LENGTH_BYTES)
        return bad_file(f, "its header is longer than the file");
    const char *text = (const char *)f->map + LENGTH_BYTES;
    if (length == 0 || text[0] != '{') return bad_file(f, "its header does not begin with '{'");
    json_error_t error;
    f->header = weft_json_read(text, length, JSON_REJECT_DUPLICATES, &error);
    if (!f->header)
        return WEFT_BAD_INPUT("%s: not a usable safetensors file: header, byte %d: %s",
                              shown(f->path), error.position, shown(error.text));
    size_t entries_max = json_object_size(f->header);
    WEFT_ROOM(entry, entries, entries_max + 1, "%s: no memory for the header", shown(f->path));
    WEFT_ROOM_AT(f->tensors, entries_max + 1, "%s: no memory for the header", shown(f->path));
    WEFT_TRY(read_entries(f, f->map + LENGTH_BYTES + length,
                          f->map_bytes - LENGTH_BYTES - (int64_t)length, entries));
    f->path = NULL;
    return weft_hand(&f, out);
}

void weft_safetensors_close(weft_safetensors *file) {
    if (!file) return;
    if (file->map) munmap(file->map, (size_t)file->map_bytes);
    json_decref(file->header);
    WEFT_FREE(file->tensors, file);
}

WEFT_GETTER(int64_t, weft_safetensors_count, weft_safetensors, count)

const weft_safetensor *weft_safetensors_at(const weft_safetensors *file, int64_t i) {
    return &file->tensors[i];
}

const weft_safetensor *weft_safetensors_find(const weft_safetensors *file, const char *name) {
    weft_safetensor key = {.name = name};
    weft_beat();
    return bsearch(&key, file->tensors, (size_t)file->count, sizeof key, by_name);
}

const char *weft_safetensors_metadata(const weft_safetensors *file, const char *key) {
    return json_string_value(json_object_get(file->metadata, key));
}

/* IEEE's half: a sign, 5 bits of exponent, 10 of fraction. */
static double half_to_double(uint16_t bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double size = exponent == 31  ? (fraction ? (double)NAN : (double)INFINITY)
                  : exponent == 0 ? ldexp(fraction, -24)
                                  : ldexp(1024 + fraction, exponent - 25);
    return bits >> 15 ? -size : size;
}

void weft_safetensor_values(const weft_safetensor *t, int64_t first, int64_t n, double *out) {
    int64_t size = file_dtypes[t->dtype].size;
    for (int64_t i = 0; i < n; i++) {
        union {
            double f64;
            float f32;
            uint16_t half;
            int64_t i64;
            int32_t i32;
            int8_t i8;
        } v = {0};
        memcpy(&v, (const unsigned char *)t->data + (first + i) * size, (size_t)size);
        out[i] = t->dtype == WEFT_FILE_F64    ? v.f64
                 : t->dtype == WEFT_FILE_F32  ? (double)v.f32
                 : t->dtype == WEFT_FILE_BF16 ? (double)weft_bf16_to_float(v.half)
                 : t->dtype == WEFT_FILE_F16  ? half_to_double(v.half)
                 : t->dtype == WEFT_FILE_I64  ? (double)v.i64
                 : t->dtype == WEFT_FILE_I32  ? (double)v.i32
                                              : (double)v.i8;
    }
}

/* What the writer lays out before it writes a byte. */
typedef struct {
    const char *path;
    weft_safetensor *tensors; /* by name; `bytes` set */
    int64_t *order;           /* of the data: indices of tensors */
    int64_t *begin;           /* of each tensor in the data */
    int64_t n;
    char *header;
    size_t header_bytes; /* of header, spaces at its end included */
} layout;

static weft_status check_tensor(const layout *l, int64_t i) {
    weft_safetensor *t = &l->tensors[i];
    const char *name = t->name, *wrong = NULL;
    if (!name[0] || strcmp(name, "__metadata__") == 0)
        wrong = "the format keeps that name for itself";
    else if (i > 0 && strcmp(l->tensors[i - 1].name, name) == 0)
        wrong = "two tensors have that name";
    else if ((unsigned)t->dtype >= FILE_DTYPES)
        wrong = "its type is none of the format's";
    else if (t->ndim < 0 || t->ndim > WEFT_SAFETENSORS_DIMS)
        wrong = "it has more than 8 dimensions";
    else if (!shape_bytes(t->ndim, t->shape, t->dtype, &t->bytes))
        wrong = "its shape is negative or too large";
    else if (t->bytes > 0 && !t->data && !t->make)
        wrong = "it has no data";
    if (!wrong) return WEFT_OK;
    return WEFT_BAD_INPUT("%s: tensor '%s' cannot be written: %s", shown(l->path), shown(name),
                          wrong);
}

/* The header as text, padded with spaces so that the data begin on a multiple of 8. */
static weft_status make_header(layout *l, const char *const *metadata) {
    WEFT_AUTO_DECREF json_t *root = json_object();
    bool has_own = metadata && metadata[0];
    json_t *own = has_own ? json_object() : NULL;
    bool ok = root && (own || !has_own);
    for (; own && metadata[0] && metadata[1]; metadata += 2)
        ok = ok && json_object_set_new(own, metadata[0], json_string(metadata[1])) == 0;
    if (own) ok = json_object_set_new(root, "__metadata__", own) == 0 && ok;
    for (int64_t i = 0; ok && i < l->n; i++) {
        const weft_safetensor *t = &l->tensors[i];
        json_int_t begin = l->begin[i], end = begin + t->bytes;
        WEFT_JSON_LIST(shape, d, t->ndim, json_integer(t->shape[d]));
        json_t *tensor = json_pack("{s:s, s:o, s:[I, I]}", "dtype", file_dtypes[t->dtype].name,
                                   "shape", shape, "data_offsets", begin, end);
        ok = json_object_set_new(root, t->name, tensor) == 0;
    }
    WEFT_AUTO_FREE char *text = ok ? json_dumps(root, JSON_COMPACT) : NULL;
    if (!text)
        return WEFT_BAD_INPUT("%s: cannot be written: a name or metadata is no valid UTF-8, or "
                              "there is no memory for the header",
                              shown(l->path));
    size_t length = strlen(text), padded = (length + ALIGN - 1) / ALIGN * ALIGN;
    if (padded > WEFT_SAFETENSORS_HEADER_MAX)
        return WEFT_BAD_INPUT("%s: cannot be written: its header would be over 100 MB",
                              shown(l->path));
    WEFT_ROOM_AT(l->header, padded, "%s: no memory for the header", shown(l->path));
    memset(l->header, ' ', padded);
    memcpy(l->header, text, length);
    l->header_bytes = padded;
    return WEFT_OK;
}

static void end_layout(layout *l) {
    WEFT_FREE(l->header, l->begin, l->order, l->tensors);
}

weft_status weft_safetensors_write(const char *path, const weft_safetensor *tensors, int64_t n,
                                   const char *const *metadata, weft_sum *sum) {
    WEFT_AUTO(end_layout) layout l = {.path = path, .n = n};
    WEFT_ROOM_AT(l.tensors, n + 1, "%s: no memory to write it", shown(path));
    WEFT_ROOM_AT(l.order, n + 1, "%s: no memory to write it", shown(path));
    WEFT_ROOM_AT(l.begin, n + 1, "%s: no memory to write it", shown(path));
    if (n > 0) memcpy(l.tensors, tensors, (size_t)n * sizeof *tensors);
    qsort(l.tensors, (size_t)n, sizeof *l.tensors, by_name);
    int64_t total = 0;
    for (int64_t i = 0; i < l.n; i++) {
        WEFT_TRY(check_tensor(&l, i));
        if (__builtin_add_overflow(total, l.tensors[i].bytes, &total))
            return WEFT_BAD_INPUT("%s: the tensors are too large for one file", shown(l.path));
    }
    /* Large elements first, then by name: every element then lies on a multiple of its own size. */
    int64_t at = 0, placed = 0;
    for (int64_t size = ALIGN; size > 0; size /= 2) {
        for (int64_t i = 0; i < l.n; i++) {
            if (file_dtypes[l.tensors[i].dtype].size != size) continue;
            l.order[placed++] = i;
            l.begin[i] = at;
            at += l.tensors[i].bytes;
        }
    }
    WEFT_TRY(make_header(&l, metadata));
    uint64_t length = l.header_bytes;
    weft_new_file f;
    weft_status status = WEFT_OK;
    WEFT_TRY(weft_new_file_begin(&f, l.path));
    weft_new_file_put(&f, &length, LENGTH_BYTES);
    weft_new_file_put(&f, l.header, (int64_t)l.header_bytes);
    for (int64_t i = 0; status == WEFT_OK && i < l.n; i++) {
        const weft_safetensor *t = &l.tensors[l.order[i]];
        const void *data = t->data;
        if (t->make) status = t->make(t->context, t, &data);
        if (status == WEFT_OK) weft_new_file_put(&f, data, t->bytes);
    }
    if (sum) *sum = f.sum;
    return weft_new_file_end(&f, status);
}
