/* cache_attention_arm.h's scores and weighted values by tiles, of bf16 numbers or of bytes: TILE(way). A vector
 * of 16 bytes is a tile, two rows of four numbers of bf16 (BFMMLA) or of eight bytes (SMMLA). */

#if TILE_BF16
typedef float32x4_t TILE(sums);
#define TILE_LOAD(from) vld1q_f32(from)
#define TILE_STORE(to, sums) vst1q_f32(to, sums)
#else
typedef int32x4_t TILE(sums);
#define TILE_LOAD(from) vld1q_s32((const int32_t *)(from))
#define TILE_STORE(to, sums) vst1q_s32((int32_t *)(to), sums)
#endif

/* sum + a · bᵀ. */
TILE_TARGET static ALWAYS_INLINE TILE(sums) TILE(dot)(TILE(sums) sum, uint8x16_t a, uint8x16_t b) {
#if TILE_BF16
    return vbfmmlaq_f32(sum, vreinterpretq_bf16_u8(a), vreinterpretq_bf16_u8(b));
#else
    return vmmlaq_s32(sum, vreinterpretq_s8_u8(a), vreinterpretq_s8_u8(b));
#endif
}

/* A row of scores; those of bytes have scales. */
static ALWAYS_INLINE void TILE(store_scores)(real *to, uint64x2_t sums, const float *scales,
                                             real q_scale) {
#if TILE_BF16
    (void)scales, (void)q_scale;
    vst1q_f32(to, vreinterpretq_f32_u64(sums));
#else
    i8_store(to, vreinterpretq_s32_u64(sums), scales, q_scale);
#endif
}

/* The scores of `tiles` tiles of queries and four keys. `bytes`: of a key; words: a tile is one line. */
TILE_TARGET static ALWAYS_INLINE void TILE(score_four)(const uint8_t *q, const real *q_scales,
                                                       const uint8_t *k, const float *scales,
                                                       int64_t bytes, real *s, const int tiles,
                                                       const bool words) {
    TILE(sums) sum[6][2] = {0};
    for (int64_t i = 0; i < bytes; i += 16) {
        uint8x16_t key[2][2];
        for (int m = 0; m < 2; m++)
            zip_halves(k + 2 * m * bytes + i, k + (2 * m + 1) * bytes + i, key[m]);
        for (int t = 0; t < tiles; t++)
            for (int half = 0; half < 2; half++) {
                uint8x16_t v = vld1q_u8(q + 2 * (t * bytes + i) + 16 * half);
                for (int m = 0; m < 2; m++)
                    sum[t][m] = TILE(dot)(sum[t][m], v, key[m][half]);
            }
    }
    for (int t = 0; t < tiles; t++) {
        uint64x2_t a = (uint64x2_t)sum[t][0], b = (uint64x2_t)sum[t][1];
        uint64x2_t one = vzip1q_u64(a, b), two = vzip2q_u64(a, b);
        if (words) {
            i8_store(s + t * BLOCK, i8_join((int32x4_t)one, (int32x4_t)two), scales, q_scales[t]);
        } else {
            TILE(store_scores)(s + 2 * t * BLOCK, one, scales, q_scales[2 * t]);
            TILE(store_scores)(s + (2 * t + 1) * BLOCK, two, scales, q_scales[2 * t + 1]);
        }
    }
}

TILE_TARGET static ALWAYS_INLINE void TILE(score_page)(const block_task *b, const page_run *run,
                                                       int64_t g, const bool words) {
    const cached_pages *c = &b->a->keys;
    const int64_t each = words ? 1 : 2, bytes = c->token_bytes; /* each: lines of a tile */
    const uint8_t *q = (const uint8_t *)rounded_queries_of(b, g);
    const uint8_t *k = (const uint8_t *)head_at(c, run->page, g);
    const float *scales = scale_at(c, run->page, g, 0);
    const real *q_scales = b->s->q_scales + line_of(b, g);
    real *s = scores_of(b, g) + run->at;
    for (int64_t j = run->token & ~3, end = run->end; j < end; j += 4)
        EACH_TILES(t, n, b->lines / each, 6,
                   TILE(score_four)(q + 2 * t * bytes, q_scales + each * t, k + j * bytes,
                                    scales + j, bytes, s + each * t * BLOCK + j, n, words));
}

TILE_TARGET static void TILE(score)(const block_task *b, const page_run *run, int64_t g) {
    TILE(score_page)(b, run, g, false);
}

#if !TILE_BF16
TILE_TARGET static void TILE(word_score)(const block_task *b, const page_run *run, int64_t g) {
    TILE(score_page)(b, run, g, true);
}
#endif

/* sums [count][width / 2][2][2], `room` apart: eight columns += the weighted values of units that are laid
 * out. What has `step` bytes of weights, 16 for each unit, is a tile of two lines, or a line of bytes: high
 * ones, low ones. */
TILE_TARGET static ALWAYS_INLINE void TILE(add_eight)(const char *p, int64_t step, const char *v,
                                                      int64_t units, real *sums, int64_t room,
                                                      const int count) {
    TILE(sums) sum[4][4];
    for (int t = 0; t < count; t++)
        for (int c = 0; c < 4; c++)
            sum[t][c] = TILE_LOAD(sums + t * room + 4 * c);
    for (int64_t u = 0; u < units; u++, v += 64, p += 16) {
        uint8x16_t value[4];
        for (int c = 0; c < 4; c++)
            value[c] = vld1q_u8((const uint8_t *)v + 16 * c);
        for (int t = 0; t < count; t++) {
            uint8x16_t weight = vld1q_u8((const uint8_t *)p + t * step);
            for (int c = 0; c < 4; c++)
                sum[t][c] = TILE(dot)(sum[t][c], weight, value[c]);
        }
    }
    for (int t = 0; t < count; t++)
        for (int c = 0; c < 4; c++)
            TILE_STORE(sums + t * room + 4 * c, sum[t][c]);
}

TILE_TARGET static void TILE(add)(const block_task *b, const page_run *runs, int n, int64_t g) {
    const laid_for how = TILE_BF16 ? BY_BFMMLA : BY_SMMLA;
    int64_t width = b->a->dv, units = lay_values(b, runs, n, g, how), key = TILE_BF16 ? 4 : 2;
    int64_t count = TILE_BF16 ? b->lines / 2 : b->lines, step = key * BLOCK, room = key * width;
    const char *p = weights_of(b, g) + key * units_from(runs, how);
    for (int64_t i = 0; i < width; i += 8) {
        const char *v = (const char *)b->s->packed + 8 * i * units;
        real *sums = (real *)sums_of(b, g) + 2 * i;
        EACH_TILES(t, some, count, 4,
                   TILE(add_eight)(p + t * step, step, v, units, sums + t * room, room, some));
    }
}

static const attend_way TILE(way) = {TILE(queries), TILE(score),  TILE_WEIGHTS,
                                     TILE(add),     TILE(finish), .tiles = true};

#undef TILE
#undef TILE_BF16
#undef TILE_TARGET
#undef TILE_WEIGHTS
#undef TILE_LOAD
#undef TILE_STORE
