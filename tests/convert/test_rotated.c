/* The rotated part of MLA: where one shared key can hold all of the heads' keys, scores at any two places are
 * those of rotary attention, computed here from the definition. */
#include "convert/attention.h"
#include "support/test.h"

#include <complex.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { E = 6, HEADS = 4, KV = 2, D = 8, P = 6, PAIRS = P / 2 };

static double some(int i) {
    return sin(1.7 * i + 0.3) + 0.4 * cos(5.1 * i);
}

static double apply(const double *rows, const double *biases, int64_t row, const double *x) {
    double y = biases[row];
    for (int j = 0; j < E; j++)
        y += rows[row * E + j] * x[j];
    return y;
}

/* A pair of a row's columns as a complex number. */
static double complex pair_of(const double *rows, const double *biases, int64_t first, int64_t half,
                              const double *x) {
    return CMPLX(apply(rows, biases, first, x), apply(rows, biases, first + half, x));
}

/* Of key heads whose pairs are complex multiples of one another. */
TEST(test_keys_of_one_direction_lose_nothing) {
    double q[HEADS * D * E], bq[HEADS * D], k[KV * D * E], bk[KV * D], gram[KV * D * KV * D];
    double was[KV * D * E], was_b[KV * D], squares[HEADS * D];
    double part_q[HEADS * P * E], part_bq[HEADS * P], part_k[P * E], part_bk[P];
    for (int i = 0; i < HEADS * D * E; i++)
        q[i] = some(i);
    for (int i = 0; i < HEADS * D; i++)
        bq[i] = some(1000 + i);
    for (int i = 0; i < D * (E + 1); i++)
        *(i < D * E ? &k[i] : &bk[i - D * E]) = some(2000 + i);
    for (int p = 0; p < D;
         p++) { /* the second head: pairs times x + iy, other columns as they come */
        double x = some(3000 + p % PAIRS), y = some(3100 + p % PAIRS);
        for (int j = 0; j <= E; j++) {
            const double *from = j < E ? k : bk;
            int step = j < E ? E : 1, at = j < E ? j : 0, other = p < PAIRS ? p + PAIRS : p - PAIRS;
            double own = from[p * step + at], turned = p < P ? from[other * step + at] : 0;
            double made = p < P ? x * own + (p < PAIRS ? -y : y) * turned : some(p * E + j);
            *(j < E ? &k[(D + p) * E + j] : &bk[D + p]) = made;
        }
    }
    memcpy(was, k, sizeof k);
    memcpy(was_b, bk, sizeof bk);
    for (int a = 0; a < KV * D; a++)
        for (int b = 0; b < KV * D; b++) {
            gram[a * KV * D + b] = 0;
            for (int j = 0; j < E; j++)
                gram[a * KV * D + b] += k[a * E + j] * k[b * E + j];
        }
    weft_rotated f = {E, HEADS, KV, D, .columns = P, .kept = P, .stride = 1};
    f.law = WEFT_ROPE_USUAL;
    assert_int_equal(weft_rotated_squares(q, HEADS * D, E, NULL, squares), WEFT_OK);
    assert_int_equal(weft_rotated_split(&f, &(weft_rotated_rows){q, k, bq, bk}, gram, squares,
                                        &(weft_rotated_rows){part_q, part_k, part_bq, part_bk}),
                     WEFT_OK);
    for (int h = 0; h < HEADS; h++)
        for (int place = 0; place < 9; place++) {
            double x[E], y[E], want = 0, made = 0;
            int g = h * KV / HEADS;
            for (int j = 0; j < E; j++) {
                x[j] = some(4000 + 10 * place + j);
                y[j] = some(5000 + 10 * h + j);
            }
            for (int p = 0; p < PAIRS; p++) {
                double complex turn = cexp(CMPLX(0, -place * pow(10000, -2.0 * p / P)));
                want += creal(conj(pair_of(q, bq, h * D + p, PAIRS, x)) * turn *
                              pair_of(was, was_b, g * D + p, PAIRS, y));
                made += creal(conj(pair_of(part_q, part_bq, h * P + p, PAIRS, x)) * turn *
                              pair_of(part_k, part_bk, p, PAIRS, y));
                assert_true(cabs(pair_of(k, bk, g * D + p, PAIRS, y)) < 1e-9);
            }
            assert_true(fabs(want - made) < 1e-9);
            for (int c = P; c < D; c++) /* columns that never rotated stay */
                assert_true(apply(k, bk, g * D + c, y) == apply(was, was_b, g * D + c, y));
        }
}

/* With half of the pairs, those stay that the scores owe most, if they rotate at all. */
TEST(test_the_pairs_that_matter_are_kept) {
    weft_rotated f = {E, 1, 1, 8, .columns = 8, .kept = 4};
    f.law = (weft_rope_law){.base = 2, .factor = 1, .amplitude = 1};
    for (int64_t stride = 1; stride <= 3; stride++) {
        double pairs[4] = {0};
        pairs[stride] = 1;
        assert_int_equal(weft_rotated_stride(&f, pairs), stride);
    }
    f.law.base = 1e11; /* two thirds more of it would be more than ROPE_THETA may be */
    assert_int_equal(weft_rotated_stride(&f, (double[]){0, 0, 1, 1e8}), 2);
    f.law.base = 1e12;
    assert_int_equal(weft_rotated_stride(&f, (double[]){1, 1, 1, 2}), 1);
}

RUN_TESTS(NULL, NULL)
