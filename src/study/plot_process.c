/* Running gnuplot. Script, output and errors are unnamed files and not pipes, so that neither side
 * can wait for the other whatever the sizes; a time limit keeps a hang from holding up a report. */
#include "study/plot_process.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { LIMIT_SECONDS = 60, PAUSE_MS = 2 };

/* -d: the user's own settings are not read. */
static int spawn_gnuplot(const char *program, FILE *in, FILE *out, FILE *err, pid_t *child) {
    char command[4096];
    snprintf(command, sizeof command, "%s", program);
    char defaults[] = "-d", *words[] = {command, defaults, NULL};
    posix_spawn_file_actions_t files;
    int code = posix_spawn_file_actions_init(&files);
    if (code) return code;
    posix_spawn_file_actions_adddup2(&files, fileno(in), 0);
    posix_spawn_file_actions_adddup2(&files, fileno(out), 1);
    posix_spawn_file_actions_adddup2(&files, fileno(err), 2);
    code = posix_spawnp(child, command, &files, NULL, words, environ);
    posix_spawn_file_actions_destroy(&files);
    return code;
}

/* The exit status; -1: a signal or the time limit ended it. */
static int wait_for(pid_t child) {
    const struct timespec pause = {.tv_nsec = PAUSE_MS * 1000000L};
    for (long waited = 0;; waited += PAUSE_MS) {
        int status;
        pid_t ended = waitpid(child, &status, WNOHANG);
        if (ended == child) return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        if (ended < 0 && errno != EINTR) return -1;
        if (waited == LIMIT_SECONDS * 1000L) kill(child, SIGKILL);
        nanosleep(&pause, NULL);
    }
}

/* All of a file as text; NULL: no memory. */
static char *read_whole(FILE *file) {
    long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    if (size < 0) return NULL;
    rewind(file);
    char *text = malloc((size_t)size + 1);
    if (text) text[fread(text, 1, (size_t)size, file)] = '\0';
    return text;
}

static weft_status fail_missing(void) {
    return weft_fail(WEFT_EMISSING, "No picture: gnuplot is not installed. 'apt-get install "
                                    "gnuplot-nox' (or your system's gnuplot, 5.4 or later), then "
                                    "'weft report' draws it.");
}

static weft_status run_gnuplot(const char *script, FILE *in, FILE *out, FILE *err, char **output) {
    const char *named = getenv("WEFT_GNUPLOT");
    const char *program = named && *named ? named : "gnuplot";
    pid_t child;
    if (fputs(script, in) < 0 || fflush(in) != 0 || fseek(in, 0, SEEK_SET) != 0)
        return weft_fail(WEFT_EIO, "No picture: no room for gnuplot's script: %s", strerror(errno));
    int code = spawn_gnuplot(program, in, out, err, &child);
    if (code == ENOENT) return fail_missing();
    if (code) return weft_fail(WEFT_EIO, "No picture: %s: %s", program, strerror(code));
    int ended = wait_for(child);
    if (ended == 127) return fail_missing();
    if (ended != 0) {
        char *said = read_whole(err);
        weft_status status = weft_fail(WEFT_EIO, "No picture: %s ended on %d: %.200s", program,
                                       ended, said ? said : "");
        free(said);
        return status;
    }
    *output = read_whole(out);
    return *output ? WEFT_OK : weft_fail(WEFT_ENOMEM, "No picture: no memory for it");
}

weft_status weft_gnuplot(const char *script, char **output) {
    FILE *in = tmpfile(), *out = tmpfile(), *err = tmpfile();
    weft_status status =
        in && out && err
            ? run_gnuplot(script, in, out, err, output)
            : weft_fail(WEFT_EIO, "No picture: no room for a temporary file: %s", strerror(errno));
    if (in) fclose(in);
    if (out) fclose(out);
    if (err) fclose(err);
    return status;
}
