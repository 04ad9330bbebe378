/* Every instruction set of the build that this processor runs gives right results: the tests of
 * products and the table of cases are run once more under each but the default, chosen by WEFT_CPU. Of double, for
 * which all sets have the same kernels, that is left out. */
#include "cpu/backend.h"
#include "cpu/matrix.h"

#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const char *folder; /* of this program */

/* Runs the test program and returns its exit status. */
static int run_under(const char *isa, const char *program) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/../%s", folder, program);
    if (access(path, X_OK) != 0) {
        printf("%s is not built: make tests\n", program);
        skip();
    }
    pid_t child = fork();
    if (child == 0) {
        int log = open("/dev/null", O_WRONLY);
        dup2(log, STDOUT_FILENO);
        dup2(log, STDERR_FILENO);
        setenv("WEFT_CPU", isa, 1);
        setenv("WEFT_TEST_NO_DOUBLE", "1", 1);
        execl(path, path, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void test_every_instruction_set_gives_right_results(void **state) {
    (void)state;
    static const char *const programs[] = {"cpu/test_gemm", "ops/test_cases",
                                           "cpu/test_bf16_attention", "cpu/test_cache_attention"};
    const char *isa;
    bool runs;
    for (int i = 0; (isa = weft_cpu_isa_at(i, &runs)); i++) {
        char ran[256] = "";
        for (size_t p = 0;
             runs && strcmp(isa, weft_cpu_isa()) != 0 && p < sizeof programs / sizeof programs[0];
             p++) {
            int status = run_under(isa, programs[p]);
            if (status != 0) fail_msg("WEFT_CPU=%s %s: exit status %d", isa, programs[p], status);
            snprintf(ran + strlen(ran), sizeof ran - strlen(ran), " %s", programs[p]);
        }
        /* For tests/run's closing lines: what else these kernels are for did not run. */
        printf("kernels: %s %s%s\n", isa, runs ? "ran" : "lacks", ran);
    }
}

static void test_an_unknown_instruction_set_is_refused(void **state) {
    (void)state;
    assert_int_not_equal(run_under("abacus", "cpu/test_gemm"), 0);
}

/* What a process held to `isa` has for int8 numbers: 1 SDOT, 2 SMMLA; 4: it does not run the set. */
static int integers_under(const char *isa) {
    pid_t child = fork();
    if (child == 0) {
        setenv("WEFT_CPU", isa, 1);
        _exit(!weft_cpu_backend() ? 4 : weft_cpu_dots_i8() | weft_cpu_tiles_i8() << 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_a_set_without_matrix_instructions_has_none_for_integers(void **state) {
    (void)state;
#if defined(__aarch64__)
    int all = integers_under(""), bf16 = integers_under("neon-bf16");
    assert_int_equal(integers_under("neon"), 0);
    assert_true(bf16 == 4 || bf16 == all);
#else
    assert_int_equal(integers_under("sse2"), 0);
#endif
}

/* A benchmark divides by what the loop says it did: rounds count, and bf16 has a rate of its own exactly
 * where there are instructions for it. */
static void test_work_in_registers_is_counted(void **state) {
    (void)state;
    assert_non_null(weft_cpu_backend());
    bool bf16 = weft_cpu_matrix() != WEFT_MATRIX_NONE;
    assert_true(weft_cpu_work(false, 1) > 0);
    assert_true(weft_cpu_work(false, 1000) == 1000 * weft_cpu_work(false, 1));
    assert_true((weft_cpu_work(true, 1) > 0) == bf16);
    assert_true(weft_cpu_work(true, 1000) == 1000 * weft_cpu_work(true, 1));
}

int main(int argc, char **argv) {
    (void)argc;
    static char own[PATH_MAX];
    snprintf(own, sizeof own, "%s", argv[0]);
    char *slash = strrchr(own, '/');
    if (slash) *slash = 0;
    folder = slash ? own : ".";
    const struct CMUnitTest tests[] = {
        /* first: a process chooses its set once */
        cmocka_unit_test(test_a_set_without_matrix_instructions_has_none_for_integers),
        cmocka_unit_test(test_every_instruction_set_gives_right_results),
        cmocka_unit_test(test_work_in_registers_is_counted),
        cmocka_unit_test(test_an_unknown_instruction_set_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
