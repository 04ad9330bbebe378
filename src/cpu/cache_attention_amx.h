/* The steps of a block for query heads that share a key head, by AMX's tiles of bf16 and of bytes: a part of
 * cache_attention_x86.h, whose functions it uses. Sixteen
 * heads are a tile's rows or columns; a page is sixteen keys.
 *
 * Scores: a page's keys as they lie are the left tile, queries with their columns in pairs (bytes: fours)
 * the right one, and what comes is transposed. Values: the weights are the left tile, and values of a unit
 * of 32 keys (bytes: 64), written out in pairs of keys (fours), the right one. Of keys that are not seen
 * the weights are zeros, and bf16 values too, which might not be numbers.
 *
 * Queries have 8 bits beside bytes, and weights times their values' scales 16, as two bytes: 256 high +
 * low. Sums of their products are exact. */
#pragma once

#include "cpu/amx.h"

#define AMX_TARGET __attribute__((target("amx-tile,amx-bf16,amx-int8,avx512bf16")))

enum {
    UNIT = 32,    /* keys of a right tile of bf16 values, */
    I8_UNIT = 64, /* and of bytes; widths are multiples of it */
    TILE_BYTES = TILE * TILE_STRIDE
};

/* Tiles 0 and 1 are results, 4 and 5 left ones, 6 and 7 right ones. */

/* Sixteen numbers of each of sixteen rows, as sixteen rows of those. */
static inline void transpose_square(const void *from, int64_t stride, void *to, int64_t step) {
    for (int i = 0; i < TILE; i += 4)
        transpose_lanes((const char *)from + 4 * i, stride, (char *)to + i * step, step);
}

static void amx_queries(const block_task *b, int64_t g) {
    const attend_run *a = b->a;
    bool bf16 = a->keys.kind == CACHED_BF16;
    int64_t bytes = bf16 ? 2 * a->dqk : a->dqk;
    char *rows = weights_of(b, g); /* which are not there yet */
    for (int64_t h = 0; h < b->lines; h++) {
        const real *q = queries_of(b, g) + h * a->dqk;
        if (bf16)
            bf16_round_row(q, a->dqk, (uint16_t *)rows + h * a->dqk);
        else
            b->s->q_scales[line_of(b, g) + h] =
                i8_round_bytes(q, a->dqk, (int8_t *)rows + h * a->dqk);
    }
    /* As right tiles: each 64 bytes of sixteen rows as [16][16][4]. */
    for (int64_t t = 0; t < b->lines; t += TILE)
        for (int64_t i = 0; i < bytes; i += TILE_STRIDE)
            transpose_square(rows + t * bytes + i, bytes,
                             rounded_queries_of(b, g) + t * bytes + TILE * i, TILE_STRIDE);
}

/* Products of a page's keys with sixteen queries, [16 keys][16]; widths in bytes. */
AMX_TARGET static ALWAYS_INLINE void score_page(const char *k, const char *q, int64_t bytes,
                                                void *sums, const bool bf16) {
    _tile_zero(0);
    for (int64_t i = 0; i < bytes; i += TILE_STRIDE) {
        _tile_loadd(4, k + i, (int)bytes);
        _tile_loadd(6, q + TILE * i, TILE_STRIDE);
        if (bf16)
            _tile_dpbf16ps(0, 4, 6);
        else
            _tile_dpbssd(0, 4, 6);
    }
    _tile_stored(0, sums, TILE_STRIDE);
}

AMX_TARGET static void amx_score(const block_task *b, const page_run *run, int64_t g) {
    const attend_run *a = b->a;
    bool bf16 = a->keys.kind == CACHED_BF16;
    int64_t bytes = bf16 ? 2 * a->dqk : a->dqk;
    const char *k = head_at(&a->keys, run->page, g), *q = rounded_queries_of(b, g);
    real *s = scores_of(b, g) + run->at;
    for (int64_t t = 0; t < b->lines; t += TILE) {
        real sums[TILE * TILE] __attribute__((aligned(64)));
        EITHER(bf16, score_page, k, q + t * bytes, bytes, sums);
        transpose_square(sums, TILE_STRIDE, s + t * BLOCK, BLOCK * (int64_t)sizeof(real));
    }
    if (bf16) return;
    vreal scale = vload(scale_at(&a->keys, run->page, g, 0));
    for (int64_t h = 0; h < b->lines; h++) {
        real *row = s + h * BLOCK;
        vreal sum = (vreal)_mm512_cvtepi32_ps(_mm512_loadu_si512(row));
        vstore(row, sum * (scale * b->s->q_scales[line_of(b, g) + h]));
    }
}

/* Beside bytes a head's weights are in 16 bits, as high bytes and, BLOCK behind them, low ones. */
static void amx_weights(const block_task *b, int64_t g, int64_t from, int64_t n) {
    for (int64_t h = 0; h < b->lines; h++) {
        char *to = weights_of(b, g) + 2 * h * BLOCK;
        real *p = scores_of(b, g) + h * BLOCK + from;
        if (b->a->values.kind == CACHED_BF16) {
            bf16_round_row(p, n, (uint16_t *)to + from);
            continue;
        }
        int16_t whole[BLOCK];
        b->s->p_scales[line_of(b, g) + h] = i8_round_weights(p, b->s->scales + from, n, whole);
        for (int64_t j = 0; j < n; j++) {
            to[from + j] = (char)((whole[j] + 128) >> 8);
            to[from + BLOCK + j] = (char)whole[j];
        }
    }
}

/* A page's values, to its half of a unit: [dv / 16][16][16][2], where of each 32 columns the first fours
 * of every eight are in one tile and the second ones in the next. */
static void pack_values(const page_run *run, const uint16_t *v, int64_t width, uint16_t *to) {
    for (int64_t j = 0; j < WEFT_PAGE_TOKENS; j += 2, to += 2 * TILE)
        for (int64_t i = 0; i < width; i += 2 * TILE) {
            bool has[2] = {j >= run->token && j < run->end,
                           j + 1 >= run->token && j + 1 < run->end};
            vshort one = has[0] ? bf16_load(v + j * width + i) : (vshort){0};
            vshort two = has[1] ? bf16_load(v + (j + 1) * width + i) : (vshort){0};
            vshort first = zip_first(one, two), second = zip_second(one, two);
            memcpy(to + i * UNIT, &first, sizeof first);
            memcpy(to + (i + TILE) * UNIT, &second, sizeof second);
        }
}

/* A page's bytes, to its quarter of a unit: [dv / 16][16][16][4], where of each 64 columns a tile has
 * four of every sixteen. */
static void pack_bytes(const int8_t *v, int64_t width, int8_t *to) {
    for (int64_t j = 0; j < WEFT_PAGE_TOKENS; j += 4, to += TILE_STRIDE)
        for (int64_t i = 0; i < width; i += TILE_STRIDE) {
            __m512i key[4];
            for (int m = 0; m < 4; m++)
                key[m] = _mm512_loadu_si512(v + (j + m) * width + i);
            __m512i low[2] = {_mm512_unpacklo_epi8(key[0], key[2]),
                              _mm512_unpacklo_epi8(key[1], key[3])};
            __m512i high[2] = {_mm512_unpackhi_epi8(key[0], key[2]),
                               _mm512_unpackhi_epi8(key[1], key[3])};
            int8_t *tile = to + i * I8_UNIT;
            _mm512_storeu_si512(tile, _mm512_unpacklo_epi8(low[0], low[1]));
            _mm512_storeu_si512(tile + TILE * I8_UNIT, _mm512_unpackhi_epi8(low[0], low[1]));
            _mm512_storeu_si512(tile + 2 * TILE * I8_UNIT, _mm512_unpacklo_epi8(high[0], high[1]));
            _mm512_storeu_si512(tile + 3 * TILE * I8_UNIT, _mm512_unpackhi_epi8(high[0], high[1]));
        }
}

/* sums += the weighted values of some units, two tiles at a time. bf16: sums [lines / 16][dv / 16][16][16],
 * sixteen lines 32 width apart, two tiles of values by one of weights. Bytes: [lines / 16][dv / 16][2][16][16], one tile of values by the
 * weights' high bytes and by their low ones. p: the weights of the first unit's block. */
AMX_TARGET static ALWAYS_INLINE void add_units(const char *p, const int64_t *at, int units,
                                               const char *packed, int64_t lines, int64_t width,
                                               char *room, const bool bf16) {
    const int64_t columns = bf16 ? 2 * TILE : TILE, row_bytes = 2 * BLOCK;
    for (int64_t t = 0; t < lines; t += TILE, p += TILE * row_bytes) {
        char *sums = room + t * 2 * width * (int64_t)sizeof(real);
        for (int64_t i = 0; i < width; i += columns, sums += 2 * TILE_BYTES) {
            _tile_loadd(0, sums, TILE_STRIDE);
            _tile_loadd(1, sums + TILE_BYTES, TILE_STRIDE);
            for (int u = 0; u < units; u++) {
                const char *v = packed + (u * width + i) * TILE_STRIDE;
                _tile_loadd(4, p + at[u], (int)row_bytes);
                _tile_loadd(6, v, TILE_STRIDE);
                if (bf16) {
                    _tile_loadd(7, v + TILE_BYTES, TILE_STRIDE);
                    _tile_dpbf16ps(0, 4, 6);
                    _tile_dpbf16ps(1, 4, 7);
                } else {
                    _tile_loadd(5, p + at[u] + BLOCK, (int)row_bytes);
                    _tile_dpbssd(0, 4, 6);
                    _tile_dpbssd(1, 5, 6);
                }
            }
            _tile_stored(0, sums, TILE_STRIDE);
            _tile_stored(1, sums + TILE_BYTES, TILE_STRIDE);
        }
    }
}

/* Packs the pages' values into units, zeros where a unit has no page, and adds them. */
AMX_TARGET static ALWAYS_INLINE void add_pages(const block_task *b, const page_run *runs, int n,
                                               int64_t g, const bool bf16) {
    const attend_run *a = b->a;
    const int64_t keys = bf16 ? UNIT : I8_UNIT, unit_bytes = a->dv * TILE_STRIDE;
    char *packed = b->s->packed, *unit = packed;
    int64_t at[PAGES_TOGETHER]; /* where a unit's weights begin */
    int units = 0;
    for (int r = 0; r < n; r++) {
        int64_t part = runs[r].at % keys, from = (runs[r].at - part) * (bf16 ? 2 : 1);
        if (units == 0 || at[units - 1] != from) {
            unit = packed + units * unit_bytes;
            if (part || r + keys / WEFT_PAGE_TOKENS > n) memset(unit, 0, (size_t)unit_bytes);
            at[units++] = from;
        }
        const char *v = head_at(&a->values, runs[r].page, g);
        if (bf16)
            pack_values(runs + r, (const uint16_t *)v, a->dv, (uint16_t *)unit + part * TILE);
        else
            pack_bytes((const int8_t *)v, a->dv, (int8_t *)unit + part * TILE);
    }
    add_units(weights_of(b, g), at, units, packed, b->lines, a->dv, sums_of(b, g), bf16);
}

AMX_TARGET static void amx_add(const block_task *b, const page_run *runs, int n, int64_t g) {
    EITHER(b->a->values.kind == CACHED_BF16, add_pages, b, runs, n, g);
}

static void amx_finish(const block_task *b, int64_t g, int64_t h, real *to) {
    int64_t width = b->a->dv, first = 2 * (h / TILE * TILE * width) + h % TILE * TILE;
    const real *reals = (const real *)sums_of(b, g) + first;
    for (int64_t i = 0; b->a->values.kind == CACHED_BF16 && i < width; i += 2 * TILE) {
        vreal fours[2] = {vload(reals + i * TILE), vload(reals + (i + TILE) * TILE)};
        from_fours(fours, to + i);
    }
    if (b->a->values.kind == CACHED_BF16) return;
    const int32_t *sums = (const int32_t *)sums_of(b, g) + first;
    real scale = b->s->p_scales[line_of(b, g) + h];
    for (int64_t i = 0; i < width; i += TILE) {
        const int32_t *high = sums + 2 * i * TILE, *low = high + TILE * TILE;
        for (int c = 0; c < TILE; c++) {
            /* Tile i of four has four columns of every sixteen. */
            int64_t column = i / 64 * 64 + c / 4 * 16 + i % 64 / 16 * 4 + c % 4;
            to[column] = (real)(256 * high[c] + low[c]) * scale;
        }
    }
}

static const attend_way amx_tiles = {.queries = amx_queries,
                                     .score = amx_score,
                                     .weights = amx_weights,
                                     .add = amx_add,
                                     .finish = amx_finish,
                                     .begin = amx_begin,
                                     .end = amx_end,
                                     .tiles = true,
                                     .unit = I8_UNIT};
