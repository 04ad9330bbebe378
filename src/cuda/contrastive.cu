/* Cosine InfoNCE on the GPU. The rows are normalised once into the workspace; then a block a row
 * goes through all others, a warp a score at a time, and no score is kept longer than its tile. With
 * N rows of D numbers the floor is N²D multiply-adds forward, twice that backward; the rows
 * themselves (256 of 384 in the largest model of the benchmarks) stay in the caches. */
#include "cuda/pack.cuh"

extern "C" {
#include "ops/contrastive.h"
}

enum {
    WARPS = 8,
    BLOCK = 32 * WARPS,
    TILE = 64 /* scores a block of the backward pass holds */
};

struct contrast {
    int64_t rows, width;
    float inverse_tau;
    any_tensor x, dx;
    float *u, *du; /* [N, D] */
    float *norm, *lse;
    double *loss; /* [N] */
    const float *dy;
    double factor; /* of the sum of losses; backward of dy */
};

/* A block a row: u = x / n; `measure`: makes the norm. */
static __global__ void normalise_rows(contrast k, bool measure) {
    __shared__ double shared[32];
    int64_t start = blockIdx.x * k.width;
    double squares = 0;
    for (int64_t d = threadIdx.x; measure && d < k.width; d += BLOCK) {
        double v = load_any(k.x, start + d);
        squares += v * v;
    }
    float norm;
    if (measure) {
        squares = block_sum_double(squares, shared);
        norm = (float)fmax(sqrt(squares), WEFT_INFONCE_NORM_MIN);
        if (threadIdx.x == 0) k.norm[blockIdx.x] = norm;
    } else {
        norm = k.norm[blockIdx.x];
    }
    for (int64_t d = threadIdx.x; d < k.width; d += BLOCK)
        k.u[start + d] = load_any(k.x, start + d) / norm;
}

/* s_ij/τ by a warp; every lane gets it. */
static __device__ inline float score_of(const contrast &k, int64_t i, int64_t j) {
    const float *a = k.u + i * k.width, *b = k.u + j * k.width;
    float sum = 0;
    for (int64_t d = threadIdx.x % 32; d < k.width; d += 32)
        sum += a[d] * b[d];
    return warp_sum(sum) * k.inverse_tau;
}

/* The largest score so far, and Σ of the others' exponentials beside it. A row's own score is mostly
 * the largest and the rest tiny: 1 + rest would lose it, and log1p puts it back. */
struct best_and_rest {
    float top, rest;
};

static __device__ inline best_and_rest join_scores(best_and_rest a, best_and_rest b) {
    if (a.top < b.top) {
        best_and_rest other = a;
        a = b;
        b = other;
    }
    if (b.top > -INFINITY) a.rest += (1 + b.rest) * expf(b.top - a.top);
    return a;
}

/* A block a row: its logsumexp and its loss. */
static __global__ void row_losses(contrast k) {
    __shared__ best_and_rest shared[WARPS];
    __shared__ float own;
    int64_t i = blockIdx.x;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    best_and_rest all = {-INFINITY, 0};
    for (int64_t j = warp; j < k.rows; j += WARPS) {
        float score = score_of(k, i, j);
        if (j == i && lane == 0) own = score;
        all = join_scores(all, best_and_rest{score, 0});
    }
    if (lane == 0) shared[warp] = all;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int w = 1; w < WARPS; w++)
        all = join_scores(all, shared[w]);
    double rest = log1p((double)all.rest);
    k.lse[i] = (float)((double)all.top + rest);
    k.loss[i] = (double)(all.top - own) + rest;
}

static __global__ void sum_losses(contrast k, float *y) {
    __shared__ double shared[32];
    double sum = 0;
    for (int64_t i = threadIdx.x; i < k.rows; i += BLOCK)
        sum += k.loss[i];
    sum = block_sum_double(sum, shared);
    if (threadIdx.x == 0) *y = (float)(k.factor * sum);
}

/* The workspace: u, du backward, the losses forward. */
static int64_t contrast_values(const weft_tensor *x) {
    return align_bytes(weft_tensor_count(x) * (int64_t)sizeof(float));
}

static int64_t infonce_workspace(const weft_node *n, int threads) {
    (void)threads;
    return contrast_values(n->in[0]) + n->in[0]->shape[0] * (int64_t)sizeof(double);
}

static contrast contrast_of(weft_exec *x, const weft_node *n, const weft_tensor *from) {
    contrast k = {};
    k.rows = from->shape[0];
    k.width = from->shape[1];
    k.inverse_tau = (float)(1 / ATTR(n, weft_infonce_attr)->tau);
    k.x = any_of(x, from);
    k.u = workspace_of<float>(x, n);
    return k;
}

static weft_status infonce_run(weft_exec *x, const weft_node *n) {
    contrast k = contrast_of(x, n, n->in[0]);
    float *y = data_of<float>(x, n->out[WEFT_INFONCE_Y]);
    if (!n->out[WEFT_INFONCE_LSE]) {
        k.rows = 0;
        sum_losses<<<1, BLOCK, 0, stream_of(x)>>>(k, y);
        return launched(n);
    }
    k.loss = (double *)(workspace_of<char>(x, n) + contrast_values(n->in[0]));
    k.norm = data_of<float>(x, n->out[WEFT_INFONCE_NORM]);
    k.lse = data_of<float>(x, n->out[WEFT_INFONCE_LSE]);
    k.factor = ATTR(n, weft_infonce_attr)->factor / (double)k.rows;
    normalise_rows<<<(unsigned)k.rows, BLOCK, 0, stream_of(x)>>>(k, true);
    row_losses<<<(unsigned)k.rows, BLOCK, 0, stream_of(x)>>>(k);
    sum_losses<<<1, BLOCK, 0, stream_of(x)>>>(k, y);
    return launched(n);
}

CUDA_KERNEL(infonce, infonce_run, infonce_workspace)

/* dx of the block's row from its finished du. */
static __device__ inline void write_dx(const contrast &k, int64_t i, const float *du,
                                       float *shared) {
    const float *u = k.u + i * k.width;
    float along = 0, norm = k.norm[i];
    for (int64_t d = threadIdx.x; d < k.width; d += BLOCK)
        along += u[d] * du[d];
    along = block_sum(along, shared);
    if (!(norm > (float)WEFT_INFONCE_NORM_MIN)) along = 0;
    for (int64_t d = threadIdx.x; d < k.width; d += BLOCK)
        store_any(k.dx, i * k.width + d, (du[d] - u[d] * along) / norm);
}

/* A block a row: the scores of a tile of others become weights, then each thread adds the tile's
 * share to its columns of du. */
static __global__ void row_gradients(contrast k) {
    __shared__ float weight[TILE], shared[32];
    int64_t i = blockIdx.x;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float slope = (float)((double)*k.dy * k.factor), lse = k.lse[i];
    float *du = k.du + i * k.width;
    for (int64_t first = 0; first < k.rows; first += TILE) {
        int count = (int)min_i64(TILE, k.rows - first);
        for (int j = warp; j < count; j += WARPS) {
            float score = score_of(k, i, first + j);
            float p = expf(score - lse) + expf(score - k.lse[first + j]);
            if (lane == 0) weight[j] = p * slope - (first + j == i ? 2 * slope : 0.0f);
        }
        __syncthreads();
        for (int64_t d = threadIdx.x; d < k.width; d += BLOCK) {
            float sum = first ? du[d] : 0.0f;
            for (int j = 0; j < count; j++)
                sum += weight[j] * k.u[(first + j) * k.width + d];
            du[d] = sum;
        }
        __syncthreads();
    }
    write_dx(k, i, du, shared);
}

static int64_t infonce_back_workspace(const weft_node *n, int threads) {
    (void)threads;
    return 2 * contrast_values(n->in[WEFT_INFONCE_BACK_X]);
}

static weft_status infonce_back_run(weft_exec *x, const weft_node *n) {
    const weft_infonce_attr *attr = ATTR(n, weft_infonce_attr);
    contrast k = contrast_of(x, n, n->in[WEFT_INFONCE_BACK_X]);
    k.du = (float *)(workspace_of<char>(x, n) + contrast_values(n->in[WEFT_INFONCE_BACK_X]));
    k.norm = data_of<float>(x, n->in[WEFT_INFONCE_BACK_NORM]);
    k.lse = data_of<float>(x, n->in[WEFT_INFONCE_BACK_LSE]);
    k.dy = data_of<float>(x, n->in[WEFT_INFONCE_BACK_DY]);
    k.dx = any_of(x, n->out[0]);
    k.factor = attr->factor / ((double)k.rows * attr->tau);
    normalise_rows<<<(unsigned)k.rows, BLOCK, 0, stream_of(x)>>>(k, false);
    row_gradients<<<(unsigned)k.rows, BLOCK, 0, stream_of(x)>>>(k);
    return launched(n);
}

CUDA_KERNEL(infonce_back, infonce_back_run, infonce_back_workspace)
