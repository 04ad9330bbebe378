/* Files. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* renameat2 */
#endif
#include "base/files.h"

#include "base/beside.h"
#include "base/clock.h"
#include "base/crc32c.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>

atomic_uint_least64_t weft_beats;

/* Systems write at most 2 GB at a time; so much is also summed at a time, while it is in the cache. */
enum { BLOCK = 1 << 20 };
/* Large files go to the disk as they are written, so that no single call takes minutes. */
static const int64_t SYNC_BYTES = 1 << 28;

weft_status weft_path(char path[WEFT_PATH_MAX], const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(path, WEFT_PATH_MAX, format, args);
    va_end(args);
    if (n >= 0 && n < WEFT_PATH_MAX) return WEFT_OK;
    return WEFT_BAD_INPUT("%.200s...: the path is too long", path);
}

weft_status weft_path_failed(const char *path) {
    return weft_fail(WEFT_EIO, "%s: %s", path, strerror(errno));
}

weft_kind weft_kind_of(mode_t mode) {
    return S_ISREG(mode)   ? WEFT_KIND_FILE
           : S_ISDIR(mode) ? WEFT_KIND_FOLDER
           : S_ISLNK(mode) ? WEFT_KIND_LINK
                           : WEFT_KIND_OTHER;
}

weft_status weft_path_kind(const char *path, weft_kind *out) {
    struct stat is;
    *out = WEFT_KIND_NOTHING;
    if (lstat(path, &is) == 0) {
        *out = weft_kind_of(is.st_mode);
        return WEFT_OK;
    }
    if (errno == ENOENT || errno == ENOTDIR) return WEFT_OK;
    return weft_fail(WEFT_EIO, "%s: cannot be looked at: %s", path, strerror(errno));
}

weft_status weft_path_there(const char *path, bool *there) {
    weft_kind kind;
    weft_status status = weft_path_kind(path, &kind);
    *there = status == WEFT_OK && kind != WEFT_KIND_NOTHING;
    return status;
}

const char *weft_kind_name(weft_kind kind) {
    static const char *const names[] = {"nothing", "a file", "a folder", "a link",
                                        "a pipe or a device"};
    return names[kind];
}

/* Closes what is no plain file; `remedy` ends the message. */
static weft_status check_plain(const char *path, int *descriptor, const char *remedy) {
    struct stat is;
    weft_status status;
    if (fstat(*descriptor, &is) != 0)
        status = weft_fail(WEFT_EIO, "%s: cannot be looked at: %s", path, strerror(errno));
    else if (S_ISREG(is.st_mode))
        return WEFT_OK;
    else
        status = WEFT_BAD_INPUT("%s: is %s, not a file%s", path,
                                weft_kind_name(weft_kind_of(is.st_mode)), remedy);
    close(*descriptor);
    *descriptor = -1;
    return status;
}

weft_status weft_file_open(const char *path, int *descriptor) {
    /* O_NONBLOCK: a pipe is opened without waiting for its writer. */
    *descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*descriptor < 0) return weft_path_failed(path);
    return check_plain(path, descriptor, "");
}

weft_status weft_file_open_stream(const char *path, FILE **out) {
    int descriptor;
    *out = NULL;
    WEFT_TRY(weft_file_open(path, &descriptor));
    *out = fdopen(descriptor, "rb");
    if (*out) return WEFT_OK;
    weft_status status = weft_path_failed(path);
    close(descriptor);
    return status;
}

weft_status weft_file_size(const char *path, int64_t *bytes) {
    WEFT_AUTO_CLOSE int descriptor = -1;
    struct stat is;
    WEFT_TRY(weft_file_open(path, &descriptor));
    if (fstat(descriptor, &is) != 0)
        return weft_fail(WEFT_EIO, "%s: cannot be looked at: %s", path, strerror(errno));
    *bytes = (int64_t)is.st_size;
    return WEFT_OK;
}

/* At most `room` bytes; -1 and errno on an error, 0 at the end. */
static ssize_t read_some(int descriptor, void *to, size_t room) {
    ssize_t n;
    do
        n = read(descriptor, to, room);
    while (n < 0 && errno == EINTR);
    return n;
}

weft_status weft_file_sum(const char *path, weft_sum *out) {
    WEFT_AUTO_CLOSE int descriptor = -1;
    ssize_t n;
    *out = (weft_sum){0};
    WEFT_AUTO_FREE unsigned char *block = malloc(BLOCK);
    if (!block) return weft_fail(WEFT_ENOMEM, "%s: no memory to read it", path);
    WEFT_TRY(weft_file_open(path, &descriptor));
    while ((n = read_some(descriptor, block, BLOCK)) != 0) {
        if (n < 0) return weft_path_failed(path);
        out->crc = weft_crc32c(out->crc, block, (size_t)n);
        out->bytes += n;
        weft_beat();
    }
    return WEFT_OK;
}

/* Until the end, whatever the size was said to be: it may change meanwhile. */
weft_status weft_file_read_open(int descriptor, const char *path, size_t most, char **out,
                                size_t *bytes) {
    WEFT_AUTO_FREE char *text = NULL;
    size_t room = 1 << 16;
    *out = NULL;
    for (*bytes = 0;;) {
        char *larger = realloc(text, room + 1);
        if (!larger) return weft_fail(WEFT_ENOMEM, "%s: no memory to read it", path);
        text = larger;
        ssize_t n = read_some(descriptor, text + *bytes, room - *bytes);
        if (n < 0) return weft_path_failed(path);
        *bytes += (size_t)n;
        if (*bytes > most) return WEFT_BAD_INPUT("%s: is larger than %zu bytes", path, most);
        text[*bytes] = '\0';
        if (*bytes == room) room *= 2;
        if (n > 0) continue;
        return weft_hand(&text, out);
    }
}

weft_status weft_file_read(const char *path, size_t most, char **out, size_t *bytes) {
    WEFT_AUTO_CLOSE int descriptor = -1;
    *out = NULL;
    WEFT_TRY(weft_file_open(path, &descriptor));
    return weft_file_read_open(descriptor, path, most, out, bytes);
}

weft_status weft_file_open_own(const char *path, int *descriptor) {
    int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
    *descriptor = open(path, flags, 0666);
    if (*descriptor < 0 && errno == ELOOP)
        return WEFT_BAD_INPUT("%s: is a link, not a file; move it away", path);
    if (*descriptor < 0) return weft_path_failed(path);
    return check_plain(path, descriptor, "; move it away");
}

static weft_status write_failed(weft_new_file *f) {
    f->status = weft_fail(WEFT_EIO, "%s: cannot be written: %s", f->path, strerror(errno));
    return f->status;
}

weft_status weft_new_file_begin(weft_new_file *f, const char *path) {
    *f = (weft_new_file){.descriptor = -1};
    WEFT_TRY(weft_path(f->path, "%s", path));
    weft_kind kind;
    WEFT_TRY(weft_path_kind(path, &kind));
    if (kind != WEFT_KIND_NOTHING && kind != WEFT_KIND_FILE)
        return weft_fail(kind == WEFT_KIND_FOLDER ? WEFT_EIO : WEFT_EINPUT,
                         "%s: cannot be written: it is %s; name a file", path,
                         weft_kind_name(kind));
    f->descriptor = weft_beside_open(path, f->beside);
    if (f->descriptor < 0) return write_failed(f);
    weft_status status = weft_beside_clear(path);
    return status == WEFT_OK ? WEFT_OK : weft_new_file_end(f, status);
}

weft_status weft_new_file_put(weft_new_file *f, const void *data, int64_t bytes) {
    const char *at = data;
    while (f->status == WEFT_OK && bytes > 0) {
        ssize_t n = write(f->descriptor, at, bytes < BLOCK ? (size_t)bytes : (size_t)BLOCK);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = ENOSPC;
        if (n <= 0) return write_failed(f);
        f->sum.crc = weft_crc32c(f->sum.crc, at, (size_t)n);
        f->sum.bytes += n;
        at += n;
        bytes -= n;
        weft_beat();
        if ((f->unsynced += n) < SYNC_BYTES) continue;
        if (fsync(f->descriptor) != 0) return write_failed(f);
        f->unsynced = 0;
    }
    return f->status;
}

/* Gives it a name that nothing has; -1 and errno on an error, EEXIST where something has it. */
static int take_free_name(const char *beside, const char *path) {
#ifdef RENAME_NOREPLACE
    if (renameat2(AT_FDCWD, beside, AT_FDCWD, path, RENAME_NOREPLACE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) return -1;
#endif
    return link(beside, path) == 0 ? unlink(beside) : -1;
}

static weft_status refuse_name(const char *path) {
    return WEFT_BAD_INPUT("%s: is there already, made meanwhile; name another", path);
}

weft_status weft_file_take_name(const char *beside, const char *path) {
    int fd;
    WEFT_TRY(weft_file_open(beside, &fd));
    int synced = fsync(fd), closed = close(fd);
    if (synced == 0 && closed == 0 && take_free_name(beside, path) == 0)
        return weft_folder_sync_above(path);
    if (errno == EEXIST) return refuse_name(path);
    return weft_fail(WEFT_EIO, "%s: cannot be written: %s", path, strerror(errno));
}

/* Syncs, renames, closes, syncs the folder. Closing lets go of the lock, so the name comes before it. */
static weft_status settle(weft_new_file *f) {
    if (fsync(f->descriptor) != 0) return write_failed(f);
    int taken = f->once ? take_free_name(f->beside, f->path) : rename(f->beside, f->path);
    if (taken != 0 && f->once && errno == EEXIST) return refuse_name(f->path);
    if (taken != 0) return write_failed(f);
    f->beside[0] = '\0';
    weft_beside_unmark(f->descriptor);
    int closed = close(f->descriptor);
    f->descriptor = -1;
    if (closed != 0) return write_failed(f);
    return weft_folder_sync_above(f->path);
}

weft_status weft_new_file_end(weft_new_file *f, weft_status status) {
    if (status == WEFT_OK) status = f->status;
    if (status == WEFT_OK) status = settle(f);
    if (status != WEFT_OK && f->beside[0]) unlink(f->beside);
    if (f->descriptor >= 0) close(f->descriptor);
    f->descriptor = -1;
    return status;
}

weft_status weft_file_vacant(const char *path, bool force) {
    weft_kind kind;
    WEFT_TRY(weft_path_kind(path, &kind));
    if (kind == WEFT_KIND_NOTHING || (kind == WEFT_KIND_FILE && force)) return WEFT_OK;
    if (kind != WEFT_KIND_FILE)
        return WEFT_BAD_INPUT("%s: is %s; name a file", path, weft_kind_name(kind));
    return WEFT_BAD_INPUT("%s: is there already; --force overwrites it", path);
}

weft_status weft_file_write(const char *path, const void *data, size_t bytes, weft_sum *sum) {
    weft_new_file f;
    WEFT_TRY(weft_new_file_begin(&f, path));
    weft_new_file_put(&f, data, (int64_t)bytes);
    if (sum) *sum = f.sum;
    return weft_new_file_end(&f, WEFT_OK);
}
