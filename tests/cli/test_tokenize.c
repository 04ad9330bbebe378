/* `weft tokenize` and `weft tokenizer train`: the shards they write, alike for any number of threads,
 * and none where something failed. */
#include "data/shards.h"
#include "data/tokenizer.h"
#include "data/tokens.h"
#include "support/command.h"
#include "support/fault.h"
#include "support/test.h"
#include "support/token_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define OWN "tests/vectors/tokenizer.own.json"

static const char *text_file(const char *name, const char *text) {
    const char *path = scratch_path("%s", name);
    file_write(path, text, strlen(text));
    return path;
}

static weft_tokens read_shard(const char *folder, const char *name) {
    weft_tokens t;
    expect_ok(weft_tokens_read(scratch_path("%s/%s", folder, name), &t));
    assert_true(t.shard);
    return t;
}

/* The tokens of a shard as bytes: for the byte-level tokenizer, the text. */
static void expect_bytes(const char *folder, const char *name, const char *text) {
    weft_tokens t = read_shard(folder, name);
    assert_int_equal(t.columns, strlen(text));
    for (int64_t i = 0; i < t.columns; i++)
        assert_int_equal(t.values[i], (uint8_t)text[i]);
    weft_tokens_free(&t);
}

/* The text of a shard's tokens, the end of text between documents. */
static char *decode_shard(const char *folder, const char *name, const char *tokenizer) {
    weft_tokens t = read_shard(folder, name);
    weft_tokenizer *of;
    char *text;
    size_t bytes;
    expect_ok(weft_tokenizer_open(tokenizer, &of));
    expect_ok(weft_tokenizer_decode(of, t.values, t.columns, &text, &bytes));
    weft_tokenizer_close(of);
    weft_tokens_free(&t);
    return text;
}

static bool there_is(const char *folder, const char *name) {
    return access(scratch_path("%s/%s", folder, name), F_OK) == 0;
}

TEST(test_bytes_of_files_are_the_tokens) {
    const char *a = text_file("a.txt", "one\ntwo\xFF"), *b = text_file("b.txt", "three");
    SUCCEEDS("tokenize", "--out", scratch_path("plain"), a);
    expect_bytes("plain", "train_000000.bin", "one\ntwo\xFF");
    assert_false(there_is("plain", "val_000000.bin"));
    assert_true(there_is("plain", "tokenizer.json"));
    SUCCEEDS("tokenize", "--tokenizer", "bytes", "--out", scratch_path("two"), a, b);
    expect_bytes("two", "train_000000.bin", "one\ntwo\xFF\nthree");
}

TEST(test_lines_of_json_are_documents) {
    const char *lines =
        text_file("lines.jsonl", "{\"text\": \"first\", \"id\": 1}\n\n{\"text\": \"\"}\n"
                                 "{\"id\": 2, \"text\": \"s\\u00e9cond <|endoftext|>\"}\r\n"
                                 "{\"text\": \"th\\u0000ird\"}");
    SUCCEEDS("tokenize", "--tokenizer", OWN, "--jsonl", "text", "--out", scratch_path("lines"),
             lines);
    weft_tokens t = read_shard("lines", "train_000000.bin");
    int ends = 0;
    for (int64_t i = 0; i < t.columns; i++)
        ends += t.values[i] == 699;
    assert_int_equal(ends, 3); /* the name in the text is no end */
    assert_int_equal(t.values[0], 699);
    weft_tokens_free(&t);
    WEFT_AUTO_FREE char *text = decode_shard("lines", "train_000000.bin", OWN);
    assert_string_equal(text, "<|endoftext|>first<|endoftext|>s\xC3\xA9"
                              "cond <|endoftext|><|endoftext|>th");
    /* By the name, without the option. */
    SUCCEEDS("tokenize", "--tokenizer", OWN, "--out", scratch_path("named"), lines);
    file_expect_equal(scratch_path("named/train_000000.bin"),
                      scratch_path("lines/train_000000.bin"));
}

TEST(test_a_share_is_kept_apart) {
    char text[1001], lines[2000] = "";
    for (int i = 0; i < 1000; i++)
        text[i] = i % 10 == 9 ? '\n' : (char)('a' + i / 10 % 26);
    text[1000] = 0;
    SUCCEEDS("tokenize", "--val-share", "0.1", "--out", scratch_path("share"),
             text_file("share.txt", text));
    weft_tokens train = read_shard("share", "train_000000.bin");
    weft_tokens val = read_shard("share", "val_000000.bin");
    assert_int_equal(train.columns + val.columns, 1000);
    assert_in_range(val.columns, 80, 110);
    assert_int_equal(val.values[0], text[train.columns]);
    assert_int_equal(train.values[train.columns - 1], '\n');
    weft_tokens_free(&train);
    weft_tokens_free(&val);
    for (int i = 0; i < 20; i++)
        snprintf(lines + strlen(lines), 40, "{\"t\": \"%c\"}\n", 'a' + i);
    SUCCEEDS("tokenize", "--val-share", "0.25", "--jsonl", "t", "--out", scratch_path("apart"),
             text_file("apart.jsonl", lines));
    expect_bytes("apart", "val_000000.bin", "d\nh\nl\np\nt");
}

TEST(test_a_twentieth_is_kept_apart_unless_told) {
    char text[4001];
    for (int i = 0; i < 4000; i++)
        text[i] = i % 10 == 9 ? '\n' : 'a';
    text[4000] = 0;
    const char *file = text_file("twentieth.txt", text);
    SUCCEEDS("tokenize", "--out", scratch_path("a/b/c"), file);
    weft_tokens val = read_shard("a/b/c", "val_000000.bin");
    assert_in_range(val.columns, 190, 210);
    weft_tokens_free(&val);
    SUCCEEDS("tokenize", "--val-share", "0", "--out", scratch_path("all"), file);
    assert_false(there_is("all", "val_000000.bin"));
    const char *other = text_file("other.txt", "for validation\n");
    SUCCEEDS("tokenize", "--val", other, "--out", scratch_path("other"), file);
    expect_bytes("other", "val_000000.bin", "for validation\n");
}

TEST(test_shards_have_so_many_tokens) {
    SUCCEEDS("tokenize", "--shard-tokens", "4", "--out", scratch_path("small"),
             text_file("ten.txt", "0123456789"));
    expect_bytes("small", "train_000000.bin", "0123");
    expect_bytes("small", "train_000001.bin", "4567");
    expect_bytes("small", "train_000002.bin", "89");
    assert_false(there_is("small", "train_000003.bin"));
    assert_false(there_is("small", "train_000000.bin.part"));
}

/* Tokens that do not fit 16 bits; and what a run that was killed left is cleared away. */
TEST(test_wide_tokens_and_leftovers) {
    const int32_t tokens[3] = {0, 69999, 65536};
    weft_shard_writer *w;
    assert_int_equal(mkdir(scratch_path("wide"), 0777), 0);
    shard_write(scratch_path("wide/train_000007.bin.part"), 20240801, 7, 0, 4, tokens, 3);
    expect_ok(weft_shard_writer_open(scratch_path("wide"), "train", 70000, 100, &w));
    assert_false(there_is("wide", "train_000007.bin.part"));
    expect_ok(weft_shard_writer_put(w, tokens, 3));
    assert_false(there_is("wide", "train_000000.bin"));
    expect_ok(weft_shard_writers_commit(&w, 1));
    weft_shard_writer_close(w);
    weft_tokens t = read_shard("wide", "train_000000.bin");
    assert_int_equal(t.columns, 3);
    assert_memory_equal(t.values, tokens, sizeof tokens);
    weft_tokens_free(&t);
    /* Closed without a commit: nothing stays. */
    expect_ok(weft_shard_writer_open(scratch_path("wide"), "val", 9, 2, &w));
    expect_ok(weft_shard_writer_put(w, tokens, 3));
    weft_shard_writer_close(w);
    assert_false(there_is("wide", "val_000000.bin.part"));
    assert_false(there_is("wide", "val_000001.bin.part"));
    assert_false(there_is("wide", "val_000000.bin"));
    /* Refused: there is nothing to close. */
    for (int64_t size = 0; size <= (1LL << 31); size += 1LL << 31) {
        w = (weft_shard_writer *)1;
        assert_int_equal(weft_shard_writer_open(scratch_path("wide"), "val", 9, size, &w),
                         WEFT_EINPUT);
        assert_non_null(strstr(weft_error_message(), "from 1 to 2147483647 tokens"));
        assert_null(w);
    }
}

/* Five mebibytes, so that there are several parts: the tokens of the whole text at once. */
TEST(test_threads_and_pipes_change_nothing) {
    size_t bytes, room = 5 << 20, n = 0, one, two;
    char *source = file_read("tests/reference/make_tokenizer_vectors.py", &bytes), line[2048];
    WEFT_AUTO_FREE char *text = malloc(room + bytes + 32);
    assert_non_null(text);
    for (int i = 0; n < room; i++) {
        memcpy(text + n, source, bytes);
        n += bytes + (size_t)sprintf(text + n + bytes, "%d\xE2\x82", i);
    }
    file_write(scratch_path("long.txt"), text, n);
    const char *program = getenv("WEFT");
    SUCCEEDS("tokenize", "--tokenizer", OWN, "--val-share", "0", "--threads", "1", "--out",
             scratch_path("t1"), scratch_path("long.txt"));
    snprintf(line, sizeof line,
             "%s tokenize --tokenizer " OWN " --val-share 0 --threads 3 --out %s - <%s >%s 2>&1",
             program ? program : "build/weft", scratch_path("t3"), scratch_path("long.txt"),
             scratch_path("said"));
    assert_int_equal(system(line), 0);
    WEFT_AUTO_FREE char *a = file_read(scratch_path("t1/train_000000.bin"), &one);
    WEFT_AUTO_FREE char *b = file_read(scratch_path("t3/train_000000.bin"), &two);
    assert_int_equal(one, two);
    assert_memory_equal(a, b, one);
    weft_tokens t = read_shard("t1", "train_000000.bin");
    weft_tokenizer *of;
    weft_encoder *e;
    const int32_t *whole;
    int64_t count;
    expect_ok(weft_tokenizer_open(OWN, &of));
    expect_ok(weft_encoder_open(of, &e));
    expect_ok(weft_encode(e, text, n, false, &whole, &count));
    assert_int_equal(count + 1, t.columns);
    assert_memory_equal(whole, t.values + 1, (size_t)count * sizeof *whole);
    weft_encoder_close(e);
    weft_tokenizer_close(of);
    weft_tokens_free(&t);
    free(source);
}

TEST(test_json_says_what_was_done) {
    command_result r = command_run(RUN("tokenize", "--json", "--out", scratch_path("said-json"),
                                       text_file("said.txt", "hello")));
    json_error_t error;
    WEFT_AUTO_DECREF json_t *object = json_loads(r.out, 0, &error);
    assert_int_equal(r.status, 0);
    assert_int_equal(json_integer_value(json_object_get(object, "train_tokens")), 5);
    assert_int_equal(json_integer_value(json_object_get(object, "documents")), 1);
    assert_int_equal(json_integer_value(json_object_get(object, "vocab")), 256);
    command_free(&r);
}

TEST(test_what_is_wrong_leaves_no_shard) {
    const char *good = text_file("good.jsonl", "{\"text\": \"a\"}\n");
    const char *bad = text_file("bad.jsonl", "{\"text\": \"a\"}\n{\"text\": 3}\n");
    const char *worse = text_file("worse.jsonl", "{\"text\": \"a\"}\nnot\n");
    const char *out = scratch_path("wrong");
    FAILS(2, SAYS("no files"), "tokenize", "--out", out);
    FAILS(2, SAYS("--out"), "tokenize", good);
    FAILS(2, SAYS("no-such-file"), "tokenize", "--out", out, "no-such-file");
    FAILS(2, SAYS("tests", "folder"), "tokenize", "--out", out, "tests");
    FAILS(2, SAYS("a device"), "tokenize", "--out", out, "/dev/null");
    FAILS(2, SAYS("no text"), "tokenize", "--out", out, "-");
    FAILS(2, SAYS("bad.jsonl", "line 2", "text"), "tokenize", "--out", out, "--jsonl", "text", good,
          bad);
    FAILS(2, SAYS("worse.jsonl", "line 2", "JSON"), "tokenize", "--out", out, "--jsonl", "text",
          worse);
    FAILS(2, SAYS("no-such"), "tokenize", "--out", out, "--tokenizer", "no-such", good);
    FAILS(2, SAYS("--val-share"), "tokenize", "--out", out, "--val-share", "1", good);
    FAILS(2, SAYS("--shard-tokens"), "tokenize", "--out", out, "--shard-tokens", "0", good);
    assert_false(there_is("wrong", "train_000000.bin"));
    assert_false(there_is("wrong", "train_000000.bin.part"));
    SUCCEEDS("tokenize", "--out", out, good);
    FAILS(2, SAYS("has shards already"), "tokenize", "--out", out, good);
    FAILS(2, SAYS("good.jsonl"), "tokenize", "--out", good, good);
}

/* val_000000.bin has its name already when a shard of the others cannot have it. */
TEST(test_shards_come_all_or_none) {
    char text[3001];
    for (int i = 0; i < 3000; i++)
        text[i] = i % 10 == 9 ? '\n' : 'a';
    text[3000] = 0;
    const char *file = text_file("whole.txt", text);
    const char *out = scratch_path("together");
    const char *const *words =
        RUN("tokenize", "--out", out, "--shard-tokens", "1000", "--threads", "1", file);
    fault_need();
    fault f = {.calls = "rename", .path = "train_000001.bin", .nth = 1, .error = ENOSPC};
    command_result r = fault_run(&f, words, NULL);
    if (r.status != 1) fail_msg("%d: %s", r.status, r.err);
    command_free(&r);
    assert_false(there_is("together", "val_000000.bin"));
    assert_false(there_is("together", "train_000000.bin"));
    assert_false(there_is("together", "train_000001.bin.part"));
    f.error = 0; /* a kill there leaves some, and the next one says so */
    r = fault_run(&f, words, NULL);
    command_free(&r);
    command_fails(2, words, SAYS("has shards already", "cut off"));
    shell_succeeds("rm -r '%s'", out);
    command_succeeds(words, NULL);
}

TEST(test_two_do_not_tokenize_into_one_folder) {
    const char *file = text_file("held.txt", "some text\n");
    assert_int_equal(mkdir(scratch_path("held"), 0777), 0);
    int folder = open(scratch_path("held"), O_RDONLY | O_DIRECTORY);
    assert_int_equal(flock(folder, LOCK_EX), 0);
    FAILS(2, SAYS("another process tokenizes"), "tokenize", "--out", scratch_path("held"), file);
    close(folder);
    SUCCEEDS("tokenize", "--out", scratch_path("held"), file);
}

TEST(test_tokenizer_is_trained) {
    const char *text = text_file("words.txt", "low lower lowest low lower low slow slower");
    const char *own = scratch_path("own.json");
    char *out;
    command_succeeds(RUN("tokenizer", "train", "--vocab", "264", "--out", own, text), &out);
    assert_non_null(strstr(out, "264"));
    free(out);
    SUCCEEDS("tokenize", "--tokenizer", own, "--out", scratch_path("trained"), text);
    out = decode_shard("trained", "train_000000.bin", own);
    assert_string_equal(out, "<|endoftext|>low lower lowest low lower low slow slower");
    free(out);
    FAILS(2, SAYS("--vocab"), "tokenizer");
    FAILS(2, SAYS("train"), "tokenizer", "tarin", "--vocab", "300", "--out", own);
    FAILS(2, SAYS("no files"), "tokenizer", "train", "--vocab", "300", "--out", own);
    FAILS(2, SAYS("--vocab", "257"), "tokenizer", "train", "--vocab", "3", "--out", own, text);
    FAILS(1, SAYS("/no/such/x"), "tokenizer", "train", "--vocab", "300", "--out", "/no/such/x",
          text);
}

/* Skips where this build lacks a library, or the machine the program that packs. */
static void need_packing(const char *program, const char *packed) {
    const char *line =
        format_text("printf 'one text\\n' | %s -c >'%s' 2>/dev/null", program, packed);
    if (system(line) != 0) {
        printf("there is no %s\n", program);
        skip();
    }
    command_result r =
        command_run(RUN("tokenize", "--out", scratch_path("probe-%s", program), packed));
    bool lacks = strstr(r.err, "this build cannot read") != NULL;
    command_free(&r);
    if (lacks) {
        printf("this build cannot read %s\n", program);
        skip();
    }
}

/* Several mebibytes and two packed texts in a row; a share of it; JSON lines by the name within. */
static void unpacks(const char *program, const char *tail) {
    const char *packed = scratch_path("one.txt.%s", tail);
    need_packing(program, packed);
    const char *folder = scratch_path("packed-%s", tail);
    shell_succeeds("printf 'and another' | %s -c >>'%s'", program, packed);
    SUCCEEDS("tokenize", "--val-share", "0", "--out", folder, packed);
    const char *text = format_text("packed-%s", tail);
    expect_bytes(text, "train_000000.bin", "one text\nand another");

    const char *plain = scratch_path("many-%s.txt", tail);
    const char *whole = scratch_path("whole-%s", tail);
    shell_succeeds("seq 1 700000 >'%s' && %s -c '%s' >'%s'", plain, program, plain, packed);
    shell_succeeds("rm -r '%s'", folder);
    SUCCEEDS("tokenize", "--val-share", "0.1", "--out", folder, packed);
    SUCCEEDS("tokenize", "--val-share", "0.1", "--out", whole, plain);
    for (int i = 0; i < 2; i++) {
        const char *name = format_text("%s_000000.bin", i ? "val" : "train");
        file_expect_equal(format_text("%s/%s", folder, name), format_text("%s/%s", whole, name));
    }

    packed = scratch_path("lines.jsonl.%s", tail);
    shell_succeeds("printf '{\"text\": \"a\"}\\n{\"text\": \"b\"}\\n' | %s -c >'%s'", program,
                   packed);
    shell_succeeds("rm -r '%s'", folder);
    SUCCEEDS("tokenize", "--val-share", "0", "--out", folder, packed);
    expect_bytes(text, "train_000000.bin", "a\nb");

    /* Cut off, and changed in the middle. */
    packed = scratch_path("cut.txt.%s", tail);
    shell_succeeds("%s -c '%s' | head -c -100 >'%s'", program, plain, packed);
    FAILS(2, SAYS(packed, "ends too early"), "tokenize", "--out", scratch_path("cut"), packed);
    shell_succeeds("printf 'xxxxxxxxxxxxxxxx' | dd of='%s' bs=1 seek=1000 conv=notrunc 2>/dev/null",
                   packed);
    FAILS(2, SAYS(packed, "damaged"), "tokenize", "--out", scratch_path("cut"), packed);
    assert_false(there_is("cut", "train_000000.bin"));
}

TEST(test_gzip_is_unpacked) {
    unpacks("gzip", "gz");
}

TEST(test_zstd_is_unpacked) {
    unpacks("zstd", "zst");
}

TEST(test_what_is_no_text_is_refused) {
    static const struct {
        const char *name, *bytes, *says;
        size_t n;
    } files[] = {
        {"program",
         "\x7F"
         "ELF\2\1\1\0\0\0",
         "is no text: its byte 7 is zero", 10},
        {"table.parquet", "PAR1\x15\x04\x15", "stream_dataset.py", 7},
        {"wide.txt",
         "\xFF\xFE"
         "a\0b\0",
         "iconv", 6},
        {"model.bin", "abc\0def", "is no text", 7},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        const char *out = scratch_path("refused"), *text = text_file("fine.txt", "fine\n");
        const char *path = scratch_path("%s", files[i].name);
        file_write(path, files[i].bytes, files[i].n);
        FAILS(2, SAYS(path, files[i].says), "tokenize", "--out", out, text, path);
        FAILS(2, SAYS(path, files[i].says), "tokenizer", "train", "--vocab", "300", "--out",
              scratch_path("t.json"), path);
    }
    assert_false(there_is("refused", "train_000000.bin"));
}

static void expect_tokens(const char *folder, const char *name, const int32_t *tokens, int64_t n) {
    weft_tokens t = read_shard(folder, name);
    assert_int_equal(t.columns, n);
    assert_memory_equal(t.values, tokens, (size_t)n * sizeof *tokens);
    weft_tokens_free(&t);
}

/* nanoGPT's bare uint16, shards with a header, and arrays: copied, the end of each kept apart. */
TEST(test_files_of_tokens_are_copied) {
    const int32_t tokens[] = {5, 50256, 7, 8, 9, 10, 11, 12, 13, 65535};
    unsigned char raw[20];
    for (int i = 0; i < 10; i++) {
        raw[2 * i] = (unsigned char)(tokens[i] & 255);
        raw[2 * i + 1] = (unsigned char)(tokens[i] >> 8);
    }
    shell_succeeds("mkdir -p '%s'", scratch_path("nano"));
    const char *bare = scratch_path("nano/train.bin");
    const char *shard = scratch_path("fineweb_train_000001.bin");
    const char *wide = scratch_path("wide_shard.bin");
    const char *array = scratch_path("array.npy");
    file_write(bare, raw, sizeof raw);
    shard_write(shard, 20240520, 1, 10, 2, tokens, 10);
    shard_write(wide, 20240801, 7, 10, 4, tokens, 10);
    npy_write_raw(array, "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 5), }", raw, 20);
    const char *const files[] = {bare, shard, wide, array};
    for (int i = 0; i < 4; i++) {
        const char *folder = format_text("tokens-%d", i);
        WEFT_AUTO_FREE char *out = OUTPUT("tokenize", "--json", "--val-share", "0.3", "--out",
                                          scratch_path("%s", folder), files[i]);
        assert_non_null(strstr(out, "\"vocab\": 65536"));
        expect_tokens(folder, "train_000000.bin", tokens, 7);
        expect_tokens(folder, "val_000000.bin", tokens + 7, 3);
        assert_false(there_is(folder, "tokenizer.json"));
    }
    SUCCEEDS("tokenize", "--val", shard, "--out", scratch_path("both"), bare);
    expect_tokens("both", "train_000000.bin", tokens, 10);
    expect_tokens("both", "val_000000.bin", tokens, 10);
    /* With a tokenizer they must be its own. */
    FAILS(2, SAYS("train.bin", "token 1 is 50256", "700"), "tokenize", "--tokenizer", OWN, "--out",
          scratch_path("other-tokens"), bare);
    FAILS(2, SAYS("train.bin", "beside.txt", "apart"), "tokenize", "--out", scratch_path("mixed"),
          bare, text_file("beside.txt", "text"));
    file_write(bare, raw, 19);
    FAILS(2, SAYS("train.bin", "19"), "tokenize", "--out", scratch_path("odd"), bare);
    FAILS(2, SAYS("holds tokens"), "tokenizer", "train", "--vocab", "300", "--out",
          scratch_path("t.json"), shard);
}

/* A parquet file made here, through the helper into the program. */
TEST(test_parquet_is_streamed) {
    char line[4096];
    const char *python = getenv("PYTHON"), *program = getenv("WEFT");
    if (!python || !*python) python = "python3";
    snprintf(
        line, sizeof line,
        "%s -c 'import sys\n"
        "try:\n import pyarrow, pyarrow.parquet\nexcept ImportError:\n sys.exit(3)\n"
        "table = pyarrow.table({\"id\": [1, 2, 3], \"body\": [\"one\", None, \"tw\\u00f6\"]})\n"
        "pyarrow.parquet.write_table(table, sys.argv[1])' %s 2>/dev/null",
        python, scratch_path("texts.parquet"));
    int status = system(line);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        printf("pyarrow cannot be imported\n");
        skip();
    }
    snprintf(line, sizeof line,
             "%s scripts/stream_dataset.py %s --field body | %s tokenize --jsonl body --out %s - "
             ">%s 2>&1",
             python, scratch_path("texts.parquet"), program ? program : "build/weft",
             scratch_path("streamed"), scratch_path("said"));
    assert_int_equal(system(line), 0);
    expect_bytes("streamed", "train_000000.bin", "one\ntw\xC3\xB6");
    snprintf(line, sizeof line, "%s scripts/stream_dataset.py %s 2>%s", python,
             scratch_path("texts.parquet"), scratch_path("why"));
    assert_int_not_equal(system(line), 0);
    WEFT_AUTO_FREE char *why = file_read(scratch_path("why"), NULL);
    assert_non_null(strstr(why, "has no column text; it has id, body"));
}

RUN_TESTS(scratch_setup, scratch_teardown)
