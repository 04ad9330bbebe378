/* What Muon does beside its products on the GPU: momentum and the direction that is orthogonalised, and
 * the step along it.
 *
 * A part's matrices are cut into chunks that no two of them share, numbered through from the first part to
 * the last; a block takes a chunk, neighbours by neighbouring threads. The norm of a matrix is the sum of
 * its chunks' squares, which every block of the next launch adds up in the same order.
 *
 * Floor, muon_direction: g and m read twice, m and X written once. muon_step: p read and written, X read,
 * the copy written. */
#include "cuda/pack.cuh"

extern "C" {
#include "ops/optimizer.h"
}

enum { MUON_CHUNK = 32 * PACK_THREADS };

struct muon_list {
    weft_muon_parts parts;
    any_tensor x[WEFT_MUON_PARTS]; /* of each part */
    float factor[WEFT_MUON_PARTS];
    int64_t chunks[WEFT_MUON_PARTS]; /* of a matrix of each part */
};

/* A block's chunk: elements [at, end) of its part, which begins at `first` of the tensor. */
struct muon_place {
    int part;
    int64_t first, at, end;
    int64_t matrix, chunks; /* its matrix's first chunk, and how many there are */
};

__device__ static inline muon_place place_of_block(const muon_list &l) {
    muon_place p = {};
    int64_t chunk = blockIdx.x, before = l.parts.part[0].count * l.chunks[0];
    if (chunk >= before)
        p.part = 1;
    else
        before = 0;
    const weft_matrices &m = l.parts.part[p.part];
    int64_t size = m.rows * m.columns, index = (chunk - before) / l.chunks[p.part];
    p.first = m.first;
    p.chunks = l.chunks[p.part];
    p.matrix = before + index * p.chunks;
    p.at = index * size + (chunk - p.matrix) * MUON_CHUNK;
    p.end = min_i64(p.at + MUON_CHUNK, (index + 1) * size);
    return p;
}

/* m ← momentum · m + g, and the sum of Ĝ's squares. */
static __global__ void __launch_bounds__(PACK_THREADS)
    gather_momentum(const __grid_constant__ muon_list l, float momentum, const float *control,
                    any_tensor g, float *m, double *squares) {
    __shared__ double shared[32];
    if (control[WEFT_CONTROL_APPLY] == 0) return;
    muon_place p = place_of_block(l);
    float clip = control[WEFT_CONTROL_GRAD];
    double sum = 0;
#pragma unroll 4
    for (int64_t i = p.at + threadIdx.x; i < p.end; i += PACK_THREADS) {
        float clipped = __fmul_rn(load_any(g, p.first + i), clip);
        float kept = __fmaf_rn(momentum, m[p.first + i], clipped);
        double direction = __fmaf_rn(momentum, kept, clipped);
        m[p.first + i] = kept;
        sum += direction * direction;
    }
    sum = block_sum_double(sum, shared);
    if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

/* X = Ĝ/(‖Ĝ‖ + 1e-7), or zeros, which nobody takes, where the step is left out. */
static __global__ void __launch_bounds__(PACK_THREADS)
    make_direction(const __grid_constant__ muon_list l, float momentum, const float *control,
                   any_tensor g, const float *m, const double *squares) {
    __shared__ double shared[32];
    muon_place p = place_of_block(l);
    bool apply = control[WEFT_CONTROL_APPLY] != 0;
    float clip = control[WEFT_CONTROL_GRAD];
    double sum = 0;
    for (int64_t i = threadIdx.x; apply && i < p.chunks; i += PACK_THREADS)
        sum += squares[p.matrix + i];
    float scale = (float)(1 / (sqrt(block_sum_double(sum, shared)) + 1e-7));
#pragma unroll 4
    for (int64_t i = p.at + threadIdx.x; i < p.end; i += PACK_THREADS) {
        float clipped = __fmul_rn(load_any(g, p.first + i), clip);
        float direction = __fmaf_rn(momentum, m[p.first + i], clipped);
        store_any(l.x[p.part], i, apply ? __fmul_rn(direction, scale) : 0.0f);
    }
}

static __global__ void __launch_bounds__(PACK_THREADS)
    take_step(const __grid_constant__ muon_list l, const float *control, float *param, bf16 *copy,
              const bf16 *given) {
    if (control[WEFT_CONTROL_APPLY] == 0) return;
    muon_place at = place_of_block(l);
    float step = __fmul_rn(control[WEFT_CONTROL_LR], l.factor[at.part]);
    float decay = control[WEFT_CONTROL_DECAY];
#pragma unroll 4
    for (int64_t i = at.at + threadIdx.x; i < at.end; i += PACK_THREADS) {
        int64_t to = at.first + i;
        float p = param[to], by = __fmul_rn(load_any(l.x[at.part], i), step);
        if (given && to_float(from_float<bf16>(p)) != to_float(given[to])) p = to_float(given[to]);
        p = __fsub_rn(p, __fmaf_rn(p, decay, by));
        param[to] = p;
        if (copy) copy[to] = from_float<bf16>(p);
    }
}

/* The list of a node whose parts' X are those tensors, and how many chunks it has. */
static muon_list list_of(const weft_exec *x, const weft_node *n, weft_tensor *const *parts,
                         int64_t *chunks) {
    const weft_muon_attr *attr = ATTR(n, weft_muon_attr);
    muon_list l = {};
    l.parts = attr->parts;
    *chunks = 0;
    for (int i = 0; i < attr->parts.n; i++) {
        const weft_matrices *m = &attr->parts.part[i];
        if (parts) l.x[i] = any_of(x, parts[i]);
        l.factor[i] = (float)attr->factor[i];
        l.chunks[i] = ceil_div(m->rows * m->columns, MUON_CHUNK);
        *chunks += m->count * l.chunks[i];
    }
    return l;
}

static weft_status muon_direction_run(weft_exec *x, const weft_node *n) {
    int64_t chunks;
    muon_list l = list_of(x, n, n->out, &chunks);
    float momentum = (float)ATTR(n, weft_muon_attr)->momentum;
    const float *control = data_of<float>(x, n->in[0]);
    any_tensor g = any_of(x, n->in[1]);
    float *m = data_of<float>(x, n->in[2]);
    double *squares = workspace_of<double>(x, n);
    gather_momentum<<<(unsigned)chunks, PACK_THREADS, 0, stream_of(x)>>>(l, momentum, control, g, m,
                                                                         squares);
    make_direction<<<(unsigned)chunks, PACK_THREADS, 0, stream_of(x)>>>(l, momentum, control, g, m,
                                                                        squares);
    return launched(n);
}

static int64_t muon_direction_workspace(const weft_node *n, int) {
    int64_t chunks;
    list_of(NULL, n, NULL, &chunks);
    return chunks * (int64_t)sizeof(double);
}

CUDA_KERNEL(muon_direction, muon_direction_run, muon_direction_workspace)

static weft_status muon_step_run(weft_exec *x, const weft_node *n) {
    int64_t chunks;
    muon_list l = list_of(x, n, n->in + WEFT_MUON_X, &chunks);
    take_step<<<(unsigned)chunks, PACK_THREADS, 0, stream_of(x)>>>(
        l, data_of<float>(x, n->in[0]), data_of<float>(x, n->in[WEFT_MUON_PARAM]),
        data_of<bf16>(x, n->in[WEFT_MUON_COPY]), data_of<bf16>(x, n->in[WEFT_MUON_GIVEN]));
    return launched(n);
}

CUDA_KERNEL(muon_step, muon_step_run)
