/* Matrix products: the result is cut into tiles, each one call of the single-threaded CBLAS, and
 * the pool shares the tiles out.
 *
 * A tile of 512 × 512 costs a few percent against one big call, one of 256 × 256 hardly more, so
 * the cut starts at 512 and gets finer while there are too few tiles to keep many cores busy. Where
 * even small tiles are few (a gradient of a narrow weight: a small result, sums over all tokens)
 * the sums are split too, into pieces of k that are added in order afterwards.
 *
 * bf16 operands are widened into scratch piece by piece of k, each widened number being used some
 * hundred times; sums are kept in float all along and rounded once. */
#include "cpu/gemm.h"

#include "cpu/blas.h"
#include "cpu/vec.h"

enum {
    TILE = 512,      /* where the cut starts */
    TILE_FINE = 256, /* down to here while there are fewer than TILES_MANY */
    TILE_MIN = 64,   /* down to here while there are fewer than TILES_FEW */
    TILES_MANY = 64,
    TILES_FEW = 16,
    TILE_STEP = 16,         /* tile sides are multiples of this: the libraries' inner kernels are */
    TILE_WORK = 1 << 18,    /* no finer tiles than this many multiply-adds */
    SPLIT_MIN = 256,        /* shortest piece of k */
    SPLIT_VALUES = 1 << 22, /* most partial sums that are kept */
    DEPTH = 512,            /* piece of k that bf16 is widened by */
    FINISH = 256            /* columns that gemm_finish holds at a time */
};

/* p + n bytes, also where there is no memory at all and n is 0. */
static void *bytes_on(void *p, int64_t n) {
    return n ? (char *)p + n : p;
}

static int64_t round_up(int64_t a, int64_t step) {
    return ceil_div(a, step) * step;
}

static void cut_tiles(gemm_cut *cut, int64_t batch, int64_t m, int64_t n, int64_t k) {
    int64_t rows = ceil_div(m, TILE), columns = ceil_div(n, TILE);
    for (;;) {
        int64_t tile_m = ceil_div(m, rows), tile_n = ceil_div(n, columns);
        int64_t tiles = batch * rows * columns;
        int64_t least = tiles < TILES_FEW ? TILE_MIN : TILE_FINE;
        if (tiles >= TILES_MANY || max_i64(tile_m, tile_n) <= least) break;
        if (tile_m * tile_n * k < 2 * (int64_t)TILE_WORK) break;
        if (tile_m >= tile_n)
            rows++;
        else
            columns++;
    }
    cut->tile_m = round_up(ceil_div(m, rows), TILE_STEP);
    cut->tile_n = round_up(ceil_div(n, columns), TILE_STEP);
    cut->rows = ceil_div(m, cut->tile_m);
    cut->columns = ceil_div(n, cut->tile_n);
}

gemm_cut KERNEL(gemm_cut)(int64_t batch, int64_t m, int64_t n, int64_t k) {
    gemm_cut cut = {.split_k = k, .splits = 1};
    cut_tiles(&cut, batch, m, n, k);
    int64_t tiles = batch * cut.rows * cut.columns;
    if (tiles >= TILES_FEW) return cut;
    int64_t splits = min_i64(ceil_div(TILES_FEW, tiles), k / SPLIT_MIN);
    splits = min_i64(splits, SPLIT_VALUES / (batch * m * n));
    splits = min_i64(splits, cut.tile_m * cut.tile_n * k / TILE_WORK);
    if (splits < 2) return cut;
    cut.split_k = round_up(ceil_div(k, splits), TILE_STEP);
    cut.splits = ceil_div(k, cut.split_k);
    return cut;
}

static bool is_few_rows(const gemm_product *p) {
    return p->m <= GEMM_FEW_ROWS && !p->ta;
}

/* Scratch of one thread: widened a, widened b, sums of a tile that c cannot hold. */
static int64_t operand_values(gemm_matrix x, int64_t side, int64_t k) {
    return x.bf16 ? side * min_i64(k, DEPTH) : 0;
}

int64_t KERNEL(gemm_serial_workspace)(const gemm_product *p) {
    return real_bytes(operand_values(p->a, p->m, p->k)) +
           real_bytes(operand_values(p->b, p->n, p->k));
}

static int64_t thread_bytes(const gemm_product *p, const gemm_cut *cut) {
    gemm_product tile = gemm_tile(p, 0, 0, cut->tile_m, 0, cut->tile_n, 0, cut->split_k);
    int64_t sums = p->c.bf16 && cut->splits == 1 ? cut->tile_m * cut->tile_n : 0;
    return KERNEL(gemm_serial_workspace)(&tile) + real_bytes(sums);
}

static int64_t partial_bytes(const gemm_product *p, const gemm_cut *cut) {
    return cut->splits > 1 ? real_bytes(cut->splits * p->batch * p->m * p->n) : 0;
}

int64_t KERNEL(gemm_workspace)(const gemm_product *p, int threads) {
    if (is_few_rows(p)) return KERNEL(few_rows_workspace)(p);
    gemm_cut cut = KERNEL(gemm_cut)(p->batch, p->m, p->n, p->k);
    return partial_bytes(p, &cut) + threads * thread_bytes(p, &cut);
}

/* Rows of a bf16 matrix as reals, one after the other. */
static gemm_matrix widen_part(gemm_matrix x, int64_t rows, int64_t columns, real *to) {
    for (int64_t r = 0; r < rows; r++)
        gemm_widen(to + r * columns, (const uint16_t *)x.data + r * x.ld, columns);
    return (gemm_matrix){.data = to, .ld = columns};
}

static void call_blas(const gemm_product *p, real beta) {
#if WEFT_REAL == 64
    weft_blas_dgemm(p->ta, p->tb, p->m, p->n, p->k, p->alpha, p->a.data, p->a.ld, p->b.data,
                    p->b.ld, beta, p->c.data, p->c.ld);
#else
    weft_blas_sgemm(p->ta, p->tb, p->m, p->n, p->k, p->alpha, p->a.data, p->a.ld, p->b.data,
                    p->b.ld, beta, p->c.data, p->c.ld);
#endif
}

void KERNEL(gemm_serial)(const gemm_product *p, void *workspace) {
    int64_t depth = p->a.bf16 || p->b.bf16 ? DEPTH : p->k;
    real *a_tile = workspace;
    real *b_tile = bytes_on(workspace, real_bytes(operand_values(p->a, p->m, p->k)));
    for (int64_t g = 0; g < p->batch; g++) {
        for (int64_t at = 0; at < p->k; at += depth) {
            int64_t k = min_i64(depth, p->k - at);
            gemm_product t = gemm_tile(p, g, 0, p->m, 0, p->n, at, k);
            if (t.a.bf16) t.a = widen_part(t.a, p->ta ? k : p->m, p->ta ? p->m : k, a_tile);
            if (t.b.bf16) t.b = widen_part(t.b, p->tb ? p->n : k, p->tb ? k : p->n, b_tile);
            call_blas(&t, at > 0 || p->accumulate ? 1 : 0);
        }
    }
}

static inline vreal gelu_value(vreal x) {
    vreal u = (real)0.7978845608028654 * (x + (real)0.044715 * x * x * x);
    return x * vsigmoid(2 * u);
}

static void add_values(real *to, gemm_matrix x, int64_t at, int64_t n) {
    if (x.bf16)
        for (int64_t i = 0; i < n; i++)
            to[i] += (real)weft_bf16_to_float(((const uint16_t *)x.data)[at + i]);
    else
        for (int64_t i = 0; i < n; i++)
            to[i] += ((const real *)x.data)[at + i];
}

static void put_values(gemm_matrix x, int64_t at, const real *from, int64_t n) {
    if (x.bf16)
        gemm_round((uint16_t *)x.data + at, from, n);
    else
        memcpy((real *)x.data + at, from, (size_t)n * sizeof(real));
}

static void gelu_values(real *x, int64_t n) {
    int64_t i = 0;
    for (; i + VLEN <= n; i += VLEN)
        vstore(x + i, gelu_value(vload(x + i)));
    if (i < n) vstore_part(x + i, gelu_value(vload_part(x + i, n - i)), n - i);
}

void KERNEL(gemm_finish)(const gemm_product *p, const real *sums, int64_t ld, bool add) {
    bool plain = !p->bias.data && !p->gelu && !p->pre.data && !add;
    if (plain && sums == p->c.data) return;
    real row[FINISH];
    for (int64_t i = 0; i < p->m; i++) {
        for (int64_t j = 0; j < p->n; j += FINISH) {
            int64_t n = min_i64(FINISH, p->n - j), at = i * p->c.ld + j;
            memcpy(row, sums + i * ld + j, (size_t)n * sizeof(real));
            if (add) add_values(row, p->c, at, n);
            if (p->bias.data) add_values(row, p->bias, j, n);
            if (p->pre.data) put_values(p->pre, i * p->pre.ld + j, row, n);
            if (p->gelu) gelu_values(row, n);
            put_values(p->c, at, row, n);
        }
    }
}

typedef struct {
    const gemm_product *p;
    gemm_cut cut;
    real *partial; /* [splits, batch, m, n] */
    char *scratch; /* [threads][thread_bytes] */
    int64_t scratch_bytes;
} gemm_run;

/* A task's tile; tasks count splits fastest, then columns, rows and batch. */
typedef struct {
    int64_t g, row, m, column, n, split;
} tile_place;

static tile_place place_tile(const gemm_run *r, int64_t task, int64_t splits) {
    const gemm_cut *cut = &r->cut;
    tile_place at = {.split = task % splits};
    task /= splits;
    at.column = task % cut->columns * cut->tile_n;
    task /= cut->columns;
    at.row = task % cut->rows * cut->tile_m;
    at.g = task / cut->rows;
    at.m = min_i64(cut->tile_m, r->p->m - at.row);
    at.n = min_i64(cut->tile_n, r->p->n - at.column);
    return at;
}

static void run_tile(void *context, int64_t task, int thread) {
    const gemm_run *r = context;
    const gemm_product *p = r->p;
    tile_place at = place_tile(r, task, 1);
    char *scratch = bytes_on(r->scratch, thread * r->scratch_bytes);
    gemm_product tile = gemm_tile(p, at.g, at.row, at.m, at.column, at.n, 0, p->k);
    gemm_matrix c = tile.c;
    if (c.bf16) {
        int64_t operands = KERNEL(gemm_serial_workspace)(&tile);
        tile.c = (gemm_matrix){.data = scratch + operands, .ld = at.n};
    }
    KERNEL(gemm_serial)(&tile, scratch);
    const real *sums = tile.c.data;
    int64_t ld = tile.c.ld;
    tile.c = c;
    KERNEL(gemm_finish)(&tile, sums, ld, false);
}

static void run_split(void *context, int64_t task, int thread) {
    const gemm_run *r = context;
    const gemm_product *p = r->p;
    tile_place at = place_tile(r, task, r->cut.splits);
    int64_t depth = at.split * r->cut.split_k, k = min_i64(r->cut.split_k, p->k - depth);
    gemm_product tile = gemm_tile(p, at.g, at.row, at.m, at.column, at.n, depth, k);
    real *to = r->partial + ((at.split * p->batch + at.g) * p->m + at.row) * p->n + at.column;
    tile.c = (gemm_matrix){.data = to, .ld = p->n};
    tile.accumulate = false;
    KERNEL(gemm_serial)(&tile, bytes_on(r->scratch, thread * r->scratch_bytes));
}

/* Adds a tile's partial sums to the first of them, in order. */
static void run_combine(void *context, int64_t task, int thread) {
    (void)thread;
    const gemm_run *r = context;
    const gemm_product *p = r->p;
    tile_place at = place_tile(r, task, 1);
    int64_t step = p->batch * p->m * p->n;
    real *first = r->partial + (at.g * p->m + at.row) * p->n + at.column;
    for (int64_t i = 0; i < at.m; i++) {
        real *sum = first + i * p->n;
        for (int64_t s = 1; s < r->cut.splits; s++)
            for (int64_t j = 0; j < at.n; j++)
                sum[j] += sum[s * step + j];
    }
    gemm_product tile = gemm_tile(p, at.g, at.row, at.m, at.column, at.n, 0, p->k);
    KERNEL(gemm_finish)(&tile, first, p->n, p->accumulate);
}

void KERNEL(gemm)(weft_pool *pool, const gemm_product *p, void *workspace) {
    if (is_few_rows(p)) {
        KERNEL(few_rows)(pool, p, workspace);
        return;
    }
    gemm_run r = {.p = p, .cut = KERNEL(gemm_cut)(p->batch, p->m, p->n, p->k)};
    r.partial = workspace;
    r.scratch = bytes_on(workspace, partial_bytes(p, &r.cut));
    r.scratch_bytes = thread_bytes(p, &r.cut);
    int64_t tiles = p->batch * r.cut.rows * r.cut.columns;
    if (r.cut.splits == 1) {
        weft_pool_run(pool, tiles, run_tile, &r);
        return;
    }
    weft_pool_run(pool, tiles * r.cut.splits, run_split, &r);
    weft_pool_run(pool, tiles, run_combine, &r);
}
