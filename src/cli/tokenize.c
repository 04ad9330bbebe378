/* weft tokenize: texts to token shards. */
#include "base/log.h"
#include "base/text.h"
#include "cli/args.h"
#include "data/shard_write.h"
#include "data/texts.h"

#include <limits.h>
#include <stdlib.h>

const char weft_help_tokenize[] =
    "  --out DIR          where train_*.bin and val_*.bin go; made, with the folders above it\n"
    "  --tokenizer T      bytes (the default), a tokenizer.json, a vocab.bpe with its "
    "encoder.json\n"
    "                     beside it, or a folder with such files\n"
    "  --jsonl FIELD      the files are JSON lines; their texts are in this field\n"
    "  --val-share P      the share of the text, 0 up to 1, that is held out as val_*.bin; "
    "default:\n"
    "                     0.05, and 0 with --val\n"
    "  --val FILE         hold out all the text of this file too\n"
    "  --shard-tokens N   most tokens of a shard; default: 100000000\n"
    "  --threads N        default: one per processor\n"
    "  --json             one object on standard output\n"
    "\n"
    "FILES are texts, or - for standard input. A file, or a line of JSON lines, is a document. "
    "The\n"
    "tokenizer's end-of-text token is put before each; where it has none, a newline between them.\n"
    "Such a token's name within a text is plain text. DIR gets the tokenizer.json too. Nothing\n"
    "appears in DIR under its name before everything is written.\n";

enum { FILES_MAX = 65536 };
static const double VAL_SHARE = 0.05; /* held out unless the user says otherwise */

static void report(const weft_args *args, const char *out, const weft_tokenizer *t,
                   const weft_texts_sum *sum) {
    char documents[WEFT_COUNT_ROOM], bytes[WEFT_COUNT_ROOM], train[WEFT_COUNT_ROOM];
    char val[WEFT_COUNT_ROOM], vocab[WEFT_COUNT_ROOM];
    double rate = sum->seconds > 0 ? (double)sum->bytes / sum->seconds / 1e6 : 0;
    if (args->json)
        printf("{\"documents\": %lld, \"bytes\": %lld, \"train_tokens\": %lld, \"val_tokens\": "
               "%lld, \"shards\": %lld, \"vocab\": %lld, \"seconds\": %.3f}\n",
               (long long)sum->documents, (long long)sum->bytes, (long long)sum->tokens[0],
               (long long)sum->tokens[1], (long long)sum->shards,
               (long long)weft_tokenizer_vocab(t), sum->seconds);
    else
        printf("%s: %s documents, %s bytes, %s train and %s val tokens in %lld shards, "
               "vocabulary %s, %.1f MB/s\n",
               out, weft_count_text(sum->documents, documents), weft_count_text(sum->bytes, bytes),
               weft_count_text(sum->tokens[0], train), weft_count_text(sum->tokens[1], val),
               (long long)sum->shards, weft_count_text(weft_tokenizer_vocab(t), vocab), rate);
}

/* WEFT_EXIT_DONE, or one line and WEFT_EXIT_USAGE. */
static int read_numbers(const char *share_text, const char *shard_text, double *share,
                        int64_t *shard_tokens) {
    char *end;
    if (share_text) *share = strtod(share_text, &end);
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
                    const weft_input_options *input, int64_t shard_tokens) {
    weft_tokenizer *t = NULL;
    weft_pool *pool = NULL;
    weft_texts_sum sum;
    weft_status status = weft_tokenizer_open(tokenizer ? tokenizer : "bytes", &t);
    if (status == WEFT_OK) status = weft_pool_create(args->threads, &pool);
    if (status == WEFT_OK) status = weft_texts_tokenize(input, t, pool, out, shard_tokens, &sum);
    int exit_status = status == WEFT_OK ? WEFT_EXIT_DONE : weft_args_fail(args, status);
    if (status == WEFT_OK) {
        if ((input->val_share > 0 || input->val_path) && !sum.tokens[1])
            weft_log(WEFT_LOG_WARN, "tokenize: too little text for a share to validate on");
        report(args, out, t, &sum);
    }
    if (pool) weft_pool_destroy(pool);
    weft_tokenizer_close(t);
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
    if (!exit_status) exit_status = weft_args_only(&args, ARGS_JSON | ARGS_THREADS);
    while (!exit_status && input.n_paths < argc && files[input.n_paths])
        input.n_paths++;
    if (!exit_status && !input.n_paths) {
        fprintf(stderr, "weft tokenize: no files are named; - is standard input\n");
        exit_status = WEFT_EXIT_USAGE;
    }
    if (input.val_path) files[input.n_paths++] = input.val_path;
    if (!input.val_path) input.val_share = VAL_SHARE;
    if (!exit_status) exit_status = read_numbers(share, shard, &input.val_share, &shard_tokens);
    input.paths = files;
    input.field = field;
    if (!exit_status) exit_status = tokenize(&args, tokenizer, out, &input, shard_tokens);
    free(files);
    return exit_status;
}
