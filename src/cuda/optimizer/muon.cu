/* What Muon does beside its products on the GPU: momentum and the direction that is orthogonalised, and
 * the step along it, for matrices of many tensors a launch.
 *
 * Matrices are cut into chunks that no two of them share, numbered through from the first matrix of X to
 * the last; a block takes a chunk, and a thread of it several packs before it computes. The pieces of X that
 * are of one tensor each go into the launch as an argument. The norm of a matrix is the sum of its chunks'
 * squares, which every block of the next launch adds up in the same order.
 *
 * Floor, muon_direction: g and m read twice, m and X written once. muon_step: p read and written, X read,
 * the copy written. */
#include "cuda/pack.cuh"

extern "C" {
#include "ops/optimizer.h"
}

enum {
    MUON_AHEAD = 2,                     /* packs of each tensor that a thread reads ahead */
    MUON_ROUND = VECTOR * PACK_THREADS, /* elements of a pack of each thread */
    MUON_CHUNK = 4 * MUON_ROUND
};

struct muon_piece {
    any_tensor g, m, param, copy, given; /* a kernel has some of them */
    int64_t first;                       /* where its matrices begin there */
    float factor;
};

struct muon_list {
    int64_t size, chunks; /* of a matrix: elements, and chunks */
    any_tensor x;
    int pieces;
    int32_t first[WEFT_MUON_PIECES + 1]; /* chunk of each piece */
    muon_piece piece[WEFT_MUON_PIECES];
};

/* A block's chunk: where it begins in its piece's tensors and in X, how many elements it has. */
struct muon_place {
    int piece;
    int64_t from, at, count;
    int64_t matrix; /* its matrix's first chunk */
};

__device__ static inline muon_place place_of_block(const muon_list &l) {
    muon_place p;
    p.piece = tensor_of_chunk(l.first, l.pieces, (int)blockIdx.x);
    int64_t matrix = quotient(blockIdx.x, l.chunks);
    int64_t inside = ((int64_t)blockIdx.x - matrix * l.chunks) * MUON_CHUNK;
    int64_t before = quotient(l.first[p.piece], l.chunks); /* matrices of the pieces before */
    p.matrix = matrix * l.chunks;
    p.at = matrix * l.size + inside;
    p.from = l.piece[p.piece].first + (matrix - before) * l.size + inside;
    p.count = min_i64(MUON_CHUNK, l.size - inside);
    return p;
}

/* f(a, b, i, n) on a thread's packs of a chunk: n numbers of two tensors, the first one f32,
 * from a_at + i and b_at + i on. MUON_AHEAD packs of each are on their way together. */
template <class F>
__device__ static inline void walk_chunk(any_tensor a, int64_t a_at, any_tensor b, int64_t b_at,
                                         int64_t count, F f) {
    for (int64_t i = threadIdx.x * VECTOR; i < count; i += MUON_AHEAD * MUON_ROUND) {
        pack p[MUON_AHEAD], q[MUON_AHEAD];
#pragma unroll
        for (int k = 0; k < MUON_AHEAD; k++) {
            p[k] = fetch_pack(a, a_at + i + k * MUON_ROUND, pack_length(count - i, k * MUON_ROUND));
            q[k] = fetch_pack(b, b_at + i + k * MUON_ROUND, pack_length(count - i, k * MUON_ROUND));
        }
#pragma unroll
        for (int k = 0; k < MUON_AHEAD; k++) {
            float x[VECTOR], y[VECTOR];
            widen_pack(p[k], false, x);
            widen_pack(q[k], b.is_bf16, y);
            f(x, y, i + k * MUON_ROUND, pack_length(count, i + k * MUON_ROUND));
        }
    }
}

/* m ← momentum · m + g, and the sum of Ĝ's squares. */
static __global__ void __launch_bounds__(PACK_THREADS)
    gather_momentum(const __grid_constant__ muon_list l, float momentum, const float *control,
                    double *squares) {
    if (control[WEFT_CONTROL_APPLY] == 0) return;
    muon_place p = place_of_block(l);
    any_tensor g = l.piece[p.piece].g, m = l.piece[p.piece].m;
    float clip = control[WEFT_CONTROL_GRAD];
    double sum = 0;
    walk_chunk(m, p.from, g, p.from, p.count,
               [&](float(&kept)[VECTOR], float(&grad)[VECTOR], int64_t i, int n) {
#pragma unroll
                   for (int e = 0; e < VECTOR; e++) {
                       float clipped = __fmul_rn(grad[e], clip);
                       kept[e] = __fmaf_rn(momentum, kept[e], clipped);
                       double direction = __fmaf_rn(momentum, kept[e], clipped);
                       sum += direction * direction;
                   }
                   store_pack(m, p.from + i, n, kept);
               });
    sum = block_sum_double(sum);
    if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

/* X = Ĝ/(‖Ĝ‖ + 1e-7), or zeros, which nobody takes, where the step is left out. */
static __global__ void __launch_bounds__(PACK_THREADS)
    make_direction(const __grid_constant__ muon_list l, float momentum, const float *control,
                   const double *squares) {
    muon_place p = place_of_block(l);
    any_tensor g = l.piece[p.piece].g, m = l.piece[p.piece].m;
    bool apply = control[WEFT_CONTROL_APPLY] != 0;
    float clip = control[WEFT_CONTROL_GRAD];
    double sum = 0;
    for (int64_t i = threadIdx.x; apply && i < l.chunks; i += PACK_THREADS)
        sum += squares[p.matrix + i];
    float scale = (float)(1 / (sqrt(block_sum_double(sum)) + 1e-7));
    walk_chunk(m, p.from, g, p.from, p.count,
               [&](float(&way)[VECTOR], float(&grad)[VECTOR], int64_t i, int n) {
#pragma unroll
                   for (int e = 0; e < VECTOR; e++) {
                       way[e] = __fmaf_rn(momentum, way[e], __fmul_rn(grad[e], clip));
                       way[e] = apply ? __fmul_rn(way[e], scale) : 0.0f;
                   }
                   store_pack(l.x, p.at + i, n, way);
               });
}

static __global__ void __launch_bounds__(PACK_THREADS)
    take_step(const __grid_constant__ muon_list l, const float *control) {
    if (control[WEFT_CONTROL_APPLY] == 0) return;
    muon_place p = place_of_block(l);
    const muon_piece &s = l.piece[p.piece];
    float step = __fmul_rn(control[WEFT_CONTROL_LR], s.factor);
    float decay = control[WEFT_CONTROL_DECAY];
    walk_chunk(s.param, p.from, l.x, p.at, p.count,
               [&](float(&param)[VECTOR], float(&by)[VECTOR], int64_t i, int n) {
                   float given[VECTOR];
                   if (s.given.data) load_pack(s.given, p.from + i, n, given);
#pragma unroll
                   for (int e = 0; e < VECTOR; e++) {
                       if (s.given.data && to_float(from_float<bf16>(param[e])) != given[e])
                           param[e] = given[e];
                       param[e] =
                           __fsub_rn(param[e], __fmaf_rn(param[e], decay, __fmul_rn(by[e], step)));
                   }
                   store_pack(s.param, p.from + i, n, param);
                   if (s.copy.data) store_pack(s.copy, p.from + i, n, param);
               });
}

/* The list of a node, but for its pieces' tensors. */
static muon_list list_of(const weft_node *n) {
    const weft_muon_attr *attr = ATTR(n, weft_muon_attr);
    muon_list l = {};
    l.size = attr->rows * attr->columns;
    l.chunks = ceil_div(l.size, MUON_CHUNK);
    l.pieces = attr->n;
    for (int i = 0; i < attr->n; i++) {
        l.piece[i].first = attr->piece[i].first;
        l.piece[i].factor = (float)attr->piece[i].factor;
        l.first[i + 1] = l.first[i] + (int32_t)(attr->piece[i].count * l.chunks);
    }
    return l;
}

CUDA_RUN_WITH(muon_direction,
              list_of(n).first[ATTR(n, weft_muon_attr)->n] * (int64_t)sizeof(double)) {
    muon_list l = list_of(n);
    l.x = any_of(x, n->out[0]);
    for (int i = 0; i < l.pieces; i++) {
        l.piece[i].g = any_of(x, n->in[WEFT_MUON_GRAD + i * WEFT_MUON_DIRECTION_SIZE]);
        l.piece[i].m = any_of(x, n->in[WEFT_MUON_M + i * WEFT_MUON_DIRECTION_SIZE]);
    }
    float momentum = (float)ATTR(n, weft_muon_attr)->momentum;
    const float *control = data_of<float>(x, n->in[0]);
    double *squares = workspace_of<double>(x, n);
    unsigned blocks = (unsigned)l.first[l.pieces];
    gather_momentum<<<blocks, PACK_THREADS, 0, stream_of(x)>>>(l, momentum, control, squares);
    make_direction<<<blocks, PACK_THREADS, 0, stream_of(x)>>>(l, momentum, control, squares);
    return launched(n);
}

CUDA_RUN(muon_step) {
    muon_list l = list_of(n);
    l.x = any_of(x, n->in[WEFT_MUON_X]);
    for (int i = 0; i < l.pieces; i++) {
        weft_tensor *const *in = n->in + i * WEFT_MUON_STEP_SIZE;
        l.piece[i].param = any_of(x, in[WEFT_MUON_PARAM]);
        l.piece[i].copy = any_of(x, in[WEFT_MUON_COPY]);
        l.piece[i].given = any_of(x, in[WEFT_MUON_GIVEN]);
    }
    take_step<<<(unsigned)l.first[l.pieces], PACK_THREADS, 0, stream_of(x)>>>(
        l, data_of<float>(x, n->in[0]));
    return launched(n);
}
