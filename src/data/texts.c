/* Texts to tokens. */
#include "data/texts.h"

#include "base/clock.h"
#include "base/folders.h"
#include "base/text.h"
#include "data/shards.h"
#include "data/tokens.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>

enum { UNIT_BYTES = 1 << 20, BATCH_A_THREAD = 4, BATCH_BYTES = 8 << 20, COPY_TOKENS = 1 << 18 };

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
    weft_bpe_trainer *trainer; /* where a tokenizer is learned */
    weft_pool *pool;
    weft_encoder **encoders; /* one a thread */
    weft_shard_writer *writers[2];
    const weft_input_unit *units;
    result *results;
    int64_t room;
    int64_t documents, bytes;
    int32_t largest;    /* of tokens that were copied */
    bool copies;        /* the files hold tokens */
    bool has_tokenizer; /* the folder has its tokenizer.json already */
    bool began[2];      /* a document was written to this split */
    int folder;         /* held by a lock; -1: not yet */
} job;

/* All batches, under a bar by that name. */
static weft_status each_batch(job *j, size_t want, const char *label,
                              weft_status (*take)(job *j, int64_t count)) {
    int64_t read = 0, count = 0;
    weft_status status;
    weft_progress *p = weft_progress_begin(&(weft_progress_options){
        .label = label, .unit = "KB", .total = weft_input_total(j->input) / 1000});
    while ((status = weft_input_next(j->input, want, &j->units, &count)) == WEFT_OK && count > 0) {
        if ((status = take(j, count)) != WEFT_OK) break;
        for (int64_t i = 0; i < count; i++)
            read += (int64_t)j->units[i].bytes;
        weft_progress_update(p, read / 1000, NULL);
    }
    weft_progress_end(p, false);
    return status;
}

static weft_status count_batch(job *j, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        WEFT_AUTO_FREE char *keep = NULL;
        const char *text;
        size_t bytes;
        WEFT_TRY(weft_input_text(j->input, &j->units[i], &keep, &text, &bytes));
        WEFT_TRY(weft_bpe_trainer_add(j->trainer, text, bytes));
    }
    return WEFT_OK;
}

weft_status weft_texts_learn(const weft_input_options *input, int64_t vocab, int64_t least,
                             weft_tokenizer **out, int64_t *words) {
    WEFT_AUTO(weft_input_close_at) weft_input *in = NULL;
    WEFT_AUTO(weft_bpe_trainer_close_at) weft_bpe_trainer *b = NULL;
    *out = NULL;
    WEFT_TRY(weft_input_open(input, &in));
    WEFT_TRY(weft_bpe_trainer_open(&b));
    job j = {.input = in, .trainer = b};
    WEFT_TRY(each_batch(&j, BATCH_BYTES, "count", count_batch));
    if (!(*words = weft_bpe_trainer_words(b)))
        return WEFT_BAD_INPUT("there is no text in the input");
    weft_progress *p = weft_progress_begin(&(weft_progress_options){
        .label = "tokenizer", .unit = "tokens", .total = vocab, .done = WEFT_BPE_VOCAB_MIN});
    weft_status status = weft_bpe_trainer_run(b, vocab, least, p, out);
    weft_progress_end(p, false);
    return status;
}

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
    *r = (result){0};
    r->status = encode_unit(j, i, thread, r);
    if (r->status != WEFT_OK) snprintf(r->message, sizeof r->message, "%s", weft_error_message());
}

static weft_status write_unit(job *j, const weft_input_unit *unit, const result *r) {
    if (r->status != WEFT_OK) return weft_fail(r->status, "%s", r->message);
    if (!r->count) return WEFT_OK; /* no text, no document */
    if (unit->starts) {            /* what stands before a document: the end of the one before it */
        int32_t end = weft_tokenizer_end(j->tokenizer);
        const int32_t *tokens = &end;
        int64_t count = end >= 0 || j->began[unit->val];
        if (end < 0 && count)
            WEFT_TRY(weft_encode(j->encoders[0], "\n", 1, false, &tokens, &count));
        WEFT_TRY(weft_shard_writer_put(j->writers[unit->val], tokens, count));
        j->began[unit->val] = true;
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

weft_status weft_texts_are_tokens(const weft_input_options *input, bool *out) {
    *out = false;
    for (int i = 0; i < input->n_paths; i++) {
        bool is;
        WEFT_TRY(weft_are_tokens(input->paths[i], &is));
        if (i > 0 && is != *out)
            return WEFT_BAD_INPUT(
                "%s and %s: one holds tokens and the other text; tokenize them apart",
                input->paths[0], input->paths[i]);
        *out = is;
    }
    return WEFT_OK;
}

static weft_status copy_tokens(job *j, const weft_input_options *input, const char *path) {
    WEFT_AUTO(weft_tokens_free) weft_tokens f = {0};
    WEFT_TRY(weft_tokens_open(path, true, &f));
    int64_t vocab = j->tokenizer ? weft_tokenizer_vocab(j->tokenizer) : INT32_MAX;
    int64_t count = f.rows * f.columns;
    int64_t train =
        path == input->val_path ? 0 : count - (int64_t)((double)count * input->val_share);
    WEFT_ROOM(int32_t, some, COPY_TOKENS, "%s: no memory for its tokens", path);
    while (f.read < count) {
        bool val = f.read >= train;
        int64_t left = (val ? count : train) - f.read, n = left < COPY_TOKENS ? left : COPY_TOKENS;
        WEFT_TRY(weft_tokens_next(&f, n, some));
        for (int64_t i = 0; i < n; i++) {
            if (some[i] < 0 || some[i] >= vocab)
                return WEFT_BAD_INPUT(
                    "%s: token %lld is %d, but the tokenizer has %lld; name the one they "
                    "were made with, or none",
                    path, (long long)(f.read - n + i), some[i], (long long)vocab);
            if (some[i] > j->largest) j->largest = some[i];
        }
        WEFT_TRY(weft_shard_writer_put(j->writers[val], some, n));
    }
    j->bytes += f.bytes;
    j->documents++;
    return WEFT_OK;
}

static weft_status open_job(job *j, const weft_input_options *input, const char *out,
                            int64_t shard_tokens) {
    int64_t vocab = j->tokenizer ? weft_tokenizer_vocab(j->tokenizer) : 65536;
    weft_kind kind;
    /* Bytes of the widest token decide how wide those of the shards are. */
    for (int i = 0; !j->tokenizer && i < input->n_paths; i++) {
        WEFT_AUTO(weft_tokens_free) weft_tokens f = {0};
        WEFT_TRY(weft_tokens_open(input->paths[i], true, &f));
        if (f.size > 2) vocab = INT32_MAX;
    }
    int threads = j->copies ? 0 : weft_pool_size(j->pool);
    if (!j->copies) WEFT_TRY(weft_input_open(input, &j->input));
    WEFT_ROOM_AT(j->encoders, threads + 1, "no memory to encode with");
    for (int i = 0; i < threads; i++)
        WEFT_TRY(weft_encoder_open(j->tokenizer, &j->encoders[i]));
    WEFT_TRY(weft_path_kind(out, &kind));
    if (kind == WEFT_KIND_FILE || kind == WEFT_KIND_OTHER)
        return WEFT_BAD_INPUT("%s: is there already and is no folder; name another", out);
    WEFT_TRY(weft_folder_make(out));
    /* One process at a time: the parts that another is writing are no remainders. */
    j->folder = open(out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (j->folder < 0) return weft_path_failed(out);
    if (flock(j->folder, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return WEFT_BAD_INPUT("%s: another process tokenizes into this folder", out);
    /* DIR's tokenizer.json must be that of its shards; another's is not overwritten. */
    WEFT_PATH(path, "%s/tokenizer.json", out);
    WEFT_TRY(weft_path_kind(path, &kind));
    bool there = kind != WEFT_KIND_NOTHING;
    if (there && j->tokenizer)
        WEFT_TRY(weft_tokenizer_is_saved(j->tokenizer, path, &j->has_tokenizer));
    if (there && !j->has_tokenizer)
        return WEFT_BAD_INPUT(
            "%s: is there already and is not the tokenizer of these shards; name another folder",
            path);
    WEFT_TRY(weft_shard_writer_open(out, "train", vocab, shard_tokens, &j->writers[0]));
    return weft_shard_writer_open(out, "val", vocab, shard_tokens, &j->writers[1]);
}

static void close_job(job *j) {
    for (int i = 0; j->encoders && j->encoders[i]; i++)
        weft_encoder_close(j->encoders[i]);
    WEFT_FREE(j->encoders, j->results);
    weft_shard_writer_close(j->writers[0]);
    weft_shard_writer_close(j->writers[1]);
    if (j->folder >= 0) close(j->folder);
    weft_input_close(j->input);
}

weft_status weft_texts_tokenize(const weft_input_options *input, const weft_tokenizer *t,
                                weft_pool *pool, const char *folder, int64_t shard_tokens,
                                weft_texts_sum *out) {
    WEFT_AUTO(close_job) job j = {.tokenizer = t, .pool = pool, .folder = -1};
    weft_input_options cut = *input;
    cut.cuttable = t && weft_tokenizer_cuttable(t);
    WEFT_TRY(weft_texts_are_tokens(input, &j.copies));
    if (!t && !j.copies) return weft_fail(WEFT_EBUG, "texts are tokenized without a tokenizer");
    WEFT_TRY(open_job(&j, &cut, folder, shard_tokens));
    double start = weft_clock();
    size_t want = (size_t)weft_pool_size(pool) * BATCH_A_THREAD * UNIT_BYTES;
    for (int i = 0; j.copies && i < input->n_paths; i++)
        WEFT_TRY(copy_tokens(&j, input, input->paths[i]));
    if (!j.copies) WEFT_TRY(each_batch(&j, want, "tokenize", run_batch));
    *out = (weft_texts_sum){
        .documents = j.documents,
        .bytes = j.bytes,
        .tokens = {weft_shard_writer_tokens(j.writers[0]), weft_shard_writer_tokens(j.writers[1])},
        .shards = weft_shard_writer_shards(j.writers[0]) + weft_shard_writer_shards(j.writers[1]),
        .vocab = t ? weft_tokenizer_vocab(t) : (int64_t)j.largest + 1,
        .seconds = weft_clock() - start};
    if (!out->tokens[0] && !out->tokens[1]) return WEFT_BAD_INPUT("there is no text in the input");
    WEFT_PATH(path, "%s/tokenizer.json", folder);
    if (t && !j.has_tokenizer) WEFT_TRY(weft_tokenizer_save(t, path, NULL));
    return weft_shard_writers_commit(j.writers, 2);
}
