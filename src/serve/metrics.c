/* Metrics. Names and units follow Prometheus' customs: a total only grows, seconds and bytes are
 * the units, a histogram's buckets include the smaller ones. */
#include "base/text.h"
#include "serve/worker.h"

enum { BUCKETS = 12, STATUSES = 600 };

static const double bounds[BUCKETS] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30};

const char *const weft_path_names[WEFT_PATHS] = {
    "/v1/completions", "/v1/chat/completions", "/v1/models", "/health", "/metrics", "/", "other"};

typedef struct {
    int64_t count[BUCKETS + 1]; /* the last: above all bounds */
    double sum;
} histogram;

struct weft_server_metrics {
    pthread_mutex_t lock;
    int64_t requests[WEFT_PATHS][STATUSES];
    histogram seconds, first_token;
    double job_seconds; /* mean of the last ones, the newest counting most */
};

weft_status weft_server_metrics_create(weft_server_metrics **out) {
    WEFT_ROOM_AT(*out, 1, "serve: no memory");
    pthread_mutex_init(&(*out)->lock, NULL);
    return WEFT_OK;
}

void weft_server_metrics_destroy(weft_server_metrics *m) {
    if (m) pthread_mutex_destroy(&m->lock);
    free(m);
}

static void count_in(histogram *h, double value) {
    int i = 0;
    while (i < BUCKETS && value > bounds[i])
        i++;
    h->count[i]++;
    h->sum += value;
}

void weft_server_metrics_request(weft_server_metrics *m, weft_path_name path, int status,
                                 double seconds) {
    WEFT_LOCK(&m->lock);
    if (status > 0 && status < STATUSES) m->requests[path][status]++;
    count_in(&m->seconds, seconds);
}

void weft_server_metrics_first_token(weft_server_metrics *m, double seconds) {
    WEFT_LOCK(&m->lock);
    count_in(&m->first_token, seconds);
}

void weft_server_metrics_job(weft_server_metrics *m, double seconds) {
    WEFT_LOCK(&m->lock);
    m->job_seconds = m->job_seconds > 0 ? 0.9 * m->job_seconds + 0.1 * seconds : seconds;
}

double weft_server_metrics_job_seconds(weft_server_metrics *m) {
    WEFT_LOCK(&m->lock);
    return m->job_seconds;
}

static void head(FILE *to, const char *name, const char *type, const char *help) {
    fprintf(to, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* A name that ends on _total is a counter's. */
static void one(FILE *to, const char *name, const char *help, int64_t value) {
    head(to, name, strstr(name, "_total") ? "counter" : "gauge", help);
    fprintf(to, "%s %lld\n", name, (long long)value);
}

static void print_histogram(FILE *to, const char *name, const char *help, const histogram *h) {
    int64_t sum = 0;
    head(to, name, "histogram", help);
    for (int i = 0; i < BUCKETS; i++) {
        sum += h->count[i];
        fprintf(to, "%s_bucket{le=\"%g\"} %lld\n", name, bounds[i], (long long)sum);
    }
    sum += h->count[BUCKETS];
    fprintf(to, "%s_bucket{le=\"+Inf\"} %lld\n%s_sum %.6f\n%s_count %lld\n", name, (long long)sum,
            name, h->sum, name, (long long)sum);
}

char *weft_server_metrics_text(weft_server_metrics *m, const weft_server_metrics_now *now) {
    char *text = NULL;
    size_t bytes = 0;
    const weft_generator_stats *g = &now->generator;
    FILE *to = open_memstream(&text, &bytes);
    if (!to) return NULL;
    head(to, "weft_info", "gauge", "The program and its models.");
    /* Backslash, quote and line end are escaped in a label. */
    for (int i = 0; i < now->n_models; i++) {
        fprintf(to, "weft_info{version=\"%s\",model=\"", weft_version());
        for (const char *at = now->models[i]; *at; at++) {
            if (*at == '\\' || *at == '"') fputc('\\', to);
            if (*at == '\n')
                fputs("\\n", to);
            else
                fputc(*at, to);
        }
        fputs("\"} 1\n", to);
    }
    pthread_mutex_lock(&m->lock);
    head(to, "weft_requests_total", "counter",
         "Requests by path and HTTP status; 499: the client went away first.");
    for (int path = 0; path < WEFT_PATHS; path++)
        for (int status = 0; status < STATUSES; status++)
            if (m->requests[path][status])
                fprintf(to, "weft_requests_total{path=\"%s\",status=\"%d\"} %lld\n",
                        weft_path_names[path], status, (long long)m->requests[path][status]);
    print_histogram(to, "weft_request_seconds", "Seconds from a request's arrival to its end.",
                    &m->seconds);
    print_histogram(to, "weft_first_token_seconds",
                    "Seconds from a request's arrival to its first token.", &m->first_token);
    pthread_mutex_unlock(&m->lock);
    one(to, "weft_prompt_tokens_total", "Tokens of prompts that were computed.", g->prompt_tokens);
    one(to, "weft_shared_tokens_total", "Tokens of prompts that were found in pages of others.",
        g->shared_tokens);
    one(to, "weft_generated_tokens_total", "Tokens that were made.", g->sampled_tokens);
    one(to, "weft_drafted_tokens_total", "Tokens that were drafted and checked.",
        g->drafted_tokens);
    one(to, "weft_accepted_tokens_total", "Drafted tokens that were right.", g->accepted_tokens);
    one(to, "weft_set_back_total",
        "Times that a sequence gave its pages back, to be computed again.", g->set_back);
    one(to, "weft_sequences_running", "Sequences that are being made.", g->running);
    one(to, "weft_cache_pages", "Pages of the cache.", g->pages);
    one(to, "weft_cache_pages_used", "Pages that sequences hold.", g->pages_used);
    one(to, "weft_cache_pages_kept", "Pages that are kept for others that begin alike.",
        g->pages_kept);
    one(to, "weft_cache_bytes", "Bytes of the cache.", g->cache_bytes);
    one(to, "weft_sequences_waiting", "Sequences that wait for a place.", now->queued);
    one(to, "weft_connections", "Open connections.", now->connections);
    long long all, resident = 0;
    WEFT_AUTO_FCLOSE FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%lld %lld", &all, &resident) != 2) resident = 0;
    one(to, "process_resident_memory_bytes", "Resident memory.",
        (int64_t)resident * sysconf(_SC_PAGESIZE));
    return weft_memory_end(to, &text);
}
