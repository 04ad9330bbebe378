/* What an executor says when it cannot be made or used, over backends of the test's own. */
#include "core/exec.h"
#include "cpu/backend.h"
#include "ops/activation.h"
#include "ops/arith.h"
#include "support/test.h"

#include <string.h>

enum { SIDE = 4 };

typedef struct {
    weft_graph *graph;
    weft_tensor *x, *middle, *y;
    weft_pool *pool;
} fixture;

static void begin(fixture *f) {
    assert_int_equal(weft_graph_create(&f->graph), WEFT_OK);
    assert_int_equal(weft_pool_create(1, &f->pool), WEFT_OK);
    f->x = weft_new_tensor(f->graph, WEFT_ROLE_INPUT, "x", WEFT_F32, SIDE, SIDE);
    f->middle = weft_scale(f->graph, f->x, 2);
    f->y = weft_scale(f->graph, f->middle, 3);
    weft_keep(f->y);
}

static void end(fixture *f) {
    weft_pool_destroy(f->pool);
    weft_graph_destroy(f->graph);
}

static void expect(weft_status status, weft_status want, const char *says) {
    assert_int_equal(status, want);
    if (!strstr(weft_error_message(), says)) fail_msg("%s", weft_error_message());
}

static const weft_kernel *no_kernel(const weft_node *n) {
    (void)n;
    return NULL;
}

static void *no_memory(int64_t bytes) {
    (void)bytes;
    return NULL;
}

TEST(test_a_missing_kernel_is_named_with_its_backend) {
    fixture f;
    weft_exec *exec;
    weft_backend bare = *weft_cpu_backend();
    bare.name = "bare";
    bare.kernel = no_kernel;
    begin(&f);
    expect(weft_exec_create(f.graph, &bare, f.pool, NULL, &exec), WEFT_EMISSING,
           "the bare backend has no kernel for scale of f32 [4, 4]");
    assert_null(exec);
    end(&f);
}

TEST(test_an_arena_that_is_not_given_is_an_error) {
    fixture f;
    weft_exec *exec;
    weft_backend full = *weft_cpu_backend();
    full.alloc = no_memory;
    begin(&f);
    expect(weft_exec_create(f.graph, &full, f.pool, NULL, &exec), WEFT_ENOMEM, "for the arena");
    assert_null(exec);
    end(&f);
}

/* And a plan that was handed over is freed: the leak search of SAN=address looks. */
TEST(test_a_graph_that_was_built_wrong_is_not_run) {
    fixture f;
    weft_exec *exec;
    weft_plan *plan;
    weft_plan_options options = {0};
    begin(&f);
    assert_int_equal(weft_plan_create(f.graph, weft_cpu_backend(), 1, NULL, &options, &plan),
                     WEFT_OK);
    assert_null(weft_new_tensor(f.graph, WEFT_ROLE_INPUT, NULL, WEFT_F32, SIDE));
    expect(weft_exec_create(f.graph, weft_cpu_backend(), f.pool,
                            &(weft_exec_options){.planned = plan}, &exec),
           WEFT_EINPUT, "needs a name");
    assert_null(exec);
    end(&f);
}

TEST(test_only_tensors_of_the_graph_that_are_kept_are_read) {
    fixture f, other;
    weft_exec *exec;
    float values[SIDE * SIDE] = {1}, out[SIDE * SIDE];
    begin(&f);
    begin(&other);
    assert_int_equal(weft_exec_create(f.graph, weft_cpu_backend(), f.pool, NULL, &exec), WEFT_OK);
    expect(weft_exec_write(exec, other.x, values), WEFT_EINPUT, "not of this graph");
    assert_int_equal(weft_exec_write(exec, f.x, values), WEFT_OK);
    assert_int_equal(weft_exec_run(exec, NULL), WEFT_OK);
    expect(weft_exec_read(exec, f.middle, out), WEFT_EINPUT, "is not kept");
    assert_int_equal(weft_exec_read(exec, f.y, out), WEFT_OK);
    assert_true(out[0] == 6 && out[1] == 0);
    weft_exec_destroy(exec);
    end(&other);
    end(&f);
}

RUN_TESTS(NULL, NULL)
