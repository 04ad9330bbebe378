/* Options of the commands. A command lists what it takes; parsing, errors and the options that all
 * commands share are here. What is wrong with them is WEFT_EINPUT, as wrong input is everywhere: a command
 * returns what failed, and main.c tells it. Behind them what commands share beside options: servers of their own,
 * checkpoints, and a config made for a text. */
#pragma once

#include "core/exec.h"
#include "data/tokenizer.h"
#include "generate/generator.h"
#include "model/folder.h"
#include "study/study.h"

#include <jansson.h>
#include <sys/types.h>

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
    bool unchecked;                          /* --unchecked: no checksums are verified */
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
    ARGS_OVERRIDES = 32, /* -o alone */
    ARGS_UNCHECKED = 64
};

/* Reads argv[1..]; `own` ends on a NULL name. Words that are no option go to `words`, up to n_words. */
weft_status weft_args_parse(weft_args *a, int argc, char **argv, unsigned taken,
                            const weft_arg *own, const char **words, int n_words);

/* Whether a word of the command line is this option, by its name or an old one, "=value" behind it or not. */
bool weft_args_is(const char *word, const char *name);

/* Refuses --config and --variant, since a checkpoint has a config of its own. */
weft_status weft_args_no_config(const weft_args *a);

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

/* A server of this program in a process of its own, which ends with this one, whatever ends that: `weft watch`
 * beside a study, `weft serve` under a benchmark. */

/* Runs "weft WORDS... --port 0 --json" and waits for the line on which it tells where it listens, `ms` at most
 * (-1: as long as it takes). *line is that line, the caller's; NULL: it is not there and the process is gone.
 * The exit status, 0 where it listens. `quiet`: nobody hears what it says. */
int weft_child_start(const char *const *words, bool quiet, int ms, pid_t *pid, json_t **line);
/* Asks it to end, and waits until it has. The exit status; -1: a signal ended it. 0 is no process. */
int weft_child_stop(pid_t pid);

/* The checkpoints that commands open, and those that they write. */
WEFT_ENDED_BY(weft_pool_destroy, weft_pool)

/* The checkpoint that `path` stands for: itself, or the best of a run's folder. */
weft_status weft_checkpoint_folder(const char *path, char out[WEFT_PATH_MAX]);

typedef struct {
    char folder[WEFT_PATH_MAX]; /* the checkpoint itself */
    weft_config config;
    weft_model *model;
    weft_tokenizer *tokenizer;
    weft_encoder *encoder;
    const weft_backend *backend;
    weft_pool *pool;
} weft_loaded;

/* What is wanted of it. */
typedef enum {
    WEFT_LOADED_MODEL,         /* the model alone, */
    WEFT_LOADED_ANY_TOKENIZER, /* and its tokenizer where it has one, */
    WEFT_LOADED_TEXT,          /* which must be there, */
    WEFT_LOADED_GENERATION,    /* and an encoder, and the type that generation runs in; */
    WEFT_LOADED_NUMBERS        /* its tokenizer where it has one, and that type */
} weft_loaded_for;

/* Opens what `path` stands for, with what the arguments change of its config. Its checksums are
 * verified unless it is --unchecked. After a failure too it is to be closed. */
weft_status weft_loaded_open(const weft_args *a, const char *path, weft_loaded_for purpose,
                             weft_loaded *out);
void weft_loaded_close(weft_loaded *l);

/* What --speculate says, for a generator of `model`: "ngram", or the folder of a draft model, which is opened;
 * NULL: nothing. After a failure too the draft is to be closed. */
weft_status weft_speculation_open(const weft_args *a, const char *how, const weft_loaded *model,
                                  weft_loaded *draft, weft_generator_limits *limits);

/* Publishes a model that was made of another: a folder with config.json, model.safetensors, tokenizer.json and
 * model.config, with which it can be trained further. An error where a model would be replaced, unless
 * `force`. `t` may be NULL: no tokenizer. */
weft_status weft_new_model_write(const char *folder, bool force, const weft_model *m,
                                 const weft_tokenizer *t);
/* What --force allows to be replaced, and what is allowed without it: nothing. */
#define WEFT_NEW_MODEL_MAY(force) ((force) ? weft_model_may_force : weft_model_may_not)

/* Training on a text of one's own with nothing else said: `weft train --text FILE`. */
WEFT_ENDED_BY(weft_study_close, weft_study)

/* How long training may take where nothing is said, in minutes. */
enum { WEFT_OWN_TEXT_MINUTES = 10 };

/* Learns a tokenizer from the texts, writes their shards into `out`/data, and a config for them into
 * `out`/config: a model whose size follows the text and what this machine computes in `minutes`. A
 * folder that has a run already is refused. */
weft_status weft_own_text_prepare(const weft_args *a, const char *const *paths, int n_paths,
                                  const char *out, double minutes);

/* The same for a study whose runs may take `minutes` each: the shards go to `data`, and the config to *c, with
 * its dataset by its whole path. Without any text it is the one that comes with weft, and `data` is not made. */
weft_status weft_own_text_choose(const weft_args *a, const char *const *paths, int n_paths,
                                 const char *data, double minutes, weft_config *c);
/* Warm-up and intervals for its steps. */
void weft_own_text_intervals(weft_config *c);

/* What a study is before it runs: its variants and their costs on standard output, how small a difference it can show and that its runs take so
 * many seconds, one after the other; NaN: that is not known. */
void weft_study_list(const weft_study *s, double seconds, bool json);
