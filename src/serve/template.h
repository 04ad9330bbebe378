/* From a conversation to a prompt: CONFIG_CHAT_TEMPLATE.
 *
 * The template is one message's text, with {role} and {content} in it, as in "{role}:\n{content}\n\n".
 * A conversation is its messages one behind the other, and then the beginning of the assistant's, up
 * to its content, which is the model's to write. What follows the content ends it: it is a stop
 * string. \n, \t and \\ mean a line end, a tab and a backslash.
 *
 * Where roles are written differently, the template has a form for each, behind its name:
 * {begin}, what a conversation begins with; {default}, what stands where there is no system message;
 * {system}, {user} and {assistant}, messages; without {system} such messages are refused;
 * {first}, the user's behind a system message, where it is another; and {answer}, what an answer begins behind.
 * {content|trim} is the content without blanks around it, {content|lstrip} and {content|rstrip} without those before and
 * behind it, {content|lines} without line ends before it; {content|cut} is what follows its last </think>, and
 * {content|think} that without the line ends before it. Several are {content|cut|lines}.
 * scripts/chat-template makes such a template of a model's own.
 *
 * A token that the tokenizer begins every text with comes first, unless there is a {begin}. Names of special tokens in
 * the template become these tokens; in what people wrote they are text like any other, so nobody can write what the
 * template would. */
#pragma once

#include "data/tokenizer.h"
#include "serve/request.h"

typedef struct weft_template weft_template;

/* Fails where {content} is not there exactly once, in each form. The tokenizer must outlive it. */
weft_status weft_template_open(const char *text, const weft_tokenizer *t, weft_template **out);
void weft_template_close(weft_template *m);

/* The tokens of a conversation, malloc'd. */
weft_status weft_template_encode(const weft_template *m, weft_encoder *e,
                                 const weft_message *messages, int64_t count, int32_t **tokens,
                                 int64_t *n_tokens);
/* What ends an answer; NULL: nothing but the model. */
const char *weft_template_stop(const weft_template *m);
