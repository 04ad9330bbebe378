/* The server of the live page. A thread for each connection, so that a stream of events may simply wait for the next
 * look; all are of this machine. What many are to be told is composed once, and they share the text. */
#include "watch/live.h"

#ifdef WEFT_HAVE_MICROHTTPD
#include "base/embed.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "report/page.h"
#include "serve/http.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <sys/resource.h>

enum {
    LOOK_MS = 1000,
    PAUSE_MS = 2,        /* between looks at files that are long: others may ask */
    BEATS = 15,          /* looks without news after which a stream says that it is alive */
    BODY_MOST = 1 << 18, /* a note and tags, as long as they may be, each sign written as two */
    TAIL_MOST = 16384,
    BLOCK = 16384,
    CONNECTIONS_MOST = 256,
    STACK_BYTES = 1 << 21, /* a list in a list is read by recursion, 2,048 deep */
    IDLE_SECONDS = 60,
    REQUEST_SECONDS = 30
};

/* The GPUs of this machine as their driver tells of them, by NVIDIA's management library (NVML), where the driver has
 * brought it; nothing is linked against it. Its interface has been stable since version 2 of these functions; what is
 * used of it is declared here. WEFT_NVML names another library, for tests. */
enum { GPUS_MOST = 64, NAME_ROOM = 96, CLOCK_SM = 1 };

typedef struct {
    unsigned long long total, free, used;
} nvml_memory;

typedef struct {
    unsigned gpu, memory;
} nvml_utilization;

typedef struct nvml_device nvml_device;

#define NVML_FUNCTIONS(F)                                                                          \
    F(init, "nvmlInit_v2", void)                                                                   \
    F(shutdown, "nvmlShutdown", void)                                                              \
    F(count, "nvmlDeviceGetCount_v2", unsigned *count)                                             \
    F(handle, "nvmlDeviceGetHandleByIndex_v2", unsigned index, nvml_device **out)                  \
    F(name, "nvmlDeviceGetName", nvml_device *d, char *out, unsigned room)                         \
    F(power, "nvmlDeviceGetPowerUsage", nvml_device *d, unsigned *milliwatts)                      \
    F(clock, "nvmlDeviceGetClockInfo", nvml_device *d, int which, unsigned *mhz)                   \
    F(memory, "nvmlDeviceGetMemoryInfo", nvml_device *d, nvml_memory *out)                         \
    F(utilization, "nvmlDeviceGetUtilizationRates", nvml_device *d, nvml_utilization *out)
#define NVML_MEMBER(name, symbol, ...) int (*name)(__VA_ARGS__);
#define NVML_SYMBOL(name, symbol, ...) symbol,

static const char *const symbols[] = {NVML_FUNCTIONS(NVML_SYMBOL)};
enum { FUNCTIONS = WEFT_COUNT(symbols) };

typedef struct {
    void *library;
    struct {
        NVML_FUNCTIONS(NVML_MEMBER)
    } f;
    nvml_device *devices[GPUS_MOST];
    unsigned n;
} gpus;

static void close_gpus(gpus *g) {
    if (g && g->n) g->f.shutdown();
    if (g && g->library) dlclose(g->library);
    free(g);
}

WEFT_ENDED_BY(close_gpus, gpus)

/* NULL: there are none, or no memory. */
static gpus *open_gpus(void) {
    WEFT_AUTO(close_gpus_at) gpus *g = calloc(1, sizeof *g);
    const char *path = getenv("WEFT_NVML");
    void *found[FUNCTIONS];
    unsigned count = 0;
    if (g) g->library = dlopen(path ? path : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!g || !g->library) return NULL;
    for (int i = 0; i < FUNCTIONS; i++)
        if (!(found[i] = dlsym(g->library, symbols[i]))) return NULL;
    memcpy(&g->f, found, sizeof found);
    if (g->f.init() != 0) return NULL;
    if (g->f.count(&count) != 0) count = 0;
    for (unsigned i = 0; i < count && g->n < GPUS_MOST; i++)
        if (g->f.handle(i, &g->devices[g->n]) == 0) g->n++;
    if (g->n) return weft_steal(&g);
    g->f.shutdown();
    return NULL;
}

/* {"gpus": [{"name", "watts", "mhz", "used_bytes", "bytes", "percent"}]}, null where the driver does not say. */
static json_t *gpus_json(const gpus *g) {
    json_t *list = json_array();
    for (unsigned i = 0; i < g->n; i++) {
        nvml_device *d = g->devices[i];
        char name[NAME_ROOM] = "";
        unsigned milliwatts = 0, mhz = 0;
        nvml_memory memory = {0};
        nvml_utilization use = {0};
        if (g->f.name(d, name, sizeof name) != 0) snprintf(name, sizeof name, "GPU");
        bool power = g->f.power(d, &milliwatts) == 0, clock = g->f.clock(d, CLOCK_SM, &mhz) == 0;
        bool room = g->f.memory(d, &memory) == 0, used = g->f.utilization(d, &use) == 0;
        weft_json_append(list, "name:s watts:f mhz:f used_bytes:f bytes:f percent:f", name,
                         power ? milliwatts / 1000.0 : NAN, clock ? (double)mhz : NAN,
                         room ? (double)memory.used : NAN, room ? (double)memory.total : NAN,
                         used ? (double)use.gpu : NAN);
    }
    return weft_json_make("gpus:o", list);
}

/* What is new after one change up to another, as an event of a stream: a JSON string, whose count keeps it as long as
 * somebody has it. */
#define NEWS "event: news\ndata: "
typedef struct {
    json_t *event;
    int64_t after, version;
} news;

typedef struct {
    weft_live told; /* what weft_live_open gives */
    weft_live_options options;
    weft_watched *runs;
    gpus *gpus;
    char *page;
    struct MHD_Daemon *daemon;
    weft_connections *connections;
    pthread_t thread;
    pthread_mutex_t lock; /* of all below, and of the runs */
    pthread_cond_t news;  /* a look was taken, or the end */
    int64_t looks;
    news all, changes; /* those last composed: everything, and after a change */
    bool closing, started, full;
} live;

typedef struct {
    char *body;
    size_t bytes, room;
    bool large;
} request;

typedef struct {
    live *watch;
    int64_t version, looks, quiet;
    json_t *parts[2]; /* texts to be sent: news, and what comes after them; NULL: nothing */
    size_t at;        /* so many bytes of all of it are sent */
} stream;

/* The page from its files, which stay HTML, JavaScript and CSS: whole, and it asks nobody but its own
 * server. malloc'd; NULL: no memory. */
WEFT_EMBED("weft_live_body", "src/watch/live.html");
WEFT_EMBED("weft_live_script", "src/watch/live.js");
WEFT_EMBED("weft_live_style", "src/watch/live.css");

static void *look(void *context) {
    live *w = context;
    WEFT_LOCK(&w->lock);
    while (!w->closing) {
        bool all = weft_watched_look(w->runs);
        w->looks++;
        if (!w->full && (w->full = weft_watched_is_full(w->runs)))
            weft_log(WEFT_LOG_WARN, "watch: there are more runs than are shown, the first %d",
                     weft_watched_count(w->runs));
        pthread_cond_broadcast(&w->news);
        weft_http_wait(&w->news, &w->lock, &w->closing, all ? LOOK_MS : PAUSE_MS);
    }
    return NULL;
}

/* What is new after a change, for one more user. NULL: nothing, or no memory. The lock is held. */
static json_t *take_news(live *w, int64_t after) {
    news *kept = after ? &w->changes : &w->all;
    int64_t version = weft_watched_version(w->runs);
    if (!kept->event || kept->after != after || kept->version != version) {
        WEFT_AUTO_FREE char *text = weft_json_line(weft_watched_news(w->runs, after));
        json_decref(kept->event);
        *kept = (news){text ? json_sprintf(NEWS "%s\n\n", text) : NULL, after, version};
    }
    return json_incref(kept->event);
}

static enum MHD_Result queue(struct MHD_Connection *c, unsigned status, struct MHD_Response *r,
                             const char *type) {
    if (!r) return MHD_NO;
    MHD_add_response_header(r, "Content-Type", type);
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(r, "Cache-Control", "no-store");
    MHD_add_response_header(r, "Content-Security-Policy", WEFT_HTTP_POLICY);
    enum MHD_Result done = MHD_queue_response(c, status, r);
    MHD_destroy_response(r);
    return done;
}

/* A text, which is taken. */
static enum MHD_Result send_text(struct MHD_Connection *c, unsigned status, const char *type,
                                 char *text) {
    if (!text) return MHD_NO;
    struct MHD_Response *r =
        MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    if (!r) free(text);
    return queue(c, status, r, type);
}

static enum MHD_Result send_json(struct MHD_Connection *c, unsigned status, json_t *object) {
    return send_text(c, status, "application/json", weft_json_line(object));
}

static enum MHD_Result send_error(struct MHD_Connection *c, unsigned status, const char *why) {
    return send_json(c, status, weft_json_make("error:s", why));
}

/* The next bytes of the parts; 0: they are all sent. */
static size_t copy_next(stream *s, char *out, size_t room) {
    size_t at = s->at, n = 0;
    for (int i = 0; i < 2 && n == 0; i++) {
        size_t bytes = json_string_length(s->parts[i]);
        if (at < bytes) {
            n = bytes - at < room ? bytes - at : room;
            memcpy(out, json_string_value(s->parts[i]) + at, n);
        }
        at -= n ? 0 : bytes;
    }
    s->at += n;
    return n;
}

/* The lock is held. */
static void forget_sent(stream *s) {
    for (int i = 0; i < 2; i++) {
        json_decref(s->parts[i]);
        s->parts[i] = NULL;
    }
}

static ssize_t read_stream(void *context, uint64_t at, char *out, size_t room) {
    stream *s = context;
    live *w = s->watch;
    size_t n;
    (void)at;
    WEFT_LOCK(&w->lock);
    while ((n = copy_next(s, out, room)) == 0 && !w->closing) {
        forget_sent(s);
        while (s->looks == w->looks && !w->closing)
            pthread_cond_wait(&w->news, &w->lock);
        if (w->closing) break;
        /* What is new. */
        int64_t version = weft_watched_version(w->runs);
        s->at = 0;
        if (s->version == 0 || version > s->version) {
            s->parts[0] = take_news(w, s->version);
            s->version = version > 0 ? version : 1;
            s->quiet = 0;
        }
        WEFT_AUTO_FREE char *machine = w->gpus ? weft_json_line(gpus_json(w->gpus)) : NULL;
        if (machine)
            s->parts[1] = json_sprintf("event: machine\ndata: %s\n\n", machine);
        else if (!s->parts[0] && s->quiet++ % BEATS == BEATS - 1)
            s->parts[1] = json_string(": alive\n\n");
        s->looks = w->looks;
    }
    return n ? (ssize_t)n : MHD_CONTENT_READER_END_OF_STREAM;
}

static void free_stream(void *context) {
    stream *s = context;
    WEFT_LOCK(&s->watch->lock);
    forget_sent(s);
    free(s);
}

static enum MHD_Result send_stream(live *w, struct MHD_Connection *c) {
    stream *s = calloc(1, sizeof *s);
    if (!s) return MHD_NO;
    s->watch = w;
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, read_stream, s, free_stream);
    if (!r) free_stream(s);
    return queue(c, 200, r, "text/event-stream");
}

static enum MHD_Result send_runs(live *w, struct MHD_Connection *c) {
    pthread_mutex_lock(&w->lock);
    json_t *all = take_news(w, 0);
    size_t head = strlen(NEWS), end = strlen("\n\n"), bytes = json_string_length(all);
    char *text = all ? strndup(json_string_value(all) + head, bytes - head - end) : NULL;
    json_decref(all);
    pthread_mutex_unlock(&w->lock);
    return send_text(c, 200, "application/json", text);
}

static enum MHD_Result send_log(live *w, struct MHD_Connection *c) {
    const char *id = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "id");
    char *end = "";
    long long number = id ? strtoll(id, &end, 10) : -1;
    if (!id || !*id || *end) return send_error(c, 400, "id=N names a run");
    pthread_mutex_lock(&w->lock);
    bool there = number >= 0 && number < weft_watched_count(w->runs);
    bool samples = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "samples");
    char *text = weft_watched_tail(w->runs, number, samples, TAIL_MOST);
    pthread_mutex_unlock(&w->lock);
    if (!there) return send_error(c, 404, "there is no such run");
    return send_text(c, 200, "text/plain; charset=utf-8", text ? text : strdup(""));
}

/* A page from elsewhere cannot send JSON here without asking first, and is told no. */
static enum MHD_Result take_note(live *w, struct MHD_Connection *c, const request *r) {
    const char *type = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Content-Type");
    if (r->large) return send_error(c, 413, "the note is too long");
    if (!type || strncmp(type, "application/json", 16) != 0)
        return send_error(c, 415, "the body must be JSON");
    WEFT_AUTO_DECREF json_t *object =
        weft_json_read(r->body ? r->body : "", r->bytes, JSON_REJECT_DUPLICATES, NULL);
    const json_t *id = json_object_get(object, "id");
    const char *note = json_string_value(json_object_get(object, "note"));
    const char *tags = json_string_value(json_object_get(object, "tags"));
    weft_status status = WEFT_EINPUT;
    pthread_mutex_lock(&w->lock);
    if (json_is_integer(id) && note && tags)
        status = weft_watched_note(w->runs, json_integer_value(id), note, tags);
    else
        WEFT_BAD_INPUT("a note is {\"id\": N, \"note\": TEXT, \"tags\": TEXT}");
    pthread_mutex_unlock(&w->lock);
    if (status == WEFT_OK) return send_json(c, 200, json_object());
    return send_error(c, status == WEFT_EINPUT ? 400 : 500, weft_error_message());
}

static enum MHD_Result receive(void *context, struct MHD_Connection *c, const char *url,
                               const char *method, const char *version, const char *data,
                               size_t *bytes, void **own) {
    (void)version;
    if (!*own) {
        *own = calloc(1, sizeof(request));
        return *own ? MHD_YES : MHD_NO;
    }
    request *r = *own;
    if (*bytes) {
        r->large = r->large || r->bytes + *bytes > BODY_MOST ||
                   !weft_grow(&r->body, &r->room, r->bytes + *bytes);
        if (!r->large) memcpy(r->body + r->bytes, data, *bytes);
        r->bytes += r->large ? 0 : *bytes;
        *bytes = 0;
        return MHD_YES;
    }
    live *w = context;
    weft_connection *connection = weft_connection_of(c);
    if (!connection) return MHD_NO;
    /* It came whole, and in time; a stream lasts as long as its client. */
    weft_connection_begin(w->connections, connection,
                          strcmp(url, "/api/events") == 0 ? INFINITY : IDLE_SECONDS);
    const char *host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Host");
    bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    if (host && weft_http_is_local(w->options.host) && !weft_http_is_local(host))
        return send_error(c, 403, "this page is for this machine alone; call it 127.0.0.1");
    if (strcmp(url, "/api/note") == 0)
        return strcmp(method, "POST") == 0 ? take_note(w, c, r)
                                           : send_error(c, 405, "a note is sent by POST");
    if (!get) return send_error(c, 405, "there is nothing to send to");
    if (strcmp(url, "/") == 0)
        return send_text(c, 200, "text/html; charset=utf-8", strdup(w->page));
    if (strcmp(url, "/api/runs") == 0) return send_runs(w, c);
    if (strcmp(url, "/api/events") == 0) return send_stream(w, c);
    if (strcmp(url, "/api/log") == 0) return send_log(w, c);
    return send_error(c, 404, "there are /, /api/runs, /api/events, /api/log and /api/note");
}

static void end_request(void *context, struct MHD_Connection *c, void **own,
                        enum MHD_RequestTerminationCode how) {
    request *r = *own;
    live *w = context;
    weft_connection *connection = weft_connection_of(c);
    (void)how;
    if (connection) weft_connection_end(w->connections, connection);
    if (r) WEFT_FREE(r->body, r);
    *own = NULL;
}

/* Of the files that may still be opened, half are left for what is looked at. */
static unsigned most_connections(void) {
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur > 4 * CONNECTIONS_MOST)
        return CONNECTIONS_MOST;
    unsigned left = 0;
    for (int file = 0; file < (int)files.rlim_cur; file++)
        left += fcntl(file, F_GETFD) < 0;
    return left / 2 < CONNECTIONS_MOST ? left / 2 : CONNECTIONS_MOST;
}

static void close_live(live **w) {
    weft_live_close(*w ? &(*w)->told : NULL);
}

weft_status weft_live_open(const weft_live_options *o, weft_watched *runs, weft_live **out) {
    *out = NULL;
    WEFT_AUTO(close_live) live *w = calloc(1, sizeof *w);
    if (!w) return weft_no_memory("watch");
    w->options = *o;
    w->runs = runs;
    pthread_mutex_init(&w->lock, NULL);
    weft_http_condition(&w->news);
    extern const char weft_live_body[], weft_live_script[], weft_live_style[];
    if (asprintf(&w->page,
                 "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                 "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                 "<link rel=\"icon\" href=\"data:,\">\n"
                 "<title>weft watch</title>\n<style>\n%s%s%s</style></head>\n<body>\n%s"
                 "<script>\n%s</script>\n<script>\n%s</script>\n</body></html>\n",
                 weft_page_style, weft_charts_style, weft_live_style, weft_live_body,
                 weft_charts_script, weft_live_script) < 0)
        w->page = NULL;
    w->gpus = open_gpus();
    if (!w->page) return weft_no_memory("watch");
    weft_watched_look(runs);
    w->told.found = weft_watched_count(runs);
    int listening;
    bool six = false;
    double seconds = o->request_seconds;
    WEFT_TRY(weft_connections_open(seconds > 0 ? seconds : REQUEST_SECONDS, &w->connections));
    WEFT_TRY(weft_http_listen(o->host, o->port, &listening, &six));
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION |
                     MHD_USE_ERROR_LOG | (six ? MHD_USE_IPv6 : 0u);
    w->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, receive, w, MHD_OPTION_EXTERNAL_LOGGER, weft_http_log, NULL,
        MHD_OPTION_LISTEN_SOCKET, listening, MHD_OPTION_NOTIFY_COMPLETED, end_request, w,
        MHD_OPTION_NOTIFY_CONNECTION, weft_connections_note, w->connections,
        MHD_OPTION_CONNECTION_LIMIT, most_connections(), MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)IDLE_SECONDS, MHD_OPTION_THREAD_STACK_SIZE, (size_t)STACK_BYTES, MHD_OPTION_END);
    if (!w->daemon) {
        close(listening);
        return weft_fail(WEFT_EIO,
                         "watch: libmicrohttpd does not start; WEFT_LOG=debug tells more");
    }
    w->told.port = MHD_get_daemon_info(w->daemon, MHD_DAEMON_INFO_BIND_PORT)->port;
    int error = pthread_create(&w->thread, NULL, look, w);
    if (error) return weft_fail(WEFT_EIO, "watch: no thread: %s", strerror(error));
    w->started = true;
    *out = &((live *)weft_steal(&w))->told;
    return WEFT_OK;
}

/* Streams end when they see the end; then the daemon can. */
void weft_live_close(weft_live *page) {
    live *w = (live *)(void *)page;
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_cond_broadcast(&w->news);
    pthread_mutex_unlock(&w->lock);
    if (w->daemon) MHD_stop_daemon(w->daemon);
    weft_connections_close(w->connections);
    if (w->started) pthread_join(w->thread, NULL);
    json_decref(w->all.event);
    json_decref(w->changes.event);
    pthread_cond_destroy(&w->news);
    pthread_mutex_destroy(&w->lock);
    close_gpus(w->gpus);
    WEFT_FREE(w->page, w);
}

#else

weft_status weft_live_open(const weft_live_options *o, weft_watched *runs, weft_live **out) {
    (void)o, (void)runs;
    *out = NULL;
    return weft_fail(WEFT_EMISSING,
                     "this build has no live page: it was made without libmicrohttpd; "
                     "scripts/setup optional installs it, then make configure");
}

void weft_live_close(weft_live *w) {
    (void)w;
}
#endif
