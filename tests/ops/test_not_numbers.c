/* Weights that are not numbers: no key is the largest of them, so nothing may be read where one would
 * lie. Of a cache the row's sum is not a number either; routes of a whole pass name no key, and the
 * attention that made the weights tells of it. Rows beside such a one are what they are without it. */
#include "core/exec.h"
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "ops/cache.h"
#include "ops/routing.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const weft_backend *backend(void) {
#ifdef ON_GPU
    if (weft_cuda_backend()) return weft_cuda_backend();
    printf("%s\n", weft_error_message());
    skip();
    return NULL;
#else
    return weft_cpu_backend();
#endif
}

typedef struct {
    weft_graph *g;
    weft_pool *pool;
    weft_exec *exec;
} work;

static void begin(work *w) {
    assert_int_equal(weft_graph_create(&w->g), WEFT_OK);
    assert_int_equal(weft_pool_create(1, &w->pool), WEFT_OK);
}

static void make(work *w, const weft_backend *b) {
    if (weft_exec_create(w->g, b, w->pool, NULL, &w->exec) != WEFT_OK)
        fail_msg("%s", weft_error_message());
}

static void run(work *w) {
    if (weft_exec_run(w->exec, NULL) != WEFT_OK) fail_msg("%s", weft_error_message());
}

static void end(work *w) {
    weft_exec_destroy(w->exec);
    weft_pool_destroy(w->pool);
    weft_graph_destroy(w->g);
}

static void put(work *w, weft_tensor *t, const void *from) {
    assert_int_equal(weft_exec_write(w->exec, t, from), WEFT_OK);
}

static void get(work *w, const weft_tensor *t, void *to) {
    if (weft_exec_read(w->exec, t, to) != WEFT_OK) fail_msg("%s", weft_error_message());
}

/* A sequence of KEYS tokens in pages that do not lie in order, and rows that stand at its last: the sums
 * of the KEPT largest weights, which are 1 + j % 7 for key j. */
enum { KEYS = 40, PAGES = 3, WIDTH = 24, ROWS = 3, BROKEN = 1, KEPT = 5 };

static float number_of(int key, int column) {
    return (float)((key * 13 + column * 7) % 31) / 16;
}

static void fill_pages(float *pages, const int32_t *table) {
    for (int j = 0; j < KEYS; j++)
        for (int i = 0; i < WIDTH; i++)
            pages[(table[j / WEFT_PAGE_TOKENS] * WEFT_PAGE_TOKENS + j % WEFT_PAGE_TOKENS) * WIDTH +
                  i] = number_of(j, i);
}

/* The largest are 7: keys 6, 13, 20, 27 and 34. */
static float want_number(int column, bool normalize) {
    float sum = 0;
    for (int m = 0; m < KEPT; m++)
        sum += (normalize ? 0.2F : 7.0F) * number_of(6 + 7 * m, column);
    return sum;
}

static void check_gather(const weft_backend *b, int broken_from, bool normalize) {
    static float pages[PAGES * WEFT_PAGE_TOKENS * WIDTH], weights[ROWS * KEYS], got[ROWS * WIDTH];
    static const int32_t table[PAGES] = {2, 0, 1}, slot[ROWS] = {0};
    int32_t position[ROWS];
    weft_cache_part part = {1, WIDTH, WEFT_F32, false};
    work w;
    begin(&w);
    weft_rows rows = {
        .position = weft_new_tensor(w.g, WEFT_ROLE_INPUT, "position", WEFT_I32, (int64_t)ROWS),
        .slot = weft_new_tensor(w.g, WEFT_ROLE_INPUT, "slot", WEFT_I32, (int64_t)ROWS),
        .table =
            weft_new_tensor(w.g, WEFT_ROLE_INPUT, "table", WEFT_I32, (int64_t)1, (int64_t)PAGES)};
    weft_tensor *cache = weft_new_tensor(w.g, WEFT_ROLE_STATE, "cache", WEFT_I8, (int64_t)PAGES,
                                         weft_cache_page_bytes(&part));
    weft_tensor *in =
        weft_new_tensor(w.g, WEFT_ROLE_INPUT, "weights", WEFT_F32, (int64_t)ROWS, (int64_t)KEYS);
    weft_tensor *out = weft_keep(
        weft_cache_gather(w.g, &part, cache, in, WEFT_KEEP_TOPK, KEPT, 1, normalize, &rows));
    make(&w, b);
    fill_pages(pages, table);
    for (int r = 0; r < ROWS; r++) {
        position[r] = KEYS - 1;
        for (int j = 0; j < KEYS; j++)
            weights[r * KEYS + j] = r == BROKEN && j >= broken_from ? NAN : (float)(1 + j % 7);
    }
    put(&w, rows.position, position);
    put(&w, rows.slot, slot);
    put(&w, rows.table, table);
    put(&w, cache, pages);
    put(&w, in, weights);
    run(&w);
    get(&w, out, got);
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < WIDTH; i++) {
            float want = r == BROKEN ? NAN : want_number(i, normalize);
            if (isnan(want) ? !isnan(got[r * WIDTH + i]) : fabsf(got[r * WIDTH + i] - want) > 1e-4F)
                fail_msg("row %d, number %d is %g, not %g", r, i, (double)got[r * WIDTH + i],
                         (double)want);
        }
    end(&w);
}

/* All of a row's weights, or all but as many as would be kept less one. */
TEST(test_a_cache_is_read_where_keys_are_and_the_sum_is_not_a_number) {
    const weft_backend *b = backend();
    for (int normalize = 0; normalize < 2; normalize++) {
        check_gather(b, 0, normalize);
        check_gather(b, KEPT - 1, normalize);
    }
}

/* Attention of TIME tokens, of which one's query is broken. */
enum { TIME = 70, HEADS = 2, DQK = 32, LOST = 33, ROUTES = 4 };

static void fill_queries(float *values, int broken) {
    for (int t = 0; t < TIME; t++)
        for (int i = 0; i < HEADS * DQK; i++)
            values[t * HEADS * DQK + i] =
                t == broken ? NAN : (float)((t * 11 + i * 5) % 17) / 16 - 0.5F;
}

static void put_numbers(work *w, weft_tensor *t, const float *values) {
    static uint16_t halves[TIME * HEADS * DQK];
    for (int i = 0; i < TIME * HEADS * DQK; i++)
        halves[i] = weft_float_to_bf16(values[i]);
    put(w, t, t->dtype == WEFT_BF16 ? (const void *)halves : (const void *)values);
}

static void check_routes(const weft_backend *b, weft_dtype dtype) {
    static float values[TIME * HEADS * DQK], weight[TIME * ROUTES], sums[TIME * DQK * HEADS];
    static int32_t index[TIME * ROUTES];
    int64_t shape[] = {1, TIME, HEADS, DQK};
    work w;
    begin(&w);
    weft_tensor *q = weft_graph_tensor(w.g, WEFT_ROLE_INPUT, "q", dtype, 4, shape);
    weft_tensor *k = weft_graph_tensor(w.g, WEFT_ROLE_INPUT, "k", dtype, 4, shape);
    weft_tensor *h = weft_new_tensor(w.g, WEFT_ROLE_INPUT, "h", WEFT_F32, (int64_t)1, (int64_t)TIME,
                                     (int64_t)(HEADS * DQK));
    weft_score score = {.q = q, .k = k, .scale_value = 0.2, .causal = true};
    weft_attended attended = weft_attention(w.g, &score, k);
    weft_routes routes = weft_route_topk(w.g, &score, attended.lse, ROUTES, true, false);
    weft_tensor *c = weft_keep(weft_route_gather(w.g, h, routes.index, routes.weight));
    weft_keep(routes.index);
    weft_keep(routes.weight);
    make(&w, b);
    fill_queries(values, -1);
    put_numbers(&w, k, values);
    put(&w, h, values);
    fill_queries(values, LOST);
    put_numbers(&w, q, values);
    run(&w);
    get(&w, routes.index, index);
    get(&w, routes.weight, weight);
    get(&w, c, sums);
    for (int t = 0; t < TIME; t++) {
        float all = 0;
        int there = t == LOST ? 0 : t + 1 < ROUTES ? t + 1 : ROUTES;
        for (int m = 0; m < ROUTES; m++) {
            int j = index[t * ROUTES + m];
            all += weight[t * ROUTES + m];
            if (m < there ? j < 0 || j > t : j != -1)
                fail_msg("token %d: key %d of its routes is %d", t, m, j);
        }
        if (fabsf(all - (there ? 1.0F : 0.0F)) > 1e-5F)
            fail_msg("token %d: its weights make %g", t, (double)all);
        for (int i = 0; i < HEADS * DQK; i++)
            assert_true(isfinite(sums[t * HEADS * DQK + i]));
    }
    end(&w);
}

TEST(test_routes_of_a_broken_query_name_no_key) {
    const weft_backend *b = backend();
    check_routes(b, WEFT_F32);
    check_routes(b, WEFT_BF16);
}

RUN_TESTS(NULL, NULL)
