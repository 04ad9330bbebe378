/* The worker: one thread that makes the text of all jobs, over one generator.
 *
 * Jobs come in at any time and run side by side (continuous batching, generator.h). There is room
 * for the sequences that run and for a queue of those that wait; what is beyond is refused, to be
 * sent again later. The generator belongs to this thread while the worker is open. */
#pragma once

#include "generate/generator.h"
#include "serve/job.h"

/* What the server counts, in the text format of Prometheus. Any thread may count. */

typedef struct weft_server_metrics weft_server_metrics;

/* Paths that are counted apart; those that take POST are the first. */
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
extern const char *const weft_path_names[WEFT_PATHS];

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

typedef struct weft_worker weft_worker;

typedef struct {
    int64_t sequences; /* that run at once: the generator's */
    int64_t queue;     /* that may wait beside them */
    double seconds;    /* a job may take, from its arrival on */
} weft_worker_limits;

/* Returns when the thread waits for jobs, and weft_worker_count tells what the generator has. */
weft_status weft_worker_open(weft_generator *g, const weft_tokenizer *t,
                             const weft_worker_limits *limits, weft_server_metrics *metrics,
                             weft_worker **out);
/* Ends all jobs, which are finished with a failure, and the thread. What is submitted from now on is
 * refused. */
void weft_worker_stop(weft_worker *w);
/* Stops it if it was not, and frees it: nobody may use it any more. */
void weft_worker_close(weft_worker *w);

/* Adds a job and holds it until it is finished. False: it was refused, *why says why and
 * *retry_after (where the queue is full) in how many seconds to come again. */
bool weft_worker_submit(weft_worker *w, weft_job *j, weft_refusal *why, int *retry_after);
/* Ends a job that nobody waits for any more; its pages are free after the step that runs. */
void weft_worker_cancel(weft_worker *w, weft_job *j);

/* Adds what it counts, as of the last step. */
void weft_worker_count(weft_worker *w, weft_generator_stats *out, int64_t *queued);
