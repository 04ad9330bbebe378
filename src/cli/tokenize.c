/* weft tokenize: texts to token shards; weft tokenizer train: a byte-level BPE of one's own, as a tokenizer.json. */
#include "base/log.h"
#include "base/text.h"
#include "cli/args.h"
#include "data/shards.h"
#include "data/texts.h"

const char weft_help_tokenize[] =
    "  --out DIR\twhere train_*.bin and val_*.bin go; made, with the folders above it\n"
    "  --tokenizer T\tbytes (the default), a tokenizer.json, a vocab.bpe with its encoder.json "
    "beside it, or a folder with such files\n"
    "  --jsonl FIELD\tthe files are JSON lines; their texts are in this field. Without it, files "
    "named .jsonl or .ndjson are, and the field is text\n"
    "  --val-share P\tthe share of the text, 0 up to 1, that is held out as val_*.bin; default: "
    "0.05, and 0 with --val\n"
    "  --val FILE\thold out all the text of this file too\n"
    "  --shard-tokens N\tmost tokens of a shard; default: 100000000\n"
    "  --threads N\tdefault: one per processor\n"
    "  --json\tone object on standard output\n"
    "\n"
    "FILES are texts, or - for standard input; gzip and zstd are unpacked. A file, or a line of "
    "JSON lines, is a document. The tokenizer's end-of-text token is put before each; where it has "
    "none, a newline between them. Such a token's name within a text is plain text. DIR gets the "
    "tokenizer.json too. Nothing appears in DIR under its name before everything is written.\n"
    "\n"
    "FILES may hold tokens instead, which are copied: shards as llm.c and modded-nanogpt write "
    "them, a .npy, or nanoGPT's train.bin and val.bin. --tokenizer then names the one they were "
    "made with; without it DIR has none, and CONFIG_VOCAB_SIZE must be above the largest token.\n";

#define NO_FILES "no files are named; - is standard input"
static const double VAL_SHARE = 0.05; /* held out unless the user says otherwise */

weft_status weft_cmd_tokenize(weft_args *args, int argc, char **argv) {
    const char *tokenizer = NULL, *share = NULL, *out = NULL;
    weft_input_options input = {.val_share = -1};
    int64_t shard_tokens = WEFT_SHARD_TOKENS;
    const weft_arg own[] = {{"--tokenizer", .value = &tokenizer},
                            {"--jsonl", .value = &input.field},
                            {"--val-share", .value = &share, .real = &input.val_share, .max = 1},
                            {"--val", .value = &input.val_path},
                            {"--shard-tokens", .number = &shard_tokens, .min = 1, .max = INT32_MAX},
                            {"--out", .value = &out, .rule = WEFT_ARG_NEEDED},
                            {0}};
    WEFT_ROOM(const char *, files, argc + 1, "no memory");
    WEFT_TRY(weft_args_parse(args, argc, argv, ARGS_JSON | ARGS_THREADS, own, files, argc));
    if (!args->n_words) return WEFT_BAD_INPUT(NO_FILES);
    if (input.val_share == 1) return WEFT_BAD_INPUT("--val-share '%s' must be below 1", share);
    if (!share) input.val_share = input.val_path ? 0 : VAL_SHARE;
    input.paths = files;
    input.n_paths = args->n_words;
    if (input.val_path) files[input.n_paths++] = input.val_path;
    WEFT_AUTO(weft_tokenizer_close_at) weft_tokenizer *t = NULL;
    WEFT_AUTO(weft_pool_destroy_at) weft_pool *pool = NULL;
    weft_texts_sum sum;
    bool tokens = false;
    WEFT_TRY(weft_texts_are_tokens(&input, &tokens));
    if (tokenizer || !tokens) WEFT_TRY(weft_tokenizer_open(tokenizer ? tokenizer : "bytes", &t));
    WEFT_TRY(weft_pool_create(args->threads, &pool));
    WEFT_TRY(weft_texts_tokenize(&input, t, pool, out, shard_tokens, &sum));
    if ((input.val_share > 0 || input.val_path) && !sum.tokens[1])
        weft_log(WEFT_LOG_WARN, "tokenize: too little text for a share to validate on");
    double rate = sum.seconds > 0 ? (double)sum.bytes / sum.seconds / 1e6 : 0;
    if (args->json)
        printf("{\"documents\": %lld, \"bytes\": %lld, \"train_tokens\": %lld, \"val_tokens\": "
               "%lld, \"shards\": %lld, \"vocab\": %lld, \"seconds\": %.3f}\n",
               (long long)sum.documents, (long long)sum.bytes, (long long)sum.tokens[0],
               (long long)sum.tokens[1], (long long)sum.shards, (long long)sum.vocab, sum.seconds);
    else
        printf("%s: %s documents, %s bytes, %s train and %s val tokens in %lld shards, vocabulary "
               "%s, %.1f MB/s\n",
               out, weft_count_text(sum.documents), weft_count_text(sum.bytes),
               weft_count_text(sum.tokens[0]), weft_count_text(sum.tokens[1]),
               (long long)sum.shards, weft_count_text(sum.vocab), rate);
    return WEFT_OK;
}

const char weft_help_tokenizer[] =
    "  --vocab N\ttokens in all: 256 bytes, what is learned, and <|endoftext|>\n"
    "  --out FILE\tthe tokenizer.json to write\n"
    "  --force\toverwrite FILE\n"
    "  --jsonl FIELD\tas in weft tokenize\n"
    "  --min-count N\thow often a pair must occur to become a token; default: 2\n"
    "  --json\tone object on standard output\n"
    "\n"
    "FILES are texts, or - for standard input. The same texts give the same file. Hugging Face's "
    "library reads it too. There may be fewer tokens than N where there is little text.\n";

weft_status weft_cmd_tokenizer(weft_args *args, int argc, char **argv) {
    bool force = false;
    const char *needed = NULL, *out = NULL;
    int64_t vocab = 0, least = 2;
    weft_input_options input = {.cuttable = true};
    const weft_arg own[] = {{"--vocab", .value = &needed, .number = &vocab,
                             .min = WEFT_BPE_VOCAB_MIN, .max = 1 << 24, .rule = WEFT_ARG_NEEDED},
                            {"--out", .value = &out, .rule = WEFT_ARG_NEEDED},
                            {"--force", .flag = &force},
                            {"--jsonl", .value = &input.field},
                            {"--min-count", .number = &least, .min = 1, .max = INT32_MAX},
                            {0}};
    WEFT_ROOM(const char *, words, argc + 1, "no memory");
    WEFT_TRY(weft_args_parse(args, argc, argv, ARGS_JSON, own, words, argc));
    if (!args->n_words) return WEFT_BAD_INPUT("an action is needed: 'weft tokenizer train'");
    if (strcmp(words[0], "train") != 0)
        return WEFT_BAD_INPUT("unknown action '%s'; there is only 'train'", words[0]);
    if (args->n_words < 2) return WEFT_BAD_INPUT(NO_FILES);
    WEFT_TRY(weft_file_vacant(out, force));
    input.paths = words + 1;
    input.n_paths = args->n_words - 1;
    WEFT_AUTO(weft_tokenizer_close_at) weft_tokenizer *t = NULL;
    int64_t learned = 0;
    WEFT_TRY(weft_texts_learn(&input, vocab, least, &t, &learned));
    WEFT_TRY(weft_tokenizer_save(t, out, NULL));
    if (args->json)
        printf("{\"vocab\": %lld, \"words\": %lld}\n", (long long)weft_tokenizer_vocab(t),
               (long long)learned);
    else
        printf("%s: vocabulary %s, learned from %s different words\n", out,
               weft_count_text(weft_tokenizer_vocab(t)), weft_count_text(learned));
    return WEFT_OK;
}
