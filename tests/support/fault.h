/* Running the program with a file operation that fails, or that it is killed at
 * (tests/faults/preload.c). */
#ifndef WEFT_TESTS_FAULT_H
#define WEFT_TESTS_FAULT_H

#include "command.h"

/* In an error's place: the process gets a SIGTERM, and the call goes on. */
enum { FAULT_SIGNAL = -3 };

typedef struct {
    const char *calls;   /* "open,write"; "all" */
    const char *path;    /* of what the path must hold; NULL: any */
    const char *command; /* the first argument of the processes it is for; NULL: any */
    long nth;            /* the call that fails, from 1; 0: none */
    int error; /* errno's number; 0: a kill; FAULT_SIGNAL; others below 0: as preload.c says */
    bool all;  /* all later ones fail too */
} fault;

/* Skips the test where the library is not there (sanitizers). */
void fault_need(void);

/* Runs; how many calls there were is in *count, where it is not NULL and the process was not
 * killed. */
command_result fault_run(const fault *f, const char *const *arguments, long *count);

#endif
