/* What the servers of weft have in common: where they listen, whom they take for this machine, and what
 * a page of theirs may do. */
#ifndef WEFT_SERVE_HTTP_H
#define WEFT_SERVE_HTTP_H

#include "base/error.h"

#include <stdarg.h>
#include <stdbool.h>

/* A page's Content-Security-Policy: its own script and style, its own server, and nobody else. */
#define WEFT_HTTP_POLICY                                                                           \
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src "      \
    "'self'; img-src data:; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"

/* A socket that listens at the first address of the host that can be had; *six: by IPv6. Port 0: any
 * that is free. */
weft_status weft_http_listen(const char *host, int port_number, int *out, bool *six);
int weft_http_port(int socket);

/* Whether a name, with or without a port, means this machine and no other. */
bool weft_http_is_local(const char *host);

/* libmicrohttpd's own messages, into the log for debugging. */
void weft_http_log(void *context, const char *format, va_list list);

#endif
