/* Tokenizers for the library's users: data/tokenizer.h behind plain arrays. */
#include "api/api.h"

#include "data/tokenizer.h"

#include <stdlib.h>
#include <string.h>

struct weft_text {
    weft_tokenizer *tokenizer;
    weft_encoder *encoder;
};

weft_status weft_text_open(const char *name, weft_text **out) {
    API_NEED(out);
    *out = NULL;
    API_NEED(name);
    weft_text *t = calloc(1, sizeof *t);
    if (!t) return weft_fail(WEFT_ENOMEM, "%s: no memory", __func__);
    weft_status status = weft_tokenizer_open(name, &t->tokenizer);
    if (status == WEFT_OK) status = weft_encoder_open(t->tokenizer, &t->encoder);
    if (status != WEFT_OK) {
        weft_text_close(t);
        return status;
    }
    *out = t;
    return WEFT_OK;
}

void weft_text_close(weft_text *text) {
    if (!text) return;
    if (text->encoder) weft_encoder_close(text->encoder);
    if (text->tokenizer) weft_tokenizer_close(text->tokenizer);
    free(text);
}

int64_t weft_text_vocabulary(const weft_text *text) {
    return text ? weft_tokenizer_vocab(text->tokenizer) : 0;
}

int32_t weft_text_end(const weft_text *text) {
    return text ? weft_tokenizer_end(text->tokenizer) : -1;
}

weft_status weft_text_encode(weft_text *text, const char *bytes, size_t length, int specials,
                             int32_t *tokens, int64_t room, int64_t *count) {
    API_NEED(text);
    API_NEED(bytes);
    API_NEED(count);
    if (room > 0) API_NEED(tokens);
    const int32_t *found;
    WEFT_TRY(weft_encode(text->encoder, bytes, length, specials != 0, &found, count));
    int64_t n = *count < room ? *count : room;
    if (n > 0) memcpy(tokens, found, (size_t)n * sizeof *tokens);
    return WEFT_OK;
}

weft_status weft_text_decode(const weft_text *text, const int32_t *tokens, int64_t count,
                             char *bytes, size_t room, size_t *length) {
    API_NEED(text);
    API_NEED(length);
    if (count > 0) API_NEED(tokens);
    if (count < 0) return weft_fail(WEFT_EINPUT, "%s: %lld tokens", __func__, (long long)count);
    if (room > 0) API_NEED(bytes);
    char *found = NULL;
    WEFT_TRY(weft_tokenizer_decode(text->tokenizer, tokens, count, &found, length));
    size_t n = *length < room ? *length : room;
    if (n > 0) memcpy(bytes, found, n);
    free(found);
    return WEFT_OK;
}
