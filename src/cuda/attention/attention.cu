/* Attention on the GPU: from a node to a problem (attention.cuh), and to FlashAttention on the tensor
 * cores where choice.h says that it applies, else to the plain kernels. */
#include "cuda/attention/attention.cuh"

#include "cuda/pack.cuh"
#include "cuda/tensor/tma.cuh"
#include "cuda/tensor/tma_map.cuh"

bool make_row_map(const head_rows &rows, int batch, int positions, int heads, int width,
                  int tile_width, int box_rows, row_map *map) {
    bool wide = tile_width % 64 == 0 && tile_width != 192; /* tile_panel's width */
    cuuint64_t size[4] = {(cuuint64_t)width, (cuuint64_t)heads, (cuuint64_t)positions,
                          (cuuint64_t)batch};
    cuuint64_t stride[3] = {(cuuint64_t)rows.head * 2, (cuuint64_t)rows.row * 2,
                            (cuuint64_t)rows.batch * 2};
    cuuint32_t box[4] = {wide ? 64u : 32u, 1, (cuuint32_t)box_rows, 1};
    return make_tensor_map(map, rows.data, 4, size, stride, box);
}

bool make_row_maps(const attention_problem &p, const attention_gradients *g, int query_rows,
                   int key_rows, row_maps *maps, int dqk, int dv) {
    if (!weft_cuda_device()->wgmma) return true; /* the threads copy, by cp.async */
    auto make = [&](const head_rows &rows, bool by_query, bool scores, int box_rows, row_map *map) {
        return !rows.data || make_row_map(rows, p.batch, by_query ? p.queries : p.keys,
                                          by_query ? p.heads : p.kv_heads, scores ? p.dqk : p.dv,
                                          scores ? dqk : dv, box_rows, map);
    };
    return make(p.q, true, true, query_rows, &maps->q) &&
           make(p.k, false, true, key_rows, &maps->k) &&
           make(p.v, false, false, key_rows, &maps->v) && make(p.o, true, false, 64, &maps->o) &&
           (!g ||
            (make(g->d_o, true, false, query_rows, &maps->d_o) &&
             make(g->dq, true, true, 64, &maps->dq) && make(g->dk, false, true, 64, &maps->dk) &&
             make(g->dv, false, false, 64, &maps->dv)));
}

/* Rows of a tensor [B, positions, heads, width]. */
static head_rows make_rows(void *data, int64_t positions, int64_t heads, int64_t width) {
    return {data, positions * heads * width, heads * width, width};
}

/* q, k and v or their gradients; where packed, all three are parts of the first. */
static void make_projections(const weft_exec *x, const weft_attention_attr *a,
                             weft_tensor *const *t, head_rows *q, head_rows *k, head_rows *v) {
    char *data = data_of<char>(x, t[WEFT_ATTN_Q]);
    if (!a->packed) {
        *q = make_rows(data, a->queries, a->heads, a->dqk);
        *k = make_rows(data_of<char>(x, t[WEFT_ATTN_K]), a->keys, a->kv_heads, a->dqk);
        *v = make_rows(data_of<char>(x, t[WEFT_ATTN_V]), a->keys, a->kv_heads, a->dv);
        return;
    }
    *q = make_rows(data, a->queries, a->heads + 2 * a->kv_heads, a->dqk);
    *k = *v = *q;
    if (!data) return;
    int64_t size = (int64_t)weft_dtype_size(t[WEFT_ATTN_Q]->dtype);
    k->data = data + a->heads * a->dqk * size;
    v->data = data + (a->heads + a->kv_heads) * a->dqk * size;
}

/* What is known without an executor. */
static attention_problem make_shape(const weft_attention_attr *a, weft_tensor *const *in) {
    attention_problem p = {};
    p.batch = (int)a->batch;
    p.queries = (int)a->queries;
    p.keys = (int)a->keys;
    p.heads = (int)a->heads;
    p.kv_heads = (int)a->kv_heads;
    p.dqk = (int)a->dqk;
    p.dv = (int)a->dv;
    p.distances = in[WEFT_ATTN_REL] ? (int)weft_tensor_count(in[WEFT_ATTN_REL]) : 0;
    p.is_bf16 = in[WEFT_ATTN_Q]->dtype == WEFT_BF16;
    p.causal = a->causal;
    p.band = a->band;
    p.pos = a->pos;
    p.window = (int)min_i64(a->window, a->keys);
    p.reach = (int)min_i64(a->reach, a->keys);
    p.softcap = (float)a->softcap;
    p.scale_value = (float)a->scale_value;
    p.band_alpha = (float)a->band_alpha;
    return p;
}

attention_problem attention_problem_of(const weft_exec *x, const weft_attention_attr *a,
                                       weft_tensor *const *in) {
    attention_problem p = make_shape(a, in);
    make_projections(x, a, in, &p.q, &p.k, &p.v);
    p.n = data_of<float>(x, in[WEFT_ATTN_N]);
    p.scale = data_of<float>(x, in[WEFT_ATTN_SCALE]);
    p.beta = data_of<float>(x, in[WEFT_ATTN_BETA]);
    p.log_tau = data_of<float>(x, in[WEFT_ATTN_LOG_TAU]);
    p.rel = data_of<float>(x, in[WEFT_ATTN_REL]);
    p.first = data_of<int32_t>(x, in[WEFT_ATTN_FIRST]);
    return p;
}

static attention_problem make_problem(const weft_exec *x, const weft_node *n,
                                      weft_tensor *const *in, const weft_tensor *o,
                                      const weft_tensor *lse) {
    attention_problem p = attention_problem_of(x, ATTR(n, weft_attention_attr), in);
    p.o = make_rows(data_of<void>(x, o), p.queries, p.heads, p.dv);
    p.lse = data_of<float>(x, lse);
    return p;
}

/* Heads whose width is no multiple of 8 do not begin at multiples of 16 bytes, as TMA wants: they are
 * copied into rows that do, with zeros behind, and the results back. */
static attention_problem pad_widths(attention_problem p) {
    p.dqk = (int)ceil_div(p.dqk, 8) * 8;
    p.dv = (int)ceil_div(p.dv, 8) * 8;
    return p;
}

static bool is_padded(const attention_problem &p) {
    return (p.dqk % 8 != 0 || p.dv % 8 != 0) && attention_fits_flash(pad_widths(p));
}

static __global__ void copy_heads(head_rows from, int width, head_rows to, int to_width,
                                  int positions, int heads, int64_t count) {
    for (int64_t i = thread_index(); i < count; i += thread_count()) {
        int64_t line = quotient(i, to_width), place = quotient(line, heads);
        int column = (int)(i - line * to_width), head = (int)(line - place * heads);
        int b = (int)quotient(place, positions), position = (int)(place - (int64_t)b * positions);
        bf16 value = column < width
                         ? ((const bf16 *)from.data)[row_at(from, b, position, head) + column]
                         : from_float<bf16>(0.0f);
        ((bf16 *)to.data)[row_at(to, b, position, head) + column] = value;
    }
}

/* The rows of a padded problem in a workspace, one after the other. */
struct padded_rows {
    const attention_problem &p, &wide;
    char *next;
    cudaStream_t stream;

    head_rows take(bool query, bool score) {
        int positions = query ? p.queries : p.keys, heads = query ? p.heads : p.kv_heads;
        head_rows rows = make_rows(next, positions, heads, score ? wide.dqk : wide.dv);
        next += align_bytes(p.batch * rows.batch * (int64_t)sizeof(bf16));
        return rows;
    }
    void copy(const head_rows &from, const head_rows &to, bool query, bool score, bool back) {
        int own = score ? p.dqk : p.dv, padded = score ? wide.dqk : wide.dv;
        int positions = query ? p.queries : p.keys, heads = query ? p.heads : p.kv_heads;
        int64_t count = (int64_t)p.batch * positions * heads * (back ? own : padded);
        copy_heads<<<grid_for(count, PACK_THREADS), PACK_THREADS, 0, stream>>>(
            from, own, to, back ? own : padded, positions, heads, count);
    }
    head_rows take_copy(const head_rows &from, bool query, bool score) {
        head_rows to = take(query, score);
        copy(from, to, query, score, false);
        return to;
    }
};

/* q, k, v and o; with `back` their gradients too. */
static int64_t padded_bytes(const attention_problem &p, bool back) {
    attention_problem wide = pad_widths(p);
    padded_rows rows = {p, wide, NULL, 0};
    for (int i = 0; i < (back ? 2 : 1); i++)
        rows.take(true, true), rows.take(false, true), rows.take(false, false),
            rows.take(true, false);
    return (int64_t)(intptr_t)rows.next;
}

/* g NULL: the forward pass; else `workspace` is behind that of flash_backward. */
static void run_padded(const attention_problem &p, const attention_gradients *g, void *workspace,
                       cudaStream_t stream) {
    attention_problem wide = pad_widths(p);
    padded_rows rows = {p, wide, (char *)workspace, stream};
    wide.q = rows.take_copy(p.q, true, true);
    wide.k = rows.take_copy(p.k, false, true);
    wide.v = rows.take_copy(p.v, false, false);
    wide.o = rows.take(true, false);
    if (!g) {
        flash_forward(wide, stream);
        return rows.copy(wide.o, p.o, true, false, true);
    }
    rows.copy(p.o, wide.o, true, false, false);
    attention_gradients to = *g;
    to.d_o = rows.take_copy(g->d_o, true, false);
    if (g->dq.data) to.dq = rows.take(true, true);
    if (g->dk.data) to.dk = rows.take(false, true);
    if (g->dv.data) to.dv = rows.take(false, false);
    flash_backward(wide, to, stream);
    if (g->dq.data) rows.copy(to.dq, g->dq, true, true, true);
    if (g->dk.data) rows.copy(to.dk, g->dk, false, true, true);
    if (g->dv.data) rows.copy(to.dv, g->dv, false, false, true);
}

static int64_t attention_workspace(const weft_node *n, int) {
    attention_problem p = make_shape(ATTR(n, weft_attention_attr), n->in);
    return is_padded(p) ? padded_bytes(p, false) : 0;
}

CUDA_RUN(attention, attention_workspace) {
    attention_problem p = make_problem(x, n, n->in, n->out[0], n->out[1]);
    if (is_padded(p))
        run_padded(p, NULL, weft_workspace(x, n), stream_of(x));
    else if (attention_fits_flash(p))
        flash_forward(p, stream_of(x));
    else
        attention_plain(p, stream_of(x));
    return launched(n);
}

/* What of Gaussians' gradients the kernels finish themselves; the rest is a pass behind them. */
static gaussian_sides can_finish(const attention_problem &p) {
    return attention_fits_flash(p) ? flash_backward_finishes(p) : gaussian_sides{};
}

/* Without what is laid out by attention_back_run behind it. */
static int64_t workspace_of_kernels(const attention_problem &p, const weft_node *n) {
    if (is_padded(p))
        return align_bytes(flash_backward_workspace(pad_widths(p))) + padded_bytes(p, true);
    if (attention_fits_flash(p)) return flash_backward_workspace(p);
    bool numbers = n->out[WEFT_ATTN_SCALE] || n->out[WEFT_ATTN_BETA] || n->out[WEFT_ATTN_LOG_TAU];
    return attention_plain_back_workspace(p, numbers, n->out[WEFT_ATTN_REL] != NULL);
}

static int64_t attention_back_workspace(const weft_node *n, int) {
    const weft_attention_attr *a = ATTR(n, weft_attention_attr);
    attention_problem p = make_shape(a, n->in + WEFT_ATTN_BACK_FIRST);
    int64_t bytes = workspace_of_kernels(p, n), keys = (int64_t)p.batch * p.kv_heads * p.keys;
    if (a->gaussian_n && !can_finish(p).n)
        bytes = align_bytes(bytes) + keys * (int64_t)sizeof(float);
    return bytes;
}

CUDA_RUN(attention_back, attention_back_workspace) {
    attention_problem p = make_problem(x, n, n->in + WEFT_ATTN_BACK_FIRST, n->in[1], n->in[2]);
    attention_gradients g = {};
    make_projections(x, ATTR(n, weft_attention_attr), n->out, &g.dq, &g.dk, &g.dv);
    g.d_o = make_rows(data_of<void>(x, n->in[0]), p.queries, p.heads, p.dv);
    g.dn = data_of<float>(x, n->out[WEFT_ATTN_N]);
    g.dscale = data_of<float>(x, n->out[WEFT_ATTN_SCALE]);
    g.dbeta = data_of<float>(x, n->out[WEFT_ATTN_BETA]);
    g.dlog_tau = data_of<float>(x, n->out[WEFT_ATTN_LOG_TAU]);
    g.drel = data_of<float>(x, n->out[WEFT_ATTN_REL]);
    g.workspace = weft_workspace(x, n);
    const weft_attention_attr *a = ATTR(n, weft_attention_attr);
    gaussian_sides can = can_finish(p);
    g.finish = {a->gaussian_q && can.q, a->gaussian_k && can.k, a->gaussian_n && can.n};
    if (a->gaussian_n && !can.n)
        g.dn = (float *)((char *)g.workspace + align_bytes(workspace_of_kernels(p, n)));
    if (is_padded(p))
        run_padded(p, &g,
                   (char *)g.workspace + align_bytes(flash_backward_workspace(pad_widths(p))),
                   stream_of(x));
    else if (attention_fits_flash(p))
        flash_backward(p, g, stream_of(x));
    else
        attention_plain_back(p, g, stream_of(x));
    weft_tensor *const *from = n->in + WEFT_ATTN_BACK_FIRST;
    if (a->gaussian_q && !can.q)
        gaussian_gradient(x, from[WEFT_ATTN_Q], n->out[WEFT_ATTN_Q], NULL, n->out[WEFT_ATTN_Q]);
    if (a->gaussian_k && !can.k)
        gaussian_gradient(x, from[WEFT_ATTN_K], n->out[WEFT_ATTN_K], a->gaussian_n ? g.dn : NULL,
                          n->out[WEFT_ATTN_K]);
    return launched(n);
}
