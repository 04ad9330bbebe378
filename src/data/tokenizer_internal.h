/* What the files of the tokenizer share: its tables, the steps that cut a text into pieces, and the
 * functions that fill and use them. Nobody else includes this but the trainer (bpe_train.c). */
#pragma once

#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/tokenizer.h"

#include <jansson.h>
#include <pcre2.h>

/* What is wrong with a tokenizer, which is named. */
#define tokenizer_refuse(t, format, ...)                                                           \
    WEFT_BAD_INPUT("tokenizer %s: " format, (t)->name, ##__VA_ARGS__)

enum {
    TOKENIZER_STEPS_MAX = 8,       /* splits one after the other */
    TOKENIZER_VOCAB_MAX = 1 << 24, /* named limit against numbers made to exhaust memory */
    TOKENIZER_IDS_FREE = 1 << 16,  /* numbers that a file of any size may use */
    TOKENIZER_ENDS_MAX = 16,
    TOKENIZER_PIECE_MAX =
        512, /* bytes of a token of Unigram: so far is looked from every character */
    TOKENIZER_FILE_MAX = 256 * 1024 * 1024
};

/* Whether a space is put before a text, or before each part of it between added tokens: none; whatever it
 * begins with; where it does not begin with one, and then only before the first part. */
typedef enum { SPACE_NONE, SPACE_ALWAYS, SPACE_MISSING, SPACE_MISSING_FIRST } weft_space_before;

/* Files beside a tokenizer.json that go where it goes. */
enum { BESIDE_GENERATION, BESIDE_CONFIG, BESIDE_SPECIALS, BESIDE_CHAT, BESIDE_FILES };

/* Two tokens that become one. The one of least rank goes first. */
typedef struct {
    uint64_t pair; /* left << 32 | right */
    int32_t rank;  /* -1: an empty slot */
    int32_t made;
} weft_merge;

/* A token that is found in the text as it stands, before anything else is done with it. */
typedef struct {
    char *text;
    int32_t bytes, id;
    bool special; /* only on request */
} weft_added;

struct weft_tokenizer {
    char *name;
    bool bytes_only; /* token = byte; no table below is used but the vocabulary */

    /* Vocabulary. Token i is pool[offset[i] .. + length[i]]; a length of 0 is a hole in the
     * numbering. The index finds a token by its bytes. */
    int64_t vocab, room;
    int64_t ids_most; /* a number in a file is below this: its tables follow from the file's size */
    int64_t *offset;
    int32_t *length;
    char *pool;
    size_t pool_used, pool_room;
    int32_t *index; /* -1: empty slot */
    int64_t index_slots;
    int32_t byte_token[256];

    weft_merge *merges; /* hash table by pair */
    int64_t merge_slots;
    uint64_t *merge_list; /* pairs by rank */
    int64_t n_merges;

    weft_added *added;
    int n_added;
    int64_t added_room;
    bool added_starts[2][256]; /* first bytes: of those always found, and of all */
    int32_t end, begin;
    int32_t ends[TOKENIZER_ENDS_MAX]; /* of generation */
    int n_ends;

    bool nfc; /* a text is brought into Unicode's composed form first */
    /* SentencePiece's BPE: merging begins with characters, and with bytes where a character is no token;
     * spaces are written U+2581, and one may be put before a text. */
    bool characters;
    weft_space_before space;
    /* SentencePiece's Unigram: what each token, and a character that is none, adds to the score of a text; NULL: BPE. */
    double *score, unknown;
    int32_t unknown_token; /* a run of such characters; -1: they are bytes */
    int32_t *sorted;       /* its tokens by their bytes */
    int64_t n_sorted;
    pcre2_code *steps
        [TOKENIZER_STEPS_MAX]; /* a pattern each; NULL: GPT-2's, which has a scanner of its own */
    int n_steps;
    bool whole_words; /* a piece that is a token is that token, whatever the merges say */

    char *source; /* the tokenizer.json it was read from; saved as it is */
    size_t source_bytes;
    const char *split; /* of a pair of files: the pattern that they leave unsaid; NULL: GPT-2's */
    char *beside[BESIDE_FILES]; /* what lay beside it; NULL: no such file */
};

/* tokenizer.c: tables. */
weft_status weft_tokenizer_new(const char *name, weft_tokenizer **out);
/* Gives a number its bytes. `indexed`: found by them too. A number in use, or bytes that another
 * number has, is WEFT_EINPUT. */
weft_status weft_tokenizer_add_token(weft_tokenizer *t, int64_t id, const char *bytes,
                                     int64_t length, bool indexed);
weft_status weft_tokenizer_add_special(weft_tokenizer *t, const char *text, int32_t id,
                                       bool special);
/* Room for n merges; then rank after rank. */
weft_status weft_tokenizer_reserve_merges(weft_tokenizer *t, int64_t n);
void weft_tokenizer_add_merge(weft_tokenizer *t, int32_t left, int32_t right, int32_t made);
/* After the last token: every byte has one, and what ends a text is known. */
weft_status weft_tokenizer_finish(weft_tokenizer *t);
int32_t weft_tokenizer_find(const weft_tokenizer *t, const char *bytes, int64_t length);

/* tokenizer_read.c: the files. */
weft_status weft_tokenizer_read(weft_tokenizer *t, const char *path);
/* Parses one that must be a JSON object. */
weft_status weft_json_parse(const weft_tokenizer *t, const char *text, size_t bytes, json_t **out);
/* The next step: a pattern, NULL: GPT-2's; a token that is found as it stands; composing (NFC). */
weft_status weft_tokenizer_add_pattern(weft_tokenizer *t, const char *pattern);
weft_status weft_tokenizer_read_added(weft_tokenizer *t, const json_t *token, int64_t id);
weft_status weft_tokenizer_set_nfc(weft_tokenizer *t);

/* tokenizer_beside.c: keeps what lies beside a tokenizer's file, and takes from it the tokens that end
 * generation; writes it beside another. */
weft_status weft_tokenizer_read_beside(weft_tokenizer *t, const char *dir);
weft_status weft_tokenizer_save_beside(const weft_tokenizer *t, const char *path);
/* For a pair of files: how the model that config.json names splits, and its added tokens. */
weft_status weft_tokenizer_complete_pair(weft_tokenizer *t, const char *dir);

/* Byte-level files write each byte as a printable character. The bytes as the first tokens, in the order of
 * these, as GPT-2 numbers them. */
weft_status weft_tokenizer_number_bytes(weft_tokenizer *t);
/* The bytes that `text` writes, to `out` (as long as text); -1 where a character stands for none. */
int64_t weft_symbols_to_bytes(const char *text, size_t length, char *out);
/* UTF-8 of the symbols of `bytes`: up to two a byte, and a zero. */
void weft_bytes_to_symbols(const char *bytes, int64_t length, char *out);

/* tokenizer_split.c: cutting. */
/* Length of the valid UTF-8 that text begins with. */
size_t weft_utf8_valid(const char *text, size_t bytes);
/* Length of the bytes at the start that are no UTF-8. */
size_t weft_utf8_invalid(const char *text, size_t bytes);
/* U+2581 as spaces, to `out`, as long as text; returns how long it became. */
size_t weft_spaces_from_marks(const char *text, size_t bytes, char *out);
/* Builds the table of GPT-2's scanner; once a process, later calls are free. */
weft_status weft_gpt2_prepare(void);
/* Length of the first piece of a valid text that is not empty, by GPT-2's pattern. */
size_t weft_gpt2_piece(const char *text, size_t bytes);
/* A valid text in composed form (NFC), malloc'd. Where weft was built without utf8proc it fails, of an
 * empty text too. */
weft_status weft_compose(const char *text, size_t bytes, char **out, size_t *out_bytes);
/* Compiles a pattern as Hugging Face's library understands it. `where` for messages. */
weft_status weft_split_compile(const char *pattern, const char *where, pcre2_code **out);

static inline uint64_t weft_hash_mix(uint64_t h) {
    h ^= h >> 32;
    h *= 0x9E3779B97F4A7C15ull;
    return h ^ (h >> 29);
}

/* The merge of a pair; NULL if there is none. */
static inline const weft_merge *weft_find_merge(const weft_tokenizer *t, int32_t left,
                                                int32_t right) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t mask = (uint64_t)t->merge_slots - 1;
    for (uint64_t at = weft_hash_mix(pair) & mask;; at = (at + 1) & mask) {
        const weft_merge *m = &t->merges[at];
        if (m->rank < 0) return NULL;
        if (m->pair == pair) return m;
    }
}
