/* A block a row of logits: its logsumexp in one pass (an online softmax: maximum and sum together, a
 * thread rescaling its sum when it meets a larger logit), and in a second the gradient, where the logits
 * lie. A row of bf16 waits in shared memory meanwhile, so that its logits are read once; others are read
 * again. Floor: the logits read once and written once. */
#include "cuda/loss/entropy_rows.cuh"

#include "cuda/functions.cuh"
#include "cuda/pack.cuh"

enum {
    ROW_THREADS = 512,
    AHEAD = 4,           /* packs a thread has on their way */
    HELD_SPARE = 2 << 10 /* bytes of shared memory that a held row leaves */
};

static __device__ inline float sum_divisor(const entropy_upstream &s) {
    return s.given ? *s.given : (float)*s.count;
}

static __device__ inline float row_penalty(const entropy_upstream &s, bool counts) {
    if (!counts || s.ce_scale == 0) return 0;
    return s.ce_scale * (s.d_ce ? *s.d_ce : 1.0f) / sum_divisor(s);
}

static __device__ inline float row_weight(const entropy_upstream &s, float penalty, int64_t row,
                                          float lse) {
    float weight = penalty;
    if (s.z_scale != 0) weight += s.z_scale * (s.d_z ? *s.d_z : 1.0f) * lse;
    if (s.d_lse) weight += s.d_lse[row];
    return weight;
}

/* A maximum and Σ of the exponentials beside it. */
struct top_sum {
    float top, sum;
};

static __device__ inline top_sum join_tops(top_sum a, top_sum b) {
    float top = fmaxf(a.top, b.top);
    if (top == -INFINITY) return a;
    return top_sum{top, a.sum * __expf(a.top - top) + b.sum * __expf(b.top - top)};
}

static __device__ inline top_sum join_block(top_sum own, top_sum *shared) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        top_sum other = {__shfl_xor_sync(0xffffffffu, own.top, step),
                         __shfl_xor_sync(0xffffffffu, own.sum, step)};
        own = join_tops(own, other);
    }
    if (lane == 0) shared[warp] = own;
    __syncthreads();
    own = shared[0];
    for (int w = 1; w < ROW_THREADS / 32; w++)
        own = join_tops(own, shared[w]);
    return own;
}

/* Adds a pack of n elements. */
static __device__ inline top_sum add_pack(top_sum own, float (&v)[VECTOR], int n) {
    float top = own.top;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        v[i] = i < n ? v[i] : -INFINITY;
        top = fmaxf(top, v[i]);
    }
    if (top == -INFINITY) return own;
    float sum = own.sum * __expf(own.top - top);
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        sum += __expf(v[i] - top);
    return top_sum{top, sum};
}

/* The thread's next AHEAD packs of a row, all on their way before the first is used. */
static __device__ inline void fetch_ahead(const entropy_rows &k, int64_t at, int64_t column,
                                          pack (&p)[AHEAD]) {
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        int64_t next = column + i * ROW_THREADS * VECTOR;
        if (next < k.words) p[i] = fetch_pack(k.l, at + next, pack_length(k.words, next));
    }
}

/* The row's logsumexp. */
static __device__ inline float measure_row(const entropy_rows &k, int64_t at, top_sum *shared) {
    top_sum own = {-INFINITY, 0};
    for (int64_t column = threadIdx.x * VECTOR; column < k.words;
         column += AHEAD * ROW_THREADS * VECTOR) {
        pack p[AHEAD];
        float v[VECTOR];
        fetch_ahead(k, at, column, p);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int n = pack_length(k.words, column + i * ROW_THREADS * VECTOR);
            if (n == 0) break;
            widen_pack(p[i], k.l.is_bf16, v);
            own = add_pack(own, v, n);
        }
    }
    own = join_block(own, shared);
    return own.top + logf(own.sum);
}

static __device__ inline void differentiate_row(const entropy_rows &k, int64_t at, int64_t target,
                                                float lse, float weight, float penalty) {
    for (int64_t first = threadIdx.x * VECTOR; first < k.words;
         first += AHEAD * ROW_THREADS * VECTOR) {
        pack p[AHEAD];
        float v[VECTOR];
        fetch_ahead(k, at, first, p);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int64_t column = first + i * ROW_THREADS * VECTOR;
            int n = pack_length(k.words, column), hit = (int)(target - column);
            if (n == 0) break;
            widen_pack(p[i], k.l.is_bf16, v);
#pragma unroll
            for (int j = 0; j < VECTOR; j++) {
                v[j] = __expf(v[j] - lse) * weight;
                v[j] -= j == hit ? penalty : 0.0f;
            }
            store_pack(k.l, at + column, n, v);
        }
    }
}

/* The thread's packs `first`, first + ROW_THREADS, ... below `end` of a row of bf16, on their way
 * into shared memory. */
static __device__ inline void hold_packs(const bf16 *row, uint4 *held, int first, int end) {
    for (int i = first; i < end; i += ROW_THREADS)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                         (unsigned)__cvta_generic_to_shared(held + i)),
                     "l"(row + (int64_t)i * VECTOR));
    asm volatile("cp.async.commit_group;");
}

/* The first `n` values of a pack of bf16; -inf behind them. */
static __device__ inline void widen_held(uint4 p, int n, float (&v)[VECTOR]) {
    widen_pack(pack{p, make_uint4(0, 0, 0, 0)}, true, v);
    if (n >= VECTOR) return;
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        v[i] = i < n ? v[i] : -INFINITY;
}

/* add_pack in powers of two; maximum and sum of the pack as trees, for short chains. */
static __device__ inline void add_held(top_sum *own, const float (&v)[VECTOR]) {
    float top = fmaxf(fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3])),
                      fmaxf(fmaxf(v[4], v[5]), fmaxf(v[6], v[7])));
    top = fmaxf(top, own->top);
    if (top == -INFINITY) return;
    float e[VECTOR], scaled = top * LOG2E;
    if (top > own->top) own->sum *= power_of_two(own->top * LOG2E - scaled);
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        e[i] = power_of_two(fmaf(v[i], LOG2E, -scaled));
    own->sum += ((e[0] + e[1]) + (e[2] + e[3])) + ((e[4] + e[5]) + (e[6] + e[7]));
    own->top = top;
}

/* A block a row of bf16. A thread sees only the packs that it held itself, so that only the sums
 * of the row wait for others; it begins on the first half of them while the second is on its way. */
static __global__ void __launch_bounds__(ROW_THREADS, 2) entropy_held(entropy_rows k, bool known) {
    extern __shared__ uint4 held[];
    __shared__ top_sum shared[ROW_THREADS / 32];
    int64_t row = k.first + blockIdx.x, target = k.targets[row];
    bf16 *l = (bf16 *)(void *)k.l.data + blockIdx.x * k.ld;
    int packs = (int)(k.ld / VECTOR), words = (int)k.words, first = (int)threadIdx.x;
    int half = (int)ceil_div(packs, 2 * ROW_THREADS) * ROW_THREADS;
    bool counts = target >= 0 && target < k.words;
    hold_packs(l, held, first, half < packs ? half : packs);
    hold_packs(l, held, first + half, packs);
    if (threadIdx.x == 0 && !known) k.target_logit[row] = counts ? to_float(l[target]) : 0.0f;
    top_sum own = {-INFINITY, 0};
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    for (int i = first; i < packs; i += ROW_THREADS) {
        if (i >= half && i < half + ROW_THREADS)
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        if (known) continue;
        float v[VECTOR];
        widen_held(held[i], words - i * VECTOR, v);
        add_held(&own, v);
    }
    float lse;
    if (known) {
        lse = k.lse[row];
    } else {
        own = join_block(own, shared);
        lse = own.top + logf(own.sum);
        if (threadIdx.x == 0) k.lse[row] = lse;
    }
    if (!k.gradients) return;
    float penalty = row_penalty(k.upstream, counts);
    float weight = row_weight(k.upstream, penalty, row, lse), scaled = lse * LOG2E;
    for (int i = first; i < packs; i += ROW_THREADS) {
        float v[VECTOR];
        int hit = counts ? (int)target - i * VECTOR : -1;
        widen_held(held[i], words - i * VECTOR, v);
#pragma unroll
        for (int j = 0; j < VECTOR; j++)
            v[j] = power_of_two(fmaf(v[j], LOG2E, -scaled)) * weight;
        if (hit >= 0 && hit < VECTOR)
#pragma unroll
            for (int j = 0; j < VECTOR; j++)
                v[j] -= j == hit ? penalty : 0.0f;
        store_vector(l + (int64_t)i * VECTOR, v);
    }
}

/* The same for rows of any type and length. `known`: the lse is there already. */
static __global__ void __launch_bounds__(ROW_THREADS) entropy_part(entropy_rows k, bool known) {
    __shared__ top_sum shared[ROW_THREADS / 32];
    int64_t row = k.first + blockIdx.x, at = blockIdx.x * k.ld, target = k.targets[row];
    bool counts = target >= 0 && target < k.words;
    float lse;
    if (known) {
        lse = k.lse[row];
    } else {
        if (threadIdx.x == 0) k.target_logit[row] = counts ? load_any(k.l, at + target) : 0.0f;
        lse = measure_row(k, at, shared);
        if (threadIdx.x == 0) k.lse[row] = lse;
    }
    if (!k.gradients) return;
    float penalty = row_penalty(k.upstream, counts);
    float weight = row_weight(k.upstream, penalty, row, lse);
    differentiate_row(k, at, counts ? target : -1, lse, weight, penalty);
}

void run_entropy_rows(cudaStream_t stream, const entropy_rows &k, int64_t count, bool known) {
    int64_t bytes = k.ld * (int64_t)sizeof(bf16);
    if (!k.l.is_bf16 || bytes > weft_cuda_device()->shared_memory - HELD_SPARE) {
        entropy_part<<<(unsigned)count, ROW_THREADS, 0, stream>>>(k, known);
        return;
    }
    cudaFuncSetAttribute(entropy_held, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    entropy_held<<<(unsigned)count, ROW_THREADS, (size_t)bytes, stream>>>(k, known);
}
