/* One request and its answer, from the first byte of the one to the last of the other: what
 * libmicrohttpd calls. Only for a build that has it. */
#ifndef WEFT_SERVE_EXCHANGE_H
#define WEFT_SERVE_EXCHANGE_H

#include "serve/connections.h"
#include "serve/server.h"
#include "serve/template.h"
#include "serve/worker.h"

#include <microhttpd.h>

/* What all exchanges of a server share. */
struct weft_server {
    weft_server_options options;
    weft_generator_stats model; /* vocabulary and context */
    const weft_tokenizer *tokenizer;
    weft_encoder *encoder; /* the HTTP thread's */
    weft_template *chat;
    weft_worker *worker;
    weft_server_metrics *metrics;
    weft_connections *connections;
    struct MHD_Daemon *daemon;
    int port;
    int listening; /* taken back from the daemon; -1: it is the daemon's */
    int64_t started;
    atomic_bool draining;
};

/* MHD_AccessHandlerCallback, MHD_RequestCompletedCallback and MHD_NotifyConnectionCallback; their
 * closure is the server. */
enum MHD_Result weft_exchange_receive(void *server, struct MHD_Connection *c, const char *url,
                                      const char *method, const char *version, const char *upload,
                                      size_t *upload_bytes, void **exchange);
void weft_exchange_end(void *server, struct MHD_Connection *c, void **exchange,
                       enum MHD_RequestTerminationCode how);
void weft_exchange_connection(void *server, struct MHD_Connection *c, void **socket_context,
                              enum MHD_ConnectionNotificationCode what);

/* Of a client that has gone: its job is given up. For weft_connections. */
void weft_exchange_gone(void *server, weft_job *j);

#endif
