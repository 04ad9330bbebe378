/* Files and folders that are worked on with care. */
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/folders.h"
#include "support/fault.h"
#include "support/test.h"

#include <errno.h>
#include <signal.h>
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

TEST(test_a_file_is_replaced_whole_or_not_at_all) {
    weft_new_file f;
    weft_sum sum, read;
    expect(weft_file_write(at("a"), "old", 3, &sum), WEFT_OK, NULL);
    assert_int_equal(sum.crc, weft_crc32c(0, "old", 3));
    expect(weft_file_sum(at("a"), &read), WEFT_OK, NULL);
    assert_true(read.crc == sum.crc && read.bytes == 3);
    expect(weft_new_file_begin(&f, at("a")), WEFT_OK, NULL);
    expect(weft_new_file_put(&f, "new text", 8), WEFT_OK, NULL);
    char *now = file_read(at("a"), NULL);
    assert_string_equal(now, "old");
    free(now);
    expect(weft_new_file_end(&f, weft_fail(WEFT_EINPUT, "no")), WEFT_EINPUT, "no");
    assert_int_not_equal(access(f.beside, F_OK), 0);
    now = file_read(at("a"), NULL);
    assert_string_equal(now, "old");
    free(now);
}

/* What came to have the name meanwhile stays, where nothing is to be replaced. */
/* A new name is on disk when its folder is: where that cannot be said, the file is not called written. */
TEST(test_a_name_that_may_not_last_is_an_error) {
    weft_new_file f;
    struct rlimit was;
    expect(weft_new_file_begin(&f, at("unsynced")), WEFT_OK, NULL);
    expect(weft_new_file_put(&f, "new text", 8), WEFT_OK, NULL);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    /* The folder cannot be opened. */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, was.rlim_max}), 0);
    weft_status status = weft_new_file_end(&f, WEFT_OK);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    expect(status, WEFT_EIO, strerror(EMFILE));
    assert_int_equal(access(at("unsynced"), F_OK), 0);
}

TEST(test_a_name_is_taken_once) {
    weft_new_file f;
    for (int meanwhile = 0; meanwhile < 2; meanwhile++) {
        expect(weft_new_file_begin(&f, at("once")), WEFT_OK, NULL);
        f.once = true;
        weft_new_file_put(&f, "second", 6);
        if (meanwhile) file_write(at("once"), "first", 5);
        expect(weft_new_file_end(&f, WEFT_OK), meanwhile ? WEFT_EINPUT : WEFT_OK,
               meanwhile ? "there already" : NULL);
        assert_int_not_equal(access(f.beside, F_OK), 0);
        char *now = file_read(at("once"), NULL);
        assert_string_equal(now, meanwhile ? "first" : "second");
        free(now);
        assert_int_equal(unlink(at("once")), 0);
    }
}

/* A process that writes `a`: it says so through a pipe, and then waits to be killed or let go. */
static pid_t start_writer(int *said, int *go) {
    int tells[2], waits[2];
    char word;
    assert_int_equal(pipe(tells), 0);
    assert_int_equal(pipe(waits), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        weft_new_file f;
        close(waits[1]);
        bool ok = weft_new_file_begin(&f, at("a")) == WEFT_OK &&
                  weft_new_file_put(&f, "writer", 6) == WEFT_OK && write(tells[1], "x", 1) == 1 &&
                  read(waits[0], &word, 1) == 0 && weft_new_file_end(&f, WEFT_OK) == WEFT_OK;
        _exit(!ok);
    }
    close(tells[1]);
    close(waits[0]);
    *said = tells[0];
    *go = waits[1];
    assert_int_equal(read(*said, &word, 1), 1);
    close(*said);
    return child;
}

static int count_names(void) {
    weft_names names;
    expect(weft_folder_list(at("."), &names), WEFT_OK, NULL);
    int n = names.n;
    weft_names_free(&names);
    return n;
}

TEST(test_what_a_kill_leaves_beside_is_removed_by_the_next_writer) {
    int said, go, status;
    expect(weft_file_write(at("a"), "old", 3, NULL), WEFT_OK, NULL);
    int before = count_names();
    pid_t child = start_writer(&said, &go);
    assert_int_equal(count_names(), before + 1);
    /* It lives: what it writes is left alone, and takes its place. */
    expect(weft_file_write(at("a"), "new", 3, NULL), WEFT_OK, NULL);
    assert_int_equal(count_names(), before + 1);
    close(go);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    char *now = file_read(at("a"), NULL);
    assert_string_equal(now, "writer");
    free(now);

    child = start_writer(&said, &go);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    close(go);
    assert_int_equal(count_names(), before + 1);
    expect(weft_file_write(at("b"), "other", 5, NULL), WEFT_OK, NULL);
    assert_int_equal(count_names(), before + 2);
    expect(weft_file_write(at("a"), "new", 3, NULL), WEFT_OK, NULL);
    assert_int_equal(count_names(), before + 1);
    struct stat is;
    assert_int_equal(stat(at("a"), &is), 0);
    assert_int_equal(is.st_mode & S_ISVTX, 0);
}

TEST(test_only_what_weft_left_beside_is_removed) {
    static const char *const others[] = {"a.12-3.tmp.old", "a.-3.tmp", "a.12-.tmp",
                                         "a.x-3.tmp",      "a.12-3",   "aa.12-3.tmp",
                                         "a12-3.tmp",      "a.12.tmp", "a.12-3-4.tmp"};
    enum { OTHERS = sizeof others / sizeof *others };
    for (int i = 0; i < OTHERS; i++) {
        file_write(at(others[i]), "mine", 4);
        assert_int_equal(chmod(at(others[i]), 01644), 0); /* the mark alone does not do */
    }
    file_write(at("victim"), "mine", 4);
    file_write(at("a.1-1.tmp"), "left", 4);
    assert_int_equal(chmod(at("a.1-1.tmp"), 01644), 0);
    file_write(at("a.6-1.tmp"), "mine", 4); /* without weft's mark */
    assert_int_equal(symlink("victim", at("a.2-1.tmp")), 0);
    assert_int_equal(mkfifo(at("a.3-1.tmp"), 0600), 0);
    assert_int_equal(mkdir(at("a.4-1.tmp"), 0700), 0);
    assert_int_equal(link(at("victim"), at("a.5-1.tmp")), 0);
    assert_int_equal(chmod(at("victim"), 01644), 0);
    expect(weft_file_write(at("a"), "new", 3, NULL), WEFT_OK, NULL);
    assert_int_not_equal(access(at("a.1-1.tmp"), F_OK), 0);
    for (int i = 0; i < OTHERS; i++)
        if (access(at(others[i]), F_OK) != 0) fail_msg("%s is gone", others[i]);
    for (int i = 2; i <= 6; i++) {
        struct stat is;
        char name[32];
        snprintf(name, sizeof name, "a.%d-1.tmp", i);
        if (lstat(at(name), &is) != 0) fail_msg("%s is gone", name);
    }
    char *now = file_read(at("victim"), NULL);
    assert_string_equal(now, "mine");
    free(now);
}

/* The definition, a bit at a time. */
static uint32_t crc_by_bits(const unsigned char *data, size_t bytes) {
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78 : crc >> 1;
    }
    return ~crc;
}

/* Who writes or reads much is alive: other ranks wait for it meanwhile (comm/comm.h). */
TEST(test_long_files_give_signs_of_life) {
    size_t bytes = 5 << 20;
    weft_sum sum;
    char *data = calloc(bytes, 1);
    uint64_t before = atomic_load(&weft_beats);
    assert_int_equal(weft_file_write(scratch_path("long"), data, bytes, &sum), WEFT_OK);
    assert_true(atomic_load(&weft_beats) >= before + 5);
    before = atomic_load(&weft_beats);
    assert_int_equal(weft_file_sum(scratch_path("long"), &sum), WEFT_OK);
    assert_true(atomic_load(&weft_beats) >= before + 5);
    free(data);
}

TEST(test_checksums_are_castagnolis) {
    unsigned char data[100];
    assert_int_equal(weft_crc32c(0, "123456789", 9), 0xe3069283);
    assert_int_equal(weft_crc32c_plain(0, "123456789", 9), 0xe3069283);
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * i * 7 + 3);
    for (size_t from = 0; from < 9; from++)
        for (size_t n = 0; n + from <= sizeof data; n++) {
            uint32_t expected = crc_by_bits(data + from, n);
            assert_int_equal(weft_crc32c(0, data + from, n), expected);
            assert_int_equal(weft_crc32c_plain(0, data + from, n), expected);
            uint32_t part = weft_crc32c(0, data + from, n / 3);
            assert_int_equal(weft_crc32c(part, data + from + n / 3, n - n / 3), expected);
        }
}

TEST(test_only_plain_files_are_read_and_written) {
    char *text;
    size_t bytes;
    int fd;
    assert_int_equal(mkfifo(at("pipe"), 0666), 0);
    assert_int_equal(symlink(at("a"), at("link")), 0);
    expect(weft_file_read(at("pipe"), 100, &text, &bytes), WEFT_EINPUT, "a pipe");
    expect(weft_file_read("/dev/zero", 100, &text, &bytes), WEFT_EINPUT, "a device");
    expect(weft_file_read(at("."), 100, &text, &bytes), WEFT_EINPUT, "a folder");
    expect(weft_file_write(at("pipe"), "x", 1, NULL), WEFT_EINPUT, "a pipe");
    expect(weft_file_write(at("link"), "x", 1, NULL), WEFT_EINPUT, "a link");
    expect(weft_file_open_own(at("link"), &fd), WEFT_EINPUT, "a link");
    expect(weft_file_open_own(at("pipe"), &fd), WEFT_EINPUT, "a pipe");
    file_write(at("long"), "0123456789", 10);
    expect(weft_file_read(at("long"), 9, &text, &bytes), WEFT_EINPUT, "larger");
    expect(weft_file_read(at("long"), 10, &text, &bytes), WEFT_OK, NULL);
    assert_int_equal(bytes, 10);
    free(text);
}

/* What is there and cannot be looked at is not missing: what follows from its absence must not. */
TEST(test_only_nothing_is_missing) {
    bool there = true;
    expect(weft_path_there(at("absent"), &there), WEFT_OK, NULL);
    assert_false(there);
    file_write(at("present"), "", 0);
    expect(weft_path_there(at("present"), &there), WEFT_OK, NULL);
    assert_true(there);
    expect(weft_path_there(at("present/below"), &there), WEFT_OK, NULL);
    assert_false(there);
    assert_int_equal(symlink("absent", at("astray")), 0);
    expect(weft_path_there(at("astray"), &there), WEFT_OK, NULL);
    assert_true(there);
    assert_int_equal(symlink("round", at("round")), 0);
    expect(weft_path_there(at("round/below"), &there), WEFT_EIO, "cannot be looked at");
    assert_false(there);
}

TEST(test_a_path_that_is_too_long_is_refused) {
    char path[WEFT_PATH_MAX], text[WEFT_PATH_MAX + 1];
    memset(text, 'x', WEFT_PATH_MAX);
    text[WEFT_PATH_MAX] = '\0';
    expect(weft_path(path, "%s", text), WEFT_EINPUT, "too long");
    text[WEFT_PATH_MAX - 1] = '\0';
    expect(weft_path(path, "%s", text), WEFT_OK, NULL);
}

/* The longest path that there may be, by way of `.`: a name beside it would be longer. */
TEST(test_a_path_without_room_for_a_file_beside_it_is_refused) {
    char path[WEFT_PATH_MAX];
    size_t n = strlen(strcpy(path, at(".")));
    while (n + 4 < WEFT_PATH_MAX)
        n += strlen(strcpy(path + n, "/."));
    strcpy(path + n, "/z");
    expect(weft_file_write(path, "text", 4, NULL), WEFT_EIO, NULL);
    assert_int_not_equal(access(path, F_OK), 0);
}

TEST(test_folders_are_made_with_those_above) {
    expect(weft_folder_make(at("x/y/z")), WEFT_OK, NULL);
    expect(weft_folder_make(at("x/y/z")), WEFT_OK, NULL);
    file_write(at("plain"), "", 0);
    expect(weft_folder_make(at("plain")), WEFT_EIO, "plain");
    expect(weft_folder_make(at("plain/in")), WEFT_EIO, "plain");
}

TEST(test_only_marked_folders_are_removed) {
    expect(weft_folder_make_marked(at("own")), WEFT_OK, NULL);
    expect(weft_folder_make(at("own/deep/er")), WEFT_OK, NULL);
    file_write(at("own/deep/er/file"), "x", 1);
    expect(weft_folder_make(at("other")), WEFT_OK, NULL);
    file_write(at("other/file"), "x", 1);
    assert_int_equal(symlink(at("other"), at("own/deep/link")), 0);
    expect(weft_folder_remove(at("own")), WEFT_OK, NULL);
    assert_int_not_equal(access(at("own"), F_OK), 0);
    assert_int_equal(access(at("other/file"), F_OK), 0);
    expect(weft_folder_remove(at("other")), WEFT_EINPUT, "did not make");
    assert_int_equal(access(at("other/file"), F_OK), 0);
    /* A mark does not let a link be followed. */
    expect(weft_folder_mark(at("other")), WEFT_OK, NULL);
    assert_int_equal(symlink(at("other"), at("to-other")), 0);
    expect(weft_folder_remove(at("to-other")), WEFT_EINPUT, "a link");
    assert_int_equal(access(at("other/file"), F_OK), 0);
    expect(weft_folder_remove(at("nothing")), WEFT_OK, NULL);
    expect(weft_folder_make(at("empty")), WEFT_OK, NULL);
    expect(weft_folder_remove(at("empty")), WEFT_OK, NULL);
}

TEST(test_names_are_listed_sorted) {
    weft_names names;
    expect(weft_folder_make(at("list")), WEFT_OK, NULL);
    file_write(at("list/b"), "", 0);
    file_write(at("list/a"), "", 0);
    expect(weft_folder_list(at("list"), &names), WEFT_OK, NULL);
    assert_int_equal(names.n, 2);
    assert_string_equal(names.list[0], "a");
    assert_string_equal(names.list[1], "b");
    weft_names_free(&names);
    expect(weft_folder_list(at("no-list"), &names), WEFT_EIO, "no-list");
}

TEST(test_a_finished_file_takes_a_free_name) {
    file_write(at("made-1"), "one", 3);
    file_write(at("made-2"), "two", 3);
    expect(weft_file_take_name(at("made-1"), at("named")), WEFT_OK, NULL);
    expect(weft_file_take_name(at("made-2"), at("named")), WEFT_EINPUT, "there already");
    expect(weft_file_take_name(at("made-2"), at("none/named")), WEFT_EIO, "cannot be written");
    expect(weft_file_take_name(at("made-1"), at("other")), WEFT_EIO, "made-1");
    shell_succeeds("[ \"$(cat '%s' '%s')\" = onetwo ]", at("named"), at("made-2"));
}

/* By a signal, or where a file system takes a part of what it is given: -2 writes only a half. */
TEST(test_an_interrupted_read_or_write_goes_on) {
    static const fault cases[] = {
        {.calls = "write"}, /* unbroken: what the others are held against */
        {.calls = "write", .path = "model.safetensors", .nth = 1, .error = EINTR},
        {.calls = "write", .path = "model.safetensors", .nth = 1, .error = -2},
        {.calls = "read", .path = "state.json", .nth = 1, .error = EINTR},
    };
    fault_need();
    for (int i = 0; i < 4; i++) {
        const char *folder = scratch_path("model-%d", i);
        long count = 0;
        command_result r = fault_run(
            &cases[i],
            RUN("init", "--out", folder, "-o", "N_LAYER=1", "-o", "N_EMBD=8", "-o", "N_HEAD=2"),
            &count);
        if (r.status != 0) fail_msg("case %d: %s", i, r.err);
        assert_true(count > 0);
        command_free(&r);
        file_expect_equal(scratch_path("model-0/model.safetensors"),
                          scratch_path("model-%d/model.safetensors", i));
    }
}

TEST(test_a_file_that_cannot_be_looked_at_is_not_called_something_else) {
    char words[600];
    bool said = false;
    fault_need();
    file_write(at("files.config"), "CONFIG_N_LAYER=1\n", 17);
    snprintf(words, sizeof words, "%s: cannot be looked at: %s", at("files.config"), strerror(EIO));
    for (int i = 1; i <= 2; i++) { /* who reads a config looks at it twice */
        fault f = {.calls = "fstat", .path = "files.config", .nth = i, .error = EIO};
        command_result r = fault_run(&f, RUN("plan", "--config", at("files.config")), NULL);
        if (r.status == 0 || !strstr(r.err, strerror(EIO))) fail_msg("%s", r.err);
        said = said || strstr(r.err, words);
        command_free(&r);
    }
    assert_true(said);
}

/* Taken for one that a kill left; any other reason is told. */
TEST(test_a_new_folder_that_is_taken_away_is_made_again) {
    fault f = {.calls = "open", .path = "taken.", .nth = 1, .error = ENOENT};
    const char *const *words =
        RUN("init", "--out", at("taken"), "-o", "N_LAYER=1", "-o", "N_EMBD=8", "-o", "N_HEAD=2");
    fault_need();
    command_result r = fault_run(&f, words, NULL);
    if (r.status != 0) fail_msg("%s", r.err);
    command_free(&r);
    shell_succeeds("rm -r '%s'", at("taken"));
    f.error = EPERM, f.all = true;
    r = fault_run(&f, words, NULL);
    if (r.status != 1 || !strstr(r.err, strerror(EPERM))) fail_msg("%s", r.err);
    command_free(&r);
    shell_succeeds("! ls -d '%s'* 2>/dev/null", at("taken"));
}

/* Killed when the new folder has the name and the old one is not yet gone: before its first file is, and when
 * it is empty, without the file that said whose it was. */
TEST(test_what_a_kill_leaves_of_a_replaced_folder_is_removed) {
    fault f = {.calls = "unlink,rmdir", .path = "replaced."};
    const char *const *words = RUN("init", "--force", "--out", at("replaced"), "-o", "N_LAYER=1",
                                   "-o", "N_EMBD=8", "-o", "N_HEAD=2");
    long last = 0;
    fault_need();
    command_succeeds(words, NULL);
    command_result r = fault_run(&f, words, &last);
    command_free(&r);
    assert_true(last > 2);
    for (int i = 0; i < 2; i++) {
        f.nth = i ? last : 1;
        r = fault_run(&f, words, NULL);
        assert_int_equal(r.status, -1);
        command_free(&r);
        shell_succeeds("ls -d '%s'.* >/dev/null", at("replaced"));
        command_succeeds(words, NULL);
        shell_succeeds("! ls -d '%s'.* 2>/dev/null", at("replaced"));
    }
}

RUN_TESTS(scratch_setup, scratch_teardown)
