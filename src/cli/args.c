/* Parsing of options. Long options take their value as the next word or after '='. */
#include "cli/args.h"

#include "core/nearest.h"
#include "device/device.h"
#include "model/account.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OPTIONS_MAX = 48, OPTION_LETTERS = 64 };

typedef struct {
    weft_arg list[OPTIONS_MAX];
    int n;
    /* Shared options as text, turned into numbers afterwards. */
    const char *step, *old_step, *threads, *seed;
} known_options;

static void list_options(known_options *k, weft_args *a, const weft_arg *own) {
    const weft_arg shared[] = {
        {"--config", &a->config, NULL, false},
        {"--step", &k->step, NULL, false},
        {"--ra-mla-ablation-step", &k->old_step, NULL, false},
        {"--json", NULL, &a->json, false},
        {"--threads", &k->threads, NULL, false},
        {"--seed", &k->seed, NULL, false},
        {"--dtype", &a->dtype, NULL, false},
        {"--device", &a->device, NULL, false},
    };
    for (const weft_arg *o = own; o && o->name; o++)
        k->list[k->n++] = *o;
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++)
        k->list[k->n++] = shared[i];
}

static const weft_arg *find_option(const known_options *k, const char *word, size_t length) {
    for (int i = 0; i < k->n; i++)
        if (strlen(k->list[i].name) == length && strncmp(k->list[i].name, word, length) == 0)
            return &k->list[i];
    return NULL;
}

/* `given` may have "=value" behind the option. */
static int refuse_unknown(const weft_args *a, const known_options *k, const char *given) {
    char word[OPTION_LETTERS];
    snprintf(word, sizeof word, "%.*s", (int)strcspn(given, "="), given);
    const char *nearest = NULL;
    size_t best = strlen(word) / 2 + 1;
    for (int i = 0; i < k->n; i++) {
        size_t distance = weft_edit_distance(word, k->list[i].name);
        if (distance >= best) continue;
        best = distance;
        nearest = k->list[i].name;
    }
    if (nearest)
        fprintf(stderr, "weft %s: unknown option '%s'; did you mean '%s'?\n", a->command, word,
                nearest);
    else
        fprintf(stderr, "weft %s: unknown option '%s'; 'weft help %s' lists them\n", a->command,
                word, a->command);
    return WEFT_EXIT_USAGE;
}

static int missing_value(const weft_args *a, const char *option) {
    fprintf(stderr, "weft %s: %s needs a value\n", a->command, option);
    return WEFT_EXIT_USAGE;
}

static int read_number(const weft_args *a, const char *option, const char *text, int64_t min,
                       int64_t max, int64_t *out) {
    if (!text) return WEFT_EXIT_DONE;
    char *end;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || value < min || value > max) {
        fprintf(stderr, "weft %s: %s '%s' must be a whole number from %lld to %lld\n", a->command,
                option, text, (long long)min, (long long)max);
        return WEFT_EXIT_USAGE;
    }
    *out = value;
    return WEFT_EXIT_DONE;
}

static int read_numbers(weft_args *a, const known_options *k) {
    int64_t step = -1, threads = 0;
    a->seed = -1;
    int status = read_number(a, "--step", k->step ? k->step : k->old_step, 0, 5, &step);
    if (!status) status = read_number(a, "--threads", k->threads, 0, 1024, &threads);
    if (!status) status = read_number(a, "--seed", k->seed, 0, 9007199254740991, &a->seed);
    a->step = (int)step;
    a->threads = (int)threads;
    return status;
}

/* One option at argv[*i]; moves *i past its value. */
static int take_option(weft_args *a, const known_options *k, int argc, char **argv, int *i) {
    const char *word = argv[*i], *equals = strchr(word, '=');
    if (strcmp(word, "-o") == 0) {
        if (*i + 1 >= argc) return missing_value(a, "-o");
        if (a->n_overrides == ARGS_OVERRIDES_MAX) {
            fprintf(stderr, "weft %s: more than %d overrides\n", a->command, ARGS_OVERRIDES_MAX);
            return WEFT_EXIT_USAGE;
        }
        a->overrides[a->n_overrides++] = argv[++*i];
        return WEFT_EXIT_DONE;
    }
    size_t length = equals ? (size_t)(equals - word) : strlen(word);
    const weft_arg *o = find_option(k, word, length);
    if (!o) return refuse_unknown(a, k, word);
    if (o->flag) {
        if (equals) {
            fprintf(stderr, "weft %s: %s takes no value\n", a->command, o->name);
            return WEFT_EXIT_USAGE;
        }
        *o->flag = true;
        return WEFT_EXIT_DONE;
    }
    if (!equals && *i + 1 >= argc) return missing_value(a, o->name);
    *o->value = equals ? equals + 1 : argv[++*i];
    return **o->value ? WEFT_EXIT_DONE : missing_value(a, o->name);
}

int weft_args_parse(weft_args *a, int argc, char **argv, const weft_arg *own, const char **words,
                    int n_words) {
    *a = (weft_args){.command = argv[0], .step = -1, .seed = -1};
    known_options k = {0};
    list_options(&k, a, own);
    int taken = 0;
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-' && argv[i][1]) {
            int status = take_option(a, &k, argc, argv, &i);
            if (status) return status;
        } else if (taken < n_words) {
            words[taken++] = argv[i];
        } else {
            fprintf(stderr, "weft %s: '%s' is one word too many\n", a->command, argv[i]);
            return WEFT_EXIT_USAGE;
        }
    }
    for (const weft_arg *o = own; o && o->name; o++) {
        if (!o->required || *o->value) continue;
        fprintf(stderr, "weft %s: %s is needed; 'weft help %s' tells more\n", a->command, o->name,
                a->command);
        return WEFT_EXIT_USAGE;
    }
    return read_numbers(a, &k);
}

static weft_status collect_config(const weft_args *a, int step, weft_config *c) {
    weft_config_defaults(c);
    if (a->config) WEFT_TRY(weft_config_read(c, a->config));
    if (step >= 0) WEFT_TRY(weft_config_step(c, step));
    for (int i = 0; i < a->n_overrides; i++)
        WEFT_TRY(weft_config_override(c, a->overrides[i], "-o"));
    if (a->seed >= 0) c->seed = a->seed;
    if (a->dtype) WEFT_TRY(weft_config_set(c, "DTYPE", a->dtype, "--dtype"));
    if (a->device) WEFT_TRY(weft_config_set(c, "DEVICE", a->device, "--device"));
    return WEFT_OK;
}

weft_status weft_args_config(const weft_args *a, weft_config *c) {
    WEFT_TRY(collect_config(a, a->step, c));
    /* Only now is it known whether this is a study, and a step goes below the overrides. */
    if (a->step < 0 && *c->ra_mla_ablation_steps) WEFT_TRY(collect_config(a, 0, c));
    return weft_config_check(c, a->config ? a->config : "config");
}

int weft_args_readable(const weft_args *a, const char *path, const char *name) {
    const char *slash = name ? "/" : "", *tail = name ? name : "";
    size_t room = strlen(path) + strlen(tail) + 2;
    char *full = malloc(room);
    struct stat is;
    const char *why = NULL;
    /* A pipe is opened without waiting for its writer. */
    if (full) snprintf(full, room, "%s%s%s", path, slash, tail);
    int file = full ? open(full, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    if (file < 0 || fstat(file, &is) != 0)
        why = strerror(errno);
    else if (S_ISDIR(is.st_mode))
        why = "is a folder, not a file";
    if (why) fprintf(stderr, "weft %s: %s: %s\n", a->command, full ? full : path, why);
    if (file >= 0) close(file);
    free(full);
    return why ? WEFT_EXIT_USAGE : WEFT_EXIT_DONE;
}

int weft_args_fail(const weft_args *a, weft_status status) {
    fprintf(stderr, "weft %s: %s\n", a->command, weft_error_message());
    return status == WEFT_EINPUT ? WEFT_EXIT_USAGE : WEFT_EXIT_FAILED;
}

weft_status weft_args_backend(const weft_args *a, const weft_config *c,
                              const weft_backend **backend, weft_pool **pool) {
    *pool = NULL;
    WEFT_TRY(weft_device_open(c->device, weft_config_dtype(c), backend));
    return weft_pool_create(a->threads, pool);
}
