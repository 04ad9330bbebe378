/* The products of AVX-512, of its bf16 dot products and of AMX's tiles on any machine: the kernels are
 * compiled over emulated intrinsics (emulated/immintrin.h: SIMDe's, and our own for bf16) as if for a
 * processor that has them, and emulated/products.c runs them. SIMDe is in scripts/setup test. */
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

/* The compiler must see neither the instructions that it has of its own nor ask for those it lacks. */
#define FLAGS                                                                                      \
    "-std=gnu17 -D_GNU_SOURCE -O2 -w -Wno-psabi -U__aarch64__ -U__ARM_NEON -U__ARM_NEON__ "        \
    "-U__SSE2__ -D__SSE2__=1 -D__AVX2__=1 -D__AVX512F__=1 -DSIMDE_NO_NATIVE "                      \
    "-DWEFT_EMULATED_AVX512 '-Dtarget(x)=unused' -DWEFT_ISA=avx512 -DWEFT_REAL=32 "                \
    "-Itests/cpu/emulated -Iinclude -Isrc"
#define SOURCES                                                                                    \
    "tests/cpu/emulated/products.c src/cpu/gemm.c src/cpu/panels.c src/cpu/panel_real.c "          \
    "src/cpu/panel_bf16.c"

static int run(const char *command) {
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_products_of_avx512_and_amx_are_right(void **state) {
    (void)state;
    const char *compiler = getenv("CC");
    if (!compiler || !*compiler) compiler = "cc";
    char program[] = "/tmp/weft-emulated-XXXXXX", command[PATH_MAX];
    snprintf(command, sizeof command,
             "echo '#include <simde/x86/avx512.h>' | %s -E -x c - >/dev/null 2>&1", compiler);
    if (run(command) != 0) {
        printf("no SIMDe (libsimde-dev), which emulates AVX-512: scripts/setup test\n");
        skip();
    }
    int file = mkstemp(program);
    assert_true(file >= 0);
    close(file);
    snprintf(command, sizeof command, "%s " FLAGS " " SOURCES " -o %s -lm", compiler, program);
    int status = run(command);
    snprintf(command, sizeof command, "%s %s", program, getenv("WEFT_TEST_LONG") ? "all" : "");
    if (status == 0) status = run(command);
    unlink(program);
    assert_int_equal(status, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_of_avx512_and_amx_are_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
