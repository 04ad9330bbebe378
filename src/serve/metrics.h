/* What the server counts, in the text format of Prometheus. Any thread may count. */
#pragma once

#include "base/error.h"
#include "generate/generator.h"

typedef struct weft_server_metrics weft_server_metrics;

/* Paths that are counted apart. */
typedef enum {
    WEFT_PATH_COMPLETIONS,
    WEFT_PATH_CHAT,
    WEFT_PATH_MODELS,
    WEFT_PATH_HEALTH,
    WEFT_PATH_METRICS,
    WEFT_PATH_PAGE,
    WEFT_PATH_OTHER,
    WEFT_PATHS
} weft_path_name;

weft_status weft_server_metrics_create(weft_server_metrics **out);
void weft_server_metrics_destroy(weft_server_metrics *m);

/* A request that was answered with that status of HTTP after so many seconds; 499: its client was
 * gone. */
void weft_server_metrics_request(weft_server_metrics *m, weft_path_name path, int status,
                                 double seconds);
/* A job's first token, and its end. */
void weft_server_metrics_first_token(weft_server_metrics *m, double seconds);
void weft_server_metrics_job(weft_server_metrics *m, double seconds);
/* Mean seconds of the last jobs; 0: there were none. */
double weft_server_metrics_job_seconds(weft_server_metrics *m);

/* What is now, beside what was counted. */
typedef struct {
    weft_generator_stats generator;
    int64_t queued;      /* sequences that wait */
    int64_t connections; /* open */
    const char *model;
} weft_server_metrics_now;

/* All as text, malloc'd; NULL: no memory. */
char *weft_server_metrics_text(weft_server_metrics *m, const weft_server_metrics_now *now);
