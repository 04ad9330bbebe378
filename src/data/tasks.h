/* Two synthetic tasks that ask one thing of attention each. Both are unlimited; their metric is
 * the share of the scored positions whose most likely token is the target.
 *
 * Recall: a random half is repeated. tokens[t] = half[t mod h], h = T / 2 (at least 1), half drawn
 * uniformly from the vocabulary; the target is the next token at every position, as the W2 work
 * trained it, and the last target is again half's first for an even T. Scored from position h on:
 * there the target stood at t + 1 - h. So the first half costs ln(vocabulary) a token whatever the
 * model, and the second can be had for nothing.
 *
 * Entailment: does A entail B, that is, is B an ancestor of A in a tree given in the sequence?
 *     EDGE child parent   for each node of the tree but its root, in random order
 *     QUERY a b YES|NO    to the end of the sequence
 * The nodes have distinct random labels, so nothing can be learnt by heart. The tree takes about
 * half of the sequence, 2 to 32 nodes, each node's parent drawn from those before it. Half of the
 * answers are YES; half of the others ask the right pair the wrong way round. Targets are the
 * answers alone, at the position of b, and these are scored: guessing has a loss of ln 2 and an
 * accuracy of one half. */
#ifndef WEFT_DATA_TASKS_H
#define WEFT_DATA_TASKS_H

#include "data/stream.h"

enum { WEFT_RECALL_VOCAB = 1024 }; /* or VOCAB_SIZE where that is less */

enum {
    WEFT_ENTAILMENT_EDGE,
    WEFT_ENTAILMENT_QUERY,
    WEFT_ENTAILMENT_NO,
    WEFT_ENTAILMENT_YES,
    WEFT_ENTAILMENT_LABEL, /* the first label */
    WEFT_ENTAILMENT_LABELS = 64,
    WEFT_ENTAILMENT_VOCAB = WEFT_ENTAILMENT_LABEL + WEFT_ENTAILMENT_LABELS,
    WEFT_ENTAILMENT_TIME = 7 /* the shortest sequence: an edge and a query without its answer */
};

/* As weft_dataset_fill. */
void weft_recall_fill(int64_t vocab, const weft_place *p, int64_t time, int32_t *tokens,
                      int32_t *targets, uint8_t *scored);
weft_status weft_entailment_fill(const weft_place *p, int64_t time, int32_t *tokens,
                                 int32_t *targets, uint8_t *scored);

#endif
