/* AdamW's step and the gradient norm on the GPU, many tensors a launch (multi-tensor apply).
 *
 * A list of tensors is cut into chunks of a fixed length, numbered through from the first tensor to
 * the last; a block takes a chunk and finds its tensor by halving. The list itself goes into the
 * launch as an argument, some tensors a launch, so that a captured run holds it and nothing has to
 * be copied. Partial sums are kept by chunk and joined in one order.
 *
 * A whole chunk is read and written 16 bytes at a time, neighbours by neighbouring threads, and a
 * thread has several such words under way before it computes: types are fixed when the code is
 * compiled, since a choice between two loads would wait for the one taken. What is left of a
 * tensor behind that goes element by element.
 *
 * Floor, norm_parts: the gradients' bytes. adamw: for each element p, m and v read and written, g
 * read, the bf16 copy written: 28 bytes in bf16 training, 32 with v_max twice over. A copy that is read
 * too: 2 more. */
#include "cuda/pack.cuh"

extern "C" {
#define ADAM_REAL float
#include "ops/adam_policy.h"
}

enum {
    NORM_AHEAD = 8, /* words of 16 bytes that a thread reads ahead */
    NORM_CHUNK = NORM_AHEAD * VECTOR * PACK_THREADS,
    AHEAD = 2, /* quads that a thread reads ahead: a round of its block */
    ROUND = AHEAD * QUAD * PACK_THREADS,
    ADAM_CHUNK = 4 * ROUND,
    ADAM_BLOCKS = 4, /* of a multiprocessor at a time */
    SLOTS = 160,     /* of a launch */
    JOIN_THREADS = 1024
};

/* What a launch gets: slot i, of `count` elements, has the chunks first[i] .. first[i+1] − 1. */
template <class S> struct slot_list {
    int slots;
    int32_t first[SLOTS + 1];
    S slot[SLOTS];
};

/* Calls launch(list, blocks, chunks before) until all slots have been in a list: of a node's inputs
 * from `start` on, `stride` each, of which make(i) makes one. Returns how many chunks there are. */
template <class MAKE, class LAUNCH>
static int64_t launch_slots(const weft_node *n, int start, int stride, int64_t chunk, MAKE make,
                            LAUNCH launch) {
    int64_t done = 0;
    for (int i = start; i < n->n_in;) {
        slot_list<decltype(make(i))> list = {};
        for (; i < n->n_in && list.slots < SLOTS; i += stride) {
            int at = list.slots++;
            list.slot[at] = make(i);
            list.first[at + 1] = list.first[at] + (int32_t)ceil_div(list.slot[at].count, chunk);
        }
        int32_t chunks = list.first[list.slots];
        launch(list, (unsigned)chunks, done);
        done += chunks;
    }
    return done;
}

/* A block's slot of a list, and the first element of its chunk. */
template <class S>
__device__ static inline const S &find_slot(const slot_list<S> &list, int64_t chunk, int64_t &at) {
    int index = tensor_of_chunk(list.first, list.slots, (int)blockIdx.x);
    at = (int64_t)(blockIdx.x - list.first[index]) * chunk;
    return list.slot[index];
}

struct norm_slot {
    any_tensor t;
    int64_t count;
};

/* Σ x² in double, in which the square of a float is exact. The conversion's own instruction is slow:
 * a float's exponent and mantissa, set where a double has them, are |x|·2^-896, denormals too, and
 * one multiplication puts that right. An inf or NaN it would take for a number: `most` keeps the
 * largest bits for it. */
struct square_sum {
    double low, high; /* two sums, for one addition waits for the one before */
    unsigned most;
};

__device__ static inline void add_square(double &sum, unsigned &most, unsigned bits) {
    unsigned size = bits & 0x7fffffffu;
    double x = __hiloint2double((int)(size >> 3), (int)(size << 29)) * 0x1p896;
    sum = fma(x, x, sum);
    most = max(most, size);
}

__device__ static inline void add_word(const float *, unsigned word, square_sum &s, bool high) {
    add_square(high ? s.high : s.low, s.most, word);
}

__device__ static inline void add_word(const bf16 *, unsigned word, square_sum &s, bool) {
    add_square(s.low, s.most, word << 16);
    add_square(s.high, s.most, word & 0xffff0000u);
}

/* The chunk of which all is there. */
template <typename T> __device__ static inline double sum_whole_chunk(const T *x) {
    const uint4 *words = (const uint4 *)x;
    constexpr int rounds = (int)sizeof(T) * VECTOR / (int)sizeof(uint4);
    square_sum s = {};
#pragma unroll 1
    for (int round = 0; round < rounds; round++, words += NORM_AHEAD * PACK_THREADS) {
        uint4 ahead[NORM_AHEAD];
#pragma unroll
        for (int i = 0; i < NORM_AHEAD; i++)
            ahead[i] = words[i * PACK_THREADS + threadIdx.x];
#pragma unroll
        for (int i = 0; i < NORM_AHEAD; i++) {
            add_word(x, ahead[i].x, s, false);
            add_word(x, ahead[i].y, s, true);
            add_word(x, ahead[i].z, s, false);
            add_word(x, ahead[i].w, s, true);
        }
    }
    return s.low + s.high + (s.most < 0x7f800000u ? 0.0 : (double)__uint_as_float(s.most));
}

__device__ static inline double sum_last_chunk(any_tensor t, int64_t at, int64_t count) {
    double sum = 0;
#pragma unroll 4
    for (int64_t i = at + threadIdx.x; i < count; i += PACK_THREADS) {
        double v = (double)load_any(t, i);
        sum += v * v;
    }
    return sum;
}

static __global__ void __launch_bounds__(PACK_THREADS)
    sum_norm_chunk(const __grid_constant__ slot_list<norm_slot> list, double *partial) {
    int64_t at;
    const norm_slot &s = find_slot(list, NORM_CHUNK, at);
    double sum;
    if (at + NORM_CHUNK > s.count)
        sum = sum_last_chunk(s.t, at, s.count);
    else if (s.t.is_bf16)
        sum = sum_whole_chunk((const bf16 *)s.t.data + at);
    else
        sum = sum_whole_chunk((const float *)s.t.data + at);
    sum = block_sum_double(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

static __global__ void join_norm(int64_t chunks, const double *partial, float *norm) {
    double sum = sum_by_block<JOIN_THREADS>(partial, chunks);
    if (threadIdx.x == 0) *norm = (float)sqrt(sum);
}

/* Chunks of the inputs start, start + stride, ... */
static int64_t count_chunks(const weft_node *n, int start, int stride, int64_t chunk) {
    int64_t chunks = 0;
    for (int i = start; i < n->n_in; i += stride)
        chunks += ceil_div(weft_tensor_count(n->in[i]), chunk);
    return chunks;
}

static_assert((int)NORM_CHUNK == (int)WEFT_NORM_CHUNK, "the chunks that ranks share");

CUDA_RUN(norm_parts) {
    double *parts = (double *)data_of<int32_t>(x, n->out[0]);
    launch_slots(
        n, 0, 1, NORM_CHUNK,
        [&](int i) {
            return norm_slot{any_of(x, n->in[i]), weft_tensor_count(n->in[i])};
        },
        [&](const slot_list<norm_slot> &list, unsigned chunks, int64_t done) {
            sum_norm_chunk<<<chunks, PACK_THREADS, 0, stream_of(x)>>>(list, parts + done);
        });
    return launched(n);
}

CUDA_RUN(norm_join) {
    join_norm<<<1, JOIN_THREADS, 0, stream_of(x)>>>(n->in[0]->shape[0],
                                                    (const double *)data_of<int32_t>(x, n->in[0]),
                                                    data_of<float>(x, n->out[0]));
    return launched(n);
}

/* One thread. The history is read one by one: a hundred numbers, once a step. */
static __global__ void control_step(const __grid_constant__ weft_adam_options o, const float *norm,
                                    const float *lr, float *state, float *control) {
    adam_control_step(&o, *norm, *lr, state, control);
}

CUDA_RUN(adam_control) {
    control_step<<<1, 1, 0, stream_of(x)>>>(
        *ATTR(n, weft_adam_options), data_of<float>(x, n->in[0]), data_of<float>(x, n->in[1]),
        data_of<float>(x, n->in[2]), data_of<float>(x, n->out[0]));
    return launched(n);
}

struct adam_slot {
    float *p, *m, *v, *v_max; /* v_max may be NULL */
    bf16 *copy;               /* may be NULL */
    const bf16 *given;        /* may be NULL */
    any_tensor g;             /* data NULL: zeros */
    int64_t count;
    bool decays;
    float rate; /* factor of the learning rate */
};

struct adam_factors {
    float grad, m, v, limit, beta1, beta1_rest, beta2, beta2_rest, step, root, eps, decay;
    bool reset;
};

/* One element; returns whether spike clipping cut it. Products and sums are named one by one, or the
 * compiler would join them in one way here and in another there, and an element's bits would depend
 * on its place. */
template <bool WITH_MAX>
static __device__ inline int update_element(const adam_factors &f, float g, float &p, float &m,
                                            float &v, float &most) {
    int cut = 0;
    g = __fmul_rn(g, f.grad);
    if (f.limit > 0) {
        float limit = __fmul_rn(v, f.limit);
        cut = limit > 0 && __fmul_rn(g, g) > limit;
        if (cut) g = copysignf(__fsqrt_rn(limit), g);
    }
    m = __fmaf_rn(__fmul_rn(m, f.m), f.beta1, __fmul_rn(g, f.beta1_rest));
    v = __fmaf_rn(__fmul_rn(v, f.v), f.beta2, __fmul_rn(__fmul_rn(g, g), f.beta2_rest));
    most = WITH_MAX ? fmaxf(most, v) : v;
    float step = __fdiv_rn(__fmul_rn(m, f.step), __fmaf_rn(__fsqrt_rn(most), f.root, f.eps));
    p = __fsub_rn(p, __fmaf_rn(p, f.decay, step));
    if (f.reset) m = v = most = 0;
    return cut;
}

/* Takes over what someone else wrote into the parameter's bf16 form. */
static __device__ inline void take_given(float given, float &p) {
    if (to_float(from_float<bf16>(p)) != given) p = given;
}

/* Four elements of a slot: the parameter, its moments, its gradient. */
struct adam_quad {
    float p[QUAD], m[QUAD], v[QUAD], most[QUAD], g[QUAD];
};

/* `rounds` · ROUND elements of a slot from `at` on; G: the gradient's type. */
template <typename G, bool WITH_MAX, bool GIVEN>
__device__ static inline int update_rounds(const adam_slot &s, const adam_factors &f, int64_t at,
                                           int rounds) {
    const G *g = (const G *)s.g.data;
    int cuts = 0;
    at += threadIdx.x * QUAD;
#pragma unroll 1
    for (; rounds > 0; rounds--, at += ROUND) {
        adam_quad q[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int64_t from = at + i * QUAD * PACK_THREADS;
            load_vector(g + from, q[i].g);
            load_vector(s.p + from, q[i].p);
            load_vector(s.m + from, q[i].m);
            load_vector(s.v + from, q[i].v);
            if (WITH_MAX) load_vector(s.v_max + from, q[i].most);
            if (GIVEN) {
                float given[QUAD];
                load_vector(s.given + from, given);
#pragma unroll
                for (int k = 0; k < QUAD; k++)
                    take_given(given[k], q[i].p[k]);
            }
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int64_t to = at + i * QUAD * PACK_THREADS;
#pragma unroll
            for (int e = 0; e < QUAD; e++)
                cuts += update_element<WITH_MAX>(f, q[i].g[e], q[i].p[e], q[i].m[e], q[i].v[e],
                                                 q[i].most[e]);
            store_vector(s.p + to, q[i].p);
            store_vector(s.m + to, q[i].m);
            store_vector(s.v + to, q[i].v);
            if (WITH_MAX) store_vector(s.v_max + to, q[i].most);
            if (s.copy) store_vector(s.copy + to, q[i].p);
        }
    }
    return cuts;
}

/* Elements from `at` to before `end`, one by one: those behind a tensor's last round. */
__device__ static inline int update_rest(const adam_slot &s, const adam_factors &f, int64_t at,
                                         int64_t end) {
    int cuts = 0;
    for (int64_t i = at + threadIdx.x; i < end; i += PACK_THREADS) {
        float g = s.g.data ? load_any(s.g, i) : 0.0f, p = s.p[i], m = s.m[i], v = s.v[i], most = 0;
        if (s.given) take_given(to_float(s.given[i]), p);
        if (s.v_max) {
            most = s.v_max[i];
            cuts += update_element<true>(f, g, p, m, v, most);
            s.v_max[i] = most;
        } else {
            cuts += update_element<false>(f, g, p, m, v, most);
        }
        s.p[i] = p, s.m[i] = m, s.v[i] = v;
        if (s.copy) s.copy[i] = from_float<bf16>(p);
    }
    return cuts;
}

template <typename G, bool WITH_MAX>
__device__ static inline int update_rounds(const adam_slot &s, const adam_factors &f, int64_t at,
                                           int rounds) {
    return s.given ? update_rounds<G, WITH_MAX, true>(s, f, at, rounds)
                   : update_rounds<G, WITH_MAX, false>(s, f, at, rounds);
}

/* cuts[block]: what spike clipping cut in its chunk. */
static __global__ void __launch_bounds__(PACK_THREADS, ADAM_BLOCKS)
    update_chunk(const __grid_constant__ slot_list<adam_slot> list, const float *control,
                 int32_t *cuts) {
    int64_t at;
    const adam_slot &s = find_slot(list, ADAM_CHUNK, at);
    int cut = 0;
    if (control[WEFT_CONTROL_APPLY] != 0) {
        adam_factors f;
        f.grad = control[WEFT_CONTROL_GRAD];
        f.m = control[WEFT_CONTROL_M];
        f.v = control[WEFT_CONTROL_V];
        f.limit = control[WEFT_CONTROL_CUT] * f.v;
        f.beta1 = control[WEFT_CONTROL_BETA1];
        f.beta1_rest = control[WEFT_CONTROL_BETA1_REST];
        f.beta2 = control[WEFT_CONTROL_BETA2];
        f.beta2_rest = control[WEFT_CONTROL_BETA2_REST];
        f.step = __fmul_rn(control[WEFT_CONTROL_STEP], s.rate);
        f.root = control[WEFT_CONTROL_ROOT];
        f.eps = control[WEFT_CONTROL_EPS];
        f.decay = s.decays ? control[WEFT_CONTROL_DECAY] : 0.0f;
        f.reset = control[WEFT_CONTROL_RESET] != 0;
        int64_t end = min_i64(at + ADAM_CHUNK, s.count);
        int rounds = s.g.data ? (int)(end - at) / ROUND : 0;
        if (s.v_max)
            cut = s.g.is_bf16 ? update_rounds<bf16, true>(s, f, at, rounds)
                              : update_rounds<float, true>(s, f, at, rounds);
        else
            cut = s.g.is_bf16 ? update_rounds<bf16, false>(s, f, at, rounds)
                              : update_rounds<float, false>(s, f, at, rounds);
        cut += update_rest(s, f, at + rounds * ROUND, end);
    }
    /* At most ADAM_CHUNK: exact in float. */
    float total = block_sum((float)cut);
    if (threadIdx.x == 0) cuts[blockIdx.x] = (int32_t)total;
}

static __global__ void join_cuts(int64_t chunks, const int32_t *cuts, int32_t *out) {
    double sum = sum_by_block<JOIN_THREADS>(cuts, chunks);
    if (threadIdx.x == 0) *out = (int32_t)fmin(sum, 2147483647.0);
}

CUDA_RUN_WITH(adamw, count_chunks(n, 1, WEFT_SLOT_SIZE, ADAM_CHUNK) * (int64_t)sizeof(int32_t)) {
    const float *control = data_of<float>(x, n->in[0]);
    const double *rates = (const double *)n->attr;
    int32_t *cuts = workspace_of<int32_t>(x, n);
    int64_t done = launch_slots(
        n, 1, WEFT_SLOT_SIZE, ADAM_CHUNK,
        [&](int i) {
            weft_tensor *const *in = n->in + i;
            adam_slot s = {};
            s.p = data_of<float>(x, in[WEFT_SLOT_PARAM]);
            s.m = data_of<float>(x, in[WEFT_SLOT_M]);
            s.v = data_of<float>(x, in[WEFT_SLOT_V]);
            s.v_max = data_of<float>(x, in[WEFT_SLOT_V_MAX]);
            s.copy = data_of<bf16>(x, in[WEFT_SLOT_COPY]);
            s.given = data_of<bf16>(x, in[WEFT_SLOT_GIVEN]);
            s.g = any_of(x, in[WEFT_SLOT_GRAD]);
            s.count = weft_tensor_count(in[WEFT_SLOT_PARAM]);
            s.decays = in[WEFT_SLOT_PARAM]->ndim >= 2;
            s.rate = rates ? (float)rates[(i - 1) / WEFT_SLOT_SIZE] : 1.0f;
            return s;
        },
        [&](const slot_list<adam_slot> &list, unsigned chunks, int64_t before) {
            update_chunk<<<chunks, PACK_THREADS, 0, stream_of(x)>>>(list, control, cuts + before);
        });
    join_cuts<<<1, JOIN_THREADS, 0, stream_of(x)>>>(done, cuts, data_of<int32_t>(x, n->out[0]));
    return launched(n);
}

struct masked_slot {
    float *p;
    bf16 *copy; /* may be NULL */
    const int8_t *mask;
    int64_t count;
};

/* Floor: the masks' bytes, and what is zero written. */
static __global__ void __launch_bounds__(PACK_THREADS)
    zero_chunk(const __grid_constant__ slot_list<masked_slot> list) {
    int64_t at;
    const masked_slot &s = find_slot(list, ADAM_CHUNK, at);
    int64_t end = min_i64(at + ADAM_CHUNK, s.count);
#pragma unroll 4
    for (int64_t i = at + threadIdx.x; i < end; i += PACK_THREADS) {
        if (s.mask[i]) continue;
        s.p[i] = 0;
        if (s.copy) s.copy[i] = from_float<bf16>(0.0f);
    }
}

CUDA_RUN(zero_masked) {
    launch_slots(
        n, 0, WEFT_MASKED_SIZE, ADAM_CHUNK,
        [&](int i) {
            return masked_slot{data_of<float>(x, n->in[i + WEFT_MASKED_PARAM]),
                               data_of<bf16>(x, n->in[i + WEFT_MASKED_COPY]),
                               data_of<int8_t>(x, n->in[i + WEFT_MASKED_MASK]),
                               weft_tensor_count(n->in[i + WEFT_MASKED_PARAM])};
        },
        [&](const slot_list<masked_slot> &list, unsigned chunks, int64_t) {
            zero_chunk<<<chunks, PACK_THREADS, 0, stream_of(x)>>>(list);
        });
    return launched(n);
}
