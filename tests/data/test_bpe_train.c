/* Training a BPE: the merges of the reference's trainer, whatever the order of the texts. */
#include "data/texts.h"
#include "support/command.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static weft_tokenizer *train(const char *const *texts, int64_t vocab, int64_t least) {
    weft_bpe_trainer *b;
    weft_tokenizer *t;
    assert_int_equal(weft_bpe_trainer_open(&b), WEFT_OK);
    for (; *texts; texts++)
        assert_int_equal(weft_bpe_trainer_add(b, *texts, strlen(*texts)), WEFT_OK);
    if (weft_bpe_trainer_run(b, vocab, least, NULL, &t) != WEFT_OK)
        fail_msg("%s", weft_error_message());
    weft_bpe_trainer_close(b);
    return t;
}

static json_t *saved(const weft_tokenizer *t, const char *name) {
    json_error_t error;
    if (weft_tokenizer_save(t, scratch_path("%s", name), NULL) != WEFT_OK)
        fail_msg("%s", weft_error_message());
    json_t *root = json_load_file(scratch_path("%s", name), JSON_REJECT_DUPLICATES, &error);
    if (!root) fail_msg("%s", error.text);
    return root;
}

TEST(test_merges_equal_kept_reference) {
    json_t *kept = file_json("tests/vectors/tokenizer.train.json.gz");
    int64_t vocab = json_integer_value(json_object_get(kept, "vocab"));
    const char *text = json_string_value(json_object_get(kept, "text"));
    weft_tokenizer *t = train(SAYS(text), vocab, 2);
    json_t *root = saved(t, "kept.json");
    const json_t *merges = json_object_get(json_object_get(root, "model"), "merges");
    const json_t *want = json_object_get(kept, "merges");
    assert_true(json_array_size(want) > 300);
    assert_int_equal(json_array_size(merges), json_array_size(want));
    for (size_t i = 0; i < json_array_size(want); i++)
        assert_string_equal(json_string_value(json_array_get(merges, i)),
                            json_string_value(json_array_get(want, i)));
    assert_int_equal(weft_tokenizer_end(t), weft_tokenizer_vocab(t) - 1);
    json_decref(root);
    json_decref(kept);
    weft_tokenizer_close(t);
}

TEST(test_order_of_texts_does_not_matter) {
    size_t n, m;
    weft_tokenizer *a = train(SAYS("low lower lowest", "new newer \xFF\xFE", "wide wider"), 300, 1);
    weft_tokenizer *b = train(SAYS("wide wider", "low lower lowest", "new newer \xFF\xFE"), 300, 1);
    json_decref(saved(a, "a.json"));
    json_decref(saved(b, "b.json"));
    char *first = file_read(scratch_path("a.json"), &n);
    char *second = file_read(scratch_path("b.json"), &m);
    assert_int_equal(n, m);
    assert_memory_equal(first, second, n);
    free(first);
    free(second);
    weft_tokenizer_close(a);
    weft_tokenizer_close(b);
}

/* "ab" twice, "abc" twice: a+b is met four times, ab+c twice, and no pair is left. */
TEST(test_most_frequent_pair_is_first) {
    weft_tokenizer *t = train(SAYS("ab\nabc\nab\nabc"), 1000, 2);
    int32_t bytes;
    assert_int_equal(weft_tokenizer_vocab(t), 259);
    assert_memory_equal(weft_tokenizer_token(t, 256, &bytes), "ab", 2);
    assert_int_equal(bytes, 2);
    assert_memory_equal(weft_tokenizer_token(t, 257, &bytes), "abc", 3);
    assert_int_equal(bytes, 3);
    weft_tokenizer_close(t);
    t = train(SAYS("ab\nabc\nab\nabc"), 1000, 3);
    assert_int_equal(weft_tokenizer_vocab(t), 258);
    weft_tokenizer_close(t);
    t = train(SAYS("ab\nabc\nab\nabc"), 258, 1);
    assert_int_equal(weft_tokenizer_vocab(t), 258);
    weft_tokenizer_close(t);
}

TEST(test_saved_one_encodes_alike) {
    const char *text = "low lower lowest 'tis the lowest\xC3\xA9\xFF <|endoftext|>\n\n  x";
    weft_tokenizer *t = train(SAYS(text, text), 290, 2), *again;
    json_decref(saved(t, "again.json"));
    assert_int_equal(weft_tokenizer_open(scratch_path("again.json"), &again), WEFT_OK);
    assert_int_equal(weft_tokenizer_vocab(t), weft_tokenizer_vocab(again));
    assert_int_equal(weft_tokenizer_end(t), weft_tokenizer_end(again));
    weft_encoder *a, *b;
    const int32_t *x, *y;
    int64_t n, m;
    assert_int_equal(weft_encoder_open(t, &a), WEFT_OK);
    assert_int_equal(weft_encoder_open(again, &b), WEFT_OK);
    for (int specials = 0; specials < 2; specials++) {
        assert_int_equal(weft_encode(a, text, strlen(text), specials, &x, &n), WEFT_OK);
        assert_int_equal(weft_encode(b, text, strlen(text), specials, &y, &m), WEFT_OK);
        assert_int_equal(n, m);
        assert_true(n < (int64_t)strlen(text));
        assert_memory_equal(x, y, (size_t)n * sizeof *x);
    }
    weft_encoder_close(a);
    weft_encoder_close(b);
    weft_tokenizer_close(t);
    weft_tokenizer_close(again);
}

TEST(test_tokenizers_reads_what_is_saved) {
    char line[1024];
    const char *python = getenv("PYTHON");
    weft_tokenizer *t = train(SAYS("low lower lowest low"), 262, 1);
    json_decref(saved(t, "theirs.json"));
    snprintf(line, sizeof line,
             "%s -c 'import sys\n"
             "try:\n import tokenizers\nexcept ImportError:\n sys.exit(3)\n"
             "t = tokenizers.Tokenizer.from_file(sys.argv[1])\n"
             "text = \"low lower <|endoftext|>\"\n"
             "ids = t.encode(text).ids\n"
             "sys.exit(t.get_vocab_size() != %lld or ids[-1] != %d or \n"
             " t.decode(ids, skip_special_tokens=False) != text)' %s 2>/dev/null",
             python && *python ? python : "python3", (long long)weft_tokenizer_vocab(t),
             weft_tokenizer_end(t), scratch_path("theirs.json"));
    weft_tokenizer_close(t);
    int status = system(line);
    status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (status == 3 || status == 126 || status == 127) {
        printf("tokenizers cannot be imported\n");
        skip();
    }
    assert_int_equal(status, 0);
}

TEST(test_sizes_are_checked) {
    weft_bpe_trainer *b;
    weft_tokenizer *t;
    assert_int_equal(weft_bpe_trainer_open(&b), WEFT_OK);
    assert_int_equal(weft_bpe_trainer_run(b, 256, 2, NULL, &t), WEFT_EINPUT);
    assert_null(t);
    assert_int_equal(weft_bpe_trainer_run(b, 257, 2, NULL, &t), WEFT_OK);
    assert_int_equal(weft_tokenizer_vocab(t), 257);
    weft_tokenizer_close(t);
    weft_bpe_trainer_close(b);
}

RUN_TESTS(scratch_setup, scratch_teardown)
