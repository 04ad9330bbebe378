/* Attention's exponentials, many at a time and one by one: the same bits, so that a token's output
 * does not depend on how many others were worked on with it. And the tanh of soft-caps. */
#include "cpu/attention_exp.h"
#include "support/test.h"

enum { ROWS = 15, WIDTH = 2 * VBYTES / (int)sizeof(real), COUNT = ROWS * WIDTH, ROUNDS = 20000 };

static uint32_t next_bits(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}

/* Any bits at all, scores of every size, scores near 0; now and then an infinity or a NaN. */
static void fill_scores(real *x, int kind, uint64_t *state) {
    for (int i = 0; i < COUNT; i++) {
        uint32_t bits = next_bits(state);
        float any;
        memcpy(&any, &bits, sizeof any);
        real unit = (real)(bits >> 8) * 0x1p-24f;
        x[i] = kind == 0 ? any : kind == 1 ? -140 * unit : -2 * unit;
        if (bits % 64 == 0) x[i] = bits % 128 ? INFINITY : -INFINITY;
        if (bits % 97 == 0) x[i] = NAN;
    }
}

/* Bit for bit; NaNs are one and the same. */
static bool same(const real *a, const real *b, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        vint_lane one, other;
        memcpy(&one, a + i, sizeof one);
        memcpy(&other, b + i, sizeof other);
        if (one != other && !(isnan(a[i]) && isnan(b[i]))) return false;
    }
    return true;
}

TEST(test_forward) {
    uint64_t seed = 1;
    for (int round = 0; round < ROUNDS; round++) {
        real x[COUNT], many[COUNT], sums[WIDTH], wanted[WIDTH];
        fill_scores(x, round % 3, &seed);
        memcpy(many, x, sizeof x);
        vreal top[TILE_V], sum[TILE_V], one[TILE_V];
        for (int v = 0; v < TILE_V; v++) {
            top[v] = vset((real)(v - 1));
            sum[v] = one[v] = vset(1);
        }
        int64_t rows = softmax_many(many, ROWS, top, sum);
        if (rows == 0) skip();
        for (int64_t i = 0; i < rows * WIDTH; i += VLEN) {
            vreal weight = vexp2_low(vload(x + i) - top[i / VLEN % TILE_V]);
            vstore(x + i, weight);
            one[i / VLEN % TILE_V] += weight;
        }
        memcpy(sums, sum, sizeof sums);
        memcpy(wanted, one, sizeof wanted);
        assert_true(same(many, x, COUNT));
        assert_true(same(sums, wanted, WIDTH));
    }
}

TEST(test_backward) {
    uint64_t seed = 2;
    for (int round = 0; round < ROUNDS; round++) {
        real x[COUNT], p[COUNT], ds[COUNT], wanted[COUNT], sums[2 * WIDTH], one[2 * WIDTH] = {0};
        fill_scores(x, round % 3, &seed);
        for (int i = 0; i < COUNT; i++)
            ds[i] = wanted[i] = (real)(i % 7 - 3);
        memcpy(p, x, sizeof x);
        vreal column[TILE_V] = {{0}}, number[TILE_V] = {{0}};
        bool columns = round % 4 > 0, numbers = round % 4 > 1;
        int64_t rows = softmax_back_many(p, ds, ROWS, columns, numbers, column, number);
        if (rows == 0) skip();
        for (int64_t i = 0; i < rows * WIDTH; i += VLEN) {
            vreal score = vload(x + i), weight = vexp2(score), d = weight * vload(wanted + i);
            real *to = one + i % WIDTH;
            if (columns) vstore(to, vload(to) + d);
            if (numbers) vstore(to + WIDTH, vfma(d, score, vload(to + WIDTH)));
            vstore(x + i, weight);
            vstore(wanted + i, d);
        }
        memcpy(sums, column, sizeof column);
        memcpy(sums + WIDTH, number, sizeof number);
        assert_true(same(p, x, COUNT));
        assert_true(same(ds, wanted, COUNT));
        assert_true(same(sums, one, 2 * WIDTH));
    }
}

/* A score is far below its cap: the digits that count are those of a small tanh. */
TEST(test_a_small_tanh_keeps_its_digits) {
    for (double x = 1e-6; x < 30; x *= 1.003)
        for (int sign = -1; sign <= 1; sign += 2) {
            real given = (real)(sign * x);
            vreal got = vtanh(vset(given));
            double wanted = tanh((double)given), off = fabs((double)got[0] - wanted);
            if (!(off <= 4e-7 * fabs(wanted)))
                fail_msg("tanh(%g) is %.9g, not %.9g", (double)given, (double)got[0], wanted);
        }
}

RUN_TESTS(NULL, NULL)
