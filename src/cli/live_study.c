/* The page's process tells its port by one line of JSON on a pipe. */
#include "cli/live_study.h"

#include "base/folders.h"
#include "base/json.h"
#include "base/log.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef WEFT_HAVE_MICROHTTPD
enum { LINE = 256, WAIT_MS = 5000 };

/* In the child; does not return. It ends with the study, whatever ends that. */
static void become(const char *folder, int out) {
    char *words[] = {"weft", "watch", (char *)(uintptr_t)folder, "--port", "0", "--json", NULL};
    int nothing = open("/dev/null", O_RDWR);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (nothing < 0 || dup2(nothing, 0) < 0 || dup2(out, 1) < 0 || dup2(nothing, 2) < 0) _exit(127);
    execv("/proc/self/exe", words);
    _exit(127);
}

/* The port of its line; 0: none came. */
static int read_port(int from) {
    char line[LINE] = "";
    struct pollfd p = {.fd = from, .events = POLLIN};
    ssize_t n = poll(&p, 1, WAIT_MS) == 1 ? read(from, line, sizeof line - 1) : 0;
    json_t *object = n > 0 ? json_loadb(line, (size_t)n, 0, NULL) : NULL;
    int port = (int)json_integer_value(json_object_get(object, "port"));
    json_decref(object);
    return port;
}

pid_t weft_live_study_start(const char *folder) {
    const char *wish = getenv("WEFT_WATCH");
    int ends[2];
    if (!isatty(STDERR_FILENO) || (wish && strcmp(wish, "no") == 0)) return 0;
    if (weft_folder_make(folder) != WEFT_OK || pipe2(ends, O_CLOEXEC) != 0) return 0;
    pid_t pid = fork();
    if (pid == 0) become(folder, ends[1]);
    close(ends[1]);
    int port = pid > 0 ? read_port(ends[0]) : 0;
    close(ends[0]);
    if (port)
        weft_log(WEFT_LOG_INFO, "live at http://127.0.0.1:%d", port);
    else
        weft_live_study_stop(pid);
    return port ? pid : 0;
}
#else
pid_t weft_live_study_start(const char *folder) {
    (void)folder;
    return 0;
}
#endif

void weft_live_study_stop(pid_t pid) {
    if (pid <= 0) return;
    kill(pid, SIGTERM);
    waitpid(pid, NULL, 0);
}
