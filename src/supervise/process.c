/* fork, the child's files and signals, and exec of this program. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "supervise/process.h"

#include "base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

enum { WORDS_MOST = 64, NOT_STARTED = 127, TAIL = 8192 };

/* In the child; does not return. Only calls that are safe after a fork. */
static void become(char **words, int out, int log, pid_t parent, const sigset_t *mask) {
    int nothing = open("/dev/null", O_RDONLY);
    setpgid(0, 0);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    if (signal(SIGHUP, SIG_DFL) == SIG_IGN) signal(SIGHUP, SIG_IGN); /* nohup's */
    sigprocmask(SIG_SETMASK, mask, NULL);
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(NOT_STARTED); /* it was killed before this was set */
#else
    (void)parent;
#endif
    if (nothing < 0 || dup2(nothing, 0) < 0 || dup2(out, 1) < 0 || dup2(log, 2) < 0)
        _exit(NOT_STARTED);
    execv("/proc/self/exe", words);
    execvp(words[0], words);
    _exit(NOT_STARTED);
}

/* Signals wait until the child has forgotten this process's handlers: one that came in between would
 * be noted by a handler which the new program does not have. */
static weft_status fork_run(char **words, int out, int log, pid_t *pid) {
    sigset_t all, before;
    pid_t parent = getpid();
    fflush(NULL);
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    *pid = fork();
    if (*pid == 0) become(words, out, log, parent, &before);
    int error = errno;
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (*pid > 0) return WEFT_OK;
    return weft_fail(WEFT_EIO, "study: no process for a run: %s", strerror(error));
}

weft_status weft_process_start(const char *const *words, const char *out, const char *log,
                               pid_t *pid) {
    char *copy[WORDS_MOST + 2];
    int n = 0;
    copy[n++] = "weft";
    for (; *words && n <= WORDS_MOST; words++)
        copy[n++] = (char *)(uintptr_t)*words;
    copy[n] = NULL;
    int out_fd, log_fd = -1;
    WEFT_TRY(weft_file_open_own(out, &out_fd));
    weft_status status = weft_file_open_own(log, &log_fd);
    if (status == WEFT_OK && (ftruncate(out_fd, 0) != 0 || fcntl(log_fd, F_SETFL, O_APPEND) != 0))
        status = weft_fail(WEFT_EIO, "%s: %s", out, strerror(errno));
    if (status == WEFT_OK) status = fork_run(copy, out_fd, log_fd, pid);
    close(out_fd);
    if (log_fd >= 0) close(log_fd);
    return status;
}

static bool wait_for(pid_t pid, int flags, weft_process_end *end) {
    int status = 0;
    struct rusage usage = {.ru_maxrss = 0};
    pid_t got;
    do
        got = wait4(pid, &status, flags, &usage);
    while (got < 0 && errno == EINTR);
    if (got == 0) return false;
    *end = (weft_process_end){.status = NOT_STARTED};
    if (got < 0) return true; /* nobody to wait for: as one that never was */
    end->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    end->status = end->signal ? 128 + end->signal : WEXITSTATUS(status);
#ifdef __APPLE__
    end->memory = usage.ru_maxrss;
#else
    end->memory = (int64_t)usage.ru_maxrss * 1024;
#endif
    return true;
}

bool weft_process_ended(pid_t pid, weft_process_end *end) {
    return wait_for(pid, WNOHANG, end);
}

void weft_process_wait(pid_t pid, weft_process_end *end) {
    wait_for(pid, 0, end);
}

/* Leaves out `head` at the start of a text. */
static const char *without(const char *text, const char *head) {
    size_t n = strlen(head);
    return strncmp(text, head, n) == 0 ? text + n : text;
}

void weft_process_last_line(const char *log, const char *folder, char *line, size_t room) {
    char tail[TAIL + 1], head[4200];
    FILE *file;
    size_t n = 0;
    *line = '\0';
    if (weft_file_open_stream(log, &file) != WEFT_OK) return;
    if (fseek(file, -TAIL, SEEK_END) != 0) rewind(file);
    n = fread(tail, 1, TAIL, file);
    fclose(file);
    while (n > 0 && (tail[n - 1] == '\n' || tail[n - 1] == ' '))
        n--;
    tail[n] = '\0';
    const char *last = strrchr(tail, '\n');
    last = without(last ? last + 1 : tail, "weft train: ");
    snprintf(head, sizeof head, "%s: ", folder);
    snprintf(line, room, "%s", without(last, head));
}
