/* Texts to tokens. */
#include "data/texts.h"
#include "base/scope.h"

#include "base/clock.h"
#include "base/folders.h"
#include "base/progress.h"
#include "base/text.h"
#include "data/shards.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { UNIT_BYTES = 1 << 20, BATCH_A_THREAD = 4, BATCH_BYTES = 8 << 20 };

static void show_progress(void *progress, int64_t tokens) {
    weft_progress_update(progress, tokens, NULL);
}

WEFT_ENDED_BY(weft_input_close, weft_input)
WEFT_ENDED_BY(weft_bpe_trainer_close, weft_bpe_trainer)

weft_status weft_texts_learn(const weft_input_options *input, int64_t vocab, int64_t least,
                             weft_tokenizer **out, int64_t *words) {
    WEFT_AUTO(weft_input_close_at) weft_input *in = NULL;
    WEFT_AUTO(weft_bpe_trainer_close_at) weft_bpe_trainer *b = NULL;
    *out = NULL;
    WEFT_TRY(weft_input_open(input, &in));
    WEFT_TRY(weft_bpe_trainer_open(&b));
    const weft_input_unit *units;
    int64_t count = 0, read = 0;
    weft_status counted;
    weft_progress *bar = weft_progress_begin(&(weft_progress_options){
        .label = "count", .unit = "KB", .total = weft_input_total(in) / 1000});
    while ((counted = weft_input_next(in, BATCH_BYTES, &units, &count)) == WEFT_OK && count > 0) {
        for (int64_t i = 0; i < count && counted == WEFT_OK; i++) {
            char *keep;
            const char *text;
            size_t bytes;
            counted = weft_input_text(in, &units[i], &keep, &text, &bytes);
            if (counted == WEFT_OK) counted = weft_bpe_trainer_add(b, text, bytes);
            free(keep);
            read += (int64_t)units[i].bytes;
        }
        if (counted != WEFT_OK) break;
        weft_progress_update(bar, read / 1000, NULL);
    }
    weft_progress_end(bar, false);
    WEFT_TRY(counted);
    if (!(*words = weft_bpe_trainer_words(b)))
        return weft_fail(WEFT_EINPUT, "there is no text in the input");
    weft_progress *p = weft_progress_begin(&(weft_progress_options){
        .label = "train", .unit = "tokens", .total = vocab, .done = WEFT_BPE_VOCAB_MIN});
    weft_status status = weft_bpe_trainer_run(b, vocab, least, show_progress, p, out);
    weft_progress_end(p, false);
    return status;
}

typedef struct {
    int32_t *tokens;
    int64_t count;
    size_t bytes;
    weft_status status;
    char message[256];
} result;

typedef struct {
    const weft_tokenizer *tokenizer;
    weft_input *input;
    weft_pool *pool;
    weft_encoder **encoders; /* one a thread */
    weft_shard_writer *writers[2];
    const weft_input_unit *units;
    result *results;
    int64_t room;
    int64_t documents, bytes;
    bool has_tokenizer; /* the folder has its tokenizer.json already */
    bool began[2];      /* a document was written to this split */
    int folder;         /* held by a lock; -1: not yet */
} job;

static weft_status encode_unit(job *j, int64_t i, int thread, result *r) {
    WEFT_AUTO_FREE char *keep = NULL;
    const char *text;
    const int32_t *tokens;
    WEFT_TRY(weft_input_text(j->input, &j->units[i], &keep, &text, &r->bytes));
    WEFT_TRY(weft_encode(j->encoders[thread], text, r->bytes, false, &tokens, &r->count));
    if (!r->count) return WEFT_OK;
    r->tokens = malloc((size_t)r->count * sizeof *tokens);
    if (!r->tokens) return weft_fail(WEFT_ENOMEM, "no memory for %lld tokens", (long long)r->count);
    memcpy(r->tokens, tokens, (size_t)r->count * sizeof *tokens);
    return WEFT_OK;
}

static void encode_task(void *context, int64_t i, int thread) {
    job *j = context;
    result *r = &j->results[i];
    r->tokens = NULL;
    r->count = 0;
    r->bytes = 0;
    r->status = encode_unit(j, i, thread, r);
    if (r->status != WEFT_OK) snprintf(r->message, sizeof r->message, "%s", weft_error_message());
}

/* What stands before a document: the end of the one before it, and what begins every text. */
static weft_status put_separator(job *j, bool val) {
    int32_t end = weft_tokenizer_end(j->tokenizer), begin = weft_tokenizer_begin(j->tokenizer);
    const int32_t *tokens = &end;
    int64_t count = 1;
    bool first = !j->began[val];
    j->began[val] = true;
    if (!first && end < 0) WEFT_TRY(weft_encode(j->encoders[0], "\n", 1, false, &tokens, &count));
    if (!first || (end >= 0 && begin < 0))
        WEFT_TRY(weft_shard_writer_put(j->writers[val], tokens, count));
    return begin < 0 ? WEFT_OK : weft_shard_writer_put(j->writers[val], &begin, 1);
}

static weft_status write_unit(job *j, const weft_input_unit *unit, const result *r) {
    if (r->status != WEFT_OK) return weft_fail(r->status, "%s", r->message);
    if (!r->count) return WEFT_OK; /* no text, no document */
    if (unit->starts) {
        WEFT_TRY(put_separator(j, unit->val));
        j->documents++;
    }
    j->bytes += (int64_t)r->bytes;
    return weft_shard_writer_put(j->writers[unit->val], r->tokens, r->count);
}

static weft_status run_batch(job *j, int64_t count) {
    weft_status status = WEFT_OK;
    if (!weft_grow_list(&j->results, &j->room, count, sizeof *j->results))
        return weft_fail(WEFT_ENOMEM, "no memory for %lld texts", (long long)count);
    weft_pool_run(j->pool, count, encode_task, j);
    for (int64_t i = 0; i < count; i++) {
        if (status == WEFT_OK) status = write_unit(j, &j->units[i], &j->results[i]);
        free(j->results[i].tokens);
    }
    return status;
}

static weft_status run_all(job *j) {
    size_t want = (size_t)weft_pool_size(j->pool) * BATCH_A_THREAD * UNIT_BYTES;
    int64_t read = 0, count = 0;
    weft_status status;
    weft_progress *p = weft_progress_begin(&(weft_progress_options){
        .label = "tokenize", .unit = "KB", .total = weft_input_total(j->input) / 1000});
    while ((status = weft_input_next(j->input, want, &j->units, &count)) == WEFT_OK && count > 0) {
        if ((status = run_batch(j, count)) != WEFT_OK) break;
        for (int64_t i = 0; i < count; i++)
            read += (int64_t)j->units[i].bytes;
        weft_progress_update(p, read / 1000, NULL);
    }
    weft_progress_end(p, false);
    return status;
}

static weft_status open_job(job *j, const weft_input_options *input, const char *out,
                            int64_t shard_tokens) {
    WEFT_TRY(weft_input_open(input, &j->input));
    int threads = weft_pool_size(j->pool);
    j->encoders = calloc((size_t)threads, sizeof *j->encoders);
    if (!j->encoders) return weft_fail(WEFT_ENOMEM, "no memory to encode with");
    for (int i = 0; i < threads; i++)
        WEFT_TRY(weft_encoder_open(j->tokenizer, &j->encoders[i]));
    int64_t vocab = weft_tokenizer_vocab(j->tokenizer);
    weft_kind kind;
    WEFT_TRY(weft_path_kind(out, &kind));
    if (kind == WEFT_KIND_FILE || kind == WEFT_KIND_OTHER)
        return weft_fail(WEFT_EINPUT, "%s: is there already and is no folder; name another", out);
    WEFT_TRY(weft_folder_make(out));
    /* One process at a time: the parts that another is writing are no remainders. */
    j->folder = open(out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (j->folder < 0) return weft_fail(WEFT_EIO, "%s: %s", out, strerror(errno));
    if (flock(j->folder, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return weft_fail(WEFT_EINPUT, "%s: another process tokenizes into this folder", out);
    /* DIR's tokenizer.json must be that of its shards; another's is not overwritten. */
    char path[WEFT_PATH_MAX];
    WEFT_TRY(weft_path(path, "%s/tokenizer.json", out));
    WEFT_TRY(weft_path_kind(path, &kind));
    if (kind != WEFT_KIND_NOTHING) {
        WEFT_TRY(weft_tokenizer_is_saved(j->tokenizer, path, &j->has_tokenizer));
        if (!j->has_tokenizer)
            return weft_fail(WEFT_EINPUT,
                             "%s: is there already and is not the tokenizer of these shards; name "
                             "another folder",
                             path);
    }
    WEFT_TRY(weft_shard_writer_open(out, "train", vocab, shard_tokens, &j->writers[0]));
    return weft_shard_writer_open(out, "val", vocab, shard_tokens, &j->writers[1]);
}

static void close_job(job *j) {
    for (int i = 0; j->encoders && i < weft_pool_size(j->pool); i++)
        weft_encoder_close(j->encoders[i]);
    free(j->encoders);
    free(j->results);
    weft_shard_writer_close(j->writers[0]);
    weft_shard_writer_close(j->writers[1]);
    if (j->folder >= 0) close(j->folder);
    weft_input_close(j->input);
}

weft_status weft_texts_tokenize(const weft_input_options *input, const weft_tokenizer *t,
                                weft_pool *pool, const char *folder, int64_t shard_tokens,
                                weft_texts_sum *out) {
    char path[WEFT_PATH_MAX];
    WEFT_AUTO(close_job) job j = {.tokenizer = t, .pool = pool, .folder = -1};
    weft_input_options cut = *input;
    cut.cuttable = weft_tokenizer_cuttable(t);
    WEFT_TRY(open_job(&j, &cut, folder, shard_tokens));
    double start = weft_clock();
    WEFT_TRY(run_all(&j));
    *out = (weft_texts_sum){
        .documents = j.documents,
        .bytes = j.bytes,
        .tokens = {weft_shard_writer_tokens(j.writers[0]), weft_shard_writer_tokens(j.writers[1])},
        .shards = weft_shard_writer_shards(j.writers[0]) + weft_shard_writer_shards(j.writers[1]),
        .seconds = weft_clock() - start};
    if (!out->tokens[0] && !out->tokens[1])
        return weft_fail(WEFT_EINPUT, "there is no text in the input");
    WEFT_TRY(weft_path(path, "%s/tokenizer.json", folder));
    if (!j.has_tokenizer) WEFT_TRY(weft_tokenizer_save(t, path, NULL));
    return weft_shard_writers_commit(j.writers, 2);
}
