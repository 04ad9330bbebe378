/* FlashAttention's backward pass on the tensor cores, without atomics: one kernel by keys and one by
 * queries, each of which makes P = exp(S − lse) anew from the saved logsumexp. So P and dS never
 * leave the registers, at the price of seven products in place of five.
 *
 * A block by keys has one key head and some of its query heads, which it takes in order. Where one
 * key head has many query heads these are divided among `parts` blocks, as the shape alone says;
 * each part's sums are written apart and added up in order. So are the numbers a head.
 *
 * A relative position's gradient has a kernel of its own, by distances (backward_distances.cu).
 *
 * The kernel by queries comes first: on its way it finds D_i = ⟨do_i, o_i⟩, and lays it and lse to
 * the base 2 out in rows that are filled up with queries of no weight, for the kernel by keys. Where
 * dQ is not wanted, or dscale is, a small kernel does so before. */
#include "cuda/attention/tiles.cuh"

enum { ROW_PADDING = 128, BLOCKS_WANTED = 4 /* for each multiprocessor */ };

enum { PREPARE_THREADS = 256, PREPARE_AT_ONCE = PREPARE_THREADS / 8, PREPARE_EACH = 4 };

/* ⟨a_i, b_i⟩ of a thread's rows, eight threads a row; all is read before anything waits. A stride of
 * 0 is the same row for all. */
__device__ static inline void multiply_rows(const bf16 *a, int64_t a_row, const bf16 *b,
                                            int64_t b_row, int width, int rows,
                                            float (&sums)[PREPARE_EACH]) {
    int part = threadIdx.x % 8, first = (int)threadIdx.x / 8;
    for (int c = part * VECTOR; c < width; c += 8 * VECTOR) {
        float x[PREPARE_EACH][VECTOR], y[PREPARE_EACH][VECTOR];
#pragma unroll
        for (int r = 0; r < PREPARE_EACH; r++) {
            int i = min(first + r * PREPARE_AT_ONCE, rows - 1);
            load_vector(a + i * a_row + c, x[r]);
            load_vector(b + i * b_row + c, y[r]);
        }
#pragma unroll
        for (int r = 0; r < PREPARE_EACH; r++)
#pragma unroll
            for (int e = 0; e < VECTOR; e++)
                sums[r] = fmaf(x[r][e], y[r][e], sums[r]);
    }
    for (int step = 1; step < 8; step *= 2)
#pragma unroll
        for (int r = 0; r < PREPARE_EACH; r++)
            sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], step);
}

/* A block has some queries of one head. */
static __global__ void prepare_rows(const __grid_constant__ attention_problem p,
                                    const __grid_constant__ attention_gradients g,
                                    const __grid_constant__ flash_workspace w) {
    static_assert(PREPARE_AT_ONCE * PREPARE_EACH == ROW_PADDING, "a block's rows");
    int blocks = w.padded / ROW_PADDING, head = blockIdx.x / blocks;
    int b = head / p.heads, h = head % p.heads, i0 = blockIdx.x % blocks * ROW_PADDING;
    float total[PREPARE_EACH] = {}, shift[PREPARE_EACH] = {};
    multiply_rows((const bf16 *)g.d_o.data + row_at(g.d_o, b, i0, h), g.d_o.row,
                  (const bf16 *)p.o.data + row_at(p.o, b, i0, h), p.o.row, p.dv, p.queries - i0,
                  total);
    if (w.shift && p.softcap == 0)
        multiply_rows((const bf16 *)p.q.data + row_at(p.q, b, i0, h), p.q.row,
                      (const bf16 *)p.k.data + row_at(p.k, b, 0, key_head_of(p, h)), 0, p.dqk,
                      p.queries - i0, shift);
    if (threadIdx.x % 8 != 0) return;
#pragma unroll
    for (int r = 0; r < PREPARE_EACH; r++) {
        int i = i0 + r * PREPARE_AT_ONCE + (int)threadIdx.x / 8;
        int64_t to = (int64_t)head * w.padded + i;
        bool inside = i < p.queries;
        w.lse[to] = inside ? p.lse[(int64_t)head * p.queries + i] * LOG2E : NOTHING;
        w.total[to] = inside ? total[r] : 0.0f;
        if (w.shift) w.shift[to] = inside ? shift[r] : 0.0f;
    }
}

/* Sums of the parts, in order, to where `to` has them: [parts, B, S, KV, width], four numbers a
 * thread. */
static __global__ void add_rows(const float *parts, int count, unsigned fours, unsigned width,
                                unsigned keys, unsigned kv_heads, head_rows to) {
    unsigned e = blockIdx.x * blockDim.x + threadIdx.x, row = e / (width / 4);
    if (e >= fours) return;
    const float4 *from = (const float4 *)parts + e;
    float4 sum = *from;
    for (int c = 1; c < count; c++) {
        float4 more = from[(int64_t)c * fours];
        sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
    }
    unsigned position = row / kv_heads;
    int64_t place =
        row_at(to, (int)(position / keys), (int)(position % keys), (int)(row % kv_heads));
    *(uint2 *)((bf16 *)to.data + place + e % (width / 4) * 4) =
        make_uint2(pack_pair(sum.x, sum.y), pack_pair(sum.z, sum.w));
}

static void launch_add_rows(const attention_problem &p, const float *parts, int count, int width,
                            const head_rows &to, cudaStream_t stream) {
    int64_t fours = (int64_t)p.batch * p.keys * p.kv_heads * width / 4;
    add_rows<<<(unsigned)ceil_div(fours, 256), 256, 0, stream>>>(
        parts, count, (unsigned)fours, (unsigned)width, (unsigned)p.keys, (unsigned)p.kv_heads, to);
}

static __global__ void add_numbers_of_keys(const float *parts, int count, int64_t size, float *to) {
    for (int64_t e = thread_index(); e < size; e += thread_count()) {
        float sum = parts[e];
        for (int c = 1; c < count; c++)
            sum += parts[c * size + e];
        to[e] = sum;
    }
}

enum { ADD_WARPS = 8 };

/* A block a head: what the warps of its blocks by keys wrote. */
static __global__ void add_numbers_of_heads(const __grid_constant__ attention_problem p,
                                            const __grid_constant__ attention_gradients g,
                                            const double *numbers, int64_t a_sequence) {
    __shared__ double of_warps[ADD_WARPS][NUMBERS];
    int h = blockIdx.x, warp = threadIdx.x / 32;
    double sum[NUMBERS] = {};
    for (int b = warp; b < p.batch; b += ADD_WARPS) {
        const double *from = numbers + ((int64_t)b * p.heads + h) * a_sequence * NUMBERS;
        for (int64_t e = threadIdx.x % 32; e < a_sequence; e += 32)
            for (int n = 0; n < NUMBERS; n++)
                sum[n] += from[e * NUMBERS + n];
    }
    for (int n = 0; n < NUMBERS; n++) {
        sum[n] = warp_sum(sum[n]);
        of_warps[warp][n] = sum[n];
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int n = 0; n < NUMBERS; n++)
        for (int i = 1; i < ADD_WARPS; i++)
            sum[n] += of_warps[i][n];
    if (g.dscale) g.dscale[h] = (float)sum[0];
    if (g.dlog_tau) g.dlog_tau[h] = (float)(sum[0] * (double)numbers_of_head(p, h).tau_factor);
    if (g.dbeta) g.dbeta[h] = (float)sum[1];
}

/* Keys of a block of the kernel by keys, and its warps. */
struct key_tile {
    int keys, warps;
};

static key_tile find_key_tile(const attention_problem &p) {
    key_tile tile = {};
    with_widths(p, [&](auto widths) {
        using S = typename decltype(widths)::BY_KEYS;
        tile = {S::KEYS, S::THREADS / 32};
    });
    return tile;
}

/* Divides the workspace; without one (base NULL) only measures it. Returns its bytes. */
static int64_t lay_out_workspace(const attention_problem &p, char *base, flash_workspace *w) {
    key_tile tile = find_key_tile(p);
    int64_t tiles = ceil_div(p.keys, tile.keys), heads = (int64_t)p.batch * p.heads;
    int64_t rows = (int64_t)p.batch * p.keys * p.kv_heads;
    workspace_pieces pieces = {base, 0};
    *w = {};
    w->padded = (int)(ceil_div(p.queries, ROW_PADDING) * ROW_PADDING);
    w->parts =
        (int)min_i64(ceil_div(p.heads, p.kv_heads),
                     ceil_div(BLOCKS_WANTED * multiprocessors(), p.batch * p.kv_heads * tiles));
    if (p.heads % p.kv_heads != 0) w->parts = 1;
    pieces.take(&w->numbers, heads * tiles * tile.warps * NUMBERS);
    pieces.take(&w->lse, heads * w->padded);
    pieces.take(&w->total, heads * w->padded);
    pieces.take(&w->shift, heads * w->padded);
    if (p.pos == WEFT_POS_RELATIVE) pieces.take(&w->rel, heads * flash_distances(p));
    if (w->parts == 1) return pieces.bytes;
    pieces.take(&w->dk, w->parts * rows * p.dqk);
    pieces.take(&w->dv, w->parts * rows * p.dv);
    pieces.take(&w->dn, w->parts * rows);
    return pieces.bytes;
}

int64_t flash_backward_workspace(const attention_problem &p) {
    flash_workspace w;
    return lay_out_workspace(p, NULL, &w);
}

/* The kernels of a bare score have no code for it, and of dK in parts no block has the whole. */
gaussian_sides flash_backward_finishes(const attention_problem &p) {
    flash_workspace w;
    lay_out_workspace(p, NULL, &w);
    bool keys = has_extras(p) && w.parts == 1;
    return {has_extras(p), keys, keys};
}

void flash_backward(const attention_problem &p, const attention_gradients &g, cudaStream_t stream) {
    bool numbers = g.dscale || g.dbeta || g.dlog_tau;
    int64_t rows = (int64_t)p.batch * p.keys * p.kv_heads, heads = (int64_t)p.batch * p.heads;
    key_tile tile = find_key_tile(p);
    int64_t entries = ceil_div(p.keys, tile.keys) * tile.warps; /* of a head of a sequence */
    flash_workspace w;
    lay_out_workspace(p, (char *)g.workspace, &w);
    if (!g.dscale) w.shift = NULL;
    if (!numbers) w.numbers = NULL;
    if (!g.dq.data || w.shift) {
        unsigned blocks = (unsigned)(heads * (w.padded / ROW_PADDING));
        prepare_rows<<<blocks, PREPARE_THREADS, 0, stream>>>(p, g, w);
    }
    if (g.dq.data) flash_backward_dq(p, g, w, stream);
    if (g.dk.data || g.dv.data || g.dn || numbers) flash_backward_dkdv(p, g, w, stream);
    if (g.drel) flash_backward_distances(p, g, w, stream);
    if (w.parts > 1 && g.dk.data) launch_add_rows(p, w.dk, w.parts, p.dqk, g.dk, stream);
    if (w.parts > 1 && g.dv.data) launch_add_rows(p, w.dv, w.parts, p.dv, g.dv, stream);
    if (w.parts > 1 && g.dn)
        add_numbers_of_keys<<<grid_for(rows, 256), 256, 0, stream>>>(w.dn, w.parts, rows, g.dn);
    if (numbers)
        add_numbers_of_heads<<<(unsigned)p.heads, ADD_WARPS * 32, 0, stream>>>(p, g, w.numbers,
                                                                               entries);
}
