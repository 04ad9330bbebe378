#include "fuzz/tokenizer_case.h"

#include "data/tokenizer_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCABULARY = 256 * 24 };

/* "symbol": number, ... */
static size_t write_bytes(char *out) {
    size_t at = 0;
    for (int i = 0; i < 256; i++) {
        char byte = (char)i, symbol[8];
        weft_bytes_to_symbols(&byte, 1, symbol);
        const char *escape = *symbol == '"' || *symbol == '\\' ? "\\" : "";
        at += (size_t)sprintf(out + at, "%s\"%s%s\":%d", i ? "," : "", escape, symbol, i);
    }
    return at;
}

char *tokenizer_case_text(fuzz_bytes bytes, size_t *size) {
    char *text = fuzz_text(bytes), *at = strstr(text, "\"@\"");
    *size = bytes.size;
    if (!at) return text;
    char *whole = malloc(bytes.size + VOCABULARY + 1);
    if (!whole) exit(2);
    size_t before = (size_t)(at - text), after = bytes.size - before - 3;
    memcpy(whole, text, before);
    size_t n = before + write_bytes(whole + before);
    memcpy(whole + n, at + 3, after);
    free(text);
    *size = n + after;
    whole[*size] = '\0';
    return whole;
}

/* The tokens are the encoder's, so they are copied before they are decoded. */
static void check_text(const weft_tokenizer *t, weft_encoder *e, const char *text, size_t bytes,
                       bool specials) {
    const int32_t *tokens;
    int64_t count;
    char *back;
    size_t back_bytes;
    if (weft_encode(e, text, bytes, specials, &tokens, &count) != WEFT_OK) return;
    for (int64_t i = 0; i < count; i++)
        FUZZ_PROMISE(tokens[i] >= 0 && tokens[i] < weft_tokenizer_vocab(t),
                     "a token is below the vocabulary");
    FUZZ_PROMISE(weft_tokenizer_decode(t, tokens, count, &back, &back_bytes) == WEFT_OK,
                 "what was encoded can be decoded");
    FUZZ_PROMISE(t->nfc || t->characters ||
                     (back_bytes == bytes && (!bytes || memcmp(back, text, bytes) == 0)),
                 "a text comes back from its tokens");
    free(back);
}

static void check_encoder(const weft_tokenizer *t, const char *text, size_t bytes) {
    weft_encoder *e;
    if (weft_encoder_open(t, &e) != WEFT_OK) return;
    check_text(t, e, text, bytes, false);
    check_text(t, e, text, bytes, true);
    check_text(t, e, text, bytes / 2, true); /* with words it has met */
    weft_encoder_close(e);
}

/* The same tokens for the text as the one that was saved gives. */
static void check_saved(const weft_tokenizer *t, const char *text, size_t bytes) {
    const char *path = fuzz_path("saved.json");
    weft_tokenizer *again;
    weft_encoder *a, *b;
    const int32_t *x, *y;
    int64_t n, m;
    /* A token that is no UTF-8 has no JSON. */
    if (weft_tokenizer_save(t, path, NULL) != WEFT_OK) return;
    FUZZ_PROMISE(weft_tokenizer_open(path, &again) == WEFT_OK, "a saved tokenizer opens");
    if (weft_encoder_open(t, &a) == WEFT_OK && weft_encoder_open(again, &b) == WEFT_OK) {
        weft_status one = weft_encode(a, text, bytes, true, &x, &n);
        weft_status other = weft_encode(b, text, bytes, true, &y, &m);
        FUZZ_PROMISE(one == other, "a saved tokenizer encodes what the first does");
        if (one == WEFT_OK)
            FUZZ_PROMISE(n == m && (!n || memcmp(x, y, (size_t)n * sizeof *x) == 0),
                         "a saved tokenizer gives the same tokens");
        weft_encoder_close(a);
        weft_encoder_close(b);
    }
    weft_tokenizer_close(again);
}

bool tokenizer_case_check(const char *name, fuzz_bytes text) {
    weft_tokenizer *t;
    if (weft_tokenizer_open(name, &t) != WEFT_OK) return false;
    char *copy = fuzz_text(text);
    int way = fuzz_way(text.data, text.size, 2);
    if (way != 1) check_encoder(t, copy, text.size);
    if (way != 0) check_saved(t, copy, text.size);
    free(copy);
    weft_tokenizer_close(t);
    return true;
}
