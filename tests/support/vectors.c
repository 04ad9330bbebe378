/* A reader for exactly the safetensors files that the reference writes: sorted names, all F64, the
 * header without spaces between its parts. */
#include "vectors.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct vectors {
    char *bytes;
    int64_t size;
    double *data;
    int n;
    vector *entry; /* sorted by name */
};

static char *read_whole(const char *path, int64_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    fseek(file, 0, SEEK_END);
    long end = ftell(file);
    rewind(file);
    char *bytes = end > 0 ? malloc((size_t)end + 1) : NULL;
    if (bytes && fread(bytes, 1, (size_t)end, file) != (size_t)end) {
        free(bytes);
        bytes = NULL;
    }
    fclose(file);
    if (bytes) bytes[end] = '\0';
    *size = end;
    return bytes;
}

/* Takes `text` from the front of *at. */
static bool take(char **at, const char *text) {
    size_t n = strlen(text);
    if (strncmp(*at, text, n) != 0) return false;
    *at += n;
    return true;
}

/* One `"NAME":{"dtype":"F64","shape":[..],"data_offsets":[a,b]}`. */
static bool parse_entry(char **at, vector *e, const double *data, int64_t data_bytes) {
    if (!take(at, "\"")) return false;
    char *end = strchr(*at, '"');
    if (!end || end - *at >= (long)sizeof e->name) return false;
    memcpy(e->name, *at, (size_t)(end - *at));
    e->name[end - *at] = '\0';
    *at = end;
    if (!take(at, "\":{\"dtype\":\"F64\",\"shape\":[")) return false;
    e->count = 1;
    for (e->ndim = 0; **at != ']'; e->ndim++) {
        if (e->ndim == VECTOR_MOST_DIMS || (e->ndim && !take(at, ","))) return false;
        e->shape[e->ndim] = strtoll(*at, at, 10);
        e->count *= e->shape[e->ndim];
    }
    if (!take(at, "],\"data_offsets\":[")) return false;
    int64_t begin = strtoll(*at, at, 10);
    if (!take(at, ",")) return false;
    int64_t stop = strtoll(*at, at, 10);
    if (!take(at, "]}") || begin < 0 || stop > data_bytes || stop - begin != 8 * e->count)
        return false;
    e->data = data + begin / 8;
    return true;
}

static bool parse_header(vectors *v) {
    if (v->size < 8) return false;
    uint64_t length;
    memcpy(&length, v->bytes, 8);
    if (length > (uint64_t)v->size - 8) return false;
    int64_t data_bytes = v->size - 8 - (int64_t)length;
    v->data = malloc((size_t)data_bytes + 8);
    memcpy(v->data, v->bytes + 8 + length, (size_t)data_bytes);
    v->bytes[8 + length] = '\0';
    char *at = v->bytes + 8;
    if (!take(&at, "{")) return false;
    for (int room = 0; *at != '}'; v->n++) {
        if (v->n && !take(&at, ",")) return false;
        if (v->n == room) {
            room = room ? 2 * room : 256;
            v->entry = realloc(v->entry, (size_t)room * sizeof *v->entry);
        }
        if (!parse_entry(&at, &v->entry[v->n], v->data, data_bytes)) return false;
    }
    return true;
}

vectors *vectors_open(const char *family) {
    char path[256];
    snprintf(path, sizeof path, "tests/vectors/%s.safetensors", family);
    vectors *v = calloc(1, sizeof *v);
    v->bytes = read_whole(path, &v->size);
    if (!v->bytes || !parse_header(v)) {
        fprintf(stderr, "%s: %s; `make vectors` makes it\n", path,
                v->bytes ? "not a file of kept vectors" : "cannot be read");
        vectors_close(v);
        return NULL;
    }
    free(v->bytes);
    v->bytes = NULL;
    return v;
}

void vectors_close(vectors *v) {
    if (!v) return;
    free(v->bytes);
    free(v->data);
    free(v->entry);
    free(v);
}

static int compare_names(const void *key, const void *entry) {
    return strcmp(key, ((const vector *)entry)->name);
}

const vector *vectors_find(const vectors *v, uint32_t hash, const char *name) {
    char key[96];
    snprintf(key, sizeof key, "%08" PRIx32 "/%s", hash, name);
    return bsearch(key, v->entry, (size_t)v->n, sizeof *v->entry, compare_names);
}

int vectors_count(const vectors *v, uint32_t hash) {
    char key[16];
    int n = 0;
    snprintf(key, sizeof key, "%08" PRIx32 "/", hash);
    for (int i = 0; i < v->n; i++)
        n += !strncmp(v->entry[i].name, key, 9);
    return n;
}
