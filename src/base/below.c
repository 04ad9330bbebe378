/* One component at a time, by openat with O_NOFOLLOW. */
#include "base/below.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    OPEN_FOLDER = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
    OPEN_FILE = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC
};

static weft_status failed(const char *path, const char *name) {
    return weft_fail(WEFT_EIO, "%s: %s: %s", path, name, strerror(errno));
}

static weft_status refuse(const char *path, const char *name, mode_t mode) {
    return weft_fail(WEFT_EINPUT, "%s: %s is %s, which is not followed", path, name,
                     S_ISLNK(mode)   ? "a link"
                     : S_ISDIR(mode) ? "a folder"
                     : S_ISREG(mode) ? "a file"
                                     : "a pipe or a device");
}

/* One name in an open folder, which must be of that type: looked at before it is opened, since opening
 * a device may do something, and after, since it may have been replaced. */
static weft_status open_name(int at, const char *path, const char *name, mode_t type, int *out) {
    struct stat is;
    *out = -1;
    if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return weft_fail(WEFT_EINPUT, "%s: is not a path below a folder", path);
    if (fstatat(at, name, &is, AT_SYMLINK_NOFOLLOW) != 0) return failed(path, name);
    if ((is.st_mode & S_IFMT) != type) return refuse(path, name, is.st_mode);
    *out = openat(at, name, type == S_IFDIR ? OPEN_FOLDER : OPEN_FILE);
    if (*out < 0) return failed(path, name);
    if (fstat(*out, &is) == 0 && (is.st_mode & S_IFMT) == type) return WEFT_OK;
    close(*out);
    *out = -1;
    return refuse(path, name, is.st_mode);
}

/* The folder that holds the path's last name, and that name. */
static weft_status open_parent(int root, const char *path, int *parent, const char **last) {
    char name[NAME_MAX + 1];
    int at = openat(root, ".", OPEN_FOLDER), next;
    weft_status status = at < 0 ? failed(path, ".") : WEFT_OK;
    *last = path;
    for (const char *slash; status == WEFT_OK && (slash = strchr(*last, '/')); *last = slash + 1) {
        size_t n = (size_t)(slash - *last);
        if (n > NAME_MAX) {
            errno = ENAMETOOLONG;
            status = failed(path, "a name");
            break;
        }
        memcpy(name, *last, n);
        name[n] = '\0';
        status = open_name(at, path, name, S_IFDIR, &next);
        close(at);
        at = next;
    }
    *parent = status == WEFT_OK ? at : -1;
    if (status != WEFT_OK && at >= 0) close(at);
    return status;
}

static weft_status open_below(int root, const char *path, mode_t type, int *out) {
    const char *last;
    int parent;
    *out = -1;
    WEFT_TRY(open_parent(root, path, &parent, &last));
    weft_status status = open_name(parent, path, last, type, out);
    close(parent);
    return status;
}

weft_status weft_below_root(const char *path, int *descriptor) {
    *descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return *descriptor < 0 ? weft_fail(WEFT_EIO, "%s: %s", path, strerror(errno)) : WEFT_OK;
}

weft_status weft_below_folder(int root, const char *path, int *descriptor) {
    if (*path) return open_below(root, path, S_IFDIR, descriptor);
    *descriptor = openat(root, ".", OPEN_FOLDER);
    return *descriptor < 0 ? failed("a folder", ".") : WEFT_OK;
}

weft_status weft_below_file(int root, const char *path, int *descriptor) {
    return open_below(root, path, S_IFREG, descriptor);
}

weft_status weft_below_stream(int root, const char *path, FILE **out) {
    int file;
    *out = NULL;
    WEFT_TRY(weft_below_file(root, path, &file));
    *out = fdopen(file, "rb");
    if (*out) return WEFT_OK;
    close(file);
    return weft_fail(WEFT_ENOMEM, "%s: no memory to read it", path);
}

weft_status weft_below_read(int root, const char *path, size_t most, char **out, size_t *bytes) {
    FILE *file;
    weft_status status = WEFT_OK;
    *out = NULL;
    WEFT_TRY(weft_below_stream(root, path, &file));
    char *text = malloc(most + 2);
    *bytes = text ? fread(text, 1, most + 1, file) : 0;
    if (!text)
        status = weft_fail(WEFT_ENOMEM, "%s: no memory to read it", path);
    else if (ferror(file))
        status = weft_fail(WEFT_EIO, "%s: %s", path, strerror(errno));
    else if (*bytes > most)
        status = weft_fail(WEFT_EINPUT, "%s: is larger than %zu bytes", path, most);
    fclose(file);
    if (status == WEFT_OK) {
        text[*bytes] = '\0';
        *out = text;
    } else {
        free(text);
    }
    return status;
}

bool weft_below_look(int root, const char *path, struct stat *out) {
    const char *last;
    int parent;
    if (open_parent(root, path, &parent, &last) != WEFT_OK) return false;
    bool there = fstatat(parent, last, out, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(out->st_mode);
    close(parent);
    return there;
}
