/* `weft train` by several processes that mpirun starts on this machine, more than it has processors
 * where need be. */
#ifndef WEFT_TESTS_RANKS_RUN_H
#define WEFT_TESTS_RANKS_RUN_H

#include <sys/types.h>

/* Skips the running test, and says why, where there is no mpirun or this build has no MPI. */
void ranks_need_mpi(void);

typedef struct {
    int ranks;                      /* that have these arguments */
    const char *program;            /* NULL: WEFT's */
    const char *folder;             /* where they run; NULL: here */
    const char *const *arguments;   /* end on NULL */
    const char *const *environment; /* NAME=value, ends on NULL; NULL: none more */
} ranks_part;

/* Starts the parts, one after the other in rank, and goes on; their standard error goes to the file
 * `err`. The process is mpirun. */
pid_t ranks_start(const ranks_part *parts, int n, const char *err);
/* Waits for the end of at most `seconds`, and fails the running test where it takes longer: the exit
 * status, or minus the signal. */
int ranks_wait(pid_t child, double seconds);
/* Both, of one part. */
int ranks_run(int ranks, const char *const *arguments, const char *err);

/* The process of a rank; 0: there is none yet. */
pid_t ranks_pid(pid_t mpirun, int rank);
/* Sends it a signal; its process. */
pid_t ranks_kill(pid_t mpirun, int rank, int number);

/* How often a file has the text. Not by lines: mpirun may weave those of two ranks. */
int ranks_count(const char *path, const char *text);

#endif
