/* Reading below a folder: plain files and folders that are there, and nothing that leads elsewhere. */
#include "base/folders.h"
#include "support/command.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static int root;

/* How many descriptors are open, of the first hundred. */
static int count_open(void) {
    int n = 0;
    for (int i = 0; i < 100; i++)
        n += fcntl(i, F_GETFD) >= 0;
    return n;
}

static void expect(const char *path, weft_status status, const char *word) {
    int file, folder;
    struct stat is;
    char *text;
    size_t bytes;
    int before = count_open();
    alarm(60 * (unsigned)command_patience()); /* a pipe is not waited for */
    assert_int_equal(weft_below_file(root, path, &file), status);
    if (status != WEFT_OK) {
        if (!strstr(weft_error_message(), word))
            fail_msg("'%s' does not say '%s'", weft_error_message(), word);
        assert_int_equal(file, -1);
        assert_int_equal(weft_below_read(root, path, 100, &text, &bytes), status);
        assert_null(text);
        assert_false(weft_below_look(root, path, &is));
        assert_int_equal(count_open(), before);
        return;
    }
    close(file);
    assert_true(weft_below_look(root, path, &is));
    assert_int_equal(is.st_size, 4);
    assert_int_equal(weft_below_read(root, path, 4, &text, &bytes), WEFT_OK);
    assert_string_equal(text, "text");
    free(text);
    assert_int_equal(weft_below_read(root, path, 3, &text, &bytes), WEFT_EINPUT);
    assert_int_not_equal(weft_below_folder(root, path, &folder), WEFT_OK);
    assert_int_equal(count_open(), before);
    alarm(0);
}

static void test_nothing_leads_out_of_the_folder(void **state) {
    (void)state;
    shell_succeeds("cd '%s' && mkdir -p top/a/b out && printf text >top/a/b/file && printf text "
                   ">out/file && ln -s ../../out top/a/link && ln -s ../../../out/file top/a/b/link"
                   " && ln -s file top/a/b/near && mkfifo top/a/b/pipe && ln -s /dev/zero top/zero"
                   " && ln -s top named",
                   scratch_path("."));
    const char *const ways[] = {"top", "named"}; /* what the user names may be a link */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(weft_below_root(scratch_path("%s", ways[i]), &root), WEFT_OK);
        expect("a/b/file", WEFT_OK, "");
        expect("a/b/link", WEFT_EINPUT, "is a link");
        expect("a/b/near", WEFT_EINPUT, "is a link");
        expect("a/link/file", WEFT_EINPUT, "is a link");
        expect("zero", WEFT_EINPUT, "is a link");
        expect("a/b/pipe", WEFT_EINPUT, "a pipe");
        expect("a/b", WEFT_EINPUT, "a folder");
        expect("a/b/file/more", WEFT_EINPUT, "a file");
        expect("../out/file", WEFT_EINPUT, "not a path below");
        expect("a/../../out/file", WEFT_EINPUT, "not a path below");
        expect("a//b/file", WEFT_EINPUT, "not a path below");
        expect("/etc/passwd", WEFT_EINPUT, "not a path below");
        expect("./a/b/file", WEFT_EINPUT, "not a path below");
        expect("a/none", WEFT_EIO, "No such file");
        int folder;
        assert_int_equal(weft_below_folder(root, "a/link", &folder), WEFT_EINPUT);
        assert_int_equal(weft_below_folder(root, "a/b", &folder), WEFT_OK);
        close(folder);
        assert_int_equal(weft_below_folder(root, "", &folder), WEFT_OK);
        close(folder);
        close(root);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nothing_leads_out_of_the_folder)};
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
