/* The connections that are open, and a thread that watches them: for clients that are too slow, and
 * for clients that have gone.
 *
 * A client must send a request whole within some seconds of connecting, or of its last answer, even
 * if it sends a byte now and then; and while its answer is being made the connection is looked at a
 * few times a second, since nothing else reads from it then. What is found is told in two ways: a
 * connection that took too long is shut down, so that whoever reads from it sees its end; of a client
 * that has gone, `gone` is called with its job. */
#pragma once

#include "serve/job.h"

#ifdef WEFT_HAVE_MICROHTTPD
#include <microhttpd.h>
#endif

typedef struct weft_connections weft_connections;
typedef struct weft_connection weft_connection;

weft_status weft_connections_open(double seconds, void (*gone)(void *context, weft_job *j),
                                  void *context, weft_connections **out);
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
/* The answer was sent, or given up. */
void weft_connection_end(weft_connections *all, weft_connection *c);

/* How many there are, and on how many of them an answer is being made or sent. */
void weft_connections_count(weft_connections *all, int64_t *open, int64_t *busy);
