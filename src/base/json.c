/* JSON: what jansson leaves to its user. */
#include "base/json.h"

#include "base/text.h"

#include <math.h>
#include <stdarg.h>

/* About what each sign stands for in memory, over every one that is not in a string; and how much of
 * that a text may come to, a short one in any case. */
enum {
    LIST_BYTES = 160,
    OBJECT_BYTES = 300,
    VALUE_BYTES = 60, /* after a comma */
    KEY_BYTES = 80,
    MOST_TIMES = 40,
    ALWAYS_BYTES = 1 << 20
};

static bool is_within_bounds(const char *text, size_t bytes) {
    size_t all = 0, most = bytes > SIZE_MAX / MOST_TIMES ? SIZE_MAX : MOST_TIMES * bytes;
    bool within = false; /* a string */
    if (most < ALWAYS_BYTES) most = ALWAYS_BYTES;
    for (size_t i = 0; i < bytes && all <= most; i++) {
        if (within && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            within = !within;
        else if (!within)
            all += text[i] == '['   ? LIST_BYTES
                   : text[i] == '{' ? OBJECT_BYTES
                   : text[i] == ',' ? VALUE_BYTES
                   : text[i] == ':' ? KEY_BYTES
                                    : 0;
    }
    return all <= most;
}

json_t *weft_json_read(const char *text, size_t bytes, size_t flags, json_error_t *error) {
    if (is_within_bounds(text, bytes)) return json_loadb(text, bytes, flags, error);
    if (error) {
        *error = (json_error_t){.line = 1};
        snprintf(error->text, sizeof error->text,
                 "it has more lists and objects than a file of its size may have");
    }
    return NULL;
}

weft_status weft_json_load(const char *path, size_t most, json_t **out) {
    WEFT_AUTO_FREE char *text = NULL;
    size_t bytes;
    json_error_t error;
    *out = NULL;
    WEFT_TRY(weft_file_read(path, most, &text, &bytes));
    *out = weft_json_read(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (*out) return WEFT_OK;
    return WEFT_BAD_INPUT("%s:%d: %s", path, error.line, error.text);
}

json_t *weft_json_file(const char *path, size_t most) {
    WEFT_AUTO_FREE char *text = NULL;
    size_t bytes;
    if (weft_file_read(path, most, &text, &bytes) != WEFT_OK) return NULL;
    return weft_json_read(text, bytes, 0, NULL);
}

weft_status weft_json_write(const char *path, json_t *object, weft_sum *sum) {
    WEFT_AUTO_FREE char *text = object ? json_dumps(object, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    json_decref(object);
    if (!text) return weft_no_memory(path);
    size_t n = strlen(text);
    text[n] = '\n'; /* in the end's place: the file has its length elsewhere */
    return weft_file_write(path, text, n + 1, sum);
}

char *weft_json_line(json_t *object) {
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    return text;
}

json_t *weft_json_number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *weft_json_text(const char *text) {
    char *repaired = weft_text_repair(text);
    json_t *string = repaired ? json_string(repaired) : NULL;
    free(repaired);
    return string;
}

/* The next of them; NULL: there is none. */
static json_t *take_value(char type, va_list *values) {
    if (type == 'i') return json_integer(va_arg(*values, int));
    if (type == 'I') return json_integer(va_arg(*values, int64_t));
    if (type == 'b') return json_boolean(va_arg(*values, int));
    if (type == 'f' || type == 'w') {
        double number = va_arg(*values, double);
        if (type == 'f') return isfinite(number) ? json_real(number) : NULL;
        return fabs(number) < 9.2e18 ? json_integer((json_int_t)number) : NULL;
    }
    void *value = va_arg(*values, void *);
    if (type == 's' && value) return weft_json_text(value);
    return type == 'O' ? json_incref(value) : value;
}

json_t *weft_json_add(json_t *object, const char *fields, ...) {
    char key[64], type;
    va_list values;
    va_start(values, fields);
    for (int n; sscanf(fields, " %63[^:]:%c%n", key, &type, &n) == 2; fields += n) {
        json_t *value = take_value(type, &values);
        bool optional = fields[n] == '*';
        n += optional;
        if (value || !optional) json_object_set_new(object, key, value ? value : json_null());
    }
    va_end(values);
    return object;
}

double weft_json_number_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

const char *weft_json_text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

bool weft_json_next(const json_t *of, bool list, weft_json_member *m) {
    json_t *object = list ? NULL : (json_t *)(uintptr_t)of;
    m->at = m->n ? json_object_iter_next(object, m->at) : json_object_iter(object);
    m->key = json_object_iter_key(m->at);
    m->value = list ? json_array_get(of, m->n) : json_object_iter_value(m->at);
    m->n++;
    return m->value;
}
