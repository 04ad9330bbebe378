/* Cosine InfoNCE on the GPU. The rows are normalised once into the workspace, u. The scores u uᵀ/τ
 * are made in tiles, a block each. Forward a tile's part of each row's logsumexp is kept, and the
 * parts are joined in order. Backward a tile becomes weights W, in the workspace for a band of
 * rows at a time, and du = W u is made in tiles again; what of du lies along u is Σ_j w_ij s_ij, so
 * that the tiles of W know it already.
 *
 * With N rows of D numbers the floor is N²D multiply-adds forward, twice that backward: a few
 * microseconds for 256 rows of 384, the largest model of the benchmarks, whose rows stay in the
 * caches. What is left are the waits between one kernel and the next; so several losses, a layer's
 * each, go through the kernels together, blockIdx.z the loss. */
#include "cuda/pack.cuh"

enum {
    BLOCK = 256,
    TILE = 32,         /* rows and columns of a block's result: a warp has four rows of it */
    CHUNK = 128,       /* terms of the sums that a block holds */
    PITCH = CHUNK + 4, /* their distance: so that eight rows beside each other share no bank */
    GROUPS = 4,        /* quarters of the block, which share out a chunk */
    EACH = 4,          /* a thread has EACH × EACH sums of its quarter */
    WEIGHTS = 1 << 20  /* weights in the workspace at a time, or TILE rows of them */
};

/* The largest score so far, and Σ of the others' exponentials beside it. A row's own score is mostly
 * the largest and the rest tiny: 1 + rest would lose it, and log1p puts it back. */
struct best_and_rest {
    float top, rest;
};

struct contrast {
    int64_t losses, rows, width;
    int64_t group; /* weft_infonce's */
    float inverse_tau;
    any_tensor x, dx;
    float *u; /* [L, N, D] */
    float *norm, *lse;
    /* forward */
    best_and_rest *parts; /* [L, tiles, N] */
    float *own;           /* [L, N]: a row's score with its positive */
    double *loss;         /* [L, N] */
    /* backward */
    float *weights; /* [L, a band's rows, N] */
    float *along;   /* [L, tiles, N]: parts of u·du */
    const float *dy;
    double factor; /* of the sum of losses; backward of dy */
};

/* The loss that the block works on, as if it were the only one; x and dx are left whole. */
__device__ static inline contrast take_loss(contrast k, int64_t band) {
    int64_t l = blockIdx.z, tiles = ceil_div(k.rows, TILE);
    k.u += l * k.rows * k.width;
    k.norm += l * k.rows;
    k.lse += l * k.rows;
    k.parts += l * tiles * k.rows;
    k.own += l * k.rows;
    k.weights += l * band * k.rows;
    k.along += l * tiles * k.rows;
    return k;
}

/* A block a row: u = x / n; `measure`: makes the norm. */
static __global__ void normalise_rows(contrast k, bool measure) {
    int64_t start = blockIdx.x * k.width;
    double squares = 0;
    for (int64_t d = threadIdx.x; measure && d < k.width; d += BLOCK) {
        double v = load_any(k.x, start + d);
        squares += v * v;
    }
    float norm;
    if (measure) {
        squares = block_sum_double(squares);
        norm = (float)fmax(sqrt(squares), WEFT_INFONCE_NORM_MIN);
        if (threadIdx.x == 0) k.norm[blockIdx.x] = norm;
    } else {
        norm = k.norm[blockIdx.x];
    }
    for (int64_t d = threadIdx.x; d < k.width; d += BLOCK)
        k.u[start + d] = load_any(k.x, start + d) / norm;
}

/* Two factors of TILE rows of CHUNK numbers, and later the quarters' sums in their place. */
union alignas(16) tile_memory {
    struct {
        float a[TILE][PITCH], b[TILE][PITCH];
    } factors;
    float sums[GROUPS][TILE][TILE];
};

/* CHUNK columns from `column` on of TILE rows from `row` on, or, TRANSPOSED, TILE columns of CHUNK
 * rows; zeros behind the ends. */
template <bool TRANSPOSED>
__device__ static inline void fill_factor(float (&to)[TILE][PITCH], const float *from, int64_t row,
                                          int64_t rows, int64_t column, int64_t width) {
    constexpr int ACROSS = TRANSPOSED ? TILE : CHUNK;
#pragma unroll
    for (int i = 0; i < TILE * CHUNK / BLOCK; i++) {
        int r = (i * BLOCK + (int)threadIdx.x) / ACROSS, c = (int)threadIdx.x % ACROSS;
        bool there = row + r < rows && column + c < width;
        to[TRANSPOSED ? c : r][TRANSPOSED ? r : c] =
            there ? from[(row + r) * width + column + c] : 0.0f;
    }
}

/* A thread's sums grow by its quarter's share of the chunk: rows y, y + 8, .. of a with rows x,
 * x + 8, .. of b. */
__device__ static inline void add_products(const tile_memory &m, float (&sums)[EACH][EACH]) {
    int group = threadIdx.x / (BLOCK / GROUPS), x = threadIdx.x % 8, y = threadIdx.x / 8 % 8;
#pragma unroll
    for (int at = 0; at < CHUNK / GROUPS; at += 4) {
        float4 a[EACH], b[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            a[i] = *(const float4 *)&m.factors.a[y + 8 * i][group * (CHUNK / GROUPS) + at];
            b[i] = *(const float4 *)&m.factors.b[x + 8 * i][group * (CHUNK / GROUPS) + at];
        }
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                sums[i][j] = fmaf(a[i].x, b[j].x, sums[i][j]);
                sums[i][j] = fmaf(a[i].y, b[j].y, sums[i][j]);
                sums[i][j] = fmaf(a[i].z, b[j].z, sums[i][j]);
                sums[i][j] = fmaf(a[i].w, b[j].w, sums[i][j]);
            }
    }
}

__device__ static inline float result(const tile_memory &m, int row, int column) {
    float sum = 0;
#pragma unroll
    for (int group = 0; group < GROUPS; group++)
        sum += m.sums[group][row][column];
    return sum;
}

/* TILE rows from i on of a [a_rows, terms] times TILE rows from j on of b [b_rows, terms], or,
 * TRANSPOSED, TILE columns from j on of b [terms, b_rows]. */
template <bool TRANSPOSED>
__device__ static inline void multiply_tiles(tile_memory &m, const float *a, int64_t i,
                                             int64_t a_rows, const float *b, int64_t j,
                                             int64_t b_rows, int64_t terms) {
    float sums[EACH][EACH] = {};
    for (int64_t at = 0; at < terms; at += CHUNK) {
        if (at > 0) __syncthreads();
        fill_factor<false>(m.factors.a, a, i, a_rows, at, terms);
        if (TRANSPOSED)
            fill_factor<true>(m.factors.b, b, at, terms, j, b_rows);
        else
            fill_factor<false>(m.factors.b, b, j, b_rows, at, terms);
        __syncthreads();
        add_products(m, sums);
    }
    /* The quarters' sums to where result() finds them. */
    int group = threadIdx.x / (BLOCK / GROUPS), x = threadIdx.x % 8, y = threadIdx.x / 8 % 8;
    __syncthreads();
#pragma unroll
    for (int r = 0; r < EACH; r++)
#pragma unroll
        for (int c = 0; c < EACH; c++)
            m.sums[group][y + 8 * r][x + 8 * c] = sums[r][c];
    __syncthreads();
}

static __device__ inline best_and_rest join_scores(best_and_rest a, best_and_rest b) {
    if (a.top < b.top) {
        best_and_rest other = a;
        a = b;
        b = other;
    }
    if (b.top > -INFINITY) a.rest += (1 + b.rest) * expf(b.top - a.top);
    return a;
}

/* Of a warp's lanes; the first one's result counts. */
static __device__ inline best_and_rest join_lanes(best_and_rest all) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        best_and_rest other = {__shfl_xor_sync(0xffffffffu, all.top, step),
                               __shfl_xor_sync(0xffffffffu, all.rest, step)};
        all = join_scores(all, other);
    }
    return all;
}

static __global__ void __launch_bounds__(BLOCK) score_tiles(contrast all_losses) {
    __shared__ tile_memory m;
    contrast k = take_loss(all_losses, 0);
    int64_t first = (int64_t)blockIdx.x * TILE, j = (int64_t)blockIdx.y * TILE;
    int lane = threadIdx.x % 32;
    multiply_tiles<false>(m, k.u, first, k.rows, k.u, j, k.rows, k.width);
    j += lane;
    for (int row = threadIdx.x / 32; row < TILE; row += BLOCK / 32) {
        int64_t i = first + row;
        float score = result(m, row, lane) * k.inverse_tau;
        bool compared = j < k.rows && weft_infonce_compares(k.group, i, j);
        best_and_rest all = join_lanes(best_and_rest{compared ? score : -INFINITY, 0});
        if (i >= k.rows) break;
        if (weft_infonce_other(k.group, i) == j) k.own[i] = score;
        if (lane == 0) k.parts[blockIdx.y * k.rows + i] = all;
    }
}

/* A warp a row: its logsumexp and its loss. */
static __global__ void join_tiles(contrast k) {
    int64_t i = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) / 32, tiles = ceil_div(k.rows, TILE);
    if (i >= k.losses * k.rows) return;
    int64_t l = i / k.rows, at = (l * tiles - l) * k.rows + i; /* of its first tile's part */
    best_and_rest all = {-INFINITY, 0};
    for (int64_t t = threadIdx.x % 32; t < tiles; t += 32)
        all = join_scores(all, k.parts[at + t * k.rows]);
    all = join_lanes(all);
    if (threadIdx.x % 32 > 0) return;
    double rest = log1p((double)all.rest);
    bool anchor = weft_infonce_is_anchor(k.group, i - l * k.rows);
    k.lse[i] = anchor ? (float)((double)all.top + rest) : INFINITY;
    k.loss[i] = anchor ? (double)(all.top - k.own[i]) + rest : 0;
}

static __global__ void sum_losses(contrast k, float *y) {
    double sum = sum_by_block<BLOCK>(k.loss, k.losses * k.rows);
    if (threadIdx.x == 0) *y = (float)(k.factor * sum);
}

/* Rows of each loss whose weights are made at a time. */
static int64_t band_of(const contrast *k) {
    int64_t fit = WEIGHTS / (k->losses * k->rows) / TILE;
    return min_i64(ceil_div(k->rows, TILE), max_i64(1, fit)) * TILE;
}

/* Divides the workspace of a pass; without one (NULL) only measures it. Returns its bytes. */
static int64_t place_pieces(contrast *k, bool back, char *workspace) {
    workspace_pieces pieces = {workspace, 0};
    int64_t all = k->losses * k->rows, tiles = ceil_div(k->rows, TILE);
    pieces.take(&k->u, all * k->width);
    if (back) {
        pieces.take(&k->weights, band_of(k) * all);
        pieces.take(&k->along, tiles * all);
    } else {
        pieces.take(&k->parts, tiles * all);
        pieces.take(&k->own, all);
        pieces.take(&k->loss, all);
    }
    return pieces.bytes;
}

static contrast sizes_of(const weft_node *n, const weft_tensor *x) {
    weft_infonce_sizes s = weft_infonce_measure(x);
    contrast k = {};
    k.losses = s.losses, k.rows = s.rows, k.width = s.width;
    k.group = ATTR(n, weft_infonce_attr)->group;
    k.inverse_tau = (float)(1 / ATTR(n, weft_infonce_attr)->tau);
    return k;
}

/* How many rows the mean is over. */
static double anchors(const contrast *k) {
    return (double)(k->group ? k->rows / 2 : k->rows);
}

static int64_t pass_bytes(const weft_node *n, const weft_tensor *x, bool back) {
    contrast k = sizes_of(n, x);
    return place_pieces(&k, back, NULL);
}

CUDA_RUN_WITH(infonce, pass_bytes(n, n->in[0], false)) {
    contrast k = sizes_of(n, n->in[0]);
    float *y = data_of<float>(x, n->out[WEFT_INFONCE_Y]);
    if (!n->out[WEFT_INFONCE_LSE]) {
        k.rows = 0;
        sum_losses<<<1, BLOCK, 0, stream_of(x)>>>(k, y);
        return launched(n);
    }
    place_pieces(&k, false, workspace_of<char>(x, n));
    k.x = any_of(x, n->in[0]);
    k.norm = data_of<float>(x, n->out[WEFT_INFONCE_NORM]);
    k.lse = data_of<float>(x, n->out[WEFT_INFONCE_LSE]);
    k.factor = ATTR(n, weft_infonce_attr)->factor / anchors(&k);
    unsigned tiles = (unsigned)ceil_div(k.rows, TILE);
    unsigned losses = (unsigned)k.losses, rows = (unsigned)(k.losses * k.rows);
    normalise_rows<<<rows, BLOCK, 0, stream_of(x)>>>(k, true);
    score_tiles<<<dim3(tiles, tiles, losses), BLOCK, 0, stream_of(x)>>>(k);
    join_tiles<<<(unsigned)ceil_div(rows, BLOCK / 32), BLOCK, 0, stream_of(x)>>>(k);
    sum_losses<<<1, BLOCK, 0, stream_of(x)>>>(k, y);
    return launched(n);
}

/* The weights of the band's rows, `begin` the first of them, and their parts of u·du. */
static __global__ void __launch_bounds__(BLOCK)
    weight_tiles(contrast all_losses, int64_t begin, int64_t band) {
    __shared__ tile_memory m;
    contrast k = take_loss(all_losses, band);
    int64_t first = begin + (int64_t)blockIdx.x * TILE, j = (int64_t)blockIdx.y * TILE;
    int lane = threadIdx.x % 32;
    multiply_tiles<false>(m, k.u, first, k.rows, k.u, j, k.rows, k.width);
    j += lane;
    float slope = (float)((double)*k.dy * k.factor), lse = j < k.rows ? k.lse[j] : 0.0f;
    for (int row = threadIdx.x / 32; row < TILE; row += BLOCK / 32) {
        int64_t i = first + row;
        if (i >= k.rows) break;
        float cosine = result(m, row, lane), score = cosine * k.inverse_tau, weight = 0;
        if (j < k.rows) {
            float p = expf(score - k.lse[i]) + expf(score - lse);
            float own = k.group ? slope : 2 * slope;
            if (weft_infonce_compares(k.group, i, j))
                weight = p * slope - (weft_infonce_other(k.group, i) == j ? own : 0.0f);
            k.weights[(i - begin) * k.rows + j] = weight;
        }
        float along = warp_sum(weight * cosine);
        if (lane == 0) k.along[blockIdx.y * k.rows + i] = along;
    }
}

/* TILE columns of dx of TILE of the band's rows, from du = W u; `rows` is how many it has. */
static __global__ void __launch_bounds__(BLOCK)
    gradient_tiles(contrast all_losses, int64_t begin, int64_t rows, int64_t band) {
    __shared__ tile_memory m;
    contrast k = take_loss(all_losses, band);
    int64_t first = (int64_t)blockIdx.x * TILE, column = (int64_t)blockIdx.y * TILE;
    int64_t tiles = ceil_div(k.rows, TILE);
    int lane = threadIdx.x % 32;
    multiply_tiles<true>(m, k.weights, first, rows, k.u, column, k.width, k.rows);
    column += lane;
    for (int row = threadIdx.x / 32; row < TILE; row += BLOCK / 32) {
        int64_t i = begin + first + row;
        if (i >= k.rows || first + row >= rows) break;
        float along = 0, norm = k.norm[i];
        for (int64_t t = lane; t < tiles; t += 32)
            along += k.along[t * k.rows + i];
        along = warp_sum(along);
        if (!(norm > (float)WEFT_INFONCE_NORM_MIN)) along = 0;
        if (column >= k.width) continue;
        float u = k.u[i * k.width + column];
        store_any(k.dx, (blockIdx.z * k.rows + i) * k.width + column,
                  (result(m, row, lane) - u * along) / norm);
    }
}

CUDA_RUN_WITH(infonce_back, pass_bytes(n, n->in[WEFT_INFONCE_BACK_X], true)) {
    const weft_infonce_attr *attr = ATTR(n, weft_infonce_attr);
    contrast k = sizes_of(n, n->in[WEFT_INFONCE_BACK_X]);
    place_pieces(&k, true, workspace_of<char>(x, n));
    k.x = any_of(x, n->in[WEFT_INFONCE_BACK_X]);
    k.norm = data_of<float>(x, n->in[WEFT_INFONCE_BACK_NORM]);
    k.lse = data_of<float>(x, n->in[WEFT_INFONCE_BACK_LSE]);
    k.dy = data_of<float>(x, n->in[WEFT_INFONCE_BACK_DY]);
    k.dx = any_of(x, n->out[0]);
    k.factor = attr->factor / (anchors(&k) * attr->tau);
    int64_t band = band_of(&k);
    unsigned tiles = (unsigned)ceil_div(k.rows, TILE), losses = (unsigned)k.losses;
    normalise_rows<<<(unsigned)(k.losses * k.rows), BLOCK, 0, stream_of(x)>>>(k, false);
    for (int64_t begin = 0; begin < k.rows; begin += band) {
        int64_t rows = min_i64(band, k.rows - begin);
        unsigned bands = (unsigned)ceil_div(rows, TILE);
        dim3 parts(bands, (unsigned)ceil_div(k.width, TILE), losses);
        weight_tiles<<<dim3(bands, tiles, losses), BLOCK, 0, stream_of(x)>>>(k, begin, band);
        gradient_tiles<<<parts, BLOCK, 0, stream_of(x)>>>(k, begin, rows, band);
    }
    return launched(n);
}
