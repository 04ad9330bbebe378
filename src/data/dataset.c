/* The datasets behind one name: each kind is a file of its own, and this one tells them apart. */
#include "data/dataset.h"
#include "base/getter.h"

#include "data/corpus.h"
#include "data/shards.h"
#include "data/tasks.h"

#include <stdlib.h>
#include <string.h>

typedef enum { EMBEDDED, RECALL, ENTAILMENT, NEEDLE, SHARDS } dataset_kind;

struct weft_dataset {
    dataset_kind kind;
    char name[WEFT_TEXT_MAX];
    int64_t vocab;
    weft_shards *shards; /* SHARDS only */
};

weft_status weft_dataset_open(const weft_config *c, weft_dataset **out) {
    *out = NULL;
    weft_dataset *d = calloc(1, sizeof *d);
    if (!d) return weft_fail(WEFT_ENOMEM, "DATASET: no memory");
    memcpy(d->name, c->dataset, sizeof d->name);
    weft_status status = WEFT_OK;
    if (strcmp(c->dataset, "embedded") == 0) {
        d->kind = EMBEDDED;
        d->vocab = WEFT_CORPUS_VOCAB;
    } else if (strcmp(c->dataset, "recall") == 0) {
        d->kind = RECALL;
        d->vocab = c->vocab_size < WEFT_RECALL_VOCAB ? c->vocab_size : WEFT_RECALL_VOCAB;
    } else if (strcmp(c->dataset, "entailment") == 0) {
        d->kind = ENTAILMENT;
        d->vocab = WEFT_ENTAILMENT_VOCAB;
    } else if (strcmp(c->dataset, "needle") == 0) {
        d->kind = NEEDLE;
        d->vocab = WEFT_CORPUS_VOCAB;
    } else {
        d->kind = SHARDS;
        status = weft_shards_open(c->dataset, c->vocab_size, &d->shards);
        if (status == WEFT_OK) d->vocab = weft_shards_vocab(d->shards);
    }
    if (status == WEFT_OK)
        *out = d;
    else
        free(d);
    return status;
}

void weft_dataset_close(weft_dataset *d) {
    if (!d) return;
    weft_shards_close(d->shards);
    free(d);
}

WEFT_GETTER(const char *, weft_dataset_name, weft_dataset, name)
WEFT_GETTER(int64_t, weft_dataset_vocab, weft_dataset, vocab)

int64_t weft_dataset_tokens(const weft_dataset *d, weft_split split) {
    return d->kind == SHARDS ? weft_shards_tokens(d->shards, split) : -1;
}

weft_status weft_dataset_sum(const weft_dataset *d, bool *has, uint32_t *crc) {
    *crc = 0;
    *has = d->kind == SHARDS;
    return *has ? weft_shards_sum(d->shards, crc) : WEFT_OK;
}

const char *weft_dataset_metric(const weft_dataset *d) {
    if (d->kind == RECALL) return "recall_accuracy";
    if (d->kind == NEEDLE) return "needle_accuracy";
    return d->kind == ENTAILMENT ? "entailment_accuracy" : NULL;
}

weft_status weft_dataset_fill(const weft_dataset *d, weft_split split, uint64_t seed,
                              uint32_t iteration, uint32_t sequence, int64_t time, int32_t *tokens,
                              int32_t *targets, uint8_t *scored) {
    if (time < 1) return weft_fail(WEFT_EINPUT, "DATASET %s: a sequence of no tokens", d->name);
    weft_sequence_place p = {
        .split = split, .seed = seed, .iteration = iteration, .sequence = sequence};
    if (d->kind == RECALL) {
        weft_recall_fill(d->vocab, &p, time, tokens, targets, scored);
        return WEFT_OK;
    }
    if (d->kind == NEEDLE) return weft_needle_fill(&p, time, tokens, targets, scored);
    if (d->kind == ENTAILMENT) return weft_entailment_fill(&p, time, tokens, targets, scored);
    if (scored) memset(scored, 0, (size_t)time);
    if (d->kind == SHARDS) return weft_shards_fill(d->shards, &p, time, tokens, targets);
    weft_corpus_fill(&p, time, tokens, targets);
    return WEFT_OK;
}
