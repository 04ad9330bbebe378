/* What the servers of weft have in common: where they listen, whom they take for this machine, whose key
 * they take, and what a page of theirs may do. */
#pragma once

#include "base/error.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>

/* A page's Content-Security-Policy: its own script and style, its own server, and nobody else. */
#define WEFT_HTTP_POLICY                                                                           \
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src "      \
    "'self'; img-src data:; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"

/* A socket that listens at the first address of the host that can be had; *six: by IPv6. Port 0: any
 * that is free. */
weft_status weft_http_listen(const char *host, int port_number, int *out, bool *six);

/* Whether a name, with or without a port, means this machine and no other. */
bool weft_http_is_local(const char *host);

/* Whether a value of the header Authorization is "Bearer " and the key. How long it takes depends on
 * the length of what was sent alone, and says nothing about the key. `header` may be NULL. */
bool weft_key_matches(const char *key, const char *header);

/* A condition by the clock that only goes forward, and waiting on it for so long, or until `closing`. */
void weft_http_condition(pthread_cond_t *c);
void weft_http_wait(pthread_cond_t *c, pthread_mutex_t *lock, const bool *closing, int ms);

/* libmicrohttpd's own messages, into the log for debugging. */
void weft_http_log(void *context, const char *format, va_list list);
