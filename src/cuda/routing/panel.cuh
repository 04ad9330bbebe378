/* What the sums along kept columns and their gradient share: sparse rows times a dense matrix (SpMM), in
 * panels of a few columns so that what is gathered stays in a cache.
 *
 * A panel is all rows of a sequence, 128 bytes of each. LANES threads, a group, make one row of the
 * result in one panel: each has 16 bytes, and what a row is the sum of, its entries (a row that is
 * read, a weight), lies in an order that is the same for every panel. Rows are read through the
 * caches, so a sequence may be of any length.
 *
 * What the caches hold decides the time. The panels of a sequence of 1,024 rows fit into a
 * multiprocessor's own cache each, so its blocks take one panel after another; longer ones are shared
 * by a team of multiprocessors, so many that the panels of all teams stay in the L2 cache. */
#pragma once

#include "cuda/routing/routing.cuh"

enum {
    LANES = 8,
    AT_ONCE = LANES, /* entries on their way together, one a lane until they are read */
    THREADS = 256,
    GROUPS = THREADS / LANES,
    BLOCKS = 3 /* of a multiprocessor */
};

static const int64_t PANEL = 16 * LANES;               /* bytes of a row */
static const int64_t CACHED_BYTES = (int64_t)24 << 20; /* panels that are read at one time */

/* Columns of a thread. */
template <typename T> static constexpr int PIECE = 16 / (int)sizeof(T);

struct panel_shape {
    int64_t in_rows, out_rows, batch; /* rows that are read, and of the result */
    int64_t width[2];                 /* of the tensors; 0: not there */
    int panels[2];
    int64_t tiles; /* of a panel: GROUPS rows of the result */
    int processors, teams;
};

static inline panel_shape make_panels(const weft_node *n) {
    const weft_tensor *in = n->in[WEFT_GATHER_H];
    panel_shape s = {};
    s.in_rows = in->shape[1];
    s.out_rows = n->out[0]->shape[1];
    s.batch = in->shape[0];
    for (int i = 0; i < 2 && weft_gather_input(n, i); i++) {
        s.width[i] = weft_gather_input(n, i)->shape[2];
        s.panels[i] = (int)ceil_div(s.width[i] * (int64_t)weft_dtype_size(in->dtype), PANEL);
    }
    s.tiles = ceil_div(s.out_rows, GROUPS);
    int64_t all = s.batch * (s.panels[0] + s.panels[1]) * s.tiles;
    s.processors = (int)min_i64(multiprocessors(), ceil_div(all, BLOCKS));
    s.teams = (int)max_i64(1, min_i64(s.processors, CACHED_BYTES / (s.in_rows * PANEL + 1)));
    return s;
}

template <typename T> struct panel_data {
    const T *in[2];
    T *out[2];
};

template <typename T> static panel_data<T> find_panels(const weft_exec *x, const weft_node *n) {
    panel_data<T> d = {};
    for (int i = 0; i < 2 && weft_gather_input(n, i); i++) {
        d.in[i] = data_of<T>(x, weft_gather_input(n, i));
        d.out[i] = data_of<T>(x, n->out[i]);
    }
    return d;
}

/* A block's tiles, one after another: of its team's share, which is a run of tiles, every so many. The
 * blocks of a multiprocessor are those that have its number, as the GPU hands them out. */
struct tile_walk {
    int64_t left;
    int step, tile, tiles, panel, panels, b;

    __device__ explicit tile_walk(const panel_shape &s) {
        int64_t processors = s.processors, teams = s.teams, own = blockIdx.x % processors;
        int64_t team = own * teams / processors;
        int64_t first = (team * processors + teams - 1) / teams;
        int64_t last = ((team + 1) * processors + teams - 1) / teams;
        tiles = (int)s.tiles;
        panels = s.panels[0] + s.panels[1];
        int64_t all = s.batch * panels * tiles;
        int64_t at = first * all / processors + (own - first) * BLOCKS + blockIdx.x / processors;
        left = last * all / processors - at;
        step = (int)(last - first) * BLOCKS;
        tile = (int)(at % tiles);
        panel = (int)(at / tiles % panels);
        b = (int)(at / tiles / panels);
    }

    __device__ bool more() const {
        return left > 0;
    }

    __device__ void next() {
        left -= step;
        for (tile += step; tile >= tiles; tile -= tiles) {
            if (++panel < panels) continue;
            panel = 0;
            b++;
        }
    }
};

/* A sequence's rows, from the thread's first column of a panel on. */
template <typename T> struct panel_place {
    const T *in;
    T *out;
    int64_t width;
    int count; /* columns that are there, PIECE at most */
};

template <typename T>
__device__ static inline panel_place<T> find_place(const panel_shape &s, const panel_data<T> &d,
                                                   int64_t b, int panel) {
    bool second = panel >= s.panels[0];
    if (second) panel -= s.panels[0];
    int64_t column = (panel * LANES + threadIdx.x % LANES) * PIECE<T>;
    panel_place<T> p = {second ? d.in[1] : d.in[0], second ? d.out[1] : d.out[0],
                        second ? s.width[1] : s.width[0], 0};
    p.count = (int)max_i64(0, min_i64(PIECE<T>, p.width - column));
    p.in += b * s.in_rows * p.width + column;
    p.out += b * s.out_rows * p.width + column;
    return p;
}

/* Columns as they lie in memory, 0 for those that are not there. ALIGNED: all are, at a multiple of
 * 16 bytes. */
template <bool ALIGNED> __device__ static inline uint4 load_piece(const float *at, int count) {
    if (ALIGNED) return __ldg((const uint4 *)at);
    const unsigned *from = (const unsigned *)at;
    return make_uint4(from[0], count > 1 ? from[1] : 0, count > 2 ? from[2] : 0,
                      count > 3 ? from[3] : 0);
}

template <bool ALIGNED> __device__ static inline uint4 load_piece(const bf16 *at, int count) {
    if (ALIGNED) return __ldg((const uint4 *)at);
    const unsigned short *from = (const unsigned short *)at;
    unsigned word[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        word[i] = (2 * i < count ? from[2 * i] : 0u) |
                  (2 * i + 1 < count ? (unsigned)from[2 * i + 1] : 0u) << 16;
    return make_uint4(word[0], word[1], word[2], word[3]);
}

/* Adds entries in their order: lane i of the group has the i-th, of weight 0 and row −1 where there
 * is none. The group's threads call it together. */
template <bool ALIGNED, typename T, int N>
__device__ static inline void add_entries(const panel_place<T> &p, int row, float weight,
                                          float (&sum)[N]) {
    unsigned group = ((1u << LANES) - 1) << (threadIdx.x % 32 / LANES * LANES);
    uint4 piece[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        int from = __shfl_sync(group, row, i, LANES);
        piece[i] = from >= 0 && p.count > 0 ? load_piece<ALIGNED>(p.in + from * p.width, p.count)
                                            : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        float w = __shfl_sync(group, weight, i, LANES), v[N];
        widen_words(piece[i], v);
#pragma unroll
        for (int c = 0; c < N; c++)
            sum[c] = fmaf(w, v[c], sum[c]);
    }
}

/* Stores a row of the result. */
template <bool ALIGNED, typename T, int N>
__device__ static inline void store_piece(const panel_place<T> &p, int64_t row,
                                          const float (&v)[N]) {
    T *to = p.out + row * p.width;
    if (ALIGNED && p.count > 0) store_vector(to, v);
#pragma unroll
    for (int i = 0; i < N && !ALIGNED; i++)
        if (i < p.count) to[i] = from_float<T>(v[i]);
}
