/* Folders. */
#include "study/folder.h"

#include "model/model.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum { PATH_ROOM = 4096, PAUSE_MS = 20 };

weft_status weft_folder_make(const char *path) {
    char part[PATH_ROOM];
    if (snprintf(part, sizeof part, "%s", path) >= PATH_ROOM)
        return weft_fail(WEFT_EINPUT, "%.200s...: the path is too long", path);
    for (char *slash = part + 1; *part && (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(part, 0777);
        *slash = '/';
    }
    return weft_model_make_folder(path);
}

weft_status weft_folder_hold(const char *path, int *descriptor) {
    char lock[PATH_ROOM], holder[32] = "";
    *descriptor = -1;
    if (snprintf(lock, sizeof lock, "%s/lock", path) >= PATH_ROOM)
        return weft_fail(WEFT_EINPUT, "%.200s...: the path is too long", path);
    int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return weft_fail(WEFT_EIO, "%s: %s", lock, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        ssize_t n = pread(fd, holder, sizeof holder - 1, 0);
        holder[n > 0 ? strcspn(holder, "\n") : 0] = '\0';
        close(fd);
        return weft_fail(WEFT_EINPUT,
                         "%s: another weft study (process %s) runs in this folder; wait for it, or "
                         "take another --out",
                         path, *holder ? holder : "unknown");
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

void weft_folder_remove(const char *path) {
    DIR *folder = opendir(path);
    if (!folder) return;
    for (struct dirent *entry; (entry = readdir(folder));) {
        char inside[PATH_ROOM];
        struct stat is;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (snprintf(inside, sizeof inside, "%s/%s", path, entry->d_name) >= PATH_ROOM) continue;
        if (lstat(inside, &is) == 0 && S_ISDIR(is.st_mode))
            weft_folder_remove(inside);
        else
            unlink(inside);
    }
    closedir(folder);
    rmdir(path);
}

void weft_folder_wait(const char *path, double seconds) {
    const struct timespec pause = {.tv_nsec = PAUSE_MS * 1000000L};
    char lines[PATH_ROOM];
    if (snprintf(lines, sizeof lines, "%s/metrics.jsonl", path) >= PATH_ROOM) return;
    int fd = open(lines, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    for (int waited = 0; 0.001 * waited < seconds; waited += PAUSE_MS) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) break;
        nanosleep(&pause, NULL);
    }
    close(fd);
}
