/* Products of few rows by TMA and wgmma (streamed.cuh).
 *
 * Floor: the bytes of b once. Its rows are the instruction's M, 64 to a warpgroup, and the rows of a its
 * N: 16 to 256, the rest zeros. A block has 64 or 128 rows of b and a part of k; one thread asks TMA for
 * 64 columns of b and of a at a time, into a ring of stages, and runs as far ahead as there is room: with
 * up to 113 KB a block two are on a multiprocessor, one of them perhaps of the next product. b does
 * not change in generation, so that it is asked for before the kernel ahead has ended.
 *
 * k is cut into up to eight parts, so that all multiprocessors have work, and alike much. The blocks of
 * the parts are a cluster: each leaves its sums in shared memory, and each adds a share of all, part after
 * part, reading from the others. How k is cut follows from n and k alone, and within a part the sum goes
 * from k to k: hence a row's bits. Of few rows the blocks send their sums to that of the first part, which
 * finishes them all: nobody waits for the others then but that one.
 *
 * A norm before the product is behind it here: the rows of a are the residual stream itself, and a row's
 * mean and rstd are put to its sums. They come from the product that made the stream, which leaves the
 * moments of each 64 columns: always so many, and joined in one order, so that a row keeps its bits.
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
    ENOUGH = 96,      /* blocks of 64 rows that k is cut for */
    ENOUGH_WIDE = 96, /* blocks of 128 rows, if they are to be that wide */
    LONG_STAGES = 8,  /* of 64 rows, of each multiprocessor */
    JOIN_COST = 64,   /* of a block's sums, in rows of a stage */
    MOST_ROWS = 256,  /* of a in a block */
    ROW_LANES = 16,   /* that finish 64 columns of a row */
    SENT_ROWS = 4,    /* whose sums are sent, at most */
    DESCRIBED = 0x3ffff
};

/* What a kernel does beside its sums: silu_mul of two products; the gates of heads, before them; RoPE. */
enum { PLAIN, SILU, HEADS, ROPE };

/* One of the products of a launch. */
struct streamed_matrix {
    CUtensorMap a, b, up; /* up: of a gated product */
    finishing end, up_end;
    any_tensor y; /* of a gated product */
    const float *up_sums;
    gemm_norm norm; /* before it */
    float2 *moments;
    int n;          /* rows of b */
    int k, stages;  /* columns; of DEPTH of them */
    float share;    /* 1 / k */
    int parts;      /* of k */
    unsigned after; /* the launch's block behind its last */
};

struct streamed_problem {
    streamed_matrix of[GEMM_TOGETHER];
    int m;          /* rows of each a */
    gemm_gate gate; /* on a */
    gemm_rope rope; /* behind the sums */
    int cluster;
    bool sends; /* sums to the block of the first part */
    bool steady;
    bool late; /* what follows may come when a is there */
};

static_assert(sizeof(streamed_problem) <= 4096 - 64, "a kernel's parameters");

/* N rows of a, G warpgroups, that is 64 G rows of b, and as many stages as there is room for. */
template <int N, int G> struct streamed_shape {
    static constexpr int WIDTH = G * GROUP_ROWS, THREADS = G * 128 + 32, PITCH = WIDTH + 4;
    static constexpr int B_BYTES = WIDTH * DEPTH * 2, STAGE = B_BYTES + N * DEPTH * 2;
    static constexpr int SPARE = 16 + 1024; /* a barrier, and the start is rounded up */
    static constexpr int ROOM = (N == MOST_ROWS ? 227 : 113)
                                << 10; /* for one block, or each of two */
    static constexpr int STAGES = (ROOM - SPARE) / (STAGE + 16), AT_BARRIERS = STAGES * STAGE;
    static constexpr int AT_RECEIVED = (STAGES - 1) * STAGE; /* a stage that is not used then */
    static constexpr int MEMORY = AT_BARRIERS + 16 * STAGES + SPARE;
    static_assert((MOST_PARTS - 1) * SENT_ROWS * WIDTH * 4 <= STAGE, "what is sent to a block");
    static_assert(N * PITCH * 4 <= AT_BARRIERS, "sums lie where the stages were");
};

#ifndef USE_MMA_SYNC
#define BLOCKS(n) ((n) == MOST_ROWS ? 1 : 2)

/* A block's place: whose product, which rows of b, which stages of k. */
struct streamed_place {
    int of, column, part, first, stages;
};

template <int WIDTH> __device__ static inline streamed_place find_place(const streamed_problem &p) {
    streamed_place t = {};
    while (blockIdx.x >= p.of[t.of].after)
        t.of++;
    const streamed_matrix &w = p.of[t.of];
    int block = (int)(blockIdx.x - (t.of ? p.of[t.of - 1].after : 0));
    t.part = block % w.parts;
    t.column = block / w.parts * WIDTH;
    t.first = w.stages * t.part / w.parts;
    t.stages = t.column < w.n ? w.stages * (t.part + 1) / w.parts - t.first : 0;
    return t;
}

template <int N, int G, int MODE>
__device__ static inline void produce_stages(const streamed_problem &p, const streamed_place &t,
                                             uint32_t memory) {
    using shape = streamed_shape<N, G>;
    const streamed_matrix &w = p.of[t.of];
    int row = (int)blockIdx.y * N, ready = min(t.stages, shape::STAGES);
    asm volatile("prefetch.tensormap [%0];" ::"l"(&w.a) : "memory"); /* wanted when a is there */
    auto load_b = [&](int i) {
        uint32_t full = memory + shape::AT_BARRIERS + 8 * (uint32_t)(i % shape::STAGES);
        uint32_t to = memory + (uint32_t)(i % shape::STAGES * shape::STAGE);
        int k = (t.first + i) * DEPTH;
        arrive_expect_tx(full, shape::STAGE);
#pragma unroll
        for (int g = 0; g < G; g++)
            tma_load_2d(to + (uint32_t)(g * GROUP_ROWS * DEPTH * 2),
                        MODE == SILU && g ? &w.up : &w.b, k,
                        t.column + (MODE == SILU ? 0 : g * GROUP_ROWS), full);
    };
    auto load_a = [&](int i) {
        tma_load_2d(memory + (uint32_t)(i % shape::STAGES * shape::STAGE + shape::B_BYTES), &w.a,
                    (t.first + i) * DEPTH, row,
                    memory + shape::AT_BARRIERS + 8 * (uint32_t)(i % shape::STAGES));
    };
    if (!p.steady) wait_for_primary();
    for (int i = 0; i < ready; i++)
        load_b(i);
    if (p.steady) wait_for_primary();
    if (p.late) trigger_dependents();
    for (int i = 0; i < ready; i++)
        load_a(i);
    for (int i = ready; i < t.stages; i++) {
        wait_phase(memory + shape::AT_BARRIERS + 8 * (uint32_t)(shape::STAGES + i % shape::STAGES),
                   (uint32_t)(i / shape::STAGES) + 1);
        load_b(i);
        load_a(i);
    }
}

__device__ static inline void scale_chunk(uint32_t at, float factor) {
    uint4 words = load_shared(at);
    uint32_t w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        w[i] = join_halves(factor * __uint_as_float(w[i] << 16),
                           factor * __uint_as_float(w[i] & 0xffff0000u));
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(w[0]), "r"(w[1]),
                 "r"(w[2]), "r"(w[3])
                 : "memory");
}

/* The gates of a stage of a, whose columns are of one head: each thread has some chunks of 16 bytes, eight of
 * which are a row's, wherever the swizzle put them. With the bits of gate_mix. */
template <int N, int G> struct stage_gates {
    static constexpr int THREADS = G * 128, CHUNKS = (N * 8 + THREADS - 1) / THREADS;
    float factor[CHUNKS];

    /* Before the stage is there. */
    __device__ void load(const streamed_problem &p, int stage) {
        int head = stage * DEPTH / p.gate.width;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            int row = (int)blockIdx.y * N + ((int)threadIdx.x + i * THREADS) / 8;
            float gate = row < p.m ? load_any(p.gate.of, (int64_t)row * p.gate.heads + head) : 0.0f;
            factor[i] = 1 - p.gate.alpha + p.gate.alpha * sigmoid(gate);
        }
    }

    /* All of the block's that multiply meet here: what they wrote is then there for wgmma. */
    __device__ void apply(uint32_t a) const {
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            int chunk = (int)threadIdx.x + i * THREADS;
            if (chunk < N * 8) scale_chunk(a + (uint32_t)chunk * 16, factor[i]);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
    }
};

/* Starts the products of stage i: the warpgroup's 64 rows of b by all of a. SET: c begins with them. */
template <int N, int G, int MODE, bool SET>
__device__ static inline void multiply_stage(const streamed_problem &p, const streamed_place &t,
                                             uint32_t memory, int i, float (&c)[N / 8][4]) {
    using shape = streamed_shape<N, G>;
    stage_gates<N, G> gates;
    if (MODE == HEADS) gates.load(p, t.first + i);
    uint32_t stage = (memory + (uint32_t)(i % shape::STAGES * shape::STAGE)) & DESCRIBED;
    uint64_t left =
        describe_tile<GROUP_ROWS, DEPTH>(stage + threadIdx.x / 128 * (GROUP_ROWS * DEPTH * 2));
    uint64_t right = describe_tile<N, DEPTH>(stage + shape::B_BYTES);
    wait_phase(memory + shape::AT_BARRIERS + 8 * (uint32_t)(i % shape::STAGES),
               (uint32_t)(i / shape::STAGES));
    if (MODE == HEADS)
        gates.apply(memory + (uint32_t)(i % shape::STAGES * shape::STAGE + shape::B_BYTES));
    begin_products();
    wgmma<N>::template tiles<!SET, false>(c, left, right);
#pragma unroll
    for (int k = 1; k < DEPTH / 16; k++)
        wgmma<N>::template tiles<true, false>(c, move_on(left, (uint32_t)k * 32),
                                              move_on(right, (uint32_t)k * 32));
    end_products();
}

/* All of them, one or more. A stage is given back when its products are done, one stage later. */
template <int N, int G, int MODE>
__device__ static inline void multiply_stages(const streamed_problem &p, const streamed_place &t,
                                              uint32_t memory, float (&c)[N / 8][4]) {
    using shape = streamed_shape<N, G>;
    uint32_t empty = memory + shape::AT_BARRIERS + 8 * shape::STAGES;
    if (MODE == HEADS) wait_for_primary();
    multiply_stage<N, G, MODE, true>(p, t, memory, 0, c);
    for (int i = 1; i < t.stages; i++) {
        multiply_stage<N, G, MODE, false>(p, t, memory, i, c);
        wait_products<1>();
        if (threadIdx.x % 32 == 0) arrive(empty + 8 * (uint32_t)((i - 1) % shape::STAGES));
    }
    wait_products<0>();
    settle(c);
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

__device__ static inline float4 load_here(uint32_t at) {
    uint4 v = load_shared(at);
    return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                       __uint_as_float(v.w));
}

/* The same of what was sent here: the first part's own, and the others', `apart` bytes from each other. */
__device__ static inline float4 add_received(uint32_t own, uint32_t at, uint32_t apart, int parts,
                                             float alpha) {
    float4 sum = load_here(own);
    for (int i = 1; i < parts; i++)
        sum = add_four(sum, load_here(at + (uint32_t)(i - 1) * apart));
    return make_float4(alpha * sum.x, alpha * sum.y, alpha * sum.z, alpha * sum.w);
}

/* Four numbers to block `rank` of the cluster, at the address that `at` is here; its barrier counts them. */
__device__ static inline void send_four(uint32_t at, uint32_t barrier, uint32_t rank, float4 v) {
    asm volatile("{\n"
                 ".reg .b32 there, counted;\n"
                 "mapa.shared::cluster.u32 there, %0, %2;\n"
                 "mapa.shared::cluster.u32 counted, %1, %2;\n"
                 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], "
                 "{%3, %4, %5, %6}, [counted];\n"
                 "}\n" ::"r"(at),
                 "r"(barrier), "r"(rank), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}

/* Over the lanes that have the same row: the same bits in each. */
__device__ static inline float sum_row(float v) {
    unsigned lanes = 0xffffu << (threadIdx.x & ROW_LANES);
#pragma unroll
    for (int i = ROW_LANES / 2; i > 0; i /= 2)
        v += __shfl_xor_sync(lanes, v, i);
    return v;
}

/* What is read for four sums of a row before they are there. A lane has two of the row's moments. */
struct streamed_addends {
    four_addends added;
    float4 sums;
    float2 moments[STREAMED_MOMENTS];
};

/* Of a row. */
struct row_norm {
    float mean, rstd;
};

__device__ static inline row_norm find_norm(const streamed_matrix &w, const streamed_addends &a) {
    float count[STREAMED_MOMENTS], mean = 0, square = 0;
#pragma unroll
    for (int i = 0; i < STREAMED_MOMENTS; i++) {
        int left = w.k - ((int)threadIdx.x % ROW_LANES + i * ROW_LANES) * DEPTH;
        count[i] = (float)max(0, min(left, (int)DEPTH));
        mean += count[i] * a.moments[i].x;
    }
    mean = w.norm.sums ? sum_row(mean) * w.share : 0.0f;
#pragma unroll
    for (int i = 0; i < STREAMED_MOMENTS; i++) {
        float d = a.moments[i].x - mean;
        square += a.moments[i].y + count[i] * d * d;
    }
    return row_norm{mean, rsqrtf(sum_row(square) * w.share + w.norm.eps)};
}

/* rstd (v − mean · sums). */
__device__ static inline float4 norm_four(row_norm norm, float4 sums, float4 v) {
    return make_float4(
        norm.rstd * (v.x - norm.mean * sums.x), norm.rstd * (v.y - norm.mean * sums.y),
        norm.rstd * (v.z - norm.mean * sums.z), norm.rstd * (v.w - norm.mean * sums.w));
}

/* That and a bias, of SwiGLU behind LayerNorm. */
__device__ static inline float4 norm_apart(const float *sums, any_tensor bias, int column,
                                           row_norm norm, float4 v) {
    v = norm_four(norm, *(const float4 *)(sums + column), v);
    return bias.data ? add_four(v, load_four(bias, column)) : v;
}

__device__ static inline float round_bf16(float v) {
    return to_float(from_float<bf16>(v));
}

/* The moments of the row's 64 columns around `column`, of which a lane has four, as they were written. */
__device__ static inline void leave_moments(float2 *moments, int row, int column, int n, float4 v) {
    int tile = column / DEPTH, columns = min((int)DEPTH, n - tile * DEPTH);
    if (columns <= 0) return;
    v = make_float4(round_bf16(v.x), round_bf16(v.y), round_bf16(v.z), round_bf16(v.w));
    float mean = sum_row((v.x + v.y) + (v.z + v.w)) * invert((float)columns);
    v = make_float4(v.x - mean, v.y - mean, v.z - mean, v.w - mean);
    float square = column < n ? (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w) : 0.0f;
    square = sum_row(square);
    if (threadIdx.x % ROW_LANES == 0)
        moments[(int64_t)row * ((n + DEPTH - 1) / DEPTH) + tile] = make_float2(mean, square);
}

__device__ static inline float silu_mul(float gate, float up) {
    gate = round_bf16(gate);
    return gate * sigmoid(gate) * round_bf16(up);
}

/* Of four columns of a row: not of a head that is rotated, nothing. */
struct four_angles {
    float cosine[4], sine[4];
};

/* Not inline: it is long, and done before the sums are there. */
__device__ static __noinline__ void find_angles(const gemm_rope &k, int row, int column,
                                                four_angles &of) {
    int i = column % k.width;
    if (column >= k.heads * k.width || i >= 2 * k.half) return;
    for (int j = 0; j < 4; j++)
        find_angle(k.law, k.start[row], i % k.half + j, k.half, of.cosine[j], of.sine[j]);
}

/* Four numbers of a row, rounded as they are without RoPE behind them. The other half of the pairs has a lane of
 * the row too, half / 4 lanes away. */
__device__ static inline float4 rotate_four(const gemm_rope &k, int column, const four_angles &of,
                                            float4 v) {
    unsigned lanes = k.half == DEPTH ? 0xffffffffu : 0xffffu << (threadIdx.x & ROW_LANES);
    int i = column % k.width;
    bool rotates = column < k.heads * k.width && i < 2 * k.half;
    float a[4] = {round_bf16(v.x), round_bf16(v.y), round_bf16(v.z), round_bf16(v.w)};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float b = __shfl_xor_sync(lanes, a[j], k.half / 4);
        if (rotates)
            a[j] = i < k.half ? rotate_first(a[j], b, of.cosine[j], of.sine[j])
                              : rotate_second(b, a[j], of.cosine[j], of.sine[j]);
    }
    return make_float4(a[0], a[1], a[2], a[3]);
}

/* The block's share of the rows of a and the columns of its tile: four columns of a row at a time. */
template <int N, int G, int MODE> struct streamed_share {
    using shape = streamed_shape<N, G>;
    static constexpr int FOURS = shape::WIDTH / (MODE == SILU ? 8 : 4);
    const streamed_problem &p;
    const streamed_place &t;
    const streamed_matrix &w;
    int row, end, step;

    __device__ streamed_share(const streamed_problem &problem, const streamed_place &place)
        : p(problem), t(place), w(problem.of[place.of]), row((int)blockIdx.y * N),
          end(min(N, p.m - row) * FOURS), step(w.parts * G * 128) {
    }

    __device__ int first() const {
        return t.part * (G * 128) + (int)threadIdx.x;
    }

    __device__ streamed_addends addends(int e) const {
        streamed_addends a = {};
        if (e >= end) return a;
        int64_t r = row + e / FOURS;
        int column = t.column + e % FOURS * 4;
        if (MODE != SILU) a.added = load_addends(w.end, r, column, w.n);
        if (!w.norm.moments) return a;
        if (MODE != SILU && w.norm.sums && column < w.n)
            a.sums = *(const float4 *)(w.norm.sums + column);
#pragma unroll
        for (int i = 0; i < STREAMED_MOMENTS; i++) {
            int tile = (int)threadIdx.x % ROW_LANES + i * ROW_LANES;
            if (tile < w.stages) a.moments[i] = w.norm.moments[r * w.stages + tile];
        }
        return a;
    }

    __device__ void angles(int e, four_angles &of) const {
        if (MODE == ROPE && e < end)
            find_angles(p.rope, row + e / FOURS, t.column + e % FOURS * 4, of);
    }

    __device__ void finish_rotated(int r, int column, float4 v, const four_addends &a,
                                   const four_angles &of) const {
        if (w.end.bias.data) v = add_four(v, a.bias);
        v = rotate_four(p.rope, column, of, v);
        if (column < w.n) store_four(w.end.c, (int64_t)(row + r) * w.end.ld + column, v);
    }

    /* What the parts have of four columns of a row. */
    __device__ float4 add(uint32_t sums, int r, int column, float alpha) const {
        uint32_t at = sums + (uint32_t)((r * shape::PITCH + column) * 4);
        if (!p.sends) return add_parts(at, block_in_cluster() - (uint32_t)t.part, w.parts, alpha);
        return add_received(at, received(sums, 0, r, column), sent_bytes(), w.parts, alpha);
    }

    /* Where part `part` + 1 sends its sums to. */
    __device__ uint32_t received(uint32_t sums, int part, int r, int column) const {
        return sums + shape::AT_RECEIVED + (uint32_t)part * sent_bytes() +
               (uint32_t)((r * shape::WIDTH + column) * 4);
    }

    /* By a part. */
    __device__ uint32_t sent_bytes() const {
        return (uint32_t)(p.m * shape::WIDTH * 4);
    }

    /* This part's sums to the block of the first. */
    __device__ void send(uint32_t sums, uint32_t barrier) const {
        constexpr int ACROSS = shape::WIDTH / 4;
        for (int e = (int)threadIdx.x; e < p.m * ACROSS; e += G * 128) {
            int r = e / ACROSS, column = e % ACROSS * 4;
            float4 v = load_here(sums + (uint32_t)((r * shape::PITCH + column) * 4));
            send_four(received(sums, t.part - 1, r, column), barrier,
                      block_in_cluster() - (uint32_t)t.part, v);
        }
    }

    /* `a`, `of`: those of the first. */
    __device__ void finish(uint32_t sums, streamed_addends a, four_angles &of) const {
        for (int e = first(); e < end; e += step) {
            int r = e / FOURS, column = e % FOURS * 4;
            float4 v = add(sums, r, column, w.end.alpha);
            row_norm norm = {0, 1};
            if (w.norm.moments) norm = find_norm(w, a);
            if (w.norm.moments && MODE != SILU) v = norm_four(norm, a.sums, v);
            column += t.column;
            if (MODE == SILU) {
                bool shifted = w.norm.sums && column < w.n;
                float factor = shifted ? 1.0f : norm.rstd;
                float4 u = add(sums, r, column - t.column + GROUP_ROWS, w.up_end.alpha * factor);
                v = make_float4(factor * v.x, factor * v.y, factor * v.z, factor * v.w);
                if (shifted) {
                    v = norm_apart(w.norm.sums, w.end.bias, column, norm, v);
                    u = norm_apart(w.up_sums, w.up_end.bias, column, norm, u);
                }
                finish_gated(r, column, v, u);
            } else if (MODE == ROPE) {
                finish_rotated(r, column, v, a.added, of);
                angles(e + step, of);
            } else {
                v = finish_four(w.end, row + r, column, w.n, v, a.added);
                if (w.moments) leave_moments(w.moments, row + r, column, w.n, v);
            }
            a = addends(e + step);
        }
    }

    __device__ void finish_gated(int r, int column, float4 v, float4 u) const {
        if (w.end.c.data) finish_apart(w.end, row + r, column, w.n, v);
        if (w.up_end.c.data) finish_apart(w.up_end, row + r, column, w.n, u);
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

/* All threads of a cluster's blocks come to the first, without what they wrote, and wait for the
 * others at the second. A block by itself meets there. */
__device__ static inline void meet_cluster(int blocks) {
    if (blocks > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ static inline void wait_for_cluster(int blocks) {
    if (blocks > 1)
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    else
        __syncthreads();
}

/* All that the other parts send is there. */
__device__ static inline void wait_received(uint32_t barrier) {
    asm volatile("{\n"
                 ".reg .pred there;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 there, [%0], 0;\n"
                 "@!there bra again;\n"
                 "}\n" ::"r"(barrier)
                 : "memory");
}
#define LAUNCH_THREADS(n, g) streamed_shape<n, g>::THREADS
#else
#define LAUNCH_THREADS(n, g) 32
#define BLOCKS(n) 1
#endif

template <int N, int G, int MODE>
static __global__ void __launch_bounds__(LAUNCH_THREADS(N, G), BLOCKS(N))
    multiply_streamed(const __grid_constant__ streamed_problem p) {
#ifndef USE_MMA_SYNC
    using shape = streamed_shape<N, G>;
    extern __shared__ char raw[];
    uint32_t raw_at = shared_address(raw), memory = (raw_at + 1023) / 1024 * 1024;
    uint32_t received = memory + shape::AT_BARRIERS + 16 * shape::STAGES;
    if (!p.late) trigger_dependents(); /* the next product may ask for its own */
    streamed_place t = find_place < MODE == SILU ? shape::WIDTH / 2 : shape::WIDTH > (p);
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < shape::STAGES; i++) {
            init_barrier(memory + shape::AT_BARRIERS + 8 * i, 1);
            init_barrier(memory + shape::AT_BARRIERS + 8 * (shape::STAGES + i), 4 * G);
        }
        init_barrier(received, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    streamed_share<N, G, MODE> share(p, t);
    bool finishes = threadIdx.x < G * 128;
    if (p.sends) {
        if (threadIdx.x == 0)
            arrive_expect_tx(received, (int)share.sent_bytes() * (p.of[t.of].parts - 1));
        __syncwarp();
        meet_cluster(p.cluster);
    }
    four_angles rotated;
    if (finishes) share.angles(share.first(), rotated);
    __syncwarp();
    if (threadIdx.x >= G * 128) {
        if (threadIdx.x == G * 128) produce_stages<N, G, MODE>(p, t, memory);
        __syncwarp();
    } else if (t.stages > 0) {
        float c[N / 8][4];
        multiply_stages<N, G, MODE>(p, t, memory, c);
        /* The other warpgroup may still read what the sums are written over. */
        asm volatile("bar.sync 1, %0;" ::"n"(G * 128) : "memory");
        leave_sums<N, shape::PITCH>(c, (float *)(raw + (memory - raw_at)));
    }
    /* Every thread, so that this kernel ends no sooner than the one ahead. */
    wait_for_primary();
    __syncwarp();
    if (p.sends) {
        streamed_addends added = {};
        if (finishes && t.part == 0) added = share.addends(share.first());
        __syncwarp();
        wait_for_cluster(p.cluster); /* all have begun */
        if (!finishes || t.stages == 0) return;
        asm volatile("bar.sync 1, %0;" ::"n"(G * 128) : "memory");
        if (t.part > 0) {
            share.send(memory, received);
        } else {
            wait_received(received);
            share.finish(memory, added, rotated);
        }
        return;
    }
    /* The others find behind wait_for_cluster what was written here. */
    if (p.cluster > 1) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    streamed_addends added = {};
    if (finishes) added = share.addends(share.first());
    __syncwarp();
    wait_for_cluster(p.cluster);
    if (finishes && t.stages > 0) share.finish(memory, added, rotated);
    __syncwarp();
    meet_cluster(p.cluster);
    wait_for_cluster(p.cluster); /* nobody reads here any more */
#endif
}

bool streamed_fits(const cuda_gemm *p) {
    auto suits = [](const cuda_gemm_matrix &x) { return x.is_bf16 && !x.is_i8 && x.ld % 8 == 0; };
    return weft_cuda_device()->wgmma && p->tb && !p->ta && p->batch == 1 && p->k % 8 == 0 &&
           suits(p->a) && suits(p->b) && p->n < INT32_MAX / 2;
}

/* Pairs lie in 64 columns that a row's lanes have, or in 128 that a warp has. The angles of more rows than these
 * would be waited for. */
static bool can_rotate(const cuda_gemm *p) {
    int width = p->rope->width, half = p->rope->half;
    return p->m <= 32 && p->n % 4 == 0 && half >= 4 && half <= DEPTH && (half & (half - 1)) == 0 &&
           (width % max_i64(DEPTH, 2 * half) == 0 || (half < DEPTH && DEPTH % width == 0));
}

bool streamed_can(const cuda_gemm *p) {
    bool normed = p->norm.moments != NULL;
    if ((normed || p->moments || p->group) && p->n % 4 != 0) return false;
    if (normed && p->k > STREAMED_NORM_WIDTH) return false;
    if (p->gate.of.data && p->gate.width % DEPTH != 0) return false;
    if (p->rope && !can_rotate(p)) return false;
    return streamed_fits(p) && (uintptr_t)p->a.data % 16 == 0 && (uintptr_t)p->b.data % 16 == 0;
}

static int count_stages(const cuda_gemm *p) {
    return (int)ceil_div(p->k, DEPTH);
}

static int rows_of(int64_t m) {
    int rows = 16;
    while (rows < m && rows < MOST_ROWS)
        rows *= 2;
    return rows;
}

/* What the busiest multiprocessor reads, in rows of a stage: blocks of so many rows of b, and of a. */
static int64_t busiest(const cuda_gemm *p, int parts, int width, int64_t rows) {
    int64_t blocks = ceil_div(p->n, width) * parts;
    int64_t join = parts > 1 ? (int64_t)JOIN_COST : 0;
    return ceil_div(blocks, multiprocessors()) *
           (ceil_div(count_stages(p), parts) * (width + rows) + join);
}

static int64_t least_busy(const cuda_gemm *p, int parts, int64_t rows) {
    return min_i64(busiest(p, parts, GROUP_ROWS, rows), busiest(p, parts, 2 * GROUP_ROWS, rows));
}

/* Whether the time of a product is that of its bytes, and not a launch's. */
static bool is_long(const cuda_gemm *p) {
    return ceil_div(p->n, GROUP_ROWS) * count_stages(p) > LONG_STAGES * multiprocessors();
}

/* By n and k alone: of long products as few rows and many have the least to read; of others such that most
 * multiprocessors have a block. */
static int count_parts(const cuda_gemm *p, bool gated) {
    int parts = 1;
    while (parts < MOST_PARTS && ceil_div(p->n, GROUP_ROWS) * parts < ENOUGH &&
           count_stages(p) >= 2 * parts * PART_STAGES)
        parts *= 2;
    if (gated || !is_long(p)) return parts;
    int64_t least = INT64_MAX;
    for (int i = 1; i <= MOST_PARTS && i * PART_STAGES <= count_stages(p); i++) {
        int64_t cost = least_busy(p, i, 16) + least_busy(p, i, 64);
        if (cost >= least) continue;
        least = cost;
        parts = i;
    }
    return parts;
}

/* Whether blocks have 128 rows of b. */
static bool is_wide(const cuda_gemm *p, int n, int64_t blocks) {
    if (p->m > MOST_ROWS / 2) return true;
    if (n > 1 || !is_long(p)) return blocks >= ENOUGH_WIDE;
    int parts = count_parts(p, false), rows = rows_of(p->m);
    return busiest(p, parts, 2 * GROUP_ROWS, rows) <= busiest(p, parts, GROUP_ROWS, rows);
}

template <int N, int G, int MODE>
static void launch_shape(cudaStream_t stream, streamed_problem &p, unsigned blocks, bool follows) {
    using shape = streamed_shape<N, G>;
    p.sends = p.cluster > 1 && p.m <= SENT_ROWS;
    for (int i = 0; i < GEMM_TOGETHER && p.of[i].parts;
         i++) /* into the last stage, which is free then */
        p.sends = p.sends && ceil_div(p.of[i].stages, p.of[i].parts) < shape::STAGES;
    static cudaError_t allowed = cudaFuncSetAttribute(
        multiply_streamed<N, G, MODE>, cudaFuncAttributeMaxDynamicSharedMemorySize, shape::MEMORY);
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
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks, (unsigned)ceil_div(p.m, N));
    config.blockDim = dim3(shape::THREADS);
    config.dynamicSmemBytes = shape::MEMORY;
    config.stream = stream;
    config.attrs = how;
    config.numAttrs = (unsigned)hows;
    if (allowed == cudaSuccess) cudaLaunchKernelEx(&config, multiply_streamed<N, G, MODE>, p);
}

template <int G, int MODE>
static void launch_rows(cudaStream_t stream, streamed_problem &p, unsigned blocks, bool follows) {
    auto launch = [&](auto rows) {
        launch_shape<decltype(rows)::value, G, MODE>(stream, p, blocks, follows);
    };
    if constexpr (MODE == ROPE)
        with_constant<16, 32>(p.m, launch);
    else if constexpr (G == 1)
        with_constant<16, 32, 64, 128>(p.m, launch);
    else
        with_constant<16, 32, 64, 128, MOST_ROWS>(p.m, launch);
}

/* The driver makes maps of all that streamed_can takes. */
static void describe_factor(const cuda_gemm_matrix &x, int64_t rows, int64_t columns, int box_rows,
                            CUtensorMap *map) {
    make_matrix_map(map, (const bf16 *)x.data, rows, columns, x.ld, box_rows, DEPTH);
}

/* The products' blocks: whole clusters. */
static void launch_all(cudaStream_t stream, const cuda_gemm *p, int n, streamed_problem &k,
                       bool gated) {
    int64_t wide = 0;
    k.gate = p->gate;
    if (p->rope) k.rope = *p->rope;
    k.m = (int)p->m;
    k.steady = p->steady;
    k.late = p->late;
    k.cluster = 1;
    for (int i = 0; i < n; i++) {
        describe_factor(p[i].a, p[i].m, p[i].k, rows_of(p[i].m), &k.of[i].a);
        describe_factor(p[i].b, p[i].n, p[i].k, GROUP_ROWS, &k.of[i].b);
        k.of[i].end = describe_finish(&p[i]);
        k.of[i].n = (int)p[i].n;
        k.of[i].k = (int)p[i].k;
        k.of[i].share = 1.0f / (float)p[i].k;
        k.of[i].stages = count_stages(&p[i]);
        k.of[i].norm = p[i].norm;
        k.of[i].moments = p[i].moments;
        k.of[i].parts = count_parts(&p[i], gated);
        k.cluster = k.of[i].parts > k.cluster ? k.of[i].parts : k.cluster;
        wide += ceil_div(p[i].n, 2 * GROUP_ROWS) * k.of[i].parts;
    }
    int groups = gated || is_wide(p, n, wide) || k.rope.half == DEPTH ? 2 : 1;
    int width = gated ? GROUP_ROWS : groups * GROUP_ROWS;
    for (int i = 0; i < n; i++) {
        int64_t blocks = ceil_div(p[i].n, width) * k.of[i].parts;
        k.of[i].after =
            (unsigned)(ceil_div(blocks, k.cluster) * k.cluster) + (i ? k.of[i - 1].after : 0);
    }
    unsigned all = k.of[n - 1].after;
    if (gated) return launch_rows<2, SILU>(stream, k, all, p->follows);
    with_constant<1, 2>(groups, [&](auto of) {
        constexpr int G = decltype(of)::value;
        auto launch = p->rope           ? launch_rows<G, ROPE>
                      : p->gate.of.data ? launch_rows<G, HEADS>
                                        : launch_rows<G, PLAIN>;
        launch(stream, k, all, p->follows);
    });
}

/* A cluster has the blocks of one part of columns, or of several whole ones. */
static bool fit_together(const cuda_gemm *p, int n) {
    int most = 1;
    for (int i = 0; i < n; i++)
        most = (int)max_i64(most, count_parts(&p[i], false));
    for (int i = 0; i < n; i++)
        if (most % count_parts(&p[i], false) != 0) return false;
    return true;
}

void streamed_launch(cudaStream_t stream, const cuda_gemm *p, int n) {
    streamed_problem k = {};
    if (fit_together(p, n)) return launch_all(stream, p, n, k, false);
    for (int i = 0; i < n; i++)
        streamed_launch(stream, &p[i], 1);
}

void streamed_launch_gated(cudaStream_t stream, const cuda_gemm *gate, const cuda_gemm *up,
                           any_tensor y) {
    streamed_problem k = {};
    describe_factor(up->b, up->n, up->k, GROUP_ROWS, &k.of[0].up);
    k.of[0].up_end = describe_finish(up);
    k.of[0].up_sums = up->norm.sums;
    k.of[0].y = y;
    launch_all(stream, gate, 1, k, true);
}
