/* weft tokenize: texts to token shards. Batches of texts are read, encoded by the pool, a unit a
 * task, and written in their order, so the shards are the same for any number of threads. */
#include "cli/args.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/pool.h"
#include "core/progress.h"
#include "data/shard_write.h"
#include "data/tokenizer.h"
#include "data/tokenizer_input.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char weft_help_tokenize[] =
    "  --out DIR          where train_*.bin and val_*.bin go; made if it is not there\n"
    "  --tokenizer T      bytes (the default), a tokenizer.json, a vocab.bpe with its "
    "encoder.json\n"
    "                     beside it, or a folder with such files\n"
    "  --jsonl FIELD      the files are JSON lines; their texts are in this field\n"
    "  --val-share P      that much of the text, 0 up to 1, is kept apart as val_*.bin (0)\n"
    "  --val FILE         all the text of this file is kept apart too\n"
    "  --shard-tokens N   tokens of a shard (100000000)\n"
    "  --threads N        default: one per processor\n"
    "  --json             one object on standard output\n"
    "\n"
    "FILES are texts, or - for standard input. A file, or a line of JSON lines, is a document. "
    "The\n"
    "tokenizer's end-of-text token is put before each; where it has none, a newline between them.\n"
    "Such a token's name within a text is plain text. DIR gets the tokenizer.json too. Nothing\n"
    "appears in DIR under its name before everything is written.\n";

enum { FILES_MAX = 65536, UNIT_BYTES = 1 << 20, BATCH_A_THREAD = 4 };

typedef struct {
    int32_t *tokens;
    int64_t count;
    size_t bytes;
    weft_status status;
    char message[256];
} result;

typedef struct {
    const weft_args *args;
    weft_tokenizer *tokenizer;
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
} job;

static weft_status encode_unit(job *j, int64_t i, int thread, result *r) {
    char *keep;
    const char *text;
    const int32_t *tokens;
    weft_status status = weft_input_text(j->input, &j->units[i], &keep, &text, &r->bytes);
    if (status == WEFT_OK)
        status = weft_encode(j->encoders[thread], text, r->bytes, false, &tokens, &r->count);
    if (status == WEFT_OK && r->count) {
        r->tokens = malloc((size_t)r->count * sizeof *tokens);
        if (r->tokens)
            memcpy(r->tokens, tokens, (size_t)r->count * sizeof *tokens);
        else
            status = weft_fail(WEFT_ENOMEM, "no memory for %lld tokens", (long long)r->count);
    }
    free(keep);
    return status;
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

/* What stands before a document: the end of the one before it. */
static weft_status put_separator(job *j, bool val) {
    int32_t end = weft_tokenizer_end(j->tokenizer);
    const int32_t *tokens = &end;
    int64_t count = 1;
    bool first = !j->began[val];
    j->began[val] = true;
    if (end < 0 && first) return WEFT_OK;
    if (end < 0) WEFT_TRY(weft_encode(j->encoders[0], "\n", 1, false, &tokens, &count));
    return weft_shard_writer_put(j->writers[val], tokens, count);
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
    if (count > j->room) {
        result *results = realloc(j->results, (size_t)count * sizeof *results);
        if (!results) return weft_fail(WEFT_ENOMEM, "no memory for %lld texts", (long long)count);
        j->results = results;
        j->room = count;
    }
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

static weft_status put_in_place(job *j, const char *out) {
    char path[WEFT_PATH_MAX];
    if (!weft_shard_writer_tokens(j->writers[0]) && !weft_shard_writer_tokens(j->writers[1]))
        return weft_fail(WEFT_EINPUT, "there is no text in the input");
    WEFT_TRY(weft_path(path, "%s/tokenizer.json", out));
    if (!j->has_tokenizer) WEFT_TRY(weft_tokenizer_save(j->tokenizer, path, NULL));
    WEFT_TRY(weft_shard_writer_commit(j->writers[1]));
    return weft_shard_writer_commit(j->writers[0]);
}

/* DIR's tokenizer.json must be that of its shards; another's is not overwritten. */
static weft_status check_tokenizer(job *j, const char *out) {
    char path[WEFT_PATH_MAX];
    weft_kind kind;
    WEFT_TRY(weft_path(path, "%s/tokenizer.json", out));
    WEFT_TRY(weft_path_kind(path, &kind));
    if (kind == WEFT_KIND_NOTHING) return WEFT_OK;
    WEFT_TRY(weft_tokenizer_is_saved(j->tokenizer, path, &j->has_tokenizer));
    if (j->has_tokenizer) return WEFT_OK;
    return weft_fail(WEFT_EINPUT,
                     "%s: is there already and is not the tokenizer of these shards; name another "
                     "folder",
                     path);
}

static weft_status open_job(job *j, const weft_input_options *input, const char *out,
                            int64_t shard_tokens) {
    WEFT_TRY(weft_input_open(input, &j->input));
    WEFT_TRY(weft_pool_create(j->args->threads, &j->pool));
    int threads = weft_pool_size(j->pool);
    j->encoders = calloc((size_t)threads, sizeof *j->encoders);
    if (!j->encoders) return weft_fail(WEFT_ENOMEM, "no memory to encode with");
    for (int i = 0; i < threads; i++)
        WEFT_TRY(weft_encoder_open(j->tokenizer, &j->encoders[i]));
    int64_t vocab = weft_tokenizer_vocab(j->tokenizer);
    WEFT_TRY(check_tokenizer(j, out));
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
    weft_input_close(j->input);
    if (j->pool) weft_pool_destroy(j->pool);
    weft_tokenizer_close(j->tokenizer);
}

static void report(const job *j, const char *out, double took) {
    long long train = weft_shard_writer_tokens(j->writers[0]);
    long long val = weft_shard_writer_tokens(j->writers[1]);
    long long shards =
        weft_shard_writer_shards(j->writers[0]) + weft_shard_writer_shards(j->writers[1]);
    double rate = took > 0 ? (double)j->bytes / took / 1e6 : 0;
    if (j->args->json)
        printf("{\"documents\": %lld, \"bytes\": %lld, \"train_tokens\": %lld, \"val_tokens\": "
               "%lld, \"shards\": %lld, \"vocab\": %lld, \"seconds\": %.3f}\n",
               (long long)j->documents, (long long)j->bytes, train, val, shards,
               (long long)weft_tokenizer_vocab(j->tokenizer), took);
    else
        printf("%s: %lld documents, %lld bytes, %lld train and %lld val tokens in %lld shards, "
               "vocabulary %lld, %.1f MB/s\n",
               out, (long long)j->documents, (long long)j->bytes, train, val, shards,
               (long long)weft_tokenizer_vocab(j->tokenizer), rate);
}

/* WEFT_EXIT_DONE, or one line and WEFT_EXIT_USAGE. */
static int read_numbers(const char *share_text, const char *shard_text, double *share,
                        int64_t *shard_tokens) {
    char *end;
    *share = share_text ? strtod(share_text, &end) : 0;
    if (share_text && (*end || !(*share >= 0 && *share < 1))) {
        fprintf(stderr, "weft tokenize: --val-share '%s' must be a number from 0 up to 1\n",
                share_text);
        return WEFT_EXIT_USAGE;
    }
    *shard_tokens = shard_text ? strtoll(shard_text, &end, 10) : WEFT_SHARD_TOKENS;
    if (shard_text && (*end || *shard_tokens < 1 || *shard_tokens > INT32_MAX)) {
        fprintf(stderr, "weft tokenize: --shard-tokens '%s' must be a whole number from 1 to %d\n",
                shard_text, INT32_MAX);
        return WEFT_EXIT_USAGE;
    }
    return WEFT_EXIT_DONE;
}

static int tokenize(const weft_args *args, const char *tokenizer, const char *out,
                    weft_input_options *input, int64_t shard_tokens) {
    job j = {.args = args};
    weft_status status = weft_tokenizer_open(tokenizer ? tokenizer : "bytes", &j.tokenizer);
    if (status == WEFT_OK) {
        input->cuttable = weft_tokenizer_cuttable(j.tokenizer);
        status = open_job(&j, input, out, shard_tokens);
    }
    double start = weft_clock();
    if (status == WEFT_OK) status = run_all(&j);
    double took = weft_clock() - start;
    if (status == WEFT_OK) status = put_in_place(&j, out);
    int exit_status = status == WEFT_OK ? WEFT_EXIT_DONE : weft_args_fail(args, status);
    if (status == WEFT_OK) {
        if ((input->val_share > 0 || input->val_path) && !weft_shard_writer_tokens(j.writers[1]))
            weft_log(WEFT_LOG_WARN, "tokenize: too little text for a share to validate on");
        report(&j, out, took);
    }
    close_job(&j);
    return exit_status;
}

int weft_cmd_tokenize(int argc, char **argv) {
    weft_args args;
    const char *tokenizer = NULL, *field = NULL, *share = NULL, *shard = NULL, *out = NULL;
    weft_input_options input = {0};
    const weft_arg own[] = {{"--tokenizer", &tokenizer, NULL, false},
                            {"--jsonl", &field, NULL, false},
                            {"--val-share", &share, NULL, false},
                            {"--val", &input.val_path, NULL, false},
                            {"--shard-tokens", &shard, NULL, false},
                            {"--out", &out, NULL, true},
                            {0}};
    int64_t shard_tokens = 0;
    const char **files = calloc((size_t)argc + 1, sizeof *files);
    if (!files) return WEFT_EXIT_FAILED;
    int exit_status =
        weft_args_parse(&args, argc, argv, own, files, argc < FILES_MAX ? argc : FILES_MAX);
    while (!exit_status && input.n_paths < argc && files[input.n_paths])
        input.n_paths++;
    if (!exit_status && !input.n_paths) {
        fprintf(stderr, "weft tokenize: no files are named; - is standard input\n");
        exit_status = WEFT_EXIT_USAGE;
    }
    if (input.val_path) files[input.n_paths++] = input.val_path;
    if (!exit_status) exit_status = read_numbers(share, shard, &input.val_share, &shard_tokens);
    input.paths = files;
    input.field = field;
    if (!exit_status) exit_status = tokenize(&args, tokenizer, out, &input, shard_tokens);
    free(files);
    return exit_status;
}
