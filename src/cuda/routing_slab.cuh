/* Slabs: what the two files share that make routing_gather.cu's sums from shared memory.
 *
 * A slab is 64 bytes of each row of one sequence. A block reads one after another, and makes every
 * sum of a slab's columns from shared memory, so that h and c (dc and dh) pass through memory once;
 * meanwhile the next slab comes, where there is room for two. A row's 64 bytes are LANES threads' 16
 * bytes; a group of LANES threads makes one sum at a time. What all slabs of a sequence need is
 * prepared once by a small kernel, a plan: entries of (where the row is in the slab, weight), two in
 * 16 bytes, laid out so that the groups of a warp read theirs side by side. An entry that is not
 * there names a row of zeros behind the slab. */
#ifndef WEFT_CUDA_ROUTING_SLAB_CUH
#define WEFT_CUDA_ROUTING_SLAB_CUH

#include "cuda/routing.cuh"

enum {
    LANES = 4,
    PITCH = 16 * LANES, /* bytes of a row of the slab */
    THREADS = 1024,
    GROUPS = THREADS / LANES,
    BLOCKS = 132, /* one for each multiprocessor */
    MOST_SHARED = 227 << 10
};

/* Columns of a thread. */
template <typename T> static constexpr int PIECE = 16 / (int)sizeof(T);

typedef struct {
    int64_t in_rows, out_rows, width, batch; /* rows of the slab and of the result */
    int64_t slabs;                           /* of a sequence */
    int buffers, stride;                     /* slabs that there is room for, and bytes of one */
} slab_shape;

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

/* As many buffers as fit beside `other` bytes, two at most; 0: none. */
static inline slab_shape make_slabs(const weft_tensor *in, const weft_tensor *out, int64_t stride,
                                    int64_t other) {
    int64_t columns = PITCH / (int64_t)weft_dtype_size(in->dtype);
    int64_t fit = (MOST_SHARED - other) / stride;
    return slab_shape{in->shape[1],
                      out->shape[1],
                      in->shape[2],
                      in->shape[0],
                      ceil_div(in->shape[2], columns),
                      (int)min_i64(2, fit),
                      (int)stride};
}

/* Starts reading slab `at` of all, as one group of copies, and puts the row of zeros behind it. */
template <bool ALIGNED, typename T>
__device__ static inline void start_slab(unsigned char *slab, const slab_shape &s, const T *in,
                                         int64_t at) {
    int rows = (int)s.in_rows, lane = (int)threadIdx.x % LANES;
    int64_t column = (at % s.slabs * LANES + lane) * PIECE<T>;
    bool there = column < s.width;
    in += at / s.slabs * s.in_rows * s.width + (there ? column : 0);
    for (int row = (int)threadIdx.x / LANES; row < rows; row += GROUPS) {
        unsigned char *to = slab + row * PITCH + lane * 16;
        if (ALIGNED) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                             (unsigned)__cvta_generic_to_shared(to)),
                         "l"(in + row * s.width), "r"(there ? 16 : 0)
                         : "memory");
        } else {
            for (int c = 0; c < PIECE<T>; c++)
                ((T *)to)[c] = column + c < s.width ? in[row * s.width + c] : from_float<T>(0);
        }
    }
    if (threadIdx.x < LANES) ((uint4 *)(slab + rows * PITCH))[lane] = make_uint4(0, 0, 0, 0);
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Calls add(slab, at) for the block's slabs, all threads together. */
template <bool ALIGNED, typename T, typename F>
__device__ static inline void walk_slabs(unsigned char *memory, const slab_shape &s, const T *in,
                                         F add) {
    int64_t all = s.slabs * s.batch, at = blockIdx.x;
    start_slab<ALIGNED>(memory, s, in, at);
    for (int turn = 0; at < all; turn++) {
        int64_t next = at + gridDim.x;
        unsigned char *slab = memory + turn % s.buffers * s.stride;
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        if (s.buffers > 1 && next < all)
            start_slab<ALIGNED>(memory + (turn + 1) % 2 * s.stride, s, in, next);
        add(slab, at);
        if (s.buffers == 1 && next < all) {
            __syncthreads();
            start_slab<ALIGNED>(memory, s, in, next);
        }
        at = next;
    }
}

__device__ static inline uint2 make_entry(int64_t row, float weight) {
    return make_uint2((unsigned)row * PITCH, __float_as_uint(weight));
}

#endif
