/* Products of few rows, what generation runs: y [m, n] = x [m, k] · op(w), GEMM_FEW_ROWS at a time.
 *
 * The weight is read once, by vectors, straight from memory (bf16 widened in registers); the rows
 * wait in the cache. Every result has one chain of sums whose order does not depend on m: with w as
 * [n, k], VLEN chains over k and their sum by halves; with w as [k, n], one chain over k. So a
 * row's bits are those it has alone. Threads share out columns, and pieces of rows where there are
 * more than a few.
 *
 * With w bf16 and as [n, k], where the processor multiplies tiles of bf16 numbers (BFMMLA, 2 × 4 by 4 × 2),
 * nothing is widened. A tile has two rows of x where these are bf16. A number of other rows is split into two
 * of bf16, x = high + low, each the nearest to what is left, which keeps 16 of its 24 bits; a tile then has
 * both halves of one row. Every result has one chain of sums over k, or one for each half, whose order does
 * not depend on m either. */
#include "cpu/gemm.h"
#include "cpu/matrix.h"
#include "cpu/vec.h"

enum {
    TASK_WEIGHTS = 1 << 16, /* elements of w a task reads */
    TASK_COLUMNS = 128,     /* most columns of a task: its sums stay on the stack */
    STEP_COLUMNS = 64,      /* fewest of w [k, n]: a row's part should be some cache lines */
    STEP_DEPTH = 32,        /* rows of w [k, n] that are walked together */
#if defined(__AVX512F__) || defined(__aarch64__)
    BLOCK_COLUMNS = 4, /* by 4 rows: sums that fit 32 registers */
#else
    BLOCK_COLUMNS = 2, /* 16 registers */
#endif
    LINE_VECTORS = 64 / VBYTES, /* vectors of a cache line of reals */
    BLOCK_ALONE = 8 /* columns at a time for one row: enough chains to hide an addition's time */
};

#define HAS_BFMMLA (WEFT_ARM_TARGETS && WEFT_REAL == 32)

typedef struct {
    const real *x;
    int64_t ldx;
    const void *w; /* the task's first weight */
    int64_t ldw, k;
    bool bf16;
} dot_work;

/* sums [rows, columns] (ld TASK_COLUMNS) = x [rows, k] · w [columns, k]ᵀ, of columns that lie `apart`
 * from each other. Where loops over rows and columns are not unrolled early, GCC keeps the sums of several
 * rows in memory and stores each after each product: four rows then cost twice what one does. */
static ALWAYS_INLINE void dot_block(const dot_work *d, int64_t row, int64_t column, int64_t apart,
                                    real *sums, const int rows, const int columns,
                                    const bool bf16) {
    vreal sum[8][8];
    const real *x[8];
    const char *w[8];
    const size_t size = bf16 ? sizeof(uint16_t) : sizeof(real);
    for (int r = 0; r < rows; r++)
        x[r] = d->x + (row + r) * d->ldx;
    for (int c = 0; c < columns; c++)
        w[c] = (const char *)d->w + (size_t)((column + c * apart) * d->ldw) * size;
    UNROLLED(r, rows)
        UNROLLED(c, columns)
            sum[r][c] = vset(0);
    int64_t i = 0;
    /* Whole cache lines of each column at a time. The sums are those of the loop below. */
    const int line = bf16 ? 2 * LINE_VECTORS : LINE_VECTORS;
    if (rows == 1)
        for (; i + line * VLEN <= d->k; i += line * VLEN) {
            vreal v[2 * LINE_VECTORS];
            for (int j = 0; j < line; j++)
                v[j] = vload(x[0] + i + j * VLEN);
            for (int c = 0; c < columns; c++) {
                if (ASKS_AHEAD) ask_for(w[c] + (size_t)i * size);
                for (int j = 0; j < line; j++)
                    sum[0][c] = vfma(v[j], vload_narrow(w[c], i + j * VLEN, VLEN, bf16), sum[0][c]);
            }
        }
    for (; i + VLEN <= d->k; i += VLEN) {
        vreal value[8];
        for (int c = 0; c < columns; c++)
            value[c] = vload_narrow(w[c], i, VLEN, bf16);
        UNROLLED(r, rows) {
            vreal v = vload(x[r] + i);
            UNROLLED(c, columns)
                sum[r][c] = vfma(v, value[c], sum[r][c]);
        }
    }
    if (i < d->k) {
        UNROLLED(r, rows) {
            vreal v = vload_part(x[r] + i, d->k - i);
            UNROLLED(c, columns)
                sum[r][c] = vfma(v, vload_narrow(w[c], i, d->k - i, bf16), sum[r][c]);
        }
    }
    UNROLLED(r, rows)
        store_lane_sums(sums + (row + r) * TASK_COLUMNS + column, apart, sum[r], columns);
}

static ALWAYS_INLINE void dot_rows(const dot_work *d, int64_t m, int64_t column, int64_t apart,
                                   real *sums, const int columns, const bool bf16) {
    int64_t row = 0;
    for (; row + 4 <= m; row += 4)
        dot_block(d, row, column, apart, sums, 4, columns, bf16);
    if (m - row == 3) dot_block(d, row, column, apart, sums, 3, columns, bf16);
    if (m - row == 2) dot_block(d, row, column, apart, sums, 2, columns, bf16);
    if (m - row == 1) dot_block(d, row, column, apart, sums, 1, columns, bf16);
}

/* Few rows wait for memory: the columns of a block are each the next of its own part of w. Parts of
 * several columns are streams long enough for the processor to fetch ahead in all of them. Two rows have room
 * for twice the columns of four. */
static ALWAYS_INLINE void dot_columns(const dot_work *d, int64_t m, int64_t n, real *sums,
                                      const bool bf16) {
    int64_t together = m == 1 ? BLOCK_ALONE : m == 2 ? 2 * BLOCK_COLUMNS : BLOCK_COLUMNS;
    int64_t part = n / together;
    for (int64_t c = 0; c < part; c++)
        if (m == 1)
            dot_block(d, 0, c, part, sums, 1, BLOCK_ALONE, bf16);
        else if (m == 2)
            dot_block(d, 0, c, part, sums, 2, 2 * BLOCK_COLUMNS, bf16);
        else
            dot_rows(d, m, c, part, sums, BLOCK_COLUMNS, bf16);
    for (int64_t c = part * together; c < n; c++)
        dot_rows(d, m, c, 1, sums, 1, bf16);
}

/* sums [rows, vectors·VLEN] += x [rows, depth] · w [depth, n], `part` columns in the last vector. */
static ALWAYS_INLINE void step_block(const dot_work *d, int64_t row, int64_t column, int64_t depth,
                                     int64_t k, real *sums, const int rows, const int vectors,
                                     int64_t part, const bool bf16) {
    vreal sum[4][4];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < vectors; c++)
            sum[r][c] = vload(sums + (row + r) * TASK_COLUMNS + column + c * VLEN);
    for (int64_t i = depth; i < depth + k; i++) {
        vreal value[4];
        for (int c = 0; c < vectors; c++)
            value[c] = vload_narrow(d->w, i * d->ldw + column + c * VLEN, part, bf16);
        for (int r = 0; r < rows; r++) {
            vreal x = vset(d->x[(row + r) * d->ldx + i]);
            for (int c = 0; c < vectors; c++)
                sum[r][c] = vfma(x, value[c], sum[r][c]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < vectors; c++)
            vstore(sums + (row + r) * TASK_COLUMNS + column + c * VLEN, sum[r][c]);
}

static ALWAYS_INLINE void step_rows(const dot_work *d, int64_t m, int64_t column, int64_t depth,
                                    int64_t k, real *sums, const int vectors, int64_t part,
                                    const bool bf16) {
    int64_t row = 0;
    for (; row + 4 <= m; row += 4)
        step_block(d, row, column, depth, k, sums, 4, vectors, part, bf16);
    if (m - row == 3) step_block(d, row, column, depth, k, sums, 3, vectors, part, bf16);
    if (m - row == 2) step_block(d, row, column, depth, k, sums, 2, vectors, part, bf16);
    if (m - row == 1) step_block(d, row, column, depth, k, sums, 1, vectors, part, bf16);
}

static ALWAYS_INLINE void step_columns(const dot_work *d, int64_t m, int64_t n, real *sums,
                                       const bool bf16) {
    memset(sums, 0, (size_t)(m * TASK_COLUMNS) * sizeof(real));
    for (int64_t depth = 0; depth < d->k; depth += STEP_DEPTH) {
        int64_t k = min_i64(STEP_DEPTH, d->k - depth), column = 0;
        for (; column + BLOCK_COLUMNS * VLEN <= n; column += BLOCK_COLUMNS * VLEN)
            step_rows(d, m, column, depth, k, sums, BLOCK_COLUMNS, VLEN, bf16);
        for (; column + VLEN <= n; column += VLEN)
            step_rows(d, m, column, depth, k, sums, 1, VLEN, bf16);
        if (column < n) step_rows(d, m, column, depth, k, sums, 1, n - column, bf16);
    }
}

typedef struct {
    const gemm_product *p;
    gemm_matrix x; /* real: p->a, or its widened copy */
    uint16_t
        *tiles; /* [tiles, ld / 8, 2, 4] in its place, with zeros behind k; NULL: not by BFMMLA */
    int64_t ld;
    int64_t columns; /* of a task */
    int64_t tasks;   /* of a piece of rows */
    int64_t pieces;  /* of a matrix of the batch */
} few_run;

/* Of x: a tile is the two halves of a row, or two rows. */
static int64_t count_tiles(const gemm_product *p) {
    return p->a.bf16 ? ceil_div(p->m, 2) : p->m;
}

#if HAS_BFMMLA

enum { TILE_PAIRS = 4, TILES = 8 }; /* most pairs of columns at a time, and most tiles */

/* sums += n eights of 2 · `pairs` columns, `ldw` apart, by as much of `tiles` tiles of x, `ld` apart. */
BF16_ARM static ALWAYS_INLINE void add_eights(float32x4_t sum[][TILE_PAIRS], const uint16_t *x,
                                              int64_t ld, const uint16_t *w, int64_t ldw, int64_t n,
                                              const int tiles, const int pairs) {
    for (; n > 0; n--, w += 8, x += 16) {
        uint8x16_t v[TILE_PAIRS][2]; /* of two columns numbers 0 to 3, and 4 to 7 */
        for (int c = 0; c < pairs; c++)
            zip_halves(w + 2 * c * ldw, w + (2 * c + 1) * ldw, v[c]);
        UNROLLED(t, tiles) {
            UNROLLED(half, 2) {
                bfloat16x8_t rows = vreinterpretq_bf16_u16(vld1q_u16(x + t * ld + 8 * half));
                UNROLLED(c, pairs)
                    sum[t][c] = vbfmmlaq_f32(sum[t][c], rows, vreinterpretq_bf16_u8(v[c][half]));
            }
            /* GCC would load all tiles first, and then have no registers left for the sums. */
            __asm__ volatile("" ::: "memory");
        }
    }
}

/* sums (ld TASK_COLUMNS) of `tiles` tiles and 2 · `pairs` columns that lie `apart` from each other. */
BF16_ARM static ALWAYS_INLINE void tile_block(const few_run *f, int64_t tile, const uint16_t *w,
                                              int64_t apart, real *sums, const int tiles,
                                              const int pairs) {
    int64_t ldw = apart * f->p->b.ld, k = f->p->k, whole = k / 8 * 8;
    const uint16_t *x = f->tiles + tile * f->ld;
    uint16_t rest[2 * TILE_PAIRS][8] = {0};
    float32x4_t sum[TILES][TILE_PAIRS];
    UNROLLED(t, tiles)
        UNROLLED(c, pairs)
            sum[t][c] = vdupq_n_f32(0);
    add_eights(sum, x, f->ld, w, ldw, k / 8, tiles, pairs);
    for (int c = 0; c < 2 * pairs && whole < k; c++)
        memcpy(rest[c], w + c * ldw + whole, (size_t)(k - whole) * sizeof **rest);
    add_eights(sum, x + 2 * whole, f->ld, rest[0], 8, whole < k, tiles, pairs);
    UNROLLED(t, tiles)
        UNROLLED(c, pairs) {
            int64_t row = f->p->a.bf16 ? 2 * (tile + t) : tile + t;
            float32x2_t one = vget_low_f32(sum[t][c]), two = vget_high_f32(sum[t][c]);
            real *to = sums + row * TASK_COLUMNS + 2 * c * apart;
            if (!f->p->a.bf16) one = vadd_f32(one, two);
            to[0] = vget_lane_f32(one, 0);
            to[apart] = vget_lane_f32(one, 1);
            if (!f->p->a.bf16 || row + 1 == f->p->m) continue;
            to[TASK_COLUMNS] = vget_lane_f32(two, 0);
            to[TASK_COLUMNS + apart] = vget_lane_f32(two, 1);
        }
}

/* Up to four tiles, or with few columns eight: sixteen sums. */
BF16_ARM static ALWAYS_INLINE void tile_rows(const few_run *f, const uint16_t *w, int64_t apart,
                                             real *sums, const int pairs) {
    const int most = pairs == TILE_PAIRS ? TILES / 2 : TILES;
    for (int64_t t = 0, left = count_tiles(f->p); left > 0; t += most, left -= most) {
#define CASE(n)                                                                                    \
    if (n == most ? left >= n : left == n) tile_block(f, t, w, apart, sums, n, pairs)
        CASE(1);
        CASE(2);
        CASE(3);
        CASE(4);
        if (most == TILES / 2) continue;
        CASE(5);
        CASE(6);
        CASE(7);
        CASE(8);
#undef CASE
    }
}

/* As dot_columns. A column that is left alone makes a pair with itself. */
BF16_ARM static void tile_columns(const few_run *f, const uint16_t *w, int64_t n, real *sums) {
    bool few = count_tiles(f->p) <= TILES / 2;
    int64_t ldw = f->p->b.ld, together = few ? 2 * TILE_PAIRS : TILE_PAIRS, part = n / together;
    for (int64_t c = 0; c < part; c++)
        if (few)
            tile_rows(f, w + c * ldw, part, sums + c, TILE_PAIRS);
        else
            tile_rows(f, w + c * ldw, part, sums + c, TILE_PAIRS / 2);
    for (int64_t c = part * together; c < n; c += 2)
        tile_rows(f, w + c * ldw, c + 1 < n, sums + c, 1);
}

/* Four numbers of a row to its tile. */
BF16_ARM static ALWAYS_INLINE void split_four(const real *from, uint16_t *to) {
    float32x4_t x = vld1q_f32(from);
    bfloat16x4_t high = vcvt_bf16_f32(x);
    bfloat16x4_t low = vcvt_bf16_f32(vsubq_f32(x, vcvt_f32_bf16(high)));
    vst1q_u16(to, vcombine_u16(vreinterpret_u16_bf16(high), vreinterpret_u16_bf16(low)));
}

BF16_ARM static void lay_tiles(const few_run *f) {
    const gemm_product *p = f->p;
    uint16_t *to = f->tiles;
    memset(to, 0, (size_t)(count_tiles(p) * f->ld) * sizeof *to);
    for (int64_t row = 0; row < p->m; row++) {
        gemm_matrix x = gemm_part(p->a, 0, row, 0);
        uint16_t *tile = x.bf16 ? to + row / 2 * f->ld + row % 2 * 4 : to + row * f->ld;
        for (int64_t i = 0; i < p->k; i += 4, tile += 8) {
            const size_t n = (size_t)min_i64(4, p->k - i);
            if (x.bf16) {
                memcpy(tile, (const uint16_t *)x.data + i, n * sizeof *tile);
                continue;
            }
            real part[4] = {0};
            memcpy(part, (const real *)x.data + i, n * sizeof *part);
            split_four(part, tile);
        }
    }
}

#endif

static void sum_task(const few_run *f, const dot_work *d, int64_t m, int64_t n, real *sums) {
#if HAS_BFMMLA
    if (f->tiles) {
        tile_columns(f, d->w, n, sums);
        return;
    }
#endif
    if (f->p->tb)
        EITHER(d->bf16, dot_columns, d, m, n, sums);
    else
        EITHER(d->bf16, step_columns, d, m, n, sums);
}

WEFT_TASK(run_columns, const few_run *f) {
    const gemm_product *p = f->p;
    int64_t piece = task / f->tasks, column = task % f->tasks * f->columns;
    int64_t g = piece / f->pieces, row = piece % f->pieces * GEMM_FEW_ROWS;
    int64_t m = min_i64(GEMM_FEW_ROWS, p->m - row), n = min_i64(f->columns, p->n - column);
    gemm_product tile = gemm_tile(p, g, row, m, column, n, 0, p->k);
    gemm_matrix x = gemm_part(f->x, g, row, 0);
    dot_work d = {x.data, x.ld, tile.b.data, tile.b.ld, p->k, tile.b.bf16};
    real sums[GEMM_FEW_ROWS * TASK_COLUMNS];
    sum_task(f, &d, m, n, sums);
    if (p->alpha != 1)
        for (int64_t r = 0; r < m; r++)
            for (int64_t j = 0; j < n; j++)
                sums[r * TASK_COLUMNS + j] *= p->alpha;
    KERNEL(gemm_finish)(&tile, sums, TASK_COLUMNS, p->accumulate);
}

static bool goes_by_tiles(const gemm_product *p) {
    return HAS_BFMMLA && p->tb && p->b.bf16 && p->batch == 1 && p->m <= GEMM_FEW_ROWS &&
           weft_cpu_matrix() == WEFT_MATRIX_BFMMLA;
}

/* Numbers of a tile: eight columns are two of [2, 4]. */
static int64_t tile_numbers(const gemm_product *p) {
    return 16 * ceil_div(p->k, 8);
}

int64_t KERNEL(few_rows_workspace)(const gemm_product *p) {
    if (goes_by_tiles(p)) return count_tiles(p) * tile_numbers(p) * (int64_t)sizeof(uint16_t);
    return p->a.bf16 ? real_bytes(p->batch * p->m * p->k) : 0;
}

void KERNEL(few_rows)(weft_pool *pool, const gemm_product *p, void *workspace) {
    few_run f = {.p = p, .x = p->a, .ld = tile_numbers(p)};
    real *to = workspace;
    if (goes_by_tiles(p))
        f.tiles = workspace;
    else if (p->a.bf16)
        f.x = (gemm_matrix){.data = to, .ld = p->k, .stride = p->m * p->k};
    for (int64_t row = 0; !f.tiles && p->a.bf16 && row < p->batch * p->m; row++)
        widen_bf16(to + row * p->k, gemm_part(p->a, row / p->m, row % p->m, 0).data, p->k);
#if HAS_BFMMLA
    if (f.tiles) lay_tiles(&f);
#endif
    int64_t columns = max_i64(TASK_WEIGHTS / p->k, p->tb ? BLOCK_ALONE : STEP_COLUMNS);
    f.columns = min_i64(columns, TASK_COLUMNS) / BLOCK_ALONE * BLOCK_ALONE;
    f.tasks = ceil_div(p->n, f.columns);
    f.pieces = ceil_div(p->m, GEMM_FEW_ROWS);
    weft_pool_run(pool, p->batch * f.pieces * f.tasks, run_columns, &f);
}
