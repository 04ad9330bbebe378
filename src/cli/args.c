/* Parsing of options. Long options take their value as the next word or after '='. */
#include "cli/args.h"

#include "base/text.h"
#include "cli/defconfig.h"
#include "device/device.h"
#include "model/account.h"
#include "model/folder.h"
#include "model/kinds.h"

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
    const char *threads, *seed;
} known_options;

/* Names that options had before. They are read for ever, and no help shows them. A command may have an option
 * of its own by such a name: `weft bench --steps` counts training steps. */
static const struct {
    const char *old, *name;
} old_names[] = {
    {"--step", "--variant"},
    {"--steps", "--variants"},
    {"--ra-mla-ablation-step", "--variant"},
};

static void list_options(known_options *k, weft_args *a, const weft_arg *own) {
    const weft_arg shared[] = {
        {"--config", &a->config, NULL, false}, {"--variant", &a->variant, NULL, false},
        {"--json", NULL, &a->json, false},     {"--threads", &k->threads, NULL, false},
        {"--seed", &k->seed, NULL, false},     {"--dtype", &a->dtype, NULL, false},
        {"--device", &a->device, NULL, false},
    };
    for (const weft_arg *o = own; o && o->name; o++)
        k->list[k->n++] = *o;
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++)
        k->list[k->n++] = shared[i];
}

/* `word` may have "=value" behind the option. */
static bool is_option(const char *word, const char *name) {
    size_t length = strcspn(word, "=");
    return strlen(name) == length && strncmp(word, name, length) == 0;
}

static const char *current_name(const char *word) {
    for (size_t i = 0; i < sizeof old_names / sizeof old_names[0]; i++)
        if (is_option(word, old_names[i].old)) return old_names[i].name;
    return NULL;
}

bool weft_args_is(const char *word, const char *name) {
    const char *current = current_name(word);
    return is_option(word, name) || (current && strcmp(current, name) == 0);
}

static const weft_arg *find_option(const known_options *k, const char *word) {
    for (int i = 0; i < k->n; i++)
        if (is_option(word, k->list[i].name)) return &k->list[i];
    const char *current = current_name(word);
    return current ? find_option(k, current) : NULL;
}

/* `given` may have "=value" behind the option. */
static int refuse_unknown(const weft_args *a, const known_options *k, const char *given) {
    char word[OPTION_LETTERS];
    snprintf(word, sizeof word, "%.*s", (int)strcspn(given, "="), given);
    weft_nearest nearest = weft_nearest_slip(word);
    for (int i = 0; i < k->n; i++)
        weft_nearest_offer(&nearest, k->list[i].name);
    if (*nearest.name)
        fprintf(stderr, "weft %s: unknown option '%s'; did you mean '%s'?\n", a->command, word,
                nearest.name);
    else
        fprintf(stderr, "weft %s: unknown option '%s'; 'weft help %s' lists them\n", a->command,
                word, a->command);
    return WEFT_EXIT_USAGE;
}

static int missing_value(const weft_args *a, const char *option) {
    fprintf(stderr, "weft %s: %s needs a value\n", a->command, option);
    return WEFT_EXIT_USAGE;
}

int weft_args_number(const weft_args *a, const char *option, const char *text, int64_t min,
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

int weft_args_real(const weft_args *a, const char *option, const char *text, double min, double max,
                   double *out) {
    if (!text) return WEFT_EXIT_DONE;
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= min && value <= max)) {
        fprintf(stderr, "weft %s: %s '%s' must be a number from %g to %g\n", a->command, option,
                text, min, max);
        return WEFT_EXIT_USAGE;
    }
    *out = value;
    return WEFT_EXIT_DONE;
}

static int read_numbers(weft_args *a, const known_options *k) {
    int64_t threads = 0;
    a->seed = -1;
    int status = weft_args_number(a, "--threads", k->threads, 0, 1024, &threads);
    if (!status) status = weft_args_number(a, "--seed", k->seed, 0, 9007199254740991, &a->seed);
    a->threads = (int)threads;
    return status;
}

static void add_setting(weft_args *a, const char *text, const char *where) {
    a->settings[a->n_settings++] = (weft_override){text, where};
}

/* KEY=VALUE from an option of its own. */
static void add_option_setting(weft_args *a, int place, const char *key, const char *value,
                               const char *where) {
    snprintf(a->setting_text[place], sizeof a->setting_text[place], "%s=%.40s", key, value);
    add_setting(a, a->setting_text[place], where);
}

static void list_settings(weft_args *a) {
    char seed[32];
    snprintf(seed, sizeof seed, "%lld", (long long)a->seed);
    for (int i = 0; i < a->n_overrides; i++)
        add_setting(a, a->overrides[i], "-o");
    if (a->seed >= 0) add_option_setting(a, 0, "SEED", seed, "--seed");
    if (a->dtype) add_option_setting(a, 1, "DTYPE", a->dtype, "--dtype");
    if (a->device) add_option_setting(a, 2, "DEVICE", a->device, "--device");
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
    const weft_arg *o = find_option(k, word);
    if (!o) return refuse_unknown(a, k, word);
    if (o->flag) {
        if (equals && o->value && equals[1]) *o->value = equals + 1;
        if (equals && !(o->value && equals[1])) {
            fprintf(stderr, "weft %s: %s takes no value\n", a->command, o->name);
            return WEFT_EXIT_USAGE;
        }
        *o->flag = true;
        return WEFT_EXIT_DONE;
    }
    if (!equals && *i + 1 >= argc) return missing_value(a, o->name);
    if (!o->value) {
        if (a->n_repeated == ARGS_REPEATED_MAX) {
            fprintf(stderr, "weft %s: %s more than %d times\n", a->command, o->name,
                    ARGS_REPEATED_MAX);
            return WEFT_EXIT_USAGE;
        }
        const char *value = a->repeated[a->n_repeated++] = equals ? equals + 1 : argv[++*i];
        return *value ? WEFT_EXIT_DONE : missing_value(a, o->name);
    }
    *o->value = equals ? equals + 1 : argv[++*i];
    return **o->value || o->rule == WEFT_ARG_MAY_BE_EMPTY ? WEFT_EXIT_DONE
                                                          : missing_value(a, o->name);
}

/* A word where none belongs is most often a value without its option. */
static int refuse_word(const weft_args *a, const weft_arg *own, const char *word) {
    char room[WEFT_PATH_MAX];
    const char *option = NULL, *key = a->n_overrides ? a->overrides[a->n_overrides - 1] : "=";
    if (!strchr(key, '=')) {
        fprintf(stderr, "weft %s: unexpected argument '%s'; did you mean '-o %s=%s'?\n", a->command,
                weft_shown(word), weft_shown(key), weft_shown(word));
        return WEFT_EXIT_USAGE;
    }
    for (const weft_arg *o = own; o && o->name && !option; o++)
        if (o->rule == WEFT_ARG_NEEDED && !*o->value) option = o->name;
    if (!option && !a->config && access(weft_defconfig_find(word, room), F_OK) == 0)
        option = "--config";
    fprintf(stderr, "weft %s: unexpected argument '%s'", a->command, weft_shown(word));
    if (option)
        fprintf(stderr, "; did you mean '%s %s'?\n", option, weft_shown(word));
    else
        fprintf(stderr, "; see 'weft help %s'\n", a->command);
    return WEFT_EXIT_USAGE;
}

/* The config by its name or path; a name that nothing has is told apart from a path here, where both are
 * known. */
static int find_config(weft_args *a) {
    static char found[WEFT_PATH_MAX]; /* outlives `a`, which may be copied */
    char nearest[WEFT_PATH_MAX];
    a->config = weft_defconfig_find(a->config, found);
    if (!weft_defconfig_is_missing(a->config, nearest)) return WEFT_EXIT_DONE;
    fprintf(stderr, "weft %s: --config %s: No such file, and no study of that name comes with weft",
            a->command, weft_shown(a->config));
    if (*nearest) fprintf(stderr, "; did you mean '%s'?", weft_shown(nearest));
    fputs("\n", stderr);
    return WEFT_EXIT_USAGE;
}

int weft_args_parse(weft_args *a, int argc, char **argv, const weft_arg *own, const char **words,
                    int n_words) {
    *a = (weft_args){.command = argv[0], .seed = -1};
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
            return refuse_word(a, own, argv[i]);
        }
    }
    for (const weft_arg *o = own; o && o->name; o++) {
        if (o->rule != WEFT_ARG_NEEDED || *o->value) continue;
        fprintf(stderr, "weft %s: %s is needed; see 'weft help %s'\n", a->command, o->name,
                a->command);
        return WEFT_EXIT_USAGE;
    }
    int status = find_config(a);
    if (!status) status = read_numbers(a, &k);
    if (!status) list_settings(a);
    return status;
}

int weft_args_only(const weft_args *a, unsigned taken) {
    const struct {
        const char *name;
        bool given;
        unsigned option;
    } shared[] = {
        {"--json", a->json, ARGS_JSON},
        {"--threads", a->threads > 0, ARGS_THREADS},
        {"--dtype", a->dtype != NULL, ARGS_DTYPE},
        {"--device", a->device != NULL, ARGS_DEVICE},
        {"--config", a->config != NULL, ARGS_CONFIG},
        {"--variant", a->variant != NULL, ARGS_CONFIG},
        {"--seed", a->seed >= 0, ARGS_CONFIG},
        {"-o", a->n_overrides > 0, ARGS_CONFIG},
    };
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++) {
        if (!shared[i].given || (taken & shared[i].option)) continue;
        fprintf(stderr, "weft %s: unknown option '%s'; 'weft help %s' lists them\n", a->command,
                shared[i].name, a->command);
        return WEFT_EXIT_USAGE;
    }
    return WEFT_EXIT_DONE;
}

weft_source weft_args_source(const weft_args *a) {
    return (weft_source){a->config, a->settings, a->n_settings};
}

/* The variant that is meant, in `variants`' place *at; *at is -1 where there is none. `base` is the config
 * without any. */
static weft_status find_variant(const weft_args *a, const weft_config *base,
                                weft_variants *variants, int *at) {
    const char *where = a->config ? a->config : "config";
    char *end;
    *variants = (weft_variants){0};
    *at = -1;
    if (weft_variants_by_name(base)) {
        WEFT_TRY(weft_variants_parse(base, where, "study", variants));
        *at = a->variant ? weft_variants_find(variants, a->variant) : 0;
        if (*at >= 0) return WEFT_OK;
        weft_variants_free(variants);
        return weft_fail(WEFT_EINPUT, "%s: --variant '%s': %s", where, a->variant,
                         weft_error_message());
    }
    if (!a->variant && !*base->ra_mla_ablation_steps) return WEFT_OK;
    long number = a->variant ? strtol(a->variant, &end, 10) : 0;
    if (a->variant && (end == a->variant || *end || number < 0 || number > 5))
        return weft_fail(WEFT_EINPUT,
                         "--variant '%s' must be a whole number from 0 to 5: the config names no "
                         "variants, and these are the ablation's",
                         a->variant);
    *at = 0;
    return weft_variants_ablation(base, (int)number, variants);
}

weft_status weft_args_config(const weft_args *a, weft_config *c) {
    weft_source source = weft_args_source(a);
    weft_variants variants;
    int at;
    WEFT_TRY(weft_source_read(&source, NULL, c));
    /* Only now is it known which variants there are, and a variant goes below the overrides. */
    WEFT_TRY(find_variant(a, c, &variants, &at));
    weft_status status = at < 0 ? WEFT_OK : weft_source_read(&source, &variants.list[at], c);
    weft_variants_free(&variants);
    return status == WEFT_OK ? weft_model_check(c, a->config ? a->config : "config") : status;
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
    else if (!S_ISREG(is.st_mode))
        why = "is a pipe or a device, not a file";
    if (why) fprintf(stderr, "weft %s: %s: %s\n", a->command, full ? full : path, why);
    if (file >= 0) close(file);
    free(full);
    return why ? WEFT_EXIT_USAGE : WEFT_EXIT_DONE;
}

weft_status weft_args_check_model(const char *folder) {
    weft_status status = weft_model_check_sums(folder);
    if (status != WEFT_EINPUT) return status;
    return weft_fail(status, "%s; --unchecked takes it as it is", weft_error_message());
}

int weft_args_fail(const weft_args *a, weft_status status) {
    const char *message = weft_error_message();
    size_t letters = strlen(a->command);
    /* What the library calls itself there is the command's own name. */
    if (strncmp(message, a->command, letters) == 0 && strncmp(message + letters, ": ", 2) == 0)
        message += letters + 2;
    fprintf(stderr, "weft %s: %s\n", a->command, message);
    return status == WEFT_EINPUT ? WEFT_EXIT_USAGE : WEFT_EXIT_FAILED;
}

weft_status weft_args_backend(const weft_args *a, const weft_config *c,
                              const weft_backend **backend, weft_pool **pool) {
    *pool = NULL;
    WEFT_TRY(weft_device_open(c->device, weft_config_dtype(c), backend));
    return weft_pool_create(a->threads, pool);
}
