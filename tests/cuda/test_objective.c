/* The objective of a step that is cut into micro-batches, on the GPU: the reference has the whole
 * batch at once. */
#include "cuda/backend.h"
#include "support/objective_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static void check_config(const char *config, int64_t batch) {
    for (int64_t micro = 1; micro <= batch; micro++) {
        if (batch % micro) continue;
        objective_case c = {
            .config = config, .dtype = WEFT_F32, .micro = micro, .backend = weft_cuda_backend()};
        objective_result r = objective_case_run(&c);
        objective_case_compare(&c, &r, 1e-3);
        objective_result_free(&r);
    }
}

static void test_any_cut_equals_the_reference(void **state) {
    (void)state;
    if (!weft_cuda_backend()) {
        printf("%s\n", weft_error_message());
        skip();
    }
    check_config("cut-dot-zloss-ignore", 6);
    check_config("cut-wsffn-ignore", 6);
    check_config("cut-wsffn-grouped", 6);
    check_config("cut-w2-wsffn-zloss-ignore", 4);
    check_config("cut-wsffn-half-z-logits", 6);
    check_config("cut-wsffn-dropout-views", 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_any_cut_equals_the_reference)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
