/* An executor on the GPU says which of its nodes get a slow kernel, once in a process.
 * tests/ops/test_cuda_choice.c has what is said, without a GPU. */
#include "base/log.h"
#include "core/exec.h"
#include "cuda/backend.h"
#include "ops/attention.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Attention with heads of `width`, run. */
static void attend(int64_t width) {
    enum { B = 1, T = 16, H = 2 };
    weft_graph *g;
    weft_pool *pool;
    weft_exec *exec;
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    assert_int_equal(weft_pool_create(1, &pool), WEFT_OK);
    weft_score score = {.scale_value = 1, .causal = true};
    score.q = weft_new_tensor(g, WEFT_ROLE_INPUT, "q", WEFT_BF16, B, T, H, width);
    score.k = weft_new_tensor(g, WEFT_ROLE_INPUT, "k", WEFT_BF16, B, T, H, width);
    weft_tensor *v = weft_new_tensor(g, WEFT_ROLE_INPUT, "v", WEFT_BF16, B, T, H, width);
    weft_keep(weft_attention(g, &score, v).o);
    if (weft_exec_create(g, weft_cuda_backend(), pool, NULL, &exec) != WEFT_OK)
        fail_msg("%s", weft_error_message());
    assert_int_equal(weft_exec_run(exec, NULL), WEFT_OK);
    weft_exec_destroy(exec);
    weft_pool_destroy(pool);
    weft_graph_destroy(g);
}

static void test_the_plain_kernel_is_warned_of_once(void **state) {
    (void)state;
    if (!weft_cuda_backend()) {
        printf("%s\n", weft_error_message());
        skip();
    }
    char text[4096] = "";
    FILE *log = tmpfile();
    assert_non_null(log);
    weft_log_copy(fileno(log));
    attend(64);
    attend(264);
    attend(264);
    attend(300);
    weft_log_copy(-1);
    rewind(log);
    size_t bytes = fread(text, 1, sizeof text - 1, log);
    fclose(log);
    text[bytes] = 0;
    const char *line = strstr(text, "cuda: HEAD_DIM 264: attention runs by the plain kernel");
    assert_non_null(line);
    assert_non_null(strstr(line, "256 is fast"));
    assert_null(strstr(line + 1, "cuda: HEAD_DIM"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_plain_kernel_is_warned_of_once)};
    return cmocka_run_group_tests_name("choice", tests, NULL, NULL);
}
