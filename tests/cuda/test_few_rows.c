/* Products of few rows on the GPU: a row has the bits it has alone, whatever rows are beside it. Up to 64 of
 * them, and up to 256 where weights stream through shared memory. */
#include "core/exec.h"
#include "cuda/backend.h"
#include "cuda/device.h"
#include "ops/linear.h"
#include "support/table.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>

#include <cmocka.h>

enum { ROWS = 256, PLAIN_ROWS = 64, MOST_K = 3072, MOST_N = 768 };

static uint16_t x_values[ROWS * MOST_K], w_values[MOST_K * MOST_N], together[ROWS * MOST_N],
    alone[ROWS * MOST_N];

static void fill(void) {
    for (int64_t i = 0; i < ROWS * MOST_K; i++)
        x_values[i] = weft_float_to_bf16((float)(2 * case_unit(1, "x", i) - 1));
    for (int64_t i = 0; i < MOST_K * MOST_N; i++)
        w_values[i] = weft_float_to_bf16((float)(2 * case_unit(1, "w", i) - 1));
}

/* y [rows, n] = x · w, or x · wᵀ, of the rows from `first` on. */
static void multiply(int64_t first, int64_t rows, int64_t k, int64_t n, bool tb, uint16_t *y) {
    weft_graph *g;
    weft_pool *pool;
    weft_exec *exec;
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    assert_int_equal(weft_pool_create(1, &pool), WEFT_OK);
    weft_tensor *x = weft_new_tensor(g, WEFT_ROLE_INPUT, "x", WEFT_BF16, rows, k);
    weft_tensor *w = weft_new_tensor(g, WEFT_ROLE_INPUT, "w", WEFT_BF16, tb ? n : k, tb ? k : n);
    weft_tensor *product = weft_keep(weft_matmul(g, x, w, false, tb));
    if (weft_exec_create(g, weft_cuda_backend(), pool, NULL, &exec) != WEFT_OK)
        fail_msg("%s", weft_error_message());
    assert_int_equal(weft_exec_write(exec, x, x_values + first * k), WEFT_OK);
    assert_int_equal(weft_exec_write(exec, w, w_values), WEFT_OK);
    assert_int_equal(weft_exec_run(exec, NULL), WEFT_OK);
    assert_int_equal(weft_exec_read(exec, product, y), WEFT_OK);
    weft_exec_destroy(exec);
    weft_pool_destroy(pool);
    weft_graph_destroy(g);
}

static void check_rows(int64_t k, int64_t n, bool tb) {
    int64_t most = tb && k % 8 == 0 && weft_cuda_device()->wgmma ? ROWS : PLAIN_ROWS;
    multiply(0, most, k, n, tb, together);
    for (int64_t first = 0, rows = 1; first + rows <= most; first += rows, rows += 2) {
        multiply(first, rows, k, n, tb, alone);
        if (memcmp(alone, together + first * n, (size_t)(rows * n) * sizeof *alone) != 0)
            fail_msg("k %lld, n %lld, tb %d: %lld rows from %lld on differ", (long long)k,
                     (long long)n, tb, (long long)rows, (long long)first);
    }
}

static void test_a_row_has_the_bits_it_has_alone(void **state) {
    (void)state;
    if (!weft_cuda_backend()) {
        printf("%s\n", weft_error_message());
        skip();
    }
    fill();
    for (int tb = 0; tb < 2; tb++) {
        check_rows(MOST_K, MOST_N, tb);
        check_rows(72, 40, tb);
        check_rows(1600, 200, tb);
        check_rows(45, 37, tb);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_row_has_the_bits_it_has_alone)};
    return cmocka_run_group_tests_name("few rows", tests, NULL, NULL);
}
