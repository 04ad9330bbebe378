/* One `weft train` in a process of its own: this same program, started anew.
 *
 * The child leads a process group, so a Ctrl-C at the terminal reaches the study alone, which hands
 * it on once. Where the system can, a child whose study is killed is killed with it. */
#ifndef WEFT_SUPERVISE_PROCESS_H
#define WEFT_SUPERVISE_PROCESS_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* How a process ended. */
typedef struct {
    int status;     /* its exit status; 128 + the signal that ended it */
    int signal;     /* 0: none */
    int64_t memory; /* most resident bytes */
} weft_process_end;

/* Starts the program with these words, which end on NULL and begin with the command's name.
 * Standard output goes to the file `out`, made anew, standard error to the end of `log`. */
weft_status weft_process_start(const char *const *words, const char *out, const char *log,
                               pid_t *pid);
/* Whether it ended, without waiting. */
bool weft_process_ended(pid_t pid, weft_process_end *end);
/* Waits for the end. */
void weft_process_wait(pid_t pid, weft_process_end *end);

/* The last line of a log that is not blank, without `weft train: ` and without `folder: ` before
 * it; empty where there is none. */
void weft_process_last_line(const char *log, const char *folder, char *line, size_t room);

#endif
