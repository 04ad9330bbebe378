/* scripts/evidence: every study that it names can be built at the size that it says, and runs from its first
 * step to its report. The whole of each in its smallest form is run by `make test-long`. */
#include "support/command.h"
#include "support/study_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const struct {
    const char *name;
    int runs; /* as the script's head says */
} studies[] = {{"longer", 3},      {"optim", 16},  {"tying", 15}, {"sparse", 15},
               {"latent", 18},     {"mix", 27},    {"ratio", 18}, {"long", 39},
               {"entailment", 15}, {"needle", 20}, {"mup", 48},   {"entailment-long", 9}};
enum { STUDIES = sizeof studies / sizeof studies[0] };

/* The repository's root, from which the tests are run. */
static const char *weft(void) {
    static char path[600];
    char here[400];
    const char *program = getenv("WEFT");
    assert_non_null(program);
    assert_non_null(getcwd(here, sizeof here));
    snprintf(path, sizeof path, "%s%s%s", *program == '/' ? "" : here, *program == '/' ? "" : "/",
             program);
    return path;
}

static void test_every_study_can_be_built_at_its_size(void **state) {
    (void)state;
    for (int i = 0; i < STUDIES; i++) {
        const char *out = scratch_path("list.json");
        shell_succeeds(
            "WEFT='%s' DATA=embedded scripts/evidence %s --device cpu --threads 1 --list "
            "--json >'%s'",
            weft(), studies[i].name, out);
        json_t *all = json_load_file(out, 0, NULL), *step;
        size_t k;
        assert_non_null(all);
        if (json_integer_value(json_object_get(all, "runs")) != studies[i].runs)
            fail_msg("%s has %lld runs, not %d", studies[i].name,
                     (long long)json_integer_value(json_object_get(all, "runs")), studies[i].runs);
        /* Where seeds are compared, how small a difference they can show is said before the first run. */
        json_t *power = json_object_get(json_object_get(all, "power"), "difference");
        if (json_integer_value(json_object_get(all, "seeds")) > 1 &&
            !(json_number_value(power) > 0))
            fail_msg("%s does not say what its seeds can show", studies[i].name);
        json_array_foreach(json_object_get(all, "steps"), k, step) {
            const char *error = json_string_value(json_object_get(step, "error"));
            if (error) fail_msg("%s: %s", studies[i].name, error);
        }
        json_decref(all);
    }
}

/* In a copy of what it reads, so that no run of a user's is touched. */
static void run_small(const char *name) {
    const char *root = scratch_path("root-%s", name);
    shell_succeeds(
        "mkdir -p '%s' && cp -r scripts defconfigs '%s' && WEFT='%s' DATA=embedded TRIM=y "
        "JOBS=2 '%s/scripts/evidence' %s --device cpu --threads 2 >'%s/log' 2>&1 || "
        "{ tail -n 5 '%s/log'; false; }",
        root, root, weft(), root, name, root, root);
}

static void test_a_study_runs_to_its_report(void **state) {
    (void)state;
    run_small("optim");
    const char *folder = scratch_path("root-optim/runs/real-optim");
    assert_int_equal(study_number(folder, "SELECT count(*) FROM runs WHERE status = 'done'"), 10);
    assert_int_equal(study_number(folder, "SELECT count(*) FROM facts WHERE name = 'inside'"), 10);
    char *md = file_read(scratch_path("root-optim/runs/real-optim/report.md"), NULL);
    assert_non_null(strstr(md, "## Inside the models"));
    assert_non_null(strstr(md, "## Loss by position"));
    assert_non_null(strstr(md, "Stated beforehand: 2 seeds"));
    free(md);
}

static void test_all_of_them_run(void **state) {
    (void)state;
    if (!getenv("WEFT_TEST_LONG")) {
        print_message("only with make test-long\n");
        skip();
    }
    for (int i = 0; i < STUDIES; i++)
        run_small(studies[i].name);
    run_small("needle-long");
}

/* The committed database is of the committed config: what is done in it is not run again. */
static void test_the_study_at_124m_goes_on_from_its_database(void **state) {
    (void)state;
    const char *root = scratch_path("root-large"), *log = scratch_path("log-large");
    shell_succeeds("mkdir -p '%s/docs/results' && cp -r scripts defconfigs '%s' && "
                   "cp -r docs/results/data '%s/docs/results' && "
                   "'%s' tokenize --out '%s/data/debian-docs' README.md >/dev/null 2>&1",
                   root, root, root, weft(), root);
    shell_succeeds("WEFT='%s' '%s/scripts/evidence' gpt2-real --steps dot,mla,step3 >'%s' 2>&1 "
                   "|| { tail -n 5 '%s'; false; }",
                   weft(), root, log, log);
    char *said = file_read(log, NULL);
    assert_non_null(strstr(said, "18 of 18 runs done"));
    free(said);
    const char *folder = scratch_path("root-large/runs/gpt2-real");
    assert_int_equal(access(scratch_path("root-large/runs/gpt2-real/runs"), F_OK), -1);
    assert_true(study_number(folder, "SELECT count(*) FROM runs WHERE status = 'done'") >= 21);
}

static void test_an_unknown_name_is_told(void **state) {
    (void)state;
    shell_succeeds("scripts/evidence nothing 2>'%s'; test $? = 2", scratch_path("said"));
    char *said = file_read(scratch_path("said"), NULL);
    assert_non_null(strstr(said, "there is no 'nothing'"));
    free(said);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_study_can_be_built_at_its_size),
        cmocka_unit_test(test_a_study_runs_to_its_report),
        cmocka_unit_test(test_all_of_them_run),
        cmocka_unit_test(test_the_study_at_124m_goes_on_from_its_database),
        cmocka_unit_test(test_an_unknown_name_is_told),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
