/* A byte-level BPE of one's own: count the pieces of a text, then join the most frequent pair of
 * tokens, again and again. The same texts give the same tokenizer, in whatever order they come. */
#pragma once

#include "data/tokenizer.h"

typedef struct weft_bpe_trainer weft_bpe_trainer;

enum { WEFT_BPE_VOCAB_MIN = 257 }; /* the bytes and the end of text */

weft_status weft_bpe_trainer_open(weft_bpe_trainer **out);
void weft_bpe_trainer_close(weft_bpe_trainer *b);

/* Counts the pieces of a text, cut as GPT-2 does. */
weft_status weft_bpe_trainer_add(weft_bpe_trainer *b, const char *text, size_t bytes);
/* How many different pieces there are. */
int64_t weft_bpe_trainer_words(const weft_bpe_trainer *b);

/* Joins pairs until there are `vocab` tokens, "<|endoftext|>" (the last) included, or no pair
 * occurs `least` times any more. Of pairs that are as frequent, the one of lower numbers is first.
 * `watch` is told how many tokens there are; NULL: nobody. Once a trainer. */
weft_status weft_bpe_trainer_run(weft_bpe_trainer *b, int64_t vocab, int64_t least,
                                 void (*watch)(void *context, int64_t tokens), void *context,
                                 weft_tokenizer **out);
