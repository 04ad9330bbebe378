/* Jobs: memory, owners and waking. */
#include "serve/job.h"

#include <stdlib.h>

static void destroy(weft_job *j) {
    for (int64_t i = 0; j->prompts && i < j->n_prompts; i++)
        free(j->prompts[i].tokens);
    for (int64_t i = 0; j->choices && i < j->n_choices; i++) {
        weft_stream_close(j->choices[i].stream);
        free(j->choices[i].text);
        free(j->choices[i].tokens);
    }
    free(j->prompts);
    free(j->choices);
    weft_request_free(&j->request);
    pthread_mutex_destroy(&j->lock);
    free(j);
}

weft_job *weft_job_create(weft_request *request, int64_t n_prompts) {
    weft_job *j = calloc(1, sizeof *j);
    if (!j) {
        weft_request_free(request);
        return NULL;
    }
    j->request = *request;
    *request = (weft_request){0};
    pthread_mutex_init(&j->lock, NULL);
    atomic_init(&j->cancelled, false);
    atomic_init(&j->owners, 1);
    j->keeps_tokens = j->request.logprobs || j->request.token_ids;
    j->n_prompts = n_prompts;
    j->n_choices = n_prompts * j->request.n;
    j->prompts = calloc((size_t)n_prompts, sizeof *j->prompts);
    j->choices = calloc((size_t)j->n_choices, sizeof *j->choices);
    if (!j->prompts || !j->choices) {
        destroy(j);
        return NULL;
    }
    for (int64_t i = 0; i < j->n_choices; i++) {
        j->choices[i].prompt = i / j->request.n;
        j->choices[i].id = -1;
    }
    return j;
}

void weft_job_hold(weft_job *j) {
    atomic_fetch_add(&j->owners, 1);
}

void weft_job_release(weft_job *j) {
    if (j && atomic_fetch_sub(&j->owners, 1) == 1) destroy(j);
}

void weft_job_wake(weft_job *j) {
    if (!j->waiting) return;
    j->waiting = false;
    j->wake(j->context);
}

void weft_job_finish(weft_job *j, const weft_refusal *failure) {
    pthread_mutex_lock(&j->lock);
    if (!j->finished) {
        j->finished = true;
        if (failure) j->failure = *failure;
    }
    weft_job_wake(j);
    pthread_mutex_unlock(&j->lock);
}

weft_job_usage weft_job_count(const weft_job *j) {
    weft_job_usage sum = {0};
    for (int64_t i = 0; i < j->n_prompts; i++)
        sum.prompt += j->prompts[i].count;
    for (int64_t i = 0; i < j->n_choices; i++) {
        sum.made += j->choices[i].made;
        /* A prompt's tokens are counted once, so are those that were found. */
        if (i % j->request.n == 0) sum.shared += j->choices[i].shared;
    }
    return sum;
}
