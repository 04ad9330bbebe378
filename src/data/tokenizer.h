/* Text to tokens and back.
 *
 * Five kinds, one interface: single bytes; GPT-2's byte-level BPE from its vocab.bpe and
 * encoder.json; any byte-level BPE of a Hugging Face tokenizer.json; SentencePiece's BPE or Unigram of one. On valid UTF-8 the tokens are
 * those of the libraries the files come from. On any bytes at all, decoding what was encoded gives
 * the same bytes again: what is not UTF-8 is encoded byte by byte. (With the normalizer NFC it gives
 * their composed form; SentencePiece's takes U+2581 for a space, and some of it a space before a text.) Files are not trusted; what is damaged, or asks for something that would lose
 * bytes, is refused in one line.
 *
 * What Hugging Face's folders have beside a tokenizer goes where it goes: generation_config.json, which
 * says what ends generation, tokenizer_config.json, special_tokens_map.json, chat_template.jinja.
 *
 * A tokenizer is read-only once it is open and may be shared by threads. An encoder belongs to one
 * thread: it holds the memory of encoding and the words it has met. */
#pragma once

#include "base/files.h"

typedef struct weft_tokenizer weft_tokenizer;
typedef struct weft_encoder weft_encoder;

/* Opens "bytes"; a tokenizer.json; a vocab.bpe or encoder.json with the other one beside it (a
 * vocab.bpe alone is numbered the way GPT-2 does); or a folder that has one of these, under these
 * names or as merges.txt and vocab.json. Such a pair does not say how it splits: it is GPT-2's, unless
 * a config.json of Hugging Face's is there that names a model whose way is known; others are refused. */
weft_status weft_tokenizer_open(const char *name, weft_tokenizer **out);
void weft_tokenizer_close(weft_tokenizer *t);
WEFT_ENDED_BY(weft_tokenizer_close, weft_tokenizer)

/* Tokens are below this. */
int64_t weft_tokenizer_vocab(const weft_tokenizer *t);
/* The number of a special token such as "<|endoftext|>"; -1 if there is none of that name. */
int32_t weft_tokenizer_special(const weft_tokenizer *t, const char *text);
/* The special token that ends a text; -1 if there is none (bytes have none). */
int32_t weft_tokenizer_end(const weft_tokenizer *t);
/* The special token that every text begins with, as the post_processor has it; -1: none. */
int32_t weft_tokenizer_begin(const weft_tokenizer *t);
/* What stands before a text on its own: that token, or else the end of another text; -1: nothing. */
int32_t weft_tokenizer_first(const weft_tokenizer *t);
/* Whether generation ends with this token: the one above, or one that generation_config.json names. */
bool weft_tokenizer_ends(const weft_tokenizer *t, int32_t token);
/* The bytes of one token; NULL for a number that is no token. */
const char *weft_tokenizer_token(const weft_tokenizer *t, int32_t token, int32_t *bytes);
/* Whether a text may be cut before any space or line end that follows a visible ASCII character, and
 * the parts encoded one by one with the tokens of the whole. */
bool weft_tokenizer_cuttable(const weft_tokenizer *t);

/* The bytes of these tokens, malloc'd. A number that is no token is WEFT_EINPUT. */
weft_status weft_tokenizer_decode(const weft_tokenizer *t, const int32_t *tokens, int64_t count,
                                  char **text, size_t *bytes);

/* Writes it as a tokenizer.json that Hugging Face's library reads too; beside, then renamed. Equal
 * tokenizers are equal files. What lay beside it is written beside it. */
weft_status weft_tokenizer_save(const weft_tokenizer *t, const char *path, weft_sum *sum);
/* Whether a file is what saving would write. */
weft_status weft_tokenizer_is_saved(const weft_tokenizer *t, const char *path, bool *out);

/* Whether that is the name of a file that goes with a tokenizer. */
bool weft_tokenizer_is_beside(const char *name);
/* The generation_config.json; NULL: there is none. */
const char *weft_tokenizer_generation(const weft_tokenizer *t);
/* The chat template, in Jinja, malloc'd; NULL: there is none. */
weft_status weft_tokenizer_chat(const weft_tokenizer *t, char **out);

weft_status weft_encoder_open(const weft_tokenizer *t, weft_encoder **out);
void weft_encoder_close(weft_encoder *e);
WEFT_ENDED_BY(weft_encoder_close, weft_encoder)

enum { WEFT_ENCODE_MAX = 1 << 30 }; /* bytes of one text */

/* The tokens of a text; they are the encoder's, and valid until its next use. With `specials` the
 * names of special tokens in the text become these tokens; without, they are text like any other,
 * so that nobody's text can end another's. */
weft_status weft_encode(weft_encoder *e, const char *text, size_t bytes, bool specials,
                        const int32_t **tokens, int64_t *count);
/* As weft_encode without `specials`, of a part of a text: unless it is the `first`, a special token comes before it. */
weft_status weft_encode_next(weft_encoder *e, bool first, const char *text, size_t bytes,
                             const int32_t **tokens, int64_t *count);
/* As weft_encode without `specials`, behind the token that every text begins with. */
weft_status weft_encode_text(weft_encoder *e, const char *text, size_t bytes,
                             const int32_t **tokens, int64_t *count);
