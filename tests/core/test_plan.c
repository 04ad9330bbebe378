/* The memory plan and the executor: nothing that lives at the same time shares a byte, and random
 * graphs compute the same bits however their memory is laid out. */
#include "base/random.h"
#include "core/exec.h"
#include "core/plan.h"
#include "cpu/backend.h"
#include "ops/activation.h"
#include "ops/arith.h"
#include "ops/linear.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 6, GRAPHS = 60, GRAPH_OPS = 24, GRAPH_PARAMS = 3 };

static weft_graph *new_graph(void) {
    weft_graph *g;
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    return g;
}

static weft_tensor *square(weft_graph *g, weft_role role, const char *name) {
    return weft_new_tensor(g, role, name, WEFT_F32, SIDE, SIDE);
}

static weft_plan *plan_of(const weft_graph *g, weft_plan_options options) {
    weft_plan *plan;
    assert_int_equal(weft_plan_create(g, weft_cpu_backend(), 2, NULL, &options, &plan), WEFT_OK);
    return plan;
}

TEST(test_a_chain_in_place_needs_one_buffer) {
    weft_graph *g = new_graph();
    weft_tensor *t = square(g, WEFT_ROLE_INPUT, "x");
    for (int i = 0; i < 10; i++)
        t = weft_scale(g, t, 1.5);
    weft_keep(t);
    int64_t bytes = (SIDE * SIDE * 4 + 63) / 64 * 64;
    weft_plan *plan = plan_of(g, (weft_plan_options){0});
    assert_int_equal(plan->arena_bytes, 2 * bytes); /* the input, and one for all the rest */
    weft_plan_destroy(plan);
    plan = plan_of(g, (weft_plan_options){.no_inplace = true});
    assert_int_equal(plan->arena_bytes, 3 * bytes);
    weft_plan_destroy(plan);
    plan = plan_of(g, (weft_plan_options){.no_inplace = true, .linger = 2});
    assert_int_equal(plan->arena_bytes, 5 * bytes); /* two more that linger */
    weft_plan_destroy(plan);
    plan = plan_of(g, (weft_plan_options){.no_reuse = true});
    assert_int_equal(plan->arena_bytes, 11 * bytes);
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
}

TEST(test_an_input_is_never_written_over) {
    weft_graph *g = new_graph();
    weft_tensor *x = square(g, WEFT_ROLE_INPUT, "x");
    weft_tensor *y = weft_keep(weft_scale(g, x, 2));
    weft_plan *plan = plan_of(g, (weft_plan_options){0});
    assert_int_not_equal(plan->offset[x->id], plan->offset[y->id]);
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
}

TEST(test_an_arena_larger_than_the_limit_is_refused) {
    weft_graph *g = new_graph();
    weft_keep(weft_scale(g, square(g, WEFT_ROLE_INPUT, "x"), 2));
    weft_plan *plan;
    weft_plan_options options = {.memory_limit = 100};
    assert_int_equal(weft_plan_create(g, weft_cpu_backend(), 1, NULL, &options, &plan),
                     WEFT_ENOMEM);
    assert_null(plan);
    assert_non_null(strstr(weft_error_message(), "GiB"));
    weft_graph_destroy(g);
}

TEST(test_an_arena_larger_than_memory_is_refused) {
    weft_graph *g = new_graph();
    weft_tensor *x = weft_new_tensor(g, WEFT_ROLE_INPUT, "x", WEFT_F32, (int64_t)1 << 48);
    weft_keep(weft_scale(g, x, 2));
    weft_pool *pool;
    weft_exec *exec;
    assert_int_equal(weft_pool_create(1, &pool), WEFT_OK);
    assert_int_equal(weft_exec_create(g, weft_cpu_backend(), pool, NULL, &exec), WEFT_ENOMEM);
    assert_null(exec);
    weft_pool_destroy(pool);
    weft_graph_destroy(g);
}

TEST(test_only_kept_tensors_can_be_read) {
    weft_graph *g = new_graph();
    weft_tensor *x = square(g, WEFT_ROLE_INPUT, "x");
    weft_tensor *inner = weft_scale(g, x, 2);
    weft_keep(weft_scale(g, inner, 2));
    weft_pool *pool;
    weft_exec *exec;
    float values[SIDE * SIDE];
    assert_int_equal(weft_pool_create(1, &pool), WEFT_OK);
    assert_int_equal(weft_exec_create(g, weft_cpu_backend(), pool, NULL, &exec), WEFT_OK);
    assert_int_equal(weft_exec_read(exec, inner, values), WEFT_EINPUT);
    assert_non_null(strstr(weft_error_message(), "not kept"));
    weft_exec_destroy(exec);
    weft_pool_destroy(pool);
    weft_graph_destroy(g);
}

TEST(test_bound_memory_must_be_aligned_and_of_the_graph) {
    weft_graph *g = new_graph(), *other = new_graph();
    weft_tensor *x = square(g, WEFT_ROLE_INPUT, "x");
    weft_tensor *foreign = square(other, WEFT_ROLE_INPUT, "x");
    weft_keep(weft_scale(g, x, 2));
    _Alignas(64) static unsigned char memory[SIDE * SIDE * 4 + 64];
    weft_pool *pool;
    weft_exec *exec;
    assert_int_equal(weft_pool_create(1, &pool), WEFT_OK);
    weft_binding crooked[] = {{x, memory + 4}, {NULL, NULL}};
    weft_exec_options options = {.bindings = crooked};
    assert_int_equal(weft_exec_create(g, weft_cpu_backend(), pool, &options, &exec), WEFT_EINPUT);
    weft_binding strange[] = {{foreign, memory}, {NULL, NULL}};
    options.bindings = strange;
    assert_int_equal(weft_exec_create(g, weft_cpu_backend(), pool, &options, &exec), WEFT_EINPUT);
    weft_pool_destroy(pool);
    weft_graph_destroy(g);
    weft_graph_destroy(other);
}

/* Draws for graph number `graph`: a stream of its own. */
typedef struct {
    uint64_t graph, at;
} dice;

static int64_t roll(dice *d, int64_t sides) {
    uint32_t word = weft_random_word(d->graph, 0, 0, 0x64696365u, d->at++);
    return (int64_t)(word % (uint32_t)sides);
}

/* A random graph over square matrices: each operation takes earlier tensors, some tensors are
 * kept, some stretches are to be recomputed, and the loss is the sum of squares of the last. */
static void build_random(weft_graph *g, uint64_t number, weft_tensor **params) {
    dice d = {number, 0};
    weft_tensor *pool[GRAPH_PARAMS + GRAPH_OPS];
    int n = 0;
    for (; n < GRAPH_PARAMS; n++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", n);
        pool[n] = params[n] = square(g, WEFT_ROLE_PARAM, name);
    }
    bool open = false;
    while (n < GRAPH_PARAMS + GRAPH_OPS) {
        if (roll(&d, 5) == 0) {
            if (open)
                weft_graph_recompute_end(g);
            else
                weft_graph_recompute_begin(g);
            open = !open;
        }
        /* Mostly recent tensors, so that lives are of all lengths. */
        int64_t near = n < 5 ? n : 5;
        weft_tensor *a = pool[n - 1 - roll(&d, near)], *b = pool[roll(&d, n)];
        switch (roll(&d, 6)) {
        case 0:
            pool[n] = weft_add_scaled(g, a, b, 0.5);
            break;
        case 1:
            pool[n] = weft_scale(g, a, -0.75);
            break;
        case 2:
            pool[n] = weft_silu_mul(g, a, b);
            break;
        case 3:
            pool[n] = weft_gelu(g, a);
            break;
        case 4:
            pool[n] = weft_linear(g, a, b, NULL, WEFT_ACT_NONE);
            break;
        default:
            pool[n] = weft_view(g, weft_view(g, a, SIDE * SIDE), SIDE, SIDE);
            break;
        }
        if (roll(&d, 8) == 0) weft_keep(pool[n]);
        n++;
    }
    if (open) weft_graph_recompute_end(g);
    weft_tensor *loss = weft_sum_squares(g, pool[n - 1], 1);
    assert_int_equal(weft_graph_backward(g, loss, NULL), WEFT_OK);
}

typedef struct {
    int64_t first, last, offset, bytes;
} span;

/* Lives and places of all temporaries, found without the planner's help. */
TEST(test_lives_that_overlap_share_no_bytes) {
    for (uint64_t number = 0; number < GRAPHS; number++) {
        weft_graph *g = new_graph();
        weft_tensor *params[GRAPH_PARAMS];
        build_random(g, number, params);
        weft_plan *plan = plan_of(g, (weft_plan_options){.no_inplace = true});
        int64_t tensors = weft_graph_tensor_count(g), nodes = weft_graph_node_count(g);
        span *spans = calloc((size_t)tensors, sizeof *spans);
        assert_non_null(spans);
        for (int64_t i = 0; i < tensors; i++) {
            const weft_tensor *t = weft_graph_tensor_at(g, i);
            spans[i] = (span){nodes, -1, plan->offset[i], weft_tensor_bytes(t)};
            if (t->role != WEFT_ROLE_TEMP) spans[i].first = -1;
            if (t->role != WEFT_ROLE_TEMP || t->keep) spans[i].last = nodes;
        }
        for (int64_t i = 0; i < nodes; i++) {
            const weft_node *n = weft_graph_node(g, i);
            for (int k = 0; k < n->n_in + n->n_out; k++) {
                const weft_tensor *t = k < n->n_in ? n->in[k] : n->out[k - n->n_in];
                if (!t) continue;
                span *s = &spans[t->view_of ? t->view_of->id : t->id];
                if (i < s->first) s->first = i;
                if (i > s->last) s->last = i;
            }
        }
        for (int64_t i = 0; i < tensors; i++) {
            for (int64_t j = 0; j < i; j++) {
                const span *a = &spans[i], *b = &spans[j];
                if (weft_graph_tensor_at(g, i)->view_of || weft_graph_tensor_at(g, j)->view_of)
                    continue;
                if (a->first > a->last || b->first > b->last) continue;
                if (a->last < b->first || b->last < a->first) continue;
                assert_true(a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset);
            }
            assert_true(spans[i].offset + spans[i].bytes <= plan->arena_bytes);
        }
        assert_true(plan->arena_bytes >= plan->peak_bytes);
        free(spans);
        weft_plan_destroy(plan);
        weft_graph_destroy(g);
    }
}

/* Runs the graph and appends the bytes of every kept tensor to `out`; returns how many. */
static size_t run_graph(weft_graph *g, weft_tensor *const *params, weft_plan_options plan,
                        int threads, unsigned char *out, size_t room) {
    weft_pool *pool;
    weft_exec *x;
    assert_int_equal(weft_pool_create(threads, &pool), WEFT_OK);
    weft_exec_options options = {.plan = plan, .poison = true};
    assert_int_equal(weft_exec_create(g, weft_cpu_backend(), pool, &options, &x), WEFT_OK);
    for (int i = 0; i < GRAPH_PARAMS; i++) {
        float values[SIDE * SIDE];
        for (int k = 0; k < SIDE * SIDE; k++)
            values[k] =
                (float)weft_random_unit(weft_random_word(7, 0, 0, (uint32_t)i, (uint64_t)k)) - 0.5f;
        assert_int_equal(weft_exec_write(x, params[i], values), WEFT_OK);
    }
    size_t used = 0;
    for (int again = 0; again < 2; again++) { /* the second run must not see the first */
        used = 0;
        assert_int_equal(weft_exec_run(x, NULL), WEFT_OK);
        for (int64_t i = 0; i < weft_graph_tensor_count(g); i++) {
            const weft_tensor *t = weft_graph_tensor_at(g, i);
            if (!t->keep || t->view_of || t->role != WEFT_ROLE_TEMP) continue;
            size_t bytes = (size_t)weft_tensor_bytes(t);
            assert_true(used + bytes <= room);
            if (weft_exec_plan(x)->offset[i] < 0) continue;
            assert_int_equal(weft_exec_read(x, t, out + used), WEFT_OK);
            used += bytes;
        }
    }
    weft_exec_destroy(x);
    weft_pool_destroy(pool);
    return used;
}

typedef struct {
    int64_t first, last, bytes, offset;
} taken;

/* The lowest place by looking at every other one. */
static int64_t lowest_place(const taken *all, int n, const taken *b) {
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        if (all[i].last < b->first || b->last < all[i].first) continue;
        if (all[i].offset >= at + b->bytes || all[i].offset + all[i].bytes <= at) continue;
        at = all[i].offset + all[i].bytes;
        i = -1; /* what was below may be in the way now */
    }
    return at;
}

TEST(test_the_lowest_free_place_is_found) {
    enum { TAKEN = 300, ROUNDS = 40 };
    static taken all[TAKEN];
    unsigned draw = 17;
    for (int round = 0; round < ROUNDS; round++) {
        int64_t moments = 1 + (int64_t)((uint64_t)rand_r(&draw) % 100);
        weft_space *s;
        assert_int_equal(weft_space_open(moments, &s), WEFT_OK);
        for (int i = 0; i < TAKEN; i++) {
            taken *b = &all[i];
            b->first = (int64_t)((uint64_t)rand_r(&draw) % (uint64_t)moments);
            b->last =
                b->first + (int64_t)((uint64_t)rand_r(&draw) % (uint64_t)(moments - b->first));
            b->bytes = 64 * (int64_t)((uint64_t)rand_r(&draw) % 6);
            if (i % 7 == 0) b->first = 0, b->last = moments - 1;
            assert_int_equal(weft_space_take(s, b->first, b->last, b->bytes, &b->offset), WEFT_OK);
            if (b->bytes) assert_int_equal(b->offset, lowest_place(all, i, b));
        }
        weft_space_close(s);
    }
}

TEST(test_random_graphs_agree_however_memory_is_laid_out) {
    enum { ROOM = 1 << 16 };
    unsigned char *want = malloc(ROOM), *got = malloc(ROOM);
    assert_non_null(want);
    assert_non_null(got);
    for (uint64_t number = 0; number < GRAPHS; number++) {
        weft_graph *g = new_graph();
        weft_tensor *params[GRAPH_PARAMS];
        build_random(g, number, params);
        weft_plan_options apart = {.no_reuse = true, .no_inplace = true};
        weft_plan_options reuse = {.no_inplace = true}, all = {0};
        size_t bytes = run_graph(g, params, apart, 1, want, ROOM);
        assert_true(bytes > 0);
        assert_int_equal(run_graph(g, params, reuse, 2, got, ROOM), bytes);
        assert_memory_equal(want, got, bytes);
        assert_int_equal(run_graph(g, params, all, 3, got, ROOM), bytes);
        assert_memory_equal(want, got, bytes);
        weft_graph_destroy(g);
    }
    free(want);
    free(got);
}

RUN_TESTS(NULL, NULL)
