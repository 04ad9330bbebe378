/* Starting and stopping the server. */
#include "serve/server.h"

#ifdef WEFT_HAVE_MICROHTTPD
#include "base/log.h"
#include "serve/exchange.h"
#include "serve/http.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static weft_status start_daemon(weft_server *s) {
    const weft_server_options *o = &s->options;
    int listening;
    bool six = false;
    WEFT_TRY(weft_http_listen(o->host, o->port, &listening, &six));
    s->port = weft_http_port(listening);
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO | MHD_ALLOW_SUSPEND_RESUME |
                     MHD_USE_ERROR_LOG | (six ? MHD_USE_IPv6 : 0u);
    s->daemon = MHD_start_daemon(
        flags, (uint16_t)s->port, NULL, NULL, weft_exchange_receive, s, MHD_OPTION_EXTERNAL_LOGGER,
        weft_http_log, NULL, MHD_OPTION_LISTEN_SOCKET, listening, MHD_OPTION_NOTIFY_COMPLETED,
        weft_exchange_end, s, MHD_OPTION_NOTIFY_CONNECTION, weft_exchange_connection, s,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)o->connections, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)(o->request_seconds + 1), MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
    if (s->daemon) return WEFT_OK;
    close(listening);
    return weft_fail(WEFT_EIO, "serve: libmicrohttpd does not start; WEFT_LOG=debug tells more");
}

weft_status weft_server_open(const weft_server_options *o, weft_generator *g,
                             const weft_tokenizer *t, weft_encoder *encoder, weft_server **out) {
    *out = NULL;
    weft_server *s = calloc(1, sizeof *s);
    if (!s) return weft_fail(WEFT_ENOMEM, "serve: no memory");
    s->options = *o;
    s->tokenizer = t;
    s->encoder = encoder;
    s->listening = -1;
    s->started = (int64_t)time(NULL);
    atomic_init(&s->draining, false);
    weft_generator_count(g, &s->model);
    if (!s->options.max_tokens) s->options.max_tokens = s->model.context;
    weft_worker_limits limits = {o->sequences, o->queue, o->answer_seconds};
    weft_status status = weft_template_open(o->chat_template, t, &s->chat);
    if (status == WEFT_OK) status = weft_server_metrics_create(&s->metrics);
    if (status == WEFT_OK) status = weft_worker_open(g, t, &limits, s->metrics, &s->worker);
    if (status == WEFT_OK)
        status = weft_connections_open(o->request_seconds, weft_exchange_gone, s, &s->connections);
    if (status == WEFT_OK) status = start_daemon(s);
    if (status != WEFT_OK) {
        weft_server_close(s);
        return status;
    }
    *out = s;
    return WEFT_OK;
}

weft_status weft_server_available(void) {
    return WEFT_OK;
}

int weft_server_port(const weft_server *s) {
    return s->port;
}

void weft_server_drain(weft_server *s) {
    if (atomic_exchange(&s->draining, true)) return;
    /* Closed when the thread that may still look at it is gone. */
    s->listening = MHD_quiesce_daemon(s->daemon);
    if (s->listening >= 0) shutdown(s->listening, SHUT_RDWR);
}

int64_t weft_server_busy(weft_server *s) {
    int64_t open, busy;
    weft_connections_count(s->connections, &open, &busy);
    return busy;
}

/* The worker first: it finishes every job, which resumes every connection that is suspended, as
 * libmicrohttpd wants before it stops. */
void weft_server_close(weft_server *s) {
    if (!s) return;
    if (s->worker) weft_worker_stop(s->worker);
    if (s->daemon) MHD_stop_daemon(s->daemon);
    if (s->listening >= 0) close(s->listening);
    weft_connections_close(s->connections);
    weft_worker_close(s->worker);
    weft_server_metrics_destroy(s->metrics);
    weft_template_close(s->chat);
    free(s);
}

#else

weft_status weft_server_available(void) {
    return weft_fail(WEFT_EMISSING, "this build cannot serve: it was made without libmicrohttpd; "
                                    "scripts/setup optional installs it, then make configure");
}

weft_status weft_server_open(const weft_server_options *o, weft_generator *g,
                             const weft_tokenizer *t, weft_encoder *encoder, weft_server **out) {
    (void)o, (void)g, (void)t, (void)encoder;
    *out = NULL;
    return weft_server_available();
}

int weft_server_port(const weft_server *s) {
    (void)s;
    return 0;
}

void weft_server_drain(weft_server *s) {
    (void)s;
}

int64_t weft_server_busy(weft_server *s) {
    (void)s;
    return 0;
}

void weft_server_close(weft_server *s) {
    (void)s;
}
#endif
