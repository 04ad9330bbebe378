/* A server of this program in a process of its own, which ends with this one, whatever ends that: `weft watch`
 * beside a study, `weft serve` under a benchmark. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

/* Runs "weft WORDS... --port 0 --json" and waits for the line on which it tells where it listens, `ms` at most
 * (-1: as long as it takes). *line is that line, the caller's; NULL: it is not there and the process is gone.
 * The exit status, 0 where it listens. `quiet`: nobody hears what it says. */
int weft_child_start(const char *const *words, bool quiet, int ms, pid_t *pid, json_t **line);
/* Asks it to end, and waits until it has. The exit status; -1: a signal ended it. 0 is no process. */
int weft_child_stop(pid_t pid);
