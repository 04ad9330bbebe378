/* Numbers with NaNs among them are sorted alike from whatever order they came in. */
#include "base/order.h"
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

enum { N = 9, ROUNDS = 500 };

TEST(test_nans_come_last) {
    double values[N] = {3, NAN, -1, INFINITY, 0, NAN, -INFINITY, 2, -NAN};
    static const double want[N - 3] = {-INFINITY, -1, 0, 2, 3, INFINITY};
    uint64_t seed = 1;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = N - 1; i > 0; i--) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            int k = (int)((seed >> 33) % (uint64_t)(i + 1));
            double kept = values[i];
            values[i] = values[k];
            values[k] = kept;
        }
        qsort(values, N, sizeof *values, weft_order_doubles);
        for (int i = 0; i < N; i++)
            assert_true(i < N - 3 ? values[i] == want[i] : isnan(values[i]));
    }
}

/* Antisymmetric and transitive over every three. */
TEST(test_the_order_is_total) {
    static const double v[] = {NAN, -INFINITY, -1, -0.0, 0.0, 1, INFINITY, -NAN};
    int n = (int)(sizeof v / sizeof v[0]);
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++) {
            assert_int_equal(weft_order(v[a], v[b]), -weft_order(v[b], v[a]));
            for (int c = 0; c < n; c++)
                if (weft_order(v[a], v[b]) <= 0 && weft_order(v[b], v[c]) <= 0)
                    assert_true(weft_order(v[a], v[c]) <= 0);
        }
}

RUN_TESTS(NULL, NULL)
