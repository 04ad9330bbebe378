/* Products of few rows by TMA and wgmma (streamed.cuh).
 *
 * Floor: the bytes of b once. Its rows are the instruction's M, 64 to a warpgroup, and the rows of a its
 * N: 16 to 256, the rest zeros. A block has 64 or 128 rows of b and a part of k; one thread asks TMA for
 * 64 columns of b and of a at a time, into a ring of stages, and runs as far ahead as there is room: with
 * up to 113 KB a block two are on a multiprocessor, one of them perhaps of the next product. b does
 * not change in generation, so that it is asked for before the kernel ahead has ended.
 *
 * Where n is small, k is cut into up to eight parts, so that all multiprocessors have work. The blocks of
 * the parts are a cluster: each leaves its sums in shared memory, and each adds a share of all, part after
 * part, reading from the others. How k is cut follows from n and k alone, and within a part the sum goes
 * from k to k: hence a row's bits.
 *
 * What TMA finds outside of a matrix is 0, so n, k and the number of rows need not be multiples of
 * anything but what TMA asks for, rows of 16 bytes. */
#include "cuda/products/streamed.cuh"

#include "cuda/dependent_launch.cuh"
#include "cuda/products/finish.cuh"
#include "cuda/tensor/pipeline.cuh"
#include "cuda/tensor/tma_map.cuh"

enum {
    DEPTH = 64,       /* columns in a stage: 128 bytes, a swizzled row */
    GROUP_ROWS = 64,  /* of b, a warpgroup's */
    MOST_PARTS = 8,   /* of k: a cluster's blocks */
    PART_STAGES = 2,  /* of a part, at least */
    ENOUGH = 180,     /* blocks of 64 rows that k is cut for */
    ENOUGH_WIDE = 96, /* blocks of 128 rows, if they are to be that wide */
    MOST_ROWS = 256,  /* of a in a block */
    MOST_RING = 13,   /* stages in shared memory */
    ASKED = 10,       /* stages behind those that go to the L2 cache before the kernel ahead ends */
    NORM_ROWS = 16,   /* of a tile of a that is normed here */
    NORM_FEW = 4,     /* rows of it: a warp each */
    NORM_STAGES = 16, /* of a part of it, at most */
    NORM_BYTES = 13 * GROUP_ROWS * 128,
    NORM_BY_LANE = 1024, /* columns of which norm.cu gives each lane its own sum */
    NORM_MOST = 2048,    /* columns */
    NORM_STAGE = NORM_ROWS * 128 + 64 * 8, /* bytes of a stage of a, and of its gains and offsets */
    DESCRIBED = 0x3ffff
};

/* One of the products of a launch. */
struct streamed_matrix {
    CUtensorMap b, up; /* up: of a gated product */
    finishing end, up_end;
    any_tensor y;   /* of a gated product, else NULL */
    int n;          /* rows of b */
    int parts;      /* of k */
    unsigned after; /* the launch's block behind its last */
};

struct streamed_problem {
    CUtensorMap a;
    streamed_matrix of[GEMM_TOGETHER];
    streamed_norm norm; /* of a, where the kernel makes it */
    int m, k, stages;   /* rows; columns, and how often DEPTH of them */
    int ring;           /* stages in shared memory */
    int cluster;
    bool steady;
};

/* N rows of a, G warpgroups, that is 64 G rows of b; STAGES of both, or where a is normed here NORM_BYTES for
 * stages of b, and behind them all of the part's a, and its gains and offsets. */
template <int N, int G, int STAGES, bool NORMED> struct streamed_shape {
    static constexpr int WIDTH = G * GROUP_ROWS, THREADS = G * 128 + 32,
                         B_BYTES = WIDTH * DEPTH * 2, A_BYTES = N * DEPTH * 2,
                         STAGE = NORMED ? B_BYTES : B_BYTES + A_BYTES, PITCH = WIDTH + 4,
                         AT_BARRIERS = NORMED ? (int)NORM_BYTES : STAGES * STAGE,
                         MEMORY = AT_BARRIERS + 16 * MOST_RING + 1024 /* the start is rounded up */;
    static_assert(N * PITCH * 4 <= (NORMED ? STAGE : AT_BARRIERS), "sums lie where stages were");
    static_assert(N == MOST_ROWS || 2 * (MEMORY + 1024) <= 228 << 10, "two blocks at a time");
};

#ifndef USE_MMA_SYNC
#define BLOCKS(n) ((n) == MOST_ROWS ? 1 : 2)

/* A block's place: whose product, which rows of b, which stages of k. */
struct streamed_place {
    int of, column, part, first, stages;
};

template <int WIDTH>
__device__ static inline streamed_place find_place(const streamed_problem &p, bool gated) {
    streamed_place t = {};
    while (blockIdx.x >= p.of[t.of].after)
        t.of++;
    const streamed_matrix &w = p.of[t.of];
    int block = (int)(blockIdx.x - (t.of ? p.of[t.of - 1].after : 0));
    t.part = block % w.parts;
    t.column = block / w.parts * (gated ? WIDTH / 2 : WIDTH);
    t.first = p.stages * t.part / w.parts;
    t.stages = t.column < w.n ? p.stages * (t.part + 1) / w.parts - t.first : 0;
    return t;
}

/* A place in the ring, and how often it was used before. */
struct ring_place {
    int slot;
    uint32_t phase;
    __device__ void advance(int ring) {
        if (++slot == ring) slot = 0, phase++;
    }
};

/* Into the L2 cache: a box that will be loaded. */
__device__ static inline void ask_for_box(const CUtensorMap *from, int x, int y) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(from),
                 "r"(x), "r"(y)
                 : "memory");
}

template <int N, int G, int STAGES, bool NORMED>
__device__ static inline void produce_stages(const streamed_problem &p, const streamed_place &t,
                                             uint32_t memory) {
    using shape = streamed_shape<N, G, STAGES, NORMED>;
    const streamed_matrix &w = p.of[t.of];
    bool gated = w.y.data != NULL;
    int row = (int)blockIdx.y * N, ready = min(t.stages, p.ring);
    auto load_b = [&](int i, int slot) {
        uint32_t full = memory + shape::AT_BARRIERS + 8 * (uint32_t)slot;
        uint32_t to = memory + (uint32_t)(slot * shape::STAGE);
        int k = (t.first + i) * DEPTH;
        arrive_expect_tx(full, shape::STAGE);
#pragma unroll
        for (int g = 0; g < G; g++)
            tma_load_2d(to + (uint32_t)(g * GROUP_ROWS * DEPTH * 2), gated && g ? &w.up : &w.b, k,
                        t.column + (gated ? 0 : g * GROUP_ROWS), full);
    };
    auto load_a = [&](int i, int slot) {
        if (!NORMED)
            tma_load_2d(memory + (uint32_t)(slot * shape::STAGE + shape::B_BYTES), &p.a,
                        (t.first + i) * DEPTH, row,
                        memory + shape::AT_BARRIERS + 8 * (uint32_t)slot);
    };
    if (!p.steady) wait_for_primary();
    for (int i = 0; i < ready; i++)
        load_b(i, i);
    for (int i = ready; p.steady && i < min(t.stages, ready + ASKED); i++)
#pragma unroll
        for (int g = 0; g < G; g++)
            ask_for_box(gated && g ? &w.up : &w.b, (t.first + i) * DEPTH,
                        t.column + (gated ? 0 : g * GROUP_ROWS));
    if (p.steady) wait_for_primary();
    for (int i = 0; i < ready; i++)
        load_a(i, i);
    ring_place at = {0, 0};
    for (int i = ready; i < t.stages; i++, at.advance(p.ring)) {
        wait_phase(memory + shape::AT_BARRIERS + 8 * (uint32_t)(MOST_RING + at.slot), at.phase);
        load_b(i, at.slot);
        load_a(i, at.slot);
    }
}

/* Starts the products of stage i: the warpgroup's 64 rows of b by all of a. SET: c begins with them. */
template <int N, int G, int STAGES, bool NORMED, bool SET>
__device__ static inline void multiply_stage(uint32_t memory, uint32_t a, int i, ring_place at,
                                             float (&c)[N / 8][4]) {
    using shape = streamed_shape<N, G, STAGES, NORMED>;
    uint32_t stage = memory + (uint32_t)(at.slot * shape::STAGE);
    uint32_t rows = NORMED ? a + (uint32_t)(i * shape::A_BYTES) : stage + shape::B_BYTES;
    uint64_t left = describe_tile<GROUP_ROWS, DEPTH>(
        (stage + threadIdx.x / 128 * (GROUP_ROWS * DEPTH * 2)) & DESCRIBED);
    uint64_t right = describe_tile<N, DEPTH>(rows & DESCRIBED);
    wait_phase(memory + shape::AT_BARRIERS + 8 * (uint32_t)at.slot, at.phase);
    begin_products();
    wgmma<N>::template tiles<!SET, false>(c, left, right);
#pragma unroll
    for (int k = 1; k < DEPTH / 16; k++)
        wgmma<N>::template tiles<true, false>(c, move_on(left, (uint32_t)k * 32),
                                              move_on(right, (uint32_t)k * 32));
    end_products();
}

/* All of them, one or more. A stage is given back when its products are done, one stage later. */
template <int N, int G, int STAGES, bool NORMED>
__device__ static inline void multiply_stages(const streamed_problem &p, const streamed_place &t,
                                              uint32_t memory, uint32_t a, float (&c)[N / 8][4]) {
    uint32_t empty = memory + streamed_shape<N, G, STAGES, NORMED>::AT_BARRIERS + 8 * MOST_RING;
    ring_place at = {0, 0};
    multiply_stage<N, G, STAGES, NORMED, true>(memory, a, 0, at, c);
    for (int i = 1; i < t.stages; i++) {
        uint32_t before = empty + 8 * (uint32_t)at.slot;
        at.advance(p.ring);
        multiply_stage<N, G, STAGES, NORMED, false>(memory, a, i, at, c);
        wait_products<1>();
        if (threadIdx.x % 32 == 0) arrive(before);
    }
    wait_products<0>();
    settle(c);
}

/* A pack of a row that is normed, with what is added to it; zeros behind the row. */
__device__ static inline void load_row_pack(const streamed_problem &p, int64_t row, int pack,
                                            float (&v)[VECTOR]) {
    uint4 x = make_uint4(0, 0, 0, 0), r = x;
    if (pack * VECTOR < p.k) {
        x = *(const uint4 *)(p.norm.x + row + pack * VECTOR);
        if (p.norm.r) r = *(const uint4 *)(p.norm.r + row + pack * VECTOR);
    }
    widen_words(x, v);
    if (!p.norm.r) return;
    float other[VECTOR];
    widen_words(r, other);
#pragma unroll
    for (int j = 0; j < VECTOR; j++)
        v[j] += other[j];
}

__device__ static inline uint4 round_pack(const float (&v)[VECTOR]) {
    return make_uint4(join_halves(v[0], v[1]), join_halves(v[2], v[3]), join_halves(v[4], v[5]),
                      join_halves(v[6], v[7]));
}

/* Σ of a row's numbers, or of their squares around the mean, as norm.cu makes it: up to 1,024 columns each
 * lane sums its own first, else each 32 packs are summed by themselves. */
template <bool SQUARES>
__device__ static inline float sum_row(const streamed_problem &p, int64_t row, float mean) {
    int lane = (int)threadIdx.x % 32, packs = p.k / VECTOR;
    bool by_lane = p.k <= NORM_BY_LANE;
    float all = 0, sum = 0;
    for (int first = 0; first < packs; first += 32) {
        float v[VECTOR];
        bool there = first + lane < packs;
        load_row_pack(p, row, first + lane, v);
        if (there)
#pragma unroll
            for (int j = 0; j < VECTOR; j++) {
                float d = SQUARES ? v[j] - mean : v[j];
                sum += SQUARES ? d * d : d;
            }
        if (by_lane) continue;
        all += warp_sum(sum);
        sum = 0;
    }
    return by_lane ? warp_sum(sum) : all;
}

/* The gains and offsets of the part, before the kernel ahead has ended. */
template <int THREADS>
__device__ static inline void load_gains(const streamed_problem &p, const streamed_place &t,
                                         float2 *gains) {
    for (int i = (int)threadIdx.x; i < t.stages * DEPTH; i += THREADS) {
        int column = t.first * DEPTH + i;
        gains[i] = make_float2(column < p.k ? load_any(p.norm.w, column) : 0.0f,
                               column < p.k && p.norm.b.data ? load_any(p.norm.b, column) : 0.0f);
    }
}

/* The part's columns of the normed rows, as tiles of 64 columns: a warp a row, lane i with packs i, 32 + i
 * and so on. The blocks of the first rows of b also write them to memory. */
template <int WARPS>
__device__ static inline void norm_rows(const streamed_problem &p, const streamed_place &t, char *a,
                                        const float2 *gains) {
    int lane = (int)threadIdx.x % 32;
    bool kept = t.of == 0 && t.column == 0;
    for (int r = (int)threadIdx.x / 32; r < NORM_ROWS; r += WARPS) {
        int64_t row = (int64_t)r * p.k;
        float mean = 0, rstd = 0;
        if (r < p.m) {
            mean = p.norm.centered ? sum_row<false>(p, row, 0) * p.norm.share : 0.0f;
            rstd = rsqrtf(sum_row<true>(p, row, mean) * p.norm.share + p.norm.eps);
        }
        for (int i = lane; i < t.stages * (DEPTH / VECTOR); i += 32) {
            int pack = t.first * (DEPTH / VECTOR) + i;
            uint4 words = make_uint4(0, 0, 0, 0);
            if (r < p.m && pack * VECTOR < p.k) {
                float v[VECTOR];
                load_row_pack(p, row, pack, v);
                if (kept && p.norm.s) *(uint4 *)(p.norm.s + row + pack * VECTOR) = round_pack(v);
#pragma unroll
                for (int j = 0; j < VECTOR; j++) {
                    float2 g = gains[i * VECTOR + j];
                    v[j] = (v[j] - mean) * rstd * g.x + g.y;
                }
                words = round_pack(v);
                if (kept && p.norm.y) *(uint4 *)(p.norm.y + row + pack * VECTOR) = words;
            }
            *(uint4 *)(a + i / 8 * (NORM_ROWS * DEPTH * 2) +
                       tile_place<NORM_ROWS, DEPTH>(r, i % 8)) = words;
        }
    }
}

/* Sums to shared memory, [N, PITCH]: no two lanes of a store meet in a bank. */
template <int N, int PITCH>
__device__ static inline void leave_sums(const float (&c)[N / 8][4], float *sums) {
    int lane = threadIdx.x % 32, column = (int)threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            sums[(8 * n + lane % 4 * 2 + e % 2) * PITCH + column + e / 2 * 8] = c[n][e];
}

/* Four numbers of the block `rank` of the cluster, at the address that they have here. */
__device__ static inline float4 load_from(uint32_t at, uint32_t rank) {
    float4 v;
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %4, %5;\n"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n"
                 "}\n"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(at), "r"(rank)
                 : "memory");
    return v;
}

/* Part after part; all are under way before the first is added. */
__device__ static inline float4 add_parts(uint32_t at, uint32_t rank, int parts, float alpha) {
    float4 part[MOST_PARTS];
#pragma unroll
    for (int i = 0; i < MOST_PARTS; i++)
        if (i < parts) part[i] = load_from(at, rank + (uint32_t)i);
    float4 sum = part[0];
#pragma unroll
    for (int i = 1; i < MOST_PARTS; i++)
        if (i < parts) sum = add_four(sum, part[i]);
    return make_float4(alpha * sum.x, alpha * sum.y, alpha * sum.z, alpha * sum.w);
}

__device__ static inline float silu_mul(float gate, float up) {
    gate = to_float(from_float<bf16>(gate));
    return gate * sigmoid(gate) * to_float(from_float<bf16>(up));
}

/* The block's share of the rows of a and the columns of its tile: four columns of a row at a time. */
template <int N, int G, int STAGES, bool NORMED> struct streamed_share {
    using shape = streamed_shape<N, G, STAGES, NORMED>;
    const streamed_problem &p;
    const streamed_place &t;
    const streamed_matrix &w;
    bool gated;
    int row, end, step;

    __device__ streamed_share(const streamed_problem &problem, const streamed_place &place)
        : p(problem), t(place), w(problem.of[place.of]), gated(w.y.data != NULL),
          row((int)blockIdx.y * N), end(min(N, p.m - row) * (gated ? FOURS / 2 : FOURS)),
          step(w.parts * G * 128) {
    }

    static constexpr int FOURS = shape::WIDTH / 4;

    __device__ int first() const {
        return t.part * (G * 128) + (int)threadIdx.x;
    }

    __device__ int row_of(int e) const {
        return gated ? e / (FOURS / 2) : e / FOURS;
    }

    __device__ int column_of(int e) const {
        return (e - row_of(e) * (gated ? FOURS / 2 : FOURS)) * 4;
    }

    __device__ four_addends addends(int e) const {
        if (e >= end) return four_addends{};
        return load_addends(w.end, row + row_of(e), t.column + column_of(e), w.n);
    }

    __device__ void finish(uint32_t sums, four_addends next) const {
        uint32_t rank;
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
        rank -= (uint32_t)t.part;
        for (int e = first(); e < end; e += step) {
            four_addends added = next;
            next = addends(e + step);
            int r = row_of(e), column = column_of(e);
            uint32_t at = sums + (uint32_t)((r * shape::PITCH + column) * 4);
            float4 v = add_parts(at, rank, w.parts, w.end.alpha);
            column += t.column;
            if (!gated)
                finish_four(w.end, row + r, column, w.n, v, added);
            else
                finish_gated(r, column, v,
                             add_parts(at + GROUP_ROWS * 4, rank, w.parts, w.up_end.alpha));
        }
    }

    __device__ void finish_gated(int r, int column, float4 v, float4 u) const {
        if (w.end.c.data) finish_four(w.end, row + r, column, w.n, v, four_addends{});
        if (w.up_end.c.data) finish_four(w.up_end, row + r, column, w.n, u, four_addends{});
        float y[4] = {silu_mul(v.x, u.x), silu_mul(v.y, u.y), silu_mul(v.z, u.z),
                      silu_mul(v.w, u.w)};
        int64_t to = (row + r) * w.end.ld + column;
        if (w.end.by_fours && column < w.n)
            store_four(w.y, to, make_float4(y[0], y[1], y[2], y[3]));
        else
            for (int i = 0; i < 4 && column + i < w.n; i++)
                store_any(w.y, to + i, y[i]);
    }
};

/* All threads of a cluster's blocks come to the first, and find behind the second what the others wrote
 * before. A block by itself meets at the second. */
__device__ static inline void arrive_at_cluster(int blocks) {
    if (blocks > 1) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ static inline void wait_for_cluster(int blocks) {
    if (blocks > 1)
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    else
        __syncthreads();
}
#define LAUNCH_THREADS(g) (g * 128 + 32)
#else
#define LAUNCH_THREADS(g) 32
#define BLOCKS(n) 1
#endif

template <int N, int G, int STAGES, bool NORMED>
static __global__ void __launch_bounds__(LAUNCH_THREADS(G), BLOCKS(N))
    multiply_streamed(const __grid_constant__ streamed_problem p) {
#ifndef USE_MMA_SYNC
    using shape = streamed_shape<N, G, STAGES, NORMED>;
    extern __shared__ char raw[];
    uint32_t raw_at = shared_address(raw), memory = (raw_at + 1023) / 1024 * 1024;
    char *start = raw + (memory - raw_at);
    trigger_dependents(); /* the next product may ask for its own */
    streamed_place t = find_place<shape::WIDTH>(p, p.of[0].y.data != NULL);
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < MOST_RING; i++) {
            init_barrier(memory + shape::AT_BARRIERS + 8 * i, 1);
            init_barrier(memory + shape::AT_BARRIERS + 8 * (MOST_RING + i), 4 * G);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= G * 128) {
        if (threadIdx.x == G * 128) produce_stages<N, G, STAGES, NORMED>(p, t, memory);
        __syncwarp();
    } else if (t.stages > 0) {
        float c[N / 8][4];
        uint32_t a = memory + (uint32_t)(p.ring * shape::STAGE);
        if constexpr (NORMED) {
            char *rows = start + p.ring * shape::STAGE;
            float2 *gains = (float2 *)(rows + t.stages * shape::A_BYTES);
            load_gains<G * 128>(p, t, gains);
            asm volatile("bar.sync 1, %0;" ::"n"(G * 128) : "memory");
            wait_for_primary();
            norm_rows<G * 4>(p, t, rows, gains);
            publish_words();
            asm volatile("bar.sync 1, %0;" ::"n"(G * 128) : "memory");
        }
        multiply_stages<N, G, STAGES, NORMED>(p, t, memory, a, c);
        /* The other warpgroup may still read what the sums are written over. */
        asm volatile("bar.sync 1, %0;" ::"n"(G * 128) : "memory");
        leave_sums<N, shape::PITCH>(c, (float *)start);
    }
    /* Every thread, so that this kernel ends no sooner than the one ahead. */
    wait_for_primary();
    __syncwarp();
    arrive_at_cluster(p.cluster);
    streamed_share<N, G, STAGES, NORMED> share(p, t);
    bool finishes = threadIdx.x < G * 128;
    four_addends added = {};
    if (finishes) added = share.addends(share.first());
    __syncwarp();
    wait_for_cluster(p.cluster);
    if (finishes) share.finish(memory, added);
    __syncwarp();
    arrive_at_cluster(p.cluster);
    wait_for_cluster(p.cluster); /* nobody reads here any more */
#endif
}

bool streamed_fits(const cuda_gemm *p) {
    auto suits = [](const cuda_gemm_matrix &x) { return x.is_bf16 && !x.is_i8 && x.ld % 8 == 0; };
    return weft_cuda_device()->wgmma && p->tb && !p->ta && p->batch == 1 && p->k % 8 == 0 &&
           suits(p->a) && suits(p->b) && p->n < INT32_MAX / 2;
}

bool streamed_can(const cuda_gemm *p) {
    return streamed_fits(p) && (uintptr_t)p->a.data % 16 == 0 && (uintptr_t)p->b.data % 16 == 0;
}

static int count_stages(const cuda_gemm *p) {
    return (int)ceil_div(p->k, DEPTH);
}

/* By n and k alone; of a gated product by the rows of both matrices. */
static int count_parts(const cuda_gemm *p, bool gated) {
    int parts = 1;
    int64_t rows = gated ? 2 * p->n : p->n;
    while (parts < MOST_PARTS && ceil_div(rows, GROUP_ROWS) * parts < ENOUGH &&
           count_stages(p) >= 2 * parts * PART_STAGES)
        parts *= 2;
    return parts;
}

bool streamed_can_norm(const cuda_gemm *p, bool gated) {
    return p->m <= NORM_FEW && p->k <= NORM_MOST && p->a.ld == p->k &&
           ceil_div(count_stages(p), count_parts(p, gated)) <= NORM_STAGES;
}

template <int N, int G, int STAGES, bool NORMED>
static void launch_shape(cudaStream_t stream, streamed_problem &p, bool follows) {
    using shape = streamed_shape<N, G, STAGES, NORMED>;
    static cudaError_t allowed =
        cudaFuncSetAttribute(multiply_streamed<N, G, STAGES, NORMED>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, shape::MEMORY);
    cudaLaunchAttribute how[2] = {};
    int hows = 0;
    if (p.cluster > 1) {
        how[hows].id = cudaLaunchAttributeClusterDimension;
        how[hows].val.clusterDim.x = (unsigned)p.cluster;
        how[hows].val.clusterDim.y = how[hows].val.clusterDim.z = 1;
        hows++;
    }
    if (follows) {
        how[hows].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        how[hows++].val.programmaticStreamSerializationAllowed = 1;
    }
    unsigned blocks = 0;
    int longest = 0;
    for (int i = 0; i < GEMM_TOGETHER && p.of[i].n; i++) {
        blocks = p.of[i].after;
        longest = (int)max_i64(longest, ceil_div(p.stages, p.of[i].parts));
    }
    p.ring = NORMED ? (NORM_BYTES - longest * NORM_STAGE) / shape::STAGE : STAGES;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks, (unsigned)ceil_div(p.m, N));
    config.blockDim = dim3(shape::THREADS);
    config.dynamicSmemBytes = shape::MEMORY;
    config.stream = stream;
    config.attrs = how;
    config.numAttrs = (unsigned)hows;
    if (allowed == cudaSuccess)
        cudaLaunchKernelEx(&config, multiply_streamed<N, G, STAGES, NORMED>, p);
}

template <int G> static void launch_wide(cudaStream_t stream, streamed_problem &p, bool follows) {
    if (p.norm.x)
        launch_shape<NORM_ROWS, G, 1, true>(stream, p, follows);
    else if (p.m <= 16)
        launch_shape<16, G, G == 1 ? 11 : 6, false>(stream, p, follows);
    else if (p.m <= 32)
        launch_shape<32, G, G == 1 ? 9 : 5, false>(stream, p, follows);
    else if (p.m <= 64)
        launch_shape<64, G, G == 1 ? 6 : 4, false>(stream, p, follows);
    else if (p.m <= 128)
        launch_shape<128, G, G == 1 ? 4 : 3, false>(stream, p, follows);
    else
        launch_shape<MOST_ROWS, G, 4, false>(stream, p, follows);
}

static int rows_of(int64_t m) {
    int rows = 16;
    while (rows < m && rows < MOST_ROWS)
        rows *= 2;
    return rows;
}

/* The products' blocks: whole clusters. */
static void launch_all(cudaStream_t stream, const cuda_gemm *p, int n, streamed_problem &k,
                       const streamed_norm *norm, bool gated) {
    int64_t wide = 0;
    if (norm)
        k.norm = *norm;
    else
        make_matrix_map(&k.a, (const bf16 *)p->a.data, p->m, p->k, p->a.ld, rows_of(p->m), DEPTH);
    k.m = (int)p->m;
    k.k = (int)p->k;
    k.stages = count_stages(p);
    k.steady = p->steady;
    k.cluster = 1;
    for (int i = 0; i < n; i++) {
        k.of[i].n = (int)p[i].n;
        k.of[i].parts = count_parts(&p[i], gated);
        k.of[i].end = describe_finish(&p[i]);
        make_matrix_map(&k.of[i].b, (const bf16 *)p[i].b.data, p[i].n, p[i].k, p[i].b.ld,
                        GROUP_ROWS, DEPTH);
        k.cluster = k.of[i].parts > k.cluster ? k.of[i].parts : k.cluster;
        wide += ceil_div(p[i].n, 2 * GROUP_ROWS) * k.of[i].parts;
    }
    int groups = gated || wide >= ENOUGH_WIDE || p->m > MOST_ROWS / 2 ? 2 : 1;
    int width = gated ? GROUP_ROWS : groups * GROUP_ROWS;
    for (int i = 0; i < n; i++) {
        int64_t blocks = ceil_div(p[i].n, width) * k.of[i].parts;
        k.of[i].after =
            (unsigned)(ceil_div(blocks, k.cluster) * k.cluster) + (i ? k.of[i - 1].after : 0);
    }
    if (groups == 2)
        launch_wide<2>(stream, k, p->follows);
    else
        launch_wide<1>(stream, k, p->follows);
}

void streamed_launch(cudaStream_t stream, const cuda_gemm *p, int n, const streamed_norm *norm) {
    streamed_problem k = {};
    launch_all(stream, p, n, k, norm, false);
}

void streamed_launch_gated(cudaStream_t stream, const cuda_gemm *gate, const cuda_gemm *up,
                           any_tensor y, const streamed_norm *norm) {
    streamed_problem k = {};
    make_matrix_map(&k.of[0].up, (const bf16 *)up->b.data, up->n, up->k, up->b.ld, GROUP_ROWS,
                    DEPTH);
    k.of[0].up_end = describe_finish(up);
    k.of[0].y = y;
    launch_all(stream, gate, 1, k, norm, true);
}
