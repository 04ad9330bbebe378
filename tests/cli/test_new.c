/* weft new: the study that it writes is the one that was asked for and can be run; on a terminal it asks. */
#include "support/command.h"
#include "support/test.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SENTENCES = 300, SCREEN_ROOM = 8192 };

static const char *write_text(const char *name) {
    const char *path = scratch_path("%s", name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < SENTENCES; i++)
        fprintf(file, "The miller reads the %d letters.\n", i % 7);
    fclose(file);
    return path;
}

static json_t *variant_of(const json_t *list, size_t i) {
    return json_array_get(json_object_get(list, "steps"), i);
}

static void expect_word(const json_t *object, const char *key, const char *word) {
    assert_string_equal(json_string_value(json_object_get(object, key)), word);
}

/* A part alone says which option it sets, and goes on top of the first one. */
TEST(test_a_study_is_written) {
    const char *out = scratch_path("mine");
    const char *file = format_text("%s/study", out);
    WEFT_AUTO_DECREF json_t *list = command_json(RUN(
        "new", "--json", "--text", write_text("book.txt"), "--compare", "swiglu, W2,N_LAYER=1,mla",
        "--seeds", "3", "--minutes", "0.5", "--device", "cpu", "--threads", "1", "--out", out));
    static const char *const names[] = {"swiglu", "w2", "n-layer-1", "mla"};
    static const char *const titles[] = {"SwiGLU", "W2 attention", "N_LAYER=1", "MLA"};
    static const char *const sets[] = {"", "ATTENTION=w2", "N_LAYER=1", "ATTENTION=mla"};
    for (size_t i = 0; i < 4; i++) {
        const json_t *v = variant_of(list, i), *config = json_object_get(v, "config");
        expect_word(v, "variant", names[i]);
        expect_word(v, "title", titles[i]);
        expect_word(v, "overrides", sets[i]);
        expect_word(config, "ffn", "swiglu");
        assert_int_equal(4 * integer_of(config, "ra_mla_latent_dim"), integer_of(config, "n_embd"));
        if (i > 0) expect_word(v, "baseline", "swiglu");
    }
    assert_int_equal(integer_of(list, "runs"), 12);
    /* What is shown with 80% power is so many times the spread that is taken, 0.02. */
    const json_t *power = json_object_get(list, "power");
    double times = json_number_value(json_object_get(power, "difference_in_spreads"));
    double difference = json_number_value(json_object_get(power, "difference"));
    assert_true(times > 0 && fabs(difference / times - 0.02) < 1e-9);
    /* It stays where it is and is run from anywhere: the dataset has its whole path. */
    char *text = file_read(file, NULL);
    assert_non_null(strstr(text, "CONFIG_DATASET=\"/"));
    assert_null(strstr(text, "CONFIG_ATTENTION"));
    free(text);
    /* Without --out it stays in its folder, whose name it has. */
    SUCCEEDS("study", "--config", file, "--variants", "swiglu,w2", "-o", "STEPS=2", "-o",
             "WARMUP_STEPS=0", "-o", "EVAL_SAMPLES=1", "-o", "SAMPLE_PROMPT=", "-o",
             "STUDY_SEEDS=2", "--threads", "1");
    assert_int_equal(access(scratch_path("mine/report.html"), R_OK), 0);
    text = file_read(scratch_path("mine/report.md"), NULL);
    assert_memory_equal(text, "# Study mine\n", 13);
    /* The other variants wait: the report has the command that runs them. */
    assert_non_null(strstr(text, "/mine/study.config --out "));
    free(text);
}

/* By measuring, steps are taken off until the runs fit into the time: the least that would be planned otherwise,
 * 50 steps, take longer than what these four runs have. The parts that are compared are the default's. */
TEST(test_the_time_is_enough) {
    WEFT_AUTO_DECREF json_t *list = command_json(
        RUN("new", "--json", "--minutes", "0.01", "--seeds", "2", "--equal", "parameters",
            "--device", "cpu", "--threads", "1", "--out", scratch_path("short")));
    const json_t *dot = variant_of(list, 0), *w2 = variant_of(list, 1);
    expect_word(dot, "variant", "dot");
    expect_word(w2, "variant", "w2");
    assert_true(integer_of(dot, "iters") < 50);
    assert_int_equal(integer_of(w2, "iters"), integer_of(dot, "iters"));
    /* W2 has more of them, but for a narrower feed-forward. */
    double size = (double)integer_of(w2, "parameters") / (double)integer_of(dot, "parameters");
    assert_true(fabs(size - 1) < 0.02);
    const json_t *config = json_object_get(w2, "config");
    int64_t width = integer_of(config, "n_ffn"); /* 0: four times the model's */
    assert_true(width > 0 && width < 4 * integer_of(config, "n_embd"));
    double seconds = json_number_value(json_object_get(list, "seconds"));
    assert_true(seconds > 0 && (seconds <= 0.45 || integer_of(dot, "iters") == 1));
    assert_int_not_equal(access(scratch_path("short/measure"), F_OK), 0);
}

/* The answers wait on the terminal: two wrong ones are asked for again, empty ones are the defaults. */
TEST(test_a_terminal_is_asked) {
    const char *text = write_text("asked.txt"), *out = scratch_path("asked");
    char answers[1024], shown[SCREEN_ROOM] = "", file[512];
    int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK), end = -1;
    if (terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0)
        end = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    if (end < 0) {
        printf("this system gives no terminal\n");
        skip();
    }
    int n = snprintf(answers, sizeof answers, "no-such.txt\n%s\ndot,dott\ndot,mla\n\nmany\n4\n%s\n",
                     text, out);
    assert_int_equal(write(terminal, answers, (size_t)n), n);
    shell_succeeds("$WEFT new --device cpu --threads 1 <%s 2>%s >%s", ptsname(terminal),
                   ptsname(terminal), scratch_path("listed"));
    close(end); /* then what was written is read to its end */
    assert_int_equal(fcntl(terminal, F_SETFL, 0), 0);
    ssize_t got;
    for (size_t at = 0; (got = read(terminal, shown + at, sizeof shown - 1 - at)) > 0;)
        at += (size_t)got;
    assert_non_null(strstr(shown, "Text to train on"));
    assert_non_null(strstr(shown, "did you mean 'dot'?"));
    assert_non_null(strstr(shown, "'many' must be a whole number"));
    assert_non_null(strstr(shown, "asked-study]")); /* the folder that it would take */
    assert_non_null(strstr(shown, " study --config "));
    close(terminal);
    snprintf(file, sizeof file, "%s/study", out);
    char *listed = file_read(scratch_path("listed"), NULL);
    assert_non_null(strstr(listed, "8 runs"));
    assert_non_null(strstr(listed, "With 4 seeds, a true difference of"));
    assert_non_null(strstr(listed, " baseline\n"));
    assert_non_null(strstr(listed, " here, one run after the other"));
    assert_non_null(strstr(listed, " times the parameters of the smallest; --equal parameters"));
    free(listed);
    listed = file_read(file, NULL);
    assert_non_null(strstr(listed, "mla 'MLA': ATTENTION=mla"));
    free(listed);
}

TEST(test_what_is_wrong_is_said) {
    const char *out = scratch_path("wrong");
    FAILS(2, SAYS("--compare", "two"), "new", "--compare", "dot", "--out", out);
    FAILS(2, SAYS("ropee", "'rope'"), "new", "--compare", "dot,ropee", "--out", out);
    FAILS(2, SAYS("dot", "twice"), "new", "--compare", "dot,dot", "--out", out);
    FAILS(2, SAYS("CONFIG_N_LAYR", "CONFIG_N_LAYER"), "new", "--compare", "dot,N_LAYR=3", "--out",
          out);
    FAILS(2, SAYS("--seeds"), "new", "--seeds", "1", "--out", out);
    FAILS(2, SAYS("--minutes"), "new", "--minutes", "0", "--out", out);
    FAILS(2, SAYS("--equal", "parameters"), "new", "--equal", "parameter", "--out", out);
    FAILS(2, SAYS("no-such-text"), "new", "--text", "no-such-text", "--out", out);
    const char *tiny = scratch_path("tiny.txt");
    file_write(tiny, "too short", 9);
    FAILS(2, SAYS("tiny.txt", "too little"), "new", "--text", tiny, "--out", out);
    FAILS(2, SAYS("'n-head-3' cannot be built"), "new", "--compare", "dot,N_HEAD=3", "--minutes",
          "0.01", "--out", out);
    assert_int_not_equal(access(out, F_OK), 0); /* nothing was made, or it is gone */
    FAILS(2, SAYS("asked", "already", "--out"), "new", "--out", scratch_path("asked"));
}

RUN_TESTS(scratch_setup, scratch_teardown)
