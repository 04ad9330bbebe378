/* Parsing of options. Long options take their value as the next word or after '='. */
#include "cli/args.h"

#include "base/text.h"
#include "device/device.h"
#include "model/kinds.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>

enum { OPTIONS_MAX = 48, OPTION_LETTERS = 64 };

typedef struct {
    weft_arg list[OPTIONS_MAX];
    int n;
    bool overrides; /* -o is one of them */
    int64_t threads;
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

static void list_options(known_options *k, weft_args *a, unsigned taken, const weft_arg *own) {
    const struct {
        unsigned option;
        weft_arg arg;
    } shared[] = {
        {ARGS_CONFIG, {"--config", .value = &a->config}},
        {ARGS_CONFIG, {"--variant", .value = &a->variant}},
        {ARGS_CONFIG, {"--seed", .number = &a->seed, .max = 9007199254740991}},
        {ARGS_JSON, {"--json", .flag = &a->json}},
        {ARGS_UNCHECKED, {"--unchecked", .flag = &a->unchecked}},
        {ARGS_THREADS, {"--threads", .number = &k->threads, .max = 1024}},
        {ARGS_DTYPE, {"--dtype", .value = &a->dtype}},
        {ARGS_DEVICE, {"--device", .value = &a->device}},
    };
    for (const weft_arg *o = own; o && o->name; o++)
        k->list[k->n++] = *o;
    for (int i = 0; i < WEFT_COUNT(shared); i++)
        if (taken & shared[i].option) k->list[k->n++] = shared[i].arg;
    k->overrides = taken & (ARGS_CONFIG | ARGS_OVERRIDES);
}

/* `word` may have "=value" behind the option. */
static bool is_option(const char *word, const char *name) {
    size_t length = strcspn(word, "=");
    return strlen(name) == length && strncmp(word, name, length) == 0;
}

static const char *current_name(const char *word) {
    for (int i = 0; i < WEFT_COUNT(old_names); i++)
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

static weft_status missing_value(const char *option) {
    return WEFT_BAD_INPUT("%s needs a value", option);
}

weft_status weft_args_number(const weft_arg *o, const char *text) {
    char *end;
    long long number = o->number ? strtoll(text, &end, 10) : 0;
    double value = o->number ? (double)number : strtod(text, &end);
    if (end == text || *end || !(value >= o->min && value <= o->max))
        return WEFT_BAD_INPUT(o->number ? "%s '%s' must be a whole number from %.0f to %.0f"
                                        : "%s '%s' must be a number from %g to %g",
                              o->name, text, o->min, o->max);
    if (o->number)
        *o->number = number;
    else
        *o->real = value;
    return WEFT_OK;
}

/* One option at argv[*i]; moves *i past its value. */
static weft_status take_option(weft_args *a, const known_options *k, int argc, char **argv,
                               int *i) {
    const char *word = argv[*i], *equals = strchr(word, '=');
    if (k->overrides && strcmp(word, "-o") == 0) {
        if (*i + 1 == argc) return missing_value("-o");
        if (a->n_overrides == ARGS_OVERRIDES_MAX)
            return WEFT_BAD_INPUT("more than %d overrides", ARGS_OVERRIDES_MAX);
        a->overrides[a->n_overrides++] = argv[++*i];
        return WEFT_OK;
    }
    const weft_arg *o = find_option(k, word);
    if (!o) {
        /* Without the "=value" that it may have behind it. */
        char bare[OPTION_LETTERS];
        snprintf(bare, sizeof bare, "%.*s", (int)strcspn(word, "="), word);
        weft_nearest nearest = weft_nearest_slip(bare);
        for (int n = 0; n < k->n; n++)
            weft_nearest_offer(&nearest, k->list[n].name);
        if (*nearest.name)
            return WEFT_BAD_INPUT("unknown option '%s'; did you mean '%s'?", bare, nearest.name);
        return WEFT_BAD_INPUT("unknown option '%s'; 'weft help %s' lists them", bare, a->command);
    }
    if (o->flag) {
        if (equals && !(o->value && equals[1])) return WEFT_BAD_INPUT("%s takes no value", o->name);
        if (equals) *o->value = equals + 1;
        *o->flag = true;
        return WEFT_OK;
    }
    if (!equals && *i + 1 >= argc) return missing_value(o->name);
    const char *value = equals ? equals + 1 : argv[++*i];
    if (!*value && o->rule != WEFT_ARG_MAY_BE_EMPTY) return missing_value(o->name);
    if (o->value) *o->value = value;
    if (o->number || o->real) return weft_args_number(o, value);
    if (o->value) return WEFT_OK;
    if (a->n_repeated == ARGS_REPEATED_MAX)
        return WEFT_BAD_INPUT("%s more than %d times", o->name, ARGS_REPEATED_MAX);
    a->repeated[a->n_repeated++] = value;
    return WEFT_OK;
}

/* Studies that come with the program, by name, as `--config demo`: beside the program, as it is installed, or as
 * it is built, where make puts a link. A file in the working folder comes first: a name means what it meant
 * without them. */
static const char *const beside[] = {"../share/weft/defconfigs", "defconfigs"};

/* The path of the study of that name, in `room`; else `name` itself, NULL too. Where `nearest` is not NULL and `name`
 * is a plain word that is neither a file here nor one of these studies, it is the study whose name is nearest
 * to it, "?" where none is near; else "". A path is a path. */
static const char *find_study(const char *name, char room[WEFT_PATH_MAX], char *nearest) {
    char program[PATH_MAX];
    if (nearest) *nearest = '\0';
    if (!name || strchr(name, '/') || *name == '.' || access(name, F_OK) == 0) return name;
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n < 1) return name;
    program[n] = '\0';
    char *slash = strrchr(program, '/');
    if (slash) *slash = '\0';
    weft_nearest to = weft_nearest_slip(name);
    for (int i = 0; i < WEFT_COUNT(beside); i++) {
        int length = snprintf(room, WEFT_PATH_MAX, "%s/%s/%s", program, beside[i], name);
        if (length >= WEFT_PATH_MAX) continue;
        if (access(room, R_OK) == 0) {
            if (nearest) *nearest = '\0';
            return room;
        }
        room[length - (int)strlen(name)] = '\0';
        DIR *list = nearest ? opendir(room) : NULL;
        for (struct dirent *e; list && (e = readdir(list));) {
            if (*e->d_name == '.') continue;
            weft_nearest_offer(&to, e->d_name);
            if (to.name != e->d_name) continue;
            snprintf(nearest, WEFT_PATH_MAX, "%s", e->d_name); /* the entry does not last */
            to.name = nearest;
        }
        if (list) closedir(list);
    }
    if (nearest && !*nearest) strcpy(nearest, "?");
    return name;
}

weft_status weft_args_parse(weft_args *a, int argc, char **argv, unsigned taken,
                            const weft_arg *own, const char **words, int n_words) {
    *a = (weft_args){.command = argv[0], .seed = -1};
    known_options k = {0};
    list_options(&k, a, taken, own);
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-' && argv[i][1]) {
            WEFT_TRY(take_option(a, &k, argc, argv, &i));
        } else if (a->n_words < n_words) {
            words[a->n_words++] = argv[i];
        } else {
            /* A word where none belongs is most often a value without its option. */
            const char *word = argv[i];
            char room[WEFT_PATH_MAX];
            const char *option = NULL,
                       *key = a->n_overrides ? a->overrides[a->n_overrides - 1] : "=";
            if (!strchr(key, '='))
                return WEFT_BAD_INPUT("unexpected argument '%s'; did you mean '-o %s=%s'?", word,
                                      key, word);
            for (const weft_arg *o = own; o && o->name && !option; o++)
                if (o->rule == WEFT_ARG_NEEDED && !*o->value) option = o->name;
            if (!option && !a->config && access(find_study(word, room, NULL), F_OK) == 0)
                option = "--config";
            if (option)
                return WEFT_BAD_INPUT("unexpected argument '%s'; did you mean '%s %s'?", word,
                                      option, word);
            return WEFT_BAD_INPUT("unexpected argument '%s'; see 'weft help %s'", word, a->command);
        }
    }
    for (const weft_arg *o = own; o && o->name; o++)
        if (o->rule == WEFT_ARG_NEEDED && !*o->value)
            return WEFT_BAD_INPUT("%s is needed; see 'weft help %s'", o->name, a->command);
    a->threads = (int)k.threads;
    char seed[32];
    snprintf(seed, sizeof seed, "%lld", (long long)a->seed);
    for (int i = 0; i < a->n_overrides; i++)
        a->settings[a->n_settings++] = (weft_override){a->overrides[i], "-o"};
    const char *const own_keys[3][3] = {{"SEED", a->seed >= 0 ? seed : NULL, "--seed"},
                                        {"DTYPE", a->dtype, "--dtype"},
                                        {"DEVICE", a->device, "--device"}};
    for (int i = 0; i < 3; i++) {
        if (!own_keys[i][1]) continue;
        snprintf(a->setting_text[i], sizeof a->setting_text[i], "%s=%.40s", own_keys[i][0],
                 own_keys[i][1]);
        a->settings[a->n_settings++] = (weft_override){a->setting_text[i], own_keys[i][2]};
    }
    /* The config by its name or path; a name that nothing has is told apart from a path here, where both are
     * known. */
    static char found[WEFT_PATH_MAX]; /* outlives `a`, which may be copied */
    char nearest[WEFT_PATH_MAX];
    a->config = find_study(a->config, found, nearest);
    if (!*nearest) return WEFT_OK;
    bool near = strcmp(nearest, "?") != 0;
    return WEFT_BAD_INPUT(
        "--config %s: No such file, and no study of that name comes with weft%s%s%s", a->config,
        near ? "; did you mean '" : "", near ? nearest : "", near ? "'?" : "");
}

weft_status weft_args_no_config(const weft_args *a) {
    if (!a->config && !a->variant) return WEFT_OK;
    return WEFT_BAD_INPUT("%s does not go with --model, which has a config of its own; -o "
                          "KEY=VALUE overrides a key",
                          a->config ? "--config" : "--variant");
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
        return WEFT_BAD_INPUT("%s: --variant '%s': %s", where, a->variant, weft_error_message());
    }
    if (!a->variant && !*base->ra_mla_ablation_steps) return WEFT_OK;
    long number = a->variant ? strtol(a->variant, &end, 10) : 0;
    if (a->variant && (end == a->variant || *end || number < 0 || number > 5))
        return WEFT_BAD_INPUT("--variant '%s' must be a whole number from 0 to 5: the config names "
                              "no variants, and these are the ablation's",
                              a->variant);
    *at = 0;
    return weft_variants_ablation(base, (int)number, variants);
}

weft_status weft_args_config(const weft_args *a, weft_config *c) {
    weft_source source = {a->config, a->settings, a->n_settings};
    WEFT_AUTO(weft_variants_free) weft_variants variants = {0};
    int at;
    WEFT_TRY(weft_source_read(&source, NULL, c));
    /* Only now is it known which variants there are, and a variant goes below the overrides. */
    WEFT_TRY(find_variant(a, c, &variants, &at));
    if (at >= 0) WEFT_TRY(weft_source_read(&source, &variants.list[at], c));
    return weft_model_check(c, a->config ? a->config : "config");
}

weft_status weft_args_readable(const char *path, const char *name) {
    WEFT_AUTO_FREE char *full = NULL;
    struct stat is;
    const char *why = NULL;
    if (asprintf(&full, "%s%s%s", path, name ? "/" : "", name ? name : "") < 0) full = NULL;
    /* A pipe is opened without waiting for its writer. */
    WEFT_AUTO_CLOSE int file = full ? open(full, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    if (file < 0 || fstat(file, &is) != 0)
        why = strerror(errno);
    else if (S_ISDIR(is.st_mode))
        why = "is a folder, not a file";
    else if (!S_ISREG(is.st_mode))
        why = "is a pipe or a device, not a file";
    return why ? WEFT_BAD_INPUT("%s: %s", full ? full : path, why) : WEFT_OK;
}

weft_status weft_args_checked(weft_status status) {
    if (status != WEFT_EINPUT) return status;
    return weft_fail(status, "%s; --unchecked takes it as it is", weft_error_message());
}

int weft_args_end(const weft_args *a, weft_status status) {
    if (status == WEFT_OK) return a->exit;
    const char *message = weft_error_message();
    size_t letters = strlen(a->command);
    /* What the library calls itself there is the command's own name. */
    if (strncmp(message, a->command, letters) == 0 && strncmp(message + letters, ": ", 2) == 0)
        message += letters + 2;
    fprintf(stderr, "weft %s: %s\n", a->command, message);
    return status == WEFT_EINPUT ? WEFT_EXIT_USAGE : WEFT_EXIT_FAILED;
}

const char *weft_args_word(const char *text) {
    char quoted[WEFT_PATH_MAX];
    size_t at = 0;
    if (*text &&
        !text[strspn(text,
                     "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=@%+,-")])
        return weft_shown(text);
    quoted[at++] = '\'';
    for (; *text && at + 6 < sizeof quoted; text++)
        if (*text == '\'')
            at += (size_t)snprintf(quoted + at, 5, "'\\''");
        else
            quoted[at++] = *text;
    snprintf(quoted + at, 2, "'");
    return weft_shown(quoted);
}

void weft_args_print(json_t *object, size_t flags) {
    json_dumpf(object, stdout, JSON_INDENT(2) | flags);
    printf("\n");
    json_decref(object);
}

weft_status weft_args_backend(const weft_args *a, const weft_config *c,
                              const weft_backend **backend, weft_pool **pool) {
    *pool = NULL;
    WEFT_TRY(weft_device_open(c->device, weft_config_dtype(c), backend));
    return weft_pool_create(a->threads, pool);
}
