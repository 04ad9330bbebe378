/* Sums along the kept columns, and their gradient, from panels in shared memory (panel.cuh): a pipeline of
 * one to three panels, as they fit, filled by cp.async. While the sums of one are made, the next ones
 * are loaded, or, where there is room for one only, prefetched to the L2 cache. A block has a
 * multiprocessor to itself and takes every so many of all panels, so that blocks read and write side by
 * side; its warps take the units of a panel as they come to it, the longest first.
 *
 * Floor: rows are read and sums written once, at the memory's rate. */
#include "cuda/routing/panel.cuh"
#include "cuda/tensor/tile.cuh"

enum { SHARED_THREADS = 768, SHARED_WARPS = SHARED_THREADS / 32, MOST_STAGES = 3 };

struct shared_shape : gather_shape {
    int64_t items;                     /* panels of all sequences */
    int stages, stage_bytes, units_at; /* a stage: the rows, one of zeros, the units */
};

static shared_shape make_shared(const weft_node *n, const entry_lists *l) {
    shared_shape s = {measure_gather(n, SHARED_PITCH)};
    s.items = s.batch * (s.panels[0] + s.panels[1]);
    int64_t rows = (s.in_rows + 1) * SHARED_PITCH, bytes = l->most * (int64_t)sizeof(sum_unit);
    int64_t room = weft_cuda_device()->shared_memory - 1024;
    s.stages = (int)min_i64(MOST_STAGES, room / (rows + bytes));
    s.units_at = s.stages > 0 ? (int)rows : 0;
    s.stage_bytes = s.stages > 0 ? (int)(rows + bytes) : 0;
    return s;
}

bool weft_cuda_fits_shared(const weft_node *n, const entry_lists *l) {
    shared_shape s = make_shared(n, l);
    return s.stages > 0 && s.items > 0 && s.in_rows > 0 && s.out_rows > 0 && s.out_rows < NOWHERE &&
           l->lines < INT32_MAX / UNIT && weft_cuda_gather_is_aligned(n);
}

template <typename T>
__device__ static inline panel_place<T> find_shared(const shared_shape &s, const panel_data<T> &d,
                                                    int64_t item) {
    int panels = s.panels[0] + s.panels[1];
    return find_place<SHARED_LANES>(s, d, item / panels, (int)(item % panels));
}

/* Starts copying a panel and its sequence's units, one group of copies; an empty one behind the last
 * panel. */
template <typename T>
__device__ static inline void start_stage(const shared_shape &s, const entry_lists &l,
                                          const panel_data<T> &d, int64_t item, unsigned stage) {
    if (item < s.items) {
        panel_place<T> p = find_shared(s, d, item);
        int row = (int)threadIdx.x / SHARED_LANES, rows = (int)s.in_rows;
        const T *from = p.in + row * p.width;
        int64_t step = SHARED_THREADS / SHARED_LANES * p.width;
        unsigned to = stage + threadIdx.x * 16;
#pragma unroll 4
        for (; row < rows; row += SHARED_THREADS / SHARED_LANES) {
            copy_piece(to, from, p.count > 0);
            from += step;
            to += SHARED_THREADS * 16;
        }
        const uint4 *units = (const uint4 *)(l.unit + p.b * l.most);
        int pieces = (int)(l.most * (int64_t)(sizeof(sum_unit) / sizeof(uint4)));
        for (int i = (int)threadIdx.x; i < pieces; i += SHARED_THREADS)
            copy_piece(stage + (unsigned)s.units_at + (unsigned)i * 16, units + i, true);
    }
    end_copies();
}

/* Brings a panel into the L2 cache. */
template <typename T>
__device__ static inline void fetch_panel(const shared_shape &s, const panel_data<T> &d,
                                          int64_t item) {
    if (item >= s.items || threadIdx.x % 2 > 0) return; /* 32 bytes at a time */
    panel_place<T> p = find_shared(s, d, item);
    for (int row = (int)threadIdx.x / SHARED_LANES; row < s.in_rows;
         row += SHARED_THREADS / SHARED_LANES)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(p.in + row * p.width));
}

/* The next entries of a group. */
__device__ static inline void read_lines(const uint4 *lines, uint4 (&ahead)[UNIT_LINES]) {
#pragma unroll
    for (int i = 0; i < UNIT_LINES; i++)
        ahead[i] = __ldg(lines + i * UNIT);
}

template <int N>
__device__ static inline void add_scaled(float (&sum)[N], unsigned weight, const uint4 &piece) {
    float v[N];
    widen_words(piece, v);
#pragma unroll
    for (int i = 0; i < N; i++)
        sum[i] = fmaf(__uint_as_float(weight), v[i], sum[i]);
}

/* A warp's units of the panel in `stage`; `taken`: those that warps have begun. */
template <typename T>
__device__ static inline void sum_units(const entry_lists &l, const panel_place<T> &p,
                                        const unsigned char *stage, int units_at, int *taken) {
    int lane = (int)threadIdx.x % 32, group = lane / SHARED_LANES, at = (int)threadIdx.x / 32;
    const unsigned char *own = stage + lane % SHARED_LANES * 16;
    const sum_unit *unit = (const sum_unit *)(stage + units_at);
    const uint4 *stream = l.stream + p.b * l.lines * UNIT + group;
    int units = unit->units;
    uint4 ahead[UNIT_LINES] = {};
    if (at < units && unit[at].lines > 0) read_lines(stream + unit[at].line * UNIT, ahead);
    while (at < units) {
        const uint4 *line = stream + unit[at].line * UNIT;
        int lines = unit[at].lines, row = unit[at].target[group], whole = unit[at].whole, next = 0;
        if (lane == 0) next = atomicAdd(taken, 1);
        next = __shfl_sync(0xffffffffu, next, 0);
        const uint4 *after = NULL; /* where the next unit's begin */
        if (next < units && unit[next].lines > 0) after = stream + unit[next].line * UNIT;
        if (lines == 0 && after) read_lines(after, ahead);
        float sum[PIECE<T>] = {};
        for (int i = 0; i < lines; i += UNIT_LINES) {
            uint4 value[UNIT_STEP], now[UNIT_LINES];
#pragma unroll
            for (int e = 0; e < UNIT_LINES; e++) {
                now[e] = ahead[e];
                value[2 * e] = *(const uint4 *)(own + now[e].x);
                value[2 * e + 1] = *(const uint4 *)(own + now[e].z);
            }
            line += UNIT_LINES * UNIT;
            const uint4 *from = i + UNIT_LINES < lines ? line : after;
            if (from) read_lines(from, ahead);
#pragma unroll
            for (int e = 0; e < UNIT_LINES; e++) {
                add_scaled(sum, now[e].y, value[2 * e]);
                add_scaled(sum, now[e].w, value[2 * e + 1]);
            }
        }
        if (whole)
#pragma unroll
            for (int i = 0; i < PIECE<T>; i++)
#pragma unroll
                for (int step = SHARED_LANES; step < 32; step *= 2)
                    sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], step);
        if (row != NOWHERE) store_piece<true>(p, row, sum);
        at = next;
    }
}

template <typename T>
static __global__ void __launch_bounds__(SHARED_THREADS, 1)
    sum_shared(shared_shape s, entry_lists l, panel_data<T> data) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ int taken[2]; /* for panels in parity: the next one's is set while one is in use */
    unsigned first = shared_address(memory);
    if (threadIdx.x < 2) taken[threadIdx.x] = SHARED_WARPS;
    if (threadIdx.x < s.stages * SHARED_LANES)
        *(uint4 *)(memory + threadIdx.x / SHARED_LANES * s.stage_bytes + s.in_rows * SHARED_PITCH +
                   threadIdx.x % SHARED_LANES * 16) = make_uint4(0, 0, 0, 0);
    for (int i = 0; i + 1 < s.stages; i++)
        start_stage(s, l, data, blockIdx.x + (int64_t)i * gridDim.x,
                    first + (unsigned)(i * s.stage_bytes));
    int stage = 0, parity = 0;
    for (int64_t item = blockIdx.x; item < s.items; item += gridDim.x) {
        if (s.stages == 1) {
            __syncthreads(); /* the last one has been read */
            start_stage(s, l, data, item, first);
        }
        if (s.stages == 3)
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        else
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads(); /* it is there, and the last one has been read */
        int behind = stage == 0 ? s.stages - 1 : stage - 1;
        if (s.stages == 1)
            fetch_panel(s, data, item + gridDim.x);
        else
            start_stage(s, l, data, item + (int64_t)(s.stages - 1) * gridDim.x,
                        first + (unsigned)(behind * s.stage_bytes));
        if (threadIdx.x == 0) taken[1 - parity] = SHARED_WARPS;
        sum_units(l, find_shared(s, data, item), memory + stage * s.stage_bytes, s.units_at,
                  &taken[parity]);
        stage = stage + 1 < s.stages ? stage + 1 : 0;
        parity = 1 - parity;
    }
}

void weft_cuda_sum_shared(weft_exec *x, const weft_node *n, const entry_lists *l) {
    shared_shape s = make_shared(n, l);
    int bytes = s.stages * s.stage_bytes;
    with_type(n->in[WEFT_GATHER_H], [&](auto tag) {
        using T = decltype(tag);
        cudaFuncSetAttribute(sum_shared<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        sum_shared<T><<<(unsigned)min_i64(s.items, multiprocessors()), SHARED_THREADS,
                        (size_t)bytes, stream_of(x)>>>(s, *l, find_panels<T>(x, n));
    });
}
