/* The tokens that a prompt's text becomes. */
#ifndef WEFT_GENERATE_PROMPT_H
#define WEFT_GENERATE_PROMPT_H

#include "data/tokenizer.h"

/* As weft_encode, without special tokens. An empty text begins as a document does: behind the end of
 * another, or, where the tokenizer has no token for that, of a line. So there is always a token. */
weft_status weft_prompt_encode(const weft_tokenizer *t, weft_encoder *e, const char *text,
                               size_t bytes, const int32_t **tokens, int64_t *count);

#endif
