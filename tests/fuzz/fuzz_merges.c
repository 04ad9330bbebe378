/* GPT-2's pair of files: merges, a zero byte, encoder.json (none where it is empty), a zero byte, and
 * a text for them. */
#include "fuzz/tokenizer_case.h"

#include <stdlib.h>
#include <unistd.h>

bool fuzz_merges(const uint8_t *data, size_t size) {
    fuzz_bytes in = {data, size}, merges = fuzz_until_zero(&in), encoder = fuzz_until_zero(&in);
    size_t bytes;
    char *text = tokenizer_case_text(encoder, &bytes);
    fuzz_file("vocab.bpe", merges.data, merges.size);
    if (bytes)
        fuzz_file("encoder.json", text, bytes);
    else
        unlink(fuzz_path("encoder.json"));
    free(text);
    return tokenizer_case_check(fuzz_folder(), in);
}
