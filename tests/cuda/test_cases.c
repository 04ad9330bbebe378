/* The whole case table on the GPU, against the CPU.
 *
 * A case is drawn anew (not the kept values), runs on the GPU in f32 and in bf16 with its arena
 * full of NaN, and is compared with the CPU in f64 from the same rounded inputs. It runs twice more
 * than once: the first run goes kernel by kernel, the second is captured, the third replays it; all
 * must give the same bits. tests/cuda/cases has lines of sizes that only matter here.
 *
 *   WEFT_CASES=text   only lines that hold it, or that family
 *   WEFT_QUICK=1      one line of each operation, and in bf16 one for every pair of widths that the
 *                     tensor cores' attention and routing take: what compute-sanitizer is run on */
#include "cuda/backend.h"
#include "ops/list.h"
#include "support/case_run.h"
#include "support/test.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { WHY = 512, SALT = 0x5bd1e995 };

/* What a family came to in one type. */
typedef struct {
    int cases, failed;
    double worst;       /* the largest difference as a share of what is allowed */
    double worst_gap;   /* and as it is, relative to the largest value */
    char worst_at[256]; /* whose it was */
    char first[WHY];    /* why the first failed */
} tally;

static bool missing[WEFT_OP_COUNT]; /* operations without a kernel that a case asked for */
static const char *const op_names[] = {
#define OP_NAME(name) #name,
    WEFT_OPS(OP_NAME)
#undef OP_NAME
};

static double max_abs(const double *a, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(a[i]));
    return most;
}

/* What a result may differ by. f32: twice what the CPU is held to (the GPU's exp and tanh are two
 * units off where the CPU's are one); bf16: as the CPU. */
static double tolerance(const test_case *c, const case_result *r, double size) {
    if (c->dtype == WEFT_BF16) return (r->is_grad ? c->loosen : 1) * 0x1p-7 * fmax(size, 0x1p-13);
    return 2 * (r->is_grad ? 1e-5 : 4e-6) * c->loosen * fmax(1, size);
}

/* One result against the CPU's. */
static bool compare_result(test_case *gpu, test_case *cpu, int i, tally *t, char *why) {
    case_result g = case_result_at(gpu, i), r = case_result_at(cpu, i);
    double *got = case_result_values(gpu, &g), *want = case_result_values(cpu, &r);
    bool exact = !strcmp(gpu->line->name, "cast"), good = got && want;
    if (!good) snprintf(why, WHY, "%s cannot be read: %s", g.name, weft_error_message());
    double size = good ? max_abs(want, r.count) : 0;
    double allowed = good && !exact ? tolerance(gpu, &r, size) : 0;
    for (int64_t k = 0; good && k < r.count; k++) {
        double gap = fabs(got[k] - want[k]);
        if (allowed > 0 && gap / allowed > t->worst) {
            t->worst = gap / allowed;
            t->worst_gap = gap / fmax(size, 1e-30);
            snprintf(t->worst_at, sizeof t->worst_at, "%s of %.200s", g.name, gpu->line->text);
        }
        good = gap <= allowed;
        if (!good)
            snprintf(why, WHY, "%s[%lld of %lld] is %.9g, the CPU has %.9g: differs by %.3g > %.3g",
                     g.name, (long long)k, (long long)r.count, got[k], want[k], gap, allowed);
    }
    free(got);
    free(want);
    return good;
}

typedef struct {
    void *bytes[2 * CASE_MOST];
    int64_t size[2 * CASE_MOST];
    int n;
} bits;

static void take_bits(test_case *c, bits *b) {
    b->n = case_result_count(c);
    for (int i = 0; i < b->n; i++) {
        case_result r = case_result_at(c, i);
        b->bytes[i] = case_result_bytes(c, &r, &b->size[i]);
    }
}

static void drop_bits(bits *b) {
    for (int i = 0; i < b->n; i++)
        free(b->bytes[i]);
}

static bool run_again(test_case *c, const bits *first, const char *what, char *why) {
    bits now;
    if (case_run(c) != WEFT_OK) {
        snprintf(why, WHY, "%s: %s", what, weft_error_message());
        return false;
    }
    take_bits(c, &now);
    bool same = true;
    for (int i = 0; same && i < now.n; i++) {
        same = now.bytes[i] && first->bytes[i] &&
               memcmp(now.bytes[i], first->bytes[i], (size_t)now.size[i]) == 0;
        if (!same) snprintf(why, WHY, "%s of %s has other bits", case_result_at(c, i).name, what);
    }
    drop_bits(&now);
    return same;
}

static void note_missing(const case_line *line, const case_builder *builder, weft_dtype dtype) {
    test_case *c = case_open(line, builder, &(case_setup){.dtype = dtype, .graph_only = true});
    for (int64_t i = 0; c && i < weft_graph_node_count(c->graph); i++) {
        const weft_node *n = weft_graph_node(c->graph, i);
        if (!weft_cuda_backend()->kernel(n)) missing[n->op->id] = true;
    }
    case_close(c);
}

static bool run_case(const case_line *line, const case_builder *builder, weft_dtype dtype, tally *t,
                     char *why) {
    case_setup setup = {.dtype = dtype, .backend = weft_cuda_backend(), .salt = SALT};
    test_case *gpu = case_open(line, builder, &setup);
    if (!gpu || case_run(gpu) != WEFT_OK) {
        snprintf(why, WHY, "%s", weft_error_message());
        if (!gpu) note_missing(line, builder, dtype);
        case_close(gpu);
        return false;
    }
    weft_dtype exact = strcmp(line->name, "cast") ? WEFT_F64 : dtype;
    test_case *cpu = case_open(line, builder, &(case_setup){.dtype = exact, .values_of = gpu});
    bool good = cpu && case_run(cpu) == WEFT_OK;
    if (!good) snprintf(why, WHY, "on the CPU: %s", weft_error_message());
    for (int i = 0; good && i < case_result_count(gpu); i++)
        good = compare_result(gpu, cpu, i, t, why);
    bits first;
    take_bits(gpu, &first);
    good = good && run_again(gpu, &first, "the captured run", why) &&
           run_again(gpu, &first, "the replayed run", why);
    drop_bits(&first);
    case_close(cpu);
    case_close(gpu);
    return good;
}

static const case_builder *find_builder(const case_builder *list, const char *name) {
    for (; list && list->name; list++)
        if (!strcmp(list->name, name)) return list;
    return NULL;
}

static const char *value_of(const case_line *line, const char *key) {
    for (int i = 0; i < line->n; i++)
        if (!strcmp(line->key[i], key)) return line->value[i];
    return "";
}

/* Whether two lines have one operation and, in bf16, widths of heads and positions too. */
static bool same_kernels(const case_line *a, const case_line *b, weft_dtype dtype) {
    static const char *const keys[] = {"Q", "V", "pos"};
    if (strcmp(a->name, b->name) != 0) return false;
    for (size_t i = 0; dtype == WEFT_BF16 && i < sizeof keys / sizeof *keys; i++)
        if (strcmp(value_of(a, keys[i]), value_of(b, keys[i])) != 0) return false;
    return true;
}

static bool is_wanted(const case_family *f, const case_line *lines, int i, weft_dtype dtype) {
    const char *filter = getenv("WEFT_CASES");
    if (filter && *filter && !strstr(lines[i].text, filter) && strcmp(filter, f->name) != 0)
        return false;
    if (!test_is_quick()) return true;
    for (int k = 0; k < i; k++)
        if (same_kernels(&lines[k], &lines[i], dtype)) return false;
    return true;
}

static void run_lines(const case_family *f, const char *path, weft_dtype dtype, tally *t) {
    case_line *lines;
    int n = case_lines_read_file(path, &lines);
    if (n < 0) fail_msg("%s cannot be read", path);
    for (int i = 0; i < n; i++) {
        const case_builder *builder = find_builder(f->builders, lines[i].name);
        char why[WHY] = "";
        /* An optimizer's trajectory has no builder: whole trainings hold it. */
        if (!builder || !is_wanted(f, lines, i, dtype)) continue;
        t->cases++;
        if (run_case(&lines[i], builder, dtype, t, why)) continue;
        if (!t->failed++) snprintf(t->first, sizeof t->first, "%.200s: %.300s", lines[i].text, why);
        print_error("%s, %s: %s\n", weft_dtype_name(dtype), lines[i].text, why);
    }
    case_lines_free(lines, n);
}

static void skip_without_gpu(void) {
    if (weft_cuda_backend()) return;
    printf("%s\n", weft_error_message());
    skip();
}

static void run_family(const case_family *f, weft_dtype dtype) {
    tally t = {0};
    char path[128];
    skip_without_gpu();
    snprintf(path, sizeof path, "tests/ops/cases/%s.txt", f->name);
    run_lines(f, path, dtype, &t);
    snprintf(path, sizeof path, "tests/cuda/cases/%s.txt", f->name);
    if (access(path, R_OK) == 0) run_lines(f, path, dtype, &t);
    if (t.cases == 0) skip();
    printf("note: %-13s %-4s %3d cases, %3d failed; worst %.2g (%.0f%% of what is allowed): %s\n",
           f->name, weft_dtype_name(dtype), t.cases, t.failed, t.worst_gap, 100 * t.worst,
           t.worst_at);
    fflush(stdout);
    if (t.failed) fail_msg("%d of %d cases failed; the first: %s", t.failed, t.cases, t.first);
}

static void test_f32_equals_the_cpu(void **state) {
    run_family(*state, WEFT_F32);
}

static void test_bf16_equals_the_cpu(void **state) {
    run_family(*state, WEFT_BF16);
}

static void test_every_operation_has_a_kernel(void **state) {
    (void)state;
    skip_without_gpu();
    bool good = true;
    for (int i = 0; i < WEFT_OP_COUNT; i++) {
        weft_op op = {.id = i, .name = op_names[i]};
        weft_node n = {.op = &op};
        if (weft_cuda_backend()->kernel(&n) && !missing[i]) continue;
        good = false;
        printf("note: no kernel on the GPU: %s\n", op_names[i]);
    }
    assert_true(good);
}

int main(void) {
    struct CMUnitTest tests[2 * CASE_FAMILIES + 1];
    static char names[2 * CASE_FAMILIES][64];
    int n = 0;
    for (int f = 0; f < CASE_FAMILIES; f++) {
        for (int bf16 = 0; bf16 < 2; bf16++, n++) {
            snprintf(names[n], sizeof names[n], "%s in %s equals the CPU", case_families[f].name,
                     bf16 ? "bf16" : "f32");
            tests[n] = (struct CMUnitTest){
                names[n], bf16 ? test_bf16_equals_the_cpu : test_f32_equals_the_cpu, NULL, NULL,
                (void *)(uintptr_t)&case_families[f]};
        }
    }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_every_operation_has_a_kernel);
    int failed = _cmocka_run_group_tests("cuda cases", tests, (size_t)n, NULL, NULL);
    case_end();
    return failed ? 1 : 0;
}
