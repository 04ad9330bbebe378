/* i8 pages by one of x86-64's instructions for pairs, BYTES(pairs): VNNI's VPDPWSSD, or VPMADDWD and an
 * addition. BYTES(alone) is the way of one line, BYTES(shared) that of more, which share a key head: the sums
 * are exact, and the bits the same.
 *
 * Shared, both products are one: sums [heads][n] += Σ x [heads][2 steps] · packed [steps][n][2]. For scores
 * x are the queries, n a page's keys, and a step is two columns; for values x are the weights, n columns,
 * and a step is two keys. What is packed is read for all heads. Pages are taken whole: of keys that are not
 * seen the scores are never read, and the weights are zeros. */

BYTES_TARGET static void BYTES(score_alone)(const block_task *b, const page_run *run, int64_t g) {
    int64_t width = b->a->dqk;
    const int16_t *q = (const int16_t *)rounded_queries_of(b, g);
    const int8_t *k = (const int8_t *)head_at(&b->a->keys, run->page, g);
    const float *scales = scale_at(&b->a->keys, run->page, g, 0);
    real q_scale = b->s->q_scales[line_of(b, g)];
    for (int64_t j = run->token & ~3; j < run->end; j += 4) {
        const int8_t *key = k + j * width;
        vsums sum[4] = {{0}, {0}, {0}, {0}};
        for (int64_t i = 0; i < width; i += 2 * NARROW_STEP) {
            vshort v;
            memcpy(&v, q + i, sizeof v);
            for (int m = 0; m < 4; m++)
                sum[m] = BYTES(pairs)(sum[m], v, widen_bytes(key + m * width + i));
        }
        __m128 scale = _mm_mul_ps(_mm_loadu_ps(scales + j), _mm_set1_ps(q_scale));
        _mm_storeu_ps(scores_of(b, g) + run->at + j,
                      _mm_mul_ps(_mm_cvtepi32_ps(sum_four(sum)), scale));
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
BYTES_TARGET static void BYTES(add_alone)(const block_task *b, const page_run *run,
                                          UNUSED int n /* 1, for one line */, int64_t g) {
    enum { LINE = 64, PARTS = LINE / (2 * NARROW_STEP) };
    int64_t width = b->a->dv, i = 0;
    const int8_t *v = (const int8_t *)head_at(&b->a->values, run->page, g);
    const int8_t *p = (const int8_t *)weights_of(b, g) + 2 * run->at;
    int32_t *sums = (int32_t *)sums_of(b, g);
    for (; i + LINE <= width; i += LINE)
        BYTES(add_columns)(p, v + i, width, run->token, run->end, sums + i, PARTS);
    for (; i < width; i += 2 * NARROW_STEP)
        BYTES(add_columns)(p, v + i, width, run->token, run->end, sums + i, 1);
}

static const attend_way BYTES(alone) = {i8_queries, BYTES(score_alone), i8_weights,
                                        BYTES(add_alone), .finish = i8_finish};

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

static void BYTES(shared_score)(const block_task *b, const page_run *run, int64_t g) {
    const attend_run *a = b->a;
    const float *scales = scale_at(&a->keys, run->page, g, 0);
    char packed[2 * WEFT_PAGE_TOKENS * I8_WIDEST] __attribute__((aligned(64)));
    pack_keys(head_at(&a->keys, run->page, g), a->dqk, packed);
    for (int64_t first = 0; first < b->lines; first += SCORE_HEADS) {
        int32_t sums[SCORE_HEADS * WEFT_PAGE_TOKENS] = {0};
        pairs_product p = {.x = (const int16_t *)rounded_queries_of(b, g) + first * a->dqk,
                           .ld = a->dqk,
                           .heads = min_i64(SCORE_HEADS, b->lines - first),
                           .packed = packed,
                           .steps = a->dqk / 2,
                           .vectors = PAGE_VECTORS,
                           .sums = sums,
                           .step = WEFT_PAGE_TOKENS};
        BYTES(sum)(&p);
        for (int64_t h = 0; h < p.heads; h++) {
            real *to = scores_of(b, g) + (first + h) * BLOCK + run->at;
            real scale = b->s->q_scales[line_of(b, g) + first + h];
            for (int64_t j = 0; j < WEFT_PAGE_TOKENS; j += VLEN) {
                vsums sum = load_sums(sums + h * WEFT_PAGE_TOKENS + j);
                vstore(to + j, __builtin_convertvector(sum, vreal) * (vload(scales + j) * scale));
            }
        }
    }
}

/* Of pages that follow each other, so do the weights. */
static void BYTES(shared_add)(const block_task *b, const page_run *runs, int n, int64_t g) {
    const attend_run *a = b->a;
    const int64_t page_steps = WEFT_PAGE_TOKENS / 2, steps = n * page_steps;
    char *packed = b->s->packed;
    for (int r = 0; r < n; r++)
        pack_pairs((const int8_t *)head_at(&a->values, runs[r].page, g), a->dv, steps,
                   packed + r * page_steps * 2 * VBYTES);
    for (int64_t i = 0; i < a->dv; i += 2 * NARROW_STEP) {
        pairs_product p = {.x = (const int16_t *)weights_of(b, g) + runs[0].at,
                           .ld = BLOCK,
                           .heads = b->lines,
                           .packed = packed + 4 * i * steps,
                           .steps = steps,
                           .vectors = 2,
                           .sums = (int32_t *)sums_of(b, g) + i,
                           .step = 2 * a->dv};
        BYTES(sum)(&p);
    }
}

static const attend_way BYTES(shared) = {i8_queries, BYTES(shared_score), i8_weights,
                                         BYTES(shared_add), .finish = i8_finish};

#undef BYTES
#undef BYTES_TARGET
