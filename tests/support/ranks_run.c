/* Starting mpirun, and finding the processes it started. */
#include "ranks_run.h"

#include "command.h"
#include "test.h"
#include "train_run.h"

#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS_MOST = 128, PAUSE_MS = 5 };

static const char *weft(void) {
    static char path[PATH_MAX];
    const char *named = getenv("WEFT");
    if (!named || !*named) named = "build/weft";
    return realpath(named, path) ? path : named;
}

static bool is_on_path(const char *name) {
    const char *path = getenv("PATH");
    char *folders = strdup(path ? path : ""), *at = folders, file[PATH_MAX];
    bool found = false;
    for (char *one; !found && (one = strsep(&at, ":"));) {
        snprintf(file, sizeof file, "%s/%s", one, name);
        found = access(file, X_OK) == 0;
    }
    free(folders);
    return found;
}

void ranks_need_mpi(void) {
    char program[PATH_MAX];
    const char *runner = getenv("RUNNER");
    snprintf(program, sizeof program, "%s", weft());
    const char *library = format_text("%s/libweft-mpi.so", dirname(program));
    const char *why = NULL;
    if (runner && *runner)
        why = "processes are run by RUNNER";
    else if (access(library, R_OK) != 0)
        why = "this build has no MPI: scripts/setup optional installs it";
    else if (!is_on_path("mpirun"))
        why = "there is no mpirun: scripts/setup optional installs it";
    if (!why) return;
    printf("%s\n", why);
    skip();
}

static void run_child(char **words, const char *err) {
    int nothing = open("/dev/null", O_RDWR);
    int errors = open(err, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (nothing < 0 || errors < 0 || dup2(nothing, 0) < 0 || dup2(nothing, 1) < 0 ||
        dup2(errors, 2) < 0)
        _exit(126);
    /* OpenMPI wants to be told twice that root means it, and binds ranks to processors. */
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 1);
    /* Where one rank is gone it ends the others: with time to say why, on a busy machine too. */
    setenv("OMPI_MCA_odls_base_sigkill_timeout", "4", 0);
    execvp(words[0], words);
    _exit(127);
}

static void add_word(char **words, int *n, const char *word) {
    assert_true(*n < WORDS_MOST);
    words[(*n)++] = (char *)(uintptr_t)word;
}

pid_t ranks_start(const ranks_part *parts, int n_parts, const char *err) {
    char *words[WORDS_MOST + 1], counts[8][16];
    int n = 0;
    add_word(words, &n, "mpirun");
    for (int i = 0; i < n_parts; i++) {
        const ranks_part *p = &parts[i];
        if (i > 0) add_word(words, &n, ":");
        snprintf(counts[i], sizeof counts[i], "%d", p->ranks);
        add_word(words, &n, "-n");
        add_word(words, &n, counts[i]);
        for (const char *const *e = p->environment; e && *e; e++) {
            add_word(words, &n, "-x");
            add_word(words, &n, *e);
        }
        if (p->folder) {
            add_word(words, &n, "-wdir");
            add_word(words, &n, p->folder);
        }
        add_word(words, &n, p->program ? p->program : weft());
        for (const char *const *a = p->arguments; *a; a++)
            add_word(words, &n, *a);
    }
    words[n] = NULL;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) run_child(words, err);
    return child;
}

int ranks_wait(pid_t child, double seconds) {
    int status;
    double waited = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
        pause_ms(PAUSE_MS);
        waited += PAUSE_MS / 1000.0;
        if (waited < seconds) continue;
        kill(child, SIGTERM);
        waitpid(child, &status, 0);
        fail_msg("the ranks were not done after %.0f s", seconds);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int ranks_run(int ranks, const char *const *arguments, const char *err) {
    ranks_part part = {.ranks = ranks, .arguments = arguments};
    return ranks_wait(ranks_start(&part, 1, err), 120);
}

pid_t ranks_pid(pid_t mpirun, int rank) {
    char path[64], text[1024] = "";
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)mpirun, (int)mpirun);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    char *at = text;
    for (int i = 0; i < rank; i++)
        strtol(at, &at, 10);
    return (pid_t)strtol(at, NULL, 10);
}

pid_t ranks_kill(pid_t mpirun, int rank, int number) {
    pid_t pid = ranks_pid(mpirun, rank);
    if (pid <= 0) fail_msg("rank %d is not there any more", rank);
    kill(pid, number);
    return pid;
}

int ranks_count(const char *path, const char *text) {
    size_t n;
    char *all = file_read(path, &n), *at = all;
    int count = 0;
    for (; (at = strstr(at, text)); at += strlen(text))
        count++;
    free(all);
    return count;
}
