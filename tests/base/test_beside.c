/* Folders that are written beside their places and get their names when they are whole. */
#include "base/beside.h"
#include "support/command.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *at(const char *name) {
    return scratch_path("%s", name);
}

static void expect(weft_status is, weft_status wanted, const char *word) {
    if (is != wanted) fail_msg("%d, not %d: %s", is, wanted, weft_error_message());
    if (word && !strstr(weft_error_message(), word))
        fail_msg("'%s' is not in: %s", word, weft_error_message());
}

static weft_status any(const char *path) {
    (void)path;
    return WEFT_OK;
}

static weft_status none(const char *path) {
    return weft_fail(WEFT_EINPUT, "%s: not this one", path);
}

static void put(const char *folder, const char *name, const char *text) {
    char path[WEFT_PATH_MAX];
    assert_int_equal(weft_path(path, "%s/%s", folder, name), WEFT_OK);
    file_write(path, text, strlen(text));
}

/* A folder with one file, published. */
static weft_status publish(const char *path, const char *name, weft_may_replace may) {
    weft_new_folder f;
    WEFT_TRY(weft_new_folder_begin(&f, path));
    put(f.beside, name, "text");
    return weft_new_folder_end(&f, WEFT_OK, may);
}

/* The names in a folder, the mark left out. */
static void holds(const char *folder, const char *text) {
    weft_names names;
    char is[512] = "";
    assert_int_equal(weft_folder_list(folder, &names), WEFT_OK);
    for (int i = 0; i < names.n; i++)
        if (strcmp(names.list[i], WEFT_FOLDER_MARK) != 0)
            snprintf(is + strlen(is), sizeof is - strlen(is), "%s ", names.list[i]);
    weft_names_free(&names);
    assert_string_equal(is, text);
}

TEST(test_a_folder_is_replaced_whole) {
    weft_new_folder f;
    expect(publish(at("x/deep/a/"), "one", NULL), WEFT_OK, NULL);
    holds(at("x/deep"), "a ");
    expect(publish(at("x/deep/a"), "two", NULL), WEFT_EINPUT, "there already");
    expect(publish(at("x/deep/a"), "two", none), WEFT_EINPUT, "not this one");
    expect(weft_new_folder_begin(&f, at("x/deep/a")), WEFT_OK, NULL);
    expect(weft_new_folder_end(&f, weft_fail(WEFT_EIO, "so: %s/file: no", f.beside), any), WEFT_EIO,
           "x/deep/a/file: no"); /* of the name that was to be */
    holds(at("x/deep"), "a ");
    holds(at("x/deep/a"), "one ");
    expect(publish(at("x/deep/a"), "two", any), WEFT_OK, NULL);
    holds(at("x/deep"), "a ");
    holds(at("x/deep/a"), "two ");
    struct stat is;
    assert_int_equal(stat(at("x/deep/a"), &is), 0);
    assert_int_equal(is.st_mode & S_ISVTX, 0);
    /* An empty folder is nothing that could be lost. */
    assert_int_equal(mkdir(at("x/deep/b"), 0777), 0);
    expect(publish(at("x/deep/b"), "one", NULL), WEFT_OK, NULL);
    holds(at("x/deep/b"), "one ");
}

TEST(test_what_is_no_folders_name_is_refused) {
    assert_int_equal(symlink("x", at("link")), 0);
    file_write(at("file"), "mine", 4);
    expect(publish(at("link"), "one", any), WEFT_EINPUT, "a link");
    expect(publish(at("file"), "one", any), WEFT_EINPUT, "a file");
    expect(publish(at("x/."), "one", any), WEFT_EINPUT, "name");
    expect(publish(at("x/.."), "one", any), WEFT_EINPUT, "name");
    expect(publish("", "one", any), WEFT_EINPUT, "name");
}

/* What comes to have the name between begin and end stays. */
TEST(test_of_two_at_once_one_succeeds) {
    weft_new_folder first, second;
    expect(weft_new_folder_begin(&first, at("x/both")), WEFT_OK, NULL);
    expect(weft_new_folder_begin(&second, at("x/both")), WEFT_OK, NULL);
    put(first.beside, "first", "1");
    put(second.beside, "second", "2");
    expect(weft_new_folder_end(&second, WEFT_OK, NULL), WEFT_OK, NULL);
    expect(weft_new_folder_end(&first, WEFT_OK, NULL), WEFT_EINPUT, "there already");
    holds(at("x/both"), "second ");
    assert_int_not_equal(access(first.beside, F_OK), 0);
}

/* A process that ends without an end leaves what a kill leaves. */
static void leave(const char *path) {
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        weft_new_folder f;
        bool ok = weft_new_folder_begin(&f, path) == WEFT_OK;
        if (ok) put(f.beside, "half", "");
        _exit(ok ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(test_the_next_writer_clears_what_kills_left) {
    weft_new_folder held;
    assert_int_equal(mkdir(at("y"), 0777), 0);
    leave(at("y/a"));
    assert_int_equal(mkdir(at("y/a.1-1.tmp"), 01777), 0); /* killed before the mark */
    assert_int_equal(mkdir(at("y/a.2-1.tmp"), 0777), 0);  /* a user's: no mark */
    assert_int_equal(mkdir(at("y/a.3-1.tmp"), 0777), 0);
    put(at("y/a.3-1.tmp"), "mine", "text");
    expect(weft_new_folder_begin(&held, at("y/a")), WEFT_OK, NULL);
    expect(publish(at("y/a"), "one", NULL), WEFT_OK, NULL);
    expect(weft_new_folder_end(&held, WEFT_OK, any), WEFT_OK, NULL); /* another's work stays */
    holds(at("y"), "a a.2-1.tmp a.3-1.tmp ");
    holds(at("y/a.3-1.tmp"), "mine ");
}

/* Where names cannot be exchanged, a kill leaves the old folder under a name of its own. */
TEST(test_a_folder_that_lost_its_name_gets_it_back) {
    assert_int_equal(mkdir(at("z"), 0777), 0);
    expect(publish(at("z/a"), "old", NULL), WEFT_OK, NULL);
    assert_int_equal(rename(at("z/a"), at("z/a.1-1.old")), 0);
    weft_new_folder f;
    expect(weft_new_folder_begin(&f, at("z/a")), WEFT_OK, NULL);
    expect(weft_new_folder_end(&f, weft_fail(WEFT_EIO, "no"), any), WEFT_EIO, "no");
    holds(at("z"), "a ");
    holds(at("z/a"), "old ");
}

TEST(test_two_names_are_exchanged) {
    expect(publish(at("w/a"), "one", NULL), WEFT_OK, NULL);
    expect(publish(at("w/b"), "two", NULL), WEFT_OK, NULL);
    expect(weft_folder_exchange(at("w/a"), at("w/b"), at("w/c")), WEFT_OK, NULL);
    holds(at("w"), "a b ");
    holds(at("w/a"), "two ");
    holds(at("w/b"), "one ");
}

/* A mark may be a second name of a file that is not weft's. */
TEST(test_a_mark_that_is_there_is_not_written) {
    char text[32] = "";
    expect(publish(at("v/a"), "one", NULL), WEFT_OK, NULL);
    put(at("v"), "mine", "precious");
    assert_int_equal(unlink(at("v/a/" WEFT_FOLDER_MARK)), 0);
    assert_int_equal(link(at("v/mine"), at("v/a/" WEFT_FOLDER_MARK)), 0);
    expect(publish(at("v/a"), "two", any), WEFT_OK, NULL);
    holds(at("v/a"), "two ");
    FILE *file = fopen(at("v/mine"), "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    assert_string_equal(text, "precious");
}

/* Runs in a process of its own, since it gives up what it may do; its value is the exit status. */
static int alone(int (*body)(int value), int value) {
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(body(value));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* With so many more descriptors than are open. */
static int begin_with(int more) {
    int next = dup(0);
    struct rlimit limit = {(rlim_t)(next + more), (rlim_t)(next + more)};
    weft_new_folder f;
    if (next < 0 || close(next) != 0 || setrlimit(RLIMIT_NOFILE, &limit) != 0) return 2;
    weft_status status = weft_new_folder_begin(&f, at("u/a"));
    if (status == WEFT_OK) status = weft_new_folder_drop(&f, WEFT_OK);
    return status == WEFT_OK ? 0 : 1;
}

TEST(test_a_folder_that_cannot_be_used_is_not_left) {
    int more = 0, failures = 0;
    assert_int_equal(mkdir(at("u"), 0777), 0);
    for (int is = 1; is; more++) {
        assert_true(more < 16);
        is = alone(begin_with, more);
        assert_in_range(is, 0, 1);
        failures += is;
        holds(at("u"), "");
    }
    assert_true(failures >= 3); /* to read the folder above, to hold the new one, to mark it */
}

/* Without a privilege that would let it write anywhere. */
static int replace_closed(int value) {
    (void)value;
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) return 2;
    weft_new_folder f;
    mode_t before = umask(0777); /* a new folder cannot be opened */
    if (weft_new_folder_begin(&f, at("t/b")) != WEFT_EIO) return 3;
    umask(before);
    weft_status room = weft_new_folder_room(at("t/a"), any), done = publish(at("t/a"), "two", any);
    return room == WEFT_EIO && done == WEFT_EIO && strstr(weft_error_message(), "t/a: cannot be")
               ? 0
               : 1;
}

TEST(test_a_folder_that_may_not_be_written_is_not_replaced) {
    expect(publish(at("t/a"), "one", NULL), WEFT_OK, NULL);
    assert_int_equal(chmod(at("."), 0711), 0); /* another user is to reach it */
    assert_int_equal(chmod(at("t"), 0777), 0);
    assert_int_equal(chmod(at("t/a"), 0555), 0);
    assert_int_equal(alone(replace_closed, 0), 0);
    assert_int_equal(chmod(at("t/a"), 0755), 0);
    holds(at("t"), "a ");
    holds(at("t/a"), "one ");
}

RUN_TESTS(scratch_setup, scratch_teardown)
