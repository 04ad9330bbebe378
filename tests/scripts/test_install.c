/* What `make install` installs works away from the repository: the program with its ready studies,
 * completion, man page, headers and library; and `make uninstall` leaves nothing. */
#include "support/command.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OUTPUT_MOST = 1 << 16 };

/* What a line of shell prints; `there` is where it is installed. */
static char *shell_prints(const char *format, ...) {
    static char output[OUTPUT_MOST];
    char line[4096], command[4600];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    snprintf(command, sizeof command, "there='%s'; PATH=\"$there/usr/bin:$PATH\"; %s",
             scratch_path("root"), line);
    FILE *out = popen(command, "r");
    assert_non_null(out);
    size_t n = fread(output, 1, sizeof output - 1, out);
    output[n] = '\0';
    int status = pclose(out);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("%s: exit %d: %s", line, WEXITSTATUS(status), output);
    return output;
}

static void expect_prints(const char *line, const char *words) {
    char *output = shell_prints("%s", line);
    if (!strstr(output, words)) fail_msg("%s: '%s' is not in: %.2000s", line, words, output);
}

/* The library is built by `make build`; a test alone may run without it. */
static bool is_installed(void) {
    static int done = -1;
    char line[2048];
    snprintf(
        line, sizeof line,
        "make -s install-files SETUP=no PREFIX=/usr LIBDIR=/usr/lib DESTDIR='%s' >/dev/null 2>&1",
        scratch_path("root"));
    if (done < 0) done = system(line) == 0;
    return done;
}

#define NEEDS_INSTALL()                                                                            \
    if (!is_installed()) {                                                                         \
        print_message("nothing to install: make build was not run\n");                             \
        skip();                                                                                    \
    }

TEST(test_ready_studies_are_found_by_name) {
    NEEDS_INSTALL();
    expect_prints("cd \"$there\" && weft study --config demo --list --json", "116480");
    expect_prints("cd \"$there\" && weft plan --config w2-recall --json", "parameters");
    /* A file of that name in the working folder comes first. */
    expect_prints("mkdir -p \"$there/x\" && cd \"$there/x\" && echo 'CONFIG_N_EMBD=oops' > demo && "
                  "weft plan --config demo 2>&1 || true",
                  "demo:1: CONFIG_N_EMBD");
}

TEST(test_completion_knows_commands_options_keys_and_studies) {
    NEEDS_INSTALL();
#define COMPLETE                                                                                   \
    "bash -c 'source \"$0\"; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _weft 2>/dev/null; "     \
    "echo \"${COMPREPLY[@]}\"' \"$there/usr/share/bash-completion/completions/weft\" "
    expect_prints(COMPLETE "weft stu", "study");
    expect_prints(COMPLETE "weft train --resu", "--resume");
    expect_prints(COMPLETE "weft train -o N_LAY", "N_LAYER=");
    expect_prints(COMPLETE "weft study --config reci", "reciprocal");
    expect_prints(COMPLETE "weft train --device c", "cpu cuda");
    expect_prints(COMPLETE "weft help conf", "config");
}

/* As a person does: a zsh of its own on a terminal, letters and Tab. */
TEST(test_zsh_completes) {
    NEEDS_INSTALL();
    if (system("command -v zsh >/dev/null") != 0) {
        print_message("there is no zsh\n");
        skip();
    }
    char *said =
        shell_prints("zsh -f tests/scripts/complete.zsh \"$there\" 'weft stu' "
                     "'weft train --resu' 'weft train -o N_LAY' 'weft study --config reci' "
                     "'weft help conf' 'weft train --device cu' 'weft inspect READ'");
    static const char *const expected[] = {"weft study",
                                           "weft train --resume",
                                           "weft train -o N_LAYER=",
                                           "weft study --config reciprocal",
                                           "weft help config",
                                           "weft train --device cuda",
                                           "weft inspect README.md"};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        if (!strstr(said, expected[i])) fail_msg("'%s' is not in: %s", expected[i], said);
}

TEST(test_the_archive_of_the_sources_knows_its_commit) {
    if (system("git rev-parse HEAD >/dev/null 2>&1") != 0) {
        print_message("this is no clone\n");
        skip();
    }
    expect_prints("make -s dist BUILD=\"$there/dist\"", ".tar.gz");
    shell_prints("tar -C \"$there/dist\" -xf \"$there\"/dist/weft-*.tar.gz");
    expect_prints(
        "test \"$(cat \"$there\"/dist/weft-*/.commit)\" = \"$(git rev-parse HEAD)\" && echo same",
        "same");
    /* For pip it is an sdist, whose backend is in it. */
    expect_prints("cat \"$there\"/dist/weft-*/PKG-INFO", "Name: weft");
    expect_prints("cat \"$there\"/dist/weft-*/python/backend.py", "def build_sdist");
}

/* The package holds what is installed, and says what it needs. */
TEST(test_a_debian_package_can_be_unpacked_and_run) {
    NEEDS_INSTALL();
    if (system("command -v dpkg-deb >/dev/null") != 0) {
        print_message("there is no dpkg-deb\n");
        skip();
    }
    expect_prints("DPKG_DEB_OPTIONS='-Zgzip -z1' scripts/deb \"$there/deb\" \"$(weft version | sed "
                  "-n 's/^weft "
                  "\\([0-9.]*\\).*/\\1/p')\" make SETUP=no 2>&1",
                  "/weft_");
    expect_prints("dpkg-deb -f \"$there\"/deb/weft_*.deb Depends", "libjansson");
    shell_prints("dpkg-deb -x \"$there\"/deb/weft_*.deb \"$there/unpacked\"");
    expect_prints("cd / && \"$there/unpacked/usr/bin/weft\" study --config demo --list", "116,480");
    expect_prints("\"$there/unpacked/usr/share/weft/scripts/export\" --help", "--wandb");
    /* As Debian wants it. */
    expect_prints("zcat \"$there/unpacked/usr/share/doc/weft/changelog.gz\"", "weft (0.");
    expect_prints("dpkg-deb -I \"$there\"/deb/weft_*.deb shlibs", "libweft 0 weft (>= 0.");
    expect_prints("dpkg-deb -c \"$there\"/deb/weft_*.deb | grep 'libweft.so.0\\.'", "-rw-r--r--");
    /* Where Debian's zsh looks. */
    expect_prints("ls \"$there/unpacked/usr/share/zsh/vendor-completions\"", "_weft");
}

/* What make wheel packs, before auditwheel puts the system's libraries in; tests/packages has the whole. */
TEST(test_a_wheel_brings_the_program_and_its_studies) {
    NEEDS_INSTALL();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("Python does not load a library with sanitizers\n");
    skip();
#endif
#define PYTHON                                                                                     \
    "built=$(realpath \"$(dirname \"${WEFT##* }\")\"); python=$built/wheel-venv/bin/python; "      \
    "[ -x \"$python\" ] || python=python3; "
    if (system(PYTHON "\"$python\" -c 'import setuptools.command.bdist_wheel, pip' 2>/dev/null") !=
        0) {
        print_message("python3 has no setuptools 70 and pip; make wheel fetches them\n");
        skip();
    }
    shell_prints(PYTHON "cd python && WEFT_LIBRARY=\"$built/libweft.so\" \"$python\" setup.py -q "
                        "egg_info --egg-base \"$there\" bdist_wheel -d \"$there/wheel\" 2>&1");
    expect_prints("ls \"$there/wheel\"", "-py3-none-linux_");
    shell_prints(PYTHON "\"$python\" -m pip install -q --no-deps --no-index --target "
                        "\"$there/site\" \"$there\"/wheel/weft-*.whl 2>&1");
    expect_prints("cd / && PYTHONPATH=\"$there/site\" \"$there/site/bin/weft\" study --config demo "
                  "--list",
                  "116,480");
    expect_prints("cd / && PYTHONPATH=\"$there/site\" python3 -m weft",
                  "/site/weft/_lib/libweft.so");
    assert_string_equal(shell_prints("ls -d python/build python/weft/_lib 2>/dev/null || true"),
                        "");
}

TEST(test_the_man_page_has_every_command) {
    NEEDS_INSTALL();
    char *missing = shell_prints(
        "weft help | sed -n 's/^  \\([a-z][a-z]*\\)  .*/\\1/p' | while read -r name; do "
        "grep -q \"^\\.BR $name\" \"$there/usr/share/man/man1/weft.1\" || echo \"$name\"; done");
    assert_string_equal(missing, "");
    expect_prints("cat \"$there/usr/share/man/man1/weft.1\"", "weft 0.");
}

TEST(test_an_example_compiles_against_what_is_installed) {
    NEEDS_INSTALL();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("a library with sanitizers wants a program with them\n");
    skip();
#endif
    if (getenv("COVERAGE")) {
        print_message("a library with counters wants a program with them\n");
        skip();
    }
    if (system("pkg-config --version >/dev/null 2>&1") != 0) {
        print_message("there is no pkg-config\n");
        skip();
    }
    shell_prints("cd \"$there\" && export PKG_CONFIG_SYSROOT_DIR=\"$there\" "
                 "PKG_CONFIG_PATH=\"$there/usr/lib/pkgconfig:$PKG_CONFIG_PATH\" && "
                 "${CC:-cc} usr/share/doc/weft/examples/block.c -o block $(pkg-config --cflags "
                 "--libs weft) -lm 2>&1");
    expect_prints("ls \"$there/block\" \"$there/usr/share/doc/weft/docs/guide/studies.md\"",
                  "block");
}

TEST(test_uninstall_leaves_nothing) {
    NEEDS_INSTALL();
    char line[2048];
    snprintf(line, sizeof line,
             "make -s uninstall SETUP=no PREFIX=/usr LIBDIR=/usr/lib DESTDIR='%s' >/dev/null 2>&1",
             scratch_path("root"));
    assert_int_equal(system(line), 0);
    assert_string_equal(shell_prints("find \"$there/usr\" ! -type d"), "");
    assert_string_equal(shell_prints("find \"$there/usr/share\" -name 'weft*'"), "");
}

RUN_TESTS(scratch_setup, scratch_teardown)
