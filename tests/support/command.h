/* The weft program as a user meets it: run with arguments, and what it said and how it ended. */
#ifndef WEFT_TESTS_COMMAND_H
#define WEFT_TESTS_COMMAND_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct {
    char *out, *err; /* all that was written, ended by a zero */
    int status;      /* the exit status; -1: a signal or the time limit ended it */
    char line[256];  /* the command line, for messages */
} command_result;

/* How many times as long as usual things may take (sanitizers): the variable PATIENCE, 1 without it. */
int command_patience(void);

/* Runs the program that the variable WEFT names with arguments that end on NULL. One that takes
 * longer than a minute, with patience, is ended. */
command_result command_run(const char *const *arguments);
void command_free(command_result *r);

/* Runs and expects the exit status 0; NULL for `out`: nothing but that is looked at. */
void command_succeeds(const char *const *arguments, char **out);
/* The same, and standard output is one JSON object and nothing else, standard error is empty. The
 * caller owns the object. */
json_t *command_json(const char *const *arguments);
/* Expects that exit status, nothing on standard output, and one line on standard error that begins
 * with "weft" and holds all of `words`. */
void command_fails(int status, const char *const *arguments, const char *const *words);

/* A line of shell, made as printf makes it, that must end with status 0. */
void shell_succeeds(const char *format, ...) __attribute__((format(printf, 1, 2)));
void pause_ms(long milliseconds);

#define RUN(...) ((const char *const[]){__VA_ARGS__, NULL})
#define SAYS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* A folder of its own for a test's files. scratch_path gives NAME inside it; eight such texts may
 * be in use at a time. */
void scratch_open(void);
void scratch_close(void);
/* The same as cmocka's setup and teardown, of a test or of a group. */
int scratch_setup(void **state);
int scratch_teardown(void **state);
const char *scratch_path(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Whole files. Reading ends the bytes by a zero that is not counted; the caller frees them. */
void file_write(const char *path, const void *bytes, size_t count);
char *file_read(const char *path, size_t *count);
/* A file of JSON that gzip packed; the caller owns it. */
json_t *file_json(const char *path);
/* Fails unless two files hold the same bytes. */
void file_expect_equal(const char *a, const char *b);

#endif
