/* A server under load, measured from the outside. Latency is counted from when a request was due, not from when
 * it was sent, so that a client that is late itself does not make the server look quick; and requests come at
 * their rate whatever the server does, so that a rate which it cannot keep up with shows as a queue that grows.
 *
 * The long prompt: texts are being written, and the time between their tokens is taken for a while; then the
 * prompt is sent, and it is taken until its first token has come; then as usual again.
 *
 * One thread polls all requests, in HTTP/1.0, so that a stream's events come as they are and end with the
 * connection. */
#include "base/clock.h"
#include "base/json.h"
#include "base/random.h"
#include "base/text.h"
#include "bench/tables.h"

#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

enum { QUIET = 64 /* tokens of each text before the long prompt */, SHORT = 16 /* theirs */ };
static const double MILLI = 0.001;

typedef struct {
    double due;           /* on weft_clock */
    int64_t prompt, most; /* tokens of its prompt, and most of its text */
    /* What came of it. */
    int status; /* of HTTP; 0: there was no answer, or not all of it */
    bool ended;
    int64_t tokens;
    double first, last; /* when its first and its last token came, on weft_clock */
    /* The connection's own: */
    int socket; /* 0: it was not sent yet, or has ended */
    bool body;
    char *in;
    size_t bytes, room;
} request;

typedef struct {
    const bench_options *opt;
    int64_t rates[BENCH_LIST_MAX], prompts[BENCH_LIST_MAX], most[BENCH_LIST_MAX];
    int n_rates, n_prompts, n_most;
    request *requests;
    int64_t count;
    uint32_t round;         /* with another, a server knows no prompt from before */
    bench_samples *between; /* takes the seconds between tokens, of all requests; NULL: none does */
    json_t *rows, *long_row;
    int *failed;
} bench;

static void end_request(request *r) {
    if (r->socket) close(r->socket);
    r->socket = 0;
    r->ended = true;
    free(weft_steal(&r->in));
    r->bytes = r->room = 0;
}

static weft_status send_request(const bench *b, int64_t number) {
    request *r = b->requests + number;
    const bench_options *o = b->opt;
    uint32_t site = weft_random_site("bench.prompt");
    WEFT_JSON_LIST(prompt, i, r->prompt,
                   json_integer((json_int_t)weft_random_word((uint64_t)b->opt->seed, b->round,
                                                             (uint32_t)number, site, (uint64_t)i) %
                                o->vocab));
    WEFT_AUTO_FREE char *all = NULL,
                        *body = weft_json_line(weft_json_make(
                            "max_tokens:I temperature:i stream:b return_token_ids:b prompt:o",
                            r->most, 0, true, true, prompt));
    int bytes = !body ? -1
                      : asprintf(&all,
                                 "POST /v1/completions HTTP/1.0\r\nHost: %s\r\nContent-Type: "
                                 "application/json\r\nContent-Length: %zu\r\n\r\n%s",
                                 o->host, strlen(body), body);
    if (bytes < 0) return weft_fail(WEFT_ENOMEM, "bench: no memory");
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    char port[16];
    snprintf(port, sizeof port, "%d", o->port);
    int error = getaddrinfo(o->host, port, &hints, &list);
    if (error) return WEFT_BAD_INPUT("%s, port %s: %s", o->host, port, gai_strerror(error));
    r->socket = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool open = r->socket > 0 && connect(r->socket, list->ai_addr, list->ai_addrlen) == 0;
    error = errno;
    freeaddrinfo(list);
    if (!open) {
        if (r->socket > 0) close(r->socket);
        return weft_fail(WEFT_EIO, "no connection to %s, port %s: %s", o->host, port,
                         strerror(error));
    }
    for (ssize_t at = 0, sent; at < bytes; at += sent) {
        sent = send(r->socket, all + at, (size_t)(bytes - at), MSG_NOSIGNAL);
        if (sent <= 0) break; /* an answer says why, or the connection's end does */
    }
    return WEFT_OK;
}

static weft_status take_bytes(bench *b, request *r) {
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
        bool data = r->body && strncmp(line, "data: {", 7) == 0;
        WEFT_AUTO_DECREF json_t *event = data ? json_loads(line + 6, JSON_ALLOW_NUL, NULL) : NULL;
        const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
        if (data && (!event || json_object_get(event, "error"))) r->status = 0;
        if (r->body && strcmp(line, "data: [DONE]") == 0) r->ended = true;
        if (!r->body && strncmp(line, "HTTP/", 5) == 0) r->status = atoi(line + strcspn(line, " "));
        r->body |= !*line;
        tokens += (int64_t)json_array_size(json_object_get(choice, "token_ids"));
        line = end + 1;
    }
    /* Tokens that came together: each took its part of the time since the last. */
    double now = weft_clock();
    if (tokens != 0) {
        for (int64_t i = 0; b->between && r->tokens > 0 && i < tokens; i++)
            bench_samples_add(b->between, (now - r->last) / (double)tokens);
        if (r->tokens == 0) r->first = now;
        r->last = now;
        r->tokens += tokens;
    }
    r->bytes -= (size_t)(line - r->in);
    memmove(r->in, line, r->bytes);
    if (got <= 0 && !r->ended && r->status == 200) r->status = 0;
    if (got <= 0 || r->ended) end_request(r);
    return WEFT_OK;
}

/* Sends what is due, and waits until something comes or the next is due, a tenth of a second at most. */
static weft_status turn(bench *b) {
    WEFT_ROOM(struct pollfd, polled, b->count + 1, "bench: no memory");
    WEFT_ROOM(int64_t, whose, b->count + 1, "bench: no memory");
    double now = weft_clock(), wait = 0.1;
    int64_t n = 0;
    for (int64_t i = 0; i < b->count; i++) {
        request *r = b->requests + i;
        if (!r->ended && !r->socket && r->due <= now) WEFT_TRY(send_request(b, i));
        if (!r->ended && !r->socket && r->due - now < wait) wait = r->due - now;
        if (!r->socket) continue;
        whose[n] = i;
        polled[n++] = (struct pollfd){.fd = r->socket, .events = POLLIN};
    }
    if (poll(polled, (nfds_t)n, (int)(1e3 * wait)) < 0 && errno != EINTR)
        return weft_fail(WEFT_EIO, "bench: poll: %s", strerror(errno));
    for (int64_t i = 0; i < n; i++)
        if (polled[i].revents) WEFT_TRY(take_bytes(b, b->requests + whose[i]));
    return WEFT_OK;
}

static void end_load(bench *b) {
    for (int64_t i = 0; i < b->count; i++)
        end_request(b->requests + i);
    free(weft_steal(&b->requests));
    b->count = 0;
}

static weft_status open_load(bench *b, int64_t count, bench_samples *between) {
    end_load(b);
    b->round++;
    b->between = between;
    WEFT_ROOM_AT(b->requests, count, "bench: no memory");
    b->count = count;
    return WEFT_OK;
}

static weft_status run_to_end(bench *b) {
    for (int64_t i = 0; i < b->count; i++)
        while (!b->requests[i].ended)
            WEFT_TRY(turn(b));
    return WEFT_OK;
}

static json_t *quantiles(const bench_samples *s) {
    return weft_json_make("p50:f p95:f p99:f", bench_quantile(s, 0.5), bench_quantile(s, 0.95),
                          bench_quantile(s, 0.99));
}

static void print_quantiles(bench_table *t, const bench_samples *s) {
    bench_cells(t, "%.2f|%.2f|%.2f", 1e3 * bench_quantile(s, 0.5), 1e3 * bench_quantile(s, 0.95),
                1e3 * bench_quantile(s, 0.99));
}

static weft_status measure_rate(bench *b, bench_table *t, int row) {
    const bench_options *o = b->opt;
    WEFT_AUTO(bench_samples_free) bench_samples first = {0}, between = {0};
    double rate = MILLI * (double)b->rates[row], end = 0;
    int64_t done = 0, refused = 0, good = 0, tokens = 0;
    WEFT_TRY(open_load(b, o->requests, &between));
    /* Arrivals: the times between them are exponential. */
    int64_t n = b->count;
    WEFT_ROOM(double, drawn, 3 * n, "bench: no memory");
    weft_random_uniform((uint64_t)b->opt->seed, (uint32_t)row, weft_random_site("bench.serve"), 0,
                        3 * n, drawn);
    double due = weft_clock();
    for (int64_t i = 0; i < n; i++) {
        due -= log(1 - drawn[3 * i]) / rate;
        b->requests[i] = (request){.due = due,
                                   .prompt = b->prompts[(int)(drawn[3 * i + 1] * b->n_prompts)],
                                   .most = b->most[(int)(drawn[3 * i + 2] * b->n_most)]};
    }
    WEFT_TRY(run_to_end(b));
    for (int64_t i = 0; i < o->requests; i++) {
        const request *r = b->requests + i;
        refused += r->status == 429;
        if (r->status != 200) continue;
        double wait = r->first - r->due, rest = r->last - r->first;
        done++;
        tokens += r->tokens;
        end = fmax(end, r->last);
        if (r->tokens) bench_samples_add(&first, wait);
        good += r->tokens && wait <= 1e-3 * (double)o->good_first &&
                rest <= 1e-3 * (double)o->good_between * (double)(r->tokens - 1);
    }
    *b->failed += (int)(o->requests - done - refused);
    double seconds = fmax(end - b->requests[0].due, 1e-9);
    double goodput = (double)good / (double)o->requests;
    bench_cells(t, "%g|%lld|%lld|%.1f|%.2f", rate, (long long)done, (long long)refused,
                (double)tokens / seconds, (double)done / seconds);
    print_quantiles(t, &first);
    print_quantiles(t, &between);
    bench_cells(t, "%.0f%%", 100 * goodput);
    weft_json_append(b->rows,
                     "rate:f requests:I done:I refused:I tokens:I seconds:f tokens_per_s:f "
                     "requests_per_s:f first_token_seconds:o between_tokens_seconds:o goodput:f",
                     rate, o->requests, done, refused, tokens, seconds, (double)tokens / seconds,
                     (double)done / seconds, quantiles(&first), quantiles(&between), goodput);
    return WEFT_OK;
}

/* A turn in which texts that have ended begin again. */
static weft_status turn_streams(bench *b) {
    const bench_options *o = b->opt;
    for (int64_t i = 0; i < o->streams; i++) {
        request *r = b->requests + i;
        if (!r->ended) continue;
        if (r->status != 200)
            return WEFT_BAD_INPUT("a text beside the long prompt ended with status %d; the server "
                                  "must take --streams texts and one more at once",
                                  r->status);
        *r = (request){.prompt = r->prompt, .most = r->most};
    }
    return turn(b);
}

static weft_status measure_long(bench *b) {
    const bench_options *o = b->opt;
    WEFT_AUTO(bench_samples_free) bench_samples usual = {0}, during = {0};
    double sums[2] = {0};
    WEFT_TRY(open_load(b, o->streams + 1, NULL));
    request *last = b->requests + o->streams;
    for (int64_t i = 0; i < o->streams; i++)
        b->requests[i] = (request){.prompt = SHORT, .most = 1 << 20};
    *last = (request){.due = INFINITY, .prompt = o->long_prompt, .most = 1};
    for (int64_t i = 0; i < o->streams; i++)
        while (!b->requests[i].tokens)
            WEFT_TRY(turn_streams(b));
    b->between = &usual;
    while (usual.count < (size_t)(QUIET * o->streams))
        WEFT_TRY(turn_streams(b));
    b->between = &during;
    last->due = weft_clock();
    while (!last->ended || during.count == 0) /* all texts may just have begun again */
        WEFT_TRY(turn_streams(b));
    if (last->status != 200)
        return WEFT_BAD_INPUT("the server answers a prompt of %lld tokens with status %d; --long 0 "
                              "leaves it out, fewer may fit its context",
                              (long long)o->long_prompt, last->status);
    /* As usual before it and after it, as often: a machine's pace changes. */
    b->between = &usual;
    while (usual.count < during.count)
        WEFT_TRY(turn_streams(b));
    for (size_t i = 0; i < usual.count; i++)
        sums[0] += usual.value[i] / (double)usual.count;
    for (size_t i = 0; i < during.count; i++)
        sums[1] += during.value[i] / (double)during.count;
    bench_table t;
    if (o->table) fputc('\n', o->table);
    bench_table_start(&t, o->table,
                      "long prompt:11|streams:7|first ms:9|usual p50:9|p95:8|p99:8|"
                      "meanwhile p50:13|p95:8|p99:8|ratio:6");
    bench_cells(&t, "%lld|%lld|%.1f", (long long)o->long_prompt, (long long)o->streams,
                1e3 * (last->first - last->due));
    print_quantiles(&t, &usual);
    print_quantiles(&t, &during);
    bench_cells(&t, "%.2f", sums[1] / sums[0]);
    b->long_row = weft_json_make("prompt:I streams:I first_token_seconds:f usual_seconds:o "
                                 "meanwhile_seconds:o ratio:f",
                                 o->long_prompt, o->streams, last->first - last->due,
                                 quantiles(&usual), quantiles(&during), sums[1] / sums[0]);
    return WEFT_OK;
}

static void end_bench(bench *b) {
    end_load(b);
    json_decref(b->rows);
    json_decref(b->long_row);
    if (*b->failed)
        fprintf(stderr, "requests that were neither answered nor refused: %d\n", *b->failed);
}

weft_status bench_serve_table(const bench_options *o, int *failed) {
    WEFT_AUTO(end_bench) bench run = {.opt = o, .rows = json_array(), .failed = failed};
    bench *b = &run;
    *failed = 0;
    WEFT_TRY(bench_list_read(o->rates, "rates", MILLI, b->rates, &b->n_rates));
    WEFT_TRY(bench_list_read(o->prompts, "prompts", 1, b->prompts, &b->n_prompts));
    WEFT_TRY(bench_list_read(o->tokens, "tokens", 1, b->most, &b->n_most));
    /* One request of each length of prompt: what a server makes when it first meets one is no part of the rows. */
    for (int i = 0; i < b->n_prompts; i++) {
        WEFT_TRY(open_load(b, 1, NULL));
        *b->requests = (request){.prompt = b->prompts[i], .most = 2};
        WEFT_TRY(run_to_end(b));
        if (b->requests->status != 200)
            return WEFT_BAD_INPUT("the server answers a prompt of %lld tokens with status %d; "
                                  "--prompts and --tokens must fit its context",
                                  (long long)b->prompts[i], b->requests->status);
    }
    if (o->table)
        fprintf(o->table,
                "serve: %s, %lld requests a row, prompts of %s tokens, texts of %s, seed %lld; "
                "times in ms; good: the first token within %g ms, then one in %g on average\n\n",
                o->model, (long long)o->requests, o->prompts, o->tokens, (long long)o->seed,
                (double)o->good_first, (double)o->good_between);
    bench_table t;
    bench_table_start(&t, o->table,
                      "rate:6|done:5|refused:7|tokens/s:9|done/s:7|first p50:9|p95:8|p99:8|"
                      "between p50:11|p95:8|p99:8|good:5");
    for (int i = 0; i < b->n_rates; i++)
        WEFT_TRY(measure_rate(b, &t, i));
    if (o->long_prompt) WEFT_TRY(measure_long(b));
    if (!o->json) return WEFT_OK;
    json_t *all = weft_json_make(
        "version:s model:s seed:I prompts:s tokens:s good_first_seconds:f good_between_seconds:f "
        "rows:O long_prompt:O",
        weft_version(), o->model, o->seed, o->prompts, o->tokens, 1e-3 * (double)o->good_first,
        1e-3 * (double)o->good_between, b->rows, b->long_row);
    return bench_write_json(o->json, all);
}
