/* The client's side: HTTP/1.0, so that a stream's events come as they are and end with the connection. */
#include "bench/load.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/random.h"
#include "base/text.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

void bench_request_end(bench_request *r) {
    if (r->socket) close(r->socket);
    r->socket = 0;
    r->ended = true;
    free(r->in);
    r->in = NULL;
    r->bytes = r->room = 0;
}

static weft_status open_connection(const bench_load *l, int *out) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    char port[16];
    snprintf(port, sizeof port, "%d", l->port);
    int error = getaddrinfo(l->host, port, &hints, &list);
    if (error) return WEFT_BAD_INPUT("%s, port %s: %s", l->host, port, gai_strerror(error));
    *out = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool open = *out > 0 && connect(*out, list->ai_addr, list->ai_addrlen) == 0;
    error = errno;
    freeaddrinfo(list);
    if (open) return WEFT_OK;
    if (*out > 0) close(*out);
    return weft_fail(WEFT_EIO, "no connection to %s, port %s: %s", l->host, port, strerror(error));
}

static char *make_body(const bench_load *l, int64_t number) {
    const bench_request *r = l->requests + number;
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    if (!to) return NULL;
    fprintf(to, "{\"max_tokens\":%lld,\"temperature\":0,\"stream\":true,\"return_token_ids\":true,",
            (long long)r->most);
    for (int64_t i = 0; i < r->prompt; i++) {
        uint32_t word = weft_random_word(l->seed, l->round, (uint32_t)number,
                                         weft_random_site("bench.prompt"), (uint64_t)i);
        fprintf(to, "%s%lld", i ? "," : "\"prompt\":[", (long long)(word % (uint64_t)l->vocab));
    }
    fputs("]}", to);
    return weft_memory_end(to, &text);
}

static weft_status send_request(const bench_load *l, int64_t number) {
    bench_request *r = l->requests + number;
    WEFT_AUTO_FREE char *body = make_body(l, number), *all = NULL;
    int bytes = !body ? -1
                      : asprintf(&all,
                                 "POST /v1/completions HTTP/1.0\r\nHost: %s\r\nContent-Type: "
                                 "application/json\r\nContent-Length: %zu\r\n\r\n%s",
                                 l->host, strlen(body), body);
    if (bytes < 0) return weft_fail(WEFT_ENOMEM, "bench: no memory");
    WEFT_TRY(open_connection(l, &r->socket));
    for (ssize_t at = 0, sent; at < bytes; at += sent) {
        sent = send(r->socket, all + at, (size_t)(bytes - at), MSG_NOSIGNAL);
        if (sent <= 0) break; /* an answer says why, or the connection's end does */
    }
    return WEFT_OK;
}

/* How many tokens an event has. */
static int64_t count_tokens(bench_request *r, const char *json) {
    WEFT_AUTO_DECREF json_t *event = json_loads(json, JSON_ALLOW_NUL, NULL);
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    if (!event || json_object_get(event, "error")) r->status = 0;
    return (int64_t)json_array_size(json_object_get(choice, "token_ids"));
}

/* Tokens that came together: each took its part of the time since the last. */
static void take_tokens(bench_load *l, bench_request *r, int64_t n) {
    double now = weft_clock();
    if (n == 0) return;
    for (int64_t i = 0; l->between && r->tokens > 0 && i < n; i++)
        bench_samples_add(l->between, (now - r->last) / (double)n);
    if (r->tokens == 0) r->first = now;
    r->last = now;
    r->tokens += n;
}

/* One line of an answer; the tokens in it. */
static int64_t take_line(bench_request *r, const char *line) {
    int64_t n = r->body && strncmp(line, "data: {", 7) == 0 ? count_tokens(r, line + 6) : 0;
    if (r->body && strcmp(line, "data: [DONE]") == 0) r->ended = true;
    if (!r->body && strncmp(line, "HTTP/", 5) == 0) r->status = atoi(line + strcspn(line, " "));
    r->body |= !*line;
    return n;
}

/* What has come. */
static weft_status take_bytes(bench_load *l, bench_request *r) {
    if (!weft_grow(&r->in, &r->room, r->bytes + (1 << 16)))
        return weft_fail(WEFT_ENOMEM, "bench: no memory");
    ssize_t got = recv(r->socket, r->in + r->bytes, 1 << 16, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return WEFT_OK;
    if (got > 0) r->bytes += (size_t)got;
    int64_t tokens = 0;
    char *line = r->in, *end;
    while ((end = memchr(line, '\n', r->bytes - (size_t)(line - r->in)))) {
        *end = 0;
        line[strcspn(line, "\r")] = 0;
        tokens += take_line(r, line);
        line = end + 1;
    }
    take_tokens(l, r, tokens);
    r->bytes -= (size_t)(line - r->in);
    memmove(r->in, line, r->bytes);
    if (got <= 0 && !r->ended && r->status == 200) r->status = 0;
    if (got <= 0 || r->ended) bench_request_end(r);
    return WEFT_OK;
}

weft_status bench_load_turn(bench_load *l) {
    WEFT_AUTO_FREE struct pollfd *polled = calloc((size_t)l->count + 1, sizeof *polled);
    WEFT_AUTO_FREE int64_t *whose = calloc((size_t)l->count + 1, sizeof *whose);
    double now = weft_clock(), wait = 0.1;
    int64_t n = 0;
    if (!polled || !whose) return weft_fail(WEFT_ENOMEM, "bench: no memory");
    for (int64_t i = 0; i < l->count; i++) {
        bench_request *r = l->requests + i;
        if (!r->ended && !r->socket && r->due <= now) WEFT_TRY(send_request(l, i));
        if (!r->ended && !r->socket && r->due - now < wait) wait = r->due - now;
        if (!r->socket) continue;
        whose[n] = i;
        polled[n++] = (struct pollfd){.fd = r->socket, .events = POLLIN};
    }
    if (poll(polled, (nfds_t)n, (int)(1e3 * wait)) < 0 && errno != EINTR)
        return weft_fail(WEFT_EIO, "bench: poll: %s", strerror(errno));
    for (int64_t i = 0; i < n; i++)
        if (polled[i].revents) WEFT_TRY(take_bytes(l, l->requests + whose[i]));
    return WEFT_OK;
}
