/* Matrix products: cuBLASLt where it can, our own kernels around it.
 *
 * Five ways, by the product's form alone:
 *
 *   8 bits     b is i8: rows of a are rounded to 8 bits too (i8_rows.cuh).
 *   few rows   at most 64 rows, 256 where weights can stream, or where rows are to be alone: each is
 *              summed so that its bits do not depend on the others (streamed.cuh, few_rows.cuh).
 *   thin       a small result of long sums, of sides the library is slow at: bands of k.
 *   library    both factors bf16, or both f32. A mixed pair is made f32 first. The library is
 *              column-major, so it makes cᵀ = op(b)ᵀ op(a)ᵀ: our rows are its columns. Rows of bf16
 *              that begin at no multiple of 16 bytes or end at none would take it five times as
 *              long: such factors are copied into rows that do, with zeros behind their own values.
 *   plain      where the library has no algorithm: tiles of 32 × 32 in shared memory.
 *
 * Bias, gelu and gelu's slope are the library's epilogue where its result is already c (a bias must
 * have c's type there, so an f32 bias beside bf16 is rounded first, as the result is). Otherwise the
 * sums go to the workspace in f32 and finish_values does the rest: for gelu in f32, whose epilogue is
 * coarser than f32 is, for f32 factors with a bf16 result, and for widths that the epilogue does not
 * take. Only the slope of a bf16 result is put on sums that were rounded to c already, as a node of
 * its own would: those would be many in f32. The addend is the library's c, and c its d. */
#include "cuda/pack.cuh"
#include "cuda/products/few_rows.cuh"
#include "cuda/products/i8_rows.cuh"
#include "cuda/products/library.cuh"
#include "cuda/products/streamed.cuh"

enum {
    THIN_SIDE = 128,  /* longest side of a thin product's result, */
    THIN_NARROW = 16, /* and its shorter one where both are multiples of 8, of bf16 */
    THIN_VALUES = 4096,
    THIN_DEPTH = 1024, /* shortest sums */
    THIN_ROWS = 32,    /* of a and b that a block holds */
    THIN_BANDS = 2,    /* for each multiprocessor */
    ADD_WARPS = 32,    /* that share out the bands */
    TILE = 32,
    TILE_ROWS = 8, /* threads of a tile: 32 × 8, four rows each */
    THREADS = 256,
    FINISH_COLUMNS = 4,      /* that a thread of finish_values ends */
    LIBRARY_SMALL = 4 << 20, /* bytes of the library's own workspace */
    LIBRARY_LARGE = 32 << 20,
    LIBRARY_ALIGN = 256
};
static const double LARGE_FLOPS = 1e9;
static const double PAD_FLOPS = 1e9; /* fewer are not worth the copies */

/* A product's recipe: what has to be done around the library's call. */
typedef struct {
    bool i8, few_rows, thin;
    bool widen_a, widen_b;                    /* bf16 beside f32 */
    bool round_bias;                          /* f32 bias for a bf16 epilogue */
    bool finish;                              /* sums in f32 first, then bias, gelu and rounding */
    bool sums_apart;                          /* and they lie in the workspace, not in c */
    bool padded;                              /* the library's product is of m, n, k in eights: */
    int64_t m, n, k;                          /* those */
    bool copy_a, copy_b;                      /* and these are copied for it */
    char *a_copy, *b_copy, *bias_copy, *sums; /* places in the workspace, behind the library's */
    int64_t library_bytes;
    workspace_pieces pieces;
} gemm_recipe;

static int64_t a_values(const cuda_gemm *p) {
    return gemm_values(&p->a, p->batch, p->ta ? p->k : p->m, p->ta ? p->m : p->k);
}

static int64_t b_values(const cuda_gemm *p) {
    return gemm_values(&p->b, p->batch, p->tb ? p->n : p->k, p->tb ? p->k : p->n);
}

static int64_t bias_values(const cuda_gemm *p) {
    return p->bias.stride ? p->batch * p->n : p->n;
}

static int64_t thin_band(const cuda_gemm *p) {
    return ceil_div(ceil_div(p->k, THIN_BANDS * multiprocessors()), THIN_ROWS) * THIN_ROWS;
}

static int64_t eights(int64_t n) {
    return ceil_div(n, 8) * 8;
}

static bool begins_anywhere(const cuda_gemm_matrix *x, int64_t batch) {
    return x->is_bf16 && (x->ld % 8 != 0 || (batch > 1 && x->stride % 8 != 0));
}

/* A product of rows in eights that has p's among its results. Its sums lie apart where c has other rows. */
static void pad_product(const cuda_gemm *p, gemm_recipe *recipe) {
    recipe->m = p->ta ? eights(p->m) : p->m;
    recipe->n = eights(p->n);
    recipe->k = eights(p->k);
    recipe->copy_a = begins_anywhere(&p->a, p->batch) || recipe->m != p->m || recipe->k != p->k;
    recipe->copy_b = begins_anywhere(&p->b, p->batch) || recipe->n != p->n || recipe->k != p->k;
    recipe->padded = recipe->copy_a || recipe->copy_b || begins_anywhere(&p->c, p->batch);
    int64_t size = p->batch * (int64_t)sizeof(bf16);
    if (recipe->copy_a) recipe->pieces.take(&recipe->a_copy, size * recipe->m * recipe->k);
    if (recipe->copy_b) recipe->pieces.take(&recipe->b_copy, size * recipe->k * recipe->n);
    recipe->sums_apart = recipe->padded && (recipe->m != p->m || recipe->n != p->n ||
                                            begins_anywhere(&p->c, p->batch));
    if (recipe->sums_apart) recipe->pieces.take(&recipe->sums, 2 * size * recipe->m * recipe->n);
    recipe->finish = recipe->sums_apart;
}

/* `workspace` NULL: only for its size. */
static gemm_recipe make_recipe(const cuda_gemm *p, void *workspace) {
    gemm_recipe recipe = {};
    workspace_pieces &pieces = recipe.pieces;
    pieces.base = (char *)workspace;
    recipe.i8 = p->b.is_i8;
    if (recipe.i8) pieces.bytes = i8_workspace(p);
    if (recipe.i8) return recipe;
    int64_t few = streamed_fits(p) ? GEMM_STREAMED_ROWS : GEMM_FEW_ROWS;
    recipe.few_rows = (p->m <= few || p->alone) && !p->ta;
    if (recipe.few_rows) return recipe;
    double flops = 2.0 * (double)p->batch * (double)p->m * (double)p->n * (double)p->k;
    recipe.library_bytes = flops < LARGE_FLOPS ? LIBRARY_SMALL : LIBRARY_LARGE;
    pieces.bytes = recipe.library_bytes + LIBRARY_ALIGN;
    /* Whoever plans these for many rows may run the last few with the same workspace, and those are
     * the library's. */
    bool wide = min_i64(p->m, p->n) > THIN_NARROW || !p->a.is_bf16 || !p->b.is_bf16;
    bool suits = p->m % 8 == 0 && p->n % 8 == 0 && wide; /* the library */
    recipe.thin = p->ta && !p->tb && p->batch == 1 && p->k >= THIN_DEPTH && p->m <= THIN_SIDE &&
                  p->n <= THIN_SIDE && p->m * p->n <= THIN_VALUES && !suits;
    int64_t sums = p->batch * p->m * p->n * (int64_t)sizeof(float);
    if (recipe.thin) pieces.bytes = max_i64(pieces.bytes, ceil_div(p->k, thin_band(p)) * sums);
    if (recipe.thin) return recipe;
    bool is_bf16 = p->a.is_bf16 && p->b.is_bf16, extras = p->gelu || p->bias.data || p->pre.data;
    if (is_bf16 && flops >= PAD_FLOPS) pad_product(p, &recipe);
    if (recipe.sums_apart) return recipe;
    recipe.widen_a = p->a.is_bf16 && !is_bf16;
    recipe.widen_b = p->b.is_bf16 && !is_bf16;
    /* Whether the library's epilogue can do all that is asked of a bf16 result: the kept values'
     * rows must start at multiples of 16 bytes. */
    bool one = p->batch == 1 || !(p->gelu || p->gelu_back || p->pre.data);
    bool fits = one && p->n % 8 == 0 && p->c.ld % 8 == 0;
    recipe.finish = is_bf16 && p->c.is_bf16 ? extras && !fits : extras || p->c.is_bf16;
    /* Before gelu's slope c, in bf16, takes the sums: finish_values reads them there. */
    recipe.sums_apart = recipe.finish && p->c.is_bf16 && !(p->gelu_back && is_bf16);
    recipe.round_bias = !recipe.finish && p->bias.data && !p->bias.is_bf16;
    if (recipe.widen_a) pieces.take(&recipe.a_copy, a_values(p) * (int64_t)sizeof(float));
    if (recipe.widen_b) pieces.take(&recipe.b_copy, b_values(p) * (int64_t)sizeof(float));
    if (recipe.round_bias) pieces.take(&recipe.bias_copy, bias_values(p) * (int64_t)sizeof(bf16));
    if (recipe.sums_apart) pieces.take(&recipe.sums, sums);
    return recipe;
}

int64_t gemm_workspace(const cuda_gemm &p) {
    return make_recipe(&p, NULL).pieces.bytes;
}

/* From bf16 to f32 or back. */
static __global__ void convert_values(int64_t n, any_tensor from, any_tensor to) {
    for (int64_t i = thread_index(); i < n; i += thread_count())
        store_any(to, i, load_any(from, i));
}

/* Rows of a batch's matrices into longer and more ones, which are 0 elsewhere. */
static __global__ void pad_rows(cuda_gemm_matrix from, int64_t rows, int64_t columns, bf16 *to,
                                int64_t to_rows, int64_t to_columns, int64_t count) {
    for (int64_t i = thread_index() * VECTOR; i < count; i += thread_count() * VECTOR) {
        int64_t line = quotient(i, to_columns), column = i - line * to_columns;
        int64_t g = quotient(line, to_rows), row = line - g * to_rows;
        const bf16 *own = (const bf16 *)from.data + g * from.stride + row * from.ld + column;
        float v[VECTOR];
#pragma unroll
        for (int j = 0; j < VECTOR; j++)
            v[j] = row < rows && column + j < columns ? to_float(own[j]) : 0.0f;
        store_vector(to + i, v);
    }
}

/* `sums` may be c itself: each element is read and written by one thread. */
static __global__ void finish_values(finishing f, any_tensor sums, int64_t ld, int64_t stride,
                                     int64_t batch, int64_t m, int64_t n) {
    int64_t pieces = ceil_div(n, FINISH_COLUMNS);
    for (int64_t i = thread_index(); i < batch * m * pieces; i += thread_count()) {
        int64_t line = quotient(i, pieces), g = quotient(line, m);
        int64_t first = (i - line * pieces) * FINISH_COLUMNS, row = line - g * m;
        int64_t at = g * stride + row * ld + first;
#pragma unroll
        for (int j = 0; j < FINISH_COLUMNS; j++)
            if (first + j < n) finish_value(f, g, row, first + j, load_any(sums, at + j));
    }
}

/* A small result of long sums (the gradient of a gate's weights: sums over all tokens), whose rows
 * start anywhere: a block sums a band of k. */
static __global__ void multiply_bands(few_rows f, int64_t band, float *sums) {
    __shared__ float a[THIN_ROWS][THIN_SIDE], b[THIN_ROWS][THIN_SIDE];
    int m = (int)f.m, n = (int)f.n, values = m * n;
    int64_t end = min_i64(((int64_t)blockIdx.x + 1) * band, f.k);
    float sum[THIN_VALUES / THREADS] = {};
    for (int64_t first = (int64_t)blockIdx.x * band; first < end; first += THIN_ROWS) {
        int rows = (int)min_i64(THIN_ROWS, end - first);
        for (int i = threadIdx.x; i < rows * m; i += THREADS)
            a[i / m][i % m] = load_any(f.a, (first + i / m) * f.a_ld + i % m);
        for (int i = threadIdx.x; i < rows * n; i += THREADS)
            b[i / n][i % n] = load_any(f.b, (first + i / n) * f.b_ld + i % n);
        __syncthreads();
#pragma unroll
        for (int t = 0; t < THIN_VALUES / THREADS; t++) {
            int at = threadIdx.x + t * THREADS;
            if (at >= values) break;
            for (int r = 0; r < rows; r++)
                sum[t] = fmaf(a[r][at / n], b[r][at % n], sum[t]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int t = 0; t < THIN_VALUES / THREADS; t++)
        if (threadIdx.x + t * THREADS < values)
            sums[(int64_t)blockIdx.x * values + threadIdx.x + t * THREADS] = sum[t];
}

/* The bands' sums are added in order, 32 values per block. */
static __global__ void add_bands(int values, int n, int bands, const float *sums, finishing end) {
    __shared__ float parts[ADD_WARPS][33];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, at = (int)blockIdx.x * 32 + lane;
    float sum = 0;
#pragma unroll 8
    for (int i = warp; i < bands; i += ADD_WARPS)
        sum += at < values ? sums[(int64_t)i * values + at] : 0.0f;
    parts[warp][lane] = sum;
    __syncthreads();
    at = (int)blockIdx.x * 32 + warp;
    sum = warp_sum(parts[lane][warp]);
    if (lane == 0 && at < values) finish_value(end, 0, at / n, at % n, end.alpha * sum);
}

/* Any product, slowly. */
static __global__ void multiply_tiles(few_rows f, bool ta, bool tb, finishing end) {
    __shared__ float a[TILE][TILE + 1], b[TILE][TILE + 1];
    int64_t column = (int64_t)blockIdx.x * TILE, row = (int64_t)blockIdx.y * TILE, g = blockIdx.z;
    int x = threadIdx.x, y = threadIdx.y;
    float sums[TILE / TILE_ROWS] = {};
    for (int64_t depth = 0; depth < f.k; depth += TILE) {
        for (int i = y; i < TILE; i += TILE_ROWS) {
            /* x runs along what is contiguous: k, or a row of the transposed factor. */
            int64_t a_row = row + (ta ? x : i), a_k = depth + (ta ? i : x);
            int64_t b_column = column + (tb ? i : x), b_k = depth + (tb ? x : i);
            bool a_in = a_row < f.m && a_k < f.k, b_in = b_column < f.n && b_k < f.k;
            int64_t a_at = ta ? a_k * f.a_ld + a_row : a_row * f.a_ld + a_k;
            int64_t b_at = tb ? b_column * f.b_ld + b_k : b_k * f.b_ld + b_column;
            a[ta ? x : i][ta ? i : x] = a_in ? load_any(f.a, g * f.a_stride + a_at) : 0;
            b[tb ? x : i][tb ? i : x] = b_in ? load_any(f.b, g * f.b_stride + b_at) : 0;
        }
        __syncthreads();
        for (int k = 0; k < TILE; k++)
#pragma unroll
            for (int i = 0; i < TILE / TILE_ROWS; i++)
                sums[i] = fmaf(a[y + i * TILE_ROWS][k], b[k][x], sums[i]);
        __syncthreads();
    }
    for (int i = 0; i < TILE / TILE_ROWS; i++) {
        int64_t r = row + y + i * TILE_ROWS;
        if (r < f.m && column + x < f.n) finish_value(end, g, r, column + x, end.alpha * sums[i]);
    }
}

/* A matrix in its other type, at `to`. */
static void convert_matrix(cudaStream_t stream, cuda_gemm_matrix *x, int64_t values, void *to) {
    convert_values<<<grid_for(values, THREADS), THREADS, 0, stream>>>(
        values, any_tensor{x->data, x->is_bf16}, any_tensor{to, !x->is_bf16});
    x->data = to;
    x->is_bf16 = !x->is_bf16;
}

/* rows × columns of a factor into `to`, rows × columns there. */
static void pad_factor(cudaStream_t stream, cuda_gemm_matrix *x, int64_t batch, int64_t rows,
                       int64_t columns, int64_t to_rows, int64_t to_columns, void *to) {
    int64_t count = batch * to_rows * to_columns;
    pad_rows<<<grid_for(count / VECTOR, THREADS), THREADS, 0, stream>>>(
        *x, rows, columns, (bf16 *)to, to_rows, to_columns, count);
    *x = cuda_gemm_matrix{to, to_columns, to_rows * to_columns, true};
}

/* The product without what comes after its sums. */
static void leave_sums(cuda_gemm *p) {
    p->gelu = p->gelu_back = false;
    p->bias.data = p->pre.data = NULL;
}

static weft_status run_with_library(cudaStream_t stream, const cuda_gemm *p,
                                    const gemm_recipe *recipe) {
    cuda_gemm q = *p;
    bool found;
    if (recipe->widen_a) convert_matrix(stream, &q.a, a_values(p), recipe->a_copy);
    if (recipe->widen_b) convert_matrix(stream, &q.b, b_values(p), recipe->b_copy);
    if (recipe->round_bias) convert_matrix(stream, &q.bias, bias_values(p), recipe->bias_copy);
    if (recipe->copy_a)
        pad_factor(stream, &q.a, p->batch, p->ta ? p->k : p->m, p->ta ? p->m : p->k,
                   p->ta ? recipe->k : recipe->m, p->ta ? recipe->m : recipe->k, recipe->a_copy);
    if (recipe->copy_b)
        pad_factor(stream, &q.b, p->batch, p->tb ? p->n : p->k, p->tb ? p->k : p->n,
                   p->tb ? recipe->n : recipe->k, p->tb ? recipe->k : recipe->n, recipe->b_copy);
    if (recipe->padded) q.m = recipe->m, q.n = recipe->n, q.k = recipe->k;
    if (recipe->sums_apart) {
        q.c = cuda_gemm_matrix{recipe->sums, q.n, q.m * q.n, false};
        q.addend.data = NULL;
        q.accumulate = false;
    }
    if (recipe->finish) leave_sums(&q);
    char *workspace = recipe->pieces.base;
    char *aligned =
        workspace + (LIBRARY_ALIGN - (uintptr_t)workspace % LIBRARY_ALIGN) % LIBRARY_ALIGN;
    bool finish = recipe->finish;
    WEFT_TRY(library_run(stream, &q, aligned, recipe->library_bytes, &found));
    if (!found && q.gelu_back) {
        finish = true;
        leave_sums(&q);
        WEFT_TRY(library_run(stream, &q, aligned, recipe->library_bytes, &found));
    }
    finishing f = describe_finish(p);
    if (!found) {
        dim3 grid((unsigned)ceil_div(p->n, TILE), (unsigned)ceil_div(p->m, TILE),
                  (unsigned)p->batch);
        multiply_tiles<<<grid, dim3(TILE, TILE_ROWS), 0, stream>>>(few_describe(p), p->ta, p->tb,
                                                                   f);
    } else if (finish) {
        int64_t pieces = p->batch * p->m * ceil_div(p->n, FINISH_COLUMNS);
        if (!recipe->sums_apart) f.accumulate = false, f.addend.data = NULL; /* they have those */
        finish_values<<<grid_for(pieces, THREADS), THREADS, 0, stream>>>(
            f, any_tensor{q.c.data, q.c.is_bf16}, q.c.ld, q.c.stride, p->batch, p->m, p->n);
    }
    return WEFT_OK;
}

/* Whether only streamed.cuh can. */
static bool is_folded(const cuda_gemm *p) {
    return p->norm.moments || p->moments || p->group || p->gate.of.data || p->rope;
}

bool gemm_joins(const cuda_gemm *p) {
    bool few = p->batch == 1 && p->tb && !p->ta && !p->b.is_i8 && p->m <= GEMM_FEW_ROWS &&
               few_has_tensor(p) && !is_folded(p);
    return p->follows && p->steady && !p->accumulate && !p->gate.of.data && !p->rope &&
           (few || (streamed_can(p) && p->m <= GEMM_STREAMED_ROWS));
}

void gemm_run_together(const weft_exec *x, const cuda_gemm *p, int n) {
    bool streamed = true;
    for (int i = 0; i < n; i++)
        streamed = streamed && streamed_can(&p[i]);
    if (streamed)
        streamed_launch(stream_of(x), p, n);
    else
        run_few_together(stream_of(x), p, n);
}

weft_status gemm_launch(cudaStream_t stream, const cuda_gemm &product, void *workspace) {
    const cuda_gemm *p = &product;
    gemm_recipe recipe = make_recipe(p, workspace);
    if (is_folded(p) && !(recipe.few_rows && streamed_can(p)))
        return weft_fail(WEFT_EBUG, "cuda: a product of %lld × %lld has no norm or map behind it",
                         (long long)p->n, (long long)p->k);
    if (recipe.i8) {
        run_i8_rows(stream, p, (char *)workspace);
    } else if (recipe.few_rows && streamed_can(p)) {
        streamed_launch(stream, p, 1);
    } else if (recipe.few_rows) {
        run_few_rows(stream, p);
    } else if (recipe.thin) {
        int64_t band = thin_band(p), bands = ceil_div(p->k, band), values = p->m * p->n;
        float *sums = (float *)workspace;
        multiply_bands<<<(unsigned)bands, THREADS, 0, stream>>>(few_describe(p), band, sums);
        add_bands<<<(unsigned)ceil_div(values, 32), ADD_WARPS * 32, 0, stream>>>(
            (int)values, (int)p->n, (int)bands, sums, describe_finish(p));
    } else {
        WEFT_TRY(run_with_library(stream, p, &recipe));
    }
    return check_cuda(cudaGetLastError(), "a matrix product did not start");
}
