/* The kernels of processors that this machine is not, by emulated/products.c, emulated/attention.c,
 * emulated/norms.c and, for generation, emulated/decode.c: mk/emulated.mk compiles them. What ran emulated is said
 * for the closing lines of tests/run.
 *
 * Of the other architecture under qemu-user: AVX2 on aarch64, NEON, BFMMLA and SMMLA on x86-64. The cross
 * compiler and qemu are in scripts/setup emulator. Of this architecture under qemu-user, where this processor
 * lacks BFMMLA.
 *
 * Of AVX-512, its dot products of bf16 and of bytes and AMX's tiles over emulated intrinsics
 * (emulated/immintrin.h: SIMDe's, and our own for bf16), as if for a processor that has them. SIMDe is in
 * scripts/setup test. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#if defined(__aarch64__)
#define OTHER "x86_64"
#else
#define OTHER "aarch64"
#endif

static char folder[PATH_MAX]; /* of the emulated programs */

static int run(const char *command) {
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Runs a program, by `runner` where it is not empty. `missing`: why it may not be there. */
static void run_program(const char *set, const char *part, const char *runner,
                        const char *missing) {
    char program[2 * PATH_MAX], command[3 * PATH_MAX];
    snprintf(program, sizeof program, "%s/%s-%s", folder, set, part);
    if (access(program, X_OK) != 0) {
        if (!missing) fail_msg("%s is not built: make tests", program);
        printf("%s\n", missing);
        skip();
    }
    snprintf(command, sizeof command, "%s '%s' %s", runner, program,
             getenv("WEFT_TEST_LONG") ? "all" : "");
    assert_int_equal(run(command), 0);
}

static void run_under_qemu(const char *part) {
    run_program("other", part, "qemu-" OTHER " -cpu max -L /usr/" OTHER "-linux-gnu",
                "no " OTHER "-linux-gnu-gcc or no qemu-" OTHER ": scripts/setup emulator");
}

/* Says to tests/run that the kernels of a part, as built, ran emulated by each of the instruction sets. */
static void say_emulated(const char *sets, const char *built, const char *part) {
    char path[2 * PATH_MAX], set[32], kernel[64];
    for (int n; sscanf(sets, "%31s%n", set, &n) == 1; sets += n) {
        snprintf(path, sizeof path, "%s/%s-%s.kernels", folder, built, part);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        printf("kernels: %s emulated", set);
        while (fscanf(file, "%63s", kernel) == 1)
            printf(" %s.32", kernel);
        printf("\n");
        fclose(file);
    }
}

/* Whether this processor runs all that its architecture has here. */
static bool has_best(void) {
#if defined(__aarch64__)
    enum { BF16 = 1 << 14 };
    return getauxval(AT_HWCAP2) & BF16;
#else
    return true;
#endif
}

/* For this architecture: by its best instructions, under qemu where this processor lacks them. False: there is
 * neither. */
static bool run_best(const char *part) {
    if (!has_best() && run("command -v qemu-aarch64 >/dev/null") != 0) return false;
    run_program("own", part, has_best() ? "" : "qemu-aarch64 -cpu max", NULL);
    if (!has_best()) say_emulated("neon-bf16", "own", part);
    return true;
}

static void run_over_simde(const char *sets, const char *part) {
    run_program("avx512", part, "",
                "no SIMDe (libsimde-dev), which emulates AVX-512: scripts/setup test");
    say_emulated(sets, "avx512", part);
}

static void test_products_of_the_other_architecture_are_right(void **state) {
    (void)state;
    run_under_qemu("products");
}

static void test_generation_of_the_other_architecture_is_right(void **state) {
    (void)state;
    run_under_qemu("decode");
}

static void test_norms_of_the_other_architecture_are_right(void **state) {
    (void)state;
    run_under_qemu("norms");
}

static void test_norms_of_avx512_are_right(void **state) {
    (void)state;
    run_over_simde("avx512", "norms");
}

static void test_products_of_avx512_and_amx_are_right(void **state) {
    (void)state;
    run_over_simde("avx512 avx512-bf16 amx", "products");
}

static void test_generation_of_avx512_and_amx_is_right(void **state) {
    (void)state;
    run_over_simde("avx512 avx512-bf16 amx", "decode");
}

static void test_attention_of_avx512_and_amx_is_right(void **state) {
    (void)state;
    run_over_simde("avx512-bf16 amx", "attention");
}

static void test_attention_of_the_other_architecture_is_right(void **state) {
    (void)state;
    run_under_qemu("attention");
}

#if defined(__aarch64__)
static void test_attention_and_products_of_this_architecture_are_right(void **state) {
    (void)state;
    /* Products of a processor that has them are in test_gemm. */
    if (!run_best("attention") || (!has_best() && !run_best("products"))) {
        printf(
            "this processor has no BFMMLA, and there is no qemu-aarch64: scripts/setup emulator\n");
        skip();
    }
}
#endif

/* The same program on this machine: by each of the instructions that it has. */
static void test_generation_of_this_architecture_is_right(void **state) {
    (void)state;
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        printf("this processor has no AVX2\n");
        skip();
    }
#endif
    if (!run_best("decode")) run_program("own", "decode", "", NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    char *slash = strrchr(argv[0], '/');
    snprintf(folder, sizeof folder, "%.*s/emulated", slash ? (int)(slash - argv[0]) : 1,
             slash ? argv[0] : ".");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_of_avx512_and_amx_are_right),
        cmocka_unit_test(test_generation_of_avx512_and_amx_is_right),
        cmocka_unit_test(test_attention_of_avx512_and_amx_is_right),
        cmocka_unit_test(test_generation_of_this_architecture_is_right),
#if defined(__aarch64__)
        cmocka_unit_test(test_attention_and_products_of_this_architecture_are_right),
#endif
        cmocka_unit_test(test_products_of_the_other_architecture_are_right),
        cmocka_unit_test(test_generation_of_the_other_architecture_is_right),
        cmocka_unit_test(test_attention_of_the_other_architecture_is_right),
        cmocka_unit_test(test_norms_of_avx512_are_right),
        cmocka_unit_test(test_norms_of_the_other_architecture_are_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
