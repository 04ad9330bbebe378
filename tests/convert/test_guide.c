/* docs/guide/huggingface.md: its commands, run in order in a folder that has what the page says is
 * there, a model in Hugging Face's layout and a text. */
#include "support/command.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* The lines of all ```sh blocks. */
static char *commands_of(const char *page) {
    char *text = file_read(page, NULL), *all = calloc(65536, 1), *at = text;
    assert_non_null(all);
    while ((at = strstr(at, "\n```sh\n"))) {
        at += strlen("\n```sh\n");
        char *end = strstr(at, "\n```");
        assert_non_null(end);
        strncat(all, at, (size_t)(end + 1 - at));
        at = end;
    }
    free(text);
    return all;
}

static void copy_file(const char *from, const char *to) {
    size_t n;
    char *bytes = file_read(from, &n);
    file_write(to, bytes, n);
    free(bytes);
}

/* hf/gpt2 and models/rotary with a tokenizer of 700 tokens, and my-text.txt. */
static void make_what_is_there(void) {
    const char *model = scratch_path("model"), *theirs = scratch_path("page/hf/gpt2");
    mkdir(scratch_path("page"), 0777);
    command_succeeds(RUN("init", "-o", "N_LAYER=2", "-o", "N_EMBD=32", "-o", "N_HEAD=4", "-o",
                         "VOCAB_SIZE=700", "-o", "CONTEXT=32", "--out", model),
                     NULL);
    copy_file("tests/vectors/tokenizer.own.json", scratch_path("model/tokenizer.json"));
    command_succeeds(RUN("convert", "--model", model, "--to-hf", "--out", theirs), NULL);
    mkdir(scratch_path("page/models"), 0777);
    command_succeeds(RUN("init", "-o", "N_LAYER=2", "-o", "N_EMBD=32", "-o", "N_HEAD=4", "-o",
                         "VOCAB_SIZE=700", "-o", "CONTEXT=32", "-o", "POSITION=rope", "-o",
                         "KV_HEADS=2", "-o", "NORM=rmsnorm", "-o", "FFN=swiglu", "-o", "BIAS=n",
                         "--out", scratch_path("page/models/rotary")),
                     NULL);
    copy_file("tests/vectors/tokenizer.own.json",
              scratch_path("page/models/rotary/tokenizer.json"));
    copy_file("README.md", scratch_path("page/my-text.txt"));
}

static void test_the_commands_of_the_page_run(void **state) {
    (void)state;
    const char *weft = getenv("WEFT");
    char here[PATH_MAX], command[PATH_MAX + 1024], text[16384];
    if (!weft) weft = "build/weft";
    assert_non_null(getcwd(here, sizeof here));
    make_what_is_there();
    char *lines = commands_of("docs/guide/huggingface.md");
    assert_non_null(strstr(lines, "--to-hf"));
    assert_non_null(strstr(lines, "--to-mla"));
    /* A path of the program's own is from the repository's root. */
    FILE *script = fopen(scratch_path("page/run"), "w");
    assert_non_null(script);
    fprintf(script, "set -e\nweft() { %s%s%s \"$@\"; }\n%s", weft[0] == '/' ? "" : here,
            weft[0] == '/' ? "" : "/", weft, lines);
    assert_int_equal(fclose(script), 0);
    snprintf(command, sizeof command, "cd '%s' && sh run 2>&1", scratch_path("page"));
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t n = fread(text, 1, sizeof text - 1, pipe);
    text[n] = 0;
    if (pclose(pipe) != 0) fail_msg("%s", text);
    assert_non_null(strstr(text, "keys lost"));
    assert_non_null(strstr(text, "without rotation"));
    assert_non_null(strstr(text, "attention moved"));
    assert_int_equal(access(scratch_path("page/hf/finetuned/tokenizer.json"), R_OK), 0);
    assert_int_equal(access(scratch_path("page/runs/mla/last/model.safetensors"), R_OK), 0);
    free(lines);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_commands_of_the_page_run)};
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
