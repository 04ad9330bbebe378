/* weft generate: text from a checkpoint, and one line on what is wrong. */
#include "support/command.h"
#include "support/poison.h"
#include "support/screen.h"
#include "support/test.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char model[512];

static int make_model(void **state) {
    (void)state;
    scratch_open();
    snprintf(model, sizeof model, "%s", scratch_path("run"));
    const char *best = format_text("%s/best", model);
    const char *config = scratch_path("tiny.config");
    config_write(config, "ATTENTION=mla POSITION=rope N_LAYER=2 N_HEAD=2 N_EMBD=16 VOCAB_SIZE=256 "
                         "CONTEXT=64 RA_MLA_LATENT_DIM=8");
    assert_int_equal(mkdir(model, 0777), 0);
    SUCCEEDS("init", "--config", config, "--out", best, "--seed", "1");
    return 0;
}

static json_t *run_json(const char *const *arguments) {
    WEFT_AUTO_FREE char *out = command_output(arguments);
    json_t *all = json_loads(out, JSON_ALLOW_NUL, NULL);
    assert_non_null(all);
    return all;
}

/* A run's folder stands for its best/; tokens, text and log-probabilities are there. */
TEST(test_json_has_text_tokens_and_logprobs) {
    json_t *all = run_json(RUN("generate", "--model", model, "--prompt", "Once", "--max-tokens",
                               "12", "--seed", "5", "--logprobs", "3", "--json"));
    assert_int_equal(json_array_size(json_object_get(all, "tokens")), 12);
    assert_int_equal(json_array_size(json_object_get(all, "logprobs")), 12);
    assert_int_equal(json_array_size(json_object_get(all, "top_logprobs")), 12);
    assert_true(json_is_string(json_object_get(all, "text")));
    assert_int_equal(json_integer_value(json_object_get(all, "prompt_tokens")), 4);
    assert_int_equal(json_integer_value(json_object_get(all, "cache_bytes_per_token")),
                     2 * 2 * 8 * 4);
    json_decref(all);
}

/* "Once" as the numbers of its bytes: the same tokens come out, as numbers. */
TEST(test_tokens_go_in_and_out_as_numbers) {
    json_t *text = run_json(RUN("generate", "--model", model, "--prompt", "Once", "--max-tokens",
                                "5", "--temperature", "0", "--json"));
    json_t *same = run_json(RUN("generate", "--model", model, "--tokens", "79,110 99  101",
                                "--max-tokens", "5", "--temperature", "0", "--json"));
    assert_int_equal(json_integer_value(json_object_get(same, "prompt_tokens")), 4);
    const json_t *tokens = json_object_get(text, "tokens");
    assert_true(json_equal(tokens, json_object_get(same, "tokens")));
    char line[128] = "", *out;
    for (size_t i = 0; i < 5; i++)
        snprintf(line + strlen(line), sizeof line - strlen(line), "%lld%c",
                 (long long)json_integer_value(json_array_get(tokens, i)), i < 4 ? ' ' : '\n');
    command_succeeds(RUN("generate", "--model", model, "--tokens", "79 110 99 101", "--max-tokens",
                         "5", "--temperature", "0"),
                     &out);
    assert_string_equal(out, line);
    free(out);
    json_decref(text);
    json_decref(same);
    FAILS(2, SAYS("256", "255"), "generate", "--model", model, "--tokens", "7 256");
    FAILS(2, SAYS("'a'"), "generate", "--model", model, "--tokens", "7 a");
    FAILS(2, SAYS("no number"), "generate", "--model", model, "--tokens", ",");
    FAILS(2, SAYS("--tokens", "give one"), "generate", "--model", model, "--tokens", "7",
          "--prompt", "a");
}

TEST(test_the_same_seed_gives_the_same_text) {
    json_t *runs[3];
    const char *seeds[] = {"7", "7", "8"}, *threads[] = {"1", "3", "1"};
    for (int i = 0; i < 3; i++)
        runs[i] =
            run_json(RUN("generate", "--model", model, "--prompt", "Once", "--max-tokens", "30",
                         "--samples", "2", "--seed", seeds[i], "--threads", threads[i], "--json"));
    const json_t *first = json_object_get(runs[0], "samples");
    assert_true(json_equal(first, json_object_get(runs[1], "samples")));
    assert_false(json_equal(first, json_object_get(runs[2], "samples")));
    assert_false(json_equal(json_array_get(first, 0), json_array_get(first, 1)));
    for (int i = 0; i < 3; i++)
        json_decref(runs[i]);
}

/* The bytes of the tokens that a run made. */
static size_t put_tokens(const json_t *made, char *to) {
    const json_t *tokens = json_object_get(made, "tokens");
    size_t n = json_array_size(tokens);
    for (size_t i = 0; i < n; i++)
        to[i] = (char)json_integer_value(json_array_get(tokens, i));
    return n;
}

TEST(test_a_prompt_is_the_same_wherever_it_comes_from) {
    const char *path = scratch_path("prompt");
    const char *out = scratch_path("made");
    const char *best = format_text("%s/best", model);
    file_write(path, "Once\n", 5);
    json_t *want = run_json(RUN("generate", "--model", model, "--prompt", "Once\n", "--json"));
    const char *const ways[] = {"--file '%s' </dev/null", "<'%s'", "--file - <'%s'"};
    for (size_t i = 0; i < 3; i++) {
        shell_succeeds("'%s' generate --model '%s' --json %s >'%s'", command_program(), best,
                       format_text(ways[i], path), out);
        WEFT_AUTO_FREE char *text = file_read(out, NULL);
        WEFT_AUTO_DECREF json_t *got = json_loads(text, 0, NULL);
        assert_true(json_equal(json_object_get(got, "tokens"), json_object_get(want, "tokens")));
        assert_int_equal(json_integer_value(json_object_get(got, "prompt_tokens")), 5);
    }
    json_decref(want);
    /* Nothing at all is a prompt too: a new text's beginning. */
    want = run_json(RUN("generate", "--model", model, "--file", "/dev/null", "--json"));
    json_t *empty = run_json(RUN("generate", "--model", model, "--prompt", "", "--json"));
    assert_true(json_equal(json_object_get(empty, "tokens"), json_object_get(want, "tokens")));
    json_decref(empty);
    json_decref(want);
}

/* Each answer is the text that follows all that was said before. */
TEST(test_a_conversation_is_one_text) {
    static const char *const lines[] = {"Hello", "who\n", "\n", "caf\xc3\xa9\n"};
    enum { LINES = sizeof lines / sizeof lines[0] };
    char said[256], path[512], out[512], want[4096] = "";
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s", scratch_path("said"));
    snprintf(out, sizeof out, "%s", scratch_path("answers"));
    for (int i = 0; i < LINES; i++) {
        memcpy(said + bytes, lines[i], strlen(lines[i]));
        bytes += strlen(lines[i]);
        file_write(path, said, bytes);
        json_t *made = run_json(RUN("generate", "--model", model, "--file", path, "--temperature",
                                    "0", "--max-tokens", "9", "--json"));
        snprintf(want + strlen(want), sizeof want - strlen(want), "%s\n",
                 json_string_value(json_object_get(made, "text")));
        bytes += put_tokens(made, said + bytes);
        json_decref(made);
    }
    for (int from_file = 0; from_file < 2; from_file++) {
        file_write(path, lines[0], strlen(lines[0]));
        shell_succeeds(
            "printf 'who\\n\\ncaf\303\251\\n' | '%s' generate -i --model '%s' --temperature 0 "
            "--max-tokens 9 %s '%s' >'%s'",
            command_program(), model, from_file ? "--file" : "--prompt",
            from_file ? path : lines[0], out);
        WEFT_AUTO_FREE char *got = file_read(out, NULL);
        assert_string_equal(got, want);
    }
}

/* A stop string of several tokens; what is before its first place is the text, to the byte. */
TEST(test_a_stop_string_ends_the_text_before_it) {
    WEFT_AUTO_DECREF json_t *whole = run_json(RUN("generate", "--model", model, "--prompt", "Once",
                                                  "--seed", "5", "--max-tokens", "50", "--json"));
    const char *text = json_string_value(json_object_get(whole, "text"));
    size_t bytes = strlen(text), at = bytes / 2;
    while (((unsigned char)text[at] & 0xc0) == 0x80) /* a character's beginning */
        at++;
    size_t end = at;
    for (int i = 0; i < 3; i++) /* three characters */
        do
            end++;
        while (((unsigned char)text[end] & 0xc0) == 0x80);
    char stop[32] = {0};
    memcpy(stop, text + at, end - at);
    const char *first = strstr(text, stop);
    WEFT_AUTO_DECREF json_t *cut =
        run_json(RUN("generate", "--model", model, "--prompt", "Once", "--seed", "5",
                     "--max-tokens", "50", "--stop", "never there", "--stop", stop, "--json"));
    const char *left = json_string_value(json_object_get(cut, "text"));
    assert_int_equal(strlen(left), first - text);
    assert_memory_equal(left, text, (size_t)(first - text));
    assert_string_equal(json_string_value(json_object_get(cut, "finish")), "stop");
    assert_string_equal(json_string_value(json_object_get(whole, "finish")), "length");
}

/* Bytes of the first piece and of all, of a text that is shorter than a buffer of the C library. */
static void read_pieces(size_t *first, size_t *all) {
    int ends[2], status;
    char text[4096];
    ssize_t got;
    *first = *all = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        execl(command_program(), "weft", "generate", "--model", model, "--prompt", "x", "--slide",
              "--max-tokens", "1000", "--threads", "1", (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    while ((got = read(ends[0], text, sizeof text)) > 0) {
        if (!*first) *first = (size_t)got;
        *all += (size_t)got;
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(ends[0]);
}

/* The first letters are there before the last; a busy machine may be late to look, so several looks. */
TEST(test_text_comes_as_it_is_made) {
    size_t first = 1, all = 1;
    for (int i = 0; i < 10 && first == all; i++)
        read_pieces(&first, &all);
    assert_true(all >= 1000 && all < 4096);
    assert_true(first < all);
}

/* A model that diverged is told of, not made text of. */
TEST(test_weights_that_are_no_numbers_are_an_error) {
    size_t bytes;
    const char *path = format_text("%s/best/model.safetensors", model);
    char *good = file_read(path, &bytes), *bad = malloc(bytes);
    memcpy(bad, good, bytes);
    memcpy(bad + bytes - 4, "\x00\x00\xc0\x7f", 4);
    file_write(path, bad, bytes);
    FAILS(2, SAYS("not numbers"), "generate", "--model", model, "--prompt", "x", "--unchecked");
    file_write(path, good, bytes);
    free(good);
    free(bad);
}

static bool has_token(const json_t *sample, json_int_t token, size_t from, size_t end) {
    const json_t *tokens = json_object_get(sample, "tokens");
    for (size_t i = from; i < end && i < json_array_size(tokens); i++)
        if (json_integer_value(json_array_get(tokens, i)) == token) return true;
    return false;
}

/* A sample that breaks off has the tokens up to there; the others are whole. */
static void check_sample(const json_t *got, const json_t *want, bool broken, json_int_t token) {
    if (!broken) {
        assert_true(json_equal(got, want));
        return;
    }
    const json_t *made = json_object_get(got, "tokens"), *all = json_object_get(want, "tokens");
    size_t n = json_array_size(made);
    assert_true(n > 0 && n < json_array_size(all));
    for (size_t i = 0; i < n; i++)
        assert_true(json_equal(json_array_get(made, i), json_array_get(all, i)));
    assert_int_equal(json_integer_value(json_array_get(made, n - 1)), token);
    assert_false(has_token(want, token, 0, n - 1));
    assert_string_equal(json_string_value(json_object_get(got, "finish")), "error");
}

/* One token's embedding is not numbers: samples that draw it break off there. */
TEST(test_a_sample_that_breaks_off_leaves_the_others_whole) {
    enum { SAMPLES = 6, TEXT = 40 };
    (void)state;
    static const char text[] =
        "CONFIG_N_LAYER=2\nCONFIG_N_HEAD=2\nCONFIG_N_EMBD=16\nCONFIG_VOCAB_SIZE=256\n"
        "CONFIG_CONTEXT=64\n# CONFIG_WEIGHT_TYING is not set\n";
    const char *folder = scratch_path("untied");
    const char *config = scratch_path("untied.config");
    file_write(config, text, sizeof text - 1);
    SUCCEEDS("init", "--config", config, "--out", folder, "--seed", "1");
    const char *const *words =
        RUN("generate", "--model", folder, "--prompt", "Once", "--samples", "6", "--max-tokens",
            "40", "--seed", "3", "--json", "--unchecked");
    json_t *all = run_json(words), *want = json_object_get(all, "samples");
    const json_t *second = json_object_get(json_array_get(want, 1), "tokens");
    json_int_t token = json_integer_value(json_array_get(second, 9));
    poison_checkpoint(folder, (int32_t)token);
    WEFT_AUTO(command_free) command_result r = command_run(words);
    assert_int_equal(r.status, 2);
    if (!strstr(r.err, "sample ") || !strstr(r.err, "not numbers")) fail_msg("%s", r.err);
    WEFT_AUTO_DECREF json_t *made = json_loads(r.out, JSON_ALLOW_NUL, NULL);
    const json_t *got = json_object_get(made, "samples");
    assert_int_equal(json_array_size(got), SAMPLES);
    int broken = 0;
    for (size_t i = 0; i < SAMPLES; i++) {
        bool breaks = has_token(json_array_get(want, i), token, 0, TEXT - 1);
        check_sample(json_array_get(got, i), json_array_get(want, i), breaks, token);
        broken += breaks;
    }
    assert_in_range(broken, 1, SAMPLES - 1);
    json_decref(all);
}

enum { SEEDS = 4 };
static const char *const seeds_of_text[SEEDS] = {"1", "2", "3", "4"};
static int seed_shown;

#define TEXT_OF(seed)                                                                              \
    "generate", "--model", model, "--prompt", "Once", "--max-tokens", "60", "--samples", "2",      \
        "--threads", "1", "--seed", seed

/* The program with standard output on the terminal that standard error is on. */
static void generate_to_terminal(void) {
    const char *const *words = RUN(TEXT_OF(seeds_of_text[seed_shown]));
    char line[2048];
    int at = snprintf(line, sizeof line, "exec %s", command_program());
    for (; *words; words++)
        at += snprintf(line + at, sizeof line - (size_t)at, " '%s'", *words);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    execl("/bin/sh", "sh", "-c", line, (char *)NULL);
    _exit(127);
}

static int count_controls(const char *text, size_t bytes, const char *but) {
    int n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += ((unsigned char)text[i] < 0x20 || text[i] == 0x7f) && !strchr(but, text[i]);
    return n;
}

/* What a model says may hold escape sequences, which a terminal would obey. */
TEST(test_a_terminal_is_shown_control_characters_and_a_pipe_gets_them) {
    int raw = 0, escaped = 0;
    for (seed_shown = 0; seed_shown < SEEDS; seed_shown++) {
        WEFT_AUTO_FREE char *out = OUTPUT(TEXT_OF(seeds_of_text[seed_shown]));
        raw += count_controls(out, strlen(out), "\n\t");
        screen s = screen_run(500, SAYS("NO_COLOR=1"), generate_to_terminal);
        assert_int_equal(s.status, 0);
        assert_int_equal(count_controls(s.raw, s.bytes, "\r\n\t"), 0);
        for (size_t i = 0; i < s.bytes; i++) /* a carriage return is the terminal's own */
            assert_true(s.raw[i] != '\r' || s.raw[i + 1] == '\n');
        escaped += screen_count(&s, "\\x");
        assert_int_equal(screen_count(&s, "4 tokens of prompt, first token after "), 1);
        assert_int_equal(screen_count(&s, " tokens/s"), 1);
        assert_int_equal(strncmp(s.raw, "Once", 4), 0);
        screen_free(&s);
    }
    seed_shown = 0;
    screen s = screen_run(500, SAYS("NO_COLOR"), generate_to_terminal);
    assert_int_equal(strncmp(s.raw, "\033[2mOnce\033[0m", 12), 0);
    screen_free(&s);
    assert_true(raw > 0);
    assert_true(escaped >= raw);
}

TEST(test_the_context_ends_a_text_unless_it_slides) {
    const char *ways[][2] = {{"--top-k", "0"}, {"--context", "100"}};
    size_t lengths[] = {60, 96};
    for (int i = 0; i < 2; i++) {
        json_t *all = run_json(RUN("generate", "--model", model, "--prompt", "Once", "--max-tokens",
                                   "200", ways[i][0], ways[i][1], "--json"));
        assert_int_equal(json_array_size(json_object_get(all, "tokens")), lengths[i]);
        json_decref(all);
    }
    static const char *const room[] = {"59", "60"};
    for (int i = 0; i < 2; i++) { /* it says so when the last place is taken */
        command_result r = command_run(
            RUN("generate", "--model", model, "--prompt", "Once", "--max-tokens", room[i]));
        bool told = strstr(r.err, "the context of 64 tokens is full") != NULL;
        assert_int_equal(told, i == 1);
        command_free(&r);
    }
    const char *err = scratch_path("err");
    for (int each = 27; each <= 28; each++) { /* in a conversation: two lines of 4, two answers */
        shell_succeeds("printf 'who\\nwho\\n' | '%s' generate -i --model '%s' --max-tokens %d "
                       ">'%s' 2>'%s'",
                       command_program(), model, each, scratch_path("answers"), err);
        char *said = file_read(err, NULL), *told = strstr(said, "the context of 64 tokens is full");
        assert_int_equal(told != NULL, each == 28);
        if (told) assert_null(strstr(told + 1, "the context of"));
        free(said);
    }
    WEFT_AUTO_DECREF json_t *all = run_json(RUN("generate", "--model", model, "--prompt", "Once",
                                                "--max-tokens", "200", "--slide", "--json"));
    assert_int_equal(json_array_size(json_object_get(all, "tokens")), 200);
}

/* A checkpoint that is not what its state.json tells of is noticed; whoever wants it all the same
 * says so. */
TEST(test_a_damaged_checkpoint_is_refused_unless_unchecked) {
    static const char sums[] = "{\"format\": 1, \"files\": {\"config.json\": "
                               "{\"bytes\": 3, \"crc32c\": \"00000000\"}, \"model.safetensors\": "
                               "{\"bytes\": 3, \"crc32c\": \"00000000\"}}}";
    const char *path = format_text("%s/best/state.json", model);
    file_write(path, sums, sizeof sums - 1);
    FAILS(2, SAYS("bytes", "--unchecked"), "generate", "--model", model, "--prompt", "x");
    SUCCEEDS("generate", "--model", model, "--prompt", "x", "--unchecked");
    assert_int_equal(remove(path), 0);
}

/* Another tokenizer would make another text: one that cannot be read is not taken for none. */
TEST(test_a_tokenizer_that_cannot_be_read_is_an_error) {
    const char *path = format_text("%s/best/tokenizer.json", model);
    const char *text = scratch_path("some-text");
    file_write(text, "some text", 9);
    for (int way = 0; way < 2; way++) {
        assert_int_equal(symlink(way ? "tokenizer.json" : "nowhere", path), 0);
        FAILS(2, SAYS("tokenizer.json"), "generate", "--model", model, "--prompt", "x");
        FAILS(2, SAYS("tokenizer.json"), "eval", "--model", model, "--text", text);
        assert_int_equal(unlink(path), 0);
    }
    SUCCEEDS("eval", "--model", model, "--text", text);
}

/* Nothing to tell in it; under sanitizers nothing is copied from nowhere either. */
TEST(test_an_empty_text_is_refused) {
    const char *path = scratch_path("empty");
    file_write(path, "", 0);
    FAILS(2, SAYS("two tokens"), "eval", "--model", model, "--text", path);
}

/* Whatever is drafted, by whom, the text is what it is without; a conversation too, whose answers end at a stop
 * string in the middle of a step. */
TEST(test_speculation_leaves_the_text_as_it_is) {
    char out[2][512];
    const char *other = scratch_path("draft");
    SUCCEEDS("init", "--config", scratch_path("tiny.config"), "--out", other, "--seed", "2", "-o",
             "N_LAYER=1");
    const char *const ways[] = {"ngram", model, other};
    for (int i = 0; i < 2; i++) {
        const char *heat = i ? "0.7" : "0";
        json_t *want = run_json(RUN("generate", "--model", model, "--prompt", "abababab", "--json",
                                    "--samples", "2", "--temperature", heat, "--max-tokens", "50"));
        for (size_t w = 0; w < 3; w++) {
            WEFT_AUTO_DECREF json_t *got = run_json(
                RUN("generate", "--model", model, "--prompt", "abababab", "--json", "--samples",
                    "2", "--temperature", heat, "--max-tokens", "50", "--speculate", ways[w]));
            assert_true(
                json_equal(json_object_get(got, "samples"), json_object_get(want, "samples")));
            json_int_t drafted = json_integer_value(json_object_get(got, "drafted_tokens"));
            json_int_t right = json_integer_value(json_object_get(got, "accepted_tokens"));
            assert_true(drafted > 0 || (w == 0 && i)); /* drawn texts do not repeat themselves */
            assert_true(w != 1 || drafted == right);
        }
        assert_null(json_object_get(want, "drafted_tokens"));
        json_decref(want);
    }
    for (int i = 0; i < 2; i++) {
        snprintf(out[i], sizeof out[i], "%s", scratch_path("said-%d", i));
        shell_succeeds("printf 'abab\\nwho\\n' | '%s' generate -i --model '%s' --temperature 0.9 "
                       "--seed 4 --stop e --stop a --stop o --max-tokens 25 %s '%s' >'%s'",
                       command_program(), model, i ? "--speculate" : "--model", model, out[i]);
    }
    file_expect_equal(out[0], out[1]);
}

/* One line, with the folder's name. */
TEST(test_a_draft_model_that_does_not_fit_is_refused) {
    const char *config = scratch_path("tiny.config");
    const char *text = scratch_path("text");
    const char *tokens = scratch_path("tokenizer.json");
    const char *own = format_text("TOKENIZER=%s", tokens);
    file_write(text, "to be or not to be", 18);
    SUCCEEDS("tokenizer", "train", "--vocab", "257", "--out", tokens, text);
    SUCCEEDS("init", "--config", config, "--out", scratch_path("wide"), "-o", "VOCAB_SIZE=257");
    SUCCEEDS("init", "--config", config, "--out", scratch_path("learned"), "-o", "VOCAB_SIZE=257",
             "-o", own);
    SUCCEEDS("init", "--config", config, "--out", scratch_path("cut"));
    file_write(scratch_path("cut/model.safetensors"), "x", 1);
    FAILS(2, SAYS("257", "256", "vocabulary"), "generate", "--model", model, "--speculate",
          scratch_path("wide"));
    FAILS(2, SAYS("--speculate", "learned", "tokenizer"), "generate", "--model",
          scratch_path("wide"), "--prompt", "a", "--speculate", scratch_path("learned"));
    const char *const broken[] = {"cut", "nowhere", "text"};
    for (size_t i = 0; i < 3; i++) {
        const char *path = scratch_path("%s", broken[i]);
        FAILS(2, SAYS("--speculate", broken[i]), "generate", "--model", model, "--prompt", "a",
              "--speculate", path);
        FAILS(2, SAYS("--speculate", broken[i]), "serve", "--model", model, "--port", "0",
              "--speculate", path);
    }
}

TEST(test_wrong_use_is_one_line) {
    FAILS(2, SAYS("--model"), "generate");
    FAILS(2, SAYS("nowhere"), "generate", "--model", "nowhere", "--prompt", "x");
    FAILS(2, SAYS("--prompt", "--file"), "generate", "--model", model, "--prompt", "x", "--file",
          "y");
    FAILS(2, SAYS("nowhere"), "generate", "--model", model, "--file", "nowhere");
    FAILS(2, SAYS("--stop"), "generate", "--model", model, "--prompt", "x", "--stop", "");
    FAILS(2, SAYS("--logprobs", "--json"), "generate", "--model", model, "--prompt", "x",
          "--logprobs", "2");
    FAILS(2, SAYS("--file"), "generate", "--model", model, "-i", "--file", "-");
    FAILS(2, SAYS("--samples"), "generate", "--model", model, "-i", "--samples", "2");
    FAILS(2, SAYS("weft generate: the prompt has 1 tokens", "slide"), "generate", "--model", model,
          "--prompt", "x", "--context", "1");
    FAILS(2, SAYS("--temperature"), "generate", "--model", model, "--temperature", "hot");
    FAILS(2, SAYS("CAUSAL"), "generate", "--model", model, "--prompt", "x", "-o", "CAUSAL=n");
    FAILS(2, SAYS("WEIGHT_DTYPE"), "generate", "--model", model, "--prompt", "x", "-o",
          "WEIGHT_DTYPE=f16");
}

RUN_TESTS(make_model, scratch_teardown)
