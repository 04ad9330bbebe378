/* Folders, by descriptor: what was looked at is what is removed, whatever takes its name meanwhile. */
#include "base/folders.h"

#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>

enum { DEPTH_MOST = 16, OPEN_FOLDER = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };

static const char mark_text[] = "weft made this folder, and may remove it.\n";

weft_status weft_folder_make_one(const char *path) {
    struct stat is;
    if (mkdir(path, 0777) == 0) return WEFT_OK;
    if (errno != EEXIST || stat(path, &is) != 0) return weft_path_failed(path);
    errno = EEXIST;
    if (!S_ISDIR(is.st_mode)) return weft_path_failed(path);
    return access(path, W_OK | X_OK) == 0 ? WEFT_OK : weft_path_failed(path);
}

weft_status weft_folder_make(const char *path) {
    WEFT_PATH(part, "%s", path);
    for (char *slash = part + 1; *part && (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        /* One above may be there and refuse to be looked at; the last one decides. */
        mkdir(part, 0777);
        *slash = '/';
    }
    return weft_folder_make_one(path);
}

/* Whether there is a plain file by the mark's name. What it says does not count: a kill may have
 * come before its first byte. */
static weft_status look_for_mark(int folder, const char *path, bool *out) {
    struct stat is;
    *out = false;
    if (fstatat(folder, WEFT_FOLDER_MARK, &is, AT_SYMLINK_NOFOLLOW) == 0)
        *out = S_ISREG(is.st_mode);
    else if (errno != ENOENT)
        return weft_path_failed(path);
    return WEFT_OK;
}

/* A mark that is there stays as it is: it may be one name of a file that has others. */
weft_status weft_folder_mark(const char *path) {
    bool there;
    WEFT_AUTO_CLOSE int folder = open(path, OPEN_FOLDER);
    if (folder < 0) return weft_path_failed(path);
    WEFT_TRY(look_for_mark(folder, path, &there));
    if (there) return WEFT_OK;
    int fd = openat(folder, WEFT_FOLDER_MARK, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return weft_path_failed(path);
    size_t bytes = sizeof mark_text - 1;
    bool ok = write(fd, mark_text, bytes) == (ssize_t)bytes && fsync(fd) == 0;
    weft_status status = ok ? WEFT_OK : weft_path_failed(path);
    if (close(fd) != 0 && status == WEFT_OK) status = weft_path_failed(path);
    return status;
}

weft_status weft_folder_make_marked(const char *path) {
    return mkdir(path, 0777) != 0 ? weft_path_failed(path) : weft_folder_mark(path);
}

weft_status weft_folder_is_marked(const char *path, bool *out) {
    *out = false;
    WEFT_AUTO_CLOSE int folder = open(path, OPEN_FOLDER);
    return folder < 0 ? weft_path_failed(path) : look_for_mark(folder, path, out);
}

weft_status weft_folder_sync(const char *path) {
    WEFT_AUTO_CLOSE int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return weft_path_failed(path);
    bool synced = fsync(folder) == 0 || errno == EINVAL || errno == ENOTSUP || errno == EOPNOTSUPP;
    return synced ? WEFT_OK : weft_path_failed(path);
}

weft_status weft_folder_sync_above(const char *path) {
    WEFT_PATH(above, "%s", path);
    char *slash = strrchr(above, '/');
    if (!slash) return weft_folder_sync(".");
    slash[1] = '\0';
    return weft_folder_sync(above);
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void weft_names_free(weft_names *names) {
    for (int i = 0; i < names->n; i++)
        free(names->list[i]);
    free(names->list);
    *names = (weft_names){0};
}

/* Reads an open folder from its start; takes the descriptor. */
static weft_status read_entries(int folder, const char *path, weft_names *out) {
    weft_status status = WEFT_OK;
    *out = (weft_names){0};
    DIR *entries = fdopendir(folder);
    if (!entries) {
        status = weft_path_failed(path);
        close(folder);
        return status;
    }
    const struct dirent *entry;
    for (errno = 0; status == WEFT_OK && (entry = readdir(entries)); errno = 0) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        char **added = WEFT_ADD(out->list, out->n);
        if (added) *added = strdup(entry->d_name);
        if (!added || !*added) status = weft_fail(WEFT_ENOMEM, "%s: no memory for its names", path);
    }
    if (status == WEFT_OK && errno) status = weft_path_failed(path);
    closedir(entries);
    if (status != WEFT_OK) weft_names_free(out);
    if (out->n > 1) qsort(out->list, (size_t)out->n, sizeof *out->list, compare_names);
    return status;
}

weft_status weft_folder_list(const char *path, weft_names *out) {
    *out = (weft_names){0};
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return folder < 0 ? weft_path_failed(path) : read_entries(folder, path, out);
}

weft_status weft_folder_list_open(int folder, const char *path, weft_names *out) {
    int again = openat(folder, ".", OPEN_FOLDER);
    *out = (weft_names){0};
    return again < 0 ? weft_path_failed(path) : read_entries(again, path, out);
}

static weft_status empty_folder(int folder, const char *path, int depth);

/* One entry: a folder with all in it, anything else by its name alone. */
static weft_status remove_entry(int folder, const char *path, const char *name, int depth) {
    struct stat is;
    WEFT_PATH(inside, "%s/%s", path, name);
    if (fstatat(folder, name, &is, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? WEFT_OK : weft_path_failed(inside);
    if (!S_ISDIR(is.st_mode))
        return unlinkat(folder, name, 0) == 0 || errno == ENOENT ? WEFT_OK
                                                                 : weft_path_failed(inside);
    WEFT_AUTO_CLOSE int fd = openat(folder, name, OPEN_FOLDER);
    if (fd < 0) return weft_path_failed(inside);
    WEFT_TRY(empty_folder(fd, inside, depth + 1));
    return unlinkat(folder, name, AT_REMOVEDIR) == 0 ? WEFT_OK : weft_path_failed(inside);
}

/* All but the mark, then the mark. */
static weft_status empty_folder(int folder, const char *path, int depth) {
    WEFT_AUTO(weft_names_free) weft_names names = {0};
    if (depth > DEPTH_MOST) return weft_fail(WEFT_EIO, "%s: is too deep to be removed", path);
    WEFT_TRY(weft_folder_list_open(folder, path, &names));
    for (int i = 0; i < names.n; i++)
        if (strcmp(names.list[i], WEFT_FOLDER_MARK) != 0)
            WEFT_TRY(remove_entry(folder, path, names.list[i], depth));
    return remove_entry(folder, path, WEFT_FOLDER_MARK, depth);
}

weft_status weft_folder_remove(const char *path) {
    weft_kind kind;
    WEFT_TRY(weft_path_kind(path, &kind));
    if (kind == WEFT_KIND_NOTHING) return WEFT_OK;
    if (kind != WEFT_KIND_FOLDER)
        return WEFT_BAD_INPUT("%s: is %s, not a folder that weft made; move it away", path,
                              weft_kind_name(kind));
    WEFT_AUTO_CLOSE int folder = open(path, OPEN_FOLDER);
    if (folder < 0) return weft_path_failed(path);
    WEFT_AUTO(weft_names_free) weft_names names = {0};
    bool marked;
    WEFT_TRY(look_for_mark(folder, path, &marked));
    if (!marked) WEFT_TRY(weft_folder_list_open(folder, path, &names));
    if (names.n > 0)
        return WEFT_BAD_INPUT(
            "%s: weft did not make this folder and does not remove it; move it away", path);
    WEFT_TRY(empty_folder(folder, path, 0));
    return rmdir(path) == 0 || errno == ENOENT ? WEFT_OK : weft_path_failed(path);
}

enum { OPEN_FILE = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC };

static weft_status failed_below(const char *path, const char *name) {
    return weft_fail(WEFT_EIO, "%s: %s: %s", path, name, strerror(errno));
}

static weft_status refuse(const char *path, const char *name, mode_t mode) {
    return WEFT_BAD_INPUT("%s: %s is %s, which is not followed", path, name,
                          weft_kind_name(weft_kind_of(mode)));
}

/* One name in an open folder, which must be of that type: looked at before it is opened, since opening
 * a device may do something, and after, since it may have been replaced. */
static weft_status open_name(int at, const char *path, const char *name, mode_t type, int *out) {
    struct stat is;
    *out = -1;
    if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return WEFT_BAD_INPUT("%s: is not a path below a folder", path);
    if (fstatat(at, name, &is, AT_SYMLINK_NOFOLLOW) != 0) return failed_below(path, name);
    if ((is.st_mode & S_IFMT) != type) return refuse(path, name, is.st_mode);
    *out = openat(at, name, type == S_IFDIR ? OPEN_FOLDER : OPEN_FILE);
    if (*out < 0) return failed_below(path, name);
    if (fstat(*out, &is) == 0 && (is.st_mode & S_IFMT) == type) return WEFT_OK;
    close(*out);
    *out = -1;
    return refuse(path, name, is.st_mode);
}

/* The folder that holds the path's last name, and that name. */
static weft_status open_parent(int root, const char *path, int *parent, const char **last) {
    char name[NAME_MAX + 1];
    int at = openat(root, ".", OPEN_FOLDER), next;
    weft_status status = at < 0 ? failed_below(path, ".") : WEFT_OK;
    *last = path;
    for (const char *slash; status == WEFT_OK && (slash = strchr(*last, '/')); *last = slash + 1) {
        size_t n = (size_t)(slash - *last);
        if (n > NAME_MAX) {
            errno = ENAMETOOLONG;
            status = failed_below(path, "a name");
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
    WEFT_AUTO_CLOSE int parent = -1;
    *out = -1;
    WEFT_TRY(open_parent(root, path, &parent, &last));
    return open_name(parent, path, last, type, out);
}

weft_status weft_below_root(const char *path, int *descriptor) {
    *descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return *descriptor < 0 ? weft_path_failed(path) : WEFT_OK;
}

weft_status weft_below_folder(int root, const char *path, int *descriptor) {
    if (*path) return open_below(root, path, S_IFDIR, descriptor);
    *descriptor = openat(root, ".", OPEN_FOLDER);
    return *descriptor < 0 ? failed_below("a folder", ".") : WEFT_OK;
}

weft_status weft_below_file(int root, const char *path, int *descriptor) {
    return open_below(root, path, S_IFREG, descriptor);
}

weft_status weft_below_read(int root, const char *path, size_t most, char **out, size_t *bytes) {
    WEFT_AUTO_CLOSE int file = -1;
    *out = NULL;
    WEFT_TRY(weft_below_file(root, path, &file));
    return weft_file_read_open(file, path, most, out, bytes);
}

bool weft_below_look(int root, const char *path, struct stat *out) {
    const char *last;
    WEFT_AUTO_CLOSE int parent = -1;
    return open_parent(root, path, &parent, &last) == WEFT_OK &&
           fstatat(parent, last, out, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(out->st_mode);
}
