/* Which kernel a GPU would run for a node, asked without one: the limits of the tensor cores' kernels,
 * and the line that names the option and the nearest fast values. */
#include "core/graph.h"
#include "cuda/choice.h"
#include "cuda/device.h"
#include "ops/linear.h"
#include "support/screen.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An attention and the routing along its weights. */
typedef struct {
    weft_dtype dtype;
    int64_t heads, kv_heads, dqk, dv, k,
        routed;      /* routed: columns of what is summed; 0: no routing */
    bool band, full; /* full: not causal, with ALiBi */
    double softcap;  /* above 0: with ALiBi */
} shape;

static const shape USUAL = {WEFT_BF16, 4, 4, 64, 64, 8, 32, false, false, 0};

static weft_graph *build(shape s) {
    enum { B = 1, T = 16 };
    weft_graph *g;
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    weft_score score = {
        .scale_value = 1, .causal = !s.full, .band = s.band, .window = 2, .softcap = s.softcap};
    if (s.full || s.softcap > 0) score.pos = WEFT_POS_ALIBI;
    score.q = weft_new_tensor(g, WEFT_ROLE_INPUT, "q", s.dtype, B, T, s.heads, s.dqk);
    score.k = weft_new_tensor(g, WEFT_ROLE_INPUT, "k", s.dtype, B, T, s.kv_heads, s.dqk);
    weft_tensor *v = weft_new_tensor(g, WEFT_ROLE_INPUT, "v", s.dtype, B, T, s.kv_heads, s.dv);
    weft_attended a = weft_attention(g, &score, v);
    if (s.routed > 0) {
        weft_routes r = weft_route_topk(g, &score, a.lse, s.k, true, false);
        weft_tensor *h = weft_new_tensor(g, WEFT_ROLE_INPUT, "h", s.dtype, B, T, s.routed);
        weft_route_gather(g, h, r.index, r.weight);
    }
    assert_int_equal(weft_graph_status(g), WEFT_OK);
    return g;
}

enum { ATTENTION, TOPK, GATHER };

static weft_cuda_choice choice_of(shape s, int node) {
    weft_graph *g = build(s);
    weft_cuda_choice c;
    assert_true(weft_cuda_choose(weft_graph_node(g, node), &c));
    weft_graph_destroy(g);
    return c;
}

static void expect_slow(shape s, int node, const char *option, const char *nearest) {
    weft_cuda_choice c = choice_of(s, node);
    assert_false(c.fast);
    assert_string_equal(c.option, option);
    assert_string_equal(c.nearest, nearest);
}

TEST(test_attention_by_width) {
    for (int64_t width = 1; width <= 300; width++)
        for (int times = 1; times <= 2; times++) {
            shape s = USUAL;
            s.dqk = times * width;
            s.dv = width;
            s.routed = 0;
            assert_int_equal(choice_of(s, ATTENTION).fast, width <= 256);
        }
}

#define WITH(...) with((shape){__VA_ARGS__})

/* USUAL with some of its numbers changed; 0 leaves one as it is. */
static shape with(shape change) {
    shape s = USUAL;
    s.heads = change.heads ? change.heads : s.heads;
    s.kv_heads = change.kv_heads ? change.kv_heads : s.heads;
    s.dqk = change.dqk ? change.dqk : s.dqk;
    s.dv = change.dv ? change.dv : s.dv;
    s.k = change.k ? change.k : s.k;
    s.routed = change.routed ? change.routed : s.routed;
    s.band = change.band;
    s.full = change.full;
    return s;
}

TEST(test_attention_names_the_option) {
    shape f32 = USUAL;
    f32.dtype = WEFT_F32;
    assert_true(choice_of(USUAL, ATTENTION).fast);
    expect_slow(f32, ATTENTION, "DTYPE f32", "bf16 is fast");
    expect_slow(WITH(.dqk = 264, .dv = 264), ATTENTION, "HEAD_DIM 264", "256 is fast");
    expect_slow(WITH(.dqk = 600, .dv = 300), ATTENTION, "HEAD_DIM 300", "256 is fast");
    expect_slow(WITH(.kv_heads = 1, .dqk = 320, .dv = 320), ATTENTION, "RA_MLA_LATENT_DIM 320",
                "256 is fast");
    expect_slow(WITH(.band = true), ATTENTION, "RA_MLA_RA_ALPHA above 0", "0 is fast");
}

TEST(test_alibi_that_is_not_causal) {
    shape s = WITH(.full = true);
    s.routed = 0;
    expect_slow(s, ATTENTION, "POSITION alibi with CAUSAL=n", "CAUSAL=y is fast");
}

TEST(test_alibi_under_a_softcap) {
    shape s = USUAL;
    s.softcap = 30;
    s.routed = 0;
    expect_slow(s, ATTENTION, "SOFTCAP_ATTENTION beside biases of distances",
                "rope and learned are fast");
}

TEST(test_routing_names_the_option) {
    if (!weft_cuda_device()->wgmma) {
        assert_false(choice_of(USUAL, TOPK).fast); /* built for another GPU than 9.0a */
        return;
    }
    assert_true(choice_of(USUAL, TOPK).fast);
    assert_true(choice_of(WITH(.k = 64), TOPK).fast);
    expect_slow(WITH(.k = 65), TOPK, "RA_MLA_MLP_SPARSE_K 65", "64 is fast");
    assert_true(choice_of(WITH(.dqk = 256), TOPK).fast);
    expect_slow(WITH(.dqk = 260), TOPK, "query heads of width 260", "256 is fast");
    assert_true(choice_of(WITH(.heads = 128), TOPK).fast);
    expect_slow(WITH(.heads = 129), TOPK, "N_HEAD 129", "");
    expect_slow(WITH(.band = true), TOPK, "RA_MLA_RA_ALPHA above 0", "0 is fast");
}

TEST(test_sums_of_unaligned_rows) {
    assert_true(choice_of(USUAL, GATHER).fast);
    expect_slow(WITH(.routed = 100), GATHER, "rows of width 100", "96 and 104 are fast");
}

static weft_cuda_choice product(int64_t rows, int64_t in, int64_t out) {
    weft_graph *g;
    weft_cuda_choice c;
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    weft_tensor *x = weft_new_tensor(g, WEFT_ROLE_INPUT, "x", WEFT_BF16, rows, in);
    weft_tensor *w = weft_new_tensor(g, WEFT_ROLE_INPUT, "w", WEFT_BF16, out, in);
    assert_non_null(weft_linear(g, x, w, NULL, WEFT_ACT_NONE));
    assert_true(weft_cuda_choose(weft_graph_node(g, 0), &c));
    weft_graph_destroy(g);
    return c;
}

TEST(test_products_of_odd_widths) {
    assert_true(product(512, 128, 256).fast);
    assert_true(product(64, 128, 257).fast); /* few rows: a kernel of their own */
    assert_true(product(512, 128, 12).fast); /* a gate of heads */
    weft_cuda_choice c = product(512, 128, 257);
    assert_false(c.fast);
    assert_string_equal(c.option, "rows of width 257");
    assert_string_equal(c.nearest, "256 and 264 are fast");
    assert_string_equal(product(512, 129, 256).option, "rows of width 129");
}

/* Two graphs, the second with other values: nothing more is said of a kind. */
static void warn_twice(void) {
    weft_graph *g = build(WITH(.dqk = 264, .dv = 264, .routed = 100)),
               *again = build(WITH(.dqk = 300));
    weft_cuda_warn_slow(g);
    weft_cuda_warn_slow(g);
    weft_cuda_warn_slow(again);
    weft_graph_destroy(g);
    weft_graph_destroy(again);
}

TEST(test_a_kind_is_warned_of_once) {
    screen s = screen_run(0, NULL, warn_twice);
    char expect[512];
    snprintf(expect, sizeof expect,
             "warn  cuda: HEAD_DIM 264: attention runs by the plain kernel, ten to twenty times "
             "slower; 256 is fast\n"
             "warn  cuda: %s: routing runs by the plain kernel, many times slower%s\n"
             "warn  cuda: rows of width 100: sums of routing are read element by element, which is "
             "slower; 96 and 104 are fast\n",
             weft_cuda_device()->wgmma ? "query heads of width 264"
                                       : "code for another GPU than 9.0a",
             weft_cuda_device()->wgmma ? "; 256 is fast" : "");
    assert_int_equal(s.status, 0);
    assert_string_equal(s.raw, expect);
    screen_free(&s);
}

RUN_TESTS(NULL, NULL)
