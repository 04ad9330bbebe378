/* A library that is loaded before others (LD_PRELOAD) and lets a chosen file operation of a program
 * fail, or kills the program just before it. What counts is which operation it is and which path it
 * is about; every process counts for itself.
 *
 *   WEFT_FAULT_CALLS    operations, "open,write" or "all"
 *   WEFT_FAULT_PATH     only paths that hold this text; a descriptor's path is the one it was opened by
 *   WEFT_FAULT_COMMAND  only processes whose first argument is this ("train")
 *   WEFT_FAULT_NTH      the call that fails, from 1; 0: none does, they are only counted
 *   WEFT_FAULT_ERRNO    the number it fails with; 0: the process is killed instead; -1: a write seems
 *                       to go well, but its last bit is another one; -2: it writes only a half; -3: the
 *                       process gets a SIGTERM, and the call goes on
 *   WEFT_FAULT_PLAIN    1: a file system that cannot exchange two names
 *   WEFT_FAULT_ALL      1: from the n-th on, every one fails
 *   WEFT_FAULT_COUNT    a file; when the process ends, a line with the number of calls is added
 *   WEFT_FAULT_TRACE    a file to which a line is added for each call that counts
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PATH_ROOM = 4096 };

static const char *calls, *path_part, *command, *count_file, *trace_file;
static long nth, number;
static bool all_later, plain, ready;
static atomic_long seen;

static bool is_command(void) {
    char line[PATH_ROOM] = "";
    int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY, 0);
    if (fd < 0) return false;
    ssize_t n = syscall(SYS_read, fd, line, sizeof line - 1);
    syscall(SYS_close, fd);
    if (n <= 0) return false;
    const char *first = line + strlen(line) + 1;
    return first < line + n && strcmp(first, command) == 0;
}

static long value_of(const char *name) {
    const char *text = getenv(name);
    return text ? strtol(text, NULL, 10) : 0;
}

__attribute__((constructor)) static void read_wishes(void) {
    calls = getenv("WEFT_FAULT_CALLS");
    path_part = getenv("WEFT_FAULT_PATH");
    command = getenv("WEFT_FAULT_COMMAND");
    count_file = getenv("WEFT_FAULT_COUNT");
    trace_file = getenv("WEFT_FAULT_TRACE");
    nth = value_of("WEFT_FAULT_NTH");
    number = value_of("WEFT_FAULT_ERRNO");
    plain = value_of("WEFT_FAULT_PLAIN") == 1;
    all_later = value_of("WEFT_FAULT_ALL") == 1;
    ready = calls && (!command || is_command());
}

static void add_line(const char *path, const char *text) {
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT, 0666);
    if (fd < 0) return;
    syscall(SYS_write, fd, text, strlen(text));
    syscall(SYS_close, fd);
}

__attribute__((destructor)) static void write_count(void) {
    char line[32];
    if (!ready || !count_file) return;
    snprintf(line, sizeof line, "%ld\n", atomic_load(&seen));
    add_line(count_file, line);
}

static bool is_called(const char *name) {
    size_t n = strlen(name);
    if (strcmp(calls, "all") == 0) return true;
    for (const char *at = calls; (at = strstr(at, name)); at += n)
        if ((at == calls || at[-1] == ',') && (at[n] == '\0' || at[n] == ',')) return true;
    return false;
}

/* Whether this call is to fail; errno is set. */
static bool fails(const char *name, const char *path) {
    int before = errno;
    if (!ready || !is_called(name) || (path_part && !strstr(path, path_part))) return false;
    long call = atomic_fetch_add(&seen, 1) + 1;
    bool now = nth > 0 && (call == nth || (all_later && call > nth));
    if (trace_file) {
        char line[PATH_ROOM + 64];
        snprintf(line, sizeof line, "%ld %s %.4000s%s\n", call, name, path, now ? " <<<" : "");
        add_line(trace_file, line);
    }
    errno = before;
    if (!now) return false;
    if (number == 0) syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
    if (number == -3) syscall(SYS_kill, syscall(SYS_getpid), SIGTERM);
    if (number == -3) return false;
    errno = number > 0 ? (int)number : before;
    return true;
}

/* A write that says that all went well. */
static ssize_t write_wrong(int fd, const void *from, size_t bytes) {
    char *copy = malloc(bytes + 1);
    if (!copy) return -1;
    memcpy(copy, from, bytes);
    if (bytes) copy[bytes - 1] ^= 1;
    ssize_t n = syscall(SYS_write, fd, copy, bytes);
    free(copy);
    return n;
}

static bool fails_at(const char *name, int fd, const char *path) {
    char folder[PATH_ROOM], link[64], whole[2 * PATH_ROOM];
    if (!ready) return false;
    if (fd == AT_FDCWD || (path && *path == '/')) return fails(name, path);
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, folder, sizeof folder - 1);
    folder[n > 0 ? n : 0] = '\0';
    errno = before;
    snprintf(whole, sizeof whole, "%s%s%s", folder, path ? "/" : "", path ? path : "");
    return fails(name, whole);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define WRAP_PATH(name, bad, parameters, arguments, path)                                          \
    int name parameters {                                                                          \
        return fails(#name, path) ? (bad) : REAL(name) arguments;                                  \
    }

static mode_t mode_of(int flags, va_list args) {
    return flags & (O_CREAT | O_TMPFILE) ? (mode_t)va_arg(args, unsigned) : 0;
}

int open(const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    mode_t mode = mode_of(flags, args);
    va_end(args);
    return fails("open", path) ? -1 : REAL(open)(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    mode_t mode = mode_of(flags, args);
    va_end(args);
    return fails("open", path) ? -1 : REAL(open64)(path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    mode_t mode = mode_of(flags, args);
    va_end(args);
    return fails_at("open", folder, path) ? -1 : REAL(openat)(folder, path, flags, mode);
}

WRAP_PATH(mkdir, -1, (const char *path, mode_t mode), (path, mode), path)
WRAP_PATH(rmdir, -1, (const char *path), (path), path)
WRAP_PATH(unlink, -1, (const char *path), (path), path)
WRAP_PATH(rename, -1, (const char *path, const char *to), (path, to), path)
WRAP_PATH(link, -1, (const char *path, const char *to), (path, to), to)
WRAP_PATH(access, -1, (const char *path, int how), (path, how), path)

int renameat2(int a, const char *path, int b, const char *to, unsigned flags) {
    if (fails_at("rename", a, path)) return -1;
    if (plain && flags) {
        errno = EINVAL;
        return -1;
    }
    return REAL(renameat2)(a, path, b, to, flags);
}

int unlinkat(int folder, const char *path, int flags) {
    return fails_at("unlink", folder, path) ? -1 : REAL(unlinkat)(folder, path, flags);
}

int stat(const char *restrict path, struct stat *restrict is) {
    return fails("stat", path) ? -1 : REAL(stat)(path, is);
}

int lstat(const char *restrict path, struct stat *restrict is) {
    return fails("stat", path) ? -1 : REAL(lstat)(path, is);
}

int fstat(int fd, struct stat *is) {
    return fails_at("fstat", fd, NULL) ? -1 : REAL(fstat)(fd, is);
}

int fstatat(int folder, const char *restrict path, struct stat *restrict is, int flags) {
    return fails_at("stat", folder, path) ? -1 : REAL(fstatat)(folder, path, is, flags);
}

ssize_t read(int fd, void *to, size_t bytes) {
    return fails_at("read", fd, NULL) ? -1 : REAL(read)(fd, to, bytes);
}

ssize_t write(int fd, const void *from, size_t bytes) {
    if (!fails_at("write", fd, NULL)) return REAL(write)(fd, from, bytes);
    if (number == -2) return REAL(write)(fd, from, bytes > 1 ? bytes / 2 : bytes);
    return number == -1 ? write_wrong(fd, from, bytes) : -1;
}

ssize_t pwrite(int fd, const void *from, size_t bytes, off_t at) {
    return fails_at("write", fd, NULL) && number > 0 ? -1 : REAL(pwrite)(fd, from, bytes, at);
}

ssize_t pwrite64(int fd, const void *from, size_t bytes, off64_t at) {
    return fails_at("write", fd, NULL) && number > 0 ? -1 : REAL(pwrite64)(fd, from, bytes, at);
}

ssize_t pread(int fd, void *to, size_t bytes, off_t at) {
    return fails_at("read", fd, NULL) ? -1 : REAL(pread)(fd, to, bytes, at);
}

ssize_t pread64(int fd, void *to, size_t bytes, off64_t at) {
    return fails_at("read", fd, NULL) ? -1 : REAL(pread64)(fd, to, bytes, at);
}

int fsync(int fd) {
    return fails_at("fsync", fd, NULL) ? -1 : REAL(fsync)(fd);
}

int fdatasync(int fd) {
    return fails_at("fsync", fd, NULL) ? -1 : REAL(fdatasync)(fd);
}

/* The descriptor is gone all the same, as Linux has it. */
int close(int fd) {
    bool bad = fails_at("close", fd, NULL);
    int error = errno, status = REAL(close)(fd);
    if (bad) errno = error;
    return bad ? -1 : status;
}

int ftruncate(int fd, off_t bytes) {
    return fails_at("ftruncate", fd, NULL) ? -1 : REAL(ftruncate)(fd, bytes);
}

int flock(int fd, int how) {
    return fails_at("flock", fd, NULL) ? -1 : REAL(flock)(fd, how);
}

DIR *opendir(const char *path) {
    return fails("opendir", path) ? NULL : REAL(opendir)(path);
}

DIR *fdopendir(int fd) {
    return fails_at("opendir", fd, NULL) ? NULL : REAL(fdopendir)(fd);
}

struct dirent *readdir(DIR *folder) {
    return fails_at("readdir", dirfd(folder), NULL) ? NULL : REAL(readdir)(folder);
}

FILE *fopen(const char *restrict path, const char *restrict how) {
    return fails("open", path) ? NULL : REAL(fopen)(path, how);
}

FILE *fopen64(const char *restrict path, const char *restrict how) {
    return fails("open", path) ? NULL : REAL(fopen64)(path, how);
}

enum { ERROR_SEEN = 0x20 }; /* _IO_ERR_SEEN of glibc, with which alone this is preloaded */

size_t fwrite(const void *restrict from, size_t size, size_t n, FILE *restrict file) {
    bool bad = fails_at("write", fileno(file), NULL) && number > 0;
    if (bad) file->_flags |= ERROR_SEEN; /* as a real one leaves it for ferror() */
    return bad ? 0 : REAL(fwrite)(from, size, n, file);
}

int fflush(FILE *file) {
    bool bad = file && fails_at("write", fileno(file), NULL) && number > 0;
    return bad ? EOF : REAL(fflush)(file);
}

int fclose(FILE *file) {
    bool bad = fails_at("close", fileno(file), NULL);
    int error = errno, status = REAL(fclose)(file);
    if (bad) errno = error;
    return bad ? EOF : status;
}
