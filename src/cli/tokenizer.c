/* weft tokenizer train: a byte-level BPE of one's own, as a tokenizer.json. */
#include "base/text.h"
#include "cli/args.h"
#include "data/bpe_train.h"
#include "data/texts.h"

#include <stdlib.h>
#include <string.h>

const char weft_help_tokenizer[] =
    "  --vocab N          tokens in all: 256 bytes, what is learned, and <|endoftext|>\n"
    "  --out FILE         the tokenizer.json to write\n"
    "  --force            overwrite FILE\n"
    "  --jsonl FIELD      the files are JSON lines; their texts are in this field\n"
    "  --min-count N      how often a pair must occur to become a token; default: 2\n"
    "  --json             one object on standard output\n"
    "\n"
    "FILES are texts, or - for standard input. The same texts give the same file. Hugging Face's\n"
    "library reads it too. There may be fewer tokens than N where there is little text.\n";

static int train_tokenizer(const weft_args *args, const weft_input_options *input, int64_t vocab,
                           int64_t least, const char *out) {
    weft_tokenizer *t = NULL;
    int64_t words = 0;
    weft_status status = weft_texts_learn(input, vocab, least, &t, &words);
    if (status == WEFT_OK) status = weft_tokenizer_save(t, out, NULL);
    int exit_status = status == WEFT_OK ? WEFT_EXIT_DONE : weft_args_fail(args, status);
    char vocabulary[WEFT_COUNT_ROOM], different[WEFT_COUNT_ROOM];
    if (status == WEFT_OK && args->json)
        printf("{\"vocab\": %lld, \"words\": %lld}\n", (long long)weft_tokenizer_vocab(t),
               (long long)words);
    else if (status == WEFT_OK)
        printf("%s: vocabulary %s, learned from %s different words\n", out,
               weft_count_text(weft_tokenizer_vocab(t), vocabulary),
               weft_count_text(words, different));
    weft_tokenizer_close(t);
    return exit_status;
}

static int read_number(const char *option, const char *text, int64_t min, int64_t max,
                       int64_t *out) {
    char *end;
    if (!text) return WEFT_EXIT_DONE;
    *out = strtoll(text, &end, 10);
    if (!*end && *out >= min && *out <= max) return WEFT_EXIT_DONE;
    fprintf(stderr, "weft tokenizer: %s '%s' must be a whole number from %lld to %lld\n", option,
            text, (long long)min, (long long)max);
    return WEFT_EXIT_USAGE;
}

int weft_cmd_tokenizer(int argc, char **argv) {
    weft_args args;
    bool force = false;
    const char *vocab_text = NULL, *least_text = NULL, *field = NULL, *out = NULL;
    const weft_arg own[] = {
        {"--vocab", &vocab_text, NULL, true},      {"--out", &out, NULL, true},
        {"--force", NULL, &force, false},          {"--jsonl", &field, NULL, false},
        {"--min-count", &least_text, NULL, false}, {0}};
    int64_t vocab = 0, least = 2;
    const char **words = calloc((size_t)argc + 1, sizeof *words);
    if (!words) return WEFT_EXIT_FAILED;
    int exit_status = weft_args_parse(&args, argc, argv, own, words, argc);
    if (!exit_status) exit_status = weft_args_only(&args, ARGS_JSON);
    int n = 0;
    while (words[n])
        n++;
    if (!exit_status && (n < 1 || strcmp(words[0], "train") != 0)) {
        fprintf(stderr,
                n ? "weft tokenizer: unknown action '%s'; there is only 'train'\n"
                  : "weft tokenizer: an action is needed: 'weft tokenizer train'%s\n",
                n ? weft_shown(words[0]) : "");
        exit_status = WEFT_EXIT_USAGE;
    } else if (!exit_status && n < 2) {
        fprintf(stderr, "weft tokenizer: no files are named; - is standard input\n");
        exit_status = WEFT_EXIT_USAGE;
    }
    if (!exit_status)
        exit_status = read_number("--vocab", vocab_text, WEFT_BPE_VOCAB_MIN, 1 << 24, &vocab);
    if (!exit_status) exit_status = read_number("--min-count", least_text, 1, INT32_MAX, &least);
    weft_input_options input = {
        .paths = words + 1, .n_paths = n - 1, .field = field, .cuttable = true};
    if (!exit_status && weft_file_vacant(out, force) != WEFT_OK)
        exit_status = weft_args_fail(&args, WEFT_EINPUT);
    if (!exit_status) exit_status = train_tokenizer(&args, &input, vocab, least, out);
    free(words);
    return exit_status;
}
