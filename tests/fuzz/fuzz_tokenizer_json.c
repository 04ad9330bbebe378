/* A Hugging Face tokenizer.json, a zero byte, and a text for it. */
#include "fuzz/tokenizer_case.h"

#include <stdlib.h>

bool fuzz_tokenizer_json(const uint8_t *data, size_t size) {
    fuzz_bytes in = {data, size}, json = fuzz_until_zero(&in);
    size_t bytes;
    char *text = tokenizer_case_text(json, &bytes);
    bool taken = tokenizer_case_check(fuzz_file("tokenizer.json", text, bytes), in);
    free(text);
    return taken;
}
