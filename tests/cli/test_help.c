/* What the program says of itself, and how it answers a slip of the finger. */
#include "config/config.h"
#include "support/command.h"
#include "support/snapshot.h"
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
    WEFT_AUTO_FREE char *out = command_output(arguments);
    if (!strstr(out, word)) fail_msg("'%s' is not in: %s", word, out);
}

TEST(test_help_lists_every_command) {
    for (int i = 0; i < COMMANDS; i++) {
        const char *line = format_text("\n  %s ", commands[i]);
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
    char *at;
    WEFT_AUTO_FREE char *list = OUTPUT("help");
    at = list;
    for (int i = 0; i < 10; i++) {
        at = strstr(at, groups[i / 2][i % 2]);
        if (!at) fail_msg("'%s' is not there, or too early: %s", groups[i / 2][i % 2], list);
    }
}

TEST(test_every_command_has_help) {
    int found = 0;
    WEFT_AUTO_FREE char *list = OUTPUT("help");
    for (const char *at = list; (at = strstr(at, "\n  ")); found++) {
        at += 3;
        const char *name = format_text("%.*s", (int)strcspn(at, " "), at);
        const char *usage = format_text("usage: weft %s ", name);
        expect_text(RUN("help", name), usage);
        usage = format_text("\nexample: weft %s", name);
        expect_text(RUN("help", name), usage);
        usage = format_text("usage: weft %s ", name);
        expect_text(RUN(name, "--help"), usage);
        expect_text(RUN(name, "-h"), usage);
    }
    assert_true(found >= COMMANDS);
    expect_text(RUN("eval", "--tokens", "x", "--help"), "--targets FILE");
}

/* A terminal of the usual width shows every help text without breaking its lines. */
TEST(test_help_fits_eighty_columns) {
    for (int i = 0; i <= COMMANDS; i++) {
        WEFT_AUTO_FREE char *out = OUTPUT("help", i < COMMANDS ? commands[i] : "config");
        for (char *line = out, *next; line; line = next) {
            next = strchr(line, '\n');
            if (next) *next++ = 0;
            int columns = 0;
            for (const char *c = line; *c; c++)
                columns += ((unsigned char)*c & 0xc0) != 0x80;
            if (columns > 79) fail_msg("%d columns: %s", columns, line);
        }
    }
}

/* The words of all of them. */
TEST(test_help_is_as_it_was_read) {
    char *text;
    size_t size;
    FILE *all = open_memstream(&text, &size);
    assert_non_null(all);
    for (int i = 0; i < COMMANDS; i++) {
        WEFT_AUTO_FREE char *out = OUTPUT("help", commands[i]);
        fprintf(all, "# %s\n\n%s\n", commands[i], out);
    }
    fclose(all);
    snapshot_expect("help", text);
    free(text);
}

/* Every option that the help of a command shows is one that the command takes. */
TEST(test_help_shows_options_that_are_taken) {
    for (int i = 1; i < COMMANDS - 1; i++) {
        WEFT_AUTO_FREE char *out = OUTPUT("help", commands[i]);
        for (const char *at = out; (at = strstr(at, "\n  --"));) {
            at += 3;
            const char *option = format_text("%.*s", (int)strcspn(at, " \n"), at);
            /* What follows is no option, so that nothing is done, whether it takes a value or not. */
            command_result r = command_run(RUN(commands[i], option, "--none", "--none"));
            const char *unknown = format_text("unknown option '%s'", option);
            if (strstr(r.err, unknown)) fail_msg("weft %s: %s", commands[i], r.err);
            command_free(&r);
        }
    }
}

TEST(test_help_config_lists_every_option) {
    char *text;
    command_succeeds(RUN("help", "config"), &text);
    WEFT_AUTO_FREE char *kconfig = OUTPUT("help", "config", "--kconfig");
    int count;
    const weft_option *options = weft_options(&count);
    for (int i = 0; i < count; i++) {
        const char *line = format_text("  CONFIG_%s=", options[i].key);
        if (!strstr(text, line)) fail_msg("'%s' is not in 'weft help config'", line);
        line = format_text("\nconfig %s\n", options[i].key);
        if (!strstr(kconfig, line)) fail_msg("'%s' is not in the Kconfig file", line);
    }
    free(text);
    FAILS(2, SAYS("--kconfig"), "help", "config", "--json");
    FAILS(2, SAYS("no-such-word"), "help", "config", "no-such-word");
    command_succeeds(RUN("help", "config", "CONFIG_ENABLE_RA_MLA"), &text);
    assert_non_null(strstr(text, "use CONFIG_ATTENTION=\"mla\""));
    free(text);
    FAILS(2, SAYS("one command"), "help", "plan", "init");
}

/* By its name, in either case, with CONFIG_ or by a name that it had before. */
TEST(test_help_explains_an_option) {
    static const char *const names[] = {"STEPS", "steps", "CONFIG_STEPS", "GPT2_MAX_ITERS",
                                        "CONFIG_GPT2_MAX_ITERS"};
    const weft_option *steps = weft_option_find("STEPS");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        WEFT_AUTO_FREE char *text = OUTPUT("help", names[i]);
        const char *range =
            format_text("A whole number from %.0f to %.0f.", steps->min, steps->max);
        assert_true(strncmp(text, "CONFIG_STEPS=", 13) == 0);
        assert_non_null(strstr(text, steps->help));
        assert_non_null(strstr(text, range));
        assert_non_null(strstr(text, steps->fallback));
        assert_non_null(strstr(text, "CONFIG_GPT2_MAX_ITERS, its old name"));
        assert_null(strstr(text, "CONFIG_N_LAYER"));
    }
    expect_text(RUN("help", "ATTENTION"), "One of: dot w2");
    expect_text(RUN("help", "RA_MLA_LATENT_DIM"), "Matters where ATTENTION = \"mla\"");
    expect_text(RUN("help", "RECOMPUTE"), "y or n.");
    expect_text(RUN("help", "STUDY_QUESTION"), "The default is empty.");
    expect_text(RUN("help", "NUM_EPOCHS"), "use CONFIG_STEPS");
    FAILS(2, SAYS("command or option", "'N_LAYER'"), "help", "N_LAYR");
}

/* What git says; in an archive of `make dist` what .commit has; "unknown" where there is neither. */
TEST(test_version_names_the_commit) {
    char head[64] = "unknown";
    const char *ask = "if [ -e .git ]; then git rev-parse HEAD; else cat .commit; fi 2>/dev/null";
    FILE *git = popen(ask, "r"); /* NOLINT */
    assert_non_null(git);
    if (fgets(head, sizeof head, git)) head[strcspn(head, "\n")] = '\0';
    pclose(git);
    WEFT_AUTO_DECREF json_t *object = command_json(RUN("version", "--json"));
    const char *commit = json_string_value(json_object_get(object, "commit"));
    assert_non_null(commit);
    const char *rest = commit + strlen(head);
    if (strncmp(commit, head, strlen(head)) != 0 || (*rest && strcmp(rest, "-changed") != 0))
        fail_msg("'%s' is built in, but HEAD is %s", commit, head);
    expect_text(RUN("version"), commit);
}

TEST(test_version_is_the_headers) {
    const char *line = format_text("weft %s\n", weft_version());
    expect_text(RUN("version"), line);
    expect_text(RUN("--version"), line);
    WEFT_AUTO_DECREF json_t *object = command_json(RUN("version", "--json"));
    assert_string_equal(json_string_value(json_object_get(object, "version")), weft_version());
    assert_true(json_is_boolean(json_object_get(object, "cuda")));
    FAILS(2, SAYS("--jsno", "--json"), "version", "--jsno");
}

TEST(test_an_unknown_command_names_the_nearest) {
    FAILS(2, SAYS("'pln'", "did you mean 'plan'?"), "pln");
    FAILS(2, SAYS("did you mean 'eval'?"), "evaluate");
    FAILS(2, SAYS("did you mean 'verify'?"), "help", "verfy");
    FAILS(2, SAYS("'weft help' lists them"), "xyzzy-and-more");
    FAILS(2, SAYS("unknown command ''"), "");
    WEFT_AUTO(command_free) command_result r = command_run((const char *const[]){NULL});
    assert_int_equal(r.status, 2);
    assert_string_equal(r.out, "");
    assert_non_null(strstr(r.err, "usage: weft COMMAND"));
}

TEST(test_an_unknown_option_names_the_nearest) {
    FAILS(2, SAYS("weft plan:", "'--josn'", "did you mean '--json'?"), "plan", "--josn");
    FAILS(2, SAYS("'--confg'", "did you mean '--config'?"), "plan", "--confg=x");
    FAILS(2, SAYS("did you mean '--out'?"), "init", "--outt", "x");
    FAILS(2, SAYS("did you mean '--tokens'?"), "eval", "--token", "x");
    FAILS(2, SAYS("'weft help plan' lists them"), "plan", "--qqqqqqqqqqqqqqqqqqqqqqqqqq");
    FAILS(2, SAYS("unknown option '-x'"), "plan", "-x");
    WEFT_AUTO_FREE char *longest = calloc(1, 100001);
    assert_non_null(longest);
    memset(longest, '-', 100000);
    FAILS(2, SAYS("unknown option"), "plan", longest);
}

TEST(test_options_need_their_values) {
    FAILS(2, SAYS("-o needs a value"), "plan", "-o");
    FAILS(2, SAYS("--config needs a value"), "plan", "--config");
    FAILS(2, SAYS("--config needs a value"), "plan", "--config=");
    FAILS(2, SAYS("--config needs a value"), "plan", "--config", "");
    FAILS(2, SAYS("--json takes no value"), "plan", "--json=yes");
    FAILS(2, SAYS("unexpected argument 'word'", "see 'weft help plan'"), "plan", "word");
    FAILS(2, SAYS("unexpected argument", "did you mean '--model runs/demo'?"), "generate",
          "runs/demo");
    FAILS(2, SAYS("did you mean '--config demo'?"), "train", "demo");
    FAILS(2, SAYS("did you mean '-o LEARNING_RATE=1e-3'?"), "plan", "-o", "LEARNING_RATE", "1e-3");
    FAILS(2, SAYS("--out is needed"), "init");
    FAILS(2, SAYS("--tokens is needed"), "eval", "--model", "x");
    FAILS(2, SAYS("--model is needed"), "eval", "--tokens", "x");
    FAILS(2, SAYS("'N_LAYER' must be KEY=VALUE"), "plan", "-o", "N_LAYER");
    FAILS(2, SAYS("KEY=VALUE"), "plan", "-o", "=3");
    FAILS(2, SAYS("KEY=VALUE"), "plan", "-o", "");
}

TEST(test_a_config_that_is_not_there_names_the_nearest_study) {
    FAILS(2, SAYS("dmo: No such file", "did you mean 'demo'?"), "plan", "--config", "dmo");
    FAILS(2, SAYS("qqqqqqqqqqqqqqqq: No such file, and no study of that name"), "study", "--config",
          "qqqqqqqqqqqqqqqq");
    FAILS(2, SAYS("./demo: No such file"), "plan", "--config", "./demo");
    SUCCEEDS("plan", "--config", "demo");
}

TEST(test_a_model_that_is_none_says_what_it_is) {
    const char *command = format_text("mkdir -p '%s' && touch '%s/runs.db'", scratch_path("study"),
                                      scratch_path("study"));
    assert_int_equal(system(command), 0);
    FAILS(2, SAYS("is a study's folder", "study/runs"), "generate", "--model",
          scratch_path("study"), "--prompt", "x");
    FAILS(2, SAYS("nowhere: no checkpoint"), "eval", "--model", "nowhere", "--text", "README.md");
    FAILS(2, SAYS("README.md is a file"), "eval", "--model", "README.md", "--text", "README.md");
    FAILS(2, SAYS("nowhere/gpt2: no model", "hf download"), "convert", "--model", "nowhere/gpt2",
          "--out", scratch_path("out"));
}

TEST(test_a_run_that_is_not_there_cannot_be_continued) {
    FAILS(2, SAYS("nowhere: no run to continue", "--config FILE"), "train", "--resume", "--out",
          "nowhere");
}

/* An option that would change nothing is no option. */
TEST(test_options_of_other_commands_are_refused) {
    FAILS(2, SAYS("unknown option '--config'"), "verify", "--config", "demo");
    FAILS(2, SAYS("unknown option '-o'"), "verify", "-o", "N_LAYER=2");
    FAILS(2, SAYS("unknown option '--seed'"), "report", "x", "--seed", "1");
    FAILS(2, SAYS("unknown option '--device'"), "report", "x", "--device", "cpu");
    FAILS(2, SAYS("'--variant'"), "tokenize", "--out", "x", "--variant", "1", "y");
    FAILS(2, SAYS("'--threads'"), "tokenizer", "train", "--vocab", "300", "--out", "x", "--threads",
          "2", "y");
    FAILS(2, SAYS("unknown option '--json'"), "init", "--out", "x", "--json");
    FAILS(2, SAYS("unknown option '--threads'"), "convert", "--model", "x", "--out", "y",
          "--threads", "2");
}

TEST(test_numbers_are_held_to_their_range) {
    static const char *const bad[] = {"-1", "99999", "two", "1.5", "3x", "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        FAILS(2, SAYS("--threads", bad[i], "0 to 1024"), "plan", "--threads", bad[i]);
        FAILS(2, SAYS("--variant", bad[i], "0 to 5"), "plan", "--variant", bad[i]);
        FAILS(2, SAYS(bad[i], "0 to 5"), "plan", "--ra-mla-ablation-step", bad[i]);
    }
    FAILS(2, SAYS("--seed", "-1"), "init", "--out", "x", "--seed", "-1");
    FAILS(2, SAYS("--dtype", "f16", "f32 bf16 f64"), "plan", "--dtype", "f16");
    FAILS(2, SAYS("--device", "gpu", "cuda"), "plan", "--device", "gpu");
    FAILS(2, SAYS("1 to 1048576"), "plan", "-o", "CONTEXT=0");
    SUCCEEDS("plan", "--threads", "0", "-o", "N_LAYER=1");
}

/* Output that nobody can take is work that failed. */
TEST(test_a_full_disk_is_an_error) {
    int status = system(format_text("%s help >/dev/full 2>/dev/null", command_program()));
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
}

RUN_TESTS(scratch_setup, scratch_teardown)
