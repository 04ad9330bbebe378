/* Careful work with files: paths, what is at one, reading, and writing that leaves the old file or
 * the new one.
 *
 * Every system call's error is an error here. A file is written beside its place under a name that
 * was not there, synced, renamed, and its folder synced; what is in its place and is no plain file (a
 * pipe, a device, a link) is refused rather than waited for or written through. Folders are in
 * folders.h. */
#pragma once

#include "base/error.h"

#include <sys/stat.h>

enum { WEFT_PATH_MAX = 4096 };

/* A path by a format: weft_path(path, "%s/%s", folder, name). One that is too long is an error. */
weft_status weft_path(char path[WEFT_PATH_MAX], const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* A new variable with such a path; leaves the function where it is too long. */
#define WEFT_PATH(path, ...)                                                                       \
    char path[WEFT_PATH_MAX];                                                                      \
    WEFT_TRY(weft_path(path, __VA_ARGS__))

/* What errno says of a path: WEFT_EIO. */
weft_status weft_path_failed(const char *path);

/* What a path names itself: a link is a link, wherever it leads. Only "there is nothing" is
 * WEFT_KIND_NOTHING; a path that cannot be looked at is an error. */
typedef enum {
    WEFT_KIND_NOTHING,
    WEFT_KIND_FILE,
    WEFT_KIND_FOLDER,
    WEFT_KIND_LINK,
    WEFT_KIND_OTHER /* a pipe, a socket, a device */
} weft_kind;

weft_status weft_path_kind(const char *path, weft_kind *out);
/* The same of what stat says. */
weft_kind weft_kind_of(mode_t mode);
/* Whether there is anything, for files that may be missing. One that is there and cannot be read, or a
 * link that leads nowhere, is there: opening it then says what is wrong. */
weft_status weft_path_there(const char *path, bool *there);
/* "a link", for messages. */
const char *weft_kind_name(weft_kind kind);

/* What was written, or read: for checking that the two are the same. */
typedef struct {
    int64_t bytes;
    uint32_t crc; /* CRC-32C */
} weft_sum;

weft_status weft_file_sum(const char *path, weft_sum *out);
weft_status weft_file_size(const char *path, int64_t *bytes);

/* Opens a plain file, or a link to one, for reading. Never waits. */
weft_status weft_file_open(const char *path, int *descriptor);
/* The same as a stream. */
weft_status weft_file_open_stream(const char *path, FILE **out);
/* The whole of one, ended by a zero that is not counted; the caller frees it. More than `most` bytes
 * are an error. */
weft_status weft_file_read(const char *path, size_t most, char **out, size_t *bytes);
weft_status weft_file_read_open(int descriptor, const char *path, size_t most, char **out,
                                size_t *bytes);

/* Opens a plain file that is written in place, made where there is none: for lines that are added
 * and for locks. A link, a pipe or a device is refused. */
weft_status weft_file_open_own(const char *path, int *descriptor);

/* A file that is being written beside its place. */
typedef struct {
    int descriptor; /* -1: closed */
    bool once;      /* the name must be free at the end too: nothing is replaced */
    weft_sum sum;   /* of what was put */
    int64_t unsynced;
    weft_status status;
    char path[WEFT_PATH_MAX], beside[WEFT_PATH_MAX];
} weft_new_file;

weft_status weft_new_file_begin(weft_new_file *f, const char *path);
/* After a failure it does nothing and fails again, so that only the end need be looked at. */
weft_status weft_new_file_put(weft_new_file *f, const void *data, int64_t bytes);
/* Puts it in its place if all went well so far and `status` is WEFT_OK; else removes it, and returns
 * the first failure. To be called once after a begin that succeeded. */
weft_status weft_new_file_end(weft_new_file *f, weft_status status);

/* The end alone, of a file that a library wrote beside: synced, and given a name that nothing has. */
weft_status weft_file_take_name(const char *beside, const char *path);

/* An error where something is there already, unless `force`: what a user names is not overwritten
 * without being told so. */
weft_status weft_file_vacant(const char *path, bool force);

/* All three. `sum` may be NULL. */
weft_status weft_file_write(const char *path, const void *data, size_t bytes, weft_sum *sum);
