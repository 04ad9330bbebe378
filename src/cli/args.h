/* Options of the commands. A command lists what it takes; parsing, errors and the options that all
 * commands share are here. What is wrong with them is WEFT_EINPUT, as wrong input is everywhere: a command
 * returns what failed, and main.c tells it. */
#pragma once

#include "core/exec.h"
#include "study/variants.h"

enum { WEFT_EXIT_DONE = 0, WEFT_EXIT_FAILED = 1, WEFT_EXIT_USAGE = 2 };

enum { ARGS_OVERRIDES_MAX = 256, ARGS_REPEATED_MAX = 64 };

typedef struct {
    const char *command; /* for messages */
    int exit;            /* the exit status where nothing fails: of what is told already */
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
    int n_words; /* that are no option */
    /* All of these that set a key, in their order: -o, --seed, --dtype, --device. */
    weft_override settings[ARGS_OVERRIDES_MAX + 3];
    int n_settings;
    char setting_text[3][64];
} weft_args;

enum { WEFT_ARG_OPTIONAL = 0, WEFT_ARG_NEEDED = 1, WEFT_ARG_MAY_BE_EMPTY = 2 };

/* One option of a command's own. With nothing but a name it takes a value each time that it is given: see
 * weft_args.repeated. */
typedef struct {
    const char *name;   /* "--out" */
    const char **value; /* takes a value, which goes here as it is */
    int64_t *number;    /* takes a whole number from `min` to `max` */
    double *real;       /* or one with a point */
    double min, max;
    bool *flag; /* sets this; with `value`, "=..." may follow */
    int rule;   /* WEFT_ARG_...; one that is needed has a `value` */
} weft_arg;

enum {
    ARGS_JSON = 1,
    ARGS_THREADS = 2,
    ARGS_DTYPE = 4,
    ARGS_DEVICE = 8,
    ARGS_CONFIG = 16, /* --config, --variant, --seed and -o */
    ARGS_ALL = 31,
    ARGS_OVERRIDES = 32 /* -o alone */
};

/* Reads argv[1..]; `own` ends on a NULL name. Words that are no option go to `words`, up to n_words. */
weft_status weft_args_parse(weft_args *a, int argc, char **argv, unsigned taken,
                            const weft_arg *own, const char **words, int n_words);

/* Whether a word of the command line is this option, by its name or an old one, "=value" behind it or not. */
bool weft_args_is(const char *word, const char *name);

/* Refuses --config and --variant, since a checkpoint has a config of its own. */
weft_status weft_args_no_config(const weft_args *a);

/* Where the arguments say that a config comes from. It points into `a`. */
weft_source weft_args_source(const weft_args *a);

/* The config that the arguments describe: file, variant, overrides, --seed, --dtype, --device, in
 * that order, and checked. An ablation without --variant means its step 0, named variants their first. */
weft_status weft_args_config(const weft_args *a, weft_config *c);

/* A number of the option o, for one that is part of a list. */
weft_status weft_args_number(const weft_arg *o, const char *text);

/* Whether a file that the user named can be read. A name that leads nowhere is wrong input; a file that fails
 * later is failed work. `name` is joined to the folder `path`; NULL: `path` is the file itself. */
weft_status weft_args_readable(const char *path, const char *name);

/* What came of a check whether what lies beside a model vouches for it (model/folder.h); where not, the message
 * names --unchecked. */
weft_status weft_args_checked(weft_status status);

/* The exit status of a command; where it failed, prints "weft COMMAND: message". */
int weft_args_end(const weft_args *a, weft_status status);

/* A word of a command that can be copied: quoted for the shell where it must be, and safe to show. It stays until
 * eight more texts were shown. */
const char *weft_args_word(const char *text);

/* An object on standard output, as --json has it; flags of jansson's beside the indentation. Releases the
 * object. */
void weft_args_print(json_t *object, size_t flags);

/* The backend and pool for the config's device; CUDA where it is missing says so. */
weft_status weft_args_backend(const weft_args *a, const weft_config *c,
                              const weft_backend **backend, weft_pool **pool);
