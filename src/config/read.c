/* Reading, writing and checking configs, all from the one table of options. */
#include "config/config.h"

#include "core/nearest.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* A key, its longest value and the quotes around it. */
enum { LINE_MOST = WEFT_TEXT_MAX + 256 };

/* Each entry keeps its title or its option; titles are folded into `group` once. */
#define ROW_GROUP(title) {.group = title},
#define ROW_BOOL(field, k, value, needs, text)                                                     \
    {.key = #k,                                                                                    \
     .type = WEFT_OPT_BOOL,                                                                        \
     .fallback = (value) ? "y" : "n",                                                              \
     .depends = needs,                                                                             \
     .help = text,                                                                                 \
     .offset = offsetof(weft_config, field)},
#define ROW_INT(field, k, value, low, high, needs, text)                                           \
    {.key = #k,                                                                                    \
     .type = WEFT_OPT_INT,                                                                         \
     .fallback = #value,                                                                           \
     .min = (double)(low),                                                                         \
     .max = (double)(high),                                                                        \
     .depends = needs,                                                                             \
     .help = text,                                                                                 \
     .offset = offsetof(weft_config, field)},
#define ROW_NUMBER(field, k, value, low, high, needs, text)                                        \
    {.key = #k,                                                                                    \
     .type = WEFT_OPT_NUMBER,                                                                      \
     .fallback = #value,                                                                           \
     .min = (low),                                                                                 \
     .max = (high),                                                                                \
     .depends = needs,                                                                             \
     .help = text,                                                                                 \
     .offset = offsetof(weft_config, field)},
#define ROW_WORD(field, k, value, choices, needs, text)                                            \
    {.key = #k,                                                                                    \
     .type = WEFT_OPT_WORD,                                                                        \
     .fallback = value,                                                                            \
     .words = choices,                                                                             \
     .depends = needs,                                                                             \
     .help = text,                                                                                 \
     .offset = offsetof(weft_config, field)},
#define ROW_TEXT(field, k, value, needs, text)                                                     \
    {.key = #k,                                                                                    \
     .type = WEFT_OPT_TEXT,                                                                        \
     .fallback = value,                                                                            \
     .depends = needs,                                                                             \
     .help = text,                                                                                 \
     .offset = offsetof(weft_config, field)},

static const weft_option rows[] = {
    WEFT_OPTIONS(ROW_GROUP, ROW_BOOL, ROW_INT, ROW_NUMBER, ROW_WORD, ROW_TEXT)};

enum { N_ROWS = sizeof rows / sizeof rows[0] };

const weft_option *weft_options(int *count) {
    static weft_option options[N_ROWS];
    static int n;
    if (n == 0) {
        const char *group = "";
        int filled = 0;
        for (int i = 0; i < N_ROWS; i++) {
            if (!rows[i].key) {
                group = rows[i].group;
                continue;
            }
            options[filled] = rows[i];
            options[filled++].group = group;
        }
        n = filled;
    }
    *count = n;
    return options;
}

static const char *without_prefix(const char *key) {
    return strncasecmp(key, "CONFIG_", 7) == 0 ? key + 7 : key;
}

const weft_option *weft_option_find(const char *key) {
    int count;
    const weft_option *options = weft_options(&count);
    key = without_prefix(key);
    for (int i = 0; i < count; i++)
        if (strcasecmp(options[i].key, key) == 0) return &options[i];
    return NULL;
}

static const char *nearest_key(const char *key) {
    int count;
    size_t best = SIZE_MAX;
    const weft_option *options = weft_options(&count);
    const char *nearest = "";
    for (int i = 0; i < count; i++) {
        size_t distance = weft_edit_distance(key, options[i].key);
        if (distance < best) {
            best = distance;
            nearest = options[i].key;
        }
    }
    return nearest;
}

/* The index of a word in "dot w2 mla"; -1: not one of them. */
static int word_index(const char *words, const char *word) {
    size_t length = strlen(word);
    int index = 0;
    for (const char *w = words; *w; index++) {
        size_t n = strcspn(w, " ");
        if (n == length && strncmp(w, word, n) == 0) return index;
        w += n + (w[n] == ' ');
    }
    return -1;
}

static void word_at(const char *words, int index, char *text, size_t room) {
    const char *w = words;
    for (; index > 0; index--)
        w += strcspn(w, " ") + 1;
    snprintf(text, room, "%.*s", (int)strcspn(w, " "), w);
}

static weft_status refuse_range(const weft_option *o, const char *value, const char *where) {
    return weft_fail(WEFT_EINPUT, "%s: CONFIG_%s=%s is outside %g to %g", where, o->key, value,
                     o->min, o->max);
}

static weft_status set_bool(bool *field, const weft_option *o, const char *value,
                            const char *where) {
    static const char *const yes[] = {"y", "yes", "true", "1"}, *const no[] = {"n", "no", "false",
                                                                               "0"};
    for (int i = 0; i < 4; i++) {
        if (strcasecmp(value, yes[i]) == 0 || strcasecmp(value, no[i]) == 0) {
            *field = strcasecmp(value, yes[i]) == 0;
            return WEFT_OK;
        }
    }
    return weft_fail(WEFT_EINPUT, "%s: CONFIG_%s='%s' must be y or n", where, o->key, value);
}

static weft_status set_int(int64_t *field, const weft_option *o, const char *value,
                           const char *where) {
    char *end;
    errno = 0;
    long long number = strtoll(value, &end, 10);
    if (end == value || *end)
        return weft_fail(WEFT_EINPUT, "%s: CONFIG_%s='%s' must be a whole number", where, o->key,
                         value);
    if (errno == ERANGE || (double)number < o->min || (double)number > o->max)
        return refuse_range(o, value, where);
    *field = number;
    return WEFT_OK;
}

static weft_status set_number(double *field, const weft_option *o, const char *value,
                              const char *where) {
    char *end;
    double number = strtod(value, &end);
    if (end == value || *end || !isfinite(number))
        return weft_fail(WEFT_EINPUT, "%s: CONFIG_%s='%s' must be a number", where, o->key, value);
    if (number < o->min || number > o->max) return refuse_range(o, value, where);
    *field = number;
    return WEFT_OK;
}

static weft_status set_value(weft_config *c, const weft_option *o, const char *value,
                             const char *where) {
    void *field = (char *)c + o->offset;
    switch (o->type) {
    case WEFT_OPT_BOOL:
        return set_bool(field, o, value, where);
    case WEFT_OPT_INT:
        return set_int(field, o, value, where);
    case WEFT_OPT_NUMBER:
        return set_number(field, o, value, where);
    case WEFT_OPT_WORD: {
        int index = word_index(o->words, value);
        if (index < 0)
            return weft_fail(WEFT_EINPUT, "%s: CONFIG_%s=\"%s\" is none of: %s", where, o->key,
                             value, o->words);
        *(int *)field = index;
        return WEFT_OK;
    }
    case WEFT_OPT_TEXT:
        if (strlen(value) >= WEFT_TEXT_MAX)
            return weft_fail(WEFT_EINPUT, "%s: CONFIG_%s has %zu characters; %d is the most", where,
                             o->key, strlen(value), WEFT_TEXT_MAX - 1);
        snprintf(field, WEFT_TEXT_MAX, "%s", value);
        return WEFT_OK;
    }
    return weft_fail(WEFT_EBUG, "config: option %s has no type", o->key);
}

void weft_config_defaults(weft_config *c) {
    memset(c, 0, sizeof *c);
    int count;
    const weft_option *options = weft_options(&count);
    for (int i = 0; i < count; i++)
        set_value(c, &options[i], options[i].fallback, "default");
}

weft_status weft_config_set(weft_config *c, const char *key, const char *value, const char *where) {
    const weft_option *o = weft_option_find(key);
    if (!o)
        return weft_fail(WEFT_EINPUT, "%s: CONFIG_%s is not an option; did you mean CONFIG_%s?",
                         where, without_prefix(key), nearest_key(without_prefix(key)));
    char text[WEFT_TEXT_MAX + 2];
    size_t length = strlen(value);
    if (length >= 2 && value[0] == '"' && value[length - 1] == '"') {
        value++;
        length -= 2;
    }
    if (length >= sizeof text)
        return weft_fail(WEFT_EINPUT, "%s: CONFIG_%s has %zu characters; %d is the most", where,
                         o->key, length, WEFT_TEXT_MAX - 1);
    memcpy(text, value, length);
    text[length] = '\0';
    return set_value(c, o, text, where);
}

weft_status weft_config_override(weft_config *c, const char *assignment, const char *where) {
    const char *equals = strchr(assignment, '=');
    char key[128];
    if (!equals || equals == assignment || (size_t)(equals - assignment) >= sizeof key)
        return weft_fail(WEFT_EINPUT, "%s: '%s' must be KEY=VALUE", where, assignment);
    snprintf(key, sizeof key, "%.*s", (int)(equals - assignment), assignment);
    return weft_config_set(c, key, equals + 1, where);
}

/* Kconfig writes a backslash before a quote or a backslash within a text: takes it out, in place.
 * What is not in quotes is left as it is. */
static void unescape_text(char *value) {
    size_t length = strlen(value), to = 1;
    if (length < 2 || value[0] != '"' || value[length - 1] != '"') return;
    for (size_t from = 1; from < length - 1; from++) {
        if (value[from] == '\\' && from + 1 < length - 1) from++;
        value[to++] = value[from];
    }
    value[to++] = '"';
    value[to] = '\0';
}

/* One line of Kconfig's text, trimmed. */
static weft_status read_line(weft_config *c, char *line, const char *where) {
    static const char unset[] = " is not set";
    size_t length = strlen(line);
    if (line[0] == '#') {
        size_t tail = strlen(unset);
        if (strncmp(line, "# CONFIG_", 9) != 0 || length < 9 + tail ||
            strcmp(line + length - tail, unset) != 0)
            return WEFT_OK;
        line[length - tail] = '\0';
        const weft_option *o = weft_option_find(line + 2);
        if (o && o->type != WEFT_OPT_BOOL)
            return weft_fail(WEFT_EINPUT, "%s: CONFIG_%s cannot be unset: it is no y or n", where,
                             o->key);
        return weft_config_set(c, line + 2, "n", where);
    }
    if (length == 0) return WEFT_OK;
    if (strncmp(line, "CONFIG_", 7) != 0 || !strchr(line, '='))
        return weft_fail(WEFT_EINPUT, "%s: '%.60s' is not CONFIG_KEY=value", where, line);
    unescape_text(strchr(line, '=') + 1);
    return weft_config_override(c, line, where);
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static char *trim(char *line) {
    while (is_blank(*line))
        line++;
    size_t length = strlen(line);
    while (length && is_blank(line[length - 1]))
        line[--length] = '\0';
    return line;
}

typedef enum { LINE_READ, LINE_NONE, LINE_LONG, LINE_BINARY } line_kind;

/* The next line of a file that may be anything: never more than LINE_MOST of it is taken in. */
static line_kind next_line(FILE *file, char line[LINE_MOST]) {
    size_t length = 0;
    int letter = getc(file);
    if (letter == EOF) return LINE_NONE;
    for (; letter != EOF && letter != '\n'; letter = getc(file)) {
        if (letter == '\0') return LINE_BINARY;
        if (length + 1 == LINE_MOST) return LINE_LONG;
        line[length++] = (char)letter;
    }
    line[length] = '\0';
    return LINE_READ;
}

weft_status weft_config_read(weft_config *c, const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) return weft_fail(WEFT_EIO, "%s: %s", path, strerror(errno));
    char line[LINE_MOST], where[600];
    weft_status status = WEFT_OK;
    line_kind kind = LINE_READ;
    for (int number = 1; status == WEFT_OK && kind == LINE_READ; number++) {
        snprintf(where, sizeof where, "%.560s:%d", path, number);
        kind = next_line(file, line);
        if (kind == LINE_READ) status = read_line(c, trim(line), where);
    }
    if (kind == LINE_LONG)
        status = weft_fail(WEFT_EINPUT, "%s: a line of %d characters or more", where, LINE_MOST);
    if (kind == LINE_BINARY)
        status = weft_fail(WEFT_EINPUT, "%s: not text: a config has lines CONFIG_KEY=value", where);
    if (status == WEFT_OK && ferror(file))
        status = weft_fail(WEFT_EIO, "%s: %s", path, strerror(errno));
    fclose(file);
    return status;
}

weft_status weft_config_step(weft_config *c, int step) {
    if (step < 0 || step > 5)
        return weft_fail(WEFT_EINPUT, "step %d: the ablation has steps 0 to 5", step);
    int mechanisms = step > 3 ? step - 2 : step; /* 4 and 5 are 2 and 3 again */
    c->attn_gate = mechanisms >= 1;
    c->cross_token = mechanisms >= 2;
    c->latent_recip = mechanisms >= 3;
    return WEFT_OK;
}

void weft_config_format(const weft_config *c, const weft_option *o, char *text, size_t room) {
    const void *field = (const char *)c + o->offset;
    switch (o->type) {
    case WEFT_OPT_BOOL:
        snprintf(text, room, "%s", *(const bool *)field ? "y" : "n");
        break;
    case WEFT_OPT_INT:
        snprintf(text, room, "%lld", (long long)*(const int64_t *)field);
        break;
    case WEFT_OPT_NUMBER: {
        /* The shortest text that reads back as the same number. */
        double value = *(const double *)field;
        for (int digits = 1; digits <= 17; digits++) {
            snprintf(text, room, "%.*g", digits, value);
            if (strtod(text, NULL) == value) break;
        }
        break;
    }
    case WEFT_OPT_WORD:
        word_at(o->words, *(const int *)field, text, room);
        break;
    case WEFT_OPT_TEXT:
        snprintf(text, room, "%s", (const char *)field);
        break;
    }
}

json_t *weft_config_to_json(const weft_config *c) {
    json_t *object = json_object();
    int count;
    const weft_option *options = weft_options(&count);
    for (int i = 0; object && i < count; i++) {
        const weft_option *o = &options[i];
        const void *field = (const char *)c + o->offset;
        char key[64], text[WEFT_TEXT_MAX];
        size_t n = 0;
        for (; o->key[n] && n + 1 < sizeof key; n++)
            key[n] = (char)tolower((unsigned char)o->key[n]);
        key[n] = '\0';
        weft_config_format(c, o, text, sizeof text);
        json_t *value;
        switch (o->type) {
        case WEFT_OPT_BOOL:
            value = json_boolean(*(const bool *)field);
            break;
        case WEFT_OPT_INT:
            value = json_integer(*(const int64_t *)field);
            break;
        case WEFT_OPT_NUMBER:
            value = json_real(*(const double *)field);
            break;
        default:
            value = json_string(text);
            break;
        }
        if (json_object_set_new(object, key, value) != 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

weft_status weft_config_from_json(weft_config *c, const json_t *object, const char *where) {
    if (!json_is_object(object))
        return weft_fail(WEFT_EINPUT, "%s: a config is a JSON object", where);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        char text[WEFT_TEXT_MAX + 2];
        if (json_is_boolean(value))
            snprintf(text, sizeof text, "%s", json_is_true(value) ? "y" : "n");
        else if (json_is_integer(value))
            snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
        else if (json_is_real(value))
            snprintf(text, sizeof text, "%.17g", json_real_value(value));
        else if (json_is_string(value) && json_string_length(value) < WEFT_TEXT_MAX)
            snprintf(text, sizeof text, "%s", json_string_value(value));
        else
            return weft_fail(WEFT_EINPUT, "%s: the value of '%s' is no y/n, number or text", where,
                             key);
        WEFT_TRY(weft_config_set(c, key, text, where));
    }
    return WEFT_OK;
}

int64_t weft_config_head_dim(const weft_config *c) {
    return c->n_embd / c->n_head;
}

int64_t weft_config_ffn_dim(const weft_config *c) {
    return c->n_ffn ? c->n_ffn : 4 * c->n_embd;
}

int64_t weft_config_kv_heads(const weft_config *c) {
    return c->kv_heads ? c->kv_heads : c->n_head;
}

bool weft_config_leaks(const weft_config *c) {
    return c->causal && c->attn_gate && c->gate_pool == WEFT_GATE_SEQUENCE;
}
