/* Folders. */
#include "study/folder.h"

#include "core/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum { PAUSE_MS = 20 };

/* A lock holds a process's number, or nothing yet. Another file by that name is the user's. */
static bool is_lock(int fd) {
    char text[32];
    ssize_t n = pread(fd, text, sizeof text, 0);
    if (n == 0) return true;
    if (n < 0 || n == sizeof text) return false;
    text[n] = '\0';
    size_t digits = strspn(text, "0123456789");
    return digits > 0 && (text[digits] == '\0' || strcmp(text + digits, "\n") == 0);
}

weft_status weft_folder_hold(const char *path, int *descriptor) {
    char lock[WEFT_PATH_MAX], holder[32] = "";
    int fd;
    *descriptor = -1;
    WEFT_TRY(weft_path(lock, "%s/lock", path));
    WEFT_TRY(weft_file_open_own(lock, &fd));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        ssize_t n = pread(fd, holder, sizeof holder - 1, 0);
        holder[n > 0 ? strcspn(holder, "\n") : 0] = '\0';
        close(fd);
        return weft_fail(WEFT_EINPUT,
                         "%s: another weft study (process %s) runs in this folder; wait for it, or "
                         "take another --out",
                         path, *holder ? holder : "unknown");
    }
    if (!is_lock(fd)) {
        close(fd);
        return weft_fail(WEFT_EINPUT,
                         "%s: is not a lock of weft's; move it away, or take another "
                         "--out",
                         lock);
    }
    int n = snprintf(holder, sizeof holder, "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, holder, (size_t)n, 0) != n) {
        weft_status status = weft_fail(WEFT_EIO, "%s: %s", lock, strerror(errno));
        close(fd);
        return status;
    }
    *descriptor = fd;
    return WEFT_OK;
}

int64_t weft_folder_room(const char *path) {
    struct statvfs is;
    return statvfs(path, &is) == 0 ? (int64_t)is.f_bavail * (int64_t)is.f_frsize : -1;
}

void weft_folder_wait(const char *path, double seconds) {
    const struct timespec pause = {.tv_nsec = PAUSE_MS * 1000000L};
    char lines[WEFT_PATH_MAX];
    if (weft_path(lines, "%s/metrics.jsonl", path) != WEFT_OK) return;
    int fd = open(lines, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return;
    for (int waited = 0; 0.001 * waited < seconds; waited += PAUSE_MS) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) break;
        nanosleep(&pause, NULL);
    }
    close(fd);
}
