/* Files and folders beside their places: their names, their locks, and what kills leave of them. */
#include "base/beside.h"

#include "base/folders.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    ATTEMPTS = 100,
    MARK = S_ISVTX,
    OPEN_FOLDER = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC
};

static bool is_beside(const char *name, const char *own, const char *tail) {
    size_t n = strlen(own);
    if (strncmp(name, own, n) != 0 || name[n] != '.') return false;
    const char *at = name + n + 1;
    size_t process = strspn(at, "0123456789");
    if (process == 0 || at[process] != '-') return false;
    at += process + 1;
    size_t digits = strspn(at, "0123456789");
    return digits > 0 && strcmp(at + digits, tail) == 0;
}

bool weft_is_beside(const char *name, const char *own) {
    return is_beside(name, own, WEFT_BESIDE_TAIL);
}

/* Whether a new file is this process's. Between its making and its lock another process may have taken it
 * for one that was left, and removes it. A file system without locks keeps nobody from writing. */
static bool lock_new(int fd) {
    struct stat is;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
    return fstat(fd, &is) != 0 || is.st_nlink > 0;
}

static int make_file(const char *path) {
    return open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666 | MARK);
}

/* One that was removed before it could be opened was taken for one that was left. */
static int make_folder(const char *path) {
    if (mkdir(path, 0777 | MARK) != 0) return -1;
    int fd = open(path, OPEN_FOLDER), error = errno;
    if (fd >= 0) return fd;
    rmdir(path);
    errno = error == ENOENT ? EEXIST : error;
    return -1;
}

static int make_new(const char *path, char out[WEFT_PATH_MAX], int (*make)(const char *path)) {
    static atomic_uint number;
    out[0] = '\0';
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        if (weft_path(out, "%s.%ld-%u" WEFT_BESIDE_TAIL, path, (long)getpid(),
                      atomic_fetch_add(&number, 1)) != WEFT_OK) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int fd = make(out);
        if (fd < 0 && errno != EEXIST) return -1;
        if (fd >= 0 && lock_new(fd)) return fd;
        if (fd >= 0) close(fd);
    }
    errno = EEXIST;
    return -1;
}

int weft_beside_open(const char *path, char out[WEFT_PATH_MAX]) {
    return make_new(path, out, make_file);
}

int weft_beside_make(const char *path, char out[WEFT_PATH_MAX]) {
    return make_new(path, out, make_folder);
}

/* Whether both are one plain file of this user's that bears the mark, with no other name. */
static bool is_own(const struct stat *open_one, const struct stat *named) {
    return S_ISREG(named->st_mode) && (named->st_mode & MARK) &&
           named->st_dev == open_one->st_dev && named->st_ino == open_one->st_ino &&
           named->st_nlink == 1 && named->st_uid == geteuid();
}

/* The lock comes before the last look: what is removed is what is held. */
static void remove_left(int folder, const char *name) {
    struct stat named, is;
    if (fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(named.st_mode)) return;
    int fd = openat(folder, name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &is) == 0 &&
        fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && is_own(&is, &named))
        unlinkat(folder, name, 0);
    close(fd);
}

void weft_beside_mark(int fd) {
    struct stat is;
    if (fstat(fd, &is) == 0) (void)!fchmod(fd, (is.st_mode & 07777) | MARK);
}

void weft_beside_unmark(int fd) {
    struct stat is;
    if (fstat(fd, &is) == 0) (void)!fchmod(fd, is.st_mode & 07777 & ~(mode_t)MARK);
}

/* The same of a folder: removed, or, where `back` is not NULL, given that name unless another has it. */
static void take_left(const char *where, const char *name, const char *back) {
    char path[WEFT_PATH_MAX];
    struct stat is;
    bool marked;
    if (weft_path(path, "%s/%s", where, name) != WEFT_OK) return;
    int fd = open(path, OPEN_FOLDER);
    if (fd < 0) return;
    bool own = fstat(fd, &is) == 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && is.st_uid == geteuid() &&
               weft_folder_is_marked(path, &marked) == WEFT_OK && (marked || (is.st_mode & MARK));
    if (own && back && rename(path, back) == 0) own = false;
    if (own && back) own = errno == ENOTEMPTY || errno == EEXIST;
    if (own) {
        weft_beside_mark(fd);
        weft_folder_remove(path);
    }
    close(fd);
}

weft_status weft_beside_clear(const char *path) {
    char above[WEFT_PATH_MAX];
    weft_names names;
    struct stat is;
    WEFT_TRY(weft_path(above, "%s", path));
    char *slash = strrchr(above, '/');
    const char *own = slash ? path + (slash + 1 - above) : path;
    if (slash) slash[1] = '\0';
    const char *where = slash ? above : ".";
    WEFT_TRY(weft_folder_list(where, &names));
    int folder = -1;
    for (int i = 0; i < names.n; i++) {
        const char *name = names.list[i];
        bool old = is_beside(name, own, WEFT_BESIDE_OLD);
        if (!old && !weft_is_beside(name, own)) continue;
        if (folder < 0) folder = open(where, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (folder < 0 || fstatat(folder, name, &is, AT_SYMLINK_NOFOLLOW) != 0) continue;
        if (S_ISDIR(is.st_mode))
            take_left(where, name, old ? path : NULL);
        else if (!old)
            remove_left(folder, name);
    }
    if (folder >= 0) close(folder);
    weft_names_free(&names);
    return WEFT_OK;
}
