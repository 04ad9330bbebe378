/* Tokenizers: the reference's tokens on text, the same bytes back on anything, and files that are
 * not to be trusted. */
#include "base/clock.h"
#include "base/random.h"
#include "data/tokenizer.h"
#include "support/command.h"
#include "support/test.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define GPT2 "../shared/data/gpt2"
#define OWN "tests/vectors/tokenizer.own.json"
#define SPLIT "tests/vectors/tokenizer.split.json"
#define PIECES "tests/vectors/tokenizer.pieces.json"

static void skip_without_gpt2(void) {
    if (access(GPT2 "/vocab.bpe", R_OK) == 0) return;
    printf(GPT2 "/vocab.bpe is not there\n");
    skip();
}

static weft_tokenizer *open_tokenizer(const char *name) {
    weft_tokenizer *t;
    if (weft_tokenizer_open(name, &t) != WEFT_OK) fail_msg("%s", weft_error_message());
    return t;
}

static weft_encoder *open_encoder(const weft_tokenizer *t) {
    weft_encoder *e;
    if (weft_encoder_open(t, &e) != WEFT_OK) fail_msg("%s", weft_error_message());
    return e;
}

static const int32_t *encode(weft_encoder *e, const char *text, size_t bytes, bool specials,
                             int64_t *count) {
    const int32_t *tokens;
    if (weft_encode(e, text, bytes, specials, &tokens, count) != WEFT_OK)
        fail_msg("%s", weft_error_message());
    return tokens;
}

static void expect_refused(const char *name, const char *word) {
    weft_tokenizer *t;
    weft_status status = weft_tokenizer_open(name, &t);
    if (status == WEFT_OK) fail_msg("a tokenizer without '%s' was taken", word);
    assert_null(t);
    const char *message = weft_error_message();
    assert_null(strchr(message, '\n'));
    if (!strstr(message, word)) fail_msg("'%s' is not in: %s", word, message);
}

/* changed.json: the own tokenizer with one text put for another. */
static void write_changed(const char *from, const char *to) {
    size_t bytes;
    char *text = file_read(OWN, &bytes), *at = strstr(text, from);
    assert_non_null(at);
    char *changed = malloc(bytes + strlen(to) + 1);
    assert_non_null(changed);
    int n = sprintf(changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    file_write(scratch_path("changed.json"), changed, (size_t)n);
    free(changed);
    free(text);
}

static void expect_changed_refused(const char *from, const char *to, const char *word) {
    write_changed(from, to);
    expect_refused(scratch_path("changed.json"), word);
}

static void expect_back(const weft_tokenizer *t, const int32_t *tokens, int64_t count,
                        const char *text, size_t bytes) {
    char *back;
    size_t n;
    if (weft_tokenizer_decode(t, tokens, count, &back, &n) != WEFT_OK)
        fail_msg("%s", weft_error_message());
    if (n != bytes || memcmp(back, text, n) != 0)
        fail_msg("%zu bytes came back as %zu others", bytes, n);
    free(back);
}

static void expect_tokens(const weft_tokenizer *t, weft_encoder *e, const char *text, size_t bytes,
                          const int32_t *want, int64_t n_want, bool whole) {
    int64_t count;
    const int32_t *tokens = encode(e, text, bytes, false, &count);
    if (count != n_want || (count && memcmp(tokens, want, (size_t)count * sizeof *want) != 0))
        fail_msg("not the reference's tokens for '%.*s'", (int)bytes, text);
    if (whole) expect_back(t, tokens, count, text, bytes);
}

/* The tokenizer `name` has the tokens that are kept under `reference`. `whole`: the text comes back, too, and
 * not only its composed form. */
static void check_kept_form(const char *name, const char *reference, bool whole) {
    json_t *cases = file_json("tests/vectors/tokenizer.cases.json.gz"), *value;
    weft_tokenizer *t = open_tokenizer(name);
    weft_encoder *e = open_encoder(t);
    int seen = 0;
    for (int again = 0; again < 2; again++) /* the second time from the words it has kept */
        for (size_t i = 0; i < json_array_size(cases); i++) {
            const json_t *kept = json_array_get(cases, i), *text = json_object_get(kept, "text");
            const json_t *list = json_object_get(json_object_get(kept, "tokens"), reference);
            if (!list) continue;
            seen++;
            int32_t *want = calloc(json_array_size(list) + 1, sizeof *want);
            size_t k;
            assert_non_null(want);
            json_array_foreach(list, k, value) want[k] = (int32_t)json_integer_value(value);
            expect_tokens(t, e, json_string_value(text), json_string_length(text), want,
                          (int64_t)json_array_size(list), whole);
            free(want);
        }
    assert_true(seen > 2 * 80);
    json_decref(cases);
    weft_encoder_close(e);
    weft_tokenizer_close(t);
}

static void check_kept(const char *name, const char *reference) {
    check_kept_form(name, reference, true);
}

/* vocab.json and merges.txt with own's vocabulary, and a config.json of that model. */
static const char *write_pair(const char *model_type) {
    const char *folder = scratch_path("pair");
    json_t *root = json_load_file(OWN, 0, NULL), *model = json_object_get(root, "model"), *merge;
    char path[600];
    size_t i;
    mkdir(folder, 0777);
    snprintf(path, sizeof path, "%s/vocab.json", folder);
    json_object_del(json_object_get(model, "vocab"), "<|endoftext|>");
    assert_int_equal(json_dump_file(json_object_get(model, "vocab"), path, 0), 0);
    snprintf(path, sizeof path, "%s/merges.txt", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    json_array_foreach(json_object_get(model, "merges"), i, merge)
        fprintf(file, "%s\n", json_string_value(merge));
    fclose(file);
    snprintf(path, sizeof path, "%s/config.json", folder);
    file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "{\"model_type\": \"%s\", \"eos_token_id\": [7, 699]}", model_type);
    fclose(file);
    json_decref(root);
    return folder;
}

static void skip_without_composing(void) {
    static const char nfc[] = "{\"normalizer\": {\"type\": \"NFC\"}, \"model\": {}}";
    weft_tokenizer *t;
    file_write(scratch_path("nfc.json"), nfc, sizeof nfc - 1);
    assert_int_not_equal(weft_tokenizer_open(scratch_path("nfc.json"), &t), WEFT_OK);
    if (!strstr(weft_error_message(), "utf8proc")) return;
    printf("weft is built without utf8proc\n");
    skip();
}

/* What a pair of files does not say follows from the model: Qwen2's way is not GPT-2's. */
TEST(test_a_pair_splits_as_its_model_does) {
    check_kept(write_pair("gpt2"), "own");
    expect_refused(write_pair("phi"), "save_pretrained");
    skip_without_composing();
    const char *pair = write_pair("qwen2"), *saved = scratch_path("saved.json");
    check_kept_form(pair, "qwen2", false);
    weft_tokenizer *t = open_tokenizer(pair);
    assert_int_equal(weft_tokenizer_save(t, saved, NULL), WEFT_OK);
    weft_tokenizer_close(t);
    check_kept_form(saved, "qwen2", false);
}

/* A text behind a special token has the tokens that it has there in a text that names it. */
static void expect_parts_of_whole(const char *path) {
    weft_tokenizer *t = open_tokenizer(path);
    weft_encoder *e = open_encoder(t);
    int64_t count, part;
    const int32_t *tokens = encode(e, "<s>the end", 10, true, &count), *next;
    int32_t whole[16];
    assert_in_range(count, 2, 16);
    memcpy(whole, tokens, (size_t)count * sizeof *whole);
    assert_int_equal(weft_encode_next(e, false, "the end", 7, &next, &part), WEFT_OK);
    assert_int_equal(part, count - 1);
    assert_memory_equal(next, whole + 1, (size_t)part * sizeof *next);
    weft_encoder_close(e);
    weft_tokenizer_close(t);
}

/* SentencePiece's BPE in the forms in which Llama 2, Gemma and Mistral write it. */
TEST(test_pieces_equal_kept_reference) {
    static const char *const forms[] = {"normalizer", "gemma", "first"};
    for (int i = 0; i < 3; i++) {
        char cases[128];
        json_t *root = json_load_file(PIECES, 0, NULL);
        json_t *normalizer = json_object_get(root, "normalizer");
        assert_non_null(normalizer);
        json_t *replace =
            json_incref(json_array_get(json_object_get(normalizer, "normalizers"), 1));
        if (i > 0) json_object_set(root, "normalizer", i == 1 ? replace : json_null());
        if (i == 1)
            json_object_set_new(root, "pre_tokenizer",
                                json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern",
                                          "String", " ", "behavior", "MergedWithPrevious", "invert",
                                          0));
        if (i > 1)
            json_object_set_new(root, "pre_tokenizer",
                                json_pack("{s:s, s:s, s:s, s:b}", "type", "Metaspace",
                                          "replacement", "\xe2\x96\x81", "prepend_scheme", forms[i],
                                          "split", 0));
        assert_int_equal(json_dump_file(root, scratch_path("pieces.json"), 0), 0);
        json_decref(replace);
        json_decref(root);
        snprintf(cases, sizeof cases, "pieces-%s", forms[i]);
        check_kept_form(scratch_path("pieces.json"), cases, false);
        expect_parts_of_whole(scratch_path("pieces.json"));
    }
    weft_tokenizer *t = open_tokenizer(PIECES);
    weft_encoder *e = open_encoder(t);
    static const char text[] = "the \xe4\xb8\x96 \xf0\x9f\x98\x80 end\n \xff ";
    int64_t count;
    const int32_t *tokens = encode(e, text, sizeof text - 1, false, &count);
    expect_back(t, tokens, count, text, sizeof text - 1);
    assert_int_equal(weft_tokenizer_begin(t), 1);
    assert_int_equal(weft_tokenizer_end(t), 2);
    weft_encoder_close(e);
    weft_tokenizer_close(t);
}

/* Its number would be that of a byte far outside the list of them. */
TEST(test_a_piece_that_is_nearly_a_byte_is_text) {
    json_t *root = json_load_file(PIECES, 0, NULL);
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    int32_t id = (int32_t)json_object_size(vocab), bytes;
    json_object_set_new(vocab, "<0x-1>", json_integer(id));
    assert_int_equal(json_dump_file(root, scratch_path("nearly.json"), 0), 0);
    json_decref(root);
    weft_tokenizer *t = open_tokenizer(scratch_path("nearly.json"));
    const char *text = weft_tokenizer_token(t, id, &bytes);
    assert_int_equal(bytes, 6);
    assert_memory_equal(text, "<0x-1>", 6);
    weft_tokenizer_close(t);
}

/* The same pieces as Unigram, with scores of tests/reference/make_tokenizer_vectors.py: as Llama's converter writes it,
 * split before spaces, and with a token for unknown characters in place of bytes. */
TEST(test_unigram_equals_kept_reference) {
    static const char *const forms[] = {"normalizer", "split", "unknown"};
    for (int form = 0; form < 3; form++) {
        char kept[80];
        json_t *root = json_load_file(PIECES, 0, NULL), *number, *list = json_array();
        json_t *model = json_object_get(root, "model"), *vocab = json_object_get(model, "vocab");
        const char *piece;
        size_t n = json_object_size(vocab);
        for (size_t i = 0; i < n; i++)
            json_array_append_new(list, json_null());
        json_object_foreach(vocab, piece, number) {
            json_int_t id = json_integer_value(number);
            double score = id < 259 ? -1000.0 : -3 - (double)(id * 37 % 101) / 8;
            json_array_set_new(list, (size_t)id, json_pack("[s, f]", piece, score));
        }
        for (int i = 0; form == 2 && i < 256; i++)
            json_array_remove(list, 3);
        json_object_set_new(root, "model",
                            json_pack("{s:s, s:i, s:b, s:o}", "type", "Unigram", "unk_id", 0,
                                      "byte_fallback", form != 2, "vocab", list));
        if (form) {
            json_object_set_new(root, "normalizer", json_null());
            json_object_set_new(root, "pre_tokenizer",
                                json_pack("{s:s, s:s, s:s, s:b}", "type", "Metaspace",
                                          "replacement", "\xe2\x96\x81", "prepend_scheme", "always",
                                          "split", 1));
        }
        assert_int_equal(json_dump_file(root, scratch_path("unigram.json"), 0), 0);
        snprintf(kept, sizeof kept, "unigram-%s", forms[form]);
        check_kept_form(scratch_path("unigram.json"), kept, false);
        json_object_set_new(json_object_get(root, "model"), "byte_fallback", json_false());
        json_object_del(json_object_get(root, "model"), "unk_id");
        assert_int_equal(json_dump_file(root, scratch_path("unigram.json"), 0), 0);
        expect_refused(scratch_path("unigram.json"), "byte_fallback and unk_id");
        json_object_set_new(
            root, "normalizer",
            json_pack("{s:s, s:s}", "type", "Precompiled", "precompiled_charsmap", ""));
        assert_int_equal(json_dump_file(root, scratch_path("unigram.json"), 0), 0);
        expect_refused(scratch_path("unigram.json"), "Precompiled");
        json_decref(root);
    }
}

/* eos_token_id of generation_config.json, or as here of config.json, goes where the tokenizer goes. */
TEST(test_what_ends_generation_goes_along) {
    weft_tokenizer *t = open_tokenizer(write_pair("gpt2"));
    mkdir(scratch_path("along"), 0777);
    assert_int_equal(weft_tokenizer_save(t, scratch_path("along/tokenizer.json"), NULL), WEFT_OK);
    weft_tokenizer_close(t);
    const char *names[] = {scratch_path("along"), scratch_path("along/tokenizer.json")};
    for (int i = 0; i < 2; i++) {
        t = open_tokenizer(names[i]);
        assert_true(weft_tokenizer_ends(t, 7));
        assert_true(weft_tokenizer_ends(t, 699));
        assert_false(weft_tokenizer_ends(t, 8));
        assert_false(weft_tokenizer_ends(t, -1));
        assert_int_equal(weft_tokenizer_end(t), 699);
        weft_tokenizer_close(t);
    }
    file_write(scratch_path("along/generation_config.json"), "{\"eos_token_id\": 9}", 19);
    t = open_tokenizer(names[0]);
    assert_true(weft_tokenizer_ends(t, 9));
    assert_false(weft_tokenizer_ends(t, 7));
    weft_tokenizer_close(t);
    file_write(scratch_path("along/generation_config.json"), "[", 1);
    expect_refused(names[0], "JSON");
}

/* A template of the post-processor, alone or in a sequence as Llama 3 has it. */
TEST(test_a_text_begins_with_the_token_of_the_template) {
    static const char before[] = "\"post_processor\": {";
    static const char template[] =
        "\"post_processor\": {\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\"}, "
        "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": "
        "\"<|endoftext|>\"}}, {\"Sequence\": {\"id\": \"A\"}}]}]}, \"old\": {";
    const int32_t *tokens;
    int64_t count, n;
    write_changed(before, template);
    weft_tokenizer *t = open_tokenizer(scratch_path("changed.json"));
    weft_encoder *e = open_encoder(t);
    assert_int_equal(weft_tokenizer_begin(t), 699);
    encode(e, "a word", 6, false, &n);
    assert_int_equal(weft_encode_text(e, "a word", 6, &tokens, &count), WEFT_OK);
    assert_int_equal(count, n + 1);
    assert_int_equal(tokens[0], 699);
    weft_encoder_close(e);
    weft_tokenizer_close(t);
    t = open_tokenizer(OWN);
    assert_int_equal(weft_tokenizer_begin(t), -1);
    weft_tokenizer_close(t);
}

TEST(test_own_bpe_equals_kept_reference) {
    check_kept(OWN, "own");
}

TEST(test_patterns_equal_kept_reference) {
    check_kept(SPLIT, "split");
}

TEST(test_gpt2_equals_kept_reference) {
    skip_without_gpt2();
    check_kept(GPT2, "gpt2");
    check_kept(GPT2 "/vocab.bpe", "gpt2");
    check_kept(GPT2 "/encoder.json", "gpt2");
}

/* vocab.bpe alone has GPT-2's numbers too; and both can be saved as a tokenizer.json. */
TEST(test_gpt2_without_numbers_and_saved) {
    skip_without_gpt2();
    size_t bytes;
    char *merges = file_read(GPT2 "/vocab.bpe", &bytes);
    file_write(scratch_path("alone.bpe"), merges, bytes);
    free(merges);
    check_kept(scratch_path("alone.bpe"), "gpt2");
    weft_tokenizer *t = open_tokenizer(scratch_path("alone.bpe"));
    assert_int_equal(weft_tokenizer_vocab(t), 50257);
    assert_int_equal(weft_tokenizer_end(t), 50256);
    assert_int_equal(weft_tokenizer_save(t, scratch_path("saved.json"), NULL), WEFT_OK);
    weft_tokenizer_close(t);
    check_kept(scratch_path("saved.json"), "gpt2");
}

/* The code points that PCRE2's Unicode version knows, "first last" a line. */
static void write_assigned(const char *path) {
    int error;
    PCRE2_SIZE at;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR) "\\A[^\\p{Cn}\\p{Cs}]", PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP, &error, &at, NULL);
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    FILE *file = fopen(path, "w");
    assert_non_null(code);
    assert_non_null(match);
    assert_non_null(file);
    long first = -1;
    for (long c = 0; c <= 0x110000; c++) {
        uint8_t s[4] = {(uint8_t)c};
        size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        static const uint8_t heads[] = {0, 0, 0xC0, 0xE0, 0xF0};
        long rest = c;
        for (size_t i = n; n > 1 && i-- > 0; rest >>= 6)
            s[i] = (uint8_t)(i ? 0x80 | (rest & 0x3F) : heads[n] | rest);
        bool known = c < 0x110000 && (c < 0xD800 || c > 0xDFFF) &&
                     pcre2_match(code, s, n, 0, PCRE2_NO_UTF_CHECK, match, NULL) > 0;
        if (known && first < 0) first = c;
        if (!known && first >= 0) {
            fprintf(file, "%ld %ld\n", first, c - 1);
            first = -1;
        }
    }
    assert_int_equal(fclose(file), 0);
    pcre2_match_data_free(match);
    pcre2_code_free(code);
}

static bool read_word(FILE *from, uint32_t *word) {
    uint8_t b[4];
    if (fread(b, 1, 4, from) != 4) return false;
    *word = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    return true;
}

/* Compares with strings and tokens that the reference makes while we read. */
static void check_stream(const char *name, int count) {
    enum { MOST = 1 << 16 };
    static char text[MOST];
    static int32_t want[MOST];
    char line[1024];
    const char *python = getenv("PYTHON");
    write_assigned(scratch_path("assigned"));
    snprintf(line, sizeof line,
             "%s tests/reference/make_tokenizer_vectors.py --stream 11 %d %s %s 2>%s",
             python && *python ? python : "python3", count, scratch_path("assigned"), name,
             scratch_path("why"));
    FILE *from = popen(line, "r");
    weft_tokenizer *t = open_tokenizer(name);
    weft_encoder *e = open_encoder(t);
    uint32_t bytes = 0, tokens = 0;
    int cases = 0;
    assert_non_null(from);
    for (; read_word(from, &bytes); cases++) {
        assert_true(bytes <= MOST && fread(text, 1, bytes, from) == bytes);
        assert_true(read_word(from, &tokens) && tokens <= MOST);
        for (uint32_t i = 0; i < tokens; i++)
            assert_true(read_word(from, (uint32_t *)&want[i]));
        expect_tokens(t, e, text, bytes, want, tokens, true);
    }
    int status = pclose(from);
    weft_encoder_close(e);
    weft_tokenizer_close(t);
    status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (status == 3 || status == 126 || status == 127) {
        char *why = file_read(scratch_path("why"), NULL);
        printf("%s\n", *why ? strtok(why, "\n") : "there is no Python");
        free(why);
        skip();
    }
    assert_int_equal(status, 0);
    assert_int_equal(cases, count);
}

TEST(test_gpt2_equals_tiktoken_on_any_string) {
    skip_without_gpt2();
    check_stream(GPT2, 100000);
}

TEST(test_own_bpe_equals_tokenizers_on_any_string) {
    check_stream(OWN, 10000);
}

TEST(test_patterns_equal_tokenizers_on_any_string) {
    check_stream(SPLIT, 10000);
}

static uint32_t draw(uint32_t *at) {
    return weft_philox(77, (*at)++, 0, 0, 0).word[0];
}

/* Bytes of several kinds: any; letters; pieces of UTF-8 that do not always fit. */
static size_t make_bytes(uint32_t *at, char *to, size_t most) {
    static const char *const parts[] = {"\xC3",         "\xA9",         "\xE2\x82",      "\xAC",
                                        "\xF0\x9F\x98", "\x80",         "\xED\xA0\x80",  "\xC0\x80",
                                        "\xF4\x90\x80", " \xFF ",       "\xEF\xBF\xBD",  "it's",
                                        "\n\n",         "\xE1\xA0\x8E", "<|endoftext|>", "\xFE"};
    size_t n = 0, length = draw(at) % most;
    uint32_t kind = draw(at) % 3;
    while (n + 16 < length) {
        if (kind == 0) {
            to[n++] = (char)draw(at);
        } else if (kind == 1) {
            to[n++] = (char)('a' + draw(at) % 3);
        } else {
            const char *part = parts[draw(at) % 16];
            while (*part)
                to[n++] = *part++;
        }
    }
    return n;
}

static void check_any_bytes(const char *name, int rounds) {
    static char text[3000];
    weft_tokenizer *t = open_tokenizer(name);
    weft_encoder *e = open_encoder(t);
    uint32_t at = 0;
    for (int i = 0; i < rounds; i++) {
        int64_t count;
        size_t n = make_bytes(&at, text, i % 10 ? 200 : sizeof text);
        /* In memory of exactly that size, so that reading beyond it is seen. */
        char *exact = malloc(n ? n : 1);
        assert_non_null(exact);
        memcpy(exact, text, n);
        for (int specials = 0; specials < 2; specials++) {
            const int32_t *tokens = encode(e, exact, n, specials, &count);
            expect_back(t, tokens, count, exact, n);
        }
        free(exact);
    }
    weft_encoder_close(e);
    weft_tokenizer_close(t);
}

TEST(test_any_bytes_come_back) {
    check_any_bytes("bytes", 500);
    check_any_bytes(OWN, 3000);
    check_any_bytes(SPLIT, 3000);
    if (access(GPT2 "/vocab.bpe", R_OK) == 0) check_any_bytes(GPT2, 3000);
}

TEST(test_bytes_are_tokens) {
    weft_tokenizer *t = open_tokenizer("bytes");
    weft_encoder *e = open_encoder(t);
    int64_t count;
    const int32_t *tokens = encode(e, "a\x00\xFF", 3, true, &count);
    assert_int_equal(count, 3);
    assert_int_equal(tokens[0], 'a');
    assert_int_equal(tokens[1], 0);
    assert_int_equal(tokens[2], 255);
    assert_int_equal(weft_tokenizer_vocab(t), 256);
    assert_int_equal(weft_tokenizer_end(t), -1);
    assert_int_equal(weft_tokenizer_save(t, scratch_path("bytes.json"), NULL), WEFT_OK);
    weft_tokenizer *again = open_tokenizer(scratch_path("bytes.json"));
    weft_encoder *f = open_encoder(again);
    tokens = encode(f, "a\x00\xFF\n ", 5, false, &count);
    assert_int_equal(count, 5);
    assert_int_equal(tokens[2], 255);
    assert_int_equal(tokens[4], ' ');
    weft_encoder_close(f);
    weft_tokenizer_close(again);
    weft_encoder_close(e);
    weft_tokenizer_close(t);
}

static int count_of(weft_encoder *e, const char *text, bool specials, int32_t token) {
    int64_t count;
    int found = 0;
    const int32_t *tokens = encode(e, text, strlen(text), specials, &count);
    for (int64_t i = 0; i < count; i++)
        found += tokens[i] == token;
    return found;
}

TEST(test_specials_only_on_request) {
    const char *text = "a<|endoftext|> b<|im_start|><|endoftext|>";
    weft_tokenizer *t = open_tokenizer(SPLIT);
    weft_encoder *e = open_encoder(t);
    int32_t end = weft_tokenizer_special(t, "<|endoftext|>");
    assert_true(end >= 0);
    assert_int_equal(end, weft_tokenizer_end(t));
    assert_int_equal(weft_tokenizer_special(t, "<|nothing|>"), -1);
    assert_int_equal(count_of(e, text, false, end), 0);
    assert_int_equal(count_of(e, text, true, end), 2);
    /* An added token that is not special is one in any text. */
    assert_int_equal(count_of(e, text, false, (int32_t)weft_tokenizer_vocab(t) - 1), 1);
    assert_int_equal(count_of(e, text, true, (int32_t)weft_tokenizer_vocab(t) - 1), 1);
    assert_false(weft_tokenizer_cuttable(t));
    weft_encoder_close(e);
    weft_tokenizer_close(t);
}

/* Where the header allows a cut, cutting changes no token. */
TEST(test_cuts_change_no_token) {
    weft_tokenizer *t = open_tokenizer(OWN);
    weft_encoder *e = open_encoder(t);
    size_t bytes;
    char *text = file_read("tests/reference/make_tokenizer_vectors.py", &bytes);
    int64_t count, n;
    assert_true(weft_tokenizer_cuttable(t));
    const int32_t *tokens = encode(e, text, bytes, false, &count);
    int32_t *whole = malloc((size_t)count * sizeof *whole);
    assert_non_null(whole);
    memcpy(whole, tokens, (size_t)count * sizeof *whole);
    int64_t at = 0;
    for (size_t from = 0, i = 1; i <= bytes; i++) {
        bool may = i == bytes ||
                   ((text[i] == ' ' || text[i] == '\n') && text[i - 1] > ' ' && text[i - 1] < 0x7F);
        if (!may) continue;
        tokens = encode(e, text + from, i - from, false, &n);
        assert_true(at + n <= count);
        assert_memory_equal(tokens, whole + at, (size_t)n * sizeof *whole);
        at += n;
        from = i;
    }
    assert_int_equal(at, count);
    free(whole);
    free(text);
    weft_encoder_close(e);
    weft_tokenizer_close(t);
}

TEST(test_decode_refuses_other_numbers) {
    weft_tokenizer *t = open_tokenizer(OWN);
    const int32_t bad[] = {-1, (int32_t)weft_tokenizer_vocab(t)};
    for (int i = 0; i < 2; i++) {
        char *text;
        size_t bytes;
        assert_int_equal(weft_tokenizer_decode(t, &bad[i], 1, &text, &bytes), WEFT_EINPUT);
        assert_null(text);
    }
    weft_tokenizer_close(t);
}

static void expect_text_refused(const char *name, const char *text, const char *word) {
    file_write(scratch_path("%s", name), text, strlen(text));
    expect_refused(scratch_path("%s", name), word);
}

TEST(test_what_cannot_be_used_is_named) {
    expect_refused(scratch_path("nothing"), "nothing");
    expect_text_refused("a.json", "", "JSON");
    expect_text_refused("a.json", "[1]", "object");
    expect_text_refused("a.json", "{\"a\": 1}", "vocab.bpe");
    expect_text_refused("a.json", "{\"model\": {\"type\": \"Unigram\"}}", "Unigram");
    expect_text_refused("a.json", "{\"model\": {\"type\": \"BPE\"}}", "vocab");
    expect_text_refused("a.bpe", "one\n", "merge 1");
    expect_text_refused("a.bpe", "a b\nzz y\n", "merge 2");
    expect_text_refused("a.bpe", "a b\na b\n", "same bytes");
    expect_text_refused("a.bpe", "\xFF\xFE b\n", "merge 1");
    expect_changed_refused("\"normalizer\": null", "\"normalizer\": {\"type\": \"NFKC\"}", "NFKC");
    expect_changed_refused("\"normalizer\": null",
                           "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": "
                           "\"Lowercase\"}]}",
                           "Lowercase");
    expect_changed_refused("\"post_processor\": {",
                           "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": "
                           "[{\"Sequence\": {\"id\": \"A\"}}, {\"SpecialToken\": {\"id\": "
                           "\"<|endoftext|>\"}}]}, \"old\": {",
                           "post_processor");
    expect_changed_refused("\"dropout\": null", "\"dropout\": 0.1", "dropout");
    expect_changed_refused("\"add_prefix_space\": false", "\"add_prefix_space\": true",
                           "add_prefix_space");
    expect_changed_refused("\"type\": \"ByteLevel\"", "\"type\": \"Whitespace\"", "Whitespace");
    expect_changed_refused("\"!\": 0", "\"!\": 1", "1 ");
    expect_changed_refused("\"!\": 0", "\"!\": -5", "-5");
    expect_changed_refused("\"!\": 0", "\"!\": 99999999999", "99999999999");
    expect_changed_refused("\"!\": 0", "\"!\": \"x\"", "no number");
    expect_changed_refused("\"!\": 0,", "", "0x21");
    expect_changed_refused("\"lstrip\": false", "\"lstrip\": true", "lstrip");
    expect_changed_refused("\"id\": 699", "\"id\": 5", "two tokens");
    expect_changed_refused("\"merges\": [", "\"merges\": [3,", "merge 1");
    expect_changed_refused("\"merges\": [", "\"merges\": [\"zq zq\",", "merge 1");
}

static void expect_pattern_refused(const char *pattern, const char *word) {
    char step[512];
    snprintf(step, sizeof step,
             "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\","
             "\"pattern\": {\"Regex\": \"%s\"}, \"behavior\": \"Isolated\"}]}, \"old\":",
             pattern);
    expect_changed_refused("\"pre_tokenizer\":", step, word);
}

TEST(test_patterns_that_mean_something_else_are_refused) {
    expect_pattern_refused("(a", "pattern");
    expect_pattern_refused("\\\\bword", "not supported");
    expect_pattern_refused("[a[b]]", "class within");
    expect_pattern_refused("[a&&b]", "intersection");
    expect_pattern_refused("a", "ByteLevel");
}

/* The tokenizer whose splits are patterns, with another first one. */
static weft_tokenizer *open_with_pattern(const char *pattern) {
    size_t bytes;
    char *text = file_read(SPLIT, &bytes), *at = strstr(text, "\"Regex\":"), *end;
    assert_non_null(at);
    end = strstr(at, "\"}");
    assert_non_null(end);
    char *changed = malloc(bytes + strlen(pattern) + 32);
    assert_non_null(changed);
    int n = sprintf(changed, "%.*s\"Regex\": \"%s%s", (int)(at - text), text, pattern, end);
    file_write(scratch_path("pattern.json"), changed, (size_t)n);
    free(changed);
    free(text);
    return open_tokenizer(scratch_path("pattern.json"));
}

/* A pattern that tries every way to cut a run ends with a line, and soon, however long the text is;
 * one that needs many steps now and then works. */
TEST(test_a_pattern_without_end_is_cut_off) {
    enum { BYTES = 200000 };
    char *text = malloc(BYTES);
    int64_t count;
    const int32_t *tokens;
    assert_non_null(text);
    alarm(200); /* ends the program, and the test with it, where nothing cuts a pattern off */
    memset(text, 'a', BYTES);
    static const char *const endless[] = {"(a+)+[xy]", "(a|aa)+[xy]", "((a*)*)*[xy]",
                                          "(.*)(.*)(.*)(.*)(.*)[xy]", "(a|aa){18}[xy]|a"};
    for (size_t i = 0; i < sizeof endless / sizeof endless[0]; i++) {
        weft_tokenizer *t = open_with_pattern(endless[i]);
        weft_encoder *e = open_encoder(t);
        double begun = weft_clock();
        if (weft_encode(e, text, BYTES, false, &tokens, &count) == WEFT_OK)
            fail_msg("%s went through", endless[i]);
        assert_non_null(strstr(weft_error_message(), "takes too many steps"));
        assert_true(weft_clock() - begun < 30);
        weft_encoder_close(e);
        weft_tokenizer_close(t);
    }
    /* 50 runs of blanks, each of which is gone over again for a line's end that is not there. */
    weft_tokenizer *t = open_with_pattern("\\\\s*[\\\\r\\\\n]+|\\\\s+|a+");
    weft_encoder *e = open_encoder(t);
    for (int i = 0; i < BYTES; i++)
        text[i] = i % 4000 < 3990 ? ' ' : 'a';
    tokens = encode(e, text, BYTES, false, &count);
    expect_back(t, tokens, count, text, BYTES);
    weft_encoder_close(e);
    weft_tokenizer_close(t);
    alarm(0);
    free(text);
}

/* The tables follow from the file's size, not from the numbers in it. */
TEST(test_a_small_file_has_small_tables) {
    expect_changed_refused("\"!\": 0", "\"!\": 16000000", "of its size");
    size_t room = 70000;
    char *pattern = malloc(room + 1), *lists = malloc(6000001);
    assert_non_null(pattern);
    assert_non_null(lists);
    memset(pattern, 'x', room);
    pattern[room] = 0;
    char *step = malloc(room + 512);
    assert_non_null(step);
    snprintf(step, room + 512,
             "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\","
             "\"pattern\": {\"Regex\": \"%s\"}, \"behavior\": \"Isolated\"}]}, \"old\":",
             pattern);
    expect_changed_refused("\"pre_tokenizer\":", step, "longer than");
    /* Empty lists take 40 times as much in memory. */
    for (size_t i = 0; i < 6000000; i += 3)
        memcpy(lists + i, "[],", 3);
    memcpy(lists, "{\"a\":[", 6);
    lists[6000000] = 0;
    memcpy(lists + 5999996, "[]]}", 4);
    expect_text_refused("lists.json", lists, "more lists and objects");
    free(step);
    free(lists);
    free(pattern);
}

/* Whatever is wrong with a file, it is refused in one line or works. */
TEST(test_damaged_files_do_no_harm) {
    size_t bytes;
    char *text = file_read(SPLIT, &bytes);
    uint32_t at = 1000;
    for (int round = 0; round < 300; round++) {
        char *changed = malloc(bytes);
        assert_non_null(changed);
        memcpy(changed, text, bytes);
        size_t length = round % 3 ? bytes : draw(&at) % bytes;
        for (uint32_t i = draw(&at) % 3; i-- > 0 && length;)
            changed[draw(&at) % length] = (char)(draw(&at) % 2 ? '0' + draw(&at) % 10 : draw(&at));
        file_write(scratch_path("damaged.json"), changed, length);
        weft_tokenizer *t;
        if (weft_tokenizer_open(scratch_path("damaged.json"), &t) == WEFT_OK) {
            weft_encoder *e = open_encoder(t);
            const int32_t *tokens;
            int64_t count;
            if (weft_encode(e, changed, length, false, &tokens, &count) == WEFT_OK)
                expect_back(t, tokens, count, changed, length);
            weft_encoder_close(e);
        } else {
            assert_null(strchr(weft_error_message(), '\n'));
        }
        weft_tokenizer_close(t);
        free(changed);
    }
    free(text);
}

RUN_TESTS(scratch_setup, scratch_teardown)
