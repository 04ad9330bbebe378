/* Watching connections. A list under one lock; `gone` is called with it held, so a job that it gets
 * is still held by its connection. */
#include "serve/connections.h"
#include "base/scope.h"

#include "base/clock.h"
#include "serve/http.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { LOOK_MS = 50 };

struct weft_connection {
    int socket;
    double deadline;
    bool busy, told;
    weft_job *job; /* NULL: nothing to watch */
    weft_connection *next, *before;
};

struct weft_connections {
    pthread_mutex_t lock;
    pthread_cond_t news; /* the first connection, or the end */
    pthread_t thread;
    weft_connection *first;
    int64_t count, busy;
    double seconds;
    bool closing;
    void (*gone)(void *context, weft_job *j);
    void *context;
    struct pollfd *polled;
    weft_connection **of;
    size_t room;
};

static bool has_room(weft_connections *all) {
    size_t want = (size_t)all->count;
    if (want <= all->room) return true;
    struct pollfd *polled = realloc(all->polled, 2 * want * sizeof *polled);
    if (polled) all->polled = polled;
    weft_connection **of = realloc(all->of, 2 * want * sizeof *of);
    if (of) all->of = of;
    if (!polled || !of) return false;
    all->room = 2 * want;
    return true;
}

/* Asks the system about every client whose job is being made. */
static void find_gone(weft_connections *all) {
    nfds_t n = 0;
    if (!has_room(all)) return; /* looked at again when there is memory */
    for (weft_connection *c = all->first; c; c = c->next) {
        if (!c->job || c->told) continue;
        all->polled[n] = (struct pollfd){.fd = c->socket, .events = POLLRDHUP};
        all->of[n++] = c;
    }
    if (n == 0 || poll(all->polled, n, 0) <= 0) return;
    for (nfds_t i = 0; i < n; i++) {
        if (!(all->polled[i].revents & (POLLRDHUP | POLLHUP | POLLERR))) continue;
        all->of[i]->told = true;
        all->gone(all->context, all->of[i]->job);
    }
}

static void *watch(void *context) {
    weft_connections *all = context;
    WEFT_LOCK(&all->lock);
    while (!all->closing) {
        while (!all->first && !all->closing)
            pthread_cond_wait(&all->news, &all->lock);
        find_gone(all);
        double now = weft_clock();
        for (weft_connection *c = all->first; c; c = c->next) {
            if (now < c->deadline) continue;
            shutdown(c->socket, SHUT_RDWR);
            if (c->job && !c->told) all->gone(all->context, c->job);
            c->told = true;
            c->deadline = now + all->seconds;
        }
        weft_http_wait(&all->news, &all->lock, &all->closing, LOOK_MS);
    }
    return NULL;
}

weft_status weft_connections_open(double seconds, void (*gone)(void *context, weft_job *j),
                                  void *context, weft_connections **out) {
    *out = NULL;
    WEFT_AUTO_FREE weft_connections *all = calloc(1, sizeof *all);
    if (!all) return weft_fail(WEFT_ENOMEM, "serve: no memory");
    all->seconds = seconds;
    all->gone = gone;
    all->context = context;
    pthread_mutex_init(&all->lock, NULL);
    weft_http_condition(&all->news);
    int error = pthread_create(&all->thread, NULL, watch, all);
    if (error) {
        pthread_cond_destroy(&all->news);
        pthread_mutex_destroy(&all->lock);
        return weft_fail(WEFT_EIO, "serve: cannot start a thread: %s", strerror(error));
    }
    *out = weft_steal(&all);
    return WEFT_OK;
}

void weft_connections_close(weft_connections *all) {
    if (!all) return;
    pthread_mutex_lock(&all->lock);
    all->closing = true;
    pthread_cond_broadcast(&all->news);
    pthread_mutex_unlock(&all->lock);
    pthread_join(all->thread, NULL);
    pthread_cond_destroy(&all->news);
    pthread_mutex_destroy(&all->lock);
    free(all->polled);
    free(all->of);
    free(all);
}

static void let_go(weft_connections *all, weft_connection *c) {
    all->busy -= c->busy;
    c->busy = false;
    c->told = false;
    weft_job_release(c->job);
    c->job = NULL;
}

#ifdef WEFT_HAVE_MICROHTTPD
static weft_connection *add_connection(weft_connections *all, int socket) {
    weft_connection *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->socket = socket;
    c->deadline = weft_clock() + all->seconds;
    WEFT_LOCK(&all->lock);
    c->next = all->first;
    if (c->next) c->next->before = c;
    all->first = c;
    all->count++;
    pthread_cond_signal(&all->news);
    return c;
}

void weft_connections_note(void *all, struct MHD_Connection *c, void **own,
                           enum MHD_ConnectionNotificationCode what) {
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
        *own = info ? add_connection(all, info->connect_fd) : NULL;
    } else if (*own) {
        weft_connections *of = all;
        weft_connection *gone = *own;
        pthread_mutex_lock(&of->lock);
        let_go(of, gone);
        if (gone->before)
            gone->before->next = gone->next;
        else
            of->first = gone->next;
        if (gone->next) gone->next->before = gone->before;
        of->count--;
        pthread_mutex_unlock(&of->lock);
        free(gone);
        *own = NULL;
    }
}

weft_connection *weft_connection_of(struct MHD_Connection *c) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}
#endif

void weft_connection_begin(weft_connections *all, weft_connection *c, double seconds) {
    WEFT_LOCK(&all->lock);
    all->busy += !c->busy;
    c->busy = true;
    c->deadline = weft_clock() + seconds + all->seconds;
}

void weft_connection_watch(weft_connections *all, weft_connection *c, weft_job *j) {
    WEFT_LOCK(&all->lock);
    weft_job_hold(j);
    c->job = j;
}

void weft_connection_end(weft_connections *all, weft_connection *c) {
    WEFT_LOCK(&all->lock);
    let_go(all, c);
    c->deadline = weft_clock() + all->seconds;
}

void weft_connections_count(weft_connections *all, int64_t *open, int64_t *busy) {
    WEFT_LOCK(&all->lock);
    *open = all->count;
    *busy = all->busy;
}
