/* Reading requests. A table names every member there is; those it does not name are refused, with
 * the nearest that it does. A member that is null is one that is not there. */
#include "serve/request.h"

#include "base/json.h"
#include "base/text.h"

#include <stdarg.h>

/* A message may quote what a client sent, cut anywhere. */
static void clean_text(char *text) {
    json_t *as_is = json_string(text);
    for (char *at = text; !as_is && *at; at++)
        if ((unsigned char)*at >= 0x80) *at = '?';
    json_decref(as_is);
}

bool weft_refuse(weft_refusal *why, int status, const char *code, const char *param,
                 const char *format, ...) {
    va_list list;
    *why = (weft_refusal){.status = status, .code = code};
    snprintf(why->param, sizeof why->param, "%s", param ? param : "");
    va_start(list, format);
    vsnprintf(why->message, sizeof why->message, format, list);
    va_end(list);
    clean_text(why->param);
    clean_text(why->message);
    return false;
}

char *weft_refusal_json(const weft_refusal *why) {
    const char *type = why->status == 401   ? "authentication_error"
                       : why->status == 429 ? "rate_limit_error"
                       : why->status >= 500 ? "server_error"
                                            : "invalid_request_error";
    return weft_json_line(json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", why->message,
                                    "type", type, "param", *why->param ? why->param : NULL, "code",
                                    why->code));
}

enum { TEXT = 1, CHAT = 2, BOTH = TEXT | CHAT };

/* Members that are read, ignored (what they say changes no text) or refused. */
static const struct {
    const char *name;
    unsigned where;
    const char *refused; /* why; NULL: taken */
} members[] = {
    {"model", BOTH, NULL},
    {"prompt", TEXT, NULL},
    {"messages", CHAT, NULL},
    {"max_tokens", BOTH, NULL},
    {"max_completion_tokens", CHAT, NULL},
    {"temperature", BOTH, NULL},
    {"top_p", BOTH, NULL},
    {"top_k", BOTH, NULL},
    {"min_p", BOTH, NULL},
    {"repetition_penalty", BOTH, NULL},
    {"seed", BOTH, NULL},
    {"stop", BOTH, NULL},
    {"n", BOTH, NULL},
    {"stream", BOTH, NULL},
    {"stream_options", BOTH, NULL},
    {"logprobs", BOTH, NULL},
    {"top_logprobs", CHAT, NULL},
    {"echo", TEXT, NULL},
    {"return_token_ids", BOTH, NULL},
    {"user", BOTH, NULL},
    {"metadata", BOTH, NULL},
    {"store", BOTH, NULL},
    {"service_tier", BOTH, NULL},
    {"prompt_cache_key", BOTH, NULL},
    {"prompt_cache_retention", BOTH, NULL},
    {"safety_identifier", BOTH, NULL},
    {"parallel_tool_calls", CHAT, NULL},
    {"best_of", TEXT, "choose among the texts of n yourself"},
    {"suffix", TEXT, "text is made behind a prompt only"},
    {"presence_penalty", BOTH, "repetition_penalty is what this server has"},
    {"frequency_penalty", BOTH, "repetition_penalty is what this server has"},
    {"logit_bias", BOTH, "leave it out"},
    {"response_format", CHAT, "answers are plain text"},
    {"tools", CHAT, "the model calls no tools"},
    {"tool_choice", CHAT, "the model calls no tools"},
    {"functions", CHAT, "the model calls no functions"},
    {"function_call", CHAT, "the model calls no functions"},
    {"modalities", CHAT, "answers are plain text"},
    {"audio", CHAT, "answers are plain text"},
    {"prediction", CHAT, "leave it out"},
    {"reasoning_effort", CHAT, "the model does not reason apart from its answer"},
    {"verbosity", CHAT, "max_tokens limits the answer"},
    {"web_search_options", CHAT, "the model searches nothing"},
};
enum { MEMBERS = sizeof members / sizeof members[0] };

typedef struct {
    int64_t texts; /* the most */
    weft_request *r;
    weft_refusal *why;
} reading;

#define WRONG(in, key, ...) weft_refuse((in)->why, 400, NULL, key, __VA_ARGS__)

static bool refuse_type(const reading *in, const char *key, const char *want) {
    return WRONG(in, key, "'%s' must be %s", key, want);
}

static bool no_memory(const reading *in) {
    return weft_refuse(in->why, 503, NULL, NULL, "no memory for the request; try again later");
}

/* A member that is there and not null. */
static const json_t *find(const reading *in, const char *key) {
    const json_t *value = json_object_get(in->r->root, key);
    return json_is_null(value) ? NULL : value;
}

static bool read_bool(const reading *in, const char *key, bool *out) {
    const json_t *value = find(in, key);
    if (!value) return true;
    if (!json_is_boolean(value)) return refuse_type(in, key, "true or false");
    *out = json_is_true(value);
    return true;
}

/* A number in a range, a whole one where `whole` is not NULL. */
static bool read_number(const reading *in, const char *key, double least, double most,
                        int64_t *whole, double *real) {
    const json_t *value = find(in, key);
    double number = json_number_value(value);
    if (!value) return true;
    if (!(whole ? json_is_integer(value) : json_is_number(value)) || number < least ||
        number > most)
        return WRONG(in, key,
                     whole ? "'%s' must be a whole number from %.0f to %.0f"
                           : "'%s' must be a number from %g to %g",
                     key, least, most);
    if (whole) *whole = json_integer_value(value);
    if (real) *real = number;
    return true;
}

/* Whether a value of a member that is refused asks for nothing. */
static bool is_neutral(const reading *in, const char *key, const json_t *value) {
    const char *text = json_string_value(value);
    if (json_is_null(value) || json_is_false(value)) return true;
    if (json_is_number(value))
        return json_number_value(value) == 0 ||
               (strcmp(key, "best_of") == 0 && json_number_value(value) == (double)in->r->n);
    if (text) return !*text || strcmp(text, "none") == 0 || strcmp(text, "auto") == 0;
    if (json_is_array(value)) {
        text = json_string_value(json_array_get(value, 0));
        return json_array_size(value) == 0 ||
               (json_array_size(value) == 1 && text && strcmp(text, "text") == 0);
    }
    return json_is_object(value) &&
           (json_object_size(value) == 0 || strcmp(weft_json_text_of(value, "type"), "text") == 0);
}

static bool check_members(const reading *in) {
    unsigned where = in->r->endpoint == WEFT_CHAT ? CHAT : TEXT;
    EACH_MEMBER(m, in->r->root) {
        size_t i = 0;
        while (i < MEMBERS && (strcmp(members[i].name, m.key) != 0 || !(members[i].where & where)))
            i++;
        if (i == MEMBERS) {
            weft_nearest nearest = weft_nearest_slip(m.key);
            for (size_t k = 0; k < MEMBERS; k++)
                if ((members[k].where & where) && !members[k].refused)
                    weft_nearest_offer(&nearest, members[k].name);
            if (*nearest.name)
                return weft_refuse(in->why, 400, "unknown_parameter", m.key,
                                   "unknown parameter '%.64s'; did you mean '%s'?", m.key,
                                   nearest.name);
            return weft_refuse(in->why, 400, "unknown_parameter", m.key,
                               "unknown parameter '%.64s'; leave it out", m.key);
        }
        if (members[i].refused && !is_neutral(in, m.key, m.value))
            return weft_refuse(in->why, 400, "unsupported_parameter", m.key,
                               "'%s' is not supported; %s", m.key, members[i].refused);
    }
    return true;
}

static bool read_prompt(const reading *in, const json_t *value, weft_request_prompt *out) {
    static const char prompts[] = "a text, or numbers of tokens, or a list of these";
    if (json_is_array(value)) {
        size_t count = json_array_size(value);
        if (count == 0) return WRONG(in, "prompt", "a prompt without tokens");
        out->tokens = malloc(count * sizeof *out->tokens);
        if (!out->tokens) return no_memory(in);
        EACH_ITEM(item, value) {
            json_int_t token = json_integer_value(item.value);
            if (!json_is_integer(item.value) || token < 0 || token > INT32_MAX)
                return refuse_type(in, "prompt", prompts);
            out->tokens[out->n_tokens++] = (int32_t)token;
        }
        return true;
    }
    if (!json_is_string(value)) return refuse_type(in, "prompt", prompts);
    out->text = json_string_value(value);
    out->bytes = json_string_length(value);
    return true;
}

/* One prompt, or a list of them; a list of numbers is one. */
static bool read_prompts(const reading *in) {
    weft_request *r = in->r;
    const json_t *value = find(in, "prompt");
    if (!value) return WRONG(in, "prompt", "'prompt' is needed");
    bool list = json_is_array(value) && !json_is_integer(json_array_get(value, 0));
    size_t count = list ? json_array_size(value) : 1;
    if (count == 0) return WRONG(in, "prompt", "a list without prompts");
    if ((int64_t)count > in->texts / r->n)
        return WRONG(in, "prompt",
                     "%lld prompts with n = %lld are more texts than the %lld that one "
                     "request may ask for; send several requests",
                     (long long)count, (long long)r->n, (long long)in->texts);
    r->prompts = calloc(count, sizeof *r->prompts);
    if (!r->prompts) return no_memory(in);
    r->n_prompts = (int64_t)count;
    for (size_t i = 0; i < count; i++)
        if (!read_prompt(in, list ? json_array_get(value, i) : value, r->prompts + i)) return false;
    return true;
}

static bool read_message(const reading *in, const json_t *value, weft_message *out) {
    static const char *const roles[] = {"system", "developer", "user", "assistant"};
    const char *role = json_string_value(json_object_get(value, "role"));
    const json_t *content = json_object_get(value, "content");
    for (size_t i = 0; role && i < sizeof roles / sizeof roles[0]; i++)
        if (strcmp(role, roles[i]) == 0) out->role = roles[i];
    if (!out->role)
        return refuse_type(in, "messages",
                           "a list of objects with \"role\" (system, developer, user or "
                           "assistant) and \"content\"");
    EACH_MEMBER(m, value) {
        if (strcmp(m.key, "role") == 0 || strcmp(m.key, "content") == 0 ||
            strcmp(m.key, "name") == 0 || is_neutral(in, m.key, m.value))
            continue;
        return weft_refuse(in->why, 400, "unknown_parameter", "messages",
                           "unknown member '%.64s' of a message; leave it out", m.key);
    }
    if (json_is_array(content)) {
        EACH_ITEM(part, content) {
            const json_t *text = json_object_get(part.value, "text");
            if (strcmp(weft_json_text_of(part.value, "type"), "text") != 0 || !json_is_string(text))
                return refuse_type(in, "messages",
                                   "messages of text: content is a text, or a list of "
                                   "{\"type\": \"text\", \"text\": ...}");
            size_t bytes = json_string_length(text);
            char *grown = realloc(out->content, out->bytes + bytes + 1);
            if (!grown) return no_memory(in);
            memcpy(grown + out->bytes, json_string_value(text), bytes);
            out->content = grown;
            out->bytes += bytes;
        }
        return true;
    }
    if (!json_is_string(content) && !(json_is_null(content) && strcmp(role, "assistant") == 0))
        return refuse_type(in, "messages", "messages with \"content\", a text");
    out->bytes = json_string_length(content);
    out->content = malloc(out->bytes + 1);
    if (!out->content) return no_memory(in);
    if (out->bytes) memcpy(out->content, json_string_value(content), out->bytes);
    return true;
}

static bool read_messages(const reading *in) {
    weft_request *r = in->r;
    const json_t *list = find(in, "messages");
    size_t count = json_array_size(list);
    if (!list) return WRONG(in, "messages", "'messages' is needed");
    if (count == 0) return refuse_type(in, "messages", "a list of one message at least");
    r->messages = calloc(count, sizeof *r->messages);
    r->prompts = calloc(1, sizeof *r->prompts);
    if (!r->messages || !r->prompts) return no_memory(in);
    r->n_prompts = 1;
    r->n_messages = (int64_t)count;
    for (size_t i = 0; i < count; i++)
        if (!read_message(in, json_array_get(list, i), r->messages + i)) return false;
    return true;
}

static bool read_stops(const reading *in) {
    weft_request *r = in->r;
    const json_t *value = find(in, "stop");
    size_t count = json_is_array(value) ? json_array_size(value) : 1;
    if (!value) return true;
    if (count > WEFT_REQUEST_STOPS)
        return WRONG(in, "stop", "'stop' may have %d texts at most", WEFT_REQUEST_STOPS);
    for (size_t i = 0; i < count; i++) {
        const json_t *stop = json_is_array(value) ? json_array_get(value, i) : value;
        size_t bytes = json_string_length(stop);
        if (!json_is_string(stop) || bytes == 0 || strlen(json_string_value(stop)) < bytes)
            return refuse_type(in, "stop",
                               "a text that is not empty and has no \\u0000, or a list of such");
        r->stops[r->n_stops++] = json_string_value(stop);
    }
    return true;
}

static bool read_sampling(const reading *in) {
    weft_sampling *s = &in->r->sampling;
    int64_t seed = 0;
    const int64_t most = WEFT_REQUEST_TOKENS;
    *s = weft_sampling_default();
    s->max_tokens = in->r->endpoint == WEFT_COMPLETIONS ? WEFT_REQUEST_TEXT_TOKENS : most;
    in->r->has_seed = find(in, "seed") != NULL;
    bool good = read_number(in, "temperature", 0, 100, NULL, &s->temperature) &&
                read_number(in, "top_p", 0, 1, NULL, &s->top_p) &&
                read_number(in, "min_p", 0, 1, NULL, &s->min_p) &&
                read_number(in, "repetition_penalty", 0.01, 100, NULL, &s->repetition_penalty) &&
                read_number(in, "top_k", 0, INT32_MAX, &s->top_k, NULL) &&
                read_number(in, "max_tokens", 0, most, &s->max_tokens, NULL) &&
                read_number(in, "max_completion_tokens", 1, most, &s->max_tokens, NULL) &&
                read_number(in, "seed", 0, INT64_C(9007199254740991), &seed, NULL);
    s->seed = (uint64_t)seed;
    return good;
}

/* Completions have a number under "logprobs", chats true or false and the number beside it. */
static bool read_logprobs(const reading *in) {
    weft_request *r = in->r;
    int64_t top = 0;
    if (r->endpoint == WEFT_COMPLETIONS) {
        r->logprobs = find(in, "logprobs") != NULL;
        if (!read_number(in, "logprobs", 0, WEFT_TOP_MAX, &top, NULL)) return false;
    } else {
        if (!read_bool(in, "logprobs", &r->logprobs) ||
            !read_number(in, "top_logprobs", 0, WEFT_TOP_MAX, &top, NULL))
            return false;
        if (top && !r->logprobs)
            return WRONG(in, "top_logprobs", "'top_logprobs' needs 'logprobs': true");
    }
    r->sampling.top_logprobs = (int)top;
    return true;
}

static bool read_stream(const reading *in) {
    weft_request *r = in->r;
    const json_t *options = find(in, "stream_options"), *usage;
    if (!read_bool(in, "stream", &r->stream)) return false;
    if (!options) return true;
    usage = json_object_get(options, "include_usage");
    if (!json_is_object(options) || (usage && !json_is_boolean(usage)))
        return refuse_type(in, "stream_options", "an object such as {\"include_usage\": true}");
    if (!r->stream) return WRONG(in, "stream_options", "'stream_options' needs 'stream': true");
    r->include_usage = json_is_true(usage);
    return true;
}

static bool read_rest(const reading *in) {
    weft_request *r = in->r;
    const json_t *model = find(in, "model");
    if (model && !json_is_string(model)) return refuse_type(in, "model", "a text");
    r->model = json_string_value(model);
    if (!read_bool(in, "echo", &r->echo) || !read_bool(in, "return_token_ids", &r->token_ids))
        return false;
    r->sampling.prompt_logprobs = r->echo && r->logprobs;
    if (r->sampling.max_tokens == 0 && !r->sampling.prompt_logprobs)
        return WRONG(in, "max_tokens",
                     "'max_tokens' must be 1 or more; 0 needs 'echo' and 'logprobs', for the "
                     "prompt's own log-probabilities");
    return true;
}

bool weft_request_parse(const char *body, size_t bytes, weft_endpoint endpoint, int64_t texts,
                        weft_request *out, weft_refusal *why) {
    json_error_t error;
    *out = (weft_request){.endpoint = endpoint};
    *why = (weft_refusal){0};
    out->root = weft_json_read(body, bytes,
                               JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (!out->root)
        return weft_refuse(why, 400, "invalid_json", NULL,
                           "the body is not JSON: line %d, column %d: %s", error.line, error.column,
                           error.text);
    reading own = {texts, out, why}, *in = &own;
    int64_t most = texts < WEFT_REQUEST_N ? texts : WEFT_REQUEST_N;
    out->n = 1;
    bool good = json_is_object(out->root) ||
                weft_refuse(why, 400, "invalid_json", NULL,
                            "the body must be one JSON object, such as {\"prompt\": ...}");
    good = good && read_number(in, "n", 1, (double)most, &out->n, NULL) && check_members(in) &&
           read_sampling(in) && read_logprobs(in) && read_stops(in) && read_stream(in) &&
           read_rest(in) && (endpoint == WEFT_CHAT ? read_messages(in) : read_prompts(in));
    if (!good) weft_request_free(out);
    return good;
}

void weft_request_free(weft_request *r) {
    for (int64_t i = 0; r->prompts && i < r->n_prompts; i++)
        free(r->prompts[i].tokens);
    for (int64_t i = 0; r->messages && i < r->n_messages; i++)
        free(r->messages[i].content);
    WEFT_FREE(r->prompts, r->messages);
    json_decref(r->root);
    *r = (weft_request){0};
}
