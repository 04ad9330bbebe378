/* Sockets, names, keys, waiting, and connections. */
#include "serve/http.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <strings.h>
#include <sys/socket.h>

weft_status weft_http_listen(const char *host, int port_number, int *out, bool *six) {
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list;
    char port[16];
    int yes = 1, error;
    *out = -1;
    snprintf(port, sizeof port, "%d", port_number);
    error = getaddrinfo(host, port, &hints, &list);
    if (error) return WEFT_BAD_INPUT("--host %s: %s", host, gai_strerror(error));
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
    return WEFT_BAD_INPUT(
        "cannot listen on %s, port %d: %s; another --port, or 0 for any that is free", host,
        port_number, strerror(error));
}

void weft_http_condition(pthread_cond_t *c) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attributes);
    pthread_condattr_destroy(&attributes);
}

void weft_http_wait(pthread_cond_t *c, pthread_mutex_t *lock, const bool *closing, int ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ms * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (!*closing && pthread_cond_timedwait(c, lock, &until) != ETIMEDOUT)
        ;
}

void weft_http_log(void *context, const char *format, va_list list) {
    char text[512];
    (void)context;
    vsnprintf(text, sizeof text, format, list);
    text[strcspn(text, "\n")] = 0;
    weft_log(WEFT_LOG_DEBUG, "serve: %s", text);
}

bool weft_http_is_local(const char *host) {
    size_t length = strcspn(host, *host == '[' ? "]" : ":");
    if (host[length] == ']') length++;
    static const char local[] = ".localhost";
    const char *port = host + length; /* and nothing behind it */
    if (strcmp(host, "::1") == 0) return true;
    if (*port && (*port != ':' || strspn(port + 1, "0123456789") != strlen(port + 1))) return false;
    size_t tail = sizeof local - 1;
    return (length == tail - 1 && strncasecmp(host, local + 1, length) == 0) ||
           (length > tail && strncasecmp(host + length - tail, local, tail) == 0) ||
           (length == 5 && strncmp(host, "[::1]", 5) == 0) ||
           (strncmp(host, "127.", 4) == 0 && strspn(host, "0123456789.") == length);
}

bool weft_key_matches(const char *key, const char *header) {
    static const char scheme[] = "Bearer ";
    size_t letters = sizeof scheme - 1, length = strlen(key);
    if (!header || strncasecmp(header, scheme, letters) != 0) return false;
    const char *sent = header + letters;
    size_t count = strlen(sent);
    /* Every letter that was sent is compared with one of the key's, whatever came before. */
    volatile unsigned char differs = (unsigned char)(count != length);
    for (size_t i = 0; i < count; i++)
        differs =
            (unsigned char)(differs | (unsigned char)(sent[i] ^ key[length ? i % length : 0]));
    return !differs;
}

/* Watching connections. A list under one lock; a job is given up with it held, so its connection still holds it. */
enum { LOOK_MS = 50 };

struct weft_connection {
    int socket;
    double deadline;
    bool busy;
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
    struct pollfd *polled;
    int64_t room;
};

/* Asks the system about every client whose job is being made. */
static void find_gone(weft_connections *all) {
    nfds_t n = 0, i = 0;
    if (!weft_grow_list(&all->polled, &all->room, all->count, sizeof *all->polled))
        return; /* looked at again when there is memory */
    for (weft_connection *c = all->first; c; c = c->next) {
        if (!c->job) continue;
        all->polled[n++] = (struct pollfd){.fd = c->socket, .events = POLLRDHUP};
    }
    if (n == 0 || poll(all->polled, n, 0) <= 0) return;
    for (weft_connection *c = all->first; c; c = c->next) {
        if (c->job && all->polled[i++].revents & (POLLRDHUP | POLLHUP | POLLERR))
            weft_job_give_up(c->job);
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
            if (c->job) weft_job_give_up(c->job);
            c->deadline = now + all->seconds;
        }
        weft_http_wait(&all->news, &all->lock, &all->closing, LOOK_MS);
    }
    return NULL;
}

weft_status weft_connections_open(double seconds, weft_connections **out) {
    *out = NULL;
    WEFT_ROOM(weft_connections, all, 1, "serve: no memory");
    all->seconds = seconds;
    pthread_mutex_init(&all->lock, NULL);
    weft_http_condition(&all->news);
    int error = pthread_create(&all->thread, NULL, watch, all);
    if (error) {
        pthread_cond_destroy(&all->news);
        pthread_mutex_destroy(&all->lock);
        return weft_fail(WEFT_EIO, "serve: cannot start a thread: %s", strerror(error));
    }
    return weft_hand(&all, out);
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
    WEFT_FREE(all->polled, all);
}

static void let_go(weft_connections *all, weft_connection *c) {
    all->busy -= c->busy;
    c->busy = false;
    weft_job_release(c->job);
    c->job = NULL;
}

#ifdef WEFT_HAVE_MICROHTTPD
void weft_connections_note(void *all, struct MHD_Connection *c, void **own,
                           enum MHD_ConnectionNotificationCode what) {
    weft_connections *of = all;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
        weft_connection *come = *own = info ? calloc(1, sizeof *come) : NULL;
        if (!come) return;
        come->socket = info->connect_fd;
        come->deadline = weft_clock() + of->seconds;
        WEFT_LOCK(&of->lock);
        come->next = of->first;
        if (come->next) come->next->before = come;
        of->first = come;
        of->count++;
        pthread_cond_signal(&of->news);
    } else if (*own) {
        weft_connection *gone = *own;
        WEFT_LOCK(&of->lock);
        let_go(of, gone);
        if (gone->before)
            gone->before->next = gone->next;
        else
            of->first = gone->next;
        if (gone->next) gone->next->before = gone->before;
        of->count--;
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
