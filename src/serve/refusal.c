/* Errors of HTTP. */
#include "serve/refusal.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A message may quote what a client sent, cut anywhere. */
static void clean_text(char *text) {
    json_t *as_is = json_string(text);
    for (char *at = text; !as_is && *at; at++)
        if ((unsigned char)*at >= 0x80) *at = '?';
    json_decref(as_is);
}

bool weft_refuse(weft_refusal *why, int status, const char *code, const char *param,
                 const char *format, ...) {
    va_list list;
    *why = (weft_refusal){.status = status, .code = code};
    snprintf(why->param, sizeof why->param, "%s", param ? param : "");
    va_start(list, format);
    vsnprintf(why->message, sizeof why->message, format, list);
    va_end(list);
    clean_text(why->param);
    clean_text(why->message);
    return false;
}

static const char *type_of(const weft_refusal *why) {
    if (why->status == 401) return "authentication_error";
    if (why->status == 429) return "rate_limit_error";
    return why->status >= 500 ? "server_error" : "invalid_request_error";
}

char *weft_refusal_json(const weft_refusal *why) {
    json_t *error =
        json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", why->message, "type",
                  type_of(why), "param", *why->param ? why->param : NULL, "code", why->code);
    char *text = error ? json_dumps(error, JSON_COMPACT) : NULL;
    json_decref(error);
    return text;
}
