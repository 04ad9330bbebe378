/* Where the documents of a sequence begin: several texts may stand in one, each ended by a token that
 * belongs to it. What keeps to its document reads these. */
#pragma once

#include "ops/cache.h"

typedef struct {
    weft_tensor *first; /* the place of the first token of each token's document */
    weft_tensor *place; /* of each token in its document, from 0 */
} weft_documents;

/* Of tokens [B, T] i32; both outputs are like them. `end`: the token that ends a document. */
weft_documents weft_find_documents(weft_graph *g, weft_tensor *tokens, int32_t end);

/* In generation, of a run's tokens [R, 1]: first [R], place [R, 1]. `begun` [slots] i32 is a state, where
 * the document of a sequence's next token begins; position 0 begins anew. */
weft_documents weft_find_cached_documents(weft_graph *g, weft_tensor *tokens, int32_t end,
                                          weft_tensor *begun, const weft_rows *rows);

/* For kernels: attributes of both nodes. Inputs of `documents`: tokens; of `cache_documents`: the rows,
 * tokens in WEFT_CACHE_X, begun in WEFT_CACHE_PAGES. Outputs: first, place. */
typedef struct {
    int32_t end;
} weft_documents_attr;
