/* The products of the architecture that this machine is not, under qemu-user: AVX2 on aarch64, NEON and
 * BFMMLA on x86-64. emulated/products.c is the program; it is compiled here, by a cross compiler. Both
 * are in scripts/setup emulator. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#if defined(__aarch64__)
#define OTHER "x86_64"
#define OTHER_FLAGS "-mavx2 -mfma -DWEFT_ISA=avx2"
#else
#define OTHER "aarch64"
#define OTHER_FLAGS "-DWEFT_ISA=neon"
#endif

#define COMPILER OTHER "-linux-gnu-gcc"
#define FLAGS                                                                                      \
    "-std=gnu17 -D_GNU_SOURCE -O2 -ffp-contract=fast -fno-math-errno -fno-trapping-math "          \
    "-DWEFT_REAL=32 -Iinclude -Isrc -pthread " OTHER_FLAGS
#define SOURCES                                                                                    \
    "tests/cpu/emulated/products.c src/cpu/gemm.c src/cpu/panels.c src/cpu/panel_real.c "          \
    "src/cpu/panel_bf16.c"

static int run(const char *command) {
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_products_of_the_other_architecture_are_right(void **state) {
    (void)state;
    if (run("command -v " COMPILER " >/dev/null && command -v qemu-" OTHER " >/dev/null") != 0) {
        printf("no " COMPILER " or no qemu-" OTHER ": scripts/setup emulator\n");
        skip();
    }
    char program[] = "/tmp/weft-emulated-XXXXXX", command[PATH_MAX];
    int file = mkstemp(program);
    assert_true(file >= 0);
    close(file);
    snprintf(command, sizeof command, COMPILER " " FLAGS " " SOURCES " -o %s -lm", program);
    assert_int_equal(run(command), 0);
    snprintf(command, sizeof command, "qemu-" OTHER " -cpu max -L /usr/" OTHER "-linux-gnu %s %s",
             program, getenv("WEFT_TEST_LONG") ? "all" : "");
    int status = run(command);
    unlink(program);
    assert_int_equal(status, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_of_the_other_architecture_are_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
