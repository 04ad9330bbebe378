/* Files and folders beside their places: their names, their locks, and what kills leave of them. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* renameat2 */
#endif
#include "base/beside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/file.h>

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

static int make_file(const char *path) {
    return open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666 | MARK);
}

/* A folder, open for reading. It gets the mark of folders.h too; the bit tells one that is empty, before it has that
 * mark and when it has it no more. One that was removed before it could be opened was taken for one that was left. */
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
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        if (weft_path(out, "%s.%ld-%u" WEFT_BESIDE_TAIL, path, (long)getpid(),
                      atomic_fetch_add(&number, 1)) != WEFT_OK) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int fd = make(out);
        if (fd < 0 && errno != EEXIST) return -1;
        if (fd < 0) continue;
        /* Between its making and its lock another process may have taken it for one that was left,
         * and removes it. A file system without locks keeps nobody from writing. */
        struct stat is;
        bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
        if (locked && (fstat(fd, &is) != 0 || is.st_nlink > 0)) return fd;
        close(fd);
    }
    errno = EEXIST;
    return -1;
}

int weft_beside_open(const char *path, char out[WEFT_PATH_MAX]) {
    return make_new(path, out, make_file);
}

/* The lock comes before the last look: what is removed is what is held. */
static void remove_left(int folder, const char *name) {
    struct stat named, is;
    if (fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(named.st_mode)) return;
    WEFT_AUTO_CLOSE int fd =
        openat(folder, name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &is) == 0 &&
        fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(named.st_mode) &&
        (named.st_mode & MARK) && named.st_dev == is.st_dev && named.st_ino == is.st_ino &&
        named.st_nlink == 1 && named.st_uid == geteuid())
        unlinkat(folder, name, 0);
}

/* Marks a folder that is to be removed. */
static void mark(int fd) {
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
    WEFT_AUTO_CLOSE int fd = open(path, OPEN_FOLDER);
    if (fd < 0) return;
    bool own = fstat(fd, &is) == 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && is.st_uid == geteuid() &&
               weft_folder_is_marked(path, &marked) == WEFT_OK && (marked || (is.st_mode & MARK));
    if (own && back && rename(path, back) == 0) own = false;
    if (own && back) own = errno == ENOTEMPTY || errno == EEXIST;
    if (own) {
        mark(fd);
        weft_folder_remove(path);
    }
}

weft_status weft_beside_clear(const char *path) {
    WEFT_AUTO(weft_names_free) weft_names names = {0};
    WEFT_AUTO_CLOSE int folder = -1;
    struct stat is;
    WEFT_PATH(above, "%s", path);
    char *slash = strrchr(above, '/');
    const char *own = slash ? path + (slash + 1 - above) : path;
    if (slash) slash[1] = '\0';
    const char *where = slash ? above : ".";
    WEFT_TRY(weft_folder_list(where, &names));
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
    return WEFT_OK;
}

/* Removes what is worth nothing. The message stays the one of `status`, of the name that was to be: nobody
 * knows the other. */
static weft_status discard(const weft_new_folder *f, weft_status status) {
    char message[2048];
    snprintf(message, sizeof message, "%s", weft_error_message());
    mark(f->held);
    /* One that is empty goes without being opened, which may have been what failed. */
    weft_status removed = rmdir(f->beside) == 0 ? WEFT_OK : weft_folder_remove(f->beside);
    if (status == WEFT_OK) return removed;
    const char *at = strstr(message, f->beside);
    if (!at) return weft_fail(status, "%s", message);
    return weft_fail(status, "%.*s%s%s", (int)(at - message), message, f->path,
                     at + strlen(f->beside));
}

/* The path without slashes at its end. A name is needed: "." and ".." can be given to nothing else. */
static weft_status take_path(const char *path, char out[WEFT_PATH_MAX]) {
    WEFT_TRY(weft_path(out, "%s", path));
    size_t n = strlen(out);
    while (n > 1 && out[n - 1] == '/')
        out[--n] = '\0';
    const char *slash = strrchr(out, '/'), *name = slash ? slash + 1 : out;
    if (*name && strcmp(name, ".") != 0 && strcmp(name, "..") != 0) return WEFT_OK;
    return WEFT_BAD_INPUT(
        "%s: a folder is written beside its place and then gets its name; give it one, "
        "as in %s/model",
        *path ? path : "--out", *path ? path : ".");
}

static weft_status refuse(const char *path) {
    return WEFT_BAD_INPUT("%s: is there already; name another", path);
}

weft_status weft_new_folder_room(const char *path, weft_may_replace may) {
    char name[WEFT_PATH_MAX];
    WEFT_AUTO(weft_names_free) weft_names names = {0};
    weft_kind kind;
    WEFT_TRY(take_path(path, name));
    WEFT_TRY(weft_path_kind(name, &kind));
    if (kind == WEFT_KIND_NOTHING) return WEFT_OK;
    if (kind != WEFT_KIND_FOLDER)
        return WEFT_BAD_INPUT("%s: is %s; name a folder", name, weft_kind_name(kind));
    WEFT_TRY(weft_folder_list(name, &names));
    if (names.n == 0) return WEFT_OK;
    WEFT_TRY(may ? may(name) : refuse(name));
    /* It is emptied once it has lost its name, and would stay under another. */
    if (faccessat(AT_FDCWD, name, W_OK | X_OK, AT_EACCESS) == 0) return WEFT_OK;
    return weft_fail(WEFT_EIO, "%s: cannot be replaced: %s", name, strerror(errno));
}

weft_status weft_new_folder_begin(weft_new_folder *f, const char *path) {
    *f = (weft_new_folder){.held = -1};
    WEFT_TRY(take_path(path, f->path));
    WEFT_PATH(above, "%s", f->path);
    char *slash = strrchr(above, '/');
    if (slash) *slash = '\0';
    if (slash && slash != above) WEFT_TRY(weft_folder_make(above));
    WEFT_TRY(weft_beside_clear(f->path));
    f->held = make_new(f->path, f->beside, make_folder);
    if (f->held < 0) return weft_fail(WEFT_EIO, "%s: cannot be made: %s", f->path, strerror(errno));
    weft_status status = weft_folder_mark(f->beside);
    return status == WEFT_OK ? WEFT_OK : weft_new_folder_end(f, status, NULL);
}

weft_status weft_folder_exchange(const char *fresh, const char *name, const char *old) {
#ifdef RENAME_EXCHANGE
    if (renameat2(AT_FDCWD, fresh, AT_FDCWD, name, RENAME_EXCHANGE) == 0) return WEFT_OK;
    if (errno != EINVAL && errno != ENOSYS) return weft_path_failed(name);
#endif
    if (rename(name, old) != 0) return weft_path_failed(name);
    if (rename(fresh, name) != 0) {
        weft_status status = weft_path_failed(name);
        rename(old, name);
        return status;
    }
    return rename(old, fresh) == 0 ? WEFT_OK : weft_path_failed(old);
}

static weft_status take_name(weft_new_folder *f, weft_may_replace may) {
    WEFT_TRY(weft_folder_sync(f->beside));
    WEFT_TRY(weft_new_folder_room(f->path, may));
    weft_beside_unmark(f->held);
    /* This replaces nothing but an empty folder, whatever came there meanwhile. */
    if (rename(f->beside, f->path) == 0) {
        f->beside[0] = '\0';
        return weft_folder_sync_above(f->path);
    }
    if (errno != ENOTEMPTY && errno != EEXIST) return weft_path_failed(f->path);
    if (!may) return refuse(f->path);
    WEFT_TRY(may(f->path));
    /* NAME is one that may be removed: marked, so that it is what a kill left if one comes now, and held, so
     * that nobody takes it for that. */
    size_t n = strlen(f->beside) - strlen(WEFT_BESIDE_TAIL);
    WEFT_PATH(old, "%.*s%s", (int)n, f->beside, WEFT_BESIDE_OLD);
    WEFT_TRY(weft_folder_mark(f->path));
    WEFT_AUTO_CLOSE int replaced = open(f->path, OPEN_FOLDER);
    if (replaced < 0) return weft_path_failed(f->path);
    (void)flock(replaced, LOCK_EX | LOCK_NB); /* a file system without locks keeps nobody from it */
    weft_status status = weft_folder_exchange(f->beside, f->path, old);
    bool named = status == WEFT_OK;
    if (named) mark(replaced);
    if (named) status = weft_folder_sync_above(f->path);
    if (named && status == WEFT_OK) status = weft_folder_remove(f->beside);
    if (named)
        f->beside[0] = '\0'; /* whatever is left of it is the old one, for the next to remove */
    return status;
}

weft_status weft_new_folder_end(weft_new_folder *f, weft_status status, weft_may_replace may) {
    if (status == WEFT_OK) status = take_name(f, may);
    return weft_new_folder_drop(f, status);
}

weft_status weft_new_folder_drop(weft_new_folder *f, weft_status status) {
    if (f->beside[0]) status = discard(f, status);
    if (f->held >= 0) close(f->held);
    f->held = -1;
    return status;
}
