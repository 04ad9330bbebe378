/* Matrix products by a kernel of our own, where it is faster than the library's (GEMM_PANELS).
 *
 * The inner kernel holds a block of ROWS × COLUMNS results in registers and runs through DEPTH terms
 * of their sums. It reads its operands as panels: a panel of a is ROWS of its rows, a panel of b
 * COLUMNS of its columns, the terms one after the other. Copying an operand into panels is where it
 * is transposed, widened from bf16, and padded with zeros at its edges, so there is one kernel for
 * all of that.
 *
 * b is copied first, by all threads, and then read by all of them. A task copies some panels of a
 * into its thread's scratch, where they stay in the second cache, and takes each panel of b past
 * them. Each result is a sum over blocks of DEPTH terms, the blocks' sums added in order, wherever
 * it lies: so its bits follow from its row, its column and k alone, and the cut into tasks is free
 * to follow the number of threads. */
#include "cpu/gemm.h"
#include "cpu/vec.h"

#if GEMM_PANELS

enum {
    ROWS = 12, /* by COLUMNS: 24 registers of sums, 5 for the operands */
    COLUMNS = 8,
    DEPTH = 512,             /* a panel of each operand fits the first cache */
    BAND = 8,                /* most panels of rows that a task holds */
    LINE = 16,               /* terms that are read at a time: a cache line */
    TERMS = 4,               /* terms that are copied at a time where vectors lie side by side */
    PACK = 8,                /* panels of b that a task copies */
    SHARED_VALUES = 1 << 21, /* of b that is copied at a time, about */
    SHARED_COLUMNS = 128,    /* and no fewer columns than this */
    TASKS_A_THREAD = 4,      /* at least, where the rows allow it */
    PIECE = 8,               /* fewest panels of columns, where columns are cut */
    SERIAL_COLUMNS = 512     /* of b that one thread alone copies at a time */
};

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* Four numbers from element i. */
static ALWAYS_INLINE vreal load_four(const void *data, int64_t i, const bool bf16) {
    if (!bf16) return vload((const real *)data + i);
    uint16_t half[4];
    memcpy(half, (const uint16_t *)data + i, sizeof half);
    vreal v = {0};
    for (int j = 0; j < 4; j++)
        v[j] = weft_bf16_to_float(half[j]);
    return v;
}

static ALWAYS_INLINE real load_one(const void *data, int64_t i, const bool bf16) {
    return bf16 ? weft_bf16_to_float(((const uint16_t *)data)[i]) : ((const real *)data)[i];
}

static ALWAYS_INLINE void prefetch(const void *data, int64_t i, const bool bf16) {
    __builtin_prefetch((const char *)data + i * (int64_t)(bf16 ? sizeof(uint16_t) : sizeof(real)));
}

/* Four rows of four numbers, turned: to[j * step] gets the j-th of each row. */
static ALWAYS_INLINE void turn_four(const void *data, int64_t at, int64_t ld, real *to,
                                    int64_t step, const bool bf16) {
    vreal r0 = load_four(data, at, bf16), r1 = load_four(data, at + ld, bf16);
    vreal r2 = load_four(data, at + 2 * ld, bf16), r3 = load_four(data, at + 3 * ld, bf16);
    vreal a = __builtin_shufflevector(r0, r1, 0, 4, 2, 6);
    vreal b = __builtin_shufflevector(r0, r1, 1, 5, 3, 7);
    vreal c = __builtin_shufflevector(r2, r3, 0, 4, 2, 6);
    vreal d = __builtin_shufflevector(r2, r3, 1, 5, 3, 7);
    vstore(to, __builtin_shufflevector(a, c, 0, 1, 4, 5));
    vstore(to + step, __builtin_shufflevector(b, d, 0, 1, 4, 5));
    vstore(to + 2 * step, __builtin_shufflevector(a, c, 2, 3, 6, 7));
    vstore(to + 3 * step, __builtin_shufflevector(b, d, 2, 3, 6, 7));
}

/* A panel of `count` ≤ width vectors that lie one after the other, k terms each. */
static ALWAYS_INLINE void pack_along(gemm_matrix x, int64_t count, int64_t k, real *to,
                                     const int64_t width, const bool bf16) {
    int64_t d = 0;
    if (count == width)
        for (; d + LINE <= k; d += LINE)
            for (int64_t i = 0; i < width; i += 4)
                for (int64_t e = d; e < d + LINE; e += 4)
                    turn_four(x.data, i * x.ld + e, x.ld, to + e * width + i, width, bf16);
    for (; d < k; d++)
        for (int64_t i = 0; i < width; i++)
            to[d * width + i] = i < count ? load_one(x.data, i * x.ld + d, bf16) : 0;
}

/* Panels of `count` vectors that lie side by side, term by term. Some terms at a time: a panel is
 * written by lines, and what is read for one panel is near what the next one reads. */
static ALWAYS_INLINE void pack_across(gemm_matrix x, int64_t count, int64_t k, real *to,
                                      const int64_t width, const bool bf16) {
    int64_t whole = count / width * width, padded = ceil_div(count, width) * width;
    for (int64_t first = 0; first < k; first += TERMS) {
        int64_t end = min_i64(first + TERMS, k);
        for (int64_t d = first; d < end; d++)
            for (int64_t s = 0; s < count; s += LINE)
                prefetch(x.data, (d + TERMS) * x.ld + s, bf16);
        for (int64_t s = 0; s < whole; s += width)
            for (int64_t d = first; d < end; d++)
                for (int64_t i = 0; i < width; i += 4)
                    vstore(to + s * k + d * width + i, load_four(x.data, d * x.ld + s + i, bf16));
        for (int64_t d = first; d < end; d++)
            for (int64_t i = whole; i < padded; i++)
                to[whole * k + d * width + i - whole] =
                    i < count ? load_one(x.data, d * x.ld + i, bf16) : 0;
    }
}

static ALWAYS_INLINE void pack(gemm_matrix x, bool across, int64_t count, int64_t k, real *to,
                               const int64_t width, const bool bf16) {
    if (across) {
        pack_across(x, count, k, to, width, bf16);
        return;
    }
    for (int64_t s = 0; s < count; s += width)
        pack_along(gemm_part(x, 0, s, 0), min_i64(width, count - s), k, to + s * k, width, bf16);
}

static void pack_rows(gemm_matrix x, bool across, int64_t count, int64_t k, real *to) {
    if (x.bf16)
        pack(x, across, count, k, to, ROWS, true);
    else
        pack(x, across, count, k, to, ROWS, false);
}

static void pack_columns(gemm_matrix x, bool across, int64_t count, int64_t k, real *to) {
    if (x.bf16)
        pack(x, across, count, k, to, COLUMNS, true);
    else
        pack(x, across, count, k, to, COLUMNS, false);
}

/* A row of the block: its two vectors of sums, named so that they stay in registers. */
#define EACH_ROW(do_row)                                                                           \
    do_row(0, a0, 0) do_row(1, a0, 1) do_row(2, a0, 2) do_row(3, a0, 3) do_row(4, a1, 0)           \
        do_row(5, a1, 1) do_row(6, a1, 2) do_row(7, a1, 3) do_row(8, a2, 0) do_row(9, a2, 1)       \
            do_row(10, a2, 2) do_row(11, a2, 3)
#define ROW_START(i, from, lane) vreal low##i = vset(0), high##i = vset(0);
#define ROW_ADD(i, from, lane)                                                                     \
    low##i = VFMA_LANE(b0, from, lane, low##i);                                                    \
    high##i = VFMA_LANE(b1, from, lane, high##i);
#define ROW_STORE(i, from, lane)                                                                   \
    store_sums(c + i * ldc, low##i * factor, add);                                                 \
    store_sums(c + i * ldc + 4, high##i * factor, add);

static ALWAYS_INLINE void store_sums(real *to, vreal sums, bool add) {
    vstore(to, add ? vload(to) + sums : sums);
}

/* c [ROWS, COLUMNS] = alpha · a b, or += where `add`, for a panel of each and k terms. */
static void multiply_panels(int64_t k, const real *a, const real *b, real alpha, bool add, real *c,
                            int64_t ldc) {
    EACH_ROW(ROW_START)
    const real *end = a + k * ROWS;
#pragma GCC unroll 4
    for (; a < end; a += ROWS, b += COLUMNS) {
        vreal a0 = vload(a), a1 = vload(a + 4), a2 = vload(a + 8);
        vreal b0 = vload(b), b1 = vload(b + 4);
        EACH_ROW(ROW_ADD)
    }
    vreal factor = vset(alpha);
    EACH_ROW(ROW_STORE)
}

/* Asks for a panel's numbers from the further caches: the share of rows i to i + ROWS of m. */
static ALWAYS_INLINE void fetch_part(const real *panel, int64_t count, int64_t i, int64_t m) {
    int64_t end = min_i64(i + ROWS, m) * count / m;
    for (int64_t at = i * count / m; at < end; at += LINE)
        __builtin_prefetch(panel + at, 0, 2);
}

/* c [m, n] from packed blocks of k ≤ DEPTH terms. At an edge the kernel works on a copy. */
static void multiply_block(const gemm_product *p, int64_t k, const real *a, const real *b,
                           bool add) {
    int64_t ldc = p->c.ld;
    for (int64_t j = 0; j < p->n; j += COLUMNS, b += COLUMNS * k) {
        for (int64_t i = 0; i < p->m; i += ROWS) {
            real *c = (real *)p->c.data + i * ldc + j;
            int64_t m = min_i64(ROWS, p->m - i), n = min_i64(COLUMNS, p->n - j);
            if (j + COLUMNS < p->n) fetch_part(b + COLUMNS * k, COLUMNS * k, i, p->m);
            if (m == ROWS && n == COLUMNS) {
                multiply_panels(k, a + i * k, b, p->alpha, add, c, ldc);
                continue;
            }
            real edge[ROWS * COLUMNS] = {0};
            for (int64_t r = 0; add && r < m; r++)
                memcpy(edge + r * COLUMNS, c + r * ldc, (size_t)n * sizeof(real));
            multiply_panels(k, a + i * k, b, p->alpha, add, edge, COLUMNS);
            for (int64_t r = 0; r < m; r++)
                memcpy(c + r * ldc, edge + r * COLUMNS, (size_t)n * sizeof(real));
        }
    }
}

/* A product, what of it is in hand, and how that is shared out. */
typedef struct {
    const gemm_product *p;
    int64_t column, columns; /* of b in hand; all of them, or one matrix's part */
    int64_t g, groups;       /* matrices in hand */
    int64_t bands, pieces;   /* of a matrix's rows and columns: a task each */
    real *shared;            /* [groups][blocks of terms][panels][terms][COLUMNS] */
    char *scratch;           /* [threads][scratch_bytes] */
    int64_t scratch_bytes;
} panel_run;

static int64_t column_panels(const panel_run *r) {
    return ceil_div(r->columns, COLUMNS);
}

/* Where the panels of matrix g begin for the terms from d on. */
static real *shared_panels(const panel_run *r, int64_t g, int64_t d) {
    return r->shared + (g * r->p->k + d) * column_panels(r) * COLUMNS;
}

static void copy_shared(void *context, int64_t task, int thread) {
    (void)thread;
    const panel_run *r = context;
    const gemm_product *p = r->p;
    int64_t parts = ceil_div(column_panels(r), PACK), blocks = ceil_div(p->k, DEPTH);
    int64_t column = task % parts * PACK * COLUMNS;
    int64_t d = task / parts % blocks * DEPTH, g = task / parts / blocks;
    int64_t count = min_i64(PACK * COLUMNS, r->columns - column), k = min_i64(DEPTH, p->k - d);
    gemm_product part = gemm_tile(p, r->g + g, 0, 0, r->column + column, count, d, k);
    pack_columns(part.b, !p->tb, count, k, shared_panels(r, g, d) + column * k);
}

/* The first of `count` things that share `part` of `parts` gets: equal shares, or as good as. */
static int64_t share_start(int64_t count, int64_t part, int64_t parts) {
    return count * part / parts;
}

static void multiply_band(void *context, int64_t task, int thread) {
    const panel_run *r = context;
    const gemm_product *p = r->p;
    int64_t panels = column_panels(r), rows = ceil_div(p->m, ROWS);
    int64_t piece = task % r->pieces, band = task / r->pieces % r->bands;
    int64_t g = task / r->pieces / r->bands;
    int64_t row = share_start(rows, band, r->bands) * ROWS;
    int64_t m = min_i64(share_start(rows, band + 1, r->bands) * ROWS, p->m) - row;
    int64_t column = share_start(panels, piece, r->pieces) * COLUMNS;
    int64_t n = min_i64(share_start(panels, piece + 1, r->pieces) * COLUMNS, r->columns) - column;
    gemm_product tile = gemm_tile(p, r->g + g, row, m, r->column + column, n, 0, p->k);
    real *a = (real *)(r->scratch + thread * r->scratch_bytes);
    gemm_matrix c = tile.c;
    if (c.bf16) tile.c = (gemm_matrix){.data = a + BAND * ROWS * min_i64(DEPTH, p->k), .ld = n};
    for (int64_t d = 0; d < p->k; d += DEPTH) {
        int64_t k = min_i64(DEPTH, p->k - d);
        gemm_matrix part = p->ta ? gemm_part(tile.a, 0, d, 0) : gemm_part(tile.a, 0, 0, d);
        pack_rows(part, p->ta, m, k, a);
        multiply_block(&tile, k, a, shared_panels(r, g, d) + column * k, d > 0 || p->accumulate);
    }
    const real *sums = tile.c.data;
    int64_t ld = tile.c.ld;
    tile.c = c;
    KERNEL(gemm_finish)(&tile, sums, ld, false);
}

/* What is in hand at a time, and its cut into tasks. */
static panel_run cut_run(const gemm_product *p, int threads) {
    panel_run r = {.p = p};
    int64_t matrix = p->k * ceil_div(p->n, COLUMNS) * COLUMNS;
    r.groups = min_i64(max_i64(SHARED_VALUES / matrix, 1), p->batch);
    r.columns = p->n;
    if (matrix > SHARED_VALUES)
        r.columns =
            min_i64(max_i64(SHARED_VALUES / p->k, SHARED_COLUMNS) / COLUMNS * COLUMNS, p->n);
    int64_t rows = ceil_div(p->m, ROWS), wanted = ceil_div(TASKS_A_THREAD * threads, r.groups);
    r.bands = min_i64(max_i64(ceil_div(rows, BAND), wanted), rows);
    int64_t all = ceil_div(r.bands * r.groups, threads) * threads;
    r.bands = min_i64(max_i64(all / r.groups, r.bands), rows);
    int64_t most = max_i64(column_panels(&r) / PIECE, 1);
    r.pieces = min_i64(ceil_div(wanted, r.bands), most);
    int64_t sums = p->c.bf16 ? BAND * ROWS * r.columns : 0;
    r.scratch_bytes = real_bytes(BAND * ROWS * min_i64(DEPTH, p->k) + sums);
    return r;
}

static int64_t shared_bytes(const panel_run *r) {
    return real_bytes(r->groups * r->p->k * column_panels(r) * COLUMNS);
}

/* The terms from d on that are summed in one go. Long sums into reals take several, so that all of
 * b's columns are at hand in each and a is copied once; sums into bf16 cannot wait there. */
static gemm_product take_terms(const gemm_product *p, int64_t d) {
    int64_t k = p->k, width = ceil_div(p->n, COLUMNS) * COLUMNS;
    if (!p->c.bf16 && k * width > SHARED_VALUES)
        k = max_i64(SHARED_VALUES / width / DEPTH, 1) * DEPTH;
    k = min_i64(k, p->k - d);
    gemm_product part = gemm_tile(p, 0, 0, p->m, 0, p->n, d, k);
    part.batch = p->batch;
    part.accumulate = p->accumulate || d > 0;
    if (d + k == p->k) return part;
    part.gelu = part.gelu_back = false;
    part.bias.data = part.pre.data = NULL;
    return part;
}

int64_t KERNEL(panels_workspace)(const gemm_product *p, int threads) {
    gemm_product part = take_terms(p, 0);
    panel_run r = cut_run(&part, threads);
    return shared_bytes(&r) + threads * r.scratch_bytes;
}

static void run_part(weft_pool *pool, const gemm_product *p, void *workspace) {
    panel_run r = cut_run(p, weft_pool_size(pool));
    int64_t groups = r.groups, columns = r.columns;
    r.shared = workspace;
    r.scratch = (char *)workspace + shared_bytes(&r);
    for (r.g = 0; r.g < p->batch; r.g += groups) {
        r.groups = min_i64(groups, p->batch - r.g);
        for (r.column = 0; r.column < p->n; r.column += columns) {
            r.columns = min_i64(columns, p->n - r.column);
            int64_t parts = ceil_div(column_panels(&r), PACK) * ceil_div(p->k, DEPTH);
            weft_pool_run(pool, r.groups * parts, copy_shared, &r);
            weft_pool_run(pool, r.groups * r.bands * r.pieces, multiply_band, &r);
        }
    }
}

void KERNEL(panels)(weft_pool *pool, const gemm_product *p, void *workspace) {
    for (int64_t d = 0; d < p->k;) {
        gemm_product part = take_terms(p, d);
        run_part(pool, &part, workspace);
        d += part.k;
    }
}

int64_t KERNEL(panels_serial_workspace)(const gemm_product *p) {
    int64_t columns = ceil_div(min_i64(p->n, SERIAL_COLUMNS), COLUMNS) * COLUMNS;
    int64_t rows = min_i64(ceil_div(p->m, ROWS), BAND) * ROWS;
    return real_bytes((rows + columns) * min_i64(p->k, DEPTH));
}

/* The rows from `row` on of a product whose columns are copied already, for the terms from d on. */
static void multiply_rows(const gemm_product *p, int64_t d, int64_t k, real *a, const real *b) {
    for (int64_t row = 0; row < p->m; row += BAND * ROWS) {
        int64_t m = min_i64(BAND * ROWS, p->m - row);
        gemm_product tile = gemm_tile(p, 0, row, m, 0, p->n, d, k);
        pack_rows(tile.a, p->ta, m, k, a);
        multiply_block(&tile, k, a, b, d > 0 || p->accumulate);
    }
}

void KERNEL(panels_serial)(const gemm_product *p, void *workspace) {
    real *a = workspace, *b = a + min_i64(ceil_div(p->m, ROWS), BAND) * ROWS * min_i64(p->k, DEPTH);
    for (int64_t g = 0; g < p->batch; g++) {
        for (int64_t column = 0; column < p->n; column += SERIAL_COLUMNS) {
            int64_t n = min_i64(SERIAL_COLUMNS, p->n - column);
            gemm_product tile = gemm_tile(p, g, 0, p->m, column, n, 0, p->k);
            for (int64_t d = 0; d < p->k; d += DEPTH) {
                int64_t k = min_i64(DEPTH, p->k - d);
                gemm_matrix part = p->tb ? gemm_part(tile.b, 0, 0, d) : gemm_part(tile.b, 0, d, 0);
                pack_columns(part, !p->tb, n, k, b);
                multiply_rows(&tile, d, k, a, b);
            }
        }
    }
}

#endif
