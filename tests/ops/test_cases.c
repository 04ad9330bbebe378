/* Runs the whole case table through every check: tests/ops/CASES.md says what a case is,
 * support/case_checks.h what it is held to.
 *
 * One cmocka test for each line and check, named by both. WEFT_CASES=substring keeps the lines that
 * hold it. Every operation of ops/list.h must be reached by some case, and every builder have one. */
#include "ops/list.h"
#include "support/allocations.h"
#include "support/case_checks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { FAMILIES = CASE_FAMILIES };

/* One check of one line: the state of a cmocka test. */
typedef struct {
    const case_ref *ref;
    bool (*check)(const case_ref *k, char *why);
    char name[256];
} job;

static struct {
    case_line *lines[FAMILIES];
    int n_lines[FAMILIES];
    vectors *kept[FAMILIES];
    case_ref *refs;
    int n_refs;
    int trajectories; /* lines that ops/test_optimizer.c runs */
    job *jobs;
    int n_jobs;
    bool reached[WEFT_OP_COUNT];
    bool filtered;
} table;

static const char *const op_names[] = {
#define OP_NAME(name) #name,
    WEFT_OPS(OP_NAME)
#undef OP_NAME
};

static const case_builder *find_builder(const case_builder *list, const char *name) {
    for (; list && list->name; list++)
        if (!strcmp(list->name, name)) return list;
    return NULL;
}

/* Whole trajectories of an optimizer: not one operation but many steps of several. */
static bool is_trajectory(const case_line *line) {
    return !strcmp(line->name, "adamw") || !strcmp(line->name, "adamwspam") ||
           !strcmp(line->name, "muon");
}

static void test_job(void **state) {
    const job *j = *state;
    char why[CASE_WHY] = "";
    if (!j->check(j->ref, why)) fail_msg("%s", why);
}

#ifdef COUNTS_ALLOCATIONS
static bool check_step_allocates_nothing(const case_ref *k, char *why) {
    return check_allocations(k, count_allocations, why);
}
#else
static void test_step_allocates_nothing(void **state) {
    (void)state;
    printf("malloc cannot be counted here: a sanitizer or another C library owns it\n");
    skip();
}
#endif

/* The line builds in every type: a shape rule that refuses it shows here and nowhere else. */
static bool check_builds(const case_ref *k, char *why) {
    static const weft_dtype types[] = {WEFT_F64, WEFT_F32, WEFT_BF16};
    if (!k->builder) {
        snprintf(why, CASE_WHY, "no builder of this name in case_%s.c", k->family);
        return false;
    }
    for (int t = 0; t < 3; t++) {
        test_case *c =
            case_open(k->line, k->builder, &(case_setup){.dtype = types[t], .graph_only = true});
        if (!c) {
            snprintf(why, CASE_WHY, "%s: %s", weft_dtype_name(types[t]), weft_error_message());
            return false;
        }
        for (int64_t i = 0; i < weft_graph_node_count(c->graph); i++)
            table.reached[weft_graph_node(c->graph, i)->op->id] = true;
        case_close(c);
    }
    return true;
}

static void add_job(const case_ref *ref, const char *what,
                    bool (*check)(const case_ref *k, char *why)) {
    job *j = &table.jobs[table.n_jobs++];
    *j = (job){.ref = ref, .check = check};
    snprintf(j->name, sizeof j->name, "%s: %s", what, ref->line->text);
}

static bool has_gradient(const case_ref *ref) {
    test_case *c =
        case_open(ref->line, ref->builder, &(case_setup){.dtype = WEFT_F64, .graph_only = true});
    bool any = c && case_result_count(c) > c->n_outputs;
    case_close(c);
    return any;
}

static void add_jobs(const case_ref *ref) {
    char why[CASE_WHY];
    add_job(ref, "builds", check_builds);
    if (!check_builds(ref, why)) return;
    /* Double is computed by the same code under every instruction set: cpu/test_instruction_sets leaves it out. */
    bool left_out = getenv("WEFT_TEST_NO_DOUBLE");
    if (!left_out) add_job(ref, "reference f64", check_vectors_f64);
    add_job(ref, "reference f32", check_vectors_f32);
    if (!left_out && has_gradient(ref)) {
        add_job(ref, "differences", check_differences);
        add_job(ref, "alone", check_alone);
    }
    add_job(ref, "bf16", check_bf16);
    add_job(ref, "threads", check_threads);
    add_job(ref, "plan", check_plan);
#ifdef COUNTS_ALLOCATIONS
    add_job(ref, "allocations", check_step_allocates_nothing);
#endif
}

enum { MOST_CHECKS = 10 };

static void load_table(void) {
    const char *filter = getenv("WEFT_CASES");
    table.filtered = filter && *filter;
    int most = 0;
    for (int f = 0; f < FAMILIES; f++) {
        table.n_lines[f] = case_lines_read(case_families[f].name, &table.lines[f]);
        if (table.n_lines[f] < 0) {
            table.n_lines[f] = 0;
            continue;
        }
        table.kept[f] = vectors_open(case_families[f].name, NULL);
        most += table.n_lines[f];
    }
    table.refs = calloc((size_t)most, sizeof *table.refs);
    table.jobs = calloc((size_t)most * MOST_CHECKS, sizeof *table.jobs);
    for (int f = 0; f < FAMILIES; f++)
        for (int i = 0; i < table.n_lines[f]; i++) {
            const case_line *line = &table.lines[f][i];
            if (table.filtered && !strstr(line->text, filter) &&
                strcmp(filter, case_families[f].name) != 0)
                continue;
            if (is_trajectory(line)) {
                table.trajectories++;
                continue;
            }
            case_ref *ref = &table.refs[table.n_refs++];
            *ref = (case_ref){case_families[f].name, line,
                              find_builder(case_families[f].builders, line->name), table.kept[f]};
            add_jobs(ref);
        }
}

static void free_table(void) {
    for (int f = 0; f < FAMILIES; f++) {
        if (table.n_lines[f] > 0) case_lines_free(table.lines[f], table.n_lines[f]);
        vectors_close(table.kept[f]);
    }
    free(table.refs);
    free(table.jobs);
    case_end();
}

static bool has_line(int f, const char *name) {
    for (int i = 0; i < table.n_lines[f]; i++)
        if (!strcmp(table.lines[f][i].name, name)) return true;
    return false;
}

/* The sums that are kept of a tensor notice one element that is off, two that cancel each other, and no number. */
static void test_a_sum_tells_of_every_element(void **state) {
    (void)state;
    enum { N = 300 };
    const vector zeros = {.name = "zeros", .ndim = 1, .shape = {N}, .count = N};
    double got[N] = {0};
    assert_true(vector_gap(&zeros, got) == 0);
    for (int i = 0; i < N; i++) {
        got[i] = 1e-9;
        double gap = vector_gap(&zeros, got);
        assert_true(gap >= 0.5e-9 && gap <= 1e-9);
        got[(i + 1) % N] = -1e-9;
        assert_true(vector_gap(&zeros, got) > 1e-12);
        got[i] = got[(i + 1) % N] = 0;
    }
    got[N - 1] = NAN;
    assert_true(isinf(vector_gap(&zeros, got)));
}

static void test_every_builder_has_a_case(void **state) {
    (void)state;
    bool good = true;
    for (int f = 0; f < FAMILIES; f++)
        for (const case_builder *b = case_families[f].builders; b && b->name; b++)
            if (!has_line(f, b->name)) {
                good = false;
                print_error("cases/%s.txt has no line of %s\n", case_families[f].name, b->name);
            }
    assert_true(good);
}

/* Those of trajectories. */
static bool is_step(int op) {
    return op == WEFT_OP_adamw || op == WEFT_OP_adam_control || op == WEFT_OP_muon_direction ||
           op == WEFT_OP_muon_step;
}

static void test_every_operation_has_a_case(void **state) {
    (void)state;
    bool good = true;
    for (int i = 0; i < WEFT_OP_COUNT; i++) {
        bool stepped = is_step(i);
        /* What works on caches does so over many runs: tests/generate holds it against the whole
         * models of the reference. */
        bool cached = strncmp(op_names[i], "cache_", 6) == 0;
        /* tests/ops/test_optimizer_update has what it sets to zero. */
        bool elsewhere =
            cached || i == WEFT_OP_zero_masked ||
            (stepped && has_line(FAMILIES - 1, "adamw") && has_line(FAMILIES - 1, "muon"));
        if (table.reached[i] || elsewhere) continue;
        good = false;
        print_error("no case reaches the operation %s\n", op_names[i]);
    }
    assert_true(good);
}

static int compare_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* `431 cases, 317 distinct operation x option, over 46 operations` */
static void print_summary(void) {
    int n = 0, distinct = 0, operations = 0;
    for (int f = 0; f < FAMILIES; f++)
        n += table.n_lines[f];
    char **seen = calloc((size_t)n + 1, sizeof *seen);
    int k = 0;
    for (int f = 0; f < FAMILIES; f++)
        for (int i = 0; i < table.n_lines[f]; i++) {
            seen[k] = malloc(256);
            case_line_options(&table.lines[f][i], seen[k++], 256);
        }
    qsort(seen, (size_t)k, sizeof *seen, compare_text);
    for (int i = 0; i < k; i++)
        distinct += i == 0 || strcmp(seen[i], seen[i - 1]) != 0;
    for (int i = 0; i < k; i++)
        free(seen[i]);
    free(seen);
    for (int i = 0; i < WEFT_OP_COUNT; i++)
        operations += table.reached[i] || is_step(i);
    printf("note: case table: %d cases, %d distinct operation x option, over %d operations\n", n,
           distinct, operations);
    fflush(stdout);
}

int main(void) {
    load_table();
    struct CMUnitTest *tests = calloc((size_t)table.n_jobs + 4, sizeof *tests);
    int n = 0;
    for (int i = 0; i < table.n_jobs; i++)
        tests[n++] = (struct CMUnitTest){table.jobs[i].name, test_job, NULL, NULL, &table.jobs[i]};
    if (!table.filtered) {
        tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_a_sum_tells_of_every_element);
        tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_every_builder_has_a_case);
        tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_every_operation_has_a_case);
    }
#ifndef COUNTS_ALLOCATIONS
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_step_allocates_nothing);
#endif
    int failed = _cmocka_run_group_tests("case table", tests, (size_t)n, NULL, NULL);
    if (!table.filtered) print_summary();
    free(tests);
    free_table();
    return failed ? 1 : 0;
}
