/* Functions that tell one field of a type whose fields are its own file's:
 *
 *     WEFT_GETTER(int64_t, weft_tokenizer_vocab, weft_tokenizer, vocab)
 *
 * is int64_t weft_tokenizer_vocab(const weft_tokenizer *of), which returns of->vocab. */
#pragma once

#define WEFT_GETTER(result, name, type, field)                                                     \
    result name(const type *of) {                                                                  \
        return of->field;                                                                          \
    }
