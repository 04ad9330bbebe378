/* Folders. Of a run that is set aside nothing is removed; a run's checkpoints are last, best and step-N. */
#include "supervise/supervise.h"

#include "base/log.h"
#include "base/scope.h"
#include "train/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum { PAUSE_MS = 20, LEFT_MS = 5000, ASIDE_MOST = 10000 };

/* Who a lock says holds it. A lock has a process's number, or nothing yet: another file by that name is the
 * user's, and false. */
static bool read_holder(int fd, char holder[32]) {
    ssize_t n = pread(fd, holder, 31, 0);
    holder[n > 0 ? n : 0] = '\0';
    size_t digits = strspn(holder, "0123456789");
    bool ours =
        n == 0 || (n < 31 && digits > 0 && (!holder[digits] || strcmp(holder + digits, "\n") == 0));
    holder[strcspn(holder, "\n")] = '\0';
    return ours;
}

/* Whether another study holds the lock. The run that a study had just forked as it was killed holds it
 * too, until it has become another program: where the holder is gone, that is waited for. */
static bool is_held(int fd, char holder[32]) {
    const struct timespec pause = {.tv_nsec = PAUSE_MS * 1000000L};
    for (int waited = 0; flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
         waited += PAUSE_MS) {
        read_holder(fd, holder);
        long pid = strtol(holder, NULL, 10);
        bool gone = pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH;
        if (waited >= LEFT_MS || !gone) return true;
        nanosleep(&pause, NULL);
    }
    return false;
}

weft_status weft_folder_hold(const char *path, int *descriptor) {
    char lock[WEFT_PATH_MAX], holder[32] = "";
    WEFT_AUTO_CLOSE int fd = -1;
    *descriptor = -1;
    WEFT_TRY(weft_path(lock, "%s/lock", path));
    WEFT_TRY(weft_file_open_own(lock, &fd));
    if (is_held(fd, holder))
        return weft_fail(WEFT_EINPUT,
                         "%s: another weft study (process %s) runs in this folder; wait for it, or "
                         "take another --out",
                         path, *holder ? holder : "unknown");
    if (!read_holder(fd, holder))
        return weft_fail(WEFT_EINPUT,
                         "%s: is not a lock of weft's; move it away, or take another "
                         "--out",
                         lock);
    int n = snprintf(holder, sizeof holder, "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, holder, (size_t)n, 0) != n)
        return weft_fail(WEFT_EIO, "%s: %s", lock, strerror(errno));
    *descriptor = fd;
    fd = -1;
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
    WEFT_AUTO_CLOSE int fd = open(lines, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return;
    for (int waited = 0; 0.001 * waited < seconds; waited += PAUSE_MS) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) break;
        nanosleep(&pause, NULL);
    }
}

static weft_status set_aside(weft_database *d, const char *out, const weft_record_run *job) {
    char path[WEFT_PATH_MAX], aside[WEFT_PATH_MAX];
    weft_kind kind;
    WEFT_TRY(weft_path(path, "%s/%s", out, job->folder));
    WEFT_TRY(weft_path_kind(path, &kind));
    if (kind == WEFT_KIND_NOTHING) return WEFT_OK;
    for (int i = 1; kind != WEFT_KIND_NOTHING && i < ASIDE_MOST; i++) {
        WEFT_TRY(weft_path(aside, "%s.aside-%d", path, i));
        WEFT_TRY(weft_path_kind(aside, &kind));
    }
    if (rename(path, aside) != 0) return weft_fail(WEFT_EIO, "%s: %s", path, strerror(errno));
    weft_log(WEFT_LOG_INFO, "%s is set aside as %s, and the run begins anew", path, aside);
    char detail[WEFT_PATH_MAX + 32];
    snprintf(detail, sizeof detail, "begins anew; set aside as %s", aside);
    return weft_record_event(d, job->run, -1, "stopped", detail);
}

weft_status weft_restart(weft_database *d, const char *out, const weft_record_runs *jobs,
                         const char *which) {
    bool all = strcmp(which, "failed") == 0, found = false;
    for (int i = 0; i < jobs->n; i++) {
        const weft_record_run *job = &jobs->list[i];
        const char *slash = strrchr(job->folder, '/');
        bool named =
            strcmp(slash ? slash + 1 : job->folder, which) == 0 || strcmp(job->folder, which) == 0;
        if (named && job->status != WEFT_RUN_FAILED)
            return weft_fail(WEFT_EINPUT,
                             "--restart %s: this run did not fail; only one that did is started "
                             "anew",
                             which);
        if (job->status != WEFT_RUN_FAILED || (!all && !named)) continue;
        found = true;
        WEFT_TRY(set_aside(d, out, job));
    }
    if (found || all) return WEFT_OK;
    return weft_fail(WEFT_EINPUT,
                     "--restart %s: the study has no such run; 'weft runs %s' lists them", which,
                     out);
}

bool weft_weights_stay(const weft_study *s, const weft_record_run *job) {
    bool compared = s->variants.list[job->variant].repeats >= 0;
    for (int i = 0; i < s->variants.n; i++)
        compared = compared || s->variants.list[i].repeats == job->variant;
    if (s->base.study_weights == WEFT_STUDY_WEIGHTS_ALL || compared) return true;
    return s->base.study_weights == WEFT_STUDY_WEIGHTS_FIRST && job->seed == weft_study_seed(s, 0);
}

weft_status weft_weights_remove(const char *folder) {
    WEFT_AUTO(weft_names_free) weft_names names = {0};
    WEFT_TRY(weft_folder_list(folder, &names));
    for (int i = 0; i < names.n; i++) {
        char path[WEFT_PATH_MAX];
        weft_checkpoint_kind kind;
        const char *name = names.list[i];
        if (strcmp(name, "last") != 0 && strcmp(name, "best") != 0 &&
            weft_checkpoint_step_of(name) < 0)
            continue;
        WEFT_TRY(weft_path(path, "%s/%s", folder, name));
        WEFT_TRY(weft_checkpoint_look(path, &kind));
        if (kind != WEFT_CHECKPOINT_NONE && kind != WEFT_CHECKPOINT_FOREIGN)
            WEFT_TRY(weft_checkpoint_remove(path));
    }
    return WEFT_OK;
}
