/* Tiles of a leaf's keys and values on their way to shared memory (attend_tensor.cuh): what a block's memory has,
 * which rows of the run and which keys a warp is at, and copies of what lies in pages and of what the run itself has
 * made: by bulk copies that a barrier counts, or by cp.async before 9.0a. */
#pragma once

#include "cuda/decode/attend.cuh"
#include "cuda/dependent_launch.cuh"
#include "cuda/tensor/pipeline.cuh"

enum {
    TENSOR_ROWS = 16,        /* heads of a tile */
    TENSOR_APART = 64,       /* rows of the longest run of which none share a tile */
    TENSOR_LONG = 1 << 13,   /* the shortest context whose leaves are longer, of many heads */
    TENSOR_KEYS = 32,        /* keys of a tile */
    TENSOR_COLUMNS = 8 * 32, /* of values that a warp sums, at most */
    TENSOR_WARPS = 6,        /* of a block */
    TENSOR_STAGES = 2,       /* tiles of a warp in shared memory */
    TENSOR_ROOM = 100 << 10, /* bytes of a block's stages, so that two are there, or a product's */
    SMALL_WARPS = 4,         /* of a small block, whose warps have one tile each, */
    SMALL_BLOCKS = 3,        /* and so many are there, with fewer warps if need be, */
    SMALL_ROWS = 256,        /* in runs of up to so many rows */
    QUARTERS = 4,
    QUARTER_PAD = 4,     /* floats behind a head's sums of a quarter: the largest score, the sum */
    ENDS_COST = 6,       /* tiles in whose time a block begins and ends */
    JOIN_BYTES = 5 << 10 /* that a block has beside, for join_heads and ends_last */
};

__host__ __device__ static inline int tensor_heads(const attend_problem &a) {
    return (a.group + TENSOR_ROWS - 1) / TENSOR_ROWS * TENSOR_ROWS;
}

/* Of 16 numbers each, of a product with queries: an even number of them. */
__host__ __device__ static inline int tensor_steps(const attend_problem &a) {
    return (a.dqk + 31) / 32 * 2;
}

/* Of a tile, keys [32, dqk] and values [32, dv] in bf16, and n [32]. */
__host__ __device__ static inline int pair_bytes(const attend_problem &a) {
    return TENSOR_KEYS * (a.dqk + (a.joint ? 0 : a.dv)) * (int)sizeof(bf16);
}

__host__ __device__ static inline int stage_bytes(const attend_problem &a) {
    return pair_bytes(a) + (a.keys.number ? TENSOR_KEYS * (int)sizeof(float) : 0);
}

/* Of a quarter, the sums of each head. */
__host__ __device__ static inline int quarter_step(const attend_problem &a) {
    return a.dv + QUARTER_PAD;
}

__host__ __device__ static inline int64_t quarter_bytes(const attend_problem &a) {
    return a.quarters ? QUARTERS * TENSOR_ROWS * quarter_step(a) * (int64_t)sizeof(float) : 0;
}

/* Of barriers, 8 each: up to the next 16. */
__host__ __device__ static inline int barrier_bytes(const attend_problem &a) {
    return (a.warps * a.stages + 1) / 2 * 16;
}

/* Shared memory: quarters' sums; the warps' stages; a barrier for each; of each key head q, a number of 16 bytes for
 * each step and lane of each tile of heads, and heads' factors. */
static inline int64_t tensor_bytes(const attend_problem &a) {
    int64_t head = tensor_steps(a) * 2 * (int64_t)sizeof(uint4) + (int64_t)sizeof(head_factors);
    return a.warps * a.stages * (int64_t)stage_bytes(a) + barrier_bytes(a) +
           a.own_heads * tensor_heads(a) * head + quarter_bytes(a);
}

/* What a lane asks for of each tile: of two lanes each the two pages of keys, of values and of their numbers. */
struct lane_copies {
    const char *from; /* the head's in the first page */
    int page_bytes;   /* 0: it asks for nothing */
    int token_bytes;  /* 0: numbers, a page's at a time */
};

__device__ static inline lane_copies share_out_copies(const attend_problem &a, int g) {
    int lane = (int)threadIdx.x % 32;
    const cached_pages &c = lane / 2 == 1 ? a.values : a.keys;
    bool numbers = lane >= 4, asks = numbers ? lane < 6 && c.number : lane < 2 || !a.joint;
    return {numbers ? (const char *)number_at(c, c.data, g, 0) : token_at(c, c.data, g, 0),
            asks ? (int)c.page_bytes : 0, numbers ? 0 : (int)c.token_bytes};
}

struct tensor_memory {
    float *sums;      /* [quarters, 16, quarter_step] */
    char *stages;     /* of the warp */
    uint32_t arrived; /* the warp's barriers */
    uint4 *q;         /* of the warp's key head, as are the factors */
    head_factors *factors;
    lane_copies copies;
};

/* Which of the block's key heads the warp has. */
__device__ static inline int own_head(const attend_problem &a) {
    return min((int)threadIdx.x / 32 / a.head_warps, a.own_heads - 1);
}

__device__ static inline int queries_step(const attend_problem &a) {
    return tensor_heads(a) * tensor_steps(a) * 2;
}

__device__ static inline tensor_memory cut_tensor_memory(const attend_problem &a, char *memory) {
    int warp = (int)threadIdx.x / 32, stages = a.warps * a.stages, own = own_head(a);
    float *sums = (float *)memory;
    memory += quarter_bytes(a);
    char *barriers = memory + stages * stage_bytes(a);
    uint4 *q = (uint4 *)(barriers + barrier_bytes(a));
    return {sums,
            memory + warp * a.stages * stage_bytes(a),
            shared_address(barriers) + (uint32_t)(warp * a.stages * 8),
            q + own * queries_step(a),
            (head_factors *)(q + a.own_heads * queries_step(a)) + own * tensor_heads(a),
            share_out_copies(a, (int)blockIdx.x * a.own_heads + own)};
}

/* A block's rows, which follow each other, the warp's key head, and keys [seen, own] of the last row. */
struct row_view {
    int r, g, own, seen; /* own: the last row's position */
    const int32_t *table;
    int rows, splits; /* splits: blocks that share out the leaves */
    int fresh;        /* keys from there on are in no page yet */
};

/* That of a row: rows of a sequence stand side by side. */
__device__ static inline int find_fresh(const attend_problem &a, int r, int slot, int own) {
    if (!a.key_write.done) return own + 1;
    int fresh = own;
    for (int first = r - 1; first >= 0; first -= 32) {
        int at = first - (int)threadIdx.x % 32;
        bool same = at >= 0 && a.places.slot[at] == slot && a.places.position[at] == own - (r - at);
        unsigned rows = __ballot_sync(0xffffffffu, same);
        fresh -= __popc(rows & ~(rows + 1));
        if (rows != 0xffffffffu) break;
    }
    return fresh;
}

/* The numbers that a write has for position j of the view's sequence, which this run has. */
__device__ static inline const bf16 *fresh_at(const cached_write &w, const row_view &v, int j) {
    return (const bf16 *)w.x.data + (v.r - (v.own - j)) * w.columns + w.offset + v.g * w.c.width;
}

__device__ static inline float fresh_extra(const cached_write &w, const row_view &v, int j) {
    return load_any(w.extra, (int64_t)(v.r - (v.own - j)) * w.c.heads + v.g);
}

/* A warp's sum, in the order of write_vector (cache.cu). */
__device__ static inline float sum_squares(const bf16 *key, int width) {
    float squares = 0;
    for (int i = (int)threadIdx.x % 32; i < width; i += 32)
        squares = fmaf(to_float(key[i]), to_float(key[i]), squares);
    return warp_sum(squares);
}

/* Row h of a tile: a head of a row of the run. */
struct tile_row {
    int r, head, own; /* own: its position */
    bool there;
};

template <bool TOGETHER>
__device__ static inline tile_row find_row(const attend_problem &a, const row_view &v, int h) {
    if (!TOGETHER) return {v.r, v.g * a.group + h, v.own, h < a.group};
    int k = h / a.group;
    return {v.r + k, v.g * a.group + h - k * a.group, v.own + 1 - v.rows + k, k < v.rows};
}

/* The block's row. Those that may begin a tile come first, for most others have nothing to do. */
__device__ static inline int find_block_row(const attend_problem &a) {
    int begins = (a.places.rows + a.together - 1) / a.together, i = (int)blockIdx.y - begins;
    return i < 0 ? (int)blockIdx.y * a.together : i + i / (a.together - 1) + 1;
}

/* How many rows from r on, up to a multiple of a.together, are one behind the other in a sequence and see the
 * same first key; 0: the tile of a row before has row r. By whole warps. */
__device__ static inline int count_rows(const attend_problem &a, int r) {
    int k = r + (int)threadIdx.x % 32;
    bool follows = k > 0 && k < a.places.rows && k / a.together == r / a.together;
    if (follows) {
        int slot = a.places.slot[k], own = a.places.position[k];
        follows = slot >= 0 && a.places.slot[k - 1] == slot &&
                  a.places.position[k - 1] == own - 1 &&
                  first_seen(a, k - 1, own - 1) == first_seen(a, k, own);
    }
    unsigned following = __ballot_sync(0xffffffffu, follows);
    return r % a.together && following & 1 ? 0 : __ffs((int)~(following | 1)) - 1;
}

/* A warp's way through its units, tile by tile: keys [low, high) of the tile at `key`, of a leaf up to `end`. */
struct tile_walk {
    int unit, key, low, high, end;
    int page; /* that the lane asks for, of the pool */

    __device__ bool there() const {
        return low < high;
    }
    __device__ bool ends_leaf() const {
        return key + TENSOR_KEYS >= end;
    }
    /* Of a quarter: the next leaf of which it has some keys. */
    __device__ void enter(const attend_problem &a, const row_view &v) {
        int span = a.quarters ? a.leaf / QUARTERS : a.leaf;
        int ahead = a.quarters ? (int)threadIdx.x / 32 * span : 0;
        for (;; unit += v.splits) {
            int leaf = a.units == 1 ? unit : unit / a.units;
            int first = ((v.seen >> a.leaf_bits) + leaf) << a.leaf_bits, begin = first + ahead;
            low = max(begin, v.seen), end = min(begin + span, v.own + 1);
            key = low / TENSOR_KEYS * TENSOR_KEYS, high = min(end, key + TENSOR_KEYS);
            if (!a.quarters || there() || first > v.own) return;
        }
    }
    __device__ void advance(const attend_problem &a, const row_view &v) {
        if (ends_leaf()) {
            unit += a.quarters ? v.splits : v.splits * a.head_warps;
            enter(a, v);
        } else {
            low = key += TENSOR_KEYS, high = min(end, key + TENSOR_KEYS);
        }
    }
    /* Ahead of the tile's copies, which need it. */
    __device__ void find_page(const attend_problem &a, const row_view &v) {
        int at = key / WEFT_PAGE_TOKENS + (int)threadIdx.x % 2;
        if (at >= a.places.pages) at %= a.places.pages;
        page = there() ? v.table[at] : 0;
    }
};

/* Keys and values of the tile that are in no page yet. */
__device__ static inline void copy_fresh(const attend_problem &a, const tensor_memory &m, int slot,
                                         const tile_walk &w, const row_view &v) {
    int first = max(w.low, v.fresh);
    if (first >= w.high) return;
    auto copy = [&](const cached_write &from, uint32_t to) {
        int lane = (int)threadIdx.x % 32, width = from.c.width;
        for (int j = first; j < w.high; j++)
            for (int i = lane * VECTOR; i < width; i += 32 * VECTOR)
                copy_piece(to + (uint32_t)((j - w.key) * width + i) * 2, fresh_at(from, v, j) + i,
                           true);
    };
    uint32_t to = shared_address(m.stages) + (uint32_t)(slot * stage_bytes(a));
    copy(a.key_write, to);
    if (!a.joint) copy(a.value_write, to + (uint32_t)(TENSOR_KEYS * a.dqk) * 2);
    end_copies();
}

/* When the other keys of the tile are there: waits for those, and finds their numbers. */
__device__ static inline void wait_fresh(const attend_problem &a, const tensor_memory &m, int slot,
                                         const tile_walk &w, const row_view &v) {
    int lane = (int)threadIdx.x % 32, first = max(w.low, v.fresh), j = w.key + lane;
    char *stage = m.stages + slot * stage_bytes(a);
    wait_copies();
    __syncwarp();
    if (!a.keys.number) return;
    float number = 0;
    for (int at = first - w.key; at < w.high - w.key; at++) {
        float squares = sum_squares((const bf16 *)stage + at * a.dqk, a.dqk);
        if (lane == at) number = squares;
    }
    if (j >= first && j < w.high) {
        if (a.key_write.extra.data) number += fresh_extra(a.key_write, v, j);
        ((float *)(stage + pair_bytes(a)))[lane] = number;
    }
#ifndef USE_MMA_SYNC
    /* Ahead of the stage's next copies, as wait_copies has it. */
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncwarp();
}

/* Of a key head the row's own key, or its value, to its page, by a warp: the bytes of write_vector (cache.cu). */
__device__ static inline void write_own(const attend_problem &a, const cached_write &w,
                                        const row_view &v) {
    int lane = (int)threadIdx.x % 32;
    int token = v.own % WEFT_PAGE_TOKENS;
    char *page = w.c.data + v.table[v.own / WEFT_PAGE_TOKENS % a.places.pages] * w.c.page_bytes;
    char *to = token_at(w.c, page, v.g, token);
    const bf16 *from = fresh_at(w, v, v.own);
    for (int i = lane * VECTOR; i < w.c.width; i += 32 * VECTOR)
        *(uint4 *)((bf16 *)to + i) = *(const uint4 *)(from + i);
    if (!w.c.number) return;
    float number = sum_squares(from, w.c.width);
    if (w.extra.data) number += fresh_extra(w, v, v.own);
    if (lane == 0) *number_at(w.c, page, v.g, token) = number;
}

/* Those of the block's key heads, the last warp first. */
__device__ static inline void write_row(const attend_problem &a, row_view v) {
    int first = (int)blockIdx.x * a.own_heads;
    for (int i = ((int)blockDim.x - 1 - (int)threadIdx.x) / 32; i < 2 * a.own_heads;
         i += (int)blockDim.x / 32) {
        const cached_write &w = i % 2 ? a.value_write : a.key_write;
        v.g = first + i / 2;
        if (w.done && v.g < a.keys.heads) write_own(a, w, v);
    }
}

#ifndef USE_MMA_SYNC

enum copied_pages { STEADY_PAGES = 1, FRESH_PAGES = 2, ALL_PAGES = 3 };

__device__ static inline void expect_tile(const attend_problem &a, uint32_t barrier,
                                          const tile_walk &w, const row_view &v) {
    int high = max(w.low, min(w.high, v.fresh));
    int pages = (high - 1) / WEFT_PAGE_TOKENS - w.low / WEFT_PAGE_TOKENS + 1;
    int bytes = (high - w.low) * (a.dqk + (a.joint ? 0 : a.dv)) * 2;
    if (a.keys.number && bytes > 0) bytes += pages * WEFT_PAGE_TOKENS * (int)sizeof(float);
    if (threadIdx.x % 32 == 0) arrive_expect_tx(barrier, bytes);
    __syncwarp();
}

/* Pages that no row of this run writes, the others, or all. */
__device__ static inline void copy_tile(const attend_problem &a, const tensor_memory &m, int slot,
                                        const tile_walk &w, const row_view &v, int which) {
    const lane_copies &c = m.copies;
    int first = (w.key / WEFT_PAGE_TOKENS + (int)threadIdx.x % 2) * WEFT_PAGE_TOKENS;
    int begin = max(w.low, first), end = min(min(w.high, v.fresh), first + WEFT_PAGE_TOKENS);
    /* Before the first row of the sequence that this run has, or may have. */
    bool steady = a.key_write.done || end + a.places.rows <= v.own + 1;
    int is = steady ? STEADY_PAGES : FRESH_PAGES;
    if (c.page_bytes == 0 || begin >= end || !(is & which)) return;
    int bytes = (end - begin) * c.token_bytes, to = (begin - w.key) * c.token_bytes;
    if (c.token_bytes == 0) {
        bytes = WEFT_PAGE_TOKENS * (int)sizeof(float);
        to = pair_bytes(a) + (first - w.key) * (int)sizeof(float);
    } else if ((int)threadIdx.x % 32 >= 2) {
        to += TENSOR_KEYS * a.dqk * (int)sizeof(bf16);
    }
    const char *page = c.from + (int64_t)w.page * c.page_bytes;
    bulk_copy(shared_address(m.stages) + (uint32_t)(slot * stage_bytes(a) + to),
              page + (begin - first) * c.token_bytes, bytes, m.arrived + 8 * (uint32_t)slot);
}

/* The warp's first tiles, at which `w` stands; afterwards it stands behind them. The kernel ahead has
 * ended then. */
__device__ static inline void begin_tiles(const attend_problem &a, const tensor_memory &m,
                                          tile_walk &w, const row_view &v) {
    tile_walk first = w;
    w.find_page(a, v);
    if (threadIdx.x % 32 == 0) {
        for (int i = 0; i < a.stages; i++)
            init_barrier(m.arrived + 8 * (uint32_t)i, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < a.stages && w.there(); i++) {
        tile_walk next = w;
        next.advance(a, v);
        next.find_page(a, v);
        expect_tile(a, m.arrived + 8 * (uint32_t)i, w, v);
        copy_tile(a, m, i, w, v, STEADY_PAGES);
        w = next;
    }
    wait_for_primary();
#pragma unroll 1
    for (int i = 0; i < a.stages && first.there(); i++, first.advance(a, v)) {
        if (!a.key_write.done) {
            first.find_page(a, v);
            copy_tile(a, m, i, first, v, FRESH_PAGES);
        }
        copy_fresh(a, m, i, first, v);
    }
}

/* When all lanes are done with the tile that is in the slot. */
__device__ static inline void ask_for_tile(const attend_problem &a, const tensor_memory &m,
                                           int slot, tile_walk &w, const row_view &v) {
    expect_tile(a, m.arrived + 8 * (uint32_t)slot, w, v);
    copy_tile(a, m, slot, w, v, ALL_PAGES);
    copy_fresh(a, m, slot, w, v);
    w.advance(a, v);
    w.find_page(a, v);
}

__device__ static inline void wait_tile(const tensor_memory &m, int slot, int phase) {
    wait_phase(m.arrived + 8 * (uint32_t)slot, (uint32_t)phase);
}

#else

__device__ static inline void copy_part(const attend_problem &a, const cached_pages &c,
                                        const tile_walk &w, const row_view &v, uint32_t to,
                                        int width) {
    int pieces = width / VECTOR;
    for (int e = threadIdx.x % 32; e < (min(w.high, v.fresh) - w.low) * pieces; e += 32) {
        int j = w.low + e / pieces, piece = e % pieces * VECTOR;
        const bf16 *from =
            (const bf16 *)token_at(c, page_at(c, a.places, v.r, j), v.g, j % WEFT_PAGE_TOKENS);
        copy_piece(to + (uint32_t)((j - w.key) * width + piece) * 2, from + piece, true);
    }
}

__device__ static inline void ask_for_tile(const attend_problem &a, const tensor_memory &m,
                                           int slot, tile_walk &w, const row_view &v) {
    char *stage = m.stages + slot * stage_bytes(a);
    uint32_t to = shared_address(stage);
    copy_part(a, a.keys, w, v, to, a.dqk);
    if (!a.joint) copy_part(a, a.values, w, v, to + (uint32_t)(TENSOR_KEYS * a.dqk) * 2, a.dv);
    int j = w.key + (int)threadIdx.x % 32;
    if (a.keys.number && j >= w.low && j < min(w.high, v.fresh))
        ((float *)(stage + pair_bytes(a)))[j - w.key] =
            *number_at(a.keys, page_at(a.keys, a.places, v.r, j), v.g, j % WEFT_PAGE_TOKENS);
    copy_fresh(a, m, slot, w, v);
    end_copies();
    w.advance(a, v);
}

__device__ static inline void begin_tiles(const attend_problem &a, const tensor_memory &m,
                                          tile_walk &w, const row_view &v) {
    wait_for_primary();
    for (int i = 0; i < a.stages && w.there(); i++)
        ask_for_tile(a, m, i, w, v);
}

__device__ static inline void wait_tile(const tensor_memory &, int, int) {
    wait_copies();
    __syncwarp();
}

#endif
