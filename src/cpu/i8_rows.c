/* Products with an i8 weight, y [m, n] = x [m, k] · wᵀ: what generation runs with WEIGHT_DTYPE=int8.
 *
 * Rows of x are rounded to 8 bits, with one scale for each block of WEFT_I8_BLOCK; a block's products
 * are summed exactly in 32 bits, and the blocks' sums, times the scale, in float, in order. So a row's
 * bits do not depend on how many rows there are, nor on which instructions sum the integers: those of
 * bytes.h, and SMMLA for several rows, where the processor has them, else whatever the compiler makes
 * of the loop. The weight is read once for up to GEMM_FEW_ROWS rows. */
#include "cpu/bytes.h"
#include "cpu/gemm.h"

enum {
    BLOCK = WEFT_I8_BLOCK,
    TASK_WEIGHTS = 1 << 17, /* bytes of w that a task reads, about */
    TASK_COLUMNS = 128,     /* and its most columns: its sums stay on the stack */
    COLUMNS = 4,            /* of w at a time, */
    ALONE = 8               /* for one row */
};

typedef struct {
    const gemm_product *p;
    int8_t *x;     /* [m, ld]; with `tiles` [m / 2, ld / 8, 2, 8] */
    float *scales; /* [m, ld / BLOCK] */
    int64_t ld, columns, tasks;
    bool dot, tiles; /* by the processor's instruction; by SMMLA, rows two by two */
} i8_run;

/* A row of x in 8 bits. No byte holds NaN: the scale does. */
static void round_row(const i8_run *r, int64_t row) {
    const gemm_product *p = r->p;
    gemm_matrix from = gemm_part(p->a, 0, row, 0);
    for (int64_t b = 0; b < r->ld / BLOCK; b++) {
        real value[BLOCK] = {0}, most = 0;
        vreal largest = vset(0), nothing = vset(0); /* or NaN, which no comparison finds */
        int64_t at = b * BLOCK, n = min_i64(BLOCK, p->k - at);
        if (from.bf16)
            widen_bf16(value, (const uint16_t *)from.data + at, n);
        else
            memcpy(value, (const real *)from.data + at, (size_t)n * sizeof(real));
        for (int64_t i = 0; i < BLOCK; i += VLEN) {
            vreal v = vload(value + i);
            largest = vmax(largest, vabs(v));
            nothing += 0 * v;
        }
        most = vmax_lane(largest);
        real inverse = most > 0 ? 127 / most : 0;
        r->scales[row * (r->ld / BLOCK) + b] = (float)(most / 127 + vsum(nothing));
        int8_t rounded[BLOCK];
        for (int64_t i = 0; i < BLOCK; i++) {
            real v = value[i] * inverse;
            rounded[i] = (int8_t)(int32_t)(v < 0 ? v - (real)0.5 : v + (real)0.5);
        }
        if (!r->tiles) memcpy(r->x + row * r->ld + at, rounded, sizeof rounded);
        for (int64_t i = 0; r->tiles && i < BLOCK; i += 8)
            memcpy(r->x + row / 2 * 2 * r->ld + 2 * (at + i) + row % 2 * 8, rounded + i, 8);
    }
}

/* The sum of one block for one row, perhaps of a tile, and one column of w. */
static ALWAYS_INLINE int32_t dot_plain(const int8_t *x, const int8_t *w, const bool tile) {
    int32_t sum = 0;
    for (int i = 0; i < BLOCK; i++)
        sum += (int32_t)x[tile ? i / 8 * 16 + i % 8 : i] * (int32_t)w[i];
    return sum;
}

/* sums [rows, COLUMNS] (ld TASK_COLUMNS) of a row block by all of k. */
static void sum_plain(const i8_run *r, int64_t m, const int8_t *w, const float *w_scale,
                      int64_t columns, real *sums) {
    int64_t blocks = r->ld / BLOCK;
    for (int64_t row = 0; row < m; row++)
        for (int64_t c = 0; c < columns; c++) {
            float sum = 0;
            for (int64_t b = 0; b < blocks; b++) {
                const int8_t *at = w + c * r->ld + b * BLOCK;
                int64_t tile = row / 2 * 2 * r->ld + 2 * b * BLOCK + row % 2 * 8;
                int32_t dot = r->tiles ? dot_plain(r->x + tile, at, true)
                                       : dot_plain(r->x + row * r->ld + b * BLOCK, at, false);
                sum = fmaf((float)dot, r->scales[row * blocks + b], sum);
            }
            sums[row * TASK_COLUMNS + c] = (real)(sum * w_scale[c]);
        }
}

/* The same by the instructions of bytes.h. */
#if BYTES_ARM
#define BYTES(name) sdot_##name
#define BYTES_TARGET SDOT_TARGET
#include "cpu/i8_rows_dot.h"
#define TILE_TARGET __attribute__((target("arch=armv8.2-a+i8mm")))

/* Four columns of w, `apart` from each other, and `tiles` tiles of two rows. */
TILE_TARGET static ALWAYS_INLINE void sum_tile_block(const i8_run *r, int64_t tile, int64_t m,
                                                     const int8_t *w, const float *w_scale,
                                                     int64_t apart, real *sums, const int tiles) {
    int64_t blocks = r->ld / BLOCK, ld = r->ld, step = apart * ld;
    const int8_t *x = r->x + 2 * tile * ld;
    float32x4_t total[4][2];
    for (int t = 0; t < tiles; t++)
        total[t][0] = total[t][1] = vdupq_n_f32(0);
    for (int64_t b = 0; b < blocks; b++) {
        int32x4_t acc[4][2];
        for (int t = 0; t < tiles; t++)
            acc[t][0] = acc[t][1] = vdupq_n_s32(0);
        for (int64_t i = b * BLOCK; i < (b + 1) * BLOCK; i += 16) {
            uint8x16_t v[2][2]; /* columns 2 c and 2 c + 1, eight numbers of each */
            for (int c = 0; c < 2; c++)
                zip_halves(w + 2 * c * step + i, w + (2 * c + 1) * step + i, v[c]);
            for (int t = 0; t < tiles; t++)
                for (int half = 0; half < 2; half++) {
                    int8x16_t rows = vld1q_s8(x + 2 * (t * ld + i) + 16 * half);
                    for (int c = 0; c < 2; c++)
                        acc[t][c] = vmmlaq_s32(acc[t][c], rows, vreinterpretq_s8_u8(v[c][half]));
                }
        }
        for (int t = 0; t < tiles; t++) {
            const float *scale = r->scales + 2 * (tile + t) * blocks + b;
            float32x4_t both = vcombine_f32(vdup_n_f32(scale[0]), vdup_n_f32(scale[blocks]));
            for (int c = 0; c < 2; c++)
                total[t][c] = vfmaq_f32(total[t][c], vcvtq_f32_s32(acc[t][c]), both);
        }
    }
    for (int t = 0; t < tiles; t++)
        for (int k = 0; k < 2 && 2 * (tile + t) + k < m; k++)
            for (int c = 0; c < COLUMNS; c++)
                sums[(2 * (tile + t) + k) * TASK_COLUMNS + c * apart] =
                    total[t][c / 2][2 * k + c % 2] * w_scale[c * apart];
}

TILE_TARGET static int64_t sum_tiles(const i8_run *r, int64_t m, const int8_t *w,
                                     const float *w_scale, int64_t n, real *sums) {
    int64_t part = n / COLUMNS, tiles = ceil_div(m, 2);
    for (int64_t c = 0; c < part; c++)
        EACH_TILES(t, some, tiles, 4,
                   sum_tile_block(r, t, m, w + c * r->ld, w_scale + c, part, sums + c, some));
    return part * COLUMNS;
}
#elif BYTES_X86
#define BYTES_SOURCE "cpu/i8_rows_dot.h"
#include "cpu/bytes_each.h"
#endif

WEFT_TASK(run_columns, const i8_run *r) {
    const gemm_product *p = r->p;
    int64_t column = task * r->columns, n = min_i64(r->columns, p->n - column);
    const float *scales = (const float *)((const int8_t *)p->b.data + p->n * r->ld) + column;
    real sums[GEMM_FEW_ROWS * TASK_COLUMNS];
    gemm_product tile = gemm_tile(p, 0, 0, p->m, column, n, 0, p->k);
    const int8_t *w = tile.b.data;
    int64_t c = 0;
#if BYTES_ARM
    if (r->tiles)
        c = sum_tiles(r, p->m, w, scales, n, sums);
    else if (r->dot)
        c = sdot_sum(r, p->m, w, scales, n, sums);
#elif BYTES_VNNI
    c = (r->dot ? vnni_sum : madd_sum)(r, p->m, w, scales, n, sums);
#elif BYTES_X86
    c = madd_sum(r, p->m, w, scales, n, sums);
#endif
    if (c < n) sum_plain(r, p->m, w + c * r->ld, scales + c, n - c, sums + c);
    if (p->alpha != 1)
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < n; j++)
                sums[i * TASK_COLUMNS + j] *= p->alpha;
    KERNEL(gemm_finish)(&tile, sums, TASK_COLUMNS, p->accumulate);
}

int64_t KERNEL(i8_rows_workspace)(const gemm_product *p) {
    int64_t ld = p->b.ld, rows = min_i64(p->m + p->m % 2, GEMM_FEW_ROWS);
    return weft_arena_bytes(rows * ld + rows * (ld / BLOCK) * (int64_t)sizeof(float));
}

/* GEMM_FEW_ROWS rows after the other. */
void KERNEL(i8_rows)(weft_pool *pool, const gemm_product *p, void *workspace) {
    for (int64_t row = 0; row < p->m; row += GEMM_FEW_ROWS) {
        gemm_product part =
            gemm_tile(p, 0, row, min_i64(GEMM_FEW_ROWS, p->m - row), 0, p->n, 0, p->k);
        i8_run r = {.p = &part, .x = workspace, .ld = p->b.ld};
        r.scales = (float *)((char *)workspace + (part.m + part.m % 2) * r.ld);
        r.dot = weft_cpu_dots_i8();
        r.tiles = BYTES_ARM && part.m > 1 && weft_cpu_tiles_i8();
        for (int64_t i = 0; i < part.m; i++)
            round_row(&r, i);
        if (r.tiles && part.m % 2 == 1) { /* a row that is missing in the last tile */
            for (int64_t i = 0; i < r.ld; i += 8)
                memset(r.x + (part.m - 1) * r.ld + 2 * i + 8, 0, 8);
            memset(r.scales + part.m * (r.ld / BLOCK), 0, (size_t)(r.ld / BLOCK) * sizeof(float));
        }
        int64_t columns = max_i64(TASK_WEIGHTS / r.ld, ALONE);
        r.columns = min_i64(columns, TASK_COLUMNS) / ALONE * ALONE;
        r.tasks = ceil_div(p->n, r.columns);
        weft_pool_run(pool, r.tasks, run_columns, &r);
    }
}
