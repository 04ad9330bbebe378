/* Associative recall: what followed this token the last time? The half is drawn once into the
 * tokens and copied from there, so no memory is needed. */
#include "data/tasks.h"

void weft_recall_fill(int64_t vocab, const weft_sequence_place *p, int64_t time, int32_t *tokens,
                      int32_t *targets, uint8_t *scored) {
    const uint32_t sites[2] = {weft_random_site("data.recall.train"),
                               weft_random_site("data.recall.val")};
    weft_random_stream random = weft_random_stream_at(p, sites, 0);
    int64_t half = time / 2 > 1 ? time / 2 : 1;
    for (int64_t t = 0; t < time; t++)
        tokens[t] = t < half ? (int32_t)weft_random_stream_below(&random, (uint32_t)vocab)
                             : tokens[t - half];
    for (int64_t t = 0; t < time; t++) {
        targets[t] = tokens[(t + 1) % half];
        if (scored) scored[t] = t >= half;
    }
}
