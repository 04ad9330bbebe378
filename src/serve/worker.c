/* The worker's loop: take what came in, end what is over, make one step, hand out what it made.
 *
 * The lock protects what others see: the list of new jobs, how many sequences there are, whether to stop, and the copy
 * of the generator's figures. It is never held while the generator works, nor together with a job's lock. */
#include "serve/worker.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

#include <math.h>

enum { RETRY_MOST = 60 };

struct weft_worker {
    weft_generator *generator;
    const weft_tokenizer *tokenizer;
    weft_worker_limits limits;
    weft_server_metrics *metrics;
    pthread_t thread;
    weft_job *jobs; /* the thread's own: all that it works on */

    pthread_mutex_t lock;
    pthread_cond_t news;
    weft_job *incoming, **incoming_end;
    int64_t sequences; /* of all jobs that are not finished */
    bool stopping;
    weft_generator_stats stats;
};

static void end_choice(weft_worker *w, weft_choice *c) {
    if (c->id < 0) return;
    weft_generator_remove(w->generator, c->id);
    c->id = -1;
}

static weft_status take_tokens(weft_worker *w, weft_job *j, weft_choice *c) {
    weft_sampled token;
    weft_take take;
    bool stopped = false, tells = j->request.sampling.prompt_logprobs;
    while (!c->finish && (take = weft_generator_take(w->generator, c->id, &token))) {
        if (j->keeps_tokens && (take == WEFT_TAKE_TOKEN || (take == WEFT_TAKE_END && tells))) {
            if (!weft_grow_list(&c->tokens, &c->tokens_room, c->n_tokens + 1, sizeof *c->tokens))
                return weft_fail(WEFT_ENOMEM, "no memory for tokens");
            c->tokens[c->n_tokens++] = token;
        }
        if (take == WEFT_TAKE_TOKEN && tells &&
            c->n_told < j->request.prompts[c->prompt].n_tokens) {
            c->n_told++;
            continue;
        }
        if (take == WEFT_TAKE_TOKEN) {
            c->made++;
            WEFT_TRY(weft_stream_put(c->stream, token.token, &stopped));
            if (stopped) c->finish = "stop";
        } else if (take == WEFT_TAKE_BROKEN) {
            return weft_generator_broken();
        } else {
            WEFT_TRY(weft_stream_end(c->stream));
            c->finish = take == WEFT_TAKE_END ? "stop" : "length";
        }
        weft_stream_text(c->stream, &c->bytes);
        c->shared = weft_generator_shared(w->generator, c->id);
    }
    if (c->finish) end_choice(w, c);
    return WEFT_OK;
}

/* Ends a job, with the failure if there is one (NULL: none), and wakes who waits. */
static void drop_job(weft_worker *w, weft_job *j, const weft_refusal *failure) {
    for (int64_t i = 0; i < j->n_choices; i++)
        end_choice(w, j->choices + i);
    pthread_mutex_lock(&w->lock);
    w->sequences -= j->n_choices;
    weft_generator_count(w->generator, &w->stats);
    pthread_mutex_unlock(&w->lock);
    pthread_mutex_lock(&j->lock);
    j->finished = true;
    if (failure) j->failure = *failure;
    weft_job_wake(j);
    pthread_mutex_unlock(&j->lock);
    weft_job_release(j);
}

static void start_job(weft_worker *w, weft_job *j) {
    weft_status status = WEFT_OK;
    weft_refusal why;
    for (int64_t i = 0; status == WEFT_OK && i < j->n_choices; i++) {
        weft_choice *c = j->choices + i;
        const weft_request_prompt *p = j->request.prompts + c->prompt;
        weft_sampling sampling = j->request.sampling;
        sampling.sample = (uint32_t)(i % j->request.n);
        sampling.ends = w->tokenizer;
        sampling.token_only = !j->request.logprobs;
        status = weft_stream_open(w->tokenizer, j->request.stops, j->request.n_stops, &c->stream);
        if (status == WEFT_OK)
            status = weft_generator_add(w->generator, p->tokens, p->n_tokens, &sampling, &c->id);
    }
    if (status == WEFT_OK) {
        j->next = w->jobs;
        w->jobs = j;
        return;
    }
    weft_refuse(&why, status == WEFT_EINPUT ? 400 : 503, NULL, NULL, "%s", weft_error_message());
    drop_job(w, j, &why);
}

/* What there is for a job after a step; false: it is over. */
static bool tend_job(weft_worker *w, weft_job *j, double now) {
    weft_status status = WEFT_OK;
    weft_refusal why = {0};
    if (atomic_load(&j->cancelled))
        weft_refuse(&why, 499, NULL, NULL, "the client went away");
    else if (now > j->submitted + w->limits.seconds)
        weft_refuse(&why, 504, "timeout", NULL,
                    "the request took longer than the %g s that the server allows; ask for fewer "
                    "tokens",
                    w->limits.seconds);
    if (why.status) {
        drop_job(w, j, &why);
        return false;
    }
    int64_t before = 0, after = 0, done = 0;
    pthread_mutex_lock(&j->lock);
    weft_choice *end = j->choices + j->n_choices;
    for (weft_choice *c = j->choices; status == WEFT_OK && c < end; c++) {
        before += c->made;
        if (!c->finish) status = take_tokens(w, j, c);
        after += c->made;
        done += c->finish != NULL;
    }
    if (after > before && done < j->n_choices) weft_job_wake(j);
    pthread_mutex_unlock(&j->lock);
    if (before == 0 && after > 0) weft_server_metrics_first_token(w->metrics, now - j->submitted);
    if (status == WEFT_OK && done < j->n_choices) return true;
    if (status == WEFT_OK) {
        weft_server_metrics_job(w->metrics, now - j->submitted);
    } else { /* memory may be there again later, numbers will not */
        bool again = status == WEFT_ENOMEM;
        weft_log(WEFT_LOG_ERROR, "serve: a request was ended: %s", weft_error_message());
        weft_refuse(&why, again ? 503 : 500, NULL, NULL, "%s%s", weft_error_message(),
                    again ? "; try again later" : "");
    }
    drop_job(w, j, status == WEFT_OK ? NULL : &why);
    return false;
}

static void tend_jobs(weft_worker *w) {
    double now = weft_clock();
    for (weft_job **at = &w->jobs; *at;) {
        weft_job *j = *at, *next = j->next;
        if (tend_job(w, j, now))
            at = &j->next;
        else
            *at = next;
    }
}

static void fail_jobs(weft_worker *w, int status, const char *message) {
    weft_refusal why;
    weft_refuse(&why, status, NULL, NULL, "%s", message);
    while (w->jobs) {
        weft_job *j = w->jobs;
        w->jobs = j->next;
        drop_job(w, j, &why);
    }
}

static void *run(void *context) {
    weft_worker *w = context;
    weft_job *incoming;
    bool goes_on;
    do {
        pthread_mutex_lock(&w->lock);
        weft_generator_count(w->generator, &w->stats);
        while (!w->incoming && !w->stopping && !w->jobs)
            pthread_cond_wait(&w->news, &w->lock);
        incoming = w->incoming;
        w->incoming = NULL;
        w->incoming_end = &w->incoming;
        goes_on = !w->stopping;
        pthread_mutex_unlock(&w->lock);
        while (incoming) {
            weft_job *j = incoming;
            incoming = j->next;
            start_job(w, j);
        }
        tend_jobs(w); /* ends those that nobody wants, before a step is made for them */
        if (!goes_on || !w->jobs) continue;
        if (weft_generator_step(w->generator) == WEFT_OK) {
            tend_jobs(w);
        } else {
            weft_log(WEFT_LOG_ERROR, "serve: %s", weft_error_message());
            fail_jobs(w, 500, weft_error_message());
        }
    } while (goes_on);
    fail_jobs(w, 503, "the server is stopping; send the request again later");
    return NULL;
}

static void free_worker(weft_worker *w) {
    if (!w) return;
    pthread_cond_destroy(&w->news);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

WEFT_ENDED_BY(free_worker, weft_worker)
weft_status weft_worker_open(weft_generator *g, const weft_tokenizer *t,
                             const weft_worker_limits *limits, weft_server_metrics *metrics,
                             weft_worker **out) {
    *out = NULL;
    WEFT_NEW(weft_worker, w, free_worker, "serve: no memory");
    *w = (weft_worker){.generator = g, .tokenizer = t, .limits = *limits, .metrics = metrics};
    w->incoming_end = &w->incoming;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->news, NULL);
    weft_generator_count(g, &w->stats);
    int error = pthread_create(&w->thread, NULL, run, w);
    if (error) return weft_fail(WEFT_EIO, "serve: cannot start a thread: %s", strerror(error));
    return weft_hand(&w, out);
}

void weft_worker_stop(weft_worker *w) {
    pthread_mutex_lock(&w->lock);
    bool stopped = w->stopping;
    w->stopping = true;
    pthread_cond_signal(&w->news);
    pthread_mutex_unlock(&w->lock);
    if (!stopped) pthread_join(w->thread, NULL);
}

void weft_worker_close(weft_worker *w) {
    if (!w) return;
    weft_worker_stop(w);
    free_worker(w);
}

bool weft_worker_submit(weft_worker *w, weft_job *j, weft_refusal *why, int *retry_after) {
    pthread_mutex_lock(&w->lock);
    int64_t room = w->limits.sequences + w->limits.queue - w->sequences;
    int64_t waiting = w->sequences;
    bool stopping = w->stopping;
    if (!stopping && j->n_choices <= room) {
        weft_job_hold(j);
        j->next = NULL;
        *w->incoming_end = j;
        w->incoming_end = &j->next;
        w->sequences += j->n_choices;
        pthread_cond_signal(&w->news);
        pthread_mutex_unlock(&w->lock);
        return true;
    }
    pthread_mutex_unlock(&w->lock);
    if (stopping)
        return weft_refuse(why, 503, NULL, NULL, "the server is stopping; try another one");
    /* When there may be room again: what is there, at the pace of the last jobs. */
    double each = weft_server_metrics_job_seconds(w->metrics);
    double all = ceil(each * (double)waiting / (double)w->limits.sequences / 2);
    *retry_after = all < 1 ? 1 : all > RETRY_MOST ? RETRY_MOST : (int)all;
    return weft_refuse(why, 429, "rate_limit_exceeded", NULL,
                       "the queue is full; send the request again in %d s", *retry_after);
}

void weft_worker_count(weft_worker *w, weft_generator_stats *out, int64_t *queued) {
    WEFT_LOCK(&w->lock);
    /* All of them are whole numbers; what is no sum (a vocabulary, a context) is not told of several. */
    for (size_t i = 0; i < sizeof *out / sizeof(int64_t); i++)
        ((int64_t *)out)[i] += ((const int64_t *)&w->stats)[i];
    *queued += w->sequences > w->stats.running ? w->sequences - w->stats.running : 0;
}
