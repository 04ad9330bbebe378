/* Reading of a Hugging Face tokenizer.json; shared by tokenizer_read.c and tokenizer_json.c. */
#ifndef WEFT_DATA_TOKENIZER_JSON_H
#define WEFT_DATA_TOKENIZER_JSON_H

#include "data/tokenizer_internal.h"

#include <jansson.h>

/* Parses a file that must be one JSON object. */
weft_status weft_json_parse(const weft_tokenizer *t, const char *text, size_t bytes, json_t **out);
/* Fills a tokenizer from the whole object of a tokenizer.json. */
weft_status weft_tokenizer_from_json(weft_tokenizer *t, const json_t *root);

/* Adds the tokens of {"symbols": number, ...}. */
weft_status weft_vocab_from_json(weft_tokenizer *t, const json_t *vocab);
/* Adds the next merge. */
weft_status weft_merge_from_text(weft_tokenizer *t, const char *left, size_t left_length,
                                 const char *right, size_t right_length);

#endif
