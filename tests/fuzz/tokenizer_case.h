/* What the targets of tokenizers share: the 256 symbols that every vocabulary must have, which would
 * make each input long, and the promise of encoding. */
#ifndef WEFT_TESTS_FUZZ_TOKENIZER_CASE_H
#define WEFT_TESTS_FUZZ_TOKENIZER_CASE_H

#include "fuzz/fuzz.h"

/* The text with its first "@" (quotes included) replaced by "symbol": number for each byte, numbered
 * from 0, with commas; malloc'd. */
char *tokenizer_case_text(fuzz_bytes bytes, size_t *size);

/* Opens a tokenizer; where it is accepted: any bytes come back from their tokens, and what it saves
 * opens to the same tokens. Whether it was accepted. */
bool tokenizer_case_check(const char *name, fuzz_bytes text);

#endif
