/* The server, and one request and its answer from the first byte of the one to the last of the other.
 *
 * libmicrohttpd calls for a request's head, for each piece of its body, and once more when it is whole. A request that
 * is wrong is still read to its end (within limits), so that the client gets to read what is wrong with it.
 *
 * While the worker works the connection is suspended, under the job's lock: either the worker has something new
 * already, or it sees that somebody waits and resumes the connection. A connection that is suspended does not end, so
 * the worker never resumes one that is gone. */
#include "serve/server.h"

#ifdef WEFT_HAVE_MICROHTTPD
#include "base/clock.h"
#include "base/embed.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "serve/http.h"

#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>

/* The page at /: a playground for the models in a browser. It asks nobody else for anything. */
WEFT_EMBED("weft_page_html", "src/serve/page.html");
extern const char weft_page_html[];

struct weft_server {
    weft_server_options options;
    struct served {
        weft_served_model is;
        weft_generator_stats size; /* vocabulary and context */
        weft_template *chat;
        weft_worker *worker;
    } models[WEFT_SERVED_MOST];
    int n_models;
    char *page;
    weft_server_metrics *metrics;
    weft_connections *connections;
    struct MHD_Daemon *daemon;
    int listening; /* taken back from the daemon; -1: it is the daemon's */
    int64_t started;
    atomic_bool draining;
};

/* Of a body that is too large, so much more is read before its connection is closed. */
enum { DISCARD_MOST = 64 << 20, BLOCK = 16384 };

typedef struct {
    weft_server *server;
    weft_connection *connection;
    struct MHD_Connection *mhd;
    weft_path_name path;
    bool post, begun;
    double start;
    int status; /* that was sent */
    char *body;
    size_t bytes, room, discarded;
    weft_refusal refusal; /* known before the body has come */
    int retry_after;
    const struct served *model; /* the job's */
    weft_job *job;
    char *events; /* to be sent */
    size_t event_bytes, event_at;
} exchange;

static const char json_media[] = "application/json";

/* Sends a response, which is taken; NULL: no memory. */
static enum MHD_Result queue(exchange *x, int status, const char *type, struct MHD_Response *r) {
    if (!r) return MHD_NO;
    MHD_add_response_header(r, "Content-Type", type);
    x->status = status;
    enum MHD_Result done = MHD_queue_response(x->mhd, (unsigned)status, r);
    MHD_destroy_response(r);
    return done;
}

/* Sends a text, which is taken: malloc'd, or constant where `keep`. */
static enum MHD_Result send_text(exchange *x, int status, const char *type, char *text, bool keep) {
    if (!text) return MHD_NO;
    struct MHD_Response *r = MHD_create_response_from_buffer(
        strlen(text), text, keep ? MHD_RESPMEM_PERSISTENT : MHD_RESPMEM_MUST_FREE);
    if (!r) {
        if (!keep) free(text);
        return MHD_NO;
    }
    char seconds[16];
    snprintf(seconds, sizeof seconds, "%d", x->retry_after);
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    if (keep) MHD_add_response_header(r, "Content-Security-Policy", WEFT_HTTP_POLICY);
    if (status == 429) MHD_add_response_header(r, "Retry-After", seconds);
    if (status == 401) MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (status == 405) MHD_add_response_header(r, "Allow", x->post ? "GET, HEAD" : "POST");
    if (x->discarded || status >= 500) MHD_add_response_header(r, "Connection", "close");
    return queue(x, status, type, r);
}

static enum MHD_Result send_refusal(exchange *x, const weft_refusal *why) {
    return send_text(x, why->status, json_media, weft_refusal_json(why), false);
}

/* The model of that name, or the first where none is given; NULL: the refusal says so. */
static const struct served *find_model(exchange *x, const char *name) {
    const weft_server *s = x->server;
    for (int i = 0; i < s->n_models; i++)
        if (!name || strcmp(name, s->models[i].is.name) == 0) return s->models + i;
    weft_refuse(&x->refusal, 404, "model_not_found", "model",
                "there is no model '%.64s' here; GET /v1/models names what there is, such as "
                "'%.64s'",
                name, s->models[0].is.name);
    return NULL;
}

/* What a path and a method are for; false: nothing, and the refusal says so. */
static bool find_path(exchange *x, const char *url, const char *method) {
    bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    x->path = WEFT_PATH_OTHER;
    x->post = strcmp(method, "POST") == 0;
    for (int i = 0; i < WEFT_PATH_OTHER; i++) {
        bool post = i <= WEFT_PATH_CHAT;
        if (strcmp(url, weft_path_names[i]) != 0) continue;
        x->path = (weft_path_name)i;
        if (post ? x->post : get) return true;
        x->post = !post;
        return weft_refuse(&x->refusal, 405, NULL, NULL, "%s takes %s, not %.16s", url,
                           post ? "POST" : "GET", method);
    }
    if (get && strncmp(url, "/v1/models/", 11) == 0) {
        x->path = WEFT_PATH_MODELS;
        return find_model(x, url + 11) != NULL;
    }
    return weft_refuse(&x->refusal, 404, NULL, NULL,
                       "there is no %.64s here; there are /v1/completions, /v1/chat/completions, "
                       "/v1/models, /health, /metrics and /",
                       url);
}

static const char *header(const exchange *x, const char *name) {
    return MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, name);
}

static bool refuse_large(exchange *x) {
    return weft_refuse(&x->refusal, 413, NULL, NULL,
                       "the body has more than the %lld bytes that the server takes; send less",
                       (long long)x->server->options.body_bytes);
}

/* What can be said of a request by its head. */
static bool check_head(exchange *x, const char *url, const char *method) {
    const weft_server_options *o = &x->server->options;
    const char *type = header(x, "Content-Type"), *length = header(x, "Content-Length");
    if (!find_path(x, url, method)) return false;
    /* A page from elsewhere can have its own name lead to this machine (DNS rebinding), and a
     * browser then takes the server for a part of that page's site. The request's name tells. */
    const char *host = header(x, "Host");
    if (!o->key && host && weft_http_is_local(o->host) && !weft_http_is_local(host))
        return weft_refuse(
            &x->refusal, 403, NULL, NULL,
            "the server is for this machine alone, not for '%.64s'; call it 127.0.0.1 or "
            "localhost, or start it with a key",
            host);
    bool open = x->path == WEFT_PATH_HEALTH || x->path == WEFT_PATH_PAGE;
    if (o->key && !open && !weft_key_matches(o->key, header(x, "Authorization")))
        return weft_refuse(&x->refusal, 401, "invalid_api_key", NULL,
                           "the API key is missing or wrong; send it as 'Authorization: Bearer "
                           "KEY'");
    if (!x->post) return true;
    if (atomic_load(&x->server->draining))
        return weft_refuse(&x->refusal, 503, NULL, NULL, "the server is stopping; try another one");
    if (!type || strncasecmp(type, json_media, sizeof json_media - 1) != 0)
        return weft_refuse(&x->refusal, 415, NULL, NULL,
                           "the body must be JSON; send 'Content-Type: application/json'");
    return length && strtoll(length, NULL, 10) > o->body_bytes ? refuse_large(x) : true;
}

static json_t *model_json(const weft_server *s, const struct served *m) {
    return json_pack("{s:s, s:s, s:I, s:s, s:I}", "id", m->is.name, "object", "model", "created",
                     (json_int_t)s->started, "owned_by", "weft", "context",
                     (json_int_t)m->size.context);
}

static enum MHD_Result send_models(exchange *x, const char *name) {
    const weft_server *s = x->server;
    if (name)
        return send_text(x, 200, json_media, weft_json_line(model_json(s, find_model(x, name))),
                         false);
    WEFT_JSON_LIST(list, i, s->n_models, model_json(s, s->models + i));
    json_t *all = weft_json_make("object:s data:o", "list", list);
    return send_text(x, 200, json_media, weft_json_line(all), false);
}

static enum MHD_Result send_metrics(exchange *x) {
    const weft_server *s = x->server;
    const char *names[WEFT_SERVED_MOST];
    weft_server_metrics_now now = {.models = names, .n_models = s->n_models};
    int64_t busy;
    for (int i = 0; i < s->n_models; i++) {
        names[i] = s->models[i].is.name;
        weft_worker_count(s->models[i].worker, &now.generator, &now.queued);
    }
    weft_connections_count(x->server->connections, &now.connections, &busy);
    return send_text(x, 200, "text/plain; version=0.0.4; charset=utf-8",
                     weft_server_metrics_text(x->server->metrics, &now), false);
}

static bool refuse_memory(exchange *x) {
    return weft_refuse(&x->refusal, 503, NULL, NULL, "no memory; try again later");
}

static bool encode_prompts(exchange *x) {
    const weft_served_model *m = &x->model->is;
    weft_request *r = &x->job->request;
    const char *stop = r->endpoint == WEFT_CHAT ? weft_template_stop(x->model->chat) : NULL;
    for (int64_t i = 0; i < r->n_prompts; i++) {
        weft_request_prompt *p = r->prompts + i;
        weft_status status = WEFT_OK;
        const int32_t *tokens;
        if (r->endpoint == WEFT_CHAT)
            status = weft_template_encode(x->model->chat, m->encoder, r->messages, r->n_messages,
                                          &p->tokens, &p->n_tokens);
        else if (p->text)
            status = weft_prompt_encode(m->tokenizer, m->encoder, p->text, p->bytes, true, &tokens,
                                        &p->n_tokens);
        if (status != WEFT_OK)
            return weft_refuse(&x->refusal, status == WEFT_EINPUT ? 400 : 503, NULL, NULL, "%s",
                               weft_error_message());
        if (p->text) {
            size_t bytes = (size_t)p->n_tokens * sizeof *tokens;
            p->tokens = malloc(bytes ? bytes : 1);
            if (!p->tokens) return refuse_memory(x);
            memcpy(p->tokens, tokens, bytes);
        }
        const weft_generator_stats *model = &x->model->size;
        const char *param = x->job->request.endpoint == WEFT_CHAT ? "messages" : "prompt";
        if (p->n_tokens + (x->job->request.sampling.max_tokens > 0) > model->context)
            return weft_refuse(
                &x->refusal, 400, "context_length_exceeded", param,
                "a prompt of %lld tokens leaves no room in a context of %lld; shorten it",
                (long long)p->n_tokens, (long long)model->context);
        for (int64_t k = 0; k < p->n_tokens; k++)
            if (p->tokens[k] < 0 || p->tokens[k] >= model->vocab)
                return weft_refuse(&x->refusal, 400, NULL, param,
                                   "token %lld of the prompt is %d, but the model knows 0 to %lld",
                                   (long long)k, (int)p->tokens[k], (long long)model->vocab - 1);
    }
    if (stop) r->stops[r->n_stops++] = stop;
    return true;
}

static void wake(void *connection) {
    MHD_resume_connection(connection);
}

/* From a body to a job that the worker has. */
static bool start_job(exchange *x) {
    weft_server *s = x->server;
    const weft_server_options *o = &s->options;
    weft_request request;
    weft_endpoint endpoint = x->path == WEFT_PATH_CHAT ? WEFT_CHAT : WEFT_COMPLETIONS;
    if (!weft_request_parse(x->body ? x->body : "", x->bytes, endpoint, o->sequences + o->queue,
                            &request, &x->refusal))
        return false;
    free(x->body);
    x->body = NULL;
    x->model = find_model(x, request.model);
    if (!x->model) {
        weft_request_free(&request);
        return false;
    }
    int64_t most = o->max_tokens ? o->max_tokens : x->model->size.context;
    if (request.sampling.max_tokens > most) request.sampling.max_tokens = most;
    uint64_t drawn = 0;
    if (!request.has_seed && getrandom(&drawn, sizeof drawn, 0) == sizeof drawn)
        request.sampling.seed = drawn >> 11; /* as large as a seed may be in JSON */
    x->job = weft_job_create(&request, x->model->is.tokenizer, x->model->is.name);
    if (!x->job) return refuse_memory(x);
    x->job->submitted = x->start;
    x->job->wake = wake;
    x->job->context = x->mhd;
    if (!encode_prompts(x) || !weft_job_check(x->job, &x->refusal)) return false;
    if (!weft_worker_submit(x->model->worker, x->job, &x->refusal, &x->retry_after)) return false;
    weft_connection_watch(s->connections, x->connection, x->job);
    return true;
}

/* Events as they come; 0 after suspending where there is nothing yet. */
static ssize_t read_events(void *context, uint64_t position, char *to, size_t most) {
    exchange *x = context;
    weft_job *j = x->job;
    (void)position;
    if (x->event_at == x->event_bytes) {
        free(x->events);
        x->events = NULL;
        x->event_at = x->event_bytes = 0;
        if (j->ended) return MHD_CONTENT_READER_END_OF_STREAM;
        pthread_mutex_lock(&j->lock);
        x->events = atomic_load(&j->cancelled) ? NULL : weft_answer_events(j);
        x->event_bytes = x->events ? strlen(x->events) : 0;
        bool waits = x->events && !x->event_bytes;
        if (waits) {
            j->waiting = true;
            MHD_suspend_connection(x->mhd);
        }
        pthread_mutex_unlock(&j->lock);
        if (waits) return 0;
        if (!x->events) return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    size_t bytes = x->event_bytes - x->event_at;
    bytes = bytes < most ? bytes : most;
    memcpy(to, x->events + x->event_at, bytes);
    x->event_at += bytes;
    return (ssize_t)bytes;
}

/* Answers as soon as there is something to say: all of it, or the first of the events. So a job that
 * fails at once fails with its own status. */
static enum MHD_Result answer_job(exchange *x) {
    weft_job *j = x->job;
    int64_t made = 0;
    weft_refusal why = {0};
    pthread_mutex_lock(&j->lock);
    for (int64_t i = 0; i < j->n_choices; i++)
        made += j->choices[i].made;
    bool gone = atomic_load(&j->cancelled);
    bool ready = j->finished || gone || (j->request.stream && made > 0);
    if (!ready) {
        j->waiting = true;
        MHD_suspend_connection(x->mhd);
    }
    if (j->finished) why = j->failure;
    pthread_mutex_unlock(&j->lock);
    if (!ready) return MHD_YES;
    if (gone && !why.status) weft_refuse(&why, 499, NULL, NULL, "the client went away");
    if (why.status && (!j->request.stream || made == 0)) return send_refusal(x, &why);
    if (j->request.stream) {
        struct MHD_Response *r =
            MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, read_events, x, NULL);
        if (!r) return MHD_NO;
        MHD_add_response_header(r, "Cache-Control", "no-cache");
        MHD_add_response_header(r, "X-Accel-Buffering", "no");
        return queue(x, 200, "text/event-stream; charset=utf-8", r);
    }
    return send_text(x, 200, json_media, weft_answer_whole(j), false);
}

static enum MHD_Result receive(void *server, struct MHD_Connection *c, const char *url,
                               const char *method, const char *version, const char *upload,
                               size_t *upload_bytes, void **out) {
    (void)version;
    exchange *x = *out;
    if (!x) {
        x = calloc(1, sizeof *x);
        if (!x) return MHD_NO;
        *out = x;
        x->server = server;
        x->mhd = c;
        x->connection = weft_connection_of(c);
        x->start = weft_clock();
        if (!x->connection) return MHD_NO;
        if (check_head(x, url, method)) return MHD_YES;
        /* A client that waits for leave to send its body gets the refusal in place of it. */
        const char *expects = header(x, "Expect"), *length = header(x, "Content-Length");
        bool huge = length && strtoll(length, NULL, 10) > DISCARD_MOST;
        return expects || huge ? send_refusal(x, &x->refusal) : MHD_YES;
    }
    if (*upload_bytes) {
        size_t bytes = *upload_bytes;
        *upload_bytes = 0;
        size_t most = (size_t)x->server->options.body_bytes;
        if (!x->refusal.status && x->bytes + bytes > most) refuse_large(x);
        if (x->refusal.status) {
            x->discarded += bytes;
            return x->discarded > DISCARD_MOST ? MHD_NO : MHD_YES;
        }
        if (!weft_grow(&x->body, &x->room, x->bytes + bytes)) return MHD_NO;
        memcpy(x->body + x->bytes, upload, bytes);
        x->bytes += bytes;
        return MHD_YES;
    }
    if (x->begun) return answer_job(x);
    x->begun = true;
    weft_connection_begin(x->server->connections, x->connection, x->server->options.answer_seconds);
    if (x->refusal.status) return send_refusal(x, &x->refusal);
    switch (x->path) {
    case WEFT_PATH_PAGE:
        return send_text(x, 200, "text/html; charset=utf-8", x->server->page, true);
    case WEFT_PATH_HEALTH:
        if (atomic_load(&x->server->draining))
            return send_text(x, 503, json_media, strdup("{\"status\":\"stopping\"}"), false);
        return send_text(x, 200, json_media, strdup("{\"status\":\"ok\"}"), false);
    case WEFT_PATH_METRICS:
        return send_metrics(x);
    case WEFT_PATH_MODELS:
        return send_models(x, strcmp(url, "/v1/models") != 0 ? url + 11 : NULL);
    default:
        return start_job(x) ? answer_job(x) : send_refusal(x, &x->refusal);
    }
}

static void end_exchange(void *server, struct MHD_Connection *c, void **out,
                         enum MHD_RequestTerminationCode how) {
    weft_server *s = server;
    exchange *x = *out;
    (void)c;
    if (!x) return;
    *out = NULL;
    bool whole = how == MHD_REQUEST_TERMINATED_COMPLETED_OK;
    double seconds = weft_clock() - x->start;
    if (x->job) atomic_store(&x->job->cancelled, true); /* one that is finished stays so */
    if (x->connection) weft_connection_end(s->connections, x->connection);
    weft_server_metrics_request(s->metrics, x->path, whole ? x->status : 499, seconds);
    weft_log(WEFT_LOG_DEBUG, "serve: %d after %.3f s", whole ? x->status : 499, seconds);
    weft_job_release(x->job);
    WEFT_FREE(x->events, x->body, x);
}

weft_status weft_server_open(const weft_server_options *o, const weft_served_model *models, int n,
                             weft_server **out) {
    *out = NULL;
    WEFT_NEW(weft_server, s, weft_server_close, "serve: no memory");
    *s = (weft_server){.options = *o, .listening = -1, .started = (int64_t)time(NULL)};
    atomic_init(&s->draining, false);
    const char *own =
        strstr(weft_page_html, "<style>\n") + 8; /* behind the style that all pages share */
    if (asprintf(&s->page, "%.*s%s%s", (int)(own - weft_page_html), weft_page_html, weft_page_style,
                 own) < 0)
        s->page = NULL;
    if (!s->page) return weft_no_memory("serve");
    WEFT_TRY(weft_server_metrics_create(&s->metrics));
    weft_worker_limits limits = {o->sequences, o->queue, o->answer_seconds};
    for (const weft_served_model *m = models; m < models + n; m++) {
        struct served *to = s->models + s->n_models++;
        to->is = *m;
        weft_generator_count(m->generator, &to->size);
        WEFT_TRY(weft_template_open(m->chat_template, m->tokenizer, &to->chat));
        WEFT_TRY(weft_worker_open(m->generator, m->tokenizer, &limits, s->metrics, &to->worker));
    }
    WEFT_TRY(weft_connections_open(o->request_seconds, &s->connections));
    int listening;
    bool six = false;
    WEFT_TRY(weft_http_listen(o->host, o->port, &listening, &six));
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO | MHD_ALLOW_SUSPEND_RESUME |
                     MHD_USE_ERROR_LOG | (six ? MHD_USE_IPv6 : 0u);
    s->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, receive, s, MHD_OPTION_EXTERNAL_LOGGER, weft_http_log, NULL,
        MHD_OPTION_LISTEN_SOCKET, listening, MHD_OPTION_NOTIFY_COMPLETED, end_exchange, s,
        MHD_OPTION_NOTIFY_CONNECTION, weft_connections_note, s->connections,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)o->connections, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)(o->request_seconds + 1), MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
    if (!s->daemon) {
        close(listening);
        return weft_fail(WEFT_EIO,
                         "serve: libmicrohttpd does not start; WEFT_LOG=debug tells more");
    }
    return weft_hand(&s, out);
}

int weft_server_port(const weft_server *s) {
    return MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT)->port;
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

/* The workers first: they finish every job, which resumes every connection that is suspended, as
 * libmicrohttpd wants before it stops. */
void weft_server_close(weft_server *s) {
    if (!s) return;
    for (int i = 0; i < s->n_models; i++)
        if (s->models[i].worker) weft_worker_stop(s->models[i].worker);
    if (s->daemon) MHD_stop_daemon(s->daemon);
    if (s->listening >= 0) close(s->listening);
    weft_connections_close(s->connections);
    for (int i = 0; i < s->n_models; i++) {
        weft_worker_close(s->models[i].worker);
        weft_template_close(s->models[i].chat);
    }
    weft_server_metrics_destroy(s->metrics);
    WEFT_FREE(s->page, s);
}
#endif
