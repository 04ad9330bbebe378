/* Sockets, names, keys and waiting. */
#include "serve/http.h"

#include "base/log.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

weft_status weft_http_listen(const char *host, int port_number, int *out, bool *six) {
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list;
    char port[16];
    int yes = 1, error;
    *out = -1;
    snprintf(port, sizeof port, "%d", port_number);
    error = getaddrinfo(host, port, &hints, &list);
    if (error) return weft_fail(WEFT_EINPUT, "--host %s: %s", host, gai_strerror(error));
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
                     host, port_number, strerror(error));
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
