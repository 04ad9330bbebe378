/* cache_attention_x86.h's products of one head by one of the instructions for pairs: BYTES(score_alone) and
 * BYTES(add_alone). */

BYTES_TARGET static void BYTES(score_alone)(const int8_t *q, real q_scale, const int8_t *k,
                                            const float *scales, int64_t width, int64_t token,
                                            int64_t end, real *s) {
    for (int64_t j = token & ~3; j < end; j += 4) {
        const int8_t *key = k + j * width;
        vsums sum[4] = {{0}, {0}, {0}, {0}};
        for (int64_t i = 0; i < width; i += 2 * NARROW_STEP) {
            vshort v;
            memcpy(&v, q + 2 * i, sizeof v);
            for (int m = 0; m < 4; m++)
                sum[m] = BYTES(pairs)(sum[m], v, widen_bytes(key + m * width + i));
        }
        __m128 scale = _mm_mul_ps(_mm_loadu_ps(scales + j), _mm_set1_ps(q_scale));
        _mm_storeu_ps(s + j, _mm_mul_ps(_mm_cvtepi32_ps(sum_four(sum)), scale));
    }
}

/* 2 NARROW_STEP · parts columns, which begin where v and sums do. */
BYTES_TARGET static ALWAYS_INLINE void BYTES(add_columns)(const int8_t *p, const int8_t *v,
                                                          int64_t width, int64_t token, int64_t end,
                                                          int32_t *sums, const int parts) {
    vsums sum[4][2];
    for (int c = 0; c < 2 * parts; c++)
        sum[c / 2][c % 2] = load_sums(sums + NARROW_STEP * c);
    for (int64_t j = token & ~1; j < end; j += 2) {
        vshort weight = two_times(p + 2 * j);
        for (int c = 0; c < parts; c++) {
            const int8_t *at = v + j * width + 2 * NARROW_STEP * c;
            vshort one = widen_bytes(at), two = widen_bytes(at + width);
            sum[c][0] = BYTES(pairs)(sum[c][0], zip_first(one, two), weight);
            sum[c][1] = BYTES(pairs)(sum[c][1], zip_second(one, two), weight);
        }
    }
    for (int c = 0; c < 2 * parts; c++)
        keep_sums(sums + NARROW_STEP * c, sum[c / 2][c % 2]);
}

/* Whole cache lines of a key's values, where it has some. */
BYTES_TARGET static void BYTES(add_alone)(const int8_t *p, const int8_t *v, int64_t width,
                                          int64_t token, int64_t end, int32_t *sums) {
    enum { LINE = 64, PARTS = LINE / (2 * NARROW_STEP) };
    int64_t i = 0;
    for (; i + LINE <= width; i += LINE)
        BYTES(add_columns)(p, v + i, width, token, end, sums + i, PARTS);
    for (; i < width; i += 2 * NARROW_STEP)
        BYTES(add_columns)(p, v + i, width, token, end, sums + i, 1);
}

#undef BYTES
#undef BYTES_TARGET
