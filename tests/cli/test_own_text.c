/* The way in: a text alone is enough to train, and a run's folder is enough to go on with it, to
 * generate from it and to evaluate it. */
#include "support/command.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SENTENCES = 400, LONG_SENTENCES = 9000 };

/* A text with some order in it. */
static const char *write_text(const char *name, int sentences) {
    static const char *const who[] = {"The miller", "Her brother", "A sailor", "The old cat"};
    static const char *const does[] = {"reads", "forgets", "carries", "paints"};
    const char *path = scratch_path("%s", name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < sentences; i++)
        fprintf(file, "%s %s the %d letters.\n", who[i % 4], does[i / 3 % 4], i % 7);
    fclose(file);
    return path;
}

TEST(test_a_text_is_enough) {
    const char *text = write_text("book.txt", SENTENCES);
    const char *out = scratch_path("runs/a book");
    command_result r = command_run(RUN("train", "--text", text, "--minutes", "1", "--out", out,
                                       "--device", "cpu", "--threads", "1", "-o", "STEPS=20"));
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.err, "bits per byte"));
    static const char *const steps[] = {"generate --model", "serve --model", "inspect"};
    for (int i = 0; i < 3; i++) { /* three lines that can be copied */
        const char *next = format_text("weft %s '%s'", steps[i], out);
        if (!strstr(r.err, next)) fail_msg("no '%s' in %s", next, r.err);
    }
    assert_non_null(strstr(r.err, "The miller")); /* a sample began so */
    command_free(&r);
    assert_int_equal(access(scratch_path("runs/a book/data/val_000000.bin"), R_OK), 0);
    assert_int_equal(access(scratch_path("runs/a book/config"), R_OK), 0);
    size_t n;
    WEFT_AUTO_FREE char *log = file_read(scratch_path("runs/a book/log"), &n);
    assert_non_null(strstr(log, " parameters on "));
    assert_non_null(strstr(log, "val_loss"));
    assert_null(strstr(log, "\033"));
    char *made = OUTPUT("generate", "--model", out, "--prompt", "The", "--max-tokens", "4");
    free(made);
    FAILS(2, SAYS("has a run in it already"), "train", "--text", text, "--out", out);
}

/* The same run by parts: perplexity and bits per byte follow from the loss, by their definitions. */
TEST(test_a_run_is_evaluated_on_text) {
    json_t *e = command_json(RUN("eval", "--json", "--model", scratch_path("runs/a book"), "--text",
                                 scratch_path("book.txt")));
    double loss = real_of(e, "cross_entropy"), bytes = 0;
    size_t count;
    WEFT_AUTO_FREE char *text = file_read(scratch_path("book.txt"), &count);
    bytes = (double)(count - 1); /* by bytes; the first one is told by nothing */
    assert_int_equal(real_of(e, "tokens"), count - 1);
    assert_true(fabs(real_of(e, "perplexity") / exp(loss) - 1) < 1e-9);
    double bits = loss * real_of(e, "tokens") / (log(2) * bytes);
    assert_true(fabs(real_of(e, "bits_per_byte") / bits - 1) < 1e-9);
    assert_true(bits < 8); /* it learned something */
    json_decref(e);
    FAILS(2, SAYS("--text", "--tokens"), "eval", "--model", scratch_path("runs/a book"), "--text",
          "x", "--tokens", "y");
}

TEST(test_resuming_needs_the_folder_alone) {
    const char *out = scratch_path("runs/a book");
    json_t *before = json_load_file(scratch_path("runs/a book/result.json"), 0, NULL);
    assert_non_null(before);
    const char *iters = format_text("STEPS=%d", (int)real_of(before, "step") + 3);
    SUCCEEDS("train", "--resume", "--out", out, "-o", iters);
    json_t *after = json_load_file(scratch_path("runs/a book/result.json"), 0, NULL);
    assert_non_null(after);
    assert_int_equal(real_of(after, "step"), real_of(before, "step") + 3);
    json_decref(before);
    json_decref(after);
    FAILS(2, SAYS("config"), "train", "--resume", "--out", scratch_path("nothing"));
    FAILS(2, SAYS("--text"), "train");
}

/* The dataset lies in the run's folder, and goes where it goes. */
TEST(test_a_run_can_be_moved) {
    json_t *before = json_load_file(scratch_path("runs/a book/result.json"), 0, NULL);
    assert_non_null(before);
    const char *old = scratch_path("runs/a book");
    const char *new = scratch_path("elsewhere");
    assert_int_equal(rename(old, new), 0);
    char *config = file_read(scratch_path("elsewhere/config"), NULL), iters[64];
    assert_non_null(strstr(config, "CONFIG_DATASET=\"data\"\n"));
    free(config);
    snprintf(iters, sizeof iters, "STEPS=%d", (int)real_of(before, "step") + 3);
    SUCCEEDS("train", "--resume", "--out", new, "-o", iters);
    WEFT_AUTO_DECREF json_t *after = json_load_file(scratch_path("elsewhere/result.json"), 0, NULL);
    assert_int_equal(real_of(after, "step"), real_of(before, "step") + 3);
    json_decref(before);
    /* Another text in its place is another dataset, and so is none. */
    FAILS(2, SAYS("CONFIG_DATASET"), "train", "--resume", "--out", new, "-o", "DATASET=embedded");
    shell_succeeds("cp '%s/data/train_000000.bin' '%s/data/val_000000.bin'", new, new);
    FAILS(2, SAYS("data"), "train", "--resume", "--out", new);
}

/* A longer text has a tokenizer of its own; what its tokens stand for is counted in bytes. */
TEST(test_a_longer_text_has_a_tokenizer) {
    const char *text = write_text("long.txt", LONG_SENTENCES);
    const char *out = scratch_path("runs/long");
    SUCCEEDS("train", "--text", text, "--minutes", "1", "--out", out, "-o", "STEPS=3", "-o",
             "SAMPLE_PROMPT=");
    WEFT_AUTO_FREE char *config = file_read(format_text("%s/config", out), NULL);
    assert_non_null(strstr(config, "CONFIG_OPTIMIZER=\"muon\"\n"));
    json_t *e = command_json(RUN("eval", "--json", "--model", out, "--text", text));
    size_t count;
    free(file_read(text, &count));
    double tokens = real_of(e, "tokens"), bytes = (double)count;
    assert_true(tokens < bytes / 2);
    double bits = real_of(e, "cross_entropy") * tokens / (log(2) * bytes);
    assert_true(fabs(real_of(e, "bits_per_byte") / bits - 1) < 1e-9);
    json_decref(e);
    /* From the run's folder: its best. */
    SUCCEEDS("train", "--config", format_text("%s/config", out), "--from", out, "--out",
             scratch_path("more"), "-o", "STEPS=1", "-o", "SAMPLE_PROMPT=");
}

static double number_behind(const char *text, const char *word) {
    const char *at = strstr(text, word);
    if (!at) fail_msg("no %s in:\n%s", word, text);
    return atof(at + strlen(word));
}

/* However much time there is, a model reads a short text 40 times, and of a longer one 20 tokens for each of its
 * parameters. */
TEST(test_more_time_than_the_text_is_good_for) {
    static const struct {
        int sentences;
        bool by_passes;
    } cases[] = {{SENTENCES, true}, {4400, false}};
    for (int i = 0; i < 2; i++) {
        const char *text = write_text("some.txt", cases[i].sentences);
        const char *out = scratch_path("runs/time%d", i);
        size_t bytes, room;
        free(file_read(text, &bytes));
        command_result r =
            command_run(RUN("train", "--text", text, "--minutes", "1000", "--out", out, "--device",
                            "cpu", "-o", "STEPS=1", "-o", "SAMPLE_PROMPT="));
        assert_int_equal(r.status, 0);
        double steps = number_behind(r.err, " tokens of context; "); /* those that it chose */
        command_free(&r);
        const char *path = format_text("%s/config", out);
        WEFT_AUTO_FREE char *config = file_read(path, &room);
        json_t *plan = command_json(RUN("plan", "--config", path, "--json"));
        double step =
            number_behind(config, "CONFIG_BATCH_SIZE=") * number_behind(config, "CONFIG_CONTEXT=");
        double tokens = steps * step;
        /* A twentieth is held out, in whole lines of less than 50 bytes. */
        double most =
            cases[i].by_passes ? 40 * (0.95 * (double)bytes) : 20 * real_of(plan, "parameters");
        if (tokens > most + 40 * 50 || tokens < most - step - 40 * 50)
            fail_msg("%d sentences: %.0f tokens in steps of %.0f, and not %.0f", cases[i].sentences,
                     tokens, step, most);
        json_decref(plan);
    }
}

TEST(test_what_is_wrong_is_said) {
    const char *tiny = scratch_path("tiny.txt");
    file_write(tiny, "too short", 9);
    FAILS(2, SAYS("no-such-text"), "train", "--text", "no-such-text");
    FAILS(2, SAYS("--config"), "train", "--text", tiny, "--config", "defconfigs/demo");
    FAILS(2, SAYS("--minutes"), "train", "--text", tiny, "--minutes", "0");
    FAILS(2, SAYS("tiny.txt", "too little"), "train", "--text", tiny, "--out", scratch_path("t"));
    /* and what was refused is no run that waits */
    FAILS(2, SAYS("no run"), "runs", scratch_path("t"));
    /* unless one was there, which a kill left before its first line: that stays, and takes a text again */
    shell_succeeds("cd '%s' && : > metrics.jsonl && : > config", scratch_path("t"));
    for (int i = 0; i < 2; i++)
        FAILS(2, SAYS("tiny.txt", "too little"), "train", "--text", tiny, "--out",
              scratch_path("t"));
}

RUN_TESTS(scratch_setup, scratch_teardown)
