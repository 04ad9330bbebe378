/* Where documents begin, on the CPU: one walk over the tokens. */
#include "ops/documents.h"

#include "cpu/cached.h"

DEFINE_KERNEL(documents) {
    const int32_t *tokens = weft_data(x, n->in[0]), end = ATTR(n, weft_documents_attr)->end;
    int32_t *first = weft_data(x, n->out[0]), *place = weft_data(x, n->out[1]);
    int64_t batch = n->in[0]->shape[0], time = n->in[0]->shape[1];
    for (int64_t b = 0; b < batch; b++) {
        int32_t begun = 0;
        for (int32_t t = 0; t < time; t++, tokens++) {
            *first++ = begun;
            *place++ = t - begun;
            if (*tokens == end) begun = t + 1;
        }
    }
    return WEFT_OK;
}

DEFINE_KERNEL(cache_documents) {
    row_places p = places_of(x, n);
    const int32_t *tokens = weft_data(x, n->in[WEFT_CACHE_X]);
    int32_t *begun = weft_data(x, n->in[WEFT_CACHE_PAGES]), end = ATTR(n, weft_documents_attr)->end;
    int32_t *first = weft_data(x, n->out[0]), *place = weft_data(x, n->out[1]);
    for (int64_t r = 0; r < p.rows; r++) {
        first[r] = place[r] = 0;
        if (p.slot[r] < 0) continue;
        int32_t *own = begun + p.slot[r];
        if (p.position[r] == 0) *own = 0;
        first[r] = *own;
        place[r] = p.position[r] - *own;
        if (tokens[r] == end) *own = p.position[r] + 1;
    }
    return WEFT_OK;
}
