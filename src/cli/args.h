/* Options of the commands. A command lists what it takes; parsing, errors and the options that all
 * commands share are here. */
#ifndef WEFT_CLI_ARGS_H
#define WEFT_CLI_ARGS_H

#include "config/config.h"
#include "core/exec.h"
#include "study/variants.h"

enum { WEFT_EXIT_DONE = 0, WEFT_EXIT_FAILED = 1, WEFT_EXIT_USAGE = 2 };

enum { ARGS_OVERRIDES_MAX = 256, ARGS_REPEATED_MAX = 64 };

typedef struct {
    const char *command; /* for messages */
    /* Shared options, where the command takes them. */
    const char *config;                        /* --config FILE */
    const char *overrides[ARGS_OVERRIDES_MAX]; /* -o KEY=VALUE */
    int n_overrides;
    const char *variant;                     /* --variant NAME|N; NULL: not given */
    bool json;                               /* --json */
    int threads;                             /* --threads N; 0: one per processor */
    int64_t seed;                            /* --seed N; -1: the config's */
    const char *dtype;                       /* --dtype; NULL: the config's */
    const char *device;                      /* --device; NULL: the config's */
    const char *repeated[ARGS_REPEATED_MAX]; /* of an option that may be given several times */
    int n_repeated;
    /* All of these that set a key, in their order: -o, --seed, --dtype, --device. */
    weft_override settings[ARGS_OVERRIDES_MAX + 3];
    int n_settings;
    char setting_text[3][64];
} weft_args;

enum { WEFT_ARG_OPTIONAL = 0, WEFT_ARG_NEEDED = 1, WEFT_ARG_MAY_BE_EMPTY = 2 };

/* One option of a command's own. With neither of the two it takes a value each time that it is
 * given: see weft_args.repeated. */
typedef struct {
    const char *name;   /* "--out" */
    const char **value; /* takes a value */
    bool *flag;         /* or sets this */
    int rule;           /* false, true (WEFT_ARG_NEEDED), or that an empty value is one */
} weft_arg;

/* Reads argv[1..]; `own` ends on a NULL name. Words that are no option go to `words` (up to
 * n_words; NULL: none are taken). Returns WEFT_EXIT_DONE, or prints one line and returns
 * WEFT_EXIT_USAGE. `--help` prints the command's help and exits. */
int weft_args_parse(weft_args *a, int argc, char **argv, const weft_arg *own, const char **words,
                    int n_words);

/* Whether a word of the command line is this option, by its name or an old one, "=value" behind it or not. */
bool weft_args_is(const char *word, const char *name);

/* For a command that takes only some of the shared options: refuses the others, which would change nothing. */
enum {
    ARGS_JSON = 1,
    ARGS_THREADS = 2,
    ARGS_DTYPE = 4,
    ARGS_DEVICE = 8,
    ARGS_CONFIG = 16 /* --config, --variant, --seed and -o */
};
int weft_args_only(const weft_args *a, unsigned taken);

/* Where the arguments say that a config comes from. It points into `a`. */
weft_source weft_args_source(const weft_args *a);

/* The config that the arguments describe: file, variant, overrides, --seed, --dtype, --device, in
 * that order, and checked. An ablation without --variant means its step 0, named variants their first. */
weft_status weft_args_config(const weft_args *a, weft_config *c);

/* A whole number of an option of the command's own; NULL text leaves *out as it is. Returns
 * WEFT_EXIT_DONE, or prints one line and returns WEFT_EXIT_USAGE. */
int weft_args_number(const weft_args *a, const char *option, const char *text, int64_t min,
                     int64_t max, int64_t *out);

/* The same with a point. */
int weft_args_real(const weft_args *a, const char *option, const char *text, double min, double max,
                   double *out);

/* Whether a file that the user named can be read: WEFT_EXIT_DONE, or one line and WEFT_EXIT_USAGE. A
 * name that leads nowhere is wrong input; a file that fails later is failed work. `name` is joined
 * to the folder `path`; NULL: `path` is the file itself. */
int weft_args_readable(const weft_args *a, const char *path, const char *name);

/* What lies beside a model vouches for it (model/folder.h); where not, the message names --unchecked. */
weft_status weft_args_check_model(const char *folder);

/* Prints "weft COMMAND: message" and gives the exit status that belongs to a failed call. */
int weft_args_fail(const weft_args *a, weft_status status);

/* The backend and pool for the config's device; CUDA where it is missing says so. */
weft_status weft_args_backend(const weft_args *a, const weft_config *c,
                              const weft_backend **backend, weft_pool **pool);

#endif
