/* Reading CONFIG_STUDY_SWEEP, and drawing its points. */
#include "study/variants.h"

#include "base/random.h"
#include "base/text.h"

#include <ctype.h>
#include <math.h>

enum { VALUES_MAX = 256, TRIES = 1000 };

typedef struct {
    const weft_option *option;
    char (*values)[WEFT_SWEEP_VALUE];
    int n; /* 0: a range */
    double low, high;
    bool logarithmic;
} axis;

void weft_sweep_free(weft_sweep *s) {
    free(s->points);
    *s = (weft_sweep){0};
}

/* Whether a separator stands here; *end is behind it. */
static bool is_separator(const char *at, const char **end) {
    static const char *const words[] = {"×", "x", "*"};
    for (int i = 0; i < WEFT_COUNT(words); i++) {
        size_t n = strlen(words[i]);
        *end = at + n;
        if (strncmp(at, words[i], n) == 0 && (isspace((unsigned char)at[n]) || !at[n])) return true;
    }
    return false;
}

static bool read_number(const char *text, size_t n, double *out) {
    char copy[64], *end;
    if (n == 0 || n >= sizeof copy) return false;
    memcpy(copy, text, n);
    copy[n] = '\0';
    *out = strtod(copy, &end);
    return !*end && isfinite(*out);
}

/* LOW..HIGH or log(LOW..HIGH). */
static bool read_range(const char *text, axis *a) {
    size_t n = strlen(text);
    a->logarithmic = n > 5 && strncmp(text, "log(", 4) == 0 && text[n - 1] == ')';
    if (a->logarithmic) {
        text += 4;
        n -= 5;
    }
    const char *dots = strstr(text, "..");
    if (!dots || dots >= text + n) return false;
    size_t low = (size_t)(dots - text);
    return read_number(text, low, &a->low) && read_number(dots + 2, n - low - 2, &a->high);
}

/* What stands behind KEY=. */
static weft_status read_values(axis *a, const char *text, const char *where) {
    if (read_range(text, a)) {
        const weft_option *o = a->option;
        bool number = o->type == WEFT_OPT_INT || o->type == WEFT_OPT_NUMBER;
        if (!number)
            return WEFT_BAD_INPUT("%s: CONFIG_%s=%s: a range is for numbers; list its values",
                                  where, o->key, text);
        if (!(a->low < a->high) || a->low < o->min || a->high > o->max)
            return WEFT_BAD_INPUT("%s: CONFIG_%s=%s must go up, within %g to %g", where, o->key,
                                  text, o->min, o->max);
        if (a->logarithmic && a->low <= 0)
            return WEFT_BAD_INPUT("%s: CONFIG_%s=%s: log() is for numbers above 0", where, o->key,
                                  text);
        return WEFT_OK;
    }
    for (;;) {
        size_t n = strcspn(text, ",");
        weft_config scratch;
        char value[WEFT_SWEEP_VALUE];
        weft_config_defaults(&scratch);
        snprintf(value, sizeof value, "%.*s", (int)n, text);
        if (n == 0 || n >= sizeof value)
            return WEFT_BAD_INPUT("%s: CONFIG_%s: a value is expected between commas, not '%s'",
                                  where, a->option->key, value);
        WEFT_TRY(weft_config_set(&scratch, a->option->key, value, where));
        /* As the config would write it, so that 1e-3 and 0.001 are one value. */
        weft_config_format(&scratch, a->option, value, sizeof value);
        for (int i = 0; i < a->n; i++)
            if (strcmp(a->values[i], value) == 0)
                return WEFT_BAD_INPUT("%s: CONFIG_%s takes %s twice", where, a->option->key, value);
        if (a->n == VALUES_MAX)
            return WEFT_BAD_INPUT("%s: CONFIG_%s takes more than %d values", where, a->option->key,
                                  VALUES_MAX);
        /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): the caller frees every axis's values */
        char(*added)[WEFT_SWEEP_VALUE] = WEFT_ADD(a->values, a->n);
        if (!added) return weft_fail(WEFT_ENOMEM, "study: no memory for its sweep");
        memcpy(*added, value, sizeof value);
        if (!text[n]) return WEFT_OK;
        text += n + 1;
    }
}

/* KEY=VALUES up to a blank. */
static weft_status read_axis(const char **text, axis *axes, int n, const char *where) {
    const char *at = *text;
    size_t length = strcspn(at, " \t\n");
    char word[WEFT_TEXT_MAX + 1], key[128];
    snprintf(word, sizeof word, "%.*s", (int)length, at);
    const char *equals = strchr(word, '=');
    if (!equals || equals == word || (size_t)(equals - word) >= sizeof key)
        return WEFT_BAD_INPUT("%s: '%.60s' must be KEY=VALUE,VALUE", where, word);
    snprintf(key, sizeof key, "%.*s", (int)(equals - word), word);
    weft_config scratch;
    const weft_option *option = axes[n].option = weft_option_find(key);
    if (!option) return weft_config_set(&scratch, key, "", where); /* names the nearest */
    if (option->owner == WEFT_OWNER_STUDY)
        return WEFT_BAD_INPUT("%s: CONFIG_%s is the whole study's and cannot be swept", where,
                              option->key);
    for (int i = 0; i < n; i++)
        if (axes[i].option == option)
            return WEFT_BAD_INPUT("%s: CONFIG_%s is there twice", where, option->key);
    *text = weft_skip_blanks(at + length);
    return read_values(&axes[n], equals + 1, where);
}

static weft_status read_axes(const char *text, const char *where, axis *axes, int *n) {
    const char *at = weft_skip_blanks(text);
    for (;;) {
        if (*n == WEFT_SWEEP_AXES)
            return WEFT_BAD_INPUT("%s: more than %d options", where, WEFT_SWEEP_AXES);
        weft_status status = read_axis(&at, axes, *n, where);
        ++*n; /* its values are freed with the others */
        if (status != WEFT_OK || !*at) return status;
        if (!is_separator(at, &at))
            return WEFT_BAD_INPUT("%s: '×' (or x, *) is expected between two options, not '%.20s'",
                                  where, at);
        at = weft_skip_blanks(at);
    }
}

/* A value of one axis from a number in [0, 1). */
static void draw_value(const axis *a, double unit, char *text) {
    if (a->n) {
        memcpy(text, a->values[(int)(unit * a->n)], WEFT_SWEEP_VALUE);
        return;
    }
    double value =
        a->logarithmic ? a->low * pow(a->high / a->low, unit) : a->low + (a->high - a->low) * unit;
    /* Three digits: a value is quoted and typed again. */
    if (a->option->type == WEFT_OPT_INT)
        snprintf(text, WEFT_SWEEP_VALUE, "%.0f", value);
    else
        snprintf(text, WEFT_SWEEP_VALUE, "%.3g", fmin(fmax(value, a->low), a->high));
}

static weft_status draw_points(const axis *axes, int points, uint64_t seed, const char *where,
                               weft_sweep *out) {
    uint32_t site = weft_random_site("sweep");
    uint64_t index = 0;
    for (int tries = 0; out->n < points && tries < TRIES;) {
        weft_sweep_point *p = &out->points[out->n];
        bool fresh = true;
        for (int i = 0; i < out->axes; i++)
            draw_value(&axes[i], weft_random_unit(weft_random_word(seed, 0, 0, site, index++)),
                       p->text[i]);
        for (int i = 0; i < out->n && fresh; i++) {
            int same = 0;
            while (same < out->axes && strcmp(p->text[same], out->points[i].text[same]) == 0)
                same++;
            fresh = same < out->axes;
        }
        tries = fresh ? 0 : tries + 1;
        out->n += fresh;
    }
    if (out->n < points)
        return WEFT_BAD_INPUT("%s has fewer than %d different points; lower "
                              "CONFIG_STUDY_SWEEP_POINTS",
                              where, points);
    return WEFT_OK;
}

static weft_status make_points(const axis *axes, int points, int most, uint64_t seed,
                               const char *where, weft_sweep *out) {
    /* How many points the grid has; 0: one axis is a range. More than INT_MAX counts as that. */
    double size = 1;
    for (int i = 0; i < out->axes; i++)
        size *= axes[i].n;
    int grid = size < 1e9 ? (int)size : 1000000000;
    if (grid == 0 && points == 0)
        return WEFT_BAD_INPUT(
            "%s has a range; say how many points to draw: CONFIG_STUDY_SWEEP_POINTS", where);
    bool whole = grid > 0 && (points == 0 || points >= grid);
    int n = whole ? grid : points;
    if (n > most)
        return WEFT_BAD_INPUT("%s has %d points, and a study at most %d variants; draw some of "
                              "them: CONFIG_STUDY_SWEEP_POINTS",
                              where, n, most);
    WEFT_ROOM_AT(out->points, n, "study: no memory for its sweep");
    if (!whole) return draw_points(axes, n, seed, where, out);
    for (; out->n < n; out->n++)
        for (int i = out->axes - 1, number = out->n; i >= 0; number /= axes[i--].n)
            memcpy(out->points[out->n].text[i], axes[i].values[number % axes[i].n],
                   WEFT_SWEEP_VALUE);
    return WEFT_OK;
}

weft_status weft_sweep_read(const char *text, int points, int most, uint64_t seed,
                            const char *where, weft_sweep *out) {
    axis axes[WEFT_SWEEP_AXES] = {0};
    *out = (weft_sweep){0};
    weft_status status = read_axes(text, where, axes, &out->axes);
    for (int i = 0; i < out->axes; i++)
        out->option[i] = axes[i].option;
    if (status == WEFT_OK) status = make_points(axes, points, most, seed, where, out);
    for (int i = 0; i < WEFT_SWEEP_AXES; i++)
        free(axes[i].values);
    if (status != WEFT_OK) weft_sweep_free(out);
    return status;
}
