/* What the servers of weft have in common: where they listen, whom they take for this machine, whose key
 * they take, what a page of theirs may do, and the connections that are open. */
#pragma once

#include "serve/worker.h"

#include <stdarg.h>
#ifdef WEFT_HAVE_MICROHTTPD
#include <microhttpd.h>
#endif

/* A page's Content-Security-Policy: its own script and style, its own server, and nobody else. */
#define WEFT_HTTP_POLICY                                                                           \
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src "      \
    "'self'; img-src data:; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"

/* A socket that listens at the first address of the host that can be had; *six: by IPv6. Port 0: any that is free. */
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

/* The connections that are open, and a thread that watches them: for clients that are too slow, and for clients that
 * have gone.
 *
 * A client must send a request whole within some seconds of connecting, or of its last answer, even if it sends a byte
 * now and then; and while its answer is being made the connection is looked at a few times a second, since nothing else
 * reads from it then. What is found is told in two ways: a connection that took too long is shut down, so that whoever
 * reads from it sees its end; of a client that has gone, the job is given up. */
typedef struct weft_connections weft_connections;
typedef struct weft_connection weft_connection;

weft_status weft_connections_open(double seconds, weft_connections **out);
/* When no connection is left. */
void weft_connections_close(weft_connections *all);

#ifdef WEFT_HAVE_MICROHTTPD
/* Takes up a connection that begins, and forgets one that ends: libmicrohttpd's MHD_OPTION_NOTIFY_CONNECTION
 * with the weft_connections as its context. */
void weft_connections_note(void *all, struct MHD_Connection *c, void **own,
                           enum MHD_ConnectionNotificationCode what);
/* NULL: there was no memory for it. */
weft_connection *weft_connection_of(struct MHD_Connection *c);
#endif

/* A request came in whole; its answer may take so many seconds. */
void weft_connection_begin(weft_connections *all, weft_connection *c, double seconds);
/* The answer is this job, which is held until weft_connection_end. */
void weft_connection_watch(weft_connections *all, weft_connection *c, weft_job *j);
void weft_connection_end(weft_connections *all, weft_connection *c);

/* How many there are, and on how many of them an answer is being made or sent. */
void weft_connections_count(weft_connections *all, int64_t *open, int64_t *busy);
