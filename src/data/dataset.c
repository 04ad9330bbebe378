/* The datasets behind one name: each kind is a file of its own, and this one tells them apart. */
#include "data/dataset.h"

#include "data/corpus.h"
#include "data/shards.h"
#include "data/tasks.h"

/* What the program makes itself. Where the vocabulary may be less, it is VOCAB_SIZE, which with CONTEXT must have room
 * for n, TASK_SIZE: vocab_of n + vocab_more, time_of n + time_more. */
static const struct {
    const char *name, *metric;
    int64_t vocab;
    weft_task_fill *fill; /* NULL: the embedded text */
    bool less;
    int64_t vocab_of, vocab_more, time_of, time_more;
} known[] = {
    {"embedded", NULL, WEFT_CORPUS_VOCAB, NULL, false, 0, 0, 0, 0},
    {"recall", "recall_accuracy", WEFT_RECALL_VOCAB, weft_recall_fill, true, 0, 0, 0, 0},
    {"entailment", "entailment_accuracy", WEFT_ENTAILMENT_VOCAB, weft_entailment_fill, false, 0, 0,
     0, 0},
    {"needle", "needle_accuracy", WEFT_CORPUS_VOCAB, weft_needle_fill, false, 0, 0, 0, 0},
    {"mqar", "mqar_accuracy", WEFT_TASK_VOCAB, weft_mqar_fill, true, 2, 0, 2, 1},
    {"induction", "induction_accuracy", WEFT_TASK_VOCAB, weft_induction_fill, true, 3, 0, 0, 3},
    {"copying", "copying_accuracy", WEFT_TASK_VOCAB, weft_copying_fill, true, 0, 3, 2, 0},
    {"compression", "compression_accuracy", WEFT_TASK_VOCAB, weft_compression_fill, true, 1, 3, 1,
     2},
};
enum { SHARDS = sizeof known / sizeof known[0] }; /* the kind behind them */

struct weft_dataset {
    int kind;
    char name[WEFT_TEXT_MAX];
    weft_task_shape task;
    weft_shards *shards; /* SHARDS only */
};

static weft_status check_size(const weft_dataset *d, int64_t time) {
    if (d->kind == SHARDS) return WEFT_OK;
    int64_t vocab = known[d->kind].vocab_of * d->task.size + known[d->kind].vocab_more;
    int64_t least = known[d->kind].time_of * d->task.size + known[d->kind].time_more;
    if (d->task.vocab >= vocab && time >= least) return WEFT_OK;
    return WEFT_BAD_INPUT("DATASET %s: TASK_SIZE=%lld takes a VOCAB_SIZE of %lld and a CONTEXT of "
                          "%lld at least; they are %lld and %lld",
                          d->name, (long long)d->task.size, (long long)vocab, (long long)least,
                          (long long)d->task.vocab, (long long)time);
}

/* Its place in the list; SHARDS: a folder. */
static int find_kind(const weft_config *c) {
    int kind = 0;
    while (kind < SHARDS && strcmp(c->dataset, known[kind].name) != 0)
        kind++;
    return kind;
}

weft_status weft_dataset_tokenizer(const weft_config *c, weft_tokenizer **out) {
    int kind = find_kind(c);
    bool there = false;
    *out = NULL;
    if (kind < SHARDS && known[kind].metric) return WEFT_OK;
    WEFT_PATH(path, "%s/tokenizer.json", c->dataset);
    if (kind == SHARDS) WEFT_TRY(weft_path_there(path, &there));
    if (there) return weft_tokenizer_open(path, out);
    if (kind == SHARDS && strcmp(c->tokenizer, "bytes") == 0) return WEFT_OK;
    return weft_tokenizer_open(c->tokenizer, out);
}

weft_status weft_dataset_open(const weft_config *c, weft_dataset **out) {
    *out = NULL;
    WEFT_ROOM(weft_dataset, d, 1, "DATASET: no memory");
    memcpy(d->name, c->dataset, sizeof d->name);
    d->kind = find_kind(c);
    if (d->kind == SHARDS) WEFT_TRY(weft_shards_open(c->dataset, c->vocab_size, &d->shards));
    d->task =
        (weft_task_shape){d->kind == SHARDS ? weft_shards_vocab(d->shards) : known[d->kind].vocab,
                          c->task_size, c->task_noise};
    if (d->kind < SHARDS && known[d->kind].less && c->vocab_size < d->task.vocab)
        d->task.vocab = c->vocab_size;
    WEFT_TRY(check_size(d, c->context));
    return weft_hand(&d, out);
}

void weft_dataset_close(weft_dataset *d) {
    if (!d) return;
    weft_shards_close(d->shards);
    free(d);
}

WEFT_GETTER(const char *, weft_dataset_name, weft_dataset, name)
WEFT_GETTER(int64_t, weft_dataset_vocab, weft_dataset, task.vocab)

int64_t weft_dataset_tokens(const weft_dataset *d, weft_split split) {
    return d->kind == SHARDS ? weft_shards_tokens(d->shards, split) : -1;
}

weft_status weft_dataset_sum(const weft_dataset *d, int64_t *sum) {
    uint32_t crc = 0;
    if (d->kind == SHARDS) WEFT_TRY(weft_shards_sum(d->shards, &crc));
    *sum = d->kind == SHARDS ? (int64_t)crc : -1;
    return WEFT_OK;
}

const char *weft_dataset_metric(const weft_dataset *d) {
    return d->kind == SHARDS ? NULL : known[d->kind].metric;
}

weft_status weft_dataset_fill(const weft_dataset *d, weft_split split, uint64_t seed,
                              uint32_t iteration, uint32_t sequence, int64_t time, int32_t *tokens,
                              int32_t *targets, uint8_t *scored) {
    if (time < 1) return WEFT_BAD_INPUT("DATASET %s: a sequence of no tokens", d->name);
    weft_sequence_place p = {
        .split = split, .seed = seed, .iteration = iteration, .sequence = sequence};
    if (d->kind < SHARDS && known[d->kind].fill) {
        WEFT_TRY(check_size(d, time));
        weft_sheet s = weft_sheet_open(d->name, &p, time, tokens, targets, scored);
        return known[d->kind].fill(&d->task, &s);
    }
    if (scored) memset(scored, 0, (size_t)time);
    if (d->kind == SHARDS) return weft_shards_fill(d->shards, &p, time, tokens, targets);
    weft_corpus_fill(&p, time, tokens, targets);
    return WEFT_OK;
}
