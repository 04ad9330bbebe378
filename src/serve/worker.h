/* The worker: one thread that makes the text of all jobs, over one generator.
 *
 * Jobs come in at any time and run side by side (continuous batching, generator.h). There is room
 * for the sequences that run and for a queue of those that wait; what is beyond is refused, to be
 * sent again later. The generator belongs to this thread while the worker is open. */
#pragma once

#include "generate/generator.h"
#include "generate/text.h"
#include "serve/request.h"

#include <stdatomic.h>

/* How far a choice was sent. */
typedef struct {
    size_t bytes;
    int64_t tokens, offset;
    bool begun, ended;
} weft_sent;

typedef struct {
    int64_t prompt; /* the number of its prompt */
    /* The worker's alone. */
    int64_t id; /* the generator's; -1: none */
    weft_stream *stream;
    /* Under the lock. */
    size_t bytes;         /* of the stream's text */
    weft_sampled *tokens; /* where the request wants something of each: its prompt's where they are
                             told, those that were made, and with the prompt's the one that ended it */
    int64_t n_tokens, n_told, tokens_room; /* n_told: of the prompt */
    int64_t made;                          /* tokens */
    int64_t shared;                        /* tokens of its prompt that were not computed again */
    const char *finish;                    /* "stop" or "length"; NULL: it goes on */
    weft_sent sent;
} weft_choice;

/* A request while it is being answered. Two threads hold it: the one that speaks HTTP, and the
 * worker's. The worker adds text to it; the other takes it from there and sends it. It is freed by
 * whoever lets go of it last, so that neither has to wait for the other: a client that goes away
 * leaves the job to the worker, a worker that stops leaves it to the connection.
 *
 * What is under the lock is said below; the rest is written before the worker sees the job and only
 * read afterwards, or the worker's alone. */
typedef struct weft_job weft_job;
struct weft_job {
    weft_request request;
    const weft_tokenizer *tokenizer;
    const char *model;
    char id[48];
    int64_t created;
    weft_choice *choices; /* n of the first prompt, n of the second, ... */
    int64_t n_choices;
    bool keeps_tokens;
    double submitted;      /* on weft_clock */
    atomic_bool cancelled; /* given up; its pages are free after the step that runs */
    atomic_int owners;
    /* Called with the lock held when there is something new and somebody waits for it. */
    void (*wake)(void *context);
    void *context;

    pthread_mutex_t lock;
    bool waiting;         /* somebody does */
    bool finished;        /* nothing more comes */
    bool ended;           /* and its last event was made */
    weft_refusal failure; /* why it finished without all its text; status 0: it did not */

    weft_job *next; /* the worker's: in its list */
};

/* A job for a request, which it takes over, whatever comes back. `model`, its name, and the tokenizer must outlive
 * the answer. NULL: no memory. */
weft_job *weft_job_create(weft_request *request, const weft_tokenizer *t, const char *model);
/* With its prompts' tokens: an answer that tells of their tokens is as large as they are, for each text and alternative, so
 * it has so many numbers at most. False: *why says so. */
enum { WEFT_JOB_TOLD = 1 << 20 };
bool weft_job_check(const weft_job *j, weft_refusal *why);
void weft_job_hold(weft_job *j);
void weft_job_release(weft_job *j);

/* Of a client that has gone: nobody waits for the job any more, and whoever holds its connection is woken. */
void weft_job_give_up(weft_job *j);
/* Wakes who waits; with the lock held. */
void weft_job_wake(weft_job *j);

/* The answer to a job in OpenAI's shapes: whole, or as server-sent events.
 *
 * Whole it is one object. As events it is one object for each piece of text of each choice, then one that says why the
 * choice ended; then, where the request wants it, one with the usage; then `data: [DONE]`. */

/* Of a job that is finished and did not fail. malloc'd; NULL: no memory. */
char *weft_answer_whole(const weft_job *j);

/* Events for what came since the last call, malloc'd and perhaps empty; NULL: no memory. Of a job that failed they end with an error in place of [DONE]. With the
 * job's lock held. */
char *weft_answer_events(weft_job *j);

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

/* A request that was answered with that status of HTTP after so many seconds; 499: its client was gone. */
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
    int64_t queued;            /* sequences that wait */
    int64_t connections;       /* open */
    const char *const *models; /* names */
    int n_models;
} weft_server_metrics_now;

/* All as text, malloc'd; NULL: no memory. */
char *weft_server_metrics_text(weft_server_metrics *m, const weft_server_metrics_now *now);

typedef struct weft_worker weft_worker;

typedef struct {
    int64_t sequences; /* that run at once: the generator's */
    int64_t queue;     /* that may wait beside them */
    double seconds;    /* a job may take, from its arrival on */
} weft_worker_limits;

/* From then on weft_worker_count tells what the generator has. */
weft_status weft_worker_open(weft_generator *g, const weft_tokenizer *t,
                             const weft_worker_limits *limits, weft_server_metrics *metrics,
                             weft_worker **out);
/* Ends all jobs, which are finished with a failure, and the thread. What is submitted from now on is refused. */
void weft_worker_stop(weft_worker *w);
/* Stops it if it was not, and frees it: nobody may use it any more. */
void weft_worker_close(weft_worker *w);

/* Adds a job and holds it until it is finished. False: it was refused, *why says why and
 * *retry_after (where the queue is full) in how many seconds to come again. */
bool weft_worker_submit(weft_worker *w, weft_job *j, weft_refusal *why, int *retry_after);

/* Adds what it counts, as of the last step. */
void weft_worker_count(weft_worker *w, weft_generator_stats *out, int64_t *queued);
