/* The embedded corpus: unlimited English-like text, so that a first run needs no download.
 *
 * There are things to learn at several ranges. Within a word, spelling; within a line, grammar,
 * sums and brackets, which are always right; within a paragraph, the pronoun of a person and the
 * things in a list; within a document, names, places and objects, which are put together anew each
 * time and then stay what they are, and quotations, each of which is repeated word for word.
 *
 * A document is one of: a story, a letter, a packing list, a page of sums, nested boxes. The first
 * line is its title, a blank line follows each paragraph, two end the document.
 *
 * Tokens are bytes (ASCII, in fact): the vocabulary is 256, that of the byte tokenizer, and there
 * is no end-of-text token; the title's line begins a document. */
#pragma once

#include "data/dataset.h"

enum {
    WEFT_CORPUS_VOCAB = 256,
    WEFT_CORPUS_DOCUMENT = 8192 /* no document has more bytes */
};

/* Writes document `number` (below 65536) of a sequence; returns its length. */
int64_t weft_corpus_document(const weft_sequence_place *p, uint32_t number,
                             char text[WEFT_CORPUS_DOCUMENT]);

/* Fills tokens[time] and targets[time], the tokens one later: the documents of a sequence one after
 * the other, from a random byte of the first on. A shorter sequence of the same place is a prefix
 * of a longer one. */
void weft_corpus_fill(const weft_sequence_place *p, int64_t time, int32_t *tokens,
                      int32_t *targets);
