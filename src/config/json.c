/* config.json: every option by its key in small letters, and back. */
#include "config/config.h"

#include "base/json.h"

#include <ctype.h>

void weft_option_json_key(const weft_option *o, char *key, size_t room) {
    size_t n = 0;
    for (; o->key[n] && n + 1 < room; n++)
        key[n] = (char)tolower((unsigned char)o->key[n]);
    key[n] = '\0';
}

json_t *weft_config_kept(const char *text) {
    WEFT_AUTO_DECREF json_t *kept = weft_json_read(text, strlen(text), 0, NULL);
    json_t *object = json_is_object(kept) ? json_object() : NULL;
    EACH_MEMBER(m, kept) {
        char key[64];
        const weft_option *o = weft_option_find(m.key);
        if (o) weft_option_json_key(o, key, sizeof key);
        json_object_set(object, o ? key : m.key, m.value);
    }
    return object;
}

json_t *weft_config_to_json(const weft_config *c) {
    json_t *object = json_object();
    for (const weft_option *o = weft_options(NULL); object && o->key; o++) {
        const void *field = (const char *)c + o->offset;
        char key[64], text[WEFT_TEXT_MAX];
        weft_option_json_key(o, key, sizeof key);
        weft_config_format(c, o, text, sizeof text);
        json_t *value = o->type == WEFT_OPT_BOOL     ? json_boolean(*(const bool *)field)
                        : o->type == WEFT_OPT_INT    ? json_integer(*(const int64_t *)field)
                        : o->type == WEFT_OPT_NUMBER ? json_real(*(const double *)field)
                                                     : json_string(text);
        if (json_object_set_new(object, key, value) == 0) continue;
        json_decref(object);
        return NULL;
    }
    return object;
}

weft_status weft_config_from_json(weft_config *c, const json_t *object, const char *where) {
    if (!json_is_object(object)) return WEFT_BAD_INPUT("%s: a config is a JSON object", where);
    EACH_MEMBER(m, object) {
        const char *key = m.key;
        const json_t *value = m.value;
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
            return WEFT_BAD_INPUT("%s: the value of '%s' is no y/n, number or text", where, key);
        WEFT_TRY(weft_config_set(c, key, text, where));
    }
    return WEFT_OK;
}
