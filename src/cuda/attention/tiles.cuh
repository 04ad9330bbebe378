/* What the tensor cores' attention kernels share: the grid's order, a block's place, biases of scores, and
 * of the backward pass its workspace (backward.cu says how its kernels go together). */
#pragma once

#include "cuda/attention/shapes.cuh"
#include "cuda/functions.cuh"
#include "cuda/tensor/tma.cuh"

/* A multiple of 1024 bytes in a block's memory, which has 1024 to spare. */
__device__ static inline uint8_t *align_tiles(uint8_t *memory) {
    return memory + (1024 - (shared_address(memory) & 1023)) % 1024;
}

/* A barrier of the block that warpgroups may meet at different places of the program. */
__device__ static inline void sync_block() {
    asm volatile("bar.sync 0;" ::: "memory");
}

/* The warpgroup of a thread, in a register that the compiler knows to be the same for a warp. */
__device__ static inline int warpgroup_index() {
    return __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0);
}

/* Whether a score has more than ⟨q, k⟩ times one positive constant. */
static inline bool has_extras(const attention_problem &p) {
    return p.n || p.scale || p.log_tau || p.pos != WEFT_POS_NONE || !(p.scale_value > 0) ||
           p.softcap > 0;
}

/* Calls f with what a score has, as far as widths W are compiled for it: f(constant<KEYED>()). */
template <typename W, typename F> static inline void with_extent(const attention_problem &p, F f) {
    if (p.pos == WEFT_POS_RELATIVE) return f(constant<RELATIVE>());
    if constexpr (W::HAS_BARE) {
        if (p.softcap > 0) return f(constant<CAPPED>());
        if (!has_extras(p)) return f(constant<BARE>());
    }
    f(constant<KEYED>());
}

/* The soft-cap of a score, both to the base 2. */
__device__ static inline float softcapped(float s, float cap) {
    return cap - __fdividef(2.0f * cap, power_of_two(s * (2.0f * LOG2E / cap)) + 1.0f);
}

/* The slope of a soft-cap at what it made, of which 2 to the power less lse is `weight`. */
__device__ static inline float soft_slope(float weight, float lse, float cap) {
    float t = __fdividef(__log2f(fmaxf(weight, 1e-37f)) + lse, cap);
    t = fminf(fabsf(t), 1.0f); /* also of a query that is not there */
    return 1.0f - t * t;
}

/* Blocks come in groups of so many columns (heads of sequences), which a dimension of the grid each
 * tells: column in the group, tile, group. A group has two to three times the blocks that run at
 * once: its longest blocks come first, so that the last ones to end are short, and its keys and
 * values stay in the cache. The number is a power of two, as that of tiles mostly is. */
static inline dim3 group_blocks(int64_t columns, int64_t tiles) {
    enum { GROUP_BLOCKS = 8 /* for each multiprocessor */, MOST_GROUPS = 65535 };
    int64_t blocks = 1;
    while (2 * blocks <= GROUP_BLOCKS * multiprocessors())
        blocks *= 2;
    int64_t groups = min_i64(ceil_div(columns, ceil_div(blocks, tiles)), MOST_GROUPS);
    int64_t group = ceil_div(columns, max_i64(groups, 1));
    return dim3((unsigned)group, (unsigned)tiles, (unsigned)ceil_div(columns, group));
}

/* Of the block; from `columns` on there is none. */
__device__ static inline int column_index() {
    return (int)(blockIdx.z * gridDim.x + blockIdx.x);
}

/* A block's head and queries. */
struct query_block {
    int b, h, kv, i0, place0;
    int key0;                 /* of the first tile that one of them sees */
    float scale, beta, slope; /* to the base 2 */
};

/* Those that see most keys come first. */
static inline dim3 query_blocks(const attention_problem &p, int queries) {
    return group_blocks((int64_t)p.batch * p.heads, ceil_div(p.queries, queries));
}

__device__ static inline query_block place_queries_of(const attention_problem &p, int column,
                                                      int tile, int tiles, int queries, int keys) {
    query_block t = {};
    t.b = (int)((unsigned)column / (unsigned)p.heads);
    t.h = column - t.b * p.heads;
    t.kv = key_head_of(p, t.h);
    t.i0 = (tiles - 1 - tile) * queries;
    if (t.b >= p.batch) return t;
    t.place0 = t.i0;
    t.key0 = hides_keys(p) ? first_key_of(p, t.b, t.i0) / keys * keys : 0;
    return t;
}

__device__ static inline query_block place_queries(const attention_problem &p, int queries,
                                                   int keys) {
    return place_queries_of(p, column_index(), (int)blockIdx.y, (int)gridDim.y, queries, keys);
}

/* Tiles of keys that a block's queries see. */
template <typename S>
__device__ static inline int steps_of(const attention_problem &p, const query_block &t) {
    int end = p.causal ? min(p.keys, t.place0 + min(S::QUERIES, p.queries - t.i0)) : p.keys;
    return (end - t.key0 + S::KEYS - 1) / S::KEYS;
}

/* Sets what a thread has of keys before the first that its two rows see: its columns are those from
 * `column` on of a tile of keys from j0 on. */
template <int N>
__device__ static inline void hide_keys(float (&s)[N][4], const attention_problem &p,
                                        const query_block &t, int row, int column, int j0,
                                        float value) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int first = first_key_of(p, t.b, t.i0 + row + 8 * r) - j0 - column;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (8 * n + i < first) s[n][2 * r + i] = value;
    }
}

/* Apart, because they take a while: the first tiles are copied meanwhile. */
__device__ static inline void find_numbers(const attention_problem &p, query_block &t) {
    head_numbers f = numbers_of_head(p, t.h);
    t.scale = f.scale * LOG2E;
    t.beta = f.beta * LOG2E;
    t.slope = f.slope * LOG2E;
}

/* A relative position's bias, to the base 2. */
__device__ static inline float relative_bias(const attention_problem &p, int distance) {
    return distance >= 0 && distance < p.distances ? p.rel[distance] * LOG2E : 0.0f;
}

/* Reads the biases of a thread's scores, eight columns after eight: `at` is where that of the first row
 * and column is, and they lie in the order of column − row. */
template <int RING> struct distance_biases {
    const float *ring;
    int at;
    float before[2];

    __device__ inline distance_biases(const float *ring_, int at_) : ring(ring_), at(at_) {
        before[0] = ring[(at - 8) & (RING - 1)];
        before[1] = ring[(at - 7) & (RING - 1)];
    }

    /* Of four scores as the products have them. */
    __device__ inline void next(float (&bias)[4]) {
        bias[2] = before[0];
        bias[3] = before[1];
        bias[0] = before[0] = ring[at & (RING - 1)];
        bias[1] = before[1] = ring[(at + 1) & (RING - 1)];
        at += 8;
    }
};

/* What a key adds to its scores whatever the query, β n_j and ALiBi's slope: one number per key of a
 * tile, in shared memory a step before the tile is scored. And of a relative position what the distance
 * from the block's row r to key j adds, at (j − r) of a ring: of a further tile only the distances to
 * row 0 are new. BARE: there is nothing of the sort. */
template <int KEYS, int QUERIES, int EXTENT> struct key_biases {
    static constexpr int RING = ring_size<QUERIES, KEYS>;
    float *bias; /* [2 steps][KEYS] */
    float *ring;
    const float *n; /* of the head's keys; NULL: none */
    const attention_problem *p;
    float number, distance_bias; /* read a step before they are stored, so that nothing waits */

    __device__ inline void read(const query_block &t, int step) {
        int j = t.key0 + step * KEYS + (int)threadIdx.x;
        if (EXTENT == BARE || (int)threadIdx.x >= KEYS) return;
        number = n && j < p->keys ? n[j] : 0.0f;
        if (EXTENT == RELATIVE) distance_bias = relative_bias(*p, t.place0 - j);
    }

    __device__ inline void store(const query_block &t, int step) {
        int j = t.key0 + step * KEYS + (int)threadIdx.x;
        if (EXTENT == BARE || (int)threadIdx.x >= KEYS) return;
        bias[(step & 1) * KEYS + threadIdx.x] =
            fmaf(t.slope, (float)(j - t.place0), t.beta * number);
        if (EXTENT == RELATIVE) ring[j & (RING - 1)] = distance_bias;
    }

    /* Before the first step. */
    __device__ inline void begin(const query_block &t) {
        if (EXTENT == RELATIVE)
            for (int r = 1 + (int)threadIdx.x; r < QUERIES; r += (int)blockDim.x)
                ring[(t.key0 - r) & (RING - 1)] = relative_bias(*p, t.place0 - t.key0 + r);
        read(t, 0);
        store(t, 0);
        read(t, 1);
    }

    /* During the step before `step`. */
    __device__ inline void advance(const query_block &t, int step) {
        store(t, step);
        read(t, step + 1);
    }
};

enum { NUMBERS = 2 };

/* lse of a query that is not there: its weights are 0. Also the exponent of a hidden pair; finite,
 * so that times 0 it is 0. */
constexpr float NOTHING = 1e30f;

struct flash_workspace {
    float *lse, *total;  /* [B, H, padded] to the base 2; D */
    float *shift;        /* [B, H, padded] ⟨q_i, k_0⟩, where dscale is wanted */
    double *numbers;     /* [B, H, key tiles, warps, NUMBERS]: of dscale or dlog_tau; of dbeta */
    float *dk, *dv, *dn; /* [parts, B, S, KV, dqk], [.., dv], [parts, B, KV, S], where several */
    float *rel;          /* [B, H, distances]: Σ ds, where the position is relative */
    int padded, parts;
};

/* A warpgroup's gradients c · factor of rows of y, to those of the Gaussians that y was made of: c is
 * what it becomes. The rows of y are `width` wide, the second half σ, and those from row0 on of a tile
 * in shared memory; c has N of its D columns from column0 on. SQUARES: `twice` has two times the gradients
 * of their squares, of the thread's two rows. */
template <int ROWS, int D, int N, bool SQUARES>
__device__ static inline void finish_gaussians(float (&c)[N / 8][4], float factor, uint32_t tile,
                                               int row0, int column0, int width,
                                               const float (&twice)[2]) {
    int lane = threadIdx.x % 32, row = row0 + (int)threadIdx.x / 32 % 4 * 16 + lane % 16;
    int sigma =
        width / 2 - column0 - lane % 4 * 2; /* the first of the thread's columns that is σ */
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        uint32_t words[4];
        load_matrices(words, tile + tile_place<ROWS, D>(row, column0 / 8 + 2 * k + lane / 16));
#pragma unroll
        for (int e = 0; e < 8; e++) {
            uint32_t word = words[e / 2];
            float y = __uint_as_float(e % 2 ? word & 0xffff0000u : word << 16);
            float d = c[2 * k + e / 4][e % 4] * factor;
            if (SQUARES) d = fmaf(twice[e / 2 % 2], y, d);
            if (16 * k + e / 4 * 8 >= sigma) d *= slope_at(y);
            c[2 * k + e / 4][e % 4] = d;
        }
    }
}

/* Launches a kernel of the backward pass that is compiled for shape S. */
template <typename S>
static void launch_backward(void (*kernel)(attention_problem, attention_gradients, flash_workspace,
                                           row_maps),
                            const attention_problem &p, const attention_gradients &g,
                            const flash_workspace &w, dim3 blocks, cudaStream_t stream) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::MEMORY);
    row_maps maps = {};
    bool made = make_row_maps(p, &g, S::QUERIES, S::KEYS, &maps, S::DQK, S::DV);
    kernel<<<made ? blocks : dim3(0), S::THREADS, S::MEMORY, stream>>>(p, g, w, maps);
}

void flash_backward_dkdv(const attention_problem &p, const attention_gradients &g,
                         const flash_workspace &w, cudaStream_t stream);
void flash_backward_dq(const attention_problem &p, const attention_gradients &g,
                       const flash_workspace &w, cudaStream_t stream);

/* After flash_backward_dq, which leaves D and lse; flash_distances: of a head in w.rel. */
void flash_backward_distances(const attention_problem &p, const attention_gradients &g,
                              const flash_workspace &w, cudaStream_t stream);
int flash_distances(const attention_problem &p);
