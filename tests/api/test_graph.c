/* Blocks over foreign memory: gradients, addresses that move, calls that are pending or come from
 * other threads, memory full of NaN, and what is refused. Everything here goes through the public
 * headers; nothing of src/ is included. */
#include <weft/graph.h>

#include "support/allocations.h"
#include "support/block_memory.h"
#include "support/test.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { B = 2, T = 5, E = 8, H = 2, D = E / H, F = 12 };

#define SHAPE(...)                                                                                 \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) {                       \
        __VA_ARGS__                                                                                \
    }

/* Σ ⟨output, its gradient⟩. */
static double pair_outputs(const memory *m) {
    double sum = 0;
    for (int i = 0; i < m->n[WEFT_BLOCK_OUTPUTS]; i++) {
        const weft_block_info *t = &m->info[WEFT_BLOCK_OUTPUTS][i];
        for (int64_t j = 0; t->gradient && j < t->count; j++)
            sum += get_value(t, m->values[WEFT_BLOCK_OUTPUTS][i], j) *
                   get_value(t, m->grads[WEFT_BLOCK_OUTPUTS][i], j);
    }
    return sum;
}

/* Every gradient against central differences of f64. */
static void check_gradients(weft_block *block) {
    memory m;
    take_memory(&m, block, 1, 0xff);
    forward(&m);
    backward(&m);
    for (int k = WEFT_BLOCK_INPUTS; k <= WEFT_BLOCK_WEIGHTS; k++)
        for (int i = 0; i < m.n[k]; i++) {
            const weft_block_info *t = &m.info[k][i];
            int64_t step = t->count > 24 ? t->count / 12 : 1;
            for (int64_t j = 0; t->gradient && j < t->count; j += step) {
                double *at = (double *)m.values[k][i] + j, kept = *at, h = 1e-5;
                double got = ((const double *)m.grads[k][i])[j];
                *at = kept + h;
                forward(&m);
                double above = pair_outputs(&m);
                *at = kept - h;
                forward(&m);
                double want = (above - pair_outputs(&m)) / (2 * h);
                *at = kept;
                if (!(fabs(got - want) <= 1e-7 * (1 + fabs(want))))
                    fail_msg("%s[%lld] is %.12g, by differences %.12g", t->name, (long long)j, got,
                             want);
            }
        }
    give_memory_back(&m);
}

/* Blocks to look at. */

typedef struct {
    const char *type;
    bool causal;
    int calls; /* how often it was described */
} wish;

static const char *stat_of(const char *type) {
    return strcmp(type, "f64") == 0 ? "f64" : "f32";
}

/* Wasserstein-2 attention and SwiGLU with norms and residual sums, of the public operations. */
static weft_status describe_w2(void *context, weft_graph *g) {
    wish *w = context;
    const char *type = w->type, *stat = stat_of(type);
    w->calls++;
    weft_tensor *x = weft_graph_input(g, "x", type, SHAPE(B, T, E), 1), *sum, *n, *lse;
    weft_tensor *gain = weft_graph_weight(g, "gain", stat, SHAPE(E));
    weft_tensor *wq = weft_graph_weight(g, "wq", type, SHAPE(2 * E, E));
    weft_tensor *wk = weft_graph_weight(g, "wk", type, SHAPE(2 * E, E));
    weft_tensor *wv = weft_graph_weight(g, "wv", type, SHAPE(E, E));
    weft_tensor *wo = weft_graph_weight(g, "wo", type, SHAPE(E, E));
    weft_tensor *tau = weft_graph_weight(g, "log_tau", stat, SHAPE(H));
    weft_tensor *w1 = weft_graph_weight(g, "w1", type, SHAPE(F, E));
    weft_tensor *w3 = weft_graph_weight(g, "w3", type, SHAPE(F, E));
    weft_tensor *w2 = weft_graph_weight(g, "w2", type, SHAPE(E, F));
    weft_tensor *y = weft_graph_norm(g, "rmsnorm", x, NULL, gain, NULL, NULL);
    weft_tensor *q =
        weft_graph_view(g, weft_graph_linear(g, y, wq, NULL, "none"), SHAPE(B, T, H, 2 * D));
    weft_tensor *k =
        weft_graph_view(g, weft_graph_linear(g, y, wk, NULL, "none"), SHAPE(B, T, H, 2 * D));
    weft_tensor *v =
        weft_graph_view(g, weft_graph_linear(g, y, wv, NULL, "none"), SHAPE(B, T, H, D));
    weft_scores scores = {.size = sizeof scores, .log_tau = tau, .causal = w->causal};
    scores.q = weft_graph_gaussian_query(g, weft_graph_rope(g, q, D, H));
    scores.k = weft_graph_gaussian_key(g, weft_graph_rope(g, k, D, H), &n);
    scores.n = n;
    weft_tensor *o = weft_graph_attention(g, &scores, v, &lse);
    o = weft_graph_linear(g, weft_graph_view(g, o, SHAPE(B, T, E)), wo, NULL, "none");
    weft_tensor *shift = weft_graph_weight(g, "shift", stat, SHAPE(E));
    y = weft_graph_norm(g, "layernorm", x, o, gain, shift, &sum);
    weft_tensor *h = weft_graph_silu_mul(g, weft_graph_linear(g, y, w1, NULL, "none"),
                                         weft_graph_linear(g, y, w3, NULL, "none"));
    h = weft_graph_linear(g, h, w2, NULL, "none");
    weft_graph_output(g, "y", weft_graph_add(g, sum, h, 1));
    return WEFT_OK;
}

/* Routed tokens, a gate, means over time and a contrastive loss beside it. */
static weft_status describe_routed(void *context, weft_graph *g) {
    const char *type = ((wish *)context)->type, *stat = stat_of(type);
    weft_tensor *qkv = weft_graph_input(g, "qkv", type, SHAPE(B, T, 3 * E), 0), *lse, *index,
                *weight;
    weft_tensor *h = weft_graph_input(g, "h", type, SHAPE(B, T, F), 1);
    weft_tensor *wg = weft_graph_weight(g, "gate", type, SHAPE(H, F));
    weft_tensor *wz = weft_graph_weight(g, "z", type, SHAPE(2, F / 2, F / 2));
    weft_tensor *rel = weft_graph_input(g, "rel", stat, SHAPE(T), 0); /* routes are constants */
    weft_scores scores = {.size = sizeof scores,
                          .packed = qkv,
                          .heads = H,
                          .kv_heads = H,
                          .scale_value = 0.5,
                          .position = "relative",
                          .rel = rel,
                          .causal = 1};
    weft_tensor *o = weft_graph_attention(g, &scores, NULL, &lse);
    weft_graph_route(g, &scores, lse, 3, 1, 0, &index, &weight);
    weft_tensor *c = weft_graph_gather(g, h, index, weight);
    c = weft_graph_add(g, c, weft_graph_gather_all(g, &scores, lse, h, 0.9, 0, 1), 0.5);
    weft_tensor *gate = weft_graph_linear(g, weft_graph_running_mean(g, c), wg, NULL, "none");
    weft_graph_output(g, "o", weft_graph_gate(g, o, gate, 0.7));
    weft_tensor *z = weft_graph_grouped_linear(
        g, weft_graph_view(g, weft_graph_time_mean(g, h), SHAPE(B, 2, F / 2)), wz, 1);
    z = weft_graph_view(g, z, SHAPE(2 * B, F / 2));
    weft_tensor *loss = weft_graph_contrastive(g, z, 0.3, 0.1);
    weft_graph_output(g, "loss", weft_graph_add(g, loss, weft_graph_sum_squares(g, z, 0.2), 1));
    return WEFT_OK;
}

static weft_block *open_block(weft_describe describe, const char *type, int purpose) {
    weft_block *block;
    wish w = {.type = type, .causal = true};
    OK(weft_block_open(engine, NULL, describe, &w, purpose, &block));
    return block;
}

TEST(test_gradients_of_a_w2_block_are_those_of_differences) {
    weft_block *block = open_block(describe_w2, "f64", WEFT_BLOCK_GRADIENT);
    check_gradients(block);
    weft_block_close(block);
}

TEST(test_gradients_behind_routes_are_those_of_differences) {
    weft_block *block = open_block(describe_routed, "f64", WEFT_BLOCK_GRADIENT);
    check_gradients(block);
    weft_block_close(block);
}

/* The largest difference of the outputs, over the largest value. */
static double part_by(const memory *a, const memory *b) {
    double worst = 0, most = 0;
    for (int i = 0; i < a->n[WEFT_BLOCK_OUTPUTS]; i++)
        for (int64_t j = 0; j < a->info[WEFT_BLOCK_OUTPUTS][i].count; j++) {
            double x =
                get_value(&a->info[WEFT_BLOCK_OUTPUTS][i], a->values[WEFT_BLOCK_OUTPUTS][i], j);
            double y =
                get_value(&b->info[WEFT_BLOCK_OUTPUTS][i], b->values[WEFT_BLOCK_OUTPUTS][i], j);
            if (!(fabs(x - y) <= worst)) worst = fabs(x - y);
            if (fabs(x) > most) most = fabs(x);
        }
    return worst / most;
}

TEST(test_f32_and_bf16_are_near_f64) {
    static const struct {
        const char *type;
        double bound;
    } types[] = {{"f32", 1e-5}, {"bf16", 3e-2}};
    weft_block *wide = open_block(describe_w2, "f64", WEFT_BLOCK_GRADIENT);
    memory want, got;
    take_memory(&want, wide, 1, 0xff);
    forward(&want);
    for (int i = 0; i < 2; i++) {
        weft_block *block = open_block(describe_w2, types[i].type, WEFT_BLOCK_GRADIENT);
        take_memory(&got, block, 1, 0xff);
        forward(&got);
        backward(&got);
        double by = part_by(&want, &got);
        if (!(by <= types[i].bound)) fail_msg("%s parts by %g", types[i].type, by);
        give_memory_back(&got);
        weft_block_close(block);
    }
    give_memory_back(&want);
    weft_block_close(wide);
}

TEST(test_memory_may_hold_anything_and_lie_anywhere) {
    static const weft_describe blocks[] = {describe_w2, describe_routed};
    for (int i = 0; i < 2; i++) {
        weft_block *block = open_block(blocks[i], "f32", WEFT_BLOCK_GRADIENT);
        memory a, b;
        take_memory(&a, block, 1, 0xff);
        take_memory(&b, block, 1, 0);
        forward(&a);
        backward(&a);
        forward(&b);
        backward(&b);
        check_equal(&a, &b);
        give_memory_back(&a);
        give_memory_back(&b);
        weft_block_close(block);
    }
}

/* What is made between the passes is all in `saved`: other outputs' and inputs' memory may come with
 * the backward call, and the workspace is another. */
TEST(test_backward_takes_addresses_of_its_own) {
    weft_block *block = open_block(describe_w2, "f32", WEFT_BLOCK_GRADIENT);
    memory a, b;
    take_memory(&a, block, 1, 0xff);
    take_memory(&b, block, 1, 0xff);
    forward(&a);
    backward(&a);
    for (int i = 0; i < b.n[WEFT_BLOCK_OUTPUTS]; i++)
        memcpy(b.values[WEFT_BLOCK_OUTPUTS][i], a.values[WEFT_BLOCK_OUTPUTS][i],
               (size_t)b.info[WEFT_BLOCK_OUTPUTS][i].bytes);
    memcpy(b.saved.at, a.saved.at, (size_t)a.saved.bytes);
    for (int k = 0; k < 3; k++) /* what backward does not read need not be there */
        for (int i = 0; i < b.n[k]; i++)
            if (!b.info[k][i].read_back) b.values[k][i] = NULL;
    backward(&b);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < b.n[k]; i++)
            b.values[k][i] = a.values[k][i];
    check_equal(&a, &b);
    give_memory_back(&a);
    give_memory_back(&b);
    weft_block_close(block);
}

TEST(test_two_forwards_may_be_pending_and_backward_repeats) {
    weft_block *block = open_block(describe_w2, "f32", WEFT_BLOCK_GRADIENT);
    memory one, two, alone[2];
    take_memory(&one, block, 1, 0xff);
    take_memory(&two, block, 99, 0xff);
    for (int i = 0; i < 2; i++) {
        take_memory(&alone[i], block, i == 0 ? 1 : 99, 0xff);
        forward(&alone[i]);
        backward(&alone[i]);
    }
    forward(&one);
    forward(&two);
    piece before = new_piece(one.saved.bytes, 0);
    memcpy(before.at, one.saved.at, (size_t)one.saved.bytes);
    backward(&one);
    backward(&two);
    backward(&one);
    assert_memory_equal(before.at, one.saved.at, (size_t)one.saved.bytes);
    check_equal(&one, &alone[0]);
    check_equal(&two, &alone[1]);
    free_piece(&before);
    give_memory_back(&one);
    give_memory_back(&two);
    give_memory_back(&alone[0]);
    give_memory_back(&alone[1]);
    weft_block_close(block);
}

static void *run_backward(void *m) {
    backward(m);
    return NULL;
}

static void *run_often(void *m) {
    for (int i = 0; i < 50; i++) {
        forward(m);
        backward(m);
    }
    return NULL;
}

TEST(test_backward_may_come_from_another_thread) {
    weft_block *block = open_block(describe_w2, "f32", WEFT_BLOCK_GRADIENT);
    memory a, b, many[4];
    pthread_t thread, threads[4];
    take_memory(&a, block, 1, 0xff);
    take_memory(&b, block, 1, 0xff);
    forward(&a);
    backward(&a);
    forward(&b);
    assert_int_equal(pthread_create(&thread, NULL, run_backward, &b), 0);
    pthread_join(thread, NULL);
    check_equal(&a, &b);
    for (int i = 0; i < 4; i++) {
        take_memory(&many[i], block, 1, 0xff);
        assert_int_equal(pthread_create(&threads[i], NULL, run_often, &many[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        check_equal(&a, &many[i]);
        give_memory_back(&many[i]);
    }
    give_memory_back(&a);
    give_memory_back(&b);
    weft_block_close(block);
}

TEST(test_a_call_allocates_nothing) {
#ifdef COUNTS_ALLOCATIONS
    weft_block *block = open_block(describe_w2, "f32", WEFT_BLOCK_GRADIENT);
    memory m;
    take_memory(&m, block, 1, 0xff);
    int64_t before = count_allocations();
    forward(&m);
    backward(&m);
    assert_int_equal(count_allocations() - before, 0);
    give_memory_back(&m);
    weft_block_close(block);
#else
    printf("malloc cannot be counted here: a sanitizer or another C library owns it\n");
    skip();
#endif
}

TEST(test_a_causal_block_does_not_see_later_tokens) {
    weft_block *block = open_block(describe_w2, "f32", 0);
    memory a, b;
    take_memory(&a, block, 1, 0xff);
    take_memory(&b, block, 1, 0xff);
    forward(&a);
    for (int t = 1; t < T; t++) {
        for (int i = 0; i < E; i++)
            ((float *)b.values[WEFT_BLOCK_INPUTS][0])[t * E + i] += 1;
        forward(&b);
        assert_memory_equal(a.values[WEFT_BLOCK_OUTPUTS][0], b.values[WEFT_BLOCK_OUTPUTS][0],
                            (size_t)(t * E) * sizeof(float));
        const float *before = a.values[WEFT_BLOCK_OUTPUTS][0],
                    *after = b.values[WEFT_BLOCK_OUTPUTS][0];
        assert_true(before[t * E] != after[t * E]);
        memcpy(b.values[WEFT_BLOCK_INPUTS][0], a.values[WEFT_BLOCK_INPUTS][0],
               (size_t)a.info[WEFT_BLOCK_INPUTS][0].bytes);
    }
    give_memory_back(&a);
    give_memory_back(&b);
    weft_block_close(block);
}

TEST(test_without_a_gradient_nothing_is_saved) {
    weft_block *block = open_block(describe_w2, "f32", 0);
    weft_block *trained = open_block(describe_w2, "f32", WEFT_BLOCK_GRADIENT);
    memory a, b;
    assert_int_equal(weft_block_bytes(block, WEFT_BYTES_SAVED), 0);
    assert_int_equal(weft_block_bytes(block, WEFT_BYTES_BACKWARD), 0);
    assert_true(weft_block_bytes(trained, WEFT_BYTES_SAVED) > 0);
    take_memory(&a, block, 1, 0xff);
    take_memory(&b, trained, 1, 0xff);
    forward(&a);
    forward(&b);
    assert_memory_equal(a.values[WEFT_BLOCK_OUTPUTS][0], b.values[WEFT_BLOCK_OUTPUTS][0],
                        (size_t)a.info[WEFT_BLOCK_OUTPUTS][0].bytes);
    weft_call call = call_of(&a);
    refused(weft_block_backward(block, &call), WEFT_EINPUT, "WEFT_BLOCK_GRADIENT");
    give_memory_back(&a);
    give_memory_back(&b);
    weft_block_close(block);
    weft_block_close(trained);
}

/* An output that is an input, one tensor as two outputs, one gradient for two inputs, and a weight
 * that nothing reads. */
static weft_status describe_aliases(void *context, weft_graph *g) {
    (void)context;
    weft_tensor *a = weft_graph_input(g, "a", "f64", SHAPE(3, 4), 1);
    weft_tensor *b = weft_graph_input(g, "b", "f64", SHAPE(3, 4), 1);
    weft_graph_weight(g, "unread", "f64", SHAPE(5));
    weft_tensor *sum = weft_graph_add(g, a, b, 1);
    weft_graph_output(g, "same", a);
    weft_graph_output(g, "sum", sum);
    weft_graph_output(g, "sum again", weft_graph_view(g, sum, SHAPE(12)));
    weft_tensor *c = weft_graph_input(g, "c", "f64", SHAPE(3, 4), 1);
    weft_tensor *d = weft_graph_input(g, "d", "f64", SHAPE(3, 4), 1);
    weft_graph_output(g, "twice", weft_graph_scale(g, weft_graph_add(g, c, d, 1), 2));
    return WEFT_OK;
}

TEST(test_outputs_and_gradients_have_memory_of_their_own) {
    weft_block *block = open_block(describe_aliases, "f64", WEFT_BLOCK_GRADIENT);
    memory m;
    take_memory(&m, block, 1, 0xff);
    forward(&m);
    backward(&m);
    const double *a = m.values[WEFT_BLOCK_INPUTS][0], *b = m.values[WEFT_BLOCK_INPUTS][1];
    double *const *out = (double *const *)m.values[WEFT_BLOCK_OUTPUTS];
    double *const *d_out = (double *const *)m.grads[WEFT_BLOCK_OUTPUTS];
    double *const *d_in = (double *const *)m.grads[WEFT_BLOCK_INPUTS];
    for (int i = 0; i < 12; i++) {
        assert_true(out[0][i] == a[i]);
        assert_true(out[1][i] == a[i] + b[i] && out[2][i] == a[i] + b[i]);
        assert_true(fabs(d_in[1][i] - (d_out[1][i] + d_out[2][i])) < 1e-15);
        assert_true(fabs(d_in[0][i] - d_in[1][i] - d_out[0][i]) < 1e-15);
        assert_true(d_in[2][i] == 2 * d_out[3][i] && d_in[3][i] == 2 * d_out[3][i]);
    }
    for (int i = 0; i < 5; i++)
        assert_true(((double *)m.grads[WEFT_BLOCK_WEIGHTS][0])[i] == 0);
    give_memory_back(&m);
    weft_block_close(block);
}

static weft_status describe_dropout(void *context, weft_graph *g) {
    (void)context;
    weft_tensor *x = weft_graph_input(g, "x", "f32", SHAPE(4, 64), 1);
    weft_graph_output(g, "y", weft_graph_dropout(g, x, 0.5, "here"));
    return WEFT_OK;
}

TEST(test_backward_drops_what_forward_dropped) {
    weft_block *block = open_block(describe_dropout, "f32", WEFT_BLOCK_GRADIENT);
    memory m;
    take_memory(&m, block, 1, 0xff);
    int dropped = 0;
    for (int i = 0; i < 4 * 64; i++)
        ((float *)m.values[WEFT_BLOCK_INPUTS][0])[i] =
            ((float *)m.grads[WEFT_BLOCK_OUTPUTS][0])[i] = 1;
    forward(&m);
    backward(&m);
    for (int i = 0; i < 4 * 64; i++) {
        float y = ((float *)m.values[WEFT_BLOCK_OUTPUTS][0])[i];
        assert_true(y == ((float *)m.grads[WEFT_BLOCK_INPUTS][0])[i]);
        dropped += y == 0;
    }
    assert_in_range(dropped, 80, 176);
    give_memory_back(&m);
    weft_block_close(block);
}

static weft_status describe_tokens(void *context, weft_graph *g) {
    (void)context;
    weft_tensor *ids = weft_graph_input(g, "ids", "i32", SHAPE(B, T), 0);
    weft_tensor *next = weft_graph_input(g, "next", "i32", SHAPE(B, T), 0);
    weft_tensor *table = weft_graph_weight(g, "table", "f64", SHAPE(11, E));
    weft_tensor *x = weft_graph_embed(g, table, ids, NULL);
    weft_graph_output(g, "loss", weft_graph_cross_entropy(g, x, table, next, 0, NULL));
    return WEFT_OK;
}

TEST(test_a_bad_token_is_told_by_a_later_check) {
    weft_block *block = open_block(describe_tokens, "f64", WEFT_BLOCK_GRADIENT);
    check_gradients(block);
    memory m;
    take_memory(&m, block, 1, 0xff);
    weft_call call = call_of(&m);
    OK(weft_block_forward(block, &call));
    OK(weft_block_check(block));
    ((int32_t *)m.values[WEFT_BLOCK_INPUTS][0])[3] = 11;
    refused(weft_block_forward(block, &call), WEFT_EINPUT, "11");
    refused(weft_block_check(block), WEFT_EINPUT, "11");
    OK(weft_block_check(block));
    give_memory_back(&m);
    weft_block_close(block);
}

TEST(test_blocks_are_kept_by_their_key) {
    wish w = {.type = "f32", .causal = true};
    weft_block *one, *two, *other, *third;
    OK(weft_block_open(engine, "kept", describe_w2, &w, 0, &one));
    OK(weft_block_open(engine, "kept", describe_w2, &w, 0, &two));
    assert_ptr_equal(one, two);
    assert_int_equal(w.calls, 1);
    OK(weft_block_open(engine, "kept", describe_w2, &w, WEFT_BLOCK_GRADIENT, &other));
    assert_int_equal(w.calls, 2);
    weft_block_close(one);
    weft_block_close(two);
    weft_block_close(other);
    OK(weft_block_open(engine, "kept", describe_w2, &w, 0, &third));
    assert_ptr_equal(third, one);
    weft_block_close(third);
    /* Far more keys than are kept: those in use stay. */
    OK(weft_block_open(engine, "kept", describe_w2, &w, 0, &third));
    for (int i = 0; i < WEFT_BLOCKS_KEPT + 40; i++) {
        char key[32];
        snprintf(key, sizeof key, "many %d", i);
        OK(weft_block_open(engine, key, describe_dropout, NULL, 0, &other));
        weft_block_close(other);
    }
    memory m;
    take_memory(&m, third, 1, 0xff);
    forward(&m);
    give_memory_back(&m);
    weft_block_close(third);
}

static atomic_int described;

static weft_status describe_slowly(void *context, weft_graph *g) {
    atomic_fetch_add(&described, 1);
    return describe_dropout(context, g);
}

static void *open_same(void *out) {
    OK(weft_block_open(engine, "same", describe_slowly, NULL, 0, out));
    return NULL;
}

TEST(test_threads_that_want_one_block_describe_it_once) {
    pthread_t threads[4];
    weft_block *blocks[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, open_same, &blocks[i]), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&described), 1);
    for (int i = 0; i < 4; i++) {
        assert_ptr_equal(blocks[i], blocks[0]);
        weft_block_close(blocks[i]);
    }
}

TEST(test_wrong_memory_is_refused) {
    weft_block *block = open_block(describe_w2, "f32", WEFT_BLOCK_GRADIENT);
    memory m;
    take_memory(&m, block, 1, 0xff);
    weft_call call = call_of(&m);
    call.size = 8;
    refused(weft_block_forward(block, &call), WEFT_EINPUT, "sizeof(weft_call)");
    call = call_of(&m);
    call.inputs = NULL;
    refused(weft_block_forward(block, &call), WEFT_EINPUT, "x is NULL");
    call = call_of(&m);
    call.saved = NULL;
    refused(weft_block_forward(block, &call), WEFT_EINPUT, "saved");
    call = call_of(&m);
    call.workspace = (char *)call.workspace + 8;
    refused(weft_block_forward(block, &call), WEFT_EINPUT, "multiple of 64");
    call = call_of(&m);
    call.workspace = m.backward.at;
    call.grad_weights = NULL;
    refused(weft_block_backward(block, &call), WEFT_EINPUT, "NULL");
    refused(weft_block_forward(NULL, &call), WEFT_EINPUT, "NULL");
    refused(weft_block_forward(block, NULL), WEFT_EINPUT, "NULL");
    weft_block_info info;
    refused(weft_block_tensor(block, WEFT_BLOCK_INPUTS, 1, &info, sizeof info), WEFT_EINPUT, "1");
    give_memory_back(&m);
    weft_block_close(block);
}

enum { ROTATED = 4, PLACES = 5 };

static weft_status describe_numbers(void *context, weft_graph *g) {
    const weft_rotation *by = context;
    weft_tensor *x = weft_graph_input(g, "x", "f64", SHAPE(1, PLACES, 1, ROTATED + 2), 1);
    weft_tensor *gain = weft_graph_weight(g, "gain", "f64", SHAPE(ROTATED + 2));
    weft_graph_output(g, "rotated", weft_graph_rotate(g, x, ROTATED, 1, by));
    weft_graph_output(g, "rms", weft_graph_norm_eps(g, "rmsnorm", x, NULL, gain, NULL, 0.5, NULL));
    weft_graph_output(g, "layer",
                      weft_graph_norm_eps(g, "layernorm", x, NULL, gain, NULL, 0.25, NULL));
    return WEFT_OK;
}

static void near(double got, double want) {
    if (!(fabs(got - want) <= 1e-12 * (1 + fabs(want)))) fail_msg("%.15g, not %.15g", got, want);
}

/* Rates of the two pairs, worked out by hand: 500^0 and 500^(-1/2); linear divides them by 8. */
TEST(test_norms_have_an_eps_and_rotations_a_base) {
    weft_rotation by = {.size = sizeof by, .base = 500};
    for (int scaled = 0; scaled < 2; scaled++) {
        double rate[2] = {1, 0.044721359549995794};
        if (scaled) {
            by.scaling = "linear";
            by.factor = 8;
        }
        weft_block *block;
        memory m;
        OK(weft_block_open(engine, NULL, describe_numbers, &by, WEFT_BLOCK_GRADIENT, &block));
        take_memory(&m, block, 3, 0xff);
        forward(&m);
        const double *gain = m.values[WEFT_BLOCK_WEIGHTS][0];
        for (int t = 0; t < PLACES; t++) {
            const double *x = (const double *)m.values[WEFT_BLOCK_INPUTS][0] + t * (ROTATED + 2);
            const double *const *y = (const double *const *)m.values[WEFT_BLOCK_OUTPUTS];
            int at = t * (ROTATED + 2);
            double mean = 0, squares = 0, spread = 0;
            for (int i = 0; i < 2; i++) {
                double angle = t * rate[i] / (scaled ? 8 : 1);
                near(y[0][at + i], x[i] * cos(angle) - x[i + 2] * sin(angle));
                near(y[0][at + i + 2], x[i + 2] * cos(angle) + x[i] * sin(angle));
            }
            for (int i = 0; i < ROTATED + 2; i++)
                mean += x[i] / (ROTATED + 2);
            for (int i = 0; i < ROTATED + 2; i++) {
                squares += x[i] * x[i] / (ROTATED + 2);
                spread += (x[i] - mean) * (x[i] - mean) / (ROTATED + 2);
            }
            for (int i = 0; i < ROTATED + 2; i++) {
                near(y[1][at + i], x[i] / sqrt(squares + 0.5) * gain[i]);
                near(y[2][at + i], (x[i] - mean) / sqrt(spread + 0.25) * gain[i]);
            }
        }
        give_memory_back(&m);
        check_gradients(block);
        weft_block_close(block);
    }
}

static weft_status describe_unary(void *context, weft_graph *g) {
    (void)context;
    weft_tensor *x = weft_graph_input(g, "x", "f64", SHAPE(3), 1);
    weft_graph_output(g, "exp", weft_graph_unary(g, "exp", x));
    weft_graph_output(g, "gelu", weft_graph_unary(g, "gelu", x));
    weft_graph_output(g, "same", weft_graph_gelu(g, x));
    return WEFT_OK;
}

TEST(test_functions_of_one_element_go_by_name) {
    weft_block *block;
    memory m;
    OK(weft_block_open(engine, NULL, describe_unary, NULL, WEFT_BLOCK_GRADIENT, &block));
    check_gradients(block);
    take_memory(&m, block, 1, 0xff);
    forward(&m);
    for (int i = 0; i < 3; i++) {
        double x = ((const double *)m.values[WEFT_BLOCK_INPUTS][0])[i], value[3];
        for (int f = 0; f < 3; f++)
            value[f] = ((const double *)m.values[WEFT_BLOCK_OUTPUTS][f])[i];
        double u = sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x);
        assert_true(fabs(value[0] - exp(x)) < 1e-14 * exp(x));
        assert_true(fabs(value[1] - x / 2 * (1 + tanh(u))) < 1e-14);
        assert_true(value[2] == value[1]);
    }
    give_memory_back(&m);
    weft_block_close(block);
}

static weft_tensor *foreign;

/* One thing wrong in each. */
static weft_status describe_wrong(void *context, weft_graph *g) {
    int what = *(const int *)context;
    weft_tensor *x = weft_graph_input(g, "x", "f32", SHAPE(2, 4), 1);
    weft_tensor *w = weft_graph_weight(g, "w", "f32", SHAPE(3, 5));
    if (what == 0) weft_graph_output(g, "y", weft_graph_linear(g, x, w, NULL, "none"));
    if (what == 1) weft_graph_output(g, "y", weft_graph_linear(g, x, NULL, NULL, "none"));
    if (what == 2) weft_graph_output(g, "y", weft_graph_input(g, "z", "f16", SHAPE(2), 0));
    if (what == 3) weft_graph_output(g, "y", weft_graph_linear(g, x, x, NULL, "relu"));
    if (what == 4) weft_graph_output(g, "y", weft_graph_input(g, "x", "f32", SHAPE(2), 0));
    if (what == 6) weft_graph_output(g, "y", weft_graph_scale(g, foreign, 2));
    if (what == 7) weft_graph_output(g, "y", weft_graph_input(g, "i", "i32", SHAPE(2), 1));
    if (what == 8) weft_graph_output(g, "y", weft_graph_input(g, "i", "f32", SHAPE(2, -1), 0));
    if (what == 9) weft_graph_output(g, "y", weft_graph_norm(g, "x", x, NULL, w, NULL, NULL));
    if (what == 10) {
        weft_graph_output(g, "y", weft_graph_gelu(g, x));
        weft_graph_output(g, "y", weft_graph_scale(g, x, 2));
    }
    if (what == 11) weft_graph_output(g, "y", weft_graph_attention(g, NULL, x, NULL));
    if (what == 12)
        weft_graph_output(
            g, "y", weft_graph_attention(g, &(weft_scores){.size = sizeof(weft_scores)}, x, NULL));
    if (what == 13) return WEFT_EINPUT;
    if (what == 14) weft_graph_output(g, "y", weft_graph_view(g, x, SHAPE(3, 3)));
    if (what == 15) {
        weft_graph_again_begin(g);
        weft_graph_output(g, "y", weft_graph_gelu(g, x));
    }
    if (what == 16)
        weft_graph_output(g, "y", weft_graph_norm_eps(g, "rmsnorm", x, NULL, w, NULL, 0, NULL));
    if (what == 22) weft_graph_output(g, "y", weft_graph_unary(g, "relu6", x));
    if (what == 23) weft_graph_output(g, "y", weft_graph_unary(g, NULL, x));
    if (what >= 17 && what <= 21) {
        weft_rotation by = {.size = what == 17 ? 8 : sizeof by, .base = what == 18 ? 1 : 500};
        if (what == 19) by.scaling = "ntk";
        if (what == 20) by.scaling = "linear";
        if (what == 21) by = (weft_rotation){sizeof by, 500, "yarn", 2, 64, 4, 1, 0};
        weft_graph_output(g, "y", weft_graph_rotate(g, x, 4, 1, &by));
    }
    return WEFT_OK;
}

static weft_status describe_foreign(void *context, weft_graph *g) {
    (void)context;
    foreign = weft_graph_input(g, "x", "f32", SHAPE(2, 4), 1);
    weft_graph_output(g, "y", weft_graph_scale(g, foreign, 2));
    return WEFT_OK;
}

TEST(test_wrong_descriptions_are_refused) {
    static const char *const words[] = {
        "5",     "missing",   "f16",     "relu",   "already", "output", "graph",     "i32",
        "sizes", "layernorm", "already", "scores", "q and k", "",       "elements",  "open",
        "eps",   "size",      "base",    "yarn",   "factor",  "low",    "_erf exp ", "missing"};
    weft_block *block, *kept;
    OK(weft_block_open(engine, NULL, describe_foreign, NULL, 0, &kept));
    for (int i = 0; i < (int)(sizeof words / sizeof *words); i++) {
        refused(weft_block_open(engine, NULL, describe_wrong, &i, WEFT_BLOCK_GRADIENT, &block),
                WEFT_EINPUT, words[i]);
        assert_null(block);
    }
    weft_block_close(kept);
    refused(weft_block_open(NULL, "k", describe_foreign, NULL, 0, &block), WEFT_EINPUT, "engine");
    refused(weft_block_open(engine, "k", NULL, NULL, 0, &block), WEFT_EINPUT, "describe");
    assert_null(weft_graph_gelu(NULL, NULL));
    weft_block_close(NULL);
    assert_int_equal(weft_block_count(NULL, WEFT_BLOCK_INPUTS), 0);
    assert_int_equal(weft_block_bytes(NULL, WEFT_BYTES_SAVED), 0);
}

RUN_TESTS(open_engine, close_engine)
