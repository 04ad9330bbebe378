/* The weft program as a user meets it: run with arguments, and what it said and how it ended. */
#ifndef WEFT_TESTS_COMMAND_H
#define WEFT_TESTS_COMMAND_H

#include "base/json.h"
#include "base/scope.h"

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

/* The program: what the variable WEFT names, perhaps behind an emulator; and the words, `room` with the NULL
 * behind them, that run it with arguments. */
const char *command_program(void);
void command_words(const char *const *arguments, char **words, int room);
/* In a child before it becomes the program: a sanitizer's search for leaks takes seconds a process, so only the
 * first one is searched. */
void command_skip_leaks(void);

/* Runs the program that the variable WEFT names with arguments that end on NULL. One that takes
 * longer than a minute, with patience, is ended. */
command_result command_run(const char *const *arguments);
void command_free(command_result *r);

/* Runs and expects the exit status 0; NULL for `out`: nothing but that is looked at. */
void command_succeeds(const char *const *arguments, char **out);
/* The same; what it wrote to standard output, which the caller frees. */
char *command_output(const char *const *arguments);
/* The same, and standard output is one JSON object and nothing else, standard error is empty. The
 * caller owns the object. */
json_t *command_json(const char *const *arguments);
/* Expects that exit status, nothing on standard output, and one line on standard error that begins
 * with "weft" and holds all of `words`. */
void command_fails(int status, const char *const *arguments, const char *const *words);

/* A number of an object; fails where it is not there. */
double real_of(const json_t *object, const char *key);
long long integer_of(const json_t *object, const char *key);

/* A line of shell, made as printf makes it, that must end with status 0. */
void shell_succeeds(const char *format, ...) __attribute__((format(printf, 1, 2)));
void pause_ms(long milliseconds);

#define RUN(...) ((const char *const[]){__VA_ARGS__, NULL})
#define SAYS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define SUCCEEDS(...) command_succeeds(RUN(__VA_ARGS__), NULL)
#define OUTPUT(...) command_output(RUN(__VA_ARGS__))
#define FAILS(status, says, ...) command_fails(status, RUN(__VA_ARGS__), says)

/* A text, made as printf makes it, that is there to the end of the program. */
const char *format_text(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A folder of its own for a test's files. scratch_path gives NAME inside it, to the end of the program. */
void scratch_open(void);
void scratch_close(void);
/* The same as cmocka's setup and teardown, of a test or of a group. */
int scratch_setup(void **state);
int scratch_teardown(void **state);
const char *scratch_path(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Whole files. Reading ends the bytes by a zero that is not counted; the caller frees them. */
void file_write(const char *path, const void *bytes, size_t count);
char *file_read(const char *path, size_t *count);
/* A config: options as KEY=VALUE, with blanks between. */
void config_write(const char *path, const char *options);
/* A file of JSON that gzip packed; the caller owns it. */
json_t *file_json(const char *path);
/* A model of tests/vectors/hf.tar.xz, or its logits (NAME.logits.safetensors); unpacked into the scratch folder. */
const char *hf_path(const char *name);
/* Fails unless two files hold the same bytes. */
void file_expect_equal(const char *a, const char *b);

#endif
