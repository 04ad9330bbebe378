/* Safetensors files: named arrays, written whole or not at all, read without trust.
 *
 * A file is 8 bytes of header length (little endian), a JSON header that gives each name its type,
 * shape and place, and the arrays one after the other. Reading checks all of it before anything is
 * handed out: whoever holds an open file can use every pointer and size in it. An error is one line
 * that names the file and the tensor. */
#pragma once

#include "base/files.h"
#include "core/graph.h"

enum { WEFT_SAFETENSORS_DIMS = 8, WEFT_SAFETENSORS_HEADER_MAX = 100 * 1000 * 1000 };

/* The types that can be read and written; a file with another one is refused. */
typedef enum {
    WEFT_FILE_F64,
    WEFT_FILE_F32,
    WEFT_FILE_BF16,
    WEFT_FILE_F16, /* IEEE's half: others write it, weft does not compute with it */
    WEFT_FILE_I64, /* this and what follows: whole numbers */
    WEFT_FILE_I32,
    WEFT_FILE_I8
} weft_file_dtype;

typedef struct weft_safetensor weft_safetensor;
struct weft_safetensor {
    const char *name;
    weft_file_dtype dtype;
    int ndim; /* 0: one number */
    int64_t shape[WEFT_SAFETENSORS_DIMS];
    /* The elements. In a file that was read it may be at any address, since the format promises no
     * alignment: copy from it. */
    const void *data;
    int64_t bytes; /* of data; set by reading, ignored by writing */
    /* Writing: makes the elements when their turn comes, to last until the next call, so that not all
     * tensors have to be in memory at once. NULL: `data` has them. */
    weft_status (*make)(void *context, const weft_safetensor *t, const void **data);
    void *context;
};

typedef struct weft_safetensors weft_safetensors;

/* Opens and checks a file. Damage is WEFT_EINPUT, a system call that failed WEFT_EIO. The contents
 * are mapped, not read, so opening a large file is quick; nobody may shorten it meanwhile. */
weft_status weft_safetensors_open(const char *path, weft_safetensors **out);
void weft_safetensors_close(weft_safetensors *file);
WEFT_ENDED_BY(weft_safetensors_close, weft_safetensors)

/* The tensors in the order of their names; valid until the file is closed. */
int64_t weft_safetensors_count(const weft_safetensors *file);
const weft_safetensor *weft_safetensors_at(const weft_safetensors *file, int64_t i);
/* The tensor of that name; NULL if there is none. */
const weft_safetensor *weft_safetensors_find(const weft_safetensors *file, const char *name);
/* The value of a key of the file's metadata; NULL if there is none. */
const char *weft_safetensors_metadata(const weft_safetensors *file, const char *key);

/* Writes n tensors, in any order, to a new file beside `path` that then takes its place: a kill at
 * any moment leaves the old file or the new one. `metadata` holds keys and values in turn and ends
 * on NULL; NULL: none. Equal arguments give equal bytes. *sum, where not NULL, is that of the bytes that were
 * meant to be written. */
weft_status weft_safetensors_write(const char *path, const weft_safetensor *tensors, int64_t n,
                                   const char *const *metadata, weft_sum *sum);

/* n elements from the first one on, as doubles. */
void weft_safetensor_values(const weft_safetensor *t, int64_t first, int64_t n, double *out);

/* Bytes of one element, and the name in the file: "F32". */
int64_t weft_file_dtype_size(weft_file_dtype dtype);
const char *weft_file_dtype_name(weft_file_dtype dtype);
/* The file's type for a tensor's. */
weft_file_dtype weft_file_dtype_of(weft_dtype dtype);
