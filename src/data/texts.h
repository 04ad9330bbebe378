/* What is done with texts from files and standard input: a tokenizer is learned from them, and they
 * become token shards. Both show a progress bar. */
#pragma once

#include "base/progress.h"
#include "core/pool.h"
#include "data/tokenizer.h"

/* Texts from files and standard input, in batches that a pool can share out.
 *
 * A plain file is one document; it comes in parts of about a mebibyte where the tokenizer allows
 * that. With a field's name the files are JSON lines, a document each; without one those are whose names end
 * on .jsonl or .ndjson, and the field is "text". Files may be packed; what is no text is refused. A
 * share of the text can be kept apart for validation: of a plain file its end, from a line's start on; of
 * JSON lines, one in so many. */
typedef struct weft_input weft_input;

typedef struct {
    const char *const *paths; /* "-": standard input */
    int n_paths;
    const char *val_path; /* the one of them whose text is all kept apart; NULL: none */
    const char *field;    /* of JSON lines; NULL: by the file's name */
    double val_share;     /* 0 .. 1 */
    bool cuttable;        /* whether a document may come in parts (weft_tokenizer_cuttable) */
} weft_input_options;

/* A document, or a part of one. */
typedef struct {
    const char *text; /* of JSON lines: the line */
    size_t at,
        bytes;   /* at: where it is in what was read, which may move until the batch is whole */
    bool starts; /* the first part of its document */
    bool val;
    int path;
    int64_t line; /* of JSON lines; from 1 */
} weft_input_unit;

/* The options' arrays are used until closing. */
weft_status weft_input_open(const weft_input_options *options, weft_input **out);
void weft_input_close(weft_input *in);
WEFT_ENDED_BY(weft_input_close, weft_input)

/* Bytes of all files; 0 where one of them does not say. */
int64_t weft_input_total(const weft_input *in);

/* The next units, of about that many bytes; none at the end. They are valid until the next call. */
weft_status weft_input_next(weft_input *in, size_t want, const weft_input_unit **units,
                            int64_t *count);

/* The text of a unit; `*keep` (malloc'd, or NULL) holds it and is the caller's. For JSON lines this
 * is where a line is parsed, so call it in the tasks. A blank line has no text. */
weft_status weft_input_text(const weft_input *in, const weft_input_unit *unit, char **keep,
                            const char **text, size_t *bytes);

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

/* Writes the shards train_* and val_* of the texts into a folder, which is made where it is not, and its
 * tokenizer.json. Batches of texts are read, encoded by the pool, a unit a task, and written in their order,
 * so the shards are the same for any number of threads. Nothing appears under its name before everything is
 * written. Files of tokens are copied, the share at the end of each kept apart; `t` may then be NULL. */
weft_status weft_texts_tokenize(const weft_input_options *input, const weft_tokenizer *t,
                                weft_pool *pool, const char *folder, int64_t shard_tokens,
                                weft_texts_sum *out);

/* A byte-level BPE of one's own: count the pieces of a text, then join the most frequent pair of
 * tokens, again and again. The same texts give the same tokenizer, in whatever order they come. */

typedef struct weft_bpe_trainer weft_bpe_trainer;

enum { WEFT_BPE_VOCAB_MIN = 257 }; /* the bytes and the end of text */

weft_status weft_bpe_trainer_open(weft_bpe_trainer **out);
void weft_bpe_trainer_close(weft_bpe_trainer *b);
WEFT_ENDED_BY(weft_bpe_trainer_close, weft_bpe_trainer)

/* Counts the pieces of a text, cut as GPT-2 does. */
weft_status weft_bpe_trainer_add(weft_bpe_trainer *b, const char *text, size_t bytes);
/* How many different pieces there are. */
int64_t weft_bpe_trainer_words(const weft_bpe_trainer *b);

/* Joins pairs until there are `vocab` tokens, "<|endoftext|>" (the last) included, or no pair
 * occurs `least` times any more. Of pairs that are as frequent, the one of lower numbers is first.
 * `progress` is told how many tokens there are; NULL: nobody. Once a trainer. */
weft_status weft_bpe_trainer_run(weft_bpe_trainer *b, int64_t vocab, int64_t least,
                                 weft_progress *progress, weft_tokenizer **out);
