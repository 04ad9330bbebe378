/* The datasets behind one name: each kind is a file of its own, and this one tells them apart. */
#include "data/dataset.h"
#include "base/getter.h"
#include "base/scope.h"

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
    static const struct {
        const char *name;
        int64_t vocab;
    } known[SHARDS] = {[EMBEDDED] = {"embedded", WEFT_CORPUS_VOCAB},
                       [RECALL] = {"recall", WEFT_RECALL_VOCAB},
                       [ENTAILMENT] = {"entailment", WEFT_ENTAILMENT_VOCAB},
                       [NEEDLE] = {"needle", WEFT_CORPUS_VOCAB}};
    WEFT_AUTO_FREE weft_dataset *d = calloc(1, sizeof *d);
    if (!d) return weft_fail(WEFT_ENOMEM, "DATASET: no memory");
    memcpy(d->name, c->dataset, sizeof d->name);
    while (d->kind < SHARDS && strcmp(c->dataset, known[d->kind].name) != 0)
        d->kind++;
    if (d->kind == SHARDS) WEFT_TRY(weft_shards_open(c->dataset, c->vocab_size, &d->shards));
    d->vocab = d->kind == SHARDS ? weft_shards_vocab(d->shards) : known[d->kind].vocab;
    if (d->kind == RECALL && c->vocab_size < d->vocab) d->vocab = c->vocab_size;
    *out = weft_steal(&d);
    return WEFT_OK;
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
