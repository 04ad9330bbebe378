/* Encoding prompts. */
#include "generate/prompt.h"

weft_status weft_prompt_encode(const weft_tokenizer *t, weft_encoder *e, const char *text,
                               size_t bytes, const int32_t **tokens, int64_t *count) {
    WEFT_TRY(weft_encode(e, text ? text : "", bytes, false, tokens, count));
    if (*count > 0) return WEFT_OK;
    int32_t length = 0;
    const char *end = weft_tokenizer_token(t, weft_tokenizer_end(t), &length);
    if (!end) return weft_encode(e, "\n", 1, false, tokens, count);
    return weft_encode(e, end, (size_t)length, true, tokens, count);
}
