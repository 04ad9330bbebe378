/* Starting a server of one's own: a pipe on which it says where it listens, and a signal when this process ends. */
#include "cli/args.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { WORDS_MOST = 64, NOT_STARTED = 127 };

int weft_child_stop(pid_t pid) {
    int status = 0;
    if (pid <= 0) return 0;
    kill(pid, SIGTERM);
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int weft_child_start(const char *const *words, bool quiet, int ms, pid_t *pid, json_t **line) {
    int ends[2];
    char text[1024] = "";
    *line = NULL;
    *pid = 0;
    if (pipe2(ends, O_CLOEXEC) != 0) return NOT_STARTED;
    pid_t self = getpid();
    *pid = fork();
    if (*pid == 0) {
        char *all[WORDS_MOST + 1] = {"weft"};
        const char *const more[] = {"--port", "0", "--json"};
        int count = 1, nothing = open("/dev/null", O_RDWR);
        for (; *words && count < WORDS_MOST - 3; words++)
            all[count++] = (char *)(uintptr_t)*words;
        for (int i = 0; i < 3; i++)
            all[count++] = (char *)(uintptr_t)more[i];
        setpgid(0, 0);
        setenv("WEFT_LOG", "warn", 0); /* it ends when it is told to: that is no news */
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != self) _exit(NOT_STARTED); /* it ended before this was set */
        if (nothing < 0 || dup2(nothing, 0) < 0 || dup2(ends[1], 1) < 0 ||
            (quiet && dup2(nothing, 2) < 0))
            _exit(NOT_STARTED);
        execv("/proc/self/exe", all);
        _exit(NOT_STARTED);
    }
    close(ends[1]);
    struct pollfd p = {.fd = ends[0], .events = POLLIN};
    ssize_t n = *pid > 0 && poll(&p, 1, ms) == 1 ? read(ends[0], text, sizeof text - 1) : 0;
    close(ends[0]);
    if (n > 0) *line = json_loadb(text, (size_t)n, 0, NULL);
    if (*line) return 0;
    int status = *pid > 0 ? weft_child_stop(*pid) : NOT_STARTED;
    *pid = 0;
    return status ? status : NOT_STARTED;
}
