/* Slabs: what the two files share that make routing_gather.cu's sums from shared memory.
 *
 * A block has one sequence and a slab of columns: all its rows, 64 bytes of each. The slab is read
 * once, then every sum of those columns is made from shared memory, so that h and c (dc and dh) pass
 * through memory once. A row's 64 bytes are LANES threads' 16 bytes; a group of LANES threads makes
 * one sum at a time. What all slabs of a sequence need is prepared once by a small kernel, a plan:
 * entries of (where the row is in the slab, weight), two in 16 bytes, laid out so that the groups of
 * a warp read theirs side by side. An entry that is not there names a row of zeros behind the
 * slab. */
#ifndef WEFT_CUDA_ROUTING_SLAB_CUH
#define WEFT_CUDA_ROUTING_SLAB_CUH

#include "cuda/routing.cuh"

enum {
    LANES = 4,
    PITCH = 16 * LANES, /* bytes of a row of the slab */
    THREADS = 256,
    GROUPS = THREADS / LANES,
    MOST_SHARED = 227 << 10
};

/* Columns of a thread. */
template <typename T> static constexpr int PIECE = 16 / (int)sizeof(T);

typedef struct {
    int64_t in_rows, out_rows, width, batch; /* rows of the slab and of the result */
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

/* Reads the slab from column `first` on, and puts the row of zeros behind it. */
template <bool ALIGNED, typename T>
__device__ static inline void load_slab(unsigned char *slab, const slab_shape &s, const T *in,
                                        int64_t first) {
    int rows = (int)s.in_rows, lane = (int)threadIdx.x % LANES;
    int64_t column = first + lane * PIECE<T>;
    bool there = column < s.width;
    in += there ? column : 0;
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
    if (threadIdx.x < LANES) ((uint4 *)(slab + rows * PITCH))[threadIdx.x] = make_uint4(0, 0, 0, 0);
    asm volatile("cp.async.commit_group;\n\tcp.async.wait_group 0;" ::: "memory");
}

__device__ static inline uint2 make_entry(int64_t row, float weight) {
    return make_uint2((unsigned)row * PITCH, __float_as_uint(weight));
}

#endif
