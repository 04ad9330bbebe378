/* Synthetic tasks that ask one thing of attention each. All are unlimited; their metric is
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
 * accuracy of one half.
 *
 * Needle: a pass key of five digits stands twice in a line somewhere in embedded text (corpus.h), and the
 * sequence ends with the question for it and the answer. Tokens are bytes. All of the text is a
 * target; the five digits of the answer are scored, so guessing has an accuracy of 0.1.
 *
 * The others ask for as much as n, TASK_SIZE, says; what is asked for is target and scored, and nothing else is. V is the
 * vocabulary.
 *
 * Mqar (multi-query associative recall, Arora et al. 2023):
 *     KEY VALUE           n pairs, keys distinct below V / 2, values from there on
 *     KEY VALUE | FILLER FILLER   to the end: each key once, in random order and at random places, as far as there
 *                         is room. Fillers are values
 * The value is asked for at the key.
 *
 * Induction, with noise: n keys below V / 3, each with its value from the second third. Pairs KEY VALUE come again and again,
 * with tokens of the last third between them, a share of TASK_NOISE; from its second time on the value is asked for at the key.
 * The last token is such a key.
 *
 * Copying, selective (Poli et al. 2024): n letters (2 and above) at random places among blanks (0), then n marks (1), at
 * which the letters are asked for in their order.
 *
 * Compression, after Poli et al. 2024: n letters below L = V - 1 - n, the token L, then tokens L + 1 + i to the end: what
 * was letter i? There a decoder sees the state of the last token alone; here the model may look back, so it
 * is recall by place, and what it costs is what the cache keeps of each token. */
#pragma once

#include "data/dataset.h"

enum { WEFT_RECALL_VOCAB = 1024, WEFT_TASK_VOCAB = 8192 }; /* or VOCAB_SIZE where that is less */

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

enum {
    WEFT_NEEDLE_KEYS = 100000, /* keys are below this */
    WEFT_NEEDLE_ROOM = 96,
    WEFT_NEEDLE_TIME = 128 /* the shortest sequence */
};

/* The line with a key, the question for it, and its answer as it follows the question; returned is how
 * many bytes. */
int weft_needle_write(int32_t key, char needle[WEFT_NEEDLE_ROOM]);
extern const char weft_needle_question[];
int weft_needle_answer(int32_t key, char answer[WEFT_NEEDLE_ROOM]);

/* What a task is made with. */
typedef struct {
    int64_t vocab, size; /* TASK_SIZE */
    double noise;        /* TASK_NOISE */
} weft_task_shape;

/* A sequence that is to be written from its begin, as weft_dataset_fill has it; nothing of it is asked for yet. */
typedef struct {
    const weft_sequence_place *place;
    weft_random_stream random;
    int64_t at, time;
    int32_t *tokens, *targets;
    uint8_t *scored;
} weft_sheet;

weft_sheet weft_sheet_open(const char *task, const weft_sequence_place *p, int64_t time,
                           int32_t *tokens, int32_t *targets, uint8_t *scored);

/* That vocabulary and sequence have room for the size is the caller's to see to. */
typedef weft_status weft_task_fill(const weft_task_shape *k, weft_sheet *s);
weft_task_fill weft_recall_fill, weft_entailment_fill, weft_needle_fill, weft_mqar_fill,
    weft_induction_fill, weft_copying_fill, weft_compression_fill;
