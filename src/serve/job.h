/* A request while it is being answered. Two threads hold it: the one that speaks HTTP, and the
 * worker's. The worker adds text to it; the other takes it from there and sends it. It is freed by
 * whoever lets go of it last, so that neither has to wait for the other: a client that goes away
 * leaves the job to the worker, a worker that stops leaves it to the connection.
 *
 * What is under the lock is said below; the rest is written before the worker sees the job and only
 * read afterwards, or the worker's alone. */
#pragma once

#include "generate/text.h"
#include "serve/request.h"

#include <stdatomic.h>

typedef struct {
    int64_t prompt; /* the number of its prompt */
    /* The worker's alone. */
    int64_t id; /* the generator's; -1: none */
    weft_stream *stream;
    /* Under the lock. */
    char *text;
    size_t bytes, room;
    weft_sampled *tokens; /* where the request wants something of each: its prompt's where they are
                             told, those that were made, and with the prompt's the one that ended it */
    int64_t n_tokens, n_told, tokens_room; /* n_told: of the prompt */
    int64_t made;                          /* tokens */
    int64_t shared;                        /* tokens of its prompt that were not computed again */
    const char *finish;                    /* "stop" or "length"; NULL: it goes on */
} weft_choice;

typedef struct weft_job weft_job;
struct weft_job {
    weft_request request;
    weft_choice *choices; /* n of the first prompt, n of the second, ... */
    int64_t n_choices;
    bool keeps_tokens;
    double submitted; /* on weft_clock */
    atomic_bool cancelled;
    atomic_int owners;
    /* Called with the lock held when there is something new and somebody waits for it. */
    void (*wake)(void *context);
    void *context;

    pthread_mutex_t lock;
    bool waiting;         /* somebody does */
    bool finished;        /* nothing more comes */
    weft_refusal failure; /* why it finished without all its text; status 0: it did not */

    weft_job *next; /* the worker's: in its list */
};

/* A job for a request, which it takes over, whatever comes back. NULL: no memory. */
weft_job *weft_job_create(weft_request *request);
/* With its prompts' tokens: an answer that tells of their tokens is as large as they are, for each text and alternative, so
 * it has so many numbers at most. False: *why says so. */
enum { WEFT_JOB_TOLD = 1 << 20 };
bool weft_job_check(const weft_job *j, weft_refusal *why);
void weft_job_hold(weft_job *j);
void weft_job_release(weft_job *j);

/* Marks it as finished, with the failure if there is one (NULL: none), and wakes who waits. A job
 * that is finished already stays as it is. */
void weft_job_finish(weft_job *j, const weft_refusal *failure);
/* Wakes who waits; with the lock held. */
void weft_job_wake(weft_job *j);

/* The answer to a job in OpenAI's shapes: whole, or as server-sent events.
 *
 * Whole it is one object. As events it is one object for each piece of text of each choice, then one
 * that says why the choice ended; then, where the request wants it, one with the usage; then
 * `data: [DONE]`. */
typedef struct weft_answer weft_answer;

/* `model` and the tokenizer must outlive it. The job is held. NULL: no memory. */
weft_answer *weft_answer_open(weft_job *j, const weft_tokenizer *t, const char *model);
void weft_answer_close(weft_answer *a);

/* Of a job that is finished and did not fail. malloc'd; NULL: no memory. */
char *weft_answer_whole(const weft_answer *a);

/* Events for what came since the last call, malloc'd and perhaps empty; NULL: no memory. *ended: the
 * last ones are among them. Of a job that failed they end with an error in place of [DONE]. With the
 * job's lock held. */
char *weft_answer_events(weft_answer *a, bool *ended);
