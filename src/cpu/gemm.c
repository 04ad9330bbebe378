/* Matrix products: the result is cut into tiles, each one call of the single-threaded CBLAS, and
 * the pool shares the tiles out. Few rows go to few_rows.c, and the others to panels.c where that has
 * the faster kernel.
 *
 * A tile of 512 × 512 costs a few percent against one big call; smaller ones cost more, but fewer
 * than a thread each leaves threads idle. So a large product is cut at 512; of a small one the cuts
 * into about as many tasks as SHARES are tried on a simple estimate. Where the result is small and
 * its sums are long (a gradient of a narrow weight: sums over all tokens), the sums are split too,
 * and the pieces added in order afterwards.
 *
 * bf16 operands are widened into scratch piece by piece of k, each widened number being used some
 * hundred times; sums are kept in float all along and rounded once. */
#include "cpu/gemm.h"

#include "cpu/blas.h"
#include "cpu/matrix.h"
#include "cpu/vec.h"

#if WEFT_ARM_TARGETS && WEFT_REAL == 32
#include <arm_neon.h>
#endif

enum {
    TILE = 512,          /* longest side of a tile */
    TILE_MIN = 64,       /* shortest, where there is a choice */
    TILE_STEP = 16,      /* sides are multiples of this: the libraries' inner kernels are */
    TILE_WORK = 1 << 18, /* fewest multiply-adds of a task, where there is a choice */
    TILES_MANY = 64,     /* so many need no thought */
    SHARES = 16,     /* tasks come in multiples of this, so that 2, 4, 8, 16 threads end together */
    SPLIT_MIN = 512, /* shortest piece of k */
    SPLIT_VALUES = 1 << 22, /* most partial sums that are kept */
    PACKING = 12,           /* see estimate_cost */
    PARTIAL = 40,
    DEPTH = 512,   /* piece of k that bf16 is widened by */
    FINISH = 256,  /* columns that gemm_finish holds at a time */
    COPY_ROWS = 64 /* of an addend that a task copies */
};

/* p + n bytes, also where there is no memory at all and n is 0. */
static void *bytes_on(void *p, int64_t n) {
    return n ? (char *)p + n : p;
}

/* How many pieces the sums of `tiles` tiles are split into: enough for SHARES tasks, if they are
 * long and the partial sums few. */
static int64_t count_splits(const gemm_product *p, int64_t tiles) {
    int64_t splits = min_i64(ceil_div(SHARES, tiles), p->k / SPLIT_MIN);
    return max_i64(min_i64(splits, SPLIT_VALUES / (p->batch * p->m * p->n)), 1);
}

/* What a cut costs against one perfect product shared out over SHARES threads: tasks that some of
 * them wait for, copies of a tile's operands inside the library (about PACKING multiply-adds a
 * number, each used for as many results as the tile's other side is long), and partial sums. */
static double estimate_cost(const gemm_product *p, int64_t rows, int64_t columns, int64_t splits) {
    double tasks = (double)(p->batch * rows * columns * splits);
    double waits = ceil(tasks / SHARES) * SHARES / tasks;
    double tile_m = (double)p->m / (double)rows, tile_n = (double)p->n / (double)columns;
    double copies = PACKING / tile_m + PACKING / tile_n;
    double sums = splits > 1 ? PARTIAL * (double)splits / (double)p->k : 0;
    return waits * (1 + copies + sums);
}

static gemm_cut make_cut(const gemm_product *p, int64_t rows, int64_t columns, int64_t splits) {
    gemm_cut cut;
    cut.tile_m = round_up(ceil_div(p->m, rows), TILE_STEP);
    cut.tile_n = round_up(ceil_div(p->n, columns), TILE_STEP);
    cut.rows = ceil_div(p->m, cut.tile_m);
    cut.columns = ceil_div(p->n, cut.tile_n);
    cut.split_k = splits > 1 ? round_up(ceil_div(p->k, splits), TILE_STEP) : p->k;
    cut.splits = ceil_div(p->k, cut.split_k);
    return cut;
}

gemm_cut KERNEL(gemm_cut)(int64_t batch, int64_t m, int64_t n, int64_t k) {
    gemm_product p = {.batch = batch, .m = m, .n = n, .k = k};
    int64_t rows = ceil_div(m, TILE), columns = ceil_div(n, TILE);
    if (batch * rows * columns >= TILES_MANY) return make_cut(&p, rows, columns, 1);
    int64_t most_rows = max_i64(rows, min_i64(rows + SHARES, m / TILE_MIN));
    int64_t most_columns = max_i64(columns, min_i64(columns + SHARES, n / TILE_MIN));
    int64_t best[3] = {rows, columns, 1};
    double least = estimate_cost(&p, rows, columns, 1);
    for (int64_t r = rows; r <= most_rows; r++) {
        for (int64_t c = columns; c <= most_columns; c++) {
            int64_t splits = count_splits(&p, batch * r * c);
            if (m * n * k / (r * c * splits) < TILE_WORK) break;
            double cost = estimate_cost(&p, r, c, splits);
            if (cost >= least) continue;
            least = cost;
            best[0] = r, best[1] = c, best[2] = splits;
        }
    }
    return make_cut(&p, best[0], best[1], best[2]);
}

static bool is_few_rows(const gemm_product *p) {
    return (p->m <= GEMM_FEW_ROWS || p->alone) && !p->ta;
}

/* Scratch of one thread: widened a, widened b, sums of a tile that c cannot hold. */
static int64_t operand_values(gemm_matrix x, int64_t side, int64_t k) {
    return x.bf16 ? side * min_i64(k, DEPTH) : 0;
}

static int64_t operand_bytes(const gemm_product *p) {
    return real_bytes(operand_values(p->a, p->m, p->k)) +
           real_bytes(operand_values(p->b, p->n, p->k));
}

static int64_t thread_bytes(const gemm_product *p, const gemm_cut *cut) {
    gemm_product tile = gemm_tile(p, 0, 0, cut->tile_m, 0, cut->tile_n, 0, cut->split_k);
    int64_t sums = p->c.bf16 && cut->splits == 1 ? cut->tile_m * cut->tile_n : 0;
    return operand_bytes(&tile) + real_bytes(sums);
}

static int64_t partial_bytes(const gemm_product *p, const gemm_cut *cut) {
    return cut->splits > 1 ? real_bytes(cut->splits * p->batch * p->m * p->n) : 0;
}

int64_t KERNEL(gemm_workspace)(const gemm_product *p, int threads) {
    if (is_few_rows(p))
        return max_i64(KERNEL(few_rows_workspace)(p),
                       KERNEL(bf16_rows_runs)(p) ? KERNEL(bf16_rows_workspace)(p) : 0);
    if (GEMM_PANELS) return KERNEL(panels_workspace)(p, threads);
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

/* A tile on the calling thread. */
static void multiply_tile(const gemm_product *p, void *workspace) {
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

static void add_values(real *to, gemm_matrix x, int64_t at, int64_t n) {
    if (x.bf16)
        for (int64_t i = 0; i < n; i++)
            to[i] += (real)weft_bf16_to_float(((const uint16_t *)x.data)[at + i]);
    else
        for (int64_t i = 0; i < n; i++)
            to[i] += ((const real *)x.data)[at + i];
}

/* As weft_float_to_bf16 rounds; by the processor's own instruction where it has one. */
#if WEFT_ARM_TARGETS && WEFT_REAL == 32

__attribute__((target("arch=armv8.2-a+bf16"))) static void
round_eights(uint16_t *to, const real *from, int64_t n) {
    for (int64_t i = 0; i < n; i += 8) {
        bfloat16x8_t low = vcvtq_low_bf16_f32(vld1q_f32(from + i));
        bfloat16x8_t both = vcvtq_high_bf16_f32(low, vld1q_f32(from + i + 4));
        vst1q_u16(to + i, vreinterpretq_u16_bf16(both));
    }
}

static void round_values(uint16_t *to, const real *from, int64_t n) {
    int64_t whole = weft_cpu_matrix() == WEFT_MATRIX_BFMMLA ? n / 8 * 8 : 0;
    round_eights(to, from, whole);
    gemm_round(to + whole, from + whole, n - whole);
}

#else

static void round_values(uint16_t *to, const real *from, int64_t n) {
    gemm_round(to, from, n);
}

#endif

static void put_values(gemm_matrix x, int64_t at, const real *from, int64_t n) {
    if (x.bf16)
        round_values((uint16_t *)x.data + at, from, n);
    else
        memcpy((real *)x.data + at, from, (size_t)n * sizeof(real));
}

static void get_values(real *to, gemm_matrix x, int64_t at, int64_t n) {
    if (x.bf16)
        gemm_widen(to, (const uint16_t *)x.data + at, n);
    else
        memcpy(to, (const real *)x.data + at, (size_t)n * sizeof(real));
}

/* In one pass, where a vector is wide enough to pay for the questions. */
#if WEFT_REAL == 32 && defined(__AVX2__)

typedef uint32_t vbits __attribute__((vector_size(VBYTES)));
typedef uint16_t vhalves __attribute__((vector_size(VBYTES / 2)));

static ALWAYS_INLINE vreal take_vector(gemm_matrix x, int64_t at) {
    if (!x.bf16) return vload((const real *)x.data + at);
    return vload_bf16((const uint16_t *)x.data + at);
}

/* As weft_float_to_bf16 rounds. */
static ALWAYS_INLINE void put_vector(gemm_matrix x, int64_t at, vreal v) {
    if (!x.bf16) {
        vstore((real *)x.data + at, v);
        return;
    }
    vbits bits = (vbits)v, nan = (vbits)((bits & 0x7fffffffu) > 0x7f800000u);
    vbits rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    rounded = (nan & (bits | 0x400000u)) | (~nan & rounded);
#if defined(__AVX512F__)
    vhalves half = (vhalves)_mm512_cvtepi32_epi16((__m512i)(rounded >> 16));
#else
    vhalves half = __builtin_convertvector(rounded >> 16, vhalves);
#endif
    memcpy((uint16_t *)x.data + at, &half, sizeof half);
}

/* Whole vectors of row i; returns where the rest of it begins. p by value: stores may alias what lies in
 * memory. */
static ALWAYS_INLINE int64_t finish_vectors(const gemm_product p, int64_t i, const real *sums,
                                            const bool add) {
    int64_t j = 0;
    for (; j + VLEN <= p.n; j += VLEN) {
        vreal v = vload(sums + j);
        if (add) v += take_vector(p.c, i * p.c.ld + j);
        if (p.bias.data) v += take_vector(p.bias, j);
        if (p.addend.data) v += take_vector(p.addend, i * p.addend.ld + j);
        if (p.gelu_back)
            v *= vgelu_slope(take_vector(p.pre, i * p.pre.ld + j));
        else if (p.pre.data)
            put_vector(p.pre, i * p.pre.ld + j, v);
        if (p.gelu) v = vgelu(v);
        put_vector(p.c, i * p.c.ld + j, v);
    }
    return j;
}

#else

static int64_t finish_vectors(const gemm_product p, int64_t i, const real *sums, bool add) {
    (void)p, (void)i, (void)sums, (void)add;
    return 0;
}

#endif

void KERNEL(gemm_finish)(const gemm_product *p, const real *sums, int64_t ld, bool add) {
    bool plain = !p->bias.data && !p->addend.data && !p->gelu && !p->pre.data && !add;
    if (plain && sums == p->c.data) return;
    real row[FINISH], pre[FINISH];
    for (int64_t i = 0; i < p->m; i++) {
        if (plain) {
            put_values(p->c, i * p->c.ld, sums + i * ld, p->n);
            continue;
        }
        for (int64_t j = finish_vectors(*p, i, sums + i * ld, add); j < p->n; j += FINISH) {
            int64_t n = min_i64(FINISH, p->n - j), at = i * p->c.ld + j;
            memcpy(row, sums + i * ld + j, (size_t)n * sizeof(real));
            if (add) add_values(row, p->c, at, n);
            if (p->bias.data) add_values(row, p->bias, j, n);
            if (p->addend.data) add_values(row, p->addend, i * p->addend.ld + j, n);
            if (p->gelu_back) {
                get_values(pre, p->pre, i * p->pre.ld + j, n);
                vgelu_back(row, row, pre, n);
            } else if (p->pre.data) {
                put_values(p->pre, i * p->pre.ld + j, row, n);
            }
            if (p->gelu) vgelu_all(row, n);
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
        int64_t operands = operand_bytes(&tile);
        tile.c = (gemm_matrix){.data = scratch + operands, .ld = at.n};
    }
    multiply_tile(&tile, scratch);
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
    multiply_tile(&tile, bytes_on(r->scratch, thread * r->scratch_bytes));
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

static void copy_rows(void *context, int64_t task, int thread) {
    (void)thread;
    const gemm_product *p = context;
    int64_t bands = ceil_div(p->m, COPY_ROWS), g = task / bands, row = task % bands * COPY_ROWS;
    for (int64_t end = min_i64(row + COPY_ROWS, p->m); row < end; row++)
        memcpy(gemm_part(p->c, g, row, 0).data, gemm_part(p->addend, g, row, 0).data,
               (size_t)p->n * sizeof(real));
}

/* A product with an addend, where sums are made in c itself: the addend waits there. It does so also
 * where it lies elsewhere, so that the order of the sums, and the bits, do not depend on that. */
static gemm_product start_from_addend(weft_pool *pool, const gemm_product *p) {
    gemm_product q = *p;
    if (!p->addend.data || p->c.bf16) return q;
    if (p->addend.data != p->c.data)
        weft_pool_run(pool, p->batch * ceil_div(p->m, COPY_ROWS), copy_rows, &q);
    q.addend.data = NULL;
    q.accumulate = true;
    return q;
}

static void run_product(weft_pool *pool, const gemm_product *p, void *workspace) {
    if (KERNEL(bf16_rows_runs)(p)) {
        KERNEL(bf16_rows)(pool, p, workspace);
        return;
    }
    if (is_few_rows(p)) {
        KERNEL(few_rows)(pool, p, workspace);
        return;
    }
    if (GEMM_PANELS) {
        KERNEL(panels)(pool, p, workspace);
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

void KERNEL(gemm)(weft_pool *pool, const gemm_product *p, void *workspace) {
    gemm_product q = start_from_addend(pool, p);
    run_product(pool, &q, workspace);
}

gemm_cut KERNEL(gemm_tiles)(const gemm_product *p) {
    if (GEMM_PANELS) return KERNEL(panels_tiles)(p);
    gemm_cut cut = KERNEL(gemm_cut)(1, p->m, p->n, p->k);
    cut.split_k = p->k;
    cut.splits = 1;
    return cut;
}

int64_t KERNEL(gemm_rows_bytes)(const gemm_product *p) {
    return GEMM_PANELS ? KERNEL(panels_rows_bytes)(p) : 0;
}

int64_t KERNEL(gemm_columns_bytes)(const gemm_product *p) {
    return GEMM_PANELS ? KERNEL(panels_columns_bytes)(p) : 0;
}

int64_t KERNEL(gemm_tile_bytes)(const gemm_product *p) {
    if (GEMM_PANELS) return 0;
    gemm_cut cut = KERNEL(gemm_tiles)(p);
    gemm_product tile = gemm_tile(p, 0, 0, cut.tile_m, 0, cut.tile_n, 0, p->k);
    return operand_bytes(&tile);
}

void KERNEL(gemm_copy_rows)(weft_pool *pool, const gemm_product *p, void *to) {
    if (GEMM_PANELS) KERNEL(panels_copy_rows)(pool, p, to);
}

void KERNEL(gemm_copy_columns)(weft_pool *pool, const gemm_product *p, void *to) {
    if (GEMM_PANELS) KERNEL(panels_copy_columns)(pool, p, to);
}

void KERNEL(gemm_one_tile)(const gemm_product *p, gemm_place at, const void *rows,
                           const void *columns, real *c, int64_t ldc, void *scratch) {
    if (GEMM_PANELS) {
        KERNEL(panels_one_tile)(p, at, rows, columns, c, ldc);
        return;
    }
    gemm_product tile = gemm_tile(p, 0, at.row, at.m, at.column, at.n, 0, p->k);
    tile.c = (gemm_matrix){.data = c, .ld = ldc};
    tile.accumulate = false;
    multiply_tile(&tile, scratch);
}
