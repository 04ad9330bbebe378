/* The make targets that read and write configs, as a user meets them: in a copy of the tree's top
 * where what the build needs is linked, so that the tree's own .config is never touched.
 *
 * kconfiglib drops what it does not understand; each such thing must end the target on one line and
 * leave .config as it was. */
#include "config/config.h"
#include "support/command.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs a shell command in the scratch folder, away from the make that runs the tests. What it wrote
 * is in the files out and err. */
static int shell(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int shell(const char *format, ...) {
    char command[2048];
    int at =
        snprintf(command, sizeof command,
                 "cd %s && unset MAKEFLAGS MFLAGS MAKELEVEL MAKEFILES MAKE_RESTARTS JOBS && { ",
                 scratch_path("tree"));
    va_list args;
    va_start(args, format);
    at += vsnprintf(command + at, sizeof command - (size_t)at, format, args);
    va_end(args);
    snprintf(command + at, sizeof command - (size_t)at, "\n} >%s 2>%s </dev/null",
             scratch_path("out"), scratch_path("err"));
    int status = system(command); /* NOLINT(concurrency-mt-unsafe): one thread */
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static char *said(const char *name) {
    return file_read(scratch_path("%s", name), NULL);
}

static char *tree_file(const char *name) {
    return file_read(scratch_path("tree/%s", name), NULL);
}

static void write_tree(const char *name, const char *text) {
    file_write(scratch_path("tree/%s", name), text, strlen(text));
}

static void expect_words(const char *text, const char *const *words) {
    for (; *words; words++)
        if (!strstr(text, *words)) fail_msg("'%s' is not in: %s", *words, text);
}

static void expect_done(int status) {
    if (status == 0) return;
    char *err = said("err");
    fail_msg("ended on %d: %s", status, err);
}

static bool has_kconfiglib; /* some python3 has it */

static void without_kconfiglib_skip(void) {
    if (has_kconfiglib) return;
    printf("no python3 here has kconfiglib (scripts/setup study installs it)\n");
    skip();
}

/* make defconfig-test fails on that text with these words on its one line, and .config stays. */
static void refuse(const char *text, const char *const *words) {
    write_tree("defconfigs/test", text);
    write_tree(".config", "CONFIG_N_LAYER=7\n");
    if (shell("make -s SETUP=no defconfig-test") == 0) fail_msg("taken: %s", text);
    char *err = said("err"), *kept = tree_file(".config");
    char *line = strstr(err, "kconfig: ");
    if (!line) fail_msg("no reason for %s: %s", text, err);
    line[strcspn(line, "\n")] = '\0';
    expect_words(line, words);
    assert_string_equal(kept, "CONFIG_N_LAYER=7\n");
    free(err);
    free(kept);
}

TEST(test_kconfig_in_the_tree_is_the_programs) {
    char *program, *kept = file_read("Kconfig", NULL);
    command_succeeds(RUN("help", "config", "--kconfig"), &program);
    if (strcmp(program, kept) != 0) fail_msg("Kconfig is not of these options: make kconfig");
    free(program);
    free(kept);
}

/* A menu's line names its option whole: a phrase that ends where the help goes on, within 80 columns. */
TEST(test_prompts_are_short_and_whole) {
    int count;
    const weft_option *options = weft_options(&count);
    char *kept = file_read("Kconfig", NULL), want[256];
    for (int i = 0; i < count; i++) {
        const char *help = options[i].help;
        size_t length = strcspn(help, ":;");
        const char *stop = strstr(help, ". ");
        if (stop && (size_t)(stop - help) < length) length = (size_t)(stop - help);
        if (!help[length]) length--; /* the full stop */
        if (length > 64) fail_msg("%s: '%.*s' is too long", options[i].key, (int)length, help);
        snprintf(want, sizeof want, " \"%.*s\"\n\tdefault ", (int)length, help);
        if (!strstr(kept, want)) fail_msg("%s: not in Kconfig:%s", options[i].key, want);
    }
    free(kept);
}

TEST(test_defconfig_writes_what_it_says) {
    without_kconfiglib_skip();
    write_tree("defconfigs/test", "# A test.\n"
                                  "CONFIG_ATTENTION=\"w2\"\n"
                                  "CONFIG_N_LAYER=3\n"
                                  "# CONFIG_BIAS is not set\n"
                                  "CONFIG_LEARNING_RATE=\"2e-3\"\n"
                                  "CONFIG_DATASET=\"a \\\"b\\\" \\\\ c\"\n");
    expect_done(shell("make -s SETUP=no defconfig-test"));
    char *text = tree_file(".config");
    expect_words(text, SAYS("CONFIG_ATTENTION=\"w2\"\n", "CONFIG_N_LAYER=3\n", "CONFIG_N_HEAD=12\n",
                            "# CONFIG_BIAS is not set\n", "CONFIG_LEARNING_RATE=\"2e-3\"\n"));
    free(text);
    weft_config c;
    weft_config_defaults(&c);
    if (weft_config_read(&c, scratch_path("tree/.config")) != WEFT_OK)
        fail_msg("%s", weft_error_message());
    assert_int_equal(c.attention, WEFT_ATTENTION_W2);
    assert_int_equal(c.n_layer, 3);
    assert_false(c.bias);
    assert_true(c.learning_rate == 2e-3);
    assert_string_equal(c.dataset, "a \"b\" \\ c");
}

/* As the program reads them, and as the RA-MLA write-up has them. */
TEST(test_bare_numbers_are_taken) {
    without_kconfiglib_skip();
    write_tree("defconfigs/test", "CONFIG_LEARNING_RATE=2e-3\nCONFIG_RA_MLA_RA_ALPHA=0.5\n");
    expect_done(shell("make -s SETUP=no defconfig-test && make -s SETUP=no savedefconfig"));
    char *text = tree_file("defconfig");
    expect_words(text, SAYS("CONFIG_LEARNING_RATE=\"2e-3\"", "CONFIG_RA_MLA_RA_ALPHA=\"0.5\""));
    free(text);
    write_tree(".config", "CONFIG_LEARNING_RATE=3e-3\n");
    expect_done(shell("make -s SETUP=no savedefconfig"));
    text = tree_file("defconfig");
    assert_string_equal(text, "CONFIG_LEARNING_RATE=\"3e-3\"\n");
    free(text);
    write_tree(".config", "CONFIG_BATCH_SIZE=auto\n");
    expect_done(shell("make -s SETUP=no savedefconfig"));
    text = tree_file("defconfig");
    assert_string_equal(text, "CONFIG_MICRO_BATCH=-1\n");
    free(text);
}

/* In the files of an older weft, .config as its make wrote it among them; what is written has today's names. */
TEST(test_old_names_are_taken) {
    without_kconfiglib_skip();
    write_tree("defconfigs/test", "CONFIG_GPT2_BLOCK_SIZE=48\n# CONFIG_GPT2_BIAS is not set\n"
                                  "CONFIG_GPT2_MIN_LR=1e-5\nCONFIG_STUDY_STEPS=\"a; b: BIAS=y\"\n");
    expect_done(shell("make -s SETUP=no defconfig-test && make -s SETUP=no savedefconfig"));
    char *text = tree_file("defconfig");
    assert_string_equal(text,
                        "CONFIG_CONTEXT=48\n# CONFIG_BIAS is not set\nCONFIG_MIN_LR=\"1e-5\"\n"
                        "CONFIG_STUDY_VARIANTS=\"a; b: BIAS=y\"\n");
    free(text);
    refuse("CONFIG_GPT2_BLOCK_SIZE=48\nCONFIG_CONTEXT=48\n", SAYS("defconfigs/test:2:", "line 1"));
    shell_succeeds("tar -xJf tests/older/made.tar.xz -C '%s' ./dotconfig", scratch_path("tree"));
    expect_done(shell("mv dotconfig .config && make -s SETUP=no savedefconfig"));
    text = tree_file("defconfig");
    expect_words(text, SAYS("CONFIG_EVAL_SAMPLES=50\n", "CONFIG_GRADIENT_ACCUMULATION=4\n"));
    assert_null(strstr(text, "GPT2_"));
    free(text);
}

/* By what they mean: by letters, GPT2_DATASET would be DROPOUT or the like. The program and make
 * say the same. */
TEST(test_keys_of_other_trainers_are_told_what_to_use) {
    static const struct {
        const char *key, *instead;
    } keys[] = {
        {"ENABLE_RA_MLA", "CONFIG_ATTENTION=\"mla\""},
        {"RA_MLA_MLP_TYING_PER_HEAD_SCALAR", "CONFIG_RA_MLA_MLP_TYING_MODE=\"per_head_scalar\""},
        {"MLA_D_LATENT", "CONFIG_RA_MLA_LATENT_DIM"},
        {"GPT2_DATASET", "CONFIG_DATASET"},
        {"MIXED_PRECISION", "CONFIG_DTYPE=\"bf16\""},
        {"AMP", "CONFIG_DTYPE=\"bf16\""},
        {"RA_MLA_ABLATION_STEP14", "CONFIG_RA_MLA_ABLATION_STEPS"},
        {"ra_mla_bitter_scale", "weft prune"},
        {"GPT2_USE_DDP", "mpirun"},
        {"GPT2_COMPILE", "leave it out"}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        char line[128];
        weft_config c;
        weft_config_defaults(&c);
        assert_int_equal(weft_config_set(&c, keys[i].key, "y", "here"), WEFT_EINPUT);
        expect_words(weft_error_message(), SAYS("here: ", keys[i].key, keys[i].instead));
        snprintf(line, sizeof line, "CONFIG_%s=y\n", keys[i].key);
        if (has_kconfiglib) refuse(line, SAYS("defconfigs/test:1:", keys[i].key, keys[i].instead));
    }
}

/* Every key that is named instead is an option, and none that is foreign is one. */
TEST(test_what_is_named_instead_is_there) {
    size_t n;
    char *text = file_read("src/config/foreign.def", &n);
    int found = 0;
    for (char *at = text; (at = strstr(at, "CONFIG_")); found++) {
        char key[64];
        at += 7;
        snprintf(key, sizeof key, "%.*s", (int)strspn(at, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"),
                 at);
        if (!weft_option_find(key)) fail_msg("there is no CONFIG_%s", key);
    }
    assert_true(found > 20);
    free(text);
    const weft_option *options = weft_options(&found);
    while (found-- > 0)
        if (weft_option_instead(options[found].key))
            fail_msg("CONFIG_%s is an option", options[found].key);
}

TEST(test_what_kconfiglib_drops_is_an_error) {
    without_kconfiglib_skip();
    refuse("\nCONFIG_N_LAYERS=3\n",
           SAYS("defconfigs/test:2:", "CONFIG_N_LAYERS", "did you mean CONFIG_N_LAYER?"));
    refuse("# CONFIG_BIA is not set\n", SAYS("defconfigs/test:1:", "CONFIG_BIAS?"));
    refuse("CONFIG_ATTENTION=w2\n",
           SAYS("defconfigs/test:1:", "CONFIG_ATTENTION=\"w2\"", "quotes"));
    refuse("CONFIG_DROPOUT=7\n", SAYS("defconfigs/test:1:", "DROPOUT=7", "0 to 0.99"));
    refuse("CONFIG_N_LAYER=2000\n", SAYS("defconfigs/test:1:", "CONFIG_N_LAYER=2000", "1 to 1024"));
    refuse("CONFIG_N_LAYER=-1\n", SAYS("defconfigs/test:1:", "CONFIG_N_LAYER=-1", "1 to 1024"));
    refuse("CONFIG_N_LAYER=two\n", SAYS("defconfigs/test:1:", "CONFIG_N_LAYER", "whole number"));
    refuse("CONFIG_DROPOUT=\"7\"\n", SAYS("defconfigs/test:1:", "DROPOUT=7", "0 to 0.99"));
    refuse("CONFIG_DROPOUT=\"x\"\n", SAYS("defconfigs/test:1:", "DROPOUT", "number"));
    refuse("CONFIG_ATTENTION=\"dit\"\n", SAYS("defconfigs/test:1:", "dit", "dot w2 mla"));
    refuse("CONFIG_DATASET=\"a\"b\"\n", SAYS("defconfigs/test:1:", "CONFIG_DATASET", "quote"));
    refuse("CONFIG_N_LAYER=3\nCONFIG_N_LAYER=4\n", SAYS("defconfigs/test:2:", "line 1"));
    refuse("N_LAYER=3\n", SAYS("defconfigs/test:1:", "CONFIG_KEY=value"));
}

/* Taken by kconfiglib without a word, and yet not as they were written. */
TEST(test_a_key_that_does_not_come_back_is_an_error) {
    without_kconfiglib_skip();
    refuse("CONFIG_BIAS=nope\n", SAYS("defconfigs/test:1:", "CONFIG_BIAS=nope"));
    refuse("# CONFIG_ATTENTION is not set\n", SAYS("defconfigs/test:1:", "CONFIG_ATTENTION"));
    refuse("  CONFIG_N_LAYER=3\n", SAYS("defconfigs/test:1:", "CONFIG_N_LAYER"));
    /* An option that Kconfig hides loses its value: a table with such a one is found out. */
    char *kconfig = file_read("Kconfig", NULL);
    FILE *file = fopen(scratch_path("tree/Kconfig.hidden"), "w");
    assert_non_null(file);
    fprintf(file, "%s\nconfig LATER\n\tint \"LATER\"\n\tdepends on !BIAS\n\tdefault 3\n", kconfig);
    assert_int_equal(fclose(file), 0);
    free(kconfig);
    expect_done(shell("mv Kconfig Kconfig.kept && mv Kconfig.hidden Kconfig"));
    refuse("CONFIG_LATER=4\n", SAYS("defconfigs/test:1:", "CONFIG_LATER=4"));
    expect_done(shell("mv Kconfig.kept Kconfig"));
}

TEST(test_an_unknown_defconfig_says_where_the_list_is) {
    assert_int_not_equal(shell("make -s SETUP=no defconfig-dmeo"), 0);
    char *err = said("err");
    expect_words(err, SAYS("defconfigs/dmeo", "list-defconfigs"));
    free(err);
}

TEST(test_savedefconfig_keeps_what_is_not_default) {
    without_kconfiglib_skip();
    write_tree("defconfigs/test",
               "# A test.\n# Of two lines.\nCONFIG_N_LAYER=3\nCONFIG_N_HEAD=12\n");
    expect_done(shell("make -s SETUP=no defconfig-test && make -s SETUP=no savedefconfig"));
    char *text = tree_file("defconfig");
    assert_string_equal(text, "CONFIG_N_LAYER=3\n");
    free(text);
    expect_done(shell("make -s SETUP=no savedefconfig NAME=test"));
    text = tree_file("defconfigs/test");
    assert_string_equal(text, "# A test.\n# Of two lines.\nCONFIG_N_LAYER=3\n");
    free(text);
    expect_done(shell("rm -f .config"));
    assert_int_not_equal(shell("make -s SETUP=no savedefconfig"), 0);
    text = said("err");
    expect_words(text, SAYS("no .config"));
    free(text);
}

TEST(test_list_defconfigs_has_each_with_its_sentence) {
    write_tree("defconfigs/test", "# What the test asks.\n# More.\nCONFIG_N_LAYER=3\n");
    write_tree("defconfigs/own",
               "CONFIG_N_LAYER=3\n"); /* has a line of its own without a sentence */
    expect_done(shell("make -s list-defconfigs && rm defconfigs/own"));
    char *out = said("out");
    const char *own = strstr(out, "\nown ");
    assert_non_null(own);
    assert_non_null(strstr(own + 1, "\nra-mla"));
    expect_words(out, SAYS("demo ", "gpt2-ra-mla-full ", "test ", " What the test asks.\n"));
    assert_null(strstr(out, "More."));
    free(out);
}

TEST(test_menuconfig_without_a_terminal_says_so) {
    without_kconfiglib_skip();
    assert_int_not_equal(shell("make -s SETUP=no menuconfig"), 0);
    char *err = said("err");
    expect_words(err, SAYS("terminal", "CONFIG_KEY=value"));
    free(err);
}

TEST(test_menuconfig_changes_an_option) {
    without_kconfiglib_skip();
    write_tree(".config", "CONFIG_N_LAYER=7\n");
    int status = shell("\"$PYTHON\" tests/config/drive_menu.py make -s SETUP=no menuconfig && "
                       "make -s SETUP=no savedefconfig");
    if (status == 77) {
        printf("this system gives no terminal\n");
        skip();
    }
    expect_done(status);
    char *text = tree_file("defconfig");
    assert_string_equal(text, "CONFIG_ATTENTION=\"w2\"\nCONFIG_N_LAYER=7\n");
    free(text);
}

static void drive(const char *how) {
    int status =
        shell("\"$PYTHON\" tests/config/drive_menu.py %s make -s SETUP=no menuconfig", how);
    if (status == 77) {
        printf("this system gives no terminal\n");
        skip();
    }
    expect_done(status);
}

/* What cannot be read back cannot be saved. */
TEST(test_menuconfig_takes_no_wrong_number) {
    without_kconfiglib_skip();
    write_tree(".config", "CONFIG_N_LAYER=7\n");
    drive("--wrong");
    expect_done(shell("make -s SETUP=no savedefconfig"));
    char *text = tree_file("defconfig");
    assert_string_equal(text, "CONFIG_N_LAYER=7\nCONFIG_DROPOUT=\"0.3\"\n");
    free(text);
}

TEST(test_menuconfig_begins_with_the_demo) {
    without_kconfiglib_skip();
    expect_done(shell("rm -f .config"));
    drive("--save");
    expect_done(shell("mv .config saved && make -s SETUP=no defconfig-demo && "
                      "grep -v '^#' .config >made.txt && grep -v '^#' saved >saved.txt && cmp "
                      "made.txt saved.txt"));
}

/* Also where nobody is told of it by a signal. */
TEST(test_menuconfig_ends_with_its_terminal) {
    without_kconfiglib_skip();
    write_tree(".config", "CONFIG_N_LAYER=7\n");
    int status =
        shell("\"$PYTHON\" tests/config/drive_menu.py --leave make -s SETUP=no menuconfig");
    if (status == 77) {
        printf("this system gives no terminal\n");
        skip();
    }
    expect_done(status);
    char *text = tree_file(".config");
    assert_string_equal(text, "CONFIG_N_LAYER=7\n");
    free(text);
}

/* A program in weft's place, which says what it was called with. */
static int run_study(const char *arguments) {
    write_tree("said", "#!/bin/sh\nprintf '%s\\n' \"$@\"\n");
    return shell("chmod +x said && make -s SETUP=no BUILD=b -o build study PROGRAM=./said %s",
                 arguments);
}

TEST(test_command_line_values_reach_the_study) {
    write_tree(".config", "CONFIG_N_LAYER=3\n");
    expect_done(run_study("CONFIG_DATASET=embedded CONFIG_STUDY_VARIANTS='a; b: N_LAYER=2' "
                          "CONFIG_N_HEAD=4 CONFIG_ARCH=aarch64 OUT='some where'"));
    char *out = said("out");
    assert_string_equal(
        out, "study\n--config\n.config\n--out\nsome where\n--jobs\n1\n-o\nDATASET=embedded\n"
             "-o\nN_HEAD=4\n-o\nSTUDY_VARIANTS=a; b: N_LAYER=2\n");
    free(out);
    expect_done(shell("rm -f .config"));
    expect_done(run_study("JOBS=3"));
    out = said("out");
    assert_string_equal(out, "study\n--config\ndefconfigs/demo\n--jobs\n3\n");
    free(out);
    /* Without -s, which study it is comes first. */
    expect_done(shell("make SETUP=no BUILD=b -o build study PROGRAM=./said"));
    out = said("out");
    assert_int_equal(strncmp(out, "weft: the study of defconfigs/demo; ", 36), 0);
    free(out);
}

TEST(test_the_environment_sets_no_option) {
    setenv("CONFIG_N_LAYER", "5", 1);
    int status = run_study("");
    unsetenv("CONFIG_N_LAYER");
    expect_done(status);
    char *out = said("out");
    assert_null(strstr(out, "N_LAYER"));
    free(out);
}

/* The build folder's notes on the machine are taken over, so that make need not look again. */
static void link_build(const char *root) {
    const char *weft = getenv("WEFT");
    if (!weft) fail_msg("WEFT does not name the program");
    const char *program = strrchr(weft, ' ') ? strrchr(weft, ' ') + 1 : weft;
    shell("mkdir b; case '%s' in /*) dir=$(dirname '%s') ;; *) dir='%s'/$(dirname '%s') ;; esac; "
          "for at in \"$dir\" \"$dir/..\"; do "
          "[ ! -f \"$at/config.mk\" ] || cp -p \"$at/config.mk\" \"$at/config.key\" b/; done",
          program, program, root, program);
}

/* The interpreter is looked for once, not by every test and every make. */
static void keep_python(void) {
    has_kconfiglib = shell("scripts/python-with kconfiglib") == 0;
    if (!has_kconfiglib) return;
    char *path = said("out");
    path[strcspn(path, "\n")] = '\0';
    setenv("PYTHON", path, 1);
    free(path);
}

static int open_tree(void **state) {
    (void)state;
    char root[1024];
    if (!getcwd(root, sizeof root)) return 1;
    scratch_open();
    char made[1536];
    snprintf(made, sizeof made, "mkdir %s", scratch_path("tree"));
    if (system(made) != 0) return 1; /* NOLINT(concurrency-mt-unsafe) */
    expect_done(shell("for part in Makefile mk scripts src include tests examples bench; do "
                      "ln -s '%s'/$part $part || exit 1; done; cp '%s'/Kconfig . && "
                      "cp -r '%s'/defconfigs .",
                      root, root, root));
    link_build(root);
    keep_python();
    return 0;
}

RUN_TESTS(open_tree, scratch_teardown)
