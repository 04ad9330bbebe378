/* The answer to a job in OpenAI's shapes: whole, or as server-sent events.
 *
 * Whole it is one object. As events it is one object for each piece of text of each choice, then one
 * that says why the choice ended; then, where the request wants it, one with the usage; then
 * `data: [DONE]`. */
#ifndef WEFT_SERVE_ANSWER_H
#define WEFT_SERVE_ANSWER_H

#include "serve/job.h"

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

#endif
