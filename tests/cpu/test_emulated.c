/* The kernels of processors that this machine is not, by emulated/products.c, emulated/attention.c,
 * emulated/norms.c and, for generation, emulated/decode.c, which are compiled here. What ran emulated is said
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

#define X86_FLAGS "-mavx2 -mfma -DWEFT_ISA=avx2"
#define ARM_FLAGS "-DWEFT_ISA=neon"
#if defined(__aarch64__)
#define OTHER "x86_64"
#define OTHER_FLAGS X86_FLAGS
#define OWN_FLAGS ARM_FLAGS
#else
#define OTHER "aarch64"
#define OTHER_FLAGS ARM_FLAGS
#define OWN_FLAGS X86_FLAGS
#endif

#define COMPILER OTHER "-linux-gnu-gcc"
#define FLAGS "-std=gnu17 -D_GNU_SOURCE -O2 -DWEFT_REAL=32 -Iinclude -Isrc "
#define KERNEL_FLAGS "-ffp-contract=fast -fno-math-errno -fno-trapping-math -pthread "

/* The compiler must see neither the instructions that it has of its own nor ask for those it lacks. */
#define AVX512_FLAGS                                                                               \
    "-w -Wno-psabi -U__aarch64__ -U__ARM_NEON -U__ARM_NEON__ -U__SSE2__ -D__SSE2__=1 "             \
    "-D__AVX2__=1 -D__AVX512F__=1 -DSIMDE_NO_NATIVE -DWEFT_EMULATED_AVX512 "                       \
    "'-Dtarget(x)=unused' -DWEFT_ISA=avx512 -Itests/cpu/emulated"
#define PRODUCTS                                                                                   \
    "tests/cpu/emulated/products.c src/cpu/gemm.c src/cpu/panels.c src/cpu/panel_real.c "          \
    "src/cpu/panel_bf16.c"
#define DECODE                                                                                     \
    "tests/cpu/emulated/decode.c src/cpu/i8_rows.c src/cpu/few_rows.c "                            \
    "src/cpu/cache_attention.c"
#define ATTENTION                                                                                  \
    "tests/cpu/emulated/attention.c src/cpu/attention.c src/cpu/attention_back.c "                 \
    "src/cpu/attention_bf16.c src/cpu/attention_back_bf16.c src/cpu/panel_bf16.c"

#define NORMS "tests/cpu/emulated/norms.c src/cpu/norm.c"

static int run(const char *command) {
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Compiles a program and runs it, by `runner` where it is not empty. */
static void build_and_run(const char *compiler, const char *flags, const char *sources,
                          const char *runner) {
    char program[] = "/tmp/weft-emulated-XXXXXX", command[PATH_MAX];
    int file = mkstemp(program);
    assert_true(file >= 0);
    close(file);
    snprintf(command, sizeof command, "%s " FLAGS "%s %s -o %s -lm", compiler, flags, sources,
             program);
    int status = run(command);
    snprintf(command, sizeof command, "%s %s %s", runner, program,
             getenv("WEFT_TEST_LONG") ? "all" : "");
    if (status == 0) status = run(command);
    unlink(program);
    assert_int_equal(status, 0);
}

static const char *own_compiler(void) {
    const char *compiler = getenv("CC");
    return compiler && *compiler ? compiler : "cc";
}

static void run_under_qemu(const char *sources) {
    if (run("command -v " COMPILER " >/dev/null && command -v qemu-" OTHER " >/dev/null") != 0) {
        printf("no " COMPILER " or no qemu-" OTHER ": scripts/setup emulator\n");
        skip();
    }
    build_and_run(COMPILER, KERNEL_FLAGS OTHER_FLAGS, sources,
                  "qemu-" OTHER " -cpu max -L /usr/" OTHER "-linux-gnu");
}

/* Says to tests/run that the kernels in `sources` ran emulated by each of the instruction sets. */
static void say_emulated(const char *sets, const char *sources) {
    char set[32], kernel[64];
    for (int n; sscanf(sets, "%31s%n", set, &n) == 1; sets += n) {
        printf("kernels: %s emulated", set);
        for (const char *at = sources; (at = strstr(at, "src/cpu/")); at++)
            if (sscanf(at, "src/cpu/%63[a-z0-9_]", kernel) == 1) printf(" %s.32", kernel);
        printf("\n");
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
static bool run_best(const char *sources) {
    if (!has_best() && run("command -v qemu-aarch64 >/dev/null") != 0) return false;
    build_and_run(own_compiler(), KERNEL_FLAGS OWN_FLAGS, sources,
                  has_best() ? "" : "qemu-aarch64 -cpu max");
    if (!has_best()) say_emulated("neon-bf16", sources);
    return true;
}

/* `optimized`: what takes the compiler longer than it runs is compiled by -O1. */
static void run_over_simde(const char *sets, const char *sources, const char *optimized) {
    char command[PATH_MAX];
    snprintf(command, sizeof command,
             "echo '#include <simde/x86/avx512.h>' | %s -E -x c - >/dev/null 2>&1", own_compiler());
    if (run(command) != 0) {
        printf("no SIMDe (libsimde-dev), which emulates AVX-512: scripts/setup test\n");
        skip();
    }
    snprintf(command, sizeof command, "%s %s", AVX512_FLAGS, optimized);
    build_and_run(own_compiler(), command, sources, "");
    say_emulated(sets, sources);
}

static void test_products_of_the_other_architecture_are_right(void **state) {
    (void)state;
    run_under_qemu(PRODUCTS);
}

static void test_generation_of_the_other_architecture_is_right(void **state) {
    (void)state;
    run_under_qemu(DECODE);
}

static void test_norms_of_the_other_architecture_are_right(void **state) {
    (void)state;
    run_under_qemu(NORMS);
}

static void test_norms_of_avx512_are_right(void **state) {
    (void)state;
    run_over_simde("avx512", NORMS, "-O2");
}

static void test_products_of_avx512_and_amx_are_right(void **state) {
    (void)state;
    run_over_simde("avx512 avx512-bf16 amx", PRODUCTS, "-O2");
}

static void test_generation_of_avx512_and_amx_is_right(void **state) {
    (void)state;
    run_over_simde("avx512 avx512-bf16 amx", DECODE, "-O1");
}

static void test_attention_of_avx512_and_amx_is_right(void **state) {
    (void)state;
    run_over_simde("avx512-bf16 amx", ATTENTION, "-O1");
}

static void test_attention_of_the_other_architecture_is_right(void **state) {
    (void)state;
    run_under_qemu(ATTENTION);
}

#if defined(__aarch64__)
static void test_attention_and_products_of_this_architecture_are_right(void **state) {
    (void)state;
    /* Products of a processor that has them are in test_gemm. */
    if (!run_best(ATTENTION) || (!has_best() && !run_best(PRODUCTS))) {
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
    if (!run_best(DECODE)) build_and_run(own_compiler(), KERNEL_FLAGS OWN_FLAGS, DECODE, "");
}

int main(void) {
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
