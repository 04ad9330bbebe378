/* Attention over a cache of bf16 on the tensor cores (cache_attention.cu).
 *
 * Keys are cut into links at multiples of a length that follows from the row's own position: 64, or a larger
 * multiple of that, so that there are MOST_LINKS of them or a few less. A warp goes through a link by itself, tile after tile of 32 keys with an online softmax in registers,
 * and the links' results are added in one binary tree over their absolute indices. Scores are taken to the
 * largest one rounded up to a whole power of two, so what is scaled loses no bit, and only the order of
 * additions decides about a result: the tree's, however links are shared out. A row's bits therefore follow
 * from its own sequence.
 *
 * A cluster of blocks has a row and key head, or several rows of one sequence, which then read its keys once. Its
 * warps share out the links, and send each one's sums to the block that joins those of that row of the tile. Of
 * more links than there is room for, clusters have aligned parts of the tree, its spans, one after another; what
 * these come to is kept in memory, and joined by the warp that comes last.
 *
 * Tiles come by bulk copies, a page each (cp.async before 9.0a), the next ones while one is multiplied. What no
 * row of the run writes is asked for before the kernel ahead has ended. Where the writes of the run's keys and
 * values come right before attention, it does them: its own rows' keys it reads from where they were made.
 *
 * The query heads that share a key head are the rows of a tile of 16, so that MLA's twelve or more heads read
 * their one latent once. More than 16 heads, or values wider than a warp has registers for, are units of their
 *own over the same keys.
 *
 * Which of a step's numbers meet in an instruction is free as long as both factors agree: a lane multiplies the
 * eight that lie beside each other (few_rows.cuh). Column c of the n-th eight scores is key
 * 8 ⌊c/2⌋ + 2 n + c mod 2 of its tile, so that a lane's scores are those of eight keys beside each other, and as
 * weights are where the product with the values wants them. */
#pragma once

#include "cuda/decode/attend.cuh"
#include "cuda/dependent_launch.cuh"
#include "cuda/products/few_rows.cuh"
#include "cuda/tensor/pipeline.cuh"

enum {
    TENSOR_ROWS = 16,        /* of a tile */
    TENSOR_KEYS = 32,        /* keys of a tile */
    TENSOR_COLUMNS = 8 * 32, /* of values that a warp sums, at most */
    TENSOR_STAGES = 2,       /* tiles of a warp in shared memory */
    TENSOR_WARPS = 4,        /* of a block */
    TENSOR_SHARED = 8,       /* rows of a tile that rows of one sequence make up, at most */
    TENSOR_ROOM = 112 << 10, /* bytes of a block, so that two are there, or a product's */
    MOST_BLOCKS = 8,         /* of a cluster */
    LEAST_LINK = 64,         /* keys */
    MOST_LINKS = 64,         /* of a row, and one or two more where the first is cut */
    MOST_LINKS_MANY = 128,   /* of many heads, that share one key head */
    MOST_SPAN_BITS = 6,      /* links of a span, as a power of two */
    LEAST_SPAN_BITS = 4
};

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

/* Columns that a unit sums, and 32 of them at a time. */
__host__ __device__ static inline int unit_columns(const attend_problem &a) {
    return a.dv < TENSOR_COLUMNS ? a.dv : (int)TENSOR_COLUMNS;
}

static inline int unit_parts(const attend_problem &a) {
    return unit_columns(a) <= 64 ? 2 : unit_columns(a) <= 128 ? 4 : 8;
}

/* Rows of a tile at most. */
__host__ __device__ static inline int tile_rows(const attend_problem &a) {
    return a.shared > 1 ? a.shared * a.group : a.group < TENSOR_ROWS ? a.group : (int)TENSOR_ROWS;
}

/* A link's sums in shared memory: columns, largest score, sum of the weights; in fours. */
__host__ __device__ static inline int slot_floats(const attend_problem &a) {
    return unit_columns(a) + 4;
}

/* Shared memory: the warps' stages; a barrier for each; q, a number of 16 bytes for each step and lane; the rows' factors; slots of
 * links. */
struct tensor_memory {
    char *stages;     /* of the warp */
    uint32_t arrived; /* the warp's barriers */
    uint4 *q;
    head_factors *factors;
    float *slots;
};

static inline int64_t tensor_bytes(const attend_problem &a) {
    return a.warps * TENSOR_STAGES * (int64_t)(stage_bytes(a) + 8) +
           tensor_steps(a) * 32 * (int64_t)sizeof(uint4) +
           TENSOR_ROWS * (int64_t)sizeof(head_factors) +
           a.slots * slot_floats(a) * (int64_t)sizeof(float);
}

__device__ static inline tensor_memory cut_tensor_memory(const attend_problem &a, char *memory) {
    int warp = (int)threadIdx.x / 32, stages = a.warps * TENSOR_STAGES;
    char *barriers = memory + stages * stage_bytes(a);
    uint4 *q = (uint4 *)(barriers + stages * 8);
    head_factors *factors = (head_factors *)(q + tensor_steps(a) * 32);
    return {memory + warp * TENSOR_STAGES * stage_bytes(a),
            shared_address(barriers) + (uint32_t)(warp * TENSOR_STAGES * 8),

            q, factors, (float *)(factors + TENSOR_ROWS)};
}

__device__ static inline few_words read_words(const void *from) {
    uint4 v = *(const uint4 *)from;
    return few_words{{v.x, v.y, v.z, v.w}};
}

/* What a cluster has: `rows` rows of one sequence from r on, a key head, a tile of its query heads, and columns
 * of the values from `from` on. They see keys [seen, own + rows - 1] or fewer. */
struct row_view {
    int r, g, tile, from, rows;
    int own;   /* the first row's position */
    int seen;  /* the first key that the first row sees */
    int clear; /* the first one that the last row does */
    int fresh; /* the first key that this run writes */
    const int32_t *table;
    int used; /* rows of the tile */
    int room; /* slots for each of those that a block joins */
    int link; /* keys of one */
    int span_bits;
    int first, last; /* links */
    int spans;

    __device__ int end() const {
        return own + rows;
    }
};

/* Whether row r is of the sequence of the row before it and has the next position. */
__device__ static inline bool continues(const row_places &p, int r) {
    return r > 0 && r < p.rows && p.slot[r] == p.slot[r - 1] &&
           p.position[r] == p.position[r - 1] + 1;
}

/* How many of the conditions hold from lane 0 on. */
__device__ static inline int count_lanes(bool holds) {
    unsigned mask = __ballot_sync(0xffffffffu, holds);
    return mask == 0xffffffffu ? 32 : __ffs((int)~mask) - 1;
}

/* The rows from r on, of those whose positions have the same multiple of `shared`; 0: r is not their first. */
__device__ static inline int count_rows(const attend_problem &a, int r) {
    int lane = (int)threadIdx.x % 32, own = a.places.position[r];
    bool follows = continues(a.places, r);
    if (a.shared == 1) return 1;
    if (follows && own % a.shared != 0) return 0;
    bool holds = lane == 0 || (own % a.shared + lane < a.shared && continues(a.places, r + lane));
    return count_lanes(holds);
}

/* Rows of the run ahead of r that are of its sequence. */
__device__ static inline int count_before(const attend_problem &a, int r) {
    int lane = (int)threadIdx.x % 32, count = 0, more;
    if (!continues(a.places, r)) return 0;
    do {
        more = count_lanes(continues(a.places, r - count - lane));
        count += more;
    } while (more == 32);
    return count;
}

__host__ __device__ static inline int most_links(const attend_problem &a) {
    return a.group <= 4 ? MOST_LINKS : MOST_LINKS_MANY;
}

/* Keys of a link: the same for all rows that may share keys. */
__device__ static inline int find_link(const attend_problem &a, int own) {
    int keys = min(own, a.context - 1) / TENSOR_SHARED * TENSOR_SHARED + TENSOR_SHARED;
    int lengths = most_links(a) * LEAST_LINK;
    return (keys + lengths - 1) / lengths * LEAST_LINK;
}

/* `rows`: count_rows', not 0. */
__device__ static inline row_view view_rows(const attend_problem &a, int r, int rows) {
    row_view v = {};
    int unit = (int)blockIdx.x % a.units, tiles = (a.group + TENSOR_ROWS - 1) / TENSOR_ROWS;
    v.r = r, v.rows = rows;
    v.g = (int)blockIdx.x / a.units;
    v.tile = unit % tiles, v.from = unit / tiles * TENSOR_COLUMNS;
    v.own = a.places.position[r];
    v.seen = first_seen(a, r, v.own);
    v.clear = first_seen(a, r + rows - 1, v.own + rows - 1);
    v.fresh = v.own - count_before(a, r);
    v.table = a.places.table + (int64_t)a.places.slot[r] * a.places.pages;
    v.link = find_link(a, v.own);
    v.first = v.seen / v.link, v.last = (v.end() - 1) / v.link;
    v.used = a.shared > 1 ? rows * a.group : min(a.group - v.tile * TENSOR_ROWS, TENSOR_ROWS);
    v.room = a.slots / ((v.used + a.blocks - 1) / a.blocks);
    v.span_bits = v.last - v.first < v.room ? 30 : a.span_bits;
    v.spans = (v.last >> v.span_bits) - (v.first >> v.span_bits) + 1;
    return v;
}

/* Nodes of a level of the tree that lie beside each other: links, or spans. */
struct tree_part {
    int first, count;
};

__device__ static inline tree_part find_span(const row_view &v, int i) {
    int at = (v.first >> v.span_bits) + i, first = max(v.first, at << v.span_bits);
    return {first, min(v.last, ((at + 1) << v.span_bits) - 1) - first + 1};
}

/* Row t of the tile: which of the rows and which of the group's heads it is; none from v.used on. */
struct tile_row {
    int i, h;

    __device__ tile_row(const attend_problem &a, const row_view &v, int t) {
        i = a.shared > 1 ? t / a.group : 0;
        h = a.shared > 1 ? t % a.group : v.tile * TENSOR_ROWS + t;
    }
    /* Among the heads of all rows. */
    __device__ int64_t head(const attend_problem &a, const row_view &v) const {
        return (int64_t)(v.r + i) * a.heads + v.g * a.group + h;
    }
};

/* A warp's tiles: those of its links, one behind the other, of keys [begin, end). */
struct tile_walk {
    int begin, end, key;

    __device__ bool there() const {
        return key < end;
    }
    __device__ int low() const {
        return max(key, begin);
    }
    __device__ int high() const {
        return min(key + TENSOR_KEYS, end);
    }
};

/* Neighbours among the warps that share out the links are in different blocks. */
__device__ static inline tile_walk find_walk(const attend_problem &a, const row_view &v,
                                             const tree_part &span) {
    int rank = (int)blockIdx.z % a.blocks, warp = (int)threadIdx.x / 32 * a.blocks + rank;
    int warps = a.warps * a.blocks;
    int first = span.count * warp / warps, end = span.count * (warp + 1) / warps;
    if ((int)threadIdx.x / 32 >= a.warps || first == end) return {0, 0, 0};
    int begin = max((span.first + first) * v.link, v.seen);
    return {begin, min((span.first + end) * v.link, v.end()), begin / TENSOR_KEYS * TENSOR_KEYS};
}

__device__ static inline int count_pages(int begin, int end) {
    return begin < end ? (end - 1) / WEFT_PAGE_TOKENS - begin / WEFT_PAGE_TOKENS + 1 : 0;
}

#ifndef USE_MMA_SYNC

__device__ static inline void bulk_copy(uint32_t to, const void *from, int bytes,
                                        uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

__device__ static inline void expect_tile(const attend_problem &a, uint32_t barrier,
                                          const tile_walk &w, const row_view &v) {
    int low = w.low(), high = w.high();
    int bytes = (high - low) * (a.dqk + (a.joint ? 0 : a.dv)) * 2;
    if (a.keys.number) {
        int pages = count_pages(low, a.key_write.x.data ? min(high, v.fresh) : high);
        bytes += pages * WEFT_PAGE_TOKENS * (int)sizeof(float);
    }
    if (threadIdx.x % 32 == 0) arrive_expect_tx(barrier, bytes);
    __syncwarp();
}

/* The page that a lane asks for of a tile at `key`: two lanes keys, two values, two numbers. */
__device__ static inline int find_page(const attend_problem &a, const row_view &v,
                                       const tile_walk &w) {
    int lane = (int)threadIdx.x % 32, page = w.key / WEFT_PAGE_TOKENS + lane % 2;
    if (lane >= 6 || page * WEFT_PAGE_TOKENS >= w.end) return 0;
    return v.table[page % a.places.pages];
}

/* Keys [low, high) of the tile from the pages that its lanes have found. `which`: of keys (and numbers), of
 * values, a bit each. */
__device__ static inline void copy_pages(const attend_problem &a, const tensor_memory &m, int slot,
                                         const tile_walk &w, const row_view &v, int found, int low,
                                         int high, int which) {
    int lane = (int)threadIdx.x % 32, part = lane / 2, page = w.key / WEFT_PAGE_TOKENS + lane % 2;
    int begin = max(low, page * WEFT_PAGE_TOKENS);
    int end = min(high, (page + 1) * WEFT_PAGE_TOKENS);
    bool asked = part == 1 ? which >> 1 && !a.joint : (which & 1) && (part == 0 || a.keys.number);
    /* Numbers of a page that the run writes to come once, when they are there. */
    if (part == 2 && !a.key_write.x.data && end < min(w.high(), (page + 1) * WEFT_PAGE_TOKENS))
        return;
    if (part > 2 || !asked || begin >= end) return;
    const cached_pages &c = part == 1 ? a.values : a.keys;
    char *from = c.data + found * c.page_bytes;
    uint32_t to = shared_address(m.stages) + (uint32_t)(slot * stage_bytes(a));
    int bytes = (end - begin) * (int)c.token_bytes;
    if (part < 2) {
        from = token_at(c, from, v.g, begin % WEFT_PAGE_TOKENS);
        to +=
            (uint32_t)((part ? TENSOR_KEYS * a.dqk * 2 : 0) + (begin - w.key) * (int)c.token_bytes);
    } else {
        bytes = WEFT_PAGE_TOKENS * (int)sizeof(float);
        from = (char *)number_at(c, from, v.g, 0);
        to += (uint32_t)(pair_bytes(a) + lane % 2 * bytes);
    }
    bulk_copy(to, from, bytes, m.arrived + 8 * (uint32_t)slot);
}

/* The vector that a row of the run leaves of its key head. */
__device__ static inline const bf16 *written_row(const cached_write &w, const row_view &v, int j) {
    int64_t row = v.r + (j - v.own);
    return (const bf16 *)w.x.data + row * w.columns + w.offset + (int64_t)v.g * w.c.width;
}

/* A tile's keys that the run itself writes: from the rows, a key a lane, or from their pages. */
__device__ static inline void copy_fresh(const attend_problem &a, const tensor_memory &m, int slot,
                                         const tile_walk &w, const row_view &v, int found) {
    int low = max(w.low(), v.fresh), high = w.high(), j = w.key + (int)threadIdx.x % 32;
    if (low >= high) return;
    int written = (a.key_write.x.data ? 1 : 0) | (a.value_write.x.data ? 2 : 0);
    if (written != 3) copy_pages(a, m, slot, w, v, found, low, high, 3 & ~written);
    if (j < low || j >= high) return;
    uint32_t to = shared_address(m.stages) + (uint32_t)(slot * stage_bytes(a));
    uint32_t barrier = m.arrived + 8 * (uint32_t)slot;
    if (written & 1)
        bulk_copy(to + (uint32_t)((j - w.key) * a.dqk) * 2, written_row(a.key_write, v, j),
                  a.dqk * 2, barrier);
    if (written & 2)
        bulk_copy(to + (uint32_t)(TENSOR_KEYS * a.dqk + (j - w.key) * a.dv) * 2,
                  written_row(a.value_write, v, j), a.dv * 2, barrier);
}

/* When all lanes are done with the tile that is in the slot. */
__device__ static inline void ask_for_tile(const attend_problem &a, const tensor_memory &m,
                                           int slot, const tile_walk &w, const row_view &v,
                                           int found) {
    expect_tile(a, m.arrived + 8 * (uint32_t)slot, w, v);
    copy_pages(a, m, slot, w, v, found, w.low(), min(w.high(), v.fresh), 3);
    copy_fresh(a, m, slot, w, v, found);
}

/* What was written to a stage by itself comes before what is copied there next. */
__device__ static inline void fence_stage() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ static inline void begin_stages(const tensor_memory &m) {
    if (threadIdx.x % 32 == 0) {
        for (int i = 0; i < TENSOR_STAGES; i++)
            init_barrier(m.arrived + 8 * (uint32_t)i, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
}

/* The warp's first tiles of a span, behind `tiles` of those before; afterwards `w` stands behind them, and the
 * kernel ahead has ended. */
__device__ static inline void begin_tiles(const attend_problem &a, const tensor_memory &m,
                                          tile_walk &w, const row_view &v, int tiles) {
    static_assert(TENSOR_STAGES == 2, "a walk for each");
    tile_walk first = w, second = w;
    second.key += TENSOR_KEYS;
    int page = find_page(a, v, first), next = find_page(a, v, second);
    int slot = tiles % TENSOR_STAGES, other = 1 - slot;
    auto ask = [&](int slot, const tile_walk &t, int found) {
        if (!t.there()) return;
        expect_tile(a, m.arrived + 8 * (uint32_t)slot, t, v);
        copy_pages(a, m, slot, t, v, found, t.low(), min(t.high(), v.fresh), 3);
    };
    ask(slot, first, page);
    ask(other, second, next);
    wait_for_primary();
    if (first.there()) copy_fresh(a, m, slot, first, v, page);
    if (second.there()) copy_fresh(a, m, other, second, v, next);
    w.key += TENSOR_STAGES * TENSOR_KEYS;
}

__device__ static inline void wait_tile(const tensor_memory &m, int slot, int phase) {
    wait_phase(m.arrived + 8 * (uint32_t)slot, (uint32_t)phase);
}

/* This block has begun. */
__device__ static inline void greet_blocks(int blocks) {
    if (blocks > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ static inline void arrive_at_blocks(int blocks) {
    if (blocks > 1) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ static inline void wait_for_blocks(int blocks) {
    if (blocks > 1)
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    else
        __syncthreads();
}

/* A slot in shared memory of block `rank`. */
struct remote_slot {
    uint32_t at;

    __device__ remote_slot(const float *slot, int rank) {
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                     : "=r"(at)
                     : "r"(shared_address(slot)), "r"(rank));
    }
    __device__ void send(int column, float a, float b) const {
        asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(at + (uint32_t)column * 4),
                     "f"(a), "f"(b)
                     : "memory");
    }
    __device__ void send(int column, float a, float b, float c, float d) const {
        asm volatile(
            "st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at + (uint32_t)column * 4),
            "f"(a), "f"(b), "f"(c), "f"(d)
            : "memory");
    }
};

#else

__device__ static inline int find_page(const attend_problem &, const row_view &,
                                       const tile_walk &) {
    return 0;
}

/* A part of the tile, a key after the other; `written`: of the run's own rows, or NULL. */
__device__ static inline void copy_part(const attend_problem &a, const cached_pages &c,
                                        const cached_write &written, const tile_walk &w,
                                        const row_view &v, uint32_t to, int width) {
    int pieces = width / VECTOR, low = w.low();
    for (int e = threadIdx.x % 32; e < (w.high() - low) * pieces; e += 32) {
        int j = low + e / pieces, piece = e % pieces * VECTOR;
        const bf16 *from;
        if (written.x.data && j >= v.fresh)
            from = (const bf16 *)written.x.data + (int64_t)(v.r + j - v.own) * written.columns +
                   written.offset + (int64_t)v.g * width;
        else
            from =
                (const bf16 *)token_at(c, page_at(c, a.places, v.r, j), v.g, j % WEFT_PAGE_TOKENS);
        copy_piece(to + (uint32_t)((j - w.key) * width + piece) * 2, from + piece, true);
    }
}

__device__ static inline void ask_for_tile(const attend_problem &a, const tensor_memory &m,
                                           int slot, const tile_walk &w, const row_view &v, int) {
    char *stage = m.stages + slot * stage_bytes(a);
    uint32_t to = shared_address(stage);
    copy_part(a, a.keys, a.key_write, w, v, to, a.dqk);
    if (!a.joint)
        copy_part(a, a.values, a.value_write, w, v, to + (uint32_t)(TENSOR_KEYS * a.dqk) * 2, a.dv);
    int j = w.key + (int)threadIdx.x % 32;
    if (a.keys.number && j >= w.low() && j < w.high())
        ((float *)(stage + pair_bytes(a)))[j - w.key] =
            *number_at(a.keys, page_at(a.keys, a.places, v.r, j), v.g, j % WEFT_PAGE_TOKENS);
    end_copies();
}

__device__ static inline void begin_stages(const tensor_memory &) {
}

__device__ static inline void begin_tiles(const attend_problem &a, const tensor_memory &m,
                                          tile_walk &w, const row_view &v, int tiles) {
    wait_for_primary();
    for (int i = 0; i < TENSOR_STAGES; i++, w.key += TENSOR_KEYS)
        if (w.there()) ask_for_tile(a, m, (tiles + i) % TENSOR_STAGES, w, v, 0);
}

__device__ static inline void wait_tile(const tensor_memory &, int, int) {
    wait_copies();
    __syncwarp();
}

__device__ static inline void fence_stage() {
}

__device__ static inline void greet_blocks(int) {
}

__device__ static inline void arrive_at_blocks(int) {
}

__device__ static inline void wait_for_blocks(int) {
    __syncthreads();
}

struct remote_slot {
    float *at;

    __device__ remote_slot(float *slot, int) : at(slot) {
    }
    __device__ void send(int column, float a, float b) const {
        *(float2 *)(at + column) = make_float2(a, b);
    }
    __device__ void send(int column, float a, float b, float c, float d) const {
        *(float4 *)(at + column) = make_float4(a, b, c, d);
    }
};

#endif

/* c += a b for 16 rows and eight columns, over 16 numbers: a as the instruction has it. */
__device__ static inline void multiply_rows(float (&c)[4], uint4 a, unsigned b0, unsigned b1) {
    few_words high = {{a.x, a.z}}, low = {{a.y, a.w}};
    few_multiply(c, high, low, 0, b0, b1);
}

/* S = Q Kᵀ for 16 rows and 32 keys. EVEN: widths are multiples of 32, and all keys are there. */
template <bool EVEN>
__device__ static inline void score_tile(const attend_problem &a, const uint4 *queries,
                                         const bf16 *keys, float (&c)[4][4]) {
    int lane = threadIdx.x % 32, quarter = lane % 4, row = lane / 4;
    const uint4 *q = queries + lane;
    const bf16 *key = keys + (row / 2 * 8 + row % 2) * a.dqk + quarter * 8;
#pragma unroll 2
    for (int k = 0; k < a.dqk; k += 32, q += 64) {
        few_words b[4];
#pragma unroll
        for (int n = 0; n < 4; n++)
            b[n] =
                EVEN || k + quarter * 8 < a.dqk ? read_words(key + 2 * n * a.dqk + k) : few_words{};
#pragma unroll
        for (int step = 0; step < 2; step++) {
            uint4 high_low = q[32 * step];
#pragma unroll
            for (int n = 0; n < 4; n++)
                multiply_rows(c[n], high_low, b[n].word[2 * step], b[n].word[2 * step + 1]);
        }
    }
}

/* What a lane knows of its two rows of the tile, `row` and `row` + 8. */
struct lane_rows {
    int own[2], seen[2]; /* own -1: there is no such row */
    int64_t head[2];     /* of all rows' heads */

    __device__ lane_rows(const attend_problem &a, const row_view &v) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int t = (int)threadIdx.x % 32 / 4 + 8 * half;
            tile_row row(a, v, t);
            bool there = t < v.used;
            own[half] = there ? v.own + row.i : -1;
            seen[half] = there ? first_seen(a, v.r + row.i, v.own + row.i) : 0;
            head[half] = row.head(a, v);
        }
    }
};

/* What a warp has of a link, or of a part of the tree: a lane those of two rows. */
template <int UNITS> struct unit_sums {
    float o[UNITS][4][4]; /* Σ p v of 32 columns: [eight of them][row and column] */
    float top[2], sum[2]; /* top: a whole number */
};

/* Below every score's. */
constexpr float NO_TOP = -1e30f;

/* 2^n of a whole number n <= 0, exactly. */
__device__ static inline float exact_power(float n) {
    return n < -126.0f ? 0.0f : __int_as_float(((int)n + 127) << 23);
}

/* What few models have: relative positions, a soft cap. */
__device__ static inline float adjust_score(const attend_problem &a, float score, int distance) {
    if (a.rel) score = fmaf(a.rel[min(max(distance, 0), a.context - 1)], LOG2E, score);
    return a.softcap > 0 ? a.softcap * tanhf(score / a.softcap) : score;
}

/* From raw products to exponentials under the largest score so far; what was summed before follows it.
 * HALVES 1: only the first eight rows of a tile are there. */
template <int UNITS, int HALVES, bool PLAIN>
__device__ static inline void weigh_tile(const attend_problem &a, const row_view &v,
                                         const lane_rows &rows, const head_factors *factors,
                                         const float *numbers, int key, float (&c)[4][4],
                                         unit_sums<UNITS> &s) {
    int lane = threadIdx.x % 32, first = key + lane % 4 * 8;
    bool whole = key >= v.clear && key + TENSOR_KEYS <= v.own + 1;
    float shrink[2] = {1, 1};
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        int own = rows.own[half], seen = rows.seen[half];
        head_factors f = factors[lane / 4 + 8 * half];
        auto each = [&](auto change) {
#pragma unroll
            for (int e = 0; e < 8; e++)
                c[e / 2][2 * half + e % 2] = change(e, c[e / 2][2 * half + e % 2]);
        };
        each([&](int, float score) { return score * f.scale; });
        if (a.keys.number)
            each([&](int e, float score) { return fmaf(numbers[first - key + e], f.beta, score); });
        if (a.pos == WEFT_POS_ALIBI)
            each([&](int e, float score) { return score - f.slope * (float)(own - first - e); });
        if (!PLAIN)
            each([&](int e, float score) { return adjust_score(a, score, own - first - e); });
        if (a.scores && own >= 0) {
            float *to = a.scores + rows.head[half] * a.context + first - seen;
            each([&](int e, float score) {
                if (first + e >= seen && first + e <= own) to[e] = score;
                return score;
            });
        }
        if (!whole)
            each([&](int e, float score) {
                return first + e >= seen && first + e <= own ? score : -INFINITY;
            });
        float top = s.top[half];
        each([&](int, float score) { return top = fmaxf(top, score), score; });
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = ceilf(fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2)));
        shrink[half] = exact_power(s.top[half] - top);
        s.top[half] = top;
        float sum = 0;
        each([&](int, float score) {
            float p = power_of_two(score - top);
            return sum += p, p;
        });
        s.sum[half] = fmaf(s.sum[half], shrink[half], sum);
    }
    if (!__any_sync(0xffffffffu, shrink[0] != 1 || shrink[1] != 1)) return;
#pragma unroll
    for (int u = 0; u < UNITS; u++)
#pragma unroll
        for (int t = 0; t < 4; t++)
#pragma unroll
            for (int e = 0; e < 2 * HALVES; e++)
                s.o[u][t][e] *= shrink[e / 2];
}

/* O += P V for 16 rows, from column `from` on. */
template <int UNITS, int HALVES, bool EVEN>
__device__ static inline void sum_tile(const attend_problem &a, const tile_walk &w,
                                       const bf16 *values, int from, const float (&p)[4][4],
                                       unit_sums<UNITS> &s) {
    int lane = threadIdx.x % 32, quarter = lane % 4, row = lane / 4;
    int pitch = a.joint ? a.dqk : a.dv;
    uint4 weights[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        weights[i] = make_uint4(join_halves(p[2 * i][0], p[2 * i][1]),
                                HALVES > 1 ? join_halves(p[2 * i][2], p[2 * i][3]) : 0,
                                join_halves(p[2 * i + 1][0], p[2 * i + 1][1]),
                                HALVES > 1 ? join_halves(p[2 * i + 1][2], p[2 * i + 1][3]) : 0);
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        int column = from + 32 * u + 8 * quarter;
        if (from + 32 * u >= a.dv) break;
        unsigned b[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = row / 2 * 8 + 2 * i + row % 2, j = w.key + at;
            bool there = EVEN || (j >= w.low() && j < w.high() && column < a.dv);
            few_words v = there ? read_words(values + at * pitch + column) : few_words{};
#pragma unroll
            for (int t = 0; t < 4; t++)
                b[t][i] = v.word[t];
        }
#pragma unroll
        for (int t = 0; t < 4; t++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                b[t][i] = few_transpose(b[t][i]);
#pragma unroll
            for (int step = 0; step < 2; step++)
                multiply_rows(s.o[u][t], weights[step], b[t][2 * step], b[t][2 * step + 1]);
        }
    }
}

/* Two parts of the tree as one, number by number: left · 2^l + right · 2^r, of which nothing but the sum is
 * rounded. Where there is no part, top is NO_TOP and all else 0. */
struct joint_scale {
    float top, left, right;

    __device__ joint_scale(float left_top, float right_top)
        : top(fmaxf(left_top, right_top)), left(exact_power(left_top - top)),
          right(exact_power(right_top - top)) {
    }
    __device__ float join(float l, float r) const {
        return fmaf(l, left, r * right);
    }
};

/* A link's sums to those that join it: the rows of the tile go to the blocks of the cluster by turns. `at`: among
 * the links of the span. */
template <int UNITS, int HALVES>
__device__ static inline void send_link(const attend_problem &a, const tensor_memory &m,
                                        const row_view &v, const lane_rows &rows, int at,
                                        const unit_sums<UNITS> &s) {
    int lane = threadIdx.x % 32, quarter = lane % 4, columns = unit_columns(a);
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        int t = lane / 4 + 8 * half, slot = t / a.blocks * v.room + at;
        if (rows.own[half] < 0) continue;
        remote_slot to(m.slots + slot * slot_floats(a), t % a.blocks);
        if (quarter == 0) to.send(columns, s.top[half], s.sum[half]);
#pragma unroll
        for (int u = 0; u < UNITS; u++)
            if (32 * u + 8 * quarter < columns)
#pragma unroll
                for (int i = 0; i < 4; i += 2)
                    to.send(32 * u + 8 * quarter + 2 * i, s.o[u][i][2 * half],
                            s.o[u][i][2 * half + 1], s.o[u][i + 1][2 * half],
                            s.o[u][i + 1][2 * half + 1]);
    }
}

/* Queries, as the instruction has them; zeros where there are none. */
__device__ static inline void load_queries(const attend_problem &a, const tensor_memory &m,
                                           const row_view &v) {
    int steps = tensor_steps(a);
    auto load = [&](int t, int column) {
        if (t >= v.used || column >= a.dqk) return make_uint2(0, 0);
        tile_row row(a, v, t);
        const bf16 *q = (const bf16 *)a.q.data + (v.r + row.i) * a.q_columns;
        return *(const uint2 *)(q + ((int64_t)v.g * a.group + row.h) * a.dqk + column);
    };
    for (int e = (int)threadIdx.x; e < steps * 32; e += 32 * TENSOR_WARPS) {
        int lane = e % 32, step = e / 32;
        int column = step / 2 * 32 + lane % 4 * 8 + step % 2 * 4;
        uint2 high = load(lane / 4, column), low = load(lane / 4 + 8, column);
        m.q[e] = make_uint4(high.x, low.x, high.y, low.y);
    }
}

/* The numbers of a tile's keys that the run writes, in the order of what goes to the pages. */
__device__ static inline void number_fresh(const attend_problem &a, const row_view &v,
                                           const tile_walk &w, const bf16 *keys, float *numbers) {
    for (int j = max(w.low(), v.fresh); j < w.high(); j++) {
        const bf16 *key = keys + (j - w.key) * a.dqk;
        float n = sum_squares(a.dqk, [&](int i) { return to_float(key[i]); });
        n = add_extra(a.key_write, v.r + (j - v.own), v.g, n);
        if (threadIdx.x % 32 == 0) numbers[j - w.key] = n;
    }
    __syncwarp();
    fence_stage();
}

/* The links of a warp. `ask` stands behind the tiles that were asked for; `tiles`: so many were there before. */
template <int UNITS, int HALVES, bool PLAIN>
__device__ static inline void go_through_tiles(const attend_problem &a, const tensor_memory &m,
                                               const row_view &v, const tree_part &span,
                                               tile_walk use, tile_walk ask, int &tiles) {
    lane_rows rows(a, v);
    unit_sums<UNITS> s;
    bool fresh = true;
    int behind = (use.begin / v.link + 1) * v.link; /* the link's last key */
    int found = find_page(a, v, ask);
#pragma unroll 1
    for (; use.there(); tiles++, use.key += TENSOR_KEYS) {
        int slot = tiles % TENSOR_STAGES, next = use.key + TENSOR_KEYS;
        char *stage = m.stages + slot * stage_bytes(a);
        const bf16 *keys = (const bf16 *)stage;
        float *numbers = (float *)(stage + pair_bytes(a));
        if (fresh) {
            s = {};
            s.top[0] = s.top[1] = NO_TOP;
        }
        const bf16 *values = a.joint ? keys : keys + TENSOR_KEYS * a.dqk;
        bool even = (a.dqk | a.dv) % 32 == 0 && use.high() - use.low() == TENSOR_KEYS;
        float c[4][4] = {};
        wait_tile(m, slot, tiles / TENSOR_STAGES);
        if (a.keys.number && a.key_write.x.data && use.high() > v.fresh)
            number_fresh(a, v, use, keys, numbers);
        if (even)
            score_tile<true>(a, m.q, keys, c);
        else
            score_tile<false>(a, m.q, keys, c);
        weigh_tile<UNITS, HALVES, PLAIN>(a, v, rows, m.factors, numbers, use.key, c, s);
        if (even)
            sum_tile<UNITS, HALVES, true>(a, use, values, v.from, c, s);
        else
            sum_tile<UNITS, HALVES, false>(a, use, values, v.from, c, s);
        __syncwarp();
        if (ask.there()) {
            ask_for_tile(a, m, slot, ask, v, found);
            ask.key += TENSOR_KEYS;
            found = find_page(a, v, ask);
        }
        fresh = next >= use.end || next == behind;
        if (!fresh) continue;
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            s.sum[half] += __shfl_xor_sync(0xffffffffu, s.sum[half], 1);
            s.sum[half] += __shfl_xor_sync(0xffffffffu, s.sum[half], 2);
        }
        send_link<UNITS, HALVES>(a, m, v, rows, behind / v.link - 1 - span.first, s);
        behind += v.link;
    }
}

/* The links of a row, or its spans, in the tree's order, some pairs of a level at a time: by a warp. What two
 * nodes come to is where the first was, and so the result is the first. */
__device__ static inline void join_part(const tree_part &p, float *slots, int floats) {
    constexpr int PAIRS = 4;
    int lane = threadIdx.x % 32, columns = floats - 4, first = p.first, last = first + p.count - 1;
    for (int level = 0; first >> level != last >> level; level++)
        for (int k = first >> (level + 1); k <= last >> (level + 1); k += PAIRS) {
            float *left[PAIRS], top[PAIRS], sum[PAIRS];
            const float *right[PAIRS];
            float2 by[PAIRS];
            bool there[PAIRS];
#pragma unroll
            for (int i = 0; i < PAIRS; i++) {
                int l = max(2 * (k + i) << level, first), r = (2 * (k + i) + 1) << level;
                there[i] = r > first && r <= last;
                left[i] = slots + (there[i] ? l - first : 0) * floats;
                right[i] = slots + (there[i] ? r - first : 0) * floats;
                joint_scale scale(left[i][columns], right[i][columns]);
                top[i] = scale.top, by[i] = make_float2(scale.left, scale.right);
                sum[i] = scale.join(left[i][columns + 1], right[i][columns + 1]);
            }
            __syncwarp();
            for (int d = 2 * lane; d <= columns; d += 64) {
                float2 x[PAIRS];
#pragma unroll
                for (int i = 0; i < PAIRS; i++) {
                    float2 l = *(float2 *)(left[i] + d), r = *(const float2 *)(right[i] + d);
                    x[i] = d < columns ? make_float2(fmaf(l.x, by[i].x, r.x * by[i].y),
                                                     fmaf(l.y, by[i].x, r.y * by[i].y))
                                       : make_float2(top[i], sum[i]);
                }
#pragma unroll
                for (int i = 0; i < PAIRS; i++)
                    if (there[i]) *(float2 *)(left[i] + d) = x[i];
            }
            __syncwarp();
        }
}

__device__ static inline void store_two(any_tensor t, int64_t i, float x, float y) {
    if (t.is_bf16)
        *(unsigned *)((bf16 *)(void *)t.data + i) = join_halves(x, y);
    else
        *(float2 *)((float *)(void *)t.data + i) = make_float2(x, y);
}

/* A span's sums of one row of the tile are kept, by a warp. Returns whether those of all spans are there now: then
 * they are in `slots`, which had its tiles. */
__device__ static inline bool keep_span(const attend_problem &a, const row_view &v, int64_t row,
                                        int span, const float *sums, float *slots) {
    int lane = threadIdx.x % 32, floats = slot_floats(a), last = 0;
    float *parts = a.partial + row * a.parts * floats;
    for (int d = 2 * lane; d < floats; d += 64)
        *(float2 *)(parts + span * floats + d) = *(const float2 *)(sums + d);
    __threadfence();
    __syncwarp();
    if (lane == 0) {
        last = atomicAdd(a.joins + row, 1u) + 1 == (unsigned)v.spans;
        if (last) a.joins[row] = 0;
        __threadfence();
    }
    if (!__shfl_sync(0xffffffffu, last, 0)) return false;
    for (int d = 2 * lane; d < v.spans * floats; d += 64)
        *(float2 *)(slots + d) = __ldcg((const float2 *)(parts + d));
    __syncwarp();
    return true;
}

/* Row t of the tile, from its slots to o: by a warp. */
__device__ static inline void join_row(const attend_problem &a, const tensor_memory &m,
                                       const row_view &v, int i, const tree_part &span, int t) {
    int lane = threadIdx.x % 32, columns = unit_columns(a), floats = slot_floats(a);
    int64_t head = tile_row(a, v, t).head(a, v);
    float *slots = m.slots + t / a.blocks * v.room * floats;
    join_part(span, slots, floats);
    if (v.spans > 1) {
        int64_t row = head * ((a.dv + TENSOR_COLUMNS - 1) / TENSOR_COLUMNS);
        float *all = (float *)m.stages;
        if (!keep_span(a, v, row + v.from / TENSOR_COLUMNS, i, slots, all)) return;
        slots = all;
        join_part({v.first >> v.span_bits, v.spans}, slots, floats);
    }
    float total = slots[columns + 1];
    for (int d = 2 * lane; d < columns && v.from + d < a.dv; d += 64)
        store_two(a.o, head * a.dv + v.from + d, slots[d] / total, slots[d + 1] / total);
    if (lane > 0 || v.from > 0) return;
    a.rows[2 * head] = slots[columns];
    a.rows[2 * head + 1] = total;
}

/* An empty row's numbers are zeros. */
__device__ static inline void clear_row(const attend_problem &a, int r) {
    int width = a.group * a.dv, g = (int)blockIdx.x / a.units;
    if ((int)blockIdx.x % a.units > 0 || blockIdx.z > 0) return;
    for (int d = threadIdx.x; d < width; d += 32 * TENSOR_WARPS)
        store_any(a.o, ((int64_t)r * a.heads + g * a.group) * a.dv + d, 0.0f);
}

/* The run's keys and values of these rows to their pages: a warp a vector. */
__device__ static inline void write_rows(const attend_problem &a, const row_view &v) {
    int lane = threadIdx.x % 32;
    if (v.tile > 0 || v.from > 0 || (int)blockIdx.z != a.blocks - 1) return;
    for (int e = (int)threadIdx.x / 32; e < 2 * v.rows; e += TENSOR_WARPS) {
        const cached_write &w = e % 2 ? a.value_write : a.key_write;
        int r = v.r + e / 2, j = v.own + e / 2;
        if (w.x.data)
            write_vector<CACHED_BF16>(w, r * w.c.heads + v.g, page_at(w.c, a.places, r, j),
                                      j % WEFT_PAGE_TOKENS, lane);
    }
}

/* Of the tile's rows. */
__device__ static inline void find_factors(const attend_problem &a, const tensor_memory &m,
                                           const row_view &v) {
    if (threadIdx.x >= TENSOR_ROWS) return;
    tile_row row(a, v, (int)threadIdx.x);
    m.factors[threadIdx.x] = factors_of(a, v.g * a.group + min(row.h, a.group - 1));
}

__device__ static inline void note_writes(const attend_problem &a) {
    if (blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x > 0) return;
    if (a.key_write.done) *a.key_write.done = 0;
    if (a.value_write.done) *a.value_write.done = 0;
}

/* Warps from a.warps on only help with queries, writes and joining. PLAIN: adjust_score would do nothing. */
template <int UNITS, int HALVES, bool PLAIN>
static __global__ void __launch_bounds__(32 * TENSOR_WARPS, UNITS > 4 ? 1 : 2)
    attend_tiles(const __grid_constant__ attend_problem a) {
    extern __shared__ __align__(128) char tensor_shared[];
    trigger_dependents();
    int warp = (int)threadIdx.x / 32, r = (int)blockIdx.y, rows = 0;
    bool empty = a.places.slot[r] < 0;
    if (!empty) rows = count_rows(a, r);
    if (empty || rows == 0) {
        wait_for_primary();
        note_writes(a);
        if (empty) clear_row(a, r);
        return;
    }
    if (a.documents) wait_for_primary();
    row_view v = view_rows(a, r, rows);
    int cluster = (int)blockIdx.z / a.blocks, rank = (int)blockIdx.z % a.blocks;
    if (cluster >= v.spans) {
        wait_for_primary();
        return;
    }
    tensor_memory m = cut_tensor_memory(a, tensor_shared);
    greet_blocks(a.blocks);
    bool made = a.scale || a.beta; /* perhaps by the kernel ahead */
    if (!made) find_factors(a, m, v);
    if (warp < a.warps) begin_stages(m);
    int tiles = 0;
#pragma unroll 1
    for (int i = cluster; i < v.spans; i += a.spans) {
        tree_part span = find_span(v, i);
        tile_walk use = find_walk(a, v, span), ask = use;
        if (warp < a.warps)
            begin_tiles(a, m, ask, v, tiles);
        else
            wait_for_primary();
        if (i == cluster) {
            if (made) find_factors(a, m, v);
            load_queries(a, m, v);
            note_writes(a);
            __syncthreads();
            if (a.blocks > 1) wait_for_blocks(a.blocks); /* all have begun */
        }
        go_through_tiles<UNITS, HALVES, PLAIN>(a, m, v, span, use, ask, tiles);
        __syncwarp();
        arrive_at_blocks(a.blocks);
        if (i == cluster) write_rows(a, v);
        wait_for_blocks(a.blocks);
        for (int t = warp * a.blocks + rank; t < v.used && warp < a.warps; t += a.warps * a.blocks)
            join_row(a, m, v, i, span, t);
        if (i + a.spans >= v.spans) break;
        fence_stage();
        arrive_at_blocks(a.blocks); /* the slots are free */
        wait_for_blocks(a.blocks);
    }
}

static inline int count_links(const attend_problem &a) {
    return (int)min_i64(most_links(a), (a.context - 1) / LEAST_LINK + 1) + 1;
}

/* Blocks of a cluster and slots in each, for spans of 1 << a->span_bits links or all links: as many blocks as fill
 * the GPU, or more, where the sums of fewer had no room. Rows that share keys, or see a window, may touch two
 * links more. */
static inline void choose_blocks(attend_problem *a, int64_t pairs) {
    int most = weft_cuda_device()->wgmma ? (int)MOST_BLOCKS : 1, span = 1 << a->span_bits;
    int links = count_links(*a), room = (int)min_i64(links + 1, span + span / 4);
    int64_t spans = links < room ? 1 : ceil_div(links, span) + 1;
    int64_t all = pairs * spans, wanted = 2 * multiprocessors();
    auto take = [&](int blocks) {
        a->blocks = blocks;
        a->slots = (int)ceil_div(tile_rows(*a), blocks) * room;
    };
    take(1);
    while (2 * a->blocks <= most && 2 * a->blocks * all <= wanted &&
           a->blocks * a->warps < min_i64(links, span))
        take(2 * a->blocks);
    while (2 * a->blocks <= most && tensor_bytes(*a) > TENSOR_ROOM)
        take(2 * a->blocks);
    a->spans = (int)min_i64(spans, 1 + wanted / (pairs * a->blocks));
}

/* As many warps as there is room for, then the longest spans that leave no multiprocessor without a cluster. */
static inline void choose_shape(attend_problem *a, int64_t pairs) {
    int most = weft_cuda_device()->wgmma ? (int)MOST_BLOCKS : 1, longest = MOST_SPAN_BITS;
    while (longest > LEAST_SPAN_BITS &&
           pairs * most * ceil_div(count_links(*a), 1 << longest) < 2 * multiprocessors())
        longest--;
    for (a->warps = TENSOR_WARPS; a->warps > 0; a->warps--)
        for (a->span_bits = longest; a->span_bits >= LEAST_SPAN_BITS; a->span_bits--) {
            choose_blocks(a, pairs);
            if (tensor_bytes(*a) <= TENSOR_ROOM) return;
        }
    a->warps = 1, a->span_bits = LEAST_SPAN_BITS;
}

/* What follows from types, sizes and options alone. Returns whether this kernel takes the problem. */
static inline bool describe_tensor(attend_problem *a) {
    if (!a->q.is_bf16 || a->keys.kind != CACHED_BF16 || a->values.kind != CACHED_BF16 ||
        copies_keys(*a) || a->squares || a->band || a->dqk % VECTOR != 0 || a->dv % VECTOR != 0 ||
        a->q_columns % VECTOR != 0)
        return false;
    /* A power of two, so that rows which share keys have the same links. */
    static_assert(TENSOR_SHARED == 8, "8, 4, 2, 2 or 1");
    a->shared = a->group <= TENSOR_SHARED ? TENSOR_SHARED / a->group : 1;
    a->units = (int)(ceil_div(a->group, TENSOR_ROWS) * ceil_div(a->dv, TENSOR_COLUMNS));
    a->parts = count_links(*a) <= 1 << LEAST_SPAN_BITS
                   ? 1
                   : (int)ceil_div(count_links(*a), 1 << LEAST_SPAN_BITS) + 1;
    choose_shape(a, INT32_MAX);
    return tensor_bytes(*a) <= weft_cuda_device()->shared_memory;
}

template <int UNITS> static void (*choose_rows(const attend_problem &a))(const attend_problem) {
    if (a.rel || a.softcap > 0)
        return tile_rows(a) <= 8 ? attend_tiles<UNITS, 1, false> : attend_tiles<UNITS, 2, false>;
    return tile_rows(a) <= 8 ? attend_tiles<UNITS, 1, true> : attend_tiles<UNITS, 2, true>;
}

static inline void (*choose_tiles(const attend_problem &a))(const attend_problem) {
    int parts = unit_parts(a);
    return parts == 2 ? choose_rows<2>(a) : parts == 4 ? choose_rows<4>(a) : choose_rows<8>(a);
}
