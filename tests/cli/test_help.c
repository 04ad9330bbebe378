/* What the program says of itself, and how it answers a slip of the finger. */
#include "config/config.h"
#include "support/command.h"
#include "support/test.h"
#include "weft/weft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static const char *const commands[] = {"help",  "new",      "plan",   "init",     "train",
                                       "eval",  "generate", "serve",  "tokenize", "tokenizer",
                                       "bench", "report",   "verify", "version"};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void expect_text(const char *const *arguments, const char *word) {
    char *out;
    command_succeeds(arguments, &out);
    if (!strstr(out, word)) fail_msg("'%s' is not in: %s", word, out);
    free(out);
}

TEST(test_help_lists_every_command) {
    for (int i = 0; i < COMMANDS; i++) {
        char line[32];
        snprintf(line, sizeof line, "\n  %s ", commands[i]);
        expect_text(RUN("help"), line);
        expect_text(RUN("--help"), line);
        expect_text(RUN("-h"), line);
    }
}

TEST(test_commands_are_in_groups) {
    static const char *const groups[][2] = {{"\nStart\n", "\n  new "},
                                            {"\nTrain\n", "\n  train "},
                                            {"\nLook\n", "\n  generate "},
                                            {"\nCompare\n", "\n  study "},
                                            {"\nTools\n", "\n  bench "}};
    char *list, *at;
    command_succeeds(RUN("help"), &list);
    at = list;
    for (int i = 0; i < 10; i++) {
        at = strstr(at, groups[i / 2][i % 2]);
        if (!at) fail_msg("'%s' is not there, or too early: %s", groups[i / 2][i % 2], list);
    }
    free(list);
}

TEST(test_every_command_has_help) {
    char *list;
    int found = 0;
    command_succeeds(RUN("help"), &list);
    for (const char *at = list; (at = strstr(at, "\n  ")); found++) {
        char name[32], usage[64];
        at += 3;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, " "), at);
        snprintf(usage, sizeof usage, "usage: weft %s ", name);
        expect_text(RUN("help", name), usage);
        snprintf(usage, sizeof usage, "\nexample: weft %s", name);
        expect_text(RUN("help", name), usage);
        snprintf(usage, sizeof usage, "usage: weft %s ", name);
        expect_text(RUN(name, "--help"), usage);
        expect_text(RUN(name, "-h"), usage);
    }
    assert_true(found >= COMMANDS);
    free(list);
    expect_text(RUN("eval", "--tokens", "x", "--help"), "--targets FILE");
}

/* A terminal of the usual width shows every help text without breaking its lines. */
TEST(test_help_fits_eighty_columns) {
    for (int i = 0; i <= COMMANDS; i++) {
        char *out;
        command_succeeds(RUN("help", i < COMMANDS ? commands[i] : "config"), &out);
        for (char *line = out, *next; line; line = next) {
            next = strchr(line, '\n');
            if (next) *next++ = 0;
            int columns = 0;
            for (const char *c = line; *c; c++)
                columns += ((unsigned char)*c & 0xc0) != 0x80;
            if (columns > 79) fail_msg("%d columns: %s", columns, line);
        }
        free(out);
    }
}

/* Every option that the help of a command shows is one that the command takes. */
TEST(test_help_shows_options_that_are_taken) {
    for (int i = 1; i < COMMANDS - 1; i++) {
        char *out;
        command_succeeds(RUN("help", commands[i]), &out);
        for (const char *at = out; (at = strstr(at, "\n  --"));) {
            char option[32];
            at += 3;
            snprintf(option, sizeof option, "%.*s", (int)strcspn(at, " \n"), at);
            /* What follows is no option, so that nothing is done, whether it takes a value or not. */
            command_result r = command_run(RUN(commands[i], option, "--none", "--none"));
            char unknown[64];
            snprintf(unknown, sizeof unknown, "unknown option '%s'", option);
            if (strstr(r.err, unknown)) fail_msg("weft %s: %s", commands[i], r.err);
            command_free(&r);
        }
        free(out);
    }
}

TEST(test_help_config_lists_every_option) {
    char *text, *kconfig;
    command_succeeds(RUN("help", "config"), &text);
    command_succeeds(RUN("help", "config", "--kconfig"), &kconfig);
    int count;
    const weft_option *options = weft_options(&count);
    for (int i = 0; i < count; i++) {
        char line[96];
        snprintf(line, sizeof line, "  CONFIG_%s=", options[i].key);
        if (!strstr(text, line)) fail_msg("'%s' is not in 'weft help config'", line);
        snprintf(line, sizeof line, "\nconfig %s\n", options[i].key);
        if (!strstr(kconfig, line)) fail_msg("'%s' is not in the Kconfig file", line);
    }
    free(text);
    free(kconfig);
    command_fails(2, RUN("help", "config", "--json"), SAYS("--kconfig"));
    command_fails(2, RUN("help", "config", "no-such-word"), SAYS("no-such-word"));
    command_succeeds(RUN("help", "config", "CONFIG_ENABLE_RA_MLA"), &text);
    assert_non_null(strstr(text, "use CONFIG_ATTENTION=\"mla\""));
    free(text);
    command_fails(2, RUN("help", "plan", "init"), SAYS("one command"));
}

/* By its name, in either case, with CONFIG_ or by a name that it had before. */
TEST(test_help_explains_an_option) {
    static const char *const names[] = {"STEPS", "steps", "CONFIG_STEPS", "GPT2_MAX_ITERS",
                                        "CONFIG_GPT2_MAX_ITERS"};
    const weft_option *steps = weft_option_find("STEPS");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *text, range[96];
        command_succeeds(RUN("help", names[i]), &text);
        snprintf(range, sizeof range, "A whole number from %.0f to %.0f.", steps->min, steps->max);
        assert_true(strncmp(text, "CONFIG_STEPS=", 13) == 0);
        assert_non_null(strstr(text, steps->help));
        assert_non_null(strstr(text, range));
        assert_non_null(strstr(text, steps->fallback));
        assert_non_null(strstr(text, "CONFIG_GPT2_MAX_ITERS, its old name"));
        assert_null(strstr(text, "CONFIG_N_LAYER"));
        free(text);
    }
    expect_text(RUN("help", "ATTENTION"), "One of: dot w2");
    expect_text(RUN("help", "RA_MLA_LATENT_DIM"), "Matters where ATTENTION = \"mla\"");
    expect_text(RUN("help", "RECOMPUTE"), "y or n.");
    expect_text(RUN("help", "STUDY_QUESTION"), "The default is empty.");
    expect_text(RUN("help", "NUM_EPOCHS"), "use CONFIG_STEPS");
    command_fails(2, RUN("help", "N_LAYR"), SAYS("command or option", "'N_LAYER'"));
}

/* What git says; in an archive of `make dist` what .commit has; "unknown" where there is neither. */
TEST(test_version_names_the_commit) {
    char head[64] = "unknown";
    const char *ask = "if [ -e .git ]; then git rev-parse HEAD; else cat .commit; fi 2>/dev/null";
    FILE *git = popen(ask, "r"); /* NOLINT */
    assert_non_null(git);
    if (fgets(head, sizeof head, git)) head[strcspn(head, "\n")] = '\0';
    pclose(git);
    json_t *object = command_json(RUN("version", "--json"));
    const char *commit = json_string_value(json_object_get(object, "commit"));
    assert_non_null(commit);
    const char *rest = commit + strlen(head);
    if (strncmp(commit, head, strlen(head)) != 0 || (*rest && strcmp(rest, "-changed") != 0))
        fail_msg("'%s' is built in, but HEAD is %s", commit, head);
    expect_text(RUN("version"), commit);
    json_decref(object);
}

TEST(test_version_is_the_headers) {
    char line[64];
    snprintf(line, sizeof line, "weft %s\n", weft_version());
    expect_text(RUN("version"), line);
    expect_text(RUN("--version"), line);
    json_t *object = command_json(RUN("version", "--json"));
    assert_string_equal(json_string_value(json_object_get(object, "version")), weft_version());
    assert_true(json_is_boolean(json_object_get(object, "cuda")));
    json_decref(object);
    command_fails(2, RUN("version", "--jsno"), SAYS("--jsno", "--json"));
}

TEST(test_an_unknown_command_names_the_nearest) {
    command_fails(2, RUN("pln"), SAYS("'pln'", "did you mean 'plan'?"));
    command_fails(2, RUN("evaluate"), SAYS("did you mean 'eval'?"));
    command_fails(2, RUN("help", "verfy"), SAYS("did you mean 'verify'?"));
    command_fails(2, RUN("xyzzy-and-more"), SAYS("'weft help' lists them"));
    command_fails(2, RUN(""), SAYS("unknown command ''"));
    command_result r = command_run((const char *const[]){NULL});
    assert_int_equal(r.status, 2);
    assert_string_equal(r.out, "");
    assert_non_null(strstr(r.err, "usage: weft COMMAND"));
    command_free(&r);
}

TEST(test_an_unknown_option_names_the_nearest) {
    command_fails(2, RUN("plan", "--josn"),
                  SAYS("weft plan:", "'--josn'", "did you mean '--json'?"));
    command_fails(2, RUN("plan", "--confg=x"), SAYS("'--confg'", "did you mean '--config'?"));
    command_fails(2, RUN("init", "--outt", "x"), SAYS("did you mean '--out'?"));
    command_fails(2, RUN("eval", "--token", "x"), SAYS("did you mean '--tokens'?"));
    command_fails(2, RUN("plan", "--qqqqqqqqqqqqqqqqqqqqqqqqqq"),
                  SAYS("'weft help plan' lists them"));
    command_fails(2, RUN("plan", "-x"), SAYS("unknown option '-x'"));
    char *longest = calloc(1, 100001);
    assert_non_null(longest);
    memset(longest, '-', 100000);
    command_fails(2, RUN("plan", longest), SAYS("unknown option"));
    free(longest);
}

TEST(test_options_need_their_values) {
    command_fails(2, RUN("plan", "-o"), SAYS("-o needs a value"));
    command_fails(2, RUN("plan", "--config"), SAYS("--config needs a value"));
    command_fails(2, RUN("plan", "--config="), SAYS("--config needs a value"));
    command_fails(2, RUN("plan", "--config", ""), SAYS("--config needs a value"));
    command_fails(2, RUN("plan", "--json=yes"), SAYS("--json takes no value"));
    command_fails(2, RUN("plan", "word"),
                  SAYS("unexpected argument 'word'", "see 'weft help plan'"));
    command_fails(2, RUN("generate", "runs/demo"),
                  SAYS("unexpected argument", "did you mean '--model runs/demo'?"));
    command_fails(2, RUN("train", "demo"), SAYS("did you mean '--config demo'?"));
    command_fails(2, RUN("plan", "-o", "LEARNING_RATE", "1e-3"),
                  SAYS("did you mean '-o LEARNING_RATE=1e-3'?"));
    command_fails(2, RUN("init"), SAYS("--out is needed"));
    command_fails(2, RUN("eval", "--model", "x"), SAYS("--tokens is needed"));
    command_fails(2, RUN("eval", "--tokens", "x"), SAYS("--model is needed"));
    command_fails(2, RUN("plan", "-o", "N_LAYER"), SAYS("'N_LAYER' must be KEY=VALUE"));
    command_fails(2, RUN("plan", "-o", "=3"), SAYS("KEY=VALUE"));
    command_fails(2, RUN("plan", "-o", ""), SAYS("KEY=VALUE"));
}

TEST(test_a_config_that_is_not_there_names_the_nearest_study) {
    command_fails(2, RUN("plan", "--config", "dmo"),
                  SAYS("dmo: No such file", "did you mean 'demo'?"));
    command_fails(2, RUN("study", "--config", "qqqqqqqqqqqqqqqq"),
                  SAYS("qqqqqqqqqqqqqqqq: No such file, and no study of that name"));
    command_fails(2, RUN("plan", "--config", "./demo"), SAYS("./demo: No such file"));
    command_succeeds(RUN("plan", "--config", "demo"), NULL);
}

TEST(test_a_model_that_is_none_says_what_it_is) {
    char command[4096];
    snprintf(command, sizeof command, "mkdir -p '%s' && touch '%s/runs.db'", scratch_path("study"),
             scratch_path("study"));
    assert_int_equal(system(command), 0);
    command_fails(2, RUN("generate", "--model", scratch_path("study"), "--prompt", "x"),
                  SAYS("is a study's folder", "study/runs"));
    command_fails(2, RUN("eval", "--model", "nowhere", "--text", "README.md"),
                  SAYS("nowhere: no checkpoint"));
    command_fails(2, RUN("eval", "--model", "README.md", "--text", "README.md"),
                  SAYS("README.md is a file"));
    command_fails(2, RUN("convert", "--model", "nowhere/gpt2", "--out", scratch_path("out")),
                  SAYS("nowhere/gpt2: no model", "hf download"));
}

TEST(test_a_run_that_is_not_there_cannot_be_continued) {
    command_fails(2, RUN("train", "--resume", "--out", "nowhere"),
                  SAYS("nowhere: no run to continue", "--config FILE"));
}

/* An option that would change nothing is no option. */
TEST(test_options_of_other_commands_are_refused) {
    command_fails(2, RUN("verify", "--config", "demo"), SAYS("unknown option '--config'"));
    command_fails(2, RUN("verify", "-o", "N_LAYER=2"), SAYS("unknown option '-o'"));
    command_fails(2, RUN("report", "x", "--seed", "1"), SAYS("unknown option '--seed'"));
    command_fails(2, RUN("report", "x", "--device", "cpu"), SAYS("unknown option '--device'"));
    command_fails(2, RUN("tokenize", "--out", "x", "--variant", "1", "y"), SAYS("'--variant'"));
    command_fails(2,
                  RUN("tokenizer", "train", "--vocab", "300", "--out", "x", "--threads", "2", "y"),
                  SAYS("'--threads'"));
    command_fails(2, RUN("init", "--out", "x", "--json"), SAYS("unknown option '--json'"));
    command_fails(2, RUN("convert", "--model", "x", "--out", "y", "--threads", "2"),
                  SAYS("unknown option '--threads'"));
}

TEST(test_numbers_are_held_to_their_range) {
    static const char *const bad[] = {"-1", "99999", "two", "1.5", "3x", "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        command_fails(2, RUN("plan", "--threads", bad[i]), SAYS("--threads", bad[i], "0 to 1024"));
        command_fails(2, RUN("plan", "--variant", bad[i]), SAYS("--variant", bad[i], "0 to 5"));
        command_fails(2, RUN("plan", "--ra-mla-ablation-step", bad[i]), SAYS(bad[i], "0 to 5"));
    }
    command_fails(2, RUN("init", "--out", "x", "--seed", "-1"), SAYS("--seed", "-1"));
    command_fails(2, RUN("plan", "--dtype", "f16"), SAYS("--dtype", "f16", "f32 bf16 f64"));
    command_fails(2, RUN("plan", "--device", "gpu"), SAYS("--device", "gpu", "cuda"));
    command_fails(2, RUN("plan", "-o", "CONTEXT=0"), SAYS("1 to 1048576"));
    command_succeeds(RUN("plan", "--threads", "0", "-o", "N_LAYER=1"), NULL);
}

/* Output that nobody can take is work that failed. */
TEST(test_a_full_disk_is_an_error) {
    const char *program = getenv("WEFT");
    char line[1024];
    snprintf(line, sizeof line, "%s help >/dev/full 2>/dev/null", program ? program : "build/weft");
    int status = system(line);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
}

RUN_TESTS(scratch_setup, scratch_teardown)
