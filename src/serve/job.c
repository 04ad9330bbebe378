/* Jobs: memory, owners and waking; and their answers as JSON. A token's text may be a part of a character; it is then
 * told by its bytes, as in "bytes:\xe2\x80". */
#include "base/text.h"
#include "serve/worker.h"

#include "base/json.h"

#include <sys/random.h>
#include <time.h>

static void destroy(weft_job *j) {
    for (int64_t i = 0; j->choices && i < j->n_choices; i++) {
        weft_stream_close(j->choices[i].stream);
        free(j->choices[i].tokens);
    }
    free(j->choices);
    weft_request_free(&j->request);
    pthread_mutex_destroy(&j->lock);
    free(j);
}

static bool is_chat(const weft_job *j) {
    return j->request.endpoint == WEFT_CHAT;
}

weft_job *weft_job_create(weft_request *request, const weft_tokenizer *t, const char *model) {
    weft_job *j = calloc(1, sizeof *j);
    if (!j) {
        weft_request_free(request);
        return NULL;
    }
    j->request = *request;
    *request = (weft_request){0};
    j->tokenizer = t;
    j->model = model;
    j->created = (int64_t)time(NULL);
    uint64_t words[2] = {0};
    if (getrandom(words, sizeof words, GRND_NONBLOCK) < 0) words[0] = (uint64_t)time(NULL);
    snprintf(j->id, sizeof j->id, "%s-%016llx%016llx", is_chat(j) ? "chatcmpl" : "cmpl",
             (unsigned long long)words[0], (unsigned long long)words[1]);
    pthread_mutex_init(&j->lock, NULL);
    atomic_init(&j->cancelled, false);
    atomic_init(&j->owners, 1);
    j->keeps_tokens = j->request.logprobs || j->request.token_ids;
    j->n_choices = j->request.n_prompts * j->request.n;
    j->choices = calloc((size_t)j->n_choices, sizeof *j->choices);
    if (!j->choices) {
        destroy(j);
        return NULL;
    }
    for (int64_t i = 0; i < j->n_choices; i++) {
        j->choices[i].prompt = i / j->request.n;
        j->choices[i].id = -1;
    }
    return j;
}

bool weft_job_check(const weft_job *j, weft_refusal *why) {
    const weft_sampling *s = &j->request.sampling;
    int64_t numbers = 0;
    for (int64_t i = 0; s->prompt_logprobs && i < j->request.n_prompts; i++)
        numbers += j->request.prompts[i].n_tokens * j->request.n * (1 + s->top_logprobs);
    if (numbers <= WEFT_JOB_TOLD) return true;
    return weft_refuse(
        why, 400, NULL, "echo",
        "'echo' with 'logprobs' would tell %lld numbers of the prompts, more than %d; "
        "send fewer prompts at once, or ask for fewer texts or alternatives",
        (long long)numbers, (int)WEFT_JOB_TOLD);
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

void weft_job_give_up(weft_job *j) {
    atomic_store(&j->cancelled, true);
    WEFT_LOCK(&j->lock);
    weft_job_wake(j);
}

enum { TOKEN_TEXT = 4 * 256 + 16 };

/* A token's text for humans: as it is where it is whole characters, else by its bytes. */
static const char *token_text(const weft_job *j, int32_t token, char out[TOKEN_TEXT]) {
    int32_t bytes = 0;
    const char *text = weft_tokenizer_token(j->tokenizer, token, &bytes);
    json_t *whole = text ? json_stringn(text, (size_t)bytes) : NULL;
    bool plain = whole && bytes < TOKEN_TEXT && !memchr(text, 0, (size_t)bytes);
    json_decref(whole);
    if (plain) {
        memcpy(out, text, (size_t)bytes);
        out[bytes] = 0;
        return out;
    }
    int at = snprintf(out, TOKEN_TEXT, "bytes:");
    for (int32_t i = 0; text && i < bytes && at + 5 < TOKEN_TEXT; i++)
        at += snprintf(out + at, 5, "\\x%02x", (unsigned char)text[i]);
    return out;
}

static json_t *chat_token(const weft_job *j, int32_t token, float logprob) {
    char text[TOKEN_TEXT];
    int32_t bytes = 0;
    const char *raw = weft_tokenizer_token(j->tokenizer, token, &bytes);
    WEFT_JSON_LIST(list, i, raw ? bytes : 0, json_integer((unsigned char)raw[i]));
    return weft_json_make("token:s logprob:f bytes:o", token_text(j, token, text), (double)logprob,
                          list);
}

static json_t *chat_logprobs(const weft_job *j, const weft_choice *c, int64_t from) {
    json_t *content = json_array();
    for (int64_t i = from; i < c->n_tokens; i++) {
        const weft_sampled *t = c->tokens + i;
        json_t *entry = chat_token(j, t->token, t->logprob);
        WEFT_JSON_LIST(top, k, t->n_top, chat_token(j, t->top[k], t->top_logprob[k]));
        json_object_set_new(entry, "top_logprobs", top);
        json_array_append_new(content, entry);
    }
    return json_pack("{s:o, s:n}", "content", content, "refusal");
}

static int64_t count_characters(const weft_job *j, int32_t token) {
    int32_t bytes = 0;
    const char *raw = weft_tokenizer_token(j->tokenizer, token, &bytes);
    return raw ? weft_utf8_count(raw, (size_t)bytes) : 0;
}

/* The older shape: lists side by side. *offset: characters before these tokens. */
static json_t *text_logprobs(const weft_job *j, const weft_choice *c, int64_t from,
                             int64_t *offset) {
    char text[TOKEN_TEXT];
    bool wanted = j->request.sampling.top_logprobs > 0;
    json_t *tokens = json_array(), *values = json_array(), *offsets = json_array();
    json_t *tops = wanted ? json_array() : NULL;
    json_t *ids = wanted && j->request.token_ids ? json_array() : NULL;
    for (int64_t i = from; i < c->n_tokens; i++) {
        const weft_sampled *t = c->tokens + i;
        json_array_append_new(tokens, json_string(token_text(j, t->token, text)));
        json_array_append_new(values, weft_json_number((double)t->logprob));
        json_array_append_new(offsets, json_integer(*offset > 0 ? *offset : 0));
        *offset += count_characters(j, t->token);
        json_t *top = json_object(), *top_ids = json_object();
        for (int k = 0; k < t->n_top; k++) {
            const char *name = token_text(j, t->top[k], text);
            json_object_set_new(top, name, weft_json_number((double)t->top_logprob[k]));
            json_object_set_new(top_ids, name, json_integer(t->top[k]));
        }
        json_array_append_new(tops, top);
        json_array_append_new(ids, top_ids);
    }
    if (from == 0 && c->n_told > 0) { /* nothing comes before a prompt's first token */
        json_array_set_new(tops, 0, json_null());
        json_array_set_new(ids, 0, json_null());
    }
    return weft_json_make("tokens:o token_logprobs:o text_offset:o top_logprobs:o top_token_ids:o*",
                          tokens, values, offsets, tops, ids);
}

/* Tokens of all prompts, of all texts, and those of prompts that were not computed again. */
static json_t *usage(const weft_job *j) {
    json_int_t prompt = 0, made = 0, shared = 0;
    for (int64_t i = 0; i < j->request.n_prompts; i++)
        prompt += j->request.prompts[i].n_tokens;
    for (int64_t i = 0; i < j->n_choices; i++) {
        made += j->choices[i].made;
        /* A prompt's tokens are counted once, so are those that were found. */
        if (i % j->request.n == 0) shared += j->choices[i].shared;
    }
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", prompt, "completion_tokens", made,
                     "total_tokens", prompt + made, "prompt_tokens_details", "cached_tokens",
                     shared);
}

/* An answer of the kind `object` as one line; it takes its choices, and its usage, which is left out where it is NULL. */
static char *answer_line(const weft_job *j, const char *object, json_t *choices, json_t *used) {
    json_t *answer =
        json_pack("{s:s, s:s, s:I, s:s, s:I, s:o, s:o*}", "id", j->id, "object", object, "created",
                  (json_int_t)j->created, "model", j->model, "seed",
                  (json_int_t)j->request.sampling.seed, "choices", choices, "usage", used);
    return weft_json_line(answer);
}

/* What was not sent yet of a choice's text. */
static json_t *new_text(const weft_job *j, const weft_choice *c) {
    WEFT_AUTO_FREE char *both = NULL;
    size_t bytes = 0;
    const char *made = weft_stream_text(c->stream, &bytes);
    if (!j->request.echo || c->sent.begun)
        return json_stringn(made + c->sent.bytes, c->bytes - c->sent.bytes);
    FILE *to = open_memstream(&both, &bytes);
    if (!to) return NULL;
    /* The prompt's text, for echo. */
    const weft_request_prompt *p = j->request.prompts + c->prompt;
    weft_stream *stream;
    size_t length;
    bool stopped;
    if (p->text) fwrite(p->text, 1, p->bytes, to);
    if (!p->text && weft_stream_open(j->tokenizer, NULL, 0, &stream) == WEFT_OK) {
        weft_status status = WEFT_OK;
        for (int64_t i = 0; status == WEFT_OK && i < p->n_tokens; i++)
            status = weft_stream_put(stream, p->tokens[i], &stopped);
        if (status == WEFT_OK) weft_stream_end(stream);
        const char *text = weft_stream_text(stream, &length);
        fwrite(text, 1, length, to);
        weft_stream_close(stream);
    }
    if (c->bytes) fwrite(made, 1, c->bytes, to);
    return fclose(to) == 0 ? json_stringn(both, bytes) : NULL;
}

static json_t *choice_json(const weft_job *j, int64_t i, bool event) {
    weft_choice *c = j->choices + i;
    weft_sent *p = &c->sent;
    const weft_request *r = &j->request;
    json_t *logprobs = json_null(), *text = new_text(j, c), *object;
    /* Where the tokens of an echoed prompt begin, so that they end where its text does: below 0
     * where the tokenizer put something before it. */
    if (!p->begun && r->sampling.prompt_logprobs) {
        const weft_request_prompt *given = j->request.prompts + c->prompt;
        int64_t offset = given->text ? weft_utf8_count(given->text, given->bytes) : 0;
        for (int64_t k = 0; given->text && k < c->n_told; k++)
            offset -= count_characters(j, c->tokens[k].token);
        p->offset = offset;
    }
    if (r->logprobs && is_chat(j))
        logprobs = chat_logprobs(j, c, p->tokens);
    else if (r->logprobs)
        logprobs = text_logprobs(j, c, p->tokens, &p->offset);
    const char *form = !is_chat(j) ? "text" : event ? "delta" : "message";
    if (is_chat(j) && !event)
        text = json_pack("{s:s, s:o, s:n}", "role", "assistant", "content", text, "refusal");
    else if (is_chat(j))
        text = weft_json_make("content:o role:s*", text, p->begun ? NULL : "assistant");
    object = json_pack("{s:I, s:o, s:o, s:s?}", "index", (json_int_t)i, form, text, "logprobs",
                       logprobs, "finish_reason", c->finish);
    if (!r->token_ids) return object;
    const weft_request_prompt *prompt = r->prompts + c->prompt;
    int64_t from = p->tokens > c->n_told ? p->tokens : c->n_told;
    WEFT_JSON_LIST(ids, k, c->n_told + c->made - from, json_integer(c->tokens[from + k].token));
    json_object_set_new(object, "token_ids", ids);
    if (p->begun) return object;
    WEFT_JSON_LIST(prompt_ids, k, prompt->n_tokens, json_integer(prompt->tokens[k]));
    json_object_set_new(object, "prompt_token_ids", prompt_ids);
    return object;
}

char *weft_answer_whole(const weft_job *j) {
    WEFT_JSON_LIST(list, i, j->n_choices, choice_json(j, i, false));
    return answer_line(j, is_chat(j) ? "chat.completion" : "text_completion", list, usage(j));
}

/* One event; `choice` is taken, NULL: none. */
static void put_event(const weft_job *j, FILE *to, json_t *choice, json_t *used) {
    json_t *list = json_array();
    if (choice) json_array_append_new(list, choice);
    WEFT_AUTO_FREE char *text =
        answer_line(j, is_chat(j) ? "chat.completion.chunk" : "text_completion", list,
                    j->request.include_usage ? used : NULL);
    fprintf(to, "data: %s\n\n", text ? text : "{}");
}

char *weft_answer_events(weft_job *j) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    if (!to) return NULL;
    for (int64_t i = 0; i < j->n_choices; i++) {
        weft_choice *c = j->choices + i;
        weft_sent *p = &c->sent;
        bool more = c->bytes > p->bytes || (j->keeps_tokens && c->n_tokens > p->tokens) ||
                    (c->finish && !p->ended);
        /* A prompt that is told is told whole. */
        bool told = !j->request.sampling.prompt_logprobs ||
                    c->n_told == j->request.prompts[c->prompt].n_tokens;
        if (!more || !told) continue;
        put_event(j, to, choice_json(j, i, true), json_null());
        p->bytes = c->bytes;
        p->tokens = c->n_tokens;
        p->begun = true;
        p->ended = c->finish != NULL;
    }
    if (j->finished && !j->ended) {
        j->ended = true;
        if (j->failure.status) {
            WEFT_AUTO_FREE char *error = weft_refusal_json(&j->failure);
            fprintf(to, "data: %s\n\n", error ? error : "{\"error\":{}}");
        } else {
            if (j->request.include_usage) put_event(j, to, NULL, usage(j));
            fputs("data: [DONE]\n\n", to);
        }
    }
    return weft_memory_end(to, &text);
}
