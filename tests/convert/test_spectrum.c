/* Eigenvectors of symmetric matrices: A v = λ v, orthonormal, falling; known spectra. */
#include "convert/measure.h"

#include "base/random.h"
#include "support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void check(const double *a, int64_t n, double *values) {
    size_t count = (size_t)(n * n);
    double *copy = malloc(count * sizeof *copy), *vectors = malloc(count * sizeof *vectors);
    assert_true(copy && vectors);
    memcpy(copy, a, count * sizeof *copy);
    assert_int_equal(weft_spectrum(copy, n, values, vectors), WEFT_OK);
    double size = fmax(fabs(values[0]), fabs(values[n - 1])) + 1e-300;
    for (int64_t i = 0; i < n; i++) {
        const double *v = vectors + i * n;
        if (i) assert_true(values[i] <= values[i - 1]);
        for (int64_t r = 0; r < n; r++) {
            double sum = 0;
            for (int64_t j = 0; j < n; j++)
                sum += a[r * n + j] * v[j];
            assert_true(fabs(sum - values[i] * v[r]) <= 1e-12 * size * (double)n);
        }
        for (int64_t k = 0; k <= i; k++) {
            double sum = 0;
            for (int64_t j = 0; j < n; j++)
                sum += v[j] * vectors[k * n + j];
            assert_true(fabs(sum - (i == k)) <= 1e-12 * (double)n);
        }
    }
    free(copy);
    free(vectors);
}

TEST(test_random_matrices) {
    for (int64_t n = 1; n <= 70; n += n < 8 ? 1 : 31) {
        double *x = malloc((size_t)(n * n) * sizeof *x), *a = calloc((size_t)(n * n), sizeof *a);
        double values[70];
        assert_true(x && a);
        weft_random_normal(5, 0, (uint32_t)n, 0, n * n, x);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++)
                a[i * n + j] = x[i * n + j] + x[j * n + i];
        check(a, n, values);
        /* A Gram matrix of rank 2: all but two are nothing. */
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++)
                a[i * n + j] = x[i] * x[j] + (n > 1 ? x[n + i] * x[n + j] : 0);
        check(a, n, values);
        for (int64_t i = 2; i < n; i++)
            assert_true(fabs(values[i]) <= 1e-12 * values[0]);
        free(x);
        free(a);
    }
}

/* 2 on the diagonal, -1 beside it: 2 - 2 cos(kπ/(n+1)). And matrices with equal values. */
TEST(test_known_spectra) {
    enum { N = 33 };
    double a[N * N] = {0}, values[N];
    for (int i = 0; i < N; i++) {
        a[i * N + i] = 2;
        if (i) a[i * N + i - 1] = a[(i - 1) * N + i] = -1;
    }
    check(a, N, values);
    for (int i = 0; i < N; i++)
        assert_true(fabs(values[i] - (2 - 2 * cos((N - i) * acos(-1.0) / (N + 1)))) < 1e-13);
    memset(a, 0, sizeof a);
    check(a, N, values);
    for (int i = 0; i < N; i++)
        a[i * N + i] = 3;
    check(a, N, values);
    assert_true(values[0] == 3 && values[N - 1] == 3);
}

RUN_TESTS(NULL, NULL)
