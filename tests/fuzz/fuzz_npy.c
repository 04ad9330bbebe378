/* Tokens of `weft eval --tokens`: a NumPy array, or a shard. */
#include "data/tokens.h"
#include "fuzz/fuzz.h"

bool fuzz_npy(const uint8_t *data, size_t size) {
    weft_tokens t;
    if (weft_tokens_read(fuzz_file("tokens.npy", data, size), &t) != WEFT_OK) return false;
    FUZZ_PROMISE(t.rows >= 0 && t.columns >= 0, "a shape has no negative size");
    FUZZ_PROMISE((double)t.rows * (double)t.columns * 2 <= (double)size,
                 "there are no more tokens than the file has room for");
    fuzz_touch(t.values, (size_t)(t.rows * t.columns) * sizeof *t.values);
    weft_tokens_free(&t);
    return true;
}
