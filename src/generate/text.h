/* The text around the tokens: a prompt's tokens, and tokens to text as it comes, in whole UTF-8 characters
 * and with nothing of a stop string.
 *
 * A token may end in the middle of a character, and text that looks like the beginning of a stop
 * string may turn out to be one: both are held back until it is clear what they are. */
#pragma once

#include "data/tokenizer.h"

/* As weft_encode_text where the prompt `begins` a text, and otherwise as weft_encode, without special tokens.
 * An empty text begins as a document does: behind the end of another, or, where the tokenizer has no token
 * for that, of a line. So there is always a token. */
weft_status weft_prompt_encode(const weft_tokenizer *t, weft_encoder *e, const char *text,
                               size_t bytes, bool begins, const int32_t **tokens, int64_t *count);

typedef struct weft_stream weft_stream;

/* `stops`: strings that end the text and are no part of it, NULL for none; copied. */
weft_status weft_stream_open(const weft_tokenizer *t, const char *const *stops, int n_stops,
                             weft_stream **out);
void weft_stream_close(weft_stream *s);

/* Takes one token. One that the tokenizer does not have becomes U+FFFD, as do bytes that are no UTF-8.
 * *stopped: a stop string came, and the text ends before it. */
weft_status weft_stream_put(weft_stream *s, int32_t token, bool *stopped);
/* Takes what was held back, when no more tokens come: an unfinished character becomes U+FFFD. */
weft_status weft_stream_end(weft_stream *s);
/* What is certain so far of the whole text; valid until more is taken. */
const char *weft_stream_text(const weft_stream *s, size_t *bytes);
