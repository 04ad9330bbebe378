/* Linear, softmax and cross-entropy on the GPU, the logits some rows at a time.
 *
 * A part of the rows has its logits made by a product, in bf16 where x and w are: f32 logits never
 * exist there. One kernel then makes each row's logsumexp and the logits' gradient in their
 * place. Two products give dx of the part and add to dw,
 * which is f32. Floor of a part beside its products: the logits read once and written once.
 *
 * dx of a part is a small result of long sums: few tiles, each a whole SM's work. A part has as many
 * rows as fill the GPU with them, without a part of a round left over.
 *
 * The gradient's node scales what the forward pass made. Whether it can must be known before any
 * value is: the two losses must have the same gradient, one tensor, or the z-loss none. Otherwise
 * the logits are made again.
 *
 * The kernel has a block a row: its logsumexp in one pass (an online softmax: maximum and sum together, a
 * thread rescaling its sum when it meets a larger logit), and in a second the gradient. A row of bf16
 * waits in shared memory meanwhile, so that its logits are read once; others are read again. */
#include "cuda/functions.cuh"
#include "cuda/pack.cuh"
#include "cuda/products/gemm.cuh"

/* What a row's gradient is made of: dl = p · weight − [v = target] · penalty. */
struct entropy_upstream {
    const int32_t *count;    /* targets that count */
    const float *given;      /* what their sum is divided by; NULL: their number */
    const float *d_ce;       /* NULL: 1 */
    const float *d_z;        /* NULL: 1 */
    float ce_scale, z_scale; /* 0 where the loss has no gradient; 2 z / N for z */
};

struct entropy_rows {
    int64_t first, words, ld;
    const int32_t *targets;
    any_tensor l;        /* [rows, ld] of the part */
    float *lse;          /* [N] */
    float *target_logit; /* [N]: the target's logit */
    bool gradients;      /* l becomes its gradient */
    float softcap;       /* of the logits; 0: none */
    entropy_upstream upstream;
};

enum {
    ROW_THREADS = 512,
    AHEAD = 4,             /* packs a thread has on their way */
    SHARED_SPARE = 2 << 10 /* bytes of shared memory that a row of packs leaves */
};

static __device__ inline float row_penalty(const entropy_upstream &s, bool counts) {
    if (!counts || s.ce_scale == 0) return 0;
    return s.ce_scale * (s.d_ce ? *s.d_ce : 1.0f) / (s.given ? *s.given : (float)*s.count);
}

static __device__ inline float row_weight(const entropy_upstream &s, float penalty, float lse) {
    return s.z_scale != 0 ? penalty + s.z_scale * (s.d_z ? *s.d_z : 1.0f) * lse : penalty;
}

/* The soft-cap of a logit, -inf being none, and its slope at what it made. */
static __device__ inline float cap_logit(float l, float c) {
    return l == -INFINITY ? l : c - __fdividef(2.0f * c, __expf(l * (2.0f / c)) + 1.0f);
}

static __device__ inline float cap_slope(float l, float c) {
    float t = fminf(fabsf(l / c), 1.0f);
    return 1.0f - t * t;
}

static __device__ inline void cap_pack(float (&v)[VECTOR], float c) {
    if (c > 0)
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            v[i] = cap_logit(v[i], c);
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

/* f(column, n, logits) on the thread's packs of a row; AHEAD of them are on their way together. */
template <class F> static __device__ inline void walk_row(const entropy_rows &k, int64_t at, F f) {
    for (int64_t first = threadIdx.x * VECTOR; first < k.words;
         first += AHEAD * ROW_THREADS * VECTOR) {
        pack p[AHEAD];
        float v[VECTOR];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int64_t next = first + i * ROW_THREADS * VECTOR;
            if (next < k.words) p[i] = fetch_pack(k.l, at + next, pack_length(k.words, next));
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int64_t column = first + i * ROW_THREADS * VECTOR;
            int n = pack_length(k.words, column);
            if (n == 0) break;
            widen_pack(p[i], k.l.is_bf16, v);
            cap_pack(v, k.softcap);
            f(column, n, v);
        }
    }
}

/* The row's logsumexp, of the threads' shares, which is kept. */
static __device__ inline float join_row(const entropy_rows &k, int64_t row, top_sum own) {
    __shared__ top_sum shared[ROW_THREADS / 32];
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
    float lse = own.top + logf(own.sum);
    if (threadIdx.x == 0) k.lse[row] = lse;
    return lse;
}

static __device__ inline void keep_target(const entropy_rows &k, int64_t row, float logit) {
    k.target_logit[row] = k.softcap > 0 ? cap_logit(logit, k.softcap) : logit;
}

/* The thread's packs `first`, first + ROW_THREADS, ... below `end` of a row of bf16, on their way
 * into shared memory. */
static __device__ inline void load_packs(const bf16 *row, uint4 *to, int first, int end) {
    for (int i = first; i < end; i += ROW_THREADS)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                         (unsigned)__cvta_generic_to_shared(to + i)),
                     "l"(row + (int64_t)i * VECTOR));
    asm volatile("cp.async.commit_group;");
}

/* The first `n` values of a pack of bf16; -inf behind them. */
static __device__ inline void widen_packed(uint4 p, int n, float (&v)[VECTOR]) {
    widen_pack(pack{p, make_uint4(0, 0, 0, 0)}, true, v);
    if (n >= VECTOR) return;
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        v[i] = i < n ? v[i] : -INFINITY;
}

/* add_pack in powers of two; maximum and sum of the pack as trees, for short chains. */
static __device__ inline void add_packed(top_sum *own, const float (&v)[VECTOR]) {
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

/* A block a row of bf16. A thread sees only the packs that it loaded itself, so that only the sums
 * of the row wait for others; it begins on the first half of them while the second is on its way. */
static __global__ void __launch_bounds__(ROW_THREADS, 2)
    entropy_shared(entropy_rows k, bool known) {
    extern __shared__ uint4 row_packs[];
    int64_t row = k.first + blockIdx.x, target = k.targets[row];
    bf16 *l = (bf16 *)(void *)k.l.data + blockIdx.x * k.ld;
    int packs = (int)(k.ld / VECTOR), words = (int)k.words, first = (int)threadIdx.x;
    int half = (int)ceil_div(packs, 2 * ROW_THREADS) * ROW_THREADS;
    bool counts = target >= 0 && target < k.words;
    load_packs(l, row_packs, first, half < packs ? half : packs);
    load_packs(l, row_packs, first + half, packs);
    if (threadIdx.x == 0 && !known) keep_target(k, row, counts ? to_float(l[target]) : 0.0f);
    top_sum own = {-INFINITY, 0};
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    for (int i = first; i < packs; i += ROW_THREADS) {
        if (i >= half && i < half + ROW_THREADS)
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        if (known) continue;
        float v[VECTOR];
        widen_packed(row_packs[i], words - i * VECTOR, v);
        cap_pack(v, k.softcap);
        add_packed(&own, v);
    }
    float lse = known ? k.lse[row] : join_row(k, row, own);
    if (!k.gradients) return;
    float penalty = row_penalty(k.upstream, counts);
    float weight = row_weight(k.upstream, penalty, lse), scaled = lse * LOG2E;
    for (int i = first; i < packs; i += ROW_THREADS) {
        float v[VECTOR], slope[VECTOR];
        int hit = counts ? (int)target - i * VECTOR : -1;
        widen_packed(row_packs[i], words - i * VECTOR, v);
        cap_pack(v, k.softcap);
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            slope[j] = k.softcap > 0 ? cap_slope(v[j], k.softcap) : 1.0f;
            v[j] = power_of_two(fmaf(v[j], LOG2E, -scaled)) * weight;
        }
        if (hit >= 0 && hit < VECTOR)
#pragma unroll
            for (int j = 0; j < VECTOR; j++)
                v[j] -= j == hit ? penalty : 0.0f;
        if (k.softcap > 0)
#pragma unroll
            for (int j = 0; j < VECTOR; j++)
                v[j] *= slope[j];
        store_vector(l + (int64_t)i * VECTOR, v);
    }
}

/* The same for rows of any type and length. `known`: the lse is there already. */
static __global__ void __launch_bounds__(ROW_THREADS) entropy_part(entropy_rows k, bool known) {
    int64_t row = k.first + blockIdx.x, at = blockIdx.x * k.ld, target = k.targets[row];
    bool counts = target >= 0 && target < k.words;
    top_sum own = {-INFINITY, 0};
    if (!known) {
        if (threadIdx.x == 0) keep_target(k, row, counts ? load_any(k.l, at + target) : 0.0f);
        walk_row(k, at, [&](int64_t, int n, float(&v)[VECTOR]) { own = add_pack(own, v, n); });
    }
    float lse = known ? k.lse[row] : join_row(k, row, own);
    if (!k.gradients) return;
    float penalty = row_penalty(k.upstream, counts);
    float weight = row_weight(k.upstream, penalty, lse);
    if (!counts) target = -1;
    walk_row(k, at, [&](int64_t column, int n, float(&v)[VECTOR]) {
        int hit = (int)(target - column);
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            float slope = k.softcap > 0 ? cap_slope(v[j], k.softcap) : 1.0f;
            v[j] = __expf(v[j] - lse) * weight;
            v[j] -= j == hit ? penalty : 0.0f;
            v[j] *= slope;
        }
        store_pack(k.l, at + column, n, v);
    });
}

enum {
    JOIN_THREADS = 1024,
    PART_STEP = 128, /* rows of a part are a multiple of this, but for the last; a tile's, too */
    TILE_COLUMNS = 256
};
static const int64_t PART_BYTES = 576 << 20; /* of logits that are held at a time, at most */

/* How many targets count: one block. Faults: the row. */
static __global__ void count_targets(int64_t rows, int64_t words, const int32_t *targets,
                                     int32_t *count, weft_cuda_run *run, int node) {
    double own = 0;
    for (int64_t i = threadIdx.x; i < rows; i += JOIN_THREADS) {
        int32_t target = targets[i];
        if (target < -1 || target >= words) note_fault(run, node, i);
        own += target >= 0 && target < words;
    }
    own = block_sum_double(own);
    if (threadIdx.x == 0) *count = (int32_t)own;
}

/* ce and z from the rows' numbers, in double: one block. */
static __global__ void join_losses(int64_t rows, entropy_rows k, double z, float *ce_out,
                                   float *z_out) {
    double ce = 0, squares = 0;
    for (int64_t i = threadIdx.x; i < rows; i += JOIN_THREADS) {
        double lse = k.lse[i];
        if (k.targets[i] >= 0 && k.targets[i] < k.words) ce += lse - (double)k.target_logit[i];
        squares += lse * lse;
    }
    ce = block_sum_double(ce);
    squares = block_sum_double(squares);
    if (threadIdx.x > 0) return;
    double divisor = k.upstream.given ? (double)*k.upstream.given : (double)*k.upstream.count;
    *ce_out = (float)(divisor > 0 ? ce / divisor : 0);
    *z_out = (float)(z != 0 ? z * squares / (double)rows : 0);
}

static weft_status explain_target(weft_exec *x, const weft_node *n, int64_t place) {
    return WEFT_BAD_INPUT(
        "cross_entropy: target %d at row %lld is outside the vocabulary of %lld, and "
        "only -1 means none",
        read_i32(x, n->in[WEFT_CE_TARGETS], place), (long long)place,
        (long long)n->in[WEFT_CE_W]->shape[0]);
}

/* The sizes of a node, and its workspace. */
struct entropy_layout {
    int64_t rows, words, width, ld, step;
    bool is_bf16;               /* the logits */
    const weft_tensor *dx, *dw; /* NULL: not wanted */
    bool own_dw;                /* dw is bf16 and there are several parts: summed in f32 first */
    int32_t *count;
    float *target_logit;
    char *logits; /* of a part */
    float *sums;  /* of dw, where they need a place of their own */
    char *products;
    int64_t bytes;
};

static cuda_gemm_matrix matrix_at(const void *data, int64_t at, int64_t ld, bool is_bf16) {
    char *first = (char *)data;
    return cuda_gemm_matrix{first ? first + at * (is_bf16 ? 2 : 4) : NULL, ld, 0, is_bf16};
}

/* The products of a part of `rows` rows from `first` on; x NULL: their sizes alone. */
struct entropy_products {
    cuda_gemm logits, dx, dw;
};

static entropy_products describe_products(const weft_exec *x, const weft_node *n,
                                          const entropy_layout &k, int64_t first, int64_t rows) {
    auto place = [&](const weft_tensor *t, int64_t row) {
        return matrix_at(x ? weft_data(x, t) : NULL, row * k.width, k.width,
                         t && t->dtype == WEFT_BF16);
    };
    cuda_gemm_matrix from = place(n->in[WEFT_CE_X], first), w = place(n->in[WEFT_CE_W], 0);
    cuda_gemm_matrix l = matrix_at(k.logits, 0, k.ld, k.is_bf16);
    cuda_gemm p = {};
    p.batch = 1, p.alpha = 1;
    entropy_products all = {p, p, p};
    /* l [rows, V] = x wᵀ; dx [rows, E] = l w; dw [V, E] = lᵀ x, or += behind the first part. */
    all.logits.m = rows, all.logits.n = k.words, all.logits.k = k.width, all.logits.tb = true;
    all.logits.a = from, all.logits.b = w, all.logits.c = l;
    all.dx.m = rows, all.dx.n = k.width, all.dx.k = k.words;
    all.dx.a = l, all.dx.b = w, all.dx.c = place(k.dx, first);
    all.dw.m = k.words, all.dw.n = k.width, all.dw.k = rows, all.dw.ta = true;
    all.dw.a = l, all.dw.b = from, all.dw.c = place(k.dw, 0);
    if (k.own_dw) all.dw.c = matrix_at(k.sums, 0, k.width, false);
    all.dw.accumulate = first > 0;
    return all;
}

/* A product with the vocabulary as its m, n or k, in two: of the words in eights, which the library is
 * fast at, and of the few that are left, which come first. The rows of l begin at multiples of 16 bytes. */
static int split_words(const cuda_gemm &p, int64_t words, cuda_gemm part[2]) {
    int64_t whole = words / 8 * 8;
    part[0] = part[1] = p;
    if (whole == words || whole == 0 || !p.a.is_bf16 || !p.b.is_bf16) return 1;
    auto skip = [whole](cuda_gemm_matrix *x, bool rows) {
        if (x->data) x->data = (char *)x->data + whole * (rows ? x->ld : 1) * (x->is_bf16 ? 2 : 4);
    };
    if (p.ta) { /* dw */
        part[0].m -= whole, part[1].m = whole;
        skip(&part[0].a, false);
        skip(&part[0].c, true);
    } else if (p.tb) { /* the logits */
        part[0].n -= whole, part[1].n = whole;
        skip(&part[0].b, true);
        skip(&part[0].c, false);
    } else { /* dx */
        part[0].k -= whole, part[1].k = whole;
        part[1].accumulate = true;
        skip(&part[0].a, false);
        skip(&part[0].b, true);
    }
    return 2;
}

static weft_status launch_words(const weft_exec *x, const entropy_layout &k, const cuda_gemm &p) {
    cuda_gemm part[2];
    int parts = split_words(p, k.words, part);
    for (int i = 0; i < parts; i++)
        WEFT_TRY(gemm_launch(stream_of(x), part[i], k.products));
    return WEFT_OK;
}

static int64_t words_workspace(const entropy_layout &k, const cuda_gemm &p) {
    cuda_gemm part[2];
    int parts = split_words(p, k.words, part);
    int64_t bytes = gemm_workspace(part[0]);
    return parts == 2 ? max_i64(bytes, gemm_workspace(part[1])) : bytes;
}

static int64_t product_bytes(const entropy_layout &k, const weft_node *n, int64_t rows) {
    entropy_products p = describe_products(NULL, n, k, 0, rows);
    int64_t most = words_workspace(k, p.logits);
    if (k.dx) most = max_i64(most, words_workspace(k, p.dx));
    for (int add = 0; k.dw && add < 2; add++) {
        p.dw.accumulate = add;
        most = max_i64(most, words_workspace(k, p.dw));
    }
    return most;
}

/* Rounds of tiles that dx takes in parts of `step` rows. */
static int64_t count_rounds(const entropy_layout &k, int64_t step) {
    int64_t parts = ceil_div(k.rows, step), last = k.rows - (parts - 1) * step;
    int64_t across = ceil_div(k.width, TILE_COLUMNS);
    return (parts - 1) * ceil_div(ceil_div(step, PART_STEP) * across, multiprocessors()) +
           ceil_div(ceil_div(last, PART_STEP) * across, multiprocessors());
}

/* Rows of a part: of those that take the fewest rounds, the fewest. */
static int64_t part_rows(const entropy_layout &k) {
    int64_t most = PART_BYTES / (k.ld * (k.is_bf16 ? 2 : 4)) / PART_STEP * PART_STEP;
    int64_t best = max_i64(most, PART_STEP);
    if (k.rows <= best) return k.rows;
    for (int64_t step = best - PART_STEP; 2 * step > most; step -= PART_STEP)
        if (count_rounds(k, step) <= count_rounds(k, best)) best = step;
    return best;
}

/* `workspace` NULL: only measures it. */
static entropy_layout lay_out_entropy(const weft_node *n, const weft_tensor *dx,
                                      const weft_tensor *dw, char *workspace) {
    const weft_tensor *x = n->in[WEFT_CE_X], *w = n->in[WEFT_CE_W];
    entropy_layout k = {};
    k.rows = weft_tensor_rows(x);
    k.words = w->shape[0];
    k.width = w->shape[1];
    k.ld = ceil_div(k.words, VECTOR) * VECTOR;
    k.is_bf16 = x->dtype == WEFT_BF16 && w->dtype == WEFT_BF16;
    k.step = part_rows(k);
    k.dx = dx;
    k.dw = dw;
    k.own_dw = dw && dw->dtype == WEFT_BF16 && k.step < k.rows;
    int64_t last = k.rows - (ceil_div(k.rows, k.step) - 1) * k.step;
    int64_t products = max_i64(product_bytes(k, n, k.step), product_bytes(k, n, last));
    workspace_pieces pieces = {workspace, 0};
    pieces.take(&k.count, 1);
    pieces.take(&k.target_logit, k.rows);
    pieces.take(&k.logits, k.step * k.ld * (k.is_bf16 ? 2 : 4));
    if (k.own_dw) pieces.take(&k.sums, k.words * k.width);
    pieces.take(&k.products, products);
    k.bytes = pieces.bytes;
    return k;
}

/* All parts: logits, the kernel, dx and dw. */
static weft_status run_parts(weft_exec *x, const weft_node *n, const entropy_layout &k,
                             entropy_rows rows, bool known) {
    int64_t bytes = k.ld * (int64_t)sizeof(bf16);
    bool shared = k.is_bf16 && bytes <= weft_cuda_device()->shared_memory - SHARED_SPARE;
    if (!shared) bytes = 0;
    if (shared)
        cudaFuncSetAttribute(entropy_shared, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)bytes);
    rows.l = any_tensor{k.logits, k.is_bf16};
    for (rows.first = 0; rows.first < k.rows; rows.first += k.step) {
        int64_t count = min_i64(k.step, k.rows - rows.first);
        entropy_products p = describe_products(x, n, k, rows.first, count);
        WEFT_TRY(launch_words(x, k, p.logits));
        auto kernel = shared ? entropy_shared : entropy_part;
        kernel<<<(unsigned)count, ROW_THREADS, (size_t)bytes, stream_of(x)>>>(rows, known);
        if (k.dw) WEFT_TRY(launch_words(x, k, p.dw));
        if (k.dx) WEFT_TRY(launch_words(x, k, p.dx));
    }
    return WEFT_OK;
}

/* The rows' numbers that both nodes share; counts the targets. */
static entropy_rows start_rows(weft_exec *x, const weft_node *n, const entropy_layout &k,
                               const weft_tensor *count) {
    entropy_rows rows = {};
    rows.words = k.words;
    rows.ld = k.ld;
    rows.targets = data_of<int32_t>(x, n->in[WEFT_CE_TARGETS]);
    rows.target_logit = k.target_logit;
    rows.gradients = k.dx || k.dw;
    rows.softcap = (float)ATTR(n, weft_cross_entropy_attr)->softcap;
    rows.upstream.count = k.count;
    rows.upstream.given = data_of<float>(x, count);
    rows.upstream.ce_scale = 1;
    rows.upstream.z_scale = (float)(2 * ATTR(n, weft_cross_entropy_attr)->z / (double)k.rows);
    count_targets<<<1, JOIN_THREADS, 0, stream_of(x)>>>(k.rows, k.words, rows.targets, k.count,
                                                        device_run(x), n->index);
    return rows;
}

CUDA_RUN_WITH(cross_entropy, lay_out_entropy(n, n->out[WEFT_CE_DX], n->out[WEFT_CE_DW], NULL).bytes,
              explain_target) {
    const weft_cross_entropy_attr *attr = ATTR(n, weft_cross_entropy_attr);
    entropy_layout k =
        lay_out_entropy(n, n->out[WEFT_CE_DX], n->out[WEFT_CE_DW], workspace_of<char>(x, n));
    entropy_rows rows = start_rows(x, n, k, n->in[WEFT_CE_COUNT]);
    rows.lse = data_of<float>(x, n->out[WEFT_CE_LSE]);
    if (!weft_z_trains(attr)) rows.upstream.z_scale = 0;
    WEFT_TRY(run_parts(x, n, k, rows, false));
    join_losses<<<1, JOIN_THREADS, 0, stream_of(x)>>>(k.rows, rows, attr->z,
                                                      data_of<float>(x, n->out[WEFT_CE_LOSS]),
                                                      data_of<float>(x, n->out[WEFT_CE_Z]));
    return launched(n);
}

static bool only_scales(const weft_node *n) {
    const weft_tensor *d_z = n->in[WEFT_CE_BACK_D_Z];
    const weft_tensor *d_ce = n->in[WEFT_CE_BACK_D_CE];
    bool made = n->in[WEFT_CE_BACK_DX] || n->in[WEFT_CE_BACK_DW];
    auto root = [](const weft_tensor *t) { return t && t->view_of ? t->view_of : t; };
    return made && (!d_z || root(d_z) == root(d_ce));
}

static void scale_values(weft_exec *x, any_tensor from, const weft_tensor *to,
                         const float *factor) {
    int64_t count = weft_tensor_count(to);
    map_elements<1, 1><<<pack_grid(ceil_div(count, VECTOR)), PACK_THREADS, 0, stream_of(x)>>>(
        count, tensor_list<1>{{from}}, tensor_list<1>{{any_of(x, to)}},
        scale_by_element{1, factor});
}

/* The same in place. In training the factor is 1, and nothing is left to do. */
static __global__ void scale_over(int64_t count, any_tensor v, const float *factor) {
    float by = *factor;
    if (by == 1) return;
    for (int64_t at = thread_index() * VECTOR; at < count; at += thread_count() * VECTOR) {
        float x[VECTOR];
        int n = pack_length(count, at);
        load_pack(v, at, n, x);
        scale_vector(x, by);
        store_pack(v, at, n, x);
    }
}

static weft_status differentiate_anew(weft_exec *x, const weft_node *n) {
    entropy_layout k = lay_out_entropy(n, n->out[0], n->out[1], workspace_of<char>(x, n));
    entropy_rows rows = start_rows(x, n, k, n->in[WEFT_CE_BACK_COUNT]);
    rows.lse = data_of<float>(x, n->in[WEFT_CE_BACK_LSE]);
    rows.upstream.d_ce = data_of<float>(x, n->in[WEFT_CE_BACK_D_CE]);
    rows.upstream.d_z = data_of<float>(x, n->in[WEFT_CE_BACK_D_Z]);
    if (!rows.upstream.d_ce) rows.upstream.ce_scale = 0;
    if (!rows.upstream.d_z) rows.upstream.z_scale = 0;
    WEFT_TRY(run_parts(x, n, k, rows, true));
    if (k.own_dw) scale_values(x, any_tensor{k.sums, false}, n->out[1], NULL);
    return launched(n);
}

CUDA_RUN_WITH(cross_entropy_back,
              only_scales(n) ? 0 : lay_out_entropy(n, n->out[0], n->out[1], NULL).bytes,
              explain_target) {
    if (!only_scales(n)) return differentiate_anew(x, n);
    const weft_tensor *made[] = {n->in[WEFT_CE_BACK_DX], n->in[WEFT_CE_BACK_DW]};
    const float *d_ce = data_of<float>(x, n->in[WEFT_CE_BACK_D_CE]);
    for (int i = 0; i < 2; i++) {
        if (!n->out[i]) continue;
        int64_t count = weft_tensor_count(n->out[i]);
        any_tensor from = any_of(x, made[i]), to = any_of(x, n->out[i]);
        if (from.data == to.data && from.is_bf16 == to.is_bf16)
            scale_over<<<grid_for(ceil_div(count, VECTOR), PACK_THREADS), PACK_THREADS, 0,
                         stream_of(x)>>>(count, to, d_ce);
        else
            scale_values(x, from, n->out[i], d_ce);
    }
    return launched(n);
}
