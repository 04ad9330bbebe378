/* cache_attention_pairs.h's product by one of the instructions for pairs: BYTES(sum). */

#ifndef WEFT_CPU_CACHE_ATTENTION_PAIRS_SUM_H
#define WEFT_CPU_CACHE_ATTENTION_PAIRS_SUM_H
typedef struct {
    const int16_t *x; /* [heads][2 steps], rows `ld` apart */
    int64_t ld, heads;
    const char *packed; /* [steps][vectors][VBYTES] */
    int64_t steps;
    int vectors;
    int32_t *sums; /* [heads][vectors][VBYTES / 4], rows `step` apart */
    int64_t step;
} pairs_product;
#endif

BYTES_TARGET static ALWAYS_INLINE void BYTES(heads)(const pairs_product *p, int64_t first,
                                                    const int heads, const int vectors) {
    vsums sum[2 * PAIRS_HEADS][2];
    const int16_t *x = p->x + first * p->ld;
    int32_t *sums = p->sums + first * p->step;
    const char *packed = p->packed;
    for (int h = 0; h < heads; h++)
        for (int v = 0; v < vectors; v++)
            sum[h][v] = load_sums(sums + h * p->step + v * NARROW_STEP);
    for (int64_t s = 0; s < p->steps; s++, x += 2, packed += vectors * VBYTES) {
        vshort two[2];
        for (int v = 0; v < vectors; v++)
            memcpy(&two[v], packed + v * VBYTES, VBYTES);
        for (int h = 0; h < heads; h++) {
            vshort factor = two_times(x + h * p->ld);
            for (int v = 0; v < vectors; v++)
                sum[h][v] = BYTES(pairs)(sum[h][v], two[v], factor);
        }
    }
    for (int h = 0; h < heads; h++)
        for (int v = 0; v < vectors; v++)
            keep_sums(sums + h * p->step + v * NARROW_STEP, sum[h][v]);
}

BYTES_TARGET static ALWAYS_INLINE void BYTES(all)(const pairs_product *p, const int vectors) {
    int64_t h = 0;
    for (; vectors == 1 && h + 2 * PAIRS_HEADS <= p->heads; h += 2 * PAIRS_HEADS)
        BYTES(heads)(p, h, 2 * PAIRS_HEADS, 1);
    for (; h + PAIRS_HEADS <= p->heads; h += PAIRS_HEADS)
        BYTES(heads)(p, h, PAIRS_HEADS, vectors);
    for (; h + 2 <= p->heads; h += 2)
        BYTES(heads)(p, h, 2, vectors);
    if (h < p->heads) BYTES(heads)(p, h, 1, vectors);
}

BYTES_TARGET static void BYTES(sum)(const pairs_product *p) {
    if (PAGE_VECTORS == 1 && p->vectors == 1)
        BYTES(all)(p, 1);
    else
        BYTES(all)(p, 2);
}

#undef BYTES
#undef BYTES_TARGET
