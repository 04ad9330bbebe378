/* libFuzzer's way in: compiled once for each target, which FUZZ_ENTRY names. */
#include "fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    FUZZ_ENTRY(data, size);
    return 0;
}
