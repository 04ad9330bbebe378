/* What a client wants: the body of a request, checked and in a struct.
 *
 * Bodies are not trusted. They must be JSON (RFC 8259) in UTF-8, one object without repeated keys; every member must be
 * known, of its type and in its range. What OpenAI's interface has and this server does not is refused by name, unless
 * its value asks for nothing. This file knows nothing of HTTP and of the model, and can be called on any bytes. */
#pragma once

#include "data/tokenizer.h"
#include "generate/sample.h"

#include <jansson.h>

/* A request that is not answered: the HTTP status and the error in OpenAI's shape,
 *
 *     {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
 *
 * The message says what is wrong and what to do about it. */
typedef struct {
    int status;       /* of HTTP; 0: nothing is wrong */
    const char *code; /* "context_length_exceeded"; NULL: none */
    char param[64];   /* the parameter that is wrong; empty: none */
    char message[480];
} weft_refusal;

/* Fills it in and returns false, so that a check ends on `return weft_refuse(...)`. `param` and
 * `code` may be NULL. Bytes of the message that are no UTF-8 become '?'. */
bool weft_refuse(weft_refusal *why, int status, const char *code, const char *param,
                 const char *format, ...) __attribute__((format(printf, 5, 6)));

/* As JSON, malloc'd; NULL: no memory. */
char *weft_refusal_json(const weft_refusal *why);

enum {
    WEFT_REQUEST_STOPS = 16,
    WEFT_REQUEST_N = 128,
    WEFT_REQUEST_TEXT_TOKENS = 16,  /* of a completion that says nothing; */
    WEFT_REQUEST_TOKENS = INT32_MAX /* a chat means as many as fit */
};

typedef enum { WEFT_COMPLETIONS, WEFT_CHAT } weft_endpoint;

/* A text, or tokens as numbers, which a text has too once it is encoded. */
typedef struct {
    const char *text; /* NULL: tokens */
    size_t bytes;
    int32_t *tokens;
    int64_t n_tokens;
} weft_request_prompt;

typedef struct {
    const char *role; /* system, developer, user or assistant */
    char *content;
    size_t bytes;
} weft_message;

typedef struct {
    weft_endpoint endpoint;
    const char *model;            /* NULL: none was named */
    weft_request_prompt *prompts; /* a chat has one, made of its messages */
    int64_t n_prompts;
    weft_message *messages; /* of a chat */
    int64_t n_messages;
    int64_t n; /* texts of each prompt */
    weft_sampling sampling;
    bool has_seed;
    const char *stops[WEFT_REQUEST_STOPS + 1]; /* room for one of the server's */
    int n_stops;
    bool stream, include_usage;
    bool logprobs, token_ids; /* for each token */
    bool echo;                /* the prompt before its text */
    json_t *root;             /* holds the texts */
} weft_request;

/* `texts`: the most of them, prompts times n. False: *why says what is wrong, and nothing is to be freed. */
bool weft_request_parse(const char *body, size_t bytes, weft_endpoint endpoint, int64_t texts,
                        weft_request *out, weft_refusal *why);
void weft_request_free(weft_request *r);

/* From a conversation to a prompt: CONFIG_CHAT_TEMPLATE.
 *
 * The template is one message's text, with {role} and {content} in it, as in "{role}:\n{content}\n\n". A conversation
 * is its messages one behind the other, and then the beginning of the assistant's, up to its content, which is the
 * model's to write. What follows the content ends it: it is a stop string. \n, \t and \\ mean a line end, a tab and a
 * backslash.
 *
 * Where roles are written differently, the template has a form for each, behind its name: {begin}, what a conversation
 * begins with; {default}, what stands where there is no system message; {system}, {user} and {assistant}, messages;
 * without {system} such messages are refused; {first}, the user's behind a system message, where it is another; and
 * {answer}, what an answer begins behind. {content|trim} is the content without blanks around it, {content|lstrip} and
 * {content|rstrip} without those before and behind it, {content|lines} without line ends before it; {content|cut} is
 * what follows its last </think>, and {content|think} that without the line ends before it. Several are
 * {content|cut|lines}. scripts/chat-template makes such a template of a model's own.
 *
 * A token that the tokenizer begins every text with comes first, unless there is a {begin}. Names of special tokens in
 * the template become these tokens; in what people wrote they are text like any other, so nobody can write what the
 * template would. */
typedef struct weft_template weft_template;

/* Fails where {content} is not there exactly once, in each form. The tokenizer must outlive it. */
weft_status weft_template_open(const char *text, const weft_tokenizer *t, weft_template **out);
void weft_template_close(weft_template *m);
WEFT_ENDED_BY(weft_template_close, weft_template)

/* The tokens of a conversation, malloc'd. */
weft_status weft_template_encode(const weft_template *m, weft_encoder *e,
                                 const weft_message *messages, int64_t count, int32_t **tokens,
                                 int64_t *n_tokens);
/* What ends an answer; NULL: nothing but the model. */
const char *weft_template_stop(const weft_template *m);
