/* Starting and stopping the server. */
#include "serve/server.h"

#ifdef WEFT_HAVE_MICROHTTPD
#include "core/log.h"
#include "serve/exchange.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static int bound_port(int socket) {
    struct sockaddr_storage at;
    socklen_t length = sizeof at;
    if (getsockname(socket, (struct sockaddr *)&at, &length) != 0) return 0;
    return ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                          : ((struct sockaddr_in *)&at)->sin_port);
}

/* A socket that listens at the first address of the host that can be had. */
static weft_status listen_on(const weft_server_options *o, int *out, bool *six) {
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list;
    char port[16];
    int yes = 1, error;
    *out = -1;
    snprintf(port, sizeof port, "%d", o->port);
    error = getaddrinfo(o->host, port, &hints, &list);
    if (error) return weft_fail(WEFT_EINPUT, "--host %s: %s", o->host, gai_strerror(error));
    for (struct addrinfo *at = list; at && *out < 0; at = at->ai_next) {
        int s = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (s < 0) continue;
        setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        if (bind(s, at->ai_addr, at->ai_addrlen) == 0 && listen(s, SOMAXCONN) == 0) {
            *out = s;
            *six = at->ai_family == AF_INET6;
        } else {
            error = errno;
            close(s);
        }
    }
    freeaddrinfo(list);
    if (*out >= 0) return WEFT_OK;
    return weft_fail(WEFT_EINPUT,
                     "cannot listen on %s, port %d: %s; another --port, or 0 for any that is free",
                     o->host, o->port, strerror(error));
}

static void log_line(void *context, const char *format, va_list list) {
    char text[512];
    (void)context;
    vsnprintf(text, sizeof text, format, list);
    text[strcspn(text, "\n")] = 0;
    weft_log(WEFT_LOG_DEBUG, "serve: %s", text);
}

static weft_status start_daemon(weft_server *s) {
    const weft_server_options *o = &s->options;
    int listening;
    bool six = false;
    WEFT_TRY(listen_on(o, &listening, &six));
    s->port = bound_port(listening);
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO | MHD_ALLOW_SUSPEND_RESUME |
                     MHD_USE_ERROR_LOG | (six ? MHD_USE_IPv6 : 0u);
    s->daemon = MHD_start_daemon(
        flags, (uint16_t)s->port, NULL, NULL, weft_exchange_receive, s, MHD_OPTION_EXTERNAL_LOGGER,
        log_line, NULL, MHD_OPTION_LISTEN_SOCKET, listening, MHD_OPTION_NOTIFY_COMPLETED,
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
    if (status == WEFT_OK) status = weft_metrics_create(&s->metrics);
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
    weft_metrics_destroy(s->metrics);
    weft_template_close(s->chat);
    free(s);
}

#else

weft_status weft_server_open(const weft_server_options *o, weft_generator *g,
                             const weft_tokenizer *t, weft_encoder *encoder, weft_server **out) {
    (void)o, (void)g, (void)t, (void)encoder;
    *out = NULL;
    return weft_fail(WEFT_EMISSING, "this build cannot serve: it was made without libmicrohttpd; "
                                    "scripts/setup optional installs it, then make configure");
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
