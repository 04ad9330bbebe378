/* What is done with texts from files and standard input: a tokenizer is learned from them, and they
 * become token shards. Both show a progress bar. */
#pragma once

#include "core/pool.h"
#include "data/tokenizer.h"
#include "data/tokenizer_input.h"

/* A byte-level BPE of at most `vocab` tokens, whose pairs occur `least` times. `words`: how many
 * different pieces the texts have. */
weft_status weft_texts_learn(const weft_input_options *input, int64_t vocab, int64_t least,
                             weft_tokenizer **out, int64_t *words);

/* What tokenizing came to. */
typedef struct {
    int64_t documents, bytes;
    int64_t tokens[2]; /* of training and of validation */
    int64_t shards;
    int64_t vocab; /* the tokenizer's; without one, what the tokens need */
    double seconds;
} weft_texts_sum;

/* Whether the files hold tokens already (tokens.h); some of them only is an error. */
weft_status weft_texts_are_tokens(const weft_input_options *input, bool *out);

/* Writes the shards train_* and val_* of the texts into a folder, which is made where it is not, and
 * its tokenizer.json. Batches of texts are read, encoded by the pool, a unit a task, and written in
 * their order, so the shards are the same for any number of threads. Nothing appears under its name
 * before everything is written. Files of tokens are copied, the share at the end of each kept apart; `t` may
 * then be NULL. */
weft_status weft_texts_tokenize(const weft_input_options *input, const weft_tokenizer *t,
                                weft_pool *pool, const char *folder, int64_t shard_tokens,
                                weft_texts_sum *out);

/* A byte-level BPE of one's own: count the pieces of a text, then join the most frequent pair of
 * tokens, again and again. The same texts give the same tokenizer, in whatever order they come. */

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
