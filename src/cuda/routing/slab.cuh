/* Slabs: what the two files share that make gather.cu's sums from shared memory.
 *
 * A block has one sequence and a slab of columns of one of the node's tensors: all its rows, 64 bytes
 * of each. The slab is read
 * once, then every sum of those columns is made from shared memory, so that h and c (dc and dh) pass
 * through memory once. A row's 64 bytes are LANES threads' 16 bytes; a group of LANES threads makes
 * one sum at a time. What all slabs of a sequence need is prepared once by a small kernel, a schedule:
 * entries of (where the row is in the slab, weight), two in 16 bytes, laid out so that the groups of
 * a warp read theirs side by side. An entry that is not there names a row of zeros behind the
 * slab. */
#ifndef WEFT_CUDA_ROUTING_SLAB_CUH
#define WEFT_CUDA_ROUTING_SLAB_CUH

#include "cuda/routing/routing.cuh"

enum {
    LANES = 4,
    PITCH = 16 * LANES, /* bytes of a row of the slab */
    THREADS = 256,
    GROUPS = THREADS / LANES
};

/* Columns of a thread. */
template <typename T> static constexpr int PIECE = 16 / (int)sizeof(T);

typedef struct {
    int64_t in_rows, out_rows, batch; /* rows of the slab and of the result */
    int64_t width[2];                 /* of the tensors; 0: not there */
    int64_t slabs[2];                 /* of a sequence */
} slab_shape;

static inline slab_shape make_slabs(const weft_node *n) {
    const weft_tensor *in = n->in[WEFT_GATHER_H];
    int64_t columns = PITCH / (int64_t)weft_dtype_size(in->dtype);
    slab_shape s = {in->shape[1], n->out[0]->shape[1], in->shape[0], {0, 0}, {0, 0}};
    for (int i = 0; i < 2 && weft_gather_input(n, i); i++) {
        s.width[i] = weft_gather_input(n, i)->shape[2];
        s.slabs[i] = ceil_div(s.width[i], columns);
    }
    return s;
}

/* Whether all rows begin at multiples of 16 bytes. */
template <typename T> static inline bool is_aligned(const slab_shape &s) {
    return s.width[0] % PIECE<T> == 0 && s.width[1] % PIECE<T> == 0;
}

template <typename T> struct slab_data {
    const T *in[2];
    T *out[2];
};

template <typename T> static slab_data<T> find_slabs(const weft_exec *x, const weft_node *n) {
    slab_data<T> d = {};
    for (int i = 0; i < 2 && weft_gather_input(n, i); i++) {
        d.in[i] = data_of<T>(x, weft_gather_input(n, i));
        d.out[i] = data_of<T>(x, n->out[i]);
    }
    return d;
}

/* What a block's thread works on: its sequence's rows, from its first column on. */
template <typename T> struct slab_place {
    const T *in;
    T *out;
    int64_t width;
    int count; /* columns that are there, PIECE at most; none: `in` and `out` are the first column's */
};

/* Blocks have one slab each, the second tensor's behind the first's. */
static inline dim3 slab_grid(const slab_shape &s) {
    return dim3((unsigned)(s.slabs[0] + s.slabs[1]), (unsigned)s.batch);
}

template <typename T>
__device__ static inline slab_place<T> find_place(const slab_shape &s, const slab_data<T> &d) {
    bool second = blockIdx.x >= s.slabs[0];
    int64_t slab = blockIdx.x - (second ? s.slabs[0] : 0), b = blockIdx.y;
    int64_t column = (slab * LANES + threadIdx.x % LANES) * PIECE<T>;
    slab_place<T> p = {second ? d.in[1] : d.in[0], second ? d.out[1] : d.out[0],
                       second ? s.width[1] : s.width[0], 0};
    p.count = (int)max_i64(0, min_i64(PIECE<T>, p.width - column));
    if (p.count == 0) column = 0;
    p.in += b * s.in_rows * p.width + column;
    p.out += b * s.out_rows * p.width + column;
    return p;
}

static inline int64_t slab_bytes(int64_t rows) {
    return (rows + 1) * PITCH;
}

/* 16 bytes of shared memory as floats. */
__device__ static inline void widen(const uint4 &a, float (&v)[8]) {
    unsigned words[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[2 * i] = __uint_as_float(words[i] << 16);
        v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

__device__ static inline void widen(const uint4 &a, float (&v)[4]) {
    v[0] = __uint_as_float(a.x), v[1] = __uint_as_float(a.y);
    v[2] = __uint_as_float(a.z), v[3] = __uint_as_float(a.w);
}

template <int N>
__device__ static inline void add_scaled(float (&sum)[N], float w, const uint4 &piece) {
    float v[N];
    widen(piece, v);
#pragma unroll
    for (int i = 0; i < N; i++)
        sum[i] = fmaf(w, v[i], sum[i]);
}

__device__ static inline unsigned pack_two(float low, float high) {
    unsigned word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

__device__ static inline void store_piece(float *to, const float (&v)[4]) {
    store_words(to, __float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                __float_as_uint(v[3]));
}

__device__ static inline void store_piece(bf16 *to, const float (&v)[8]) {
    store_words(to, pack_two(v[0], v[1]), pack_two(v[2], v[3]), pack_two(v[4], v[5]),
                pack_two(v[6], v[7]));
}

/* The first `count` columns, one or more; ALIGNED: all, at a multiple of 16 bytes. */
template <bool ALIGNED, typename T, int N>
__device__ static inline void store_columns(T *to, int count, const float (&v)[N]) {
    if (ALIGNED) {
        store_piece(to, v);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (i < count) to[i] = from_float<T>(v[i]);
    }
}

/* Starts reading rows `from` to `end` of the slab: a group of copies. */
template <bool ALIGNED, typename T>
__device__ static inline void load_rows(unsigned char *slab, int from, int end,
                                        const slab_place<T> &p) {
    int lane = (int)threadIdx.x % LANES;
    for (int row = from + (int)threadIdx.x / LANES; row < end; row += GROUPS) {
        unsigned char *to = slab + row * PITCH + lane * 16;
        if (ALIGNED) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                             (unsigned)__cvta_generic_to_shared(to)),
                         "l"(p.in + row * p.width), "r"(p.count > 0 ? 16 : 0)
                         : "memory");
        } else {
            for (int c = 0; c < PIECE<T>; c++)
                ((T *)to)[c] = c < p.count ? p.in[row * p.width + c] : from_float<T>(0);
        }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Puts the row of zeros behind the slab. */
__device__ static inline void clear_row(unsigned char *slab, int rows) {
    if (threadIdx.x < LANES) ((uint4 *)(slab + rows * PITCH))[threadIdx.x] = make_uint4(0, 0, 0, 0);
}

__device__ static inline uint2 make_entry(int64_t row, float weight) {
    return make_uint2((unsigned)row * PITCH, __float_as_uint(weight));
}

#endif
