/* Values from text and back, all by the one table of options. */
#include "config/config.h"

#include "base/files.h"
#include "base/text.h"

#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <strings.h>

/* A key, its longest value and the quotes around it. */
enum { LINE_MOST = WEFT_TEXT_MAX + 256 };

static const char *without_prefix(const char *key) {
    return strncasecmp(key, "CONFIG_", 7) == 0 ? key + 7 : key;
}

static weft_status set_number(void *field, const weft_option *o, const char *value,
                              const char *where) {
    bool whole = o->type == WEFT_OPT_INT;
    char *end;
    errno = 0;
    long long count = whole ? strtoll(value, &end, 10) : 0;
    bool beyond = whole && errno == ERANGE;
    double number = whole ? (double)count : strtod(value, &end);
    if (end == value || *end || !isfinite(number))
        return WEFT_BAD_INPUT("%s: CONFIG_%s='%s' must be a %s", where, o->key, value,
                              whole ? "whole number" : "number");
    if (beyond || number < o->min || number > o->max)
        return WEFT_BAD_INPUT("%s: CONFIG_%s=%s is outside %.10g to %.10g", where, o->key, value,
                              o->min, o->max);
    if (whole)
        *(int64_t *)field = count;
    else
        *(double *)field = number;
    return WEFT_OK;
}

static weft_status set_value(weft_config *c, const weft_option *o, const char *value,
                             const char *where) {
    void *field = (char *)c + o->offset;
    switch (o->type) {
    case WEFT_OPT_BOOL: {
        static const char *const yes[] = {"y", "yes", "true", "1"};
        static const char *const no[] = {"n", "no", "false", "0"};
        for (int i = 0; i < 4; i++) {
            bool is = strcasecmp(value, yes[i]) == 0;
            if (!is && strcasecmp(value, no[i]) != 0) continue;
            *(bool *)field = is;
            return WEFT_OK;
        }
        return WEFT_BAD_INPUT("%s: CONFIG_%s='%s' must be y or n", where, o->key, value);
    }
    case WEFT_OPT_INT:
    case WEFT_OPT_NUMBER:
        return set_number(field, o, value, where);
    case WEFT_OPT_WORD: {
        int index = 0;
        char words[256];
        while (o->words[index] && strcmp(o->words[index], value) != 0)
            index++;
        if (!o->words[index])
            return WEFT_BAD_INPUT("%s: CONFIG_%s=\"%s\" is none of: %s", where, o->key, value,
                                  weft_option_words(o, words, sizeof words));
        *(int *)field = index;
        return WEFT_OK;
    }
    case WEFT_OPT_TEXT:
        if (strlen(value) >= WEFT_TEXT_MAX)
            return WEFT_BAD_INPUT("%s: CONFIG_%s has %zu characters; %d is the most", where, o->key,
                                  strlen(value), WEFT_TEXT_MAX - 1);
        snprintf(field, WEFT_TEXT_MAX, "%s", value);
        return WEFT_OK;
    }
    return weft_fail(WEFT_EBUG, "config: option %s has no type", o->key);
}

void weft_config_defaults(weft_config *c) {
    memset(c, 0, sizeof *c);
    for (const weft_option *o = weft_options(NULL); o->key; o++)
        set_value(c, o, o->fallback, "default");
}

void weft_config_reset(weft_config *c, weft_option_owner owner) {
    for (const weft_option *o = weft_options(NULL); o->key; o++)
        if (o->owner == owner) set_value(c, o, o->fallback, "default");
}

const char *weft_option_instead(const char *key) {
    static const struct {
        const char *keys, *instead;
    } foreign[] = {
#define FOREIGN(keys, instead) {#keys, instead},
#include "config/foreign.def"
    };
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++)
        for (const char *at = foreign[i].keys; *at; at += strspn(at, " ")) {
            char pattern[64];
            size_t n = strcspn(at, " ");
            snprintf(pattern, sizeof pattern, "%.*s", (int)n, at);
            if (fnmatch(pattern, without_prefix(key), FNM_CASEFOLD) == 0) return foreign[i].instead;
            at += n;
        }
    return NULL;
}

weft_status weft_config_set(weft_config *c, const char *key, const char *value, const char *where) {
    const weft_option *o = weft_option_find(key);
    if (!o) {
        /* A key of other trainers is told by what it means there, a slip of the finger by its letters. */
        const char *named = without_prefix(key);
        const char *instead = weft_option_instead(named);
        if (instead)
            return WEFT_BAD_INPUT("%s: CONFIG_%s is not an option of weft; %s", where, named,
                                  instead);
        weft_nearest nearest = weft_nearest_to(named);
        for (o = weft_options(NULL); o->key; o++)
            weft_nearest_offer(&nearest, o->key);
        return WEFT_BAD_INPUT("%s: CONFIG_%s is not an option; did you mean CONFIG_%s?", where,
                              named, nearest.name);
    }
    char text[WEFT_TEXT_MAX + 2];
    size_t length = strlen(value);
    if (length >= 2 && value[0] == '"' && value[length - 1] == '"') {
        value++;
        length -= 2;
    }
    if (length >= sizeof text)
        return WEFT_BAD_INPUT("%s: CONFIG_%s has %zu characters; %d is the most", where, o->key,
                              length, WEFT_TEXT_MAX - 1);
    memcpy(text, value, length);
    text[length] = '\0';
    if (strcmp(text, "auto") == 0 &&
        (o == WEFT_OPTION(batch_size) || o == WEFT_OPTION(micro_batch))) {
        o = WEFT_OPTION(micro_batch); /* the batch stays, and is cut by what fits */
        snprintf(text, sizeof text, "-1");
    }
    c->given[o - weft_options(NULL)] = 1;
    return set_value(c, o, text, where);
}

weft_status weft_config_override(weft_config *c, const char *assignment, const char *where) {
    const char *equals = strchr(assignment, '=');
    char key[128];
    if (!equals || equals == assignment || (size_t)(equals - assignment) >= sizeof key)
        return WEFT_BAD_INPUT("%s: '%s' must be KEY=VALUE", where, assignment);
    snprintf(key, sizeof key, "%.*s", (int)(equals - assignment), assignment);
    return weft_config_set(c, key, equals + 1, where);
}

weft_status weft_config_override_all(weft_config *c, const char *assignments, const char *where) {
    char word[WEFT_TEXT_MAX];
    for (const char *at = assignments; *at; at += strspn(at, " ")) {
        size_t length = strcspn(at, " ");
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        WEFT_TRY(weft_config_override(c, word, where));
        at += length;
    }
    return WEFT_OK;
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
            return WEFT_BAD_INPUT("%s: CONFIG_%s cannot be unset: it is no y or n", where, o->key);
        return weft_config_set(c, line + 2, "n", where);
    }
    if (length == 0) return WEFT_OK;
    if (strncmp(line, "CONFIG_", 7) != 0 || !strchr(line, '='))
        return WEFT_BAD_INPUT("%s: '%.60s' is not CONFIG_KEY=value", where, line);
    /* Kconfig writes a backslash before a quote or a backslash within a text: takes it out, in place.
     * What is not in quotes is left as it is. */
    char *value = strchr(line, '=') + 1;
    size_t end = strlen(value), to = 1;
    if (end >= 2 && value[0] == '"' && value[end - 1] == '"') {
        for (size_t from = 1; from < end - 1; from++) {
            if (value[from] == '\\' && from + 1 < end - 1) from++;
            value[to++] = value[from];
        }
        value[to++] = '"';
        value[to] = '\0';
    }
    return weft_config_override(c, line, where);
}

weft_status weft_config_read(weft_config *c, const char *path) {
    WEFT_AUTO_FREE char *text = NULL;
    size_t bytes;
    WEFT_TRY(weft_file_read(path, WEFT_CONFIG_BYTES, &text, &bytes));
    return weft_config_read_text(c, text, bytes, path);
}

weft_status weft_config_read_text(weft_config *c, char *text, size_t bytes, const char *path) {
    static const char blanks[] = " \t\r\n";
    char where[600], *end = text;
    for (int number = 1; end < text + bytes; number++, end++) {
        char *line = end;
        end = memchr(line, '\n', (size_t)(text + bytes - line));
        if (!end) end = text + bytes;
        *end = '\0';
        snprintf(where, sizeof where, "%.560s:%d", path, number);
        size_t length = strlen(line);
        if (length < (size_t)(end - line))
            return WEFT_BAD_INPUT("%s: not text: a config has lines CONFIG_KEY=value", where);
        if (length >= LINE_MOST)
            return WEFT_BAD_INPUT("%s: a line of %d characters or more", where, LINE_MOST);
        while (length > 0 && strchr(blanks, line[length - 1]))
            line[--length] = '\0';
        WEFT_TRY(read_line(c, line + strspn(line, blanks), where));
    }
    return WEFT_OK;
}

weft_status weft_config_step(weft_config *c, int step) {
    if (step < 0 || step > 5) return WEFT_BAD_INPUT("step %d: the ablation has steps 0 to 5", step);
    int mechanisms = step > 3 ? step - 2 : step; /* 4 and 5 are 2 and 3 again */
    c->attn_gate = mechanisms >= 1;
    c->cross_token = mechanisms >= 2;
    c->latent_recip = mechanisms >= 3;
    return WEFT_OK;
}

const char *weft_config_word(const weft_config *c, const weft_option *o) {
    return o->words[*(const int *)((const char *)c + o->offset)];
}

void weft_number_format(double value, char *text, size_t room) {
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, room, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
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
    case WEFT_OPT_NUMBER:
        weft_number_format(*(const double *)field, text, room);
        break;
    case WEFT_OPT_WORD:
        snprintf(text, room, "%s", weft_config_word(c, o));
        break;
    case WEFT_OPT_TEXT:
        snprintf(text, room, "%s", (const char *)field);
        break;
    }
}

bool weft_option_same(const weft_config *a, const weft_config *b, const weft_option *o) {
    char one[WEFT_TEXT_MAX], other[WEFT_TEXT_MAX];
    weft_config_format(a, o, one, sizeof one);
    weft_config_format(b, o, other, sizeof other);
    return strcmp(one, other) == 0;
}
