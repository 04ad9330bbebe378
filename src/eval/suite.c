/* Questions are read first and become requests: tokens, and how many of the last are the choice's. A
 * request is one pass with targets at the choice's places alone, so the mean cross-entropy times their
 * number is the log-likelihood. Passes are built for a few lengths (powers of two up to the model's
 * block) and requests are padded to the next one at their end, which a causal model does not see;
 * requests are taken length by length, so each pass is built once. */
#include "eval/eval.h"

#include "base/json.h"
#include "base/text.h"
#include "model/session.h"

#include <math.h>

enum { LEAST_TIME = 16, CHOICES_MOST = 1024 };

typedef struct {
    int32_t *tokens; /* [n]: context, then choice */
    int64_t n, choice;
    double characters, likelihood;
} request;

typedef struct {
    int64_t first, n, answer; /* requests first .. first + n - 1 */
} question;

typedef struct {
    const weft_model *model;
    const weft_backend *backend;
    weft_pool *pool;
    weft_encoder *encoder;
    int32_t begin; /* in place of an empty context; -1: none */
    bool begins;   /* before every context */
    const char *path;
    request *requests;
    int64_t n_requests;
    question *questions;
    int64_t n_questions;
} suite;

static void end_suite(suite *s) {
    for (int64_t i = 0; i < s->n_requests; i++)
        free(s->requests[i].tokens);
    WEFT_FREE(s->requests, s->questions);
    weft_encoder_close(s->encoder);
}

static weft_status add_request(suite *s, const char *context, const char *choice) {
    request *r = WEFT_ADD(s->requests, s->n_requests);
    if (!r) return weft_no_memory(s->path);
    /* The tokens of both together; those behind the context's own number are the choice's. */
    size_t head = strlen(context), tail = strlen(choice);
    WEFT_ROOM(char, whole, head + tail + 1, "%s: no memory", s->path);
    snprintf(whole, head + tail + 1, "%s%s", context, choice);
    size_t bytes = head + tail;
    while (head > 0 && strchr(" \t\n\v\f\r", whole[head - 1]))
        head--;
    const int32_t *tokens;
    int64_t n_context = 0, n = 0, extra = head == 0 || s->begins;
    if (head) WEFT_TRY(weft_encode(s->encoder, whole, head, false, &tokens, &n_context));
    WEFT_TRY(weft_encode(s->encoder, whole, bytes, false, &tokens, &n));
    if (extra && s->begin < 0)
        return WEFT_BAD_INPUT("a context is empty, and the tokenizer has no token to begin with");
    if (n <= n_context)
        return WEFT_BAD_INPUT("choice '%.40s' adds no token to its context", choice);
    WEFT_ROOM_AT(r->tokens, n + extra, "%s: no memory", s->path);
    if (extra) r->tokens[0] = s->begin;
    memcpy(r->tokens + extra, tokens, (size_t)n * sizeof *tokens);
    r->n = n + extra;
    r->choice = n - n_context;
    r->characters = weft_utf8_count(choice, strlen(choice));
    int64_t context_room = s->model->config.context, over = r->n - (context_room + 1);
    if (r->choice > context_room)
        return WEFT_BAD_INPUT("a choice has %lld tokens, but CONTEXT is %lld", (long long)r->choice,
                              (long long)context_room);
    if (over <= 0) return WEFT_OK;
    /* What is too long loses its beginning: one token more than the context is read and told. */
    r->n -= over;
    memmove(r->tokens, r->tokens + over, (size_t)r->n * sizeof *r->tokens);
    return WEFT_OK;
}

static weft_status add_question(suite *s, const json_t *line) {
    const char *context = json_string_value(json_object_get(line, "context"));
    const json_t *choices = json_object_get(line, "choices");
    const json_t *answer = json_object_get(line, "answer");
    size_t n = json_array_size(choices);
    if (!context || n < 1 || n > CHOICES_MOST || !json_is_integer(answer))
        return WEFT_BAD_INPUT("a question is {\"context\": text, \"choices\": [texts], "
                              "\"answer\": number}");
    if (json_integer_value(answer) < 0 || json_integer_value(answer) >= (json_int_t)n)
        return WEFT_BAD_INPUT("answer is %lld, but the choices are 0 to %lld",
                              (long long)json_integer_value(answer), (long long)n - 1);
    question *q = WEFT_ADD(s->questions, s->n_questions);
    if (!q) return weft_no_memory(s->path);
    *q = (question){s->n_requests, (int64_t)n, json_integer_value(answer)};
    for (size_t i = 0; i < n; i++) {
        const char *choice = json_string_value(json_array_get(choices, i));
        if (!choice || !*choice)
            return WEFT_BAD_INPUT("choice %lld is no text, or an empty one", (long long)i);
        WEFT_TRY(add_request(s, context, choice));
    }
    return WEFT_OK;
}

static weft_status read_questions(suite *s) {
    WEFT_AUTO_FCLOSE FILE *file = NULL;
    WEFT_AUTO_FREE char *line = NULL;
    size_t room = 0;
    ssize_t n;
    WEFT_TRY(weft_file_open_stream(s->path, &file));
    for (int64_t number = 1; (n = getline(&line, &room, file)) > 0; number++) {
        json_error_t error;
        if (strspn(line, " \t\n\v\f\r") >= (size_t)n) continue;
        WEFT_AUTO_DECREF json_t *one = json_loadb(line, (size_t)n, JSON_REJECT_DUPLICATES, &error);
        if (!one) return WEFT_BAD_INPUT("%s:%lld: %s", s->path, (long long)number, error.text);
        weft_status status = add_question(s, one);
        if (status == WEFT_EINPUT)
            return WEFT_BAD_INPUT("%s:%lld: %s", s->path, (long long)number, weft_error_message());
        WEFT_TRY(status);
    }
    if (ferror(file)) return weft_path_failed(s->path);
    if (s->n_questions > 0) return WEFT_OK;
    return WEFT_BAD_INPUT("%s: there is no question in it", s->path);
}

/* The length that a request's pass is built for. */
static int64_t padded_time(const suite *s, const request *r) {
    int64_t time = LEAST_TIME, most = s->model->config.context;
    while (time < r->n - 1)
        time *= 2;
    return time < most ? time : most;
}

static weft_status score_length(suite *s, int64_t time, int32_t *tokens, int32_t *targets) {
    WEFT_AUTO(weft_session_close) weft_session session = {0};
    weft_build build = {.batch = 1, .time = time, .dtype = s->model->dtype};
    for (int64_t i = 0; i < s->n_requests; i++) {
        request *r = &s->requests[i];
        weft_loss_parts parts;
        if (padded_time(s, r) != time) continue;
        if (!session.exec)
            WEFT_TRY(
                weft_session_open(s->model, s->backend, s->pool, &build, false, false, &session));
        for (int64_t t = 0; t < time; t++) {
            tokens[t] = t < r->n - 1 ? r->tokens[t] : 0;
            targets[t] = t < r->n - 1 && t >= r->n - 1 - r->choice ? r->tokens[t + 1] : -1;
        }
        WEFT_TRY(weft_session_run(&session, tokens, targets, NULL));
        WEFT_TRY(weft_session_losses(&session, &parts));
        r->likelihood = -parts.cross_entropy * (double)r->choice;
    }
    return WEFT_OK;
}

/* The likeliest choice; bit-equal ones: the first. */
static int64_t choose(const suite *s, const question *q, bool normalised) {
    int64_t best = 0;
    double most = -INFINITY;
    for (int64_t i = 0; i < q->n; i++) {
        const request *r = &s->requests[q->first + i];
        double value = normalised ? r->likelihood / r->characters : r->likelihood;
        if (value <= most) continue;
        most = value;
        best = i;
    }
    return best;
}

static double standard_error(double share, int64_t n) {
    return n > 1 ? sqrt(share * (1 - share) / (double)(n - 1)) : 0;
}

weft_status weft_suite(const weft_model *m, const weft_tokenizer *tokenizer,
                       const weft_backend *backend, weft_pool *pool, const char *path,
                       const char *details, weft_suite_score *out) {
    WEFT_AUTO(end_suite)
    suite s = {.model = m,
               .backend = backend,
               .pool = pool,
               .path = path,
               .begin = weft_tokenizer_first(tokenizer),
               .begins = weft_tokenizer_begin(tokenizer) >= 0};
    if (!m->config.causal)
        return WEFT_BAD_INPUT(
            "%s: a model with CAUSAL=n has seen the answers; its likelihoods mean nothing", path);
    WEFT_TRY(weft_encoder_open(tokenizer, &s.encoder));
    WEFT_TRY(read_questions(&s));
    int64_t most = m->config.context;
    WEFT_ROOM(int32_t, tokens, most * 2, "%s: no memory", s.path);
    for (int64_t time = LEAST_TIME; time < most; time *= 2)
        WEFT_TRY(score_length(&s, time, tokens, tokens + most));
    WEFT_TRY(score_length(&s, most, tokens, tokens + most));
    int64_t right = 0, right_norm = 0;
    for (int64_t i = 0; i < s.n_questions; i++) {
        const question *q = &s.questions[i];
        right += choose(&s, q, false) == q->answer;
        right_norm += choose(&s, q, true) == q->answer;
    }
    double n = (double)s.n_questions;
    *out = (weft_suite_score){
        .questions = s.n_questions, .acc = (double)right / n, .acc_norm = (double)right_norm / n};
    out->acc_error = standard_error(out->acc, s.n_questions);
    out->acc_norm_error = standard_error(out->acc_norm, s.n_questions);
    if (!details) return WEFT_OK;
    weft_new_file f;
    WEFT_TRY(weft_new_file_begin(&f, details));
    weft_status status = WEFT_OK;
    for (int64_t k = 0; status == WEFT_OK && k < s.n_questions; k++) {
        const question *q = &s.questions[k];
        const request *r = &s.requests[q->first];
        WEFT_JSON_LIST(likelihoods, i, q->n, json_real(r[i].likelihood));
        json_t *line = weft_json_make("answer:I chosen:I chosen_norm:I loglikelihoods:o", q->answer,
                                      choose(&s, q, false), choose(&s, q, true), likelihoods);
        status = weft_eval_put(&f, line, JSON_REAL_PRECISION(12));
    }
    return weft_new_file_end(&f, status);
}
