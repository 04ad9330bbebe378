/* Rounding to bf16 as attention does it, many numbers at a time: the nearest, of two as near the even
 * one, and a NaN stays one, among them the pattern that unwritten memory is filled with in tests. */
#include "cpu/attention_bf16.h"
#include "support/test.h"

enum { LANES = VBYTES / (int)sizeof(float), ROUNDS = 200000 };

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void check(const uint32_t *bits) {
    float in[LANES], out[LANES];
    uint16_t half[LANES];
    for (int i = 0; i < LANES; i++)
        in[i] = float_of(bits[i]);
    vstore(out, vround(half, vload(in)));
    for (int i = 0; i < LANES; i++) {
        float got = float_of((uint32_t)half[i] << 16);
        if (memcmp(&got, &out[i], sizeof got) != 0) fail_msg("%08x: two results", bits[i]);
        if (isnan(in[i])) {
            if (!isnan(got)) fail_msg("%08x, a NaN, became %g", bits[i], (double)got);
            continue;
        }
        /* Of the two neighbours that cut the lower half off, the nearer, in exact arithmetic. */
        uint32_t low = bits[i] & 0xffff0000u, high = low + 0x10000u, rest = bits[i] & 0xffffu;
        uint32_t want = rest > 0x8000u || (rest == 0x8000u && (low >> 16 & 1)) ? high : low;
        if ((uint32_t)half[i] << 16 != want) fail_msg("%08x became %04x", bits[i], half[i]);
    }
}

TEST(test_numbers_and_nans) {
    static const uint32_t some[] = {0xffffffffu, 0x7fffffffu, 0x7f800001u, 0xff800001u,
                                    0x7fc00000u, 0x7f800000u, 0xff800000u, 0x7f7fffffu,
                                    0,           0x80000000u, 0x3f808000u, 0x3f818000u,
                                    0x3f808001u, 0x00000001u, 0x0000ffffu, 0xffff8000u};
    enum { SOME = sizeof some / sizeof some[0] };
    uint32_t bits[LANES];
    uint64_t seed = 1;
    for (int first = 0; first < SOME; first++) {
        for (int i = 0; i < LANES; i++)
            bits[i] = some[(first + i) % SOME];
        check(bits);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < LANES; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            bits[i] = (uint32_t)(seed >> 32) | (round % 4 ? 0 : 0x7f800000u);
        }
        check(bits);
    }
}

RUN_TESTS(NULL, NULL)
