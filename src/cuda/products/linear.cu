/* Linear layers and matrix products on the GPU: a node's tensors as the matrices of gemm.cuh.
 *
 * A node that sums several products, or has gelu's slope and a bias's gradient behind its sums, has two
 * ways, and its sizes choose. Fused: a kernel of our own (gemm_fused.cuh) sums all products at once and
 * does what comes behind. By pieces: one product after the other by the library, each with the sum so
 * far as its addend, and gelu's slope behind such a sum, behind an addend or before a bias's gradient
 * is the pass of those gradients, over the result.
 *
 * Also the gradient of a bias, with gelu's gradient before it or alone: the rows of each column are
 * summed in two steps of a fixed order, bands of rows, then the bands' sums. How many bands there are
 * follows from the shape and the GPU. Behind gelu the same pass makes the rows: its floor is dy, x and
 * dx once. */
#include "cuda/decode/cached.cuh"
#include "cuda/functions.cuh"
#include "cuda/pack.cuh"
#include "cuda/products/gemm.cuh"
#include "cuda/products/gemm_fused.cuh"
#include "cuda/products/streamed.cuh"

/* The pass over rows whose columns are summed: dy, or with x what comes of it behind gelu, dx. */
struct column_pass {
    const weft_tensor *dy, *x, *dx; /* x NULL: no gelu */
    const weft_tensor *db;          /* NULL: the sums are not wanted */
    int64_t columns;

    int64_t rows() const {
        return weft_tensor_count(dy) / columns;
    }
};

enum {
    WARPS = 8,
    ADD_WARPS = 32,
    COLUMNS = 256,
    BLOCKS = 6,      /* at a time on a multiprocessor */
    GELU_BLOCKS = 4, /* with gelu: twice the loads a thread */
    BAND_LEAST = 64
};

/* The rows whose columns are summed: dy itself, or, with x, dy times gelu's slope at x, kept in dx. */
struct summed_rows {
    any_tensor dy, x, dx;
};

/* How the rows are cut: enough bands to fill the GPU once, none shorter than worth a block. */
static int64_t band_rows(const column_pass &p) {
    int64_t blocks = multiprocessors() * (p.x ? GELU_BLOCKS : BLOCKS);
    int64_t bands = max_i64(1, blocks / ceil_div(p.columns, COLUMNS));
    return max_i64(BAND_LEAST, ceil_div(p.rows(), bands));
}

/* Bytes of the node's workspace that the pass needs. */
static int64_t column_pass_bytes(const column_pass &p) {
    return ceil_div(p.rows(), band_rows(p)) * p.columns * (int64_t)sizeof(float);
}

/* N rows of a lane's n columns, a pack, `step` elements apart. */
template <bool WHOLE, bool GELU, int N> struct some_rows {
    pack dy[N], x[GELU ? N : 1];

    __device__ void load(const summed_rows &from, int64_t at, int64_t step, int n) {
#pragma unroll
        for (int r = 0; r < N; r++) {
            dy[r] = fetch_of<WHOLE>(from.dy, at + r * step, n);
            if (GELU) x[r] = fetch_of<WHOLE>(from.x, at + r * step, n);
        }
    }

    __device__ void add(const summed_rows &from, int64_t at, int64_t step, int n,
                        float (&sum)[VECTOR]) const {
#pragma unroll
        for (int r = 0; r < N; r++) {
            float v[VECTOR], slope[VECTOR];
            widen_of<WHOLE>(dy[r], from.dy, v);
            if (GELU) widen_of<WHOLE>(x[r], from.x, slope);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) {
                if (GELU) v[k] *= gelu_slope(slope[k]);
                sum[k] += v[k];
            }
            if (GELU) store_of<WHOLE>(from.dx, at + r * step, n, v);
        }
    }
};

/* A warp's rows of a band, every eighth: some at a time, so that their loads overlap. With gelu, which
 * takes long, the next are on their way while those at hand are worked on. */
template <bool WHOLE, bool GELU>
__device__ static inline void sum_rows(const summed_rows &from, int64_t at, int64_t end,
                                       int64_t step, int n, float (&sum)[VECTOR]) {
    constexpr int N = (GELU ? 2 : 4) / (WHOLE ? 1 : 2);
    some_rows<WHOLE, GELU, N> now, next;
    bool some = at + (N - 1) * step < end;
    if (some && GELU) now.load(from, at, step, n);
    while (some) {
        some = at + (2 * N - 1) * step < end;
        if (!GELU) now.load(from, at, step, n);
        if (some && GELU) next.load(from, at + N * step, step, n);
        now.add(from, at, step, n, sum);
        if (GELU) now = next;
        at += N * step;
    }
    for (; at < end; at += step) {
        some_rows<WHOLE, GELU, 1> last;
        last.load(from, at, step, n);
        last.add(from, at, step, n, sum);
    }
}

/* The sums of a band for 256 columns: the warps' sums are added in order. */
template <bool WHOLE, bool GELU>
static __global__ void __launch_bounds__(WARPS * 32, !WHOLE ? 2
                                                     : GELU ? GELU_BLOCKS
                                                            : BLOCKS)
    sum_bands(int64_t rows, int64_t columns, int64_t band, summed_rows from, float *sums) {
    __shared__ float parts[WARPS][COLUMNS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t column = (int64_t)blockIdx.x * COLUMNS + lane * VECTOR;
    int64_t first = blockIdx.y * band, end = min_i64(first + band, rows);
    float sum[VECTOR] = {};
    if (column < columns)
        sum_rows<WHOLE, GELU>(from, (first + warp) * columns + column, end * columns,
                              WARPS * columns, pack_length(columns, column), sum);
#pragma unroll
    for (int k = 0; k < VECTOR; k++)
        parts[warp][lane * VECTOR + k] = sum[k];
    __syncthreads();
    int64_t at = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    if (at >= columns) return;
    float total = 0;
    for (int w = 0; w < WARPS; w++)
        total += parts[w][threadIdx.x];
    sums[blockIdx.y * columns + at] = total;
}

/* The sum of the bands, 32 columns per block: a warp takes every ADD_WARPSth band, so that their loads
 * are under way together, and the warps' sums are added in order. */
static __global__ void add_bands(int64_t bands, int64_t columns, const float *sums, any_tensor db) {
    __shared__ float parts[ADD_WARPS][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t column = (int64_t)blockIdx.x * 32 + lane;
    float sum = 0;
#pragma unroll 8
    for (int64_t i = warp; i < bands && column < columns; i += ADD_WARPS)
        sum += sums[i * columns + column];
    parts[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || column >= columns) return;
    float total = 0;
#pragma unroll
    for (int w = 0; w < ADD_WARPS; w++)
        total += parts[w][lane];
    store_any(db, column, total);
}

/* db = Σ over bands of sums [bands, columns], in order. */
static void add_column_bands(const weft_exec *x, const weft_tensor *db, int64_t bands,
                             const float *sums) {
    int64_t columns = weft_tensor_count(db);
    add_bands<<<(unsigned)ceil_div(columns, 32), ADD_WARPS * 32, 0, stream_of(x)>>>(
        bands, columns, sums, any_of(x, db));
}

static weft_status run_column_pass(weft_exec *x, const weft_node *n, const column_pass &p) {
    int64_t band = band_rows(p), bands = ceil_div(p.rows(), band);
    float *sums = workspace_of<float>(x, n);
    summed_rows from = {any_of(x, p.dy), any_of(x, p.x), any_of(x, p.dx)};
    dim3 grid((unsigned)ceil_div(p.columns, COLUMNS), (unsigned)bands);
    bool whole = are_whole(p.columns, from.dy, from.x, from.dx);
    auto kernel = p.x ? (whole ? sum_bands<true, true> : sum_bands<false, true>)
                      : (whole ? sum_bands<true, false> : sum_bands<false, false>);
    kernel<<<grid, WARPS * 32, 0, stream_of(x)>>>(p.rows(), p.columns, band, from, sums);
    if (p.db) add_column_bands(x, p.db, bands, sums);
    return launched(n);
}

/* Of bias_back, dy to db, and of gelu_bias_back, dy and x to dx and db. */
static column_pass pass_of(const weft_node *n) {
    bool gelu = n->n_in > 1;
    return {n->in[0], gelu ? n->in[1] : NULL, gelu ? n->out[0] : NULL, n->out[gelu ? 1 : 0],
            weft_tensor_width(n->in[0])};
}

static int64_t pass_workspace(const weft_node *n, int) {
    return column_pass_bytes(pass_of(n));
}

CUDA_KERNEL_CALLS(bias_back, run_column_pass(x, n, pass_of(n)), pass_workspace)
CUDA_KERNEL_CALLS(gelu_bias_back, run_column_pass(x, n, pass_of(n)), pass_workspace)

/* Our own kernel saves passes over the result and multiplies more slowly than the library, so it wins
 * up to a depth of all sums together: so much for each product behind the first, and so much for
 * gelu's slope; results of few columns at any depth. Measured with sums and slopes of GPT-2's 124M on
 * an H200; for larger sizes and few columns these are estimates. */
enum { DEPTH_OF_PRODUCT = 1024, DEPTH_OF_SLOPE = 2048, NARROW = 128 };

/* Whether gelu's slope is left to the pass that sums columns. */
static bool has_pass(const weft_node *n) {
    const weft_matmul_attr *attr = ATTR(n, weft_matmul_attr);
    return attr->act == WEFT_ACT_GELU_BACK &&
           (attr->sums || attr->more || n->in[WEFT_MATMUL_ADDEND]);
}

/* Where a tensor lies; `x` NULL: an address that says no more than that there is something. */
static void *place_of(const weft_exec *x, const weft_tensor *t) {
    static char something;
    if (!t) return NULL;
    return x ? weft_data(x, t) : (void *)&something;
}

/* A tensor as a batch of [rows, columns]; groups inside: the group is the second dimension. */
static cuda_gemm_matrix as_matrix(const weft_exec *x, const weft_tensor *t, int64_t rows,
                                  int64_t columns, int64_t groups, bool inside) {
    return cuda_gemm_matrix{place_of(x, t), inside ? groups * columns : columns,
                            inside ? columns : rows * columns, t->dtype == WEFT_BF16,
                            t->dtype == WEFT_I8};
}

cuda_gemm gemm_describe(const weft_exec *x, const weft_node *n, int i) {
    const weft_matmul_attr *attr = ATTR(n, weft_matmul_attr);
    bool first = i == 0, last = i == attr->more;
    weft_matmul_pair pair = weft_matmul_pair_of(n, i);
    const weft_tensor *a = pair.a, *b = pair.b, *y = n->out[0];
    const weft_tensor *bias = first ? n->in[WEFT_MATMUL_BIAS] : NULL;
    const weft_tensor *addend = first ? n->in[WEFT_MATMUL_ADDEND] : y;
    weft_matmul_sizes s = weft_matmul_measure(&pair.attr, a, b);
    bool grouped = pair.attr.form == WEFT_MATMUL_GROUPED;
    bool grouped_outer = pair.attr.form == WEFT_MATMUL_GROUPED_OUTER;
    cuda_gemm p = {};
    p.batch = s.groups, p.m = s.m, p.n = s.n, p.k = s.k;
    p.ta = pair.attr.ta || grouped_outer || pair.attr.form == WEFT_MATMUL_OUTER;
    p.tb = pair.attr.tb;
    p.alpha = (float)pair.attr.alpha;
    p.alone = pair.attr.alone || (x && are_alone(x));
    p.follows = x && follows(x);
    weft_role role = (b->view_of ? b->view_of : b)->role;
    p.steady = p.follows && (role == WEFT_ROLE_PARAM || role == WEFT_ROLE_INPUT);
    p.gelu = last && attr->act == WEFT_ACT_GELU;
    p.gelu_back = last && attr->act == WEFT_ACT_GELU_BACK && !has_pass(n);
    p.group = last && attr->act == WEFT_ACT_DEVIATIONS ? (int)attr->group : 0;
    p.a = as_matrix(x, a, p.ta ? s.k : s.m, p.ta ? s.m : s.k, s.groups, grouped || grouped_outer);
    p.b = as_matrix(x, b, p.tb ? s.n : s.k, p.tb ? s.k : s.n, s.groups, grouped_outer);
    p.c = as_matrix(x, y, s.m, s.n, s.groups, grouped);
    if (bias) p.bias = as_matrix(x, bias, 1, s.n, 1, false);
    const weft_tensor *pre = p.gelu_back ? n->in[WEFT_MATMUL_AT] : p.gelu ? n->out[1] : NULL;
    p.addend = p.pre = p.c;
    p.addend.data = place_of(x, addend);
    p.pre.data = place_of(x, pre);
    p.norm.moments = (const float2 *)place_of(x, n->in[WEFT_MATMUL_MOMENTS]);
    p.norm.sums = (const float *)place_of(x, n->in[WEFT_MATMUL_SUMS]);
    p.norm.eps = (float)attr->eps;
    if (last && attr->moments) p.moments = (float2 *)place_of(x, n->out[1]);
    return p;
}

static int count_readers(const weft_exec *x, const weft_tensor *y) {
    int count = y->keep ? 2 : 0;
    const weft_node *n;
    for (int64_t i = y->producer->index + 1; (n = node_at(x, i)) != NULL; i++)
        for (int k = 0; k < n->n_in; k++)
            count += n->in[k] && (n->in[k] == y || n->in[k]->view_of == y);
    return count;
}

/* The product n with the gates that a node gate_mix would put to its rows. */
static cuda_gemm describe_gated(const weft_exec *x, const weft_node *n, const weft_node *gate) {
    const weft_tensor *o = gate->in[0];
    cuda_gemm p = gemm_describe(x, n, 0);
    p.a.data = weft_data(x, o);
    p.gate = gemm_gate{any_of(x, gate->in[1]), (int)o->shape[2], (int)o->shape[3],
                       (float)ATTR(gate, weft_gate_mix_attr)->alpha};
    return p;
}

bool gemm_has_gate(const weft_exec *x, const weft_node *gate) {
    if (!follows(x) || gate->op->id != WEFT_OP_gate_mix) return false;
    const weft_node *n = node_at(x, gate->index + 1);
    if (!n || n->op->id != WEFT_OP_matmul) return false;
    const weft_matmul_attr *attr = ATTR(n, weft_matmul_attr);
    const weft_tensor *y = gate->out[0], *a = n->in[WEFT_MATMUL_A];
    if (attr->more || attr->sums || (a != y && a->view_of != y) || count_readers(x, y) != 1 ||
        y->dtype != WEFT_BF16 || gate->in[0]->dtype != WEFT_BF16 ||
        gate->in[1]->shape[1] != y->shape[1])
        return false;
    cuda_gemm p = describe_gated(x, n, gate);
    return p.steady && p.m <= GEMM_STREAMED_ROWS && streamed_can(&p) && spares(x, n, gate);
}

/* Whether RoPE behind a product, which alone reads what that makes, is done by the product; p is both then. */
static bool describe_rotated(const weft_exec *x, const weft_node *n, gemm_rope *k, cuda_gemm *p) {
    const weft_matmul_attr *attr = ATTR(n, weft_matmul_attr);
    const weft_node *rope = node_at(x, n->index + 1);
    if (!follows(x) || !rope || rope->op->id != WEFT_OP_rope || attr->act != WEFT_ACT_NONE ||
        attr->more || n->in[WEFT_MATMUL_ADDEND] || n->out[1])
        return false;
    const weft_rope_attr *r = ATTR(rope, weft_rope_attr);
    const weft_tensor *y = rope->out[0], *from = rope->in[0], *made = n->out[0];
    if ((from != made && from->view_of != made) || count_readers(x, made) != 1 || !rope->in[1] ||
        y->shape[1] != 1 || r->inverse || y->dtype != WEFT_BF16 || made->dtype != WEFT_BF16)
        return false;
    for (int i = 0; i < n->n_in; i++)
        if (overlap(x, y, n->in[i])) return false;
    *k = gemm_rope{data_of<int32_t>(x, rope->in[1]), (int)r->heads, (int)y->shape[3],
                   (int)(r->width / 2), r->law};
    *p = gemm_describe(x, n, 0);
    p->c.data = weft_data(x, y);
    p->rope = k;
    return p->steady && streamed_can(p);
}

/* Over the result itself. */
static column_pass pass_behind(const weft_node *n) {
    int64_t columns = weft_matmul_measure(ATTR(n, weft_matmul_attr), n->in[0], n->in[1]).n;
    return {n->out[0], n->in[WEFT_MATMUL_AT], n->out[0], n->out[1], columns};
}

static fused_product describe_fused(const weft_exec *x, const weft_node *n) {
    const weft_matmul_attr *attr = ATTR(n, weft_matmul_attr);
    bool slope = attr->act == WEFT_ACT_GELU_BACK;
    fused_product t = {};
    for (int i = 0; i <= attr->more; i++)
        fused_add(&t, gemm_describe(x, n, i));
    t.epilogue = slope ? FUSED_GELU_BACK : FUSED_PLAIN;
    t.in = (const bf16 *)place_of(x, n->in[slope ? WEFT_MATMUL_AT : WEFT_MATMUL_ADDEND]);
    t.out[0] = (bf16 *)place_of(x, n->out[0]);
    if (x && attr->sums) t.sums = workspace_of<float>(x, n);
    return t;
}

/* Whether our own kernel does the node. Shapes and types decide: the workspace is planned by it. */
static bool is_fused(const weft_node *n) {
    const weft_matmul_attr *attr = ATTR(n, weft_matmul_attr);
    int64_t depth = attr->more * DEPTH_OF_PRODUCT + (has_pass(n) ? DEPTH_OF_SLOPE : 0);
    if (depth == 0 || attr->moments || attr->act == WEFT_ACT_GELU ||
        attr->act == WEFT_ACT_DEVIATIONS || n->in[WEFT_MATMUL_BIAS] ||
        (n->in[WEFT_MATMUL_ADDEND] && attr->act != WEFT_ACT_NONE) || attr->dtype != WEFT_BF16 ||
        !weft_matmul_is_by_rows(attr, n->in[0]))
        return false;
    for (int i = 0; i <= attr->more; i++) {
        weft_matmul_pair p = weft_matmul_pair_of(n, i);
        if (p.a->dtype != WEFT_BF16 || p.b->dtype != WEFT_BF16 || p.attr.alpha == 0) return false;
        depth -= weft_tensor_width(p.a);
    }
    fused_product t = describe_fused(NULL, n);
    return (depth > 0 || t.n <= NARROW) && fused_can(&t);
}

/* Launches a node and those behind it that need nothing of it, or of each other. False: it is alone. */
static bool run_together(const weft_exec *x, const weft_node *n) {
    cuda_gemm p[GEMM_TOGETHER];
    const weft_node *nodes[GEMM_TOGETHER];
    int count = 0;
    bool same = true, streamed = true;
    for (const weft_node *m = n; m && count < GEMM_TOGETHER; m = next_alike(x, m)) {
        const weft_matmul_attr *attr = ATTR(m, weft_matmul_attr);
        p[count] = gemm_describe(x, m, 0);
        bool apart = !attr->more && !attr->sums && attr->act != WEFT_ACT_GELU_BACK &&
                     gemm_joins(&p[count]) && p[count].m == p[0].m;
        for (int i = 0; apart && i < count; i++)
            apart = are_apart(x, m, nodes[i]);
        same = same && m->in[0] == n->in[0];
        streamed = streamed && apart && streamed_can(&p[count]);
        if (!apart || (!same && !streamed)) break;
        nodes[count++] = m;
    }
    if (count < 2) return false;
    const weft_node *next = streamed ? gathering_behind(x, nodes[count - 1]) : NULL;
    for (int i = 0; i < count; i++)
        p[i].late = next != NULL;
    /* It may come only when all before this one have ended: what they made is there for it then,
     * before wait_for_primary. */
    if (next) state_of(x)->ahead = next->index;
    gemm_run_together(x, p, count);
    launched_until(x, nodes[count - 1]);
    return true;
}

static int64_t matmul_workspace(const weft_node *n, int) {
    int64_t bytes = 0;
    if (is_fused(n)) {
        fused_product t = describe_fused(NULL, n);
        return ATTR(n, weft_matmul_attr)->sums ? fused_bands(t.m) * t.n * (int64_t)sizeof(float)
                                               : 0;
    }
    for (int i = 0; i <= ATTR(n, weft_matmul_attr)->more; i++)
        bytes = max_i64(bytes, gemm_workspace(gemm_describe(NULL, n, i)));
    return has_pass(n) ? max_i64(bytes, column_pass_bytes(pass_behind(n))) : bytes;
}

CUDA_RUN(matmul, matmul_workspace) {
    if (is_launched(x, n)) return WEFT_OK;
    const weft_node *before = node_at(x, n->index - 1);
    if (before && gemm_has_gate(x, before)) {
        cuda_gemm p = describe_gated(x, n, before);
        streamed_launch(stream_of(x), &p, 1);
        return launched(n);
    }
    gemm_rope rope;
    cuda_gemm rotated;
    if (describe_rotated(x, n, &rope, &rotated)) {
        streamed_launch(stream_of(x), &rotated, 1);
        launched_until(x, node_at(x, n->index + 1));
        return launched(n);
    }
    if (follows(x) && run_together(x, n)) return launched(n);
    if (!are_alone(x) && is_fused(n)) {
        fused_product t = describe_fused(x, n);
        WEFT_TRY(fused_launch(stream_of(x), &t));
        if (t.sums) add_column_bands(x, n->out[1], fused_bands(t.m), t.sums);
        return launched(n);
    }
    for (int i = 0; i <= ATTR(n, weft_matmul_attr)->more; i++)
        WEFT_TRY(gemm_launch(stream_of(x), gemm_describe(x, n, i), weft_workspace(x, n)));
    return has_pass(n) ? run_column_pass(x, n, pass_behind(n)) : WEFT_OK;
}
