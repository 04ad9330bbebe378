/* Sums along the kept columns on the GPU: c_t = Σ_m w_tm h[i_tm], a sparse matrix of k entries a row
 * times a dense one. Short sequences have their panels in shared memory, for which the
 * entries are listed first; longer ones are read through the caches (panel.cuh).
 *
 * Floor: h is read and c written once, at the memory's rate; T·k rows are read through the caches. */
#include "cuda/routing/panel.cuh"

weft_status weft_cuda_explain_index(weft_exec *x, const weft_node *n, int64_t place) {
    bool back = n->attr != NULL;
    int64_t keys = back ? n->out[0]->shape[1] : n->in[WEFT_GATHER_H]->shape[1];
    return WEFT_BAD_INPUT("%s: index holds %d, but it must be -1 to %lld", n->op->name,
                          (int)read_i32(x, n->in[WEFT_GATHER_INDEX], place), (long long)(keys - 1));
}

template <typename T, bool ALIGNED>
static __global__ void __launch_bounds__(THREADS, BLOCKS)
    gather_rows(panel_shape s, int k, const int32_t *__restrict__ index,
                const float *__restrict__ weight, panel_data<T> data, weft_cuda_run *run,
                int node) {
    int group = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES;
    for (tile_walk at(s); at.more(); at.next()) {
        panel_place<T> p = find_place(s, data, at.b, at.panel);
        int64_t row = (int64_t)at.tile * GROUPS + group, first = (at.b * s.out_rows + row) * k;
        int entries = row < s.out_rows ? k : 0;
        float sum[PIECE<T>] = {};
        for (int m = lane; m - lane < entries; m += AT_ONCE) {
            int j = m < entries ? index[first + m] : -1;
            float w = j >= 0 ? weight[first + m] : 0;
            if (j < -1 || j >= s.in_rows) {
                note_fault(run, node, first + m);
                j = -1, w = 0;
            }
            add_entries<ALIGNED>(p, j, w, sum);
        }
        if (row < s.out_rows) store_piece<ALIGNED>(p, row, sum);
    }
}

static entry_lists measure_rows(const weft_node *n) {
    const weft_tensor *index = n->in[WEFT_GATHER_INDEX];
    entry_lists l = {};
    l.most = ceil_div(index->shape[1], UNIT);
    l.lines = l.most * ceil_div(index->shape[2], UNIT_STEP) * UNIT_LINES;
    return l;
}

/* Lists the entries of rows, UNIT rows a unit: a thread for those that a group reads together. */
static __global__ void list_rows(entry_lists l, int64_t batch, int rows, int in_rows, int k,
                                 const int32_t *__restrict__ index,
                                 const float *__restrict__ weight, weft_cuda_run *run, int node) {
    int lines = (int)(l.lines / l.most), steps = lines / UNIT_LINES;
    int64_t all = batch * l.most * steps * UNIT;
    for (int64_t i = thread_index(); i < all; i += thread_count()) {
        int group = (int)(i % UNIT), step = (int)(i / UNIT % steps);
        int64_t u = i / UNIT / steps, b = u / l.most, unit = u % l.most, row = unit * UNIT + group;
        uint2 entry[UNIT_STEP];
#pragma unroll
        for (int e = 0; e < UNIT_STEP; e++) {
            int64_t m = step * UNIT_STEP + e, from = (b * rows + row) * k + m;
            int j = row < rows && m < k ? index[from] : -1;
            if (j < -1 || j >= in_rows) note_fault(run, node, from);
            entry[e] = j >= 0 && j < in_rows ? make_entry(j, weight[from]) : make_entry(in_rows, 0);
        }
        order_step(entry, group);
        uint4 *to = l.stream + (u * lines + step * UNIT_LINES) * UNIT + group;
#pragma unroll
        for (int e = 0; e < UNIT_LINES; e++)
            to[e * UNIT] =
                make_uint4(entry[2 * e].x, entry[2 * e].y, entry[2 * e + 1].x, entry[2 * e + 1].y);
        if (step > 0) continue;
        l.unit[u].target[group] = (uint16_t)(row < rows ? row : NOWHERE);
        if (group > 0) continue;
        l.unit[u].line = (int)unit * lines;
        l.unit[u].lines = lines;
        l.unit[u].whole = 0;
        l.unit[u].units = (int)l.most;
    }
}

static void gather_shared(weft_exec *x, const weft_node *n, entry_lists l) {
    const weft_tensor *h = n->in[WEFT_GATHER_H], *index = n->in[WEFT_GATHER_INDEX];
    place_entries(&l, h->shape[0], workspace_of<char>(x, n));
    list_rows<<<grid_for(h->shape[0] * l.lines / UNIT_LINES * UNIT, THREADS), THREADS, 0,
                stream_of(x)>>>(l, h->shape[0], (int)index->shape[1], (int)h->shape[1],
                                (int)index->shape[2], data_of<int32_t>(x, index),
                                data_of<float>(x, n->in[WEFT_GATHER_WEIGHT]), device_run(x),
                                n->index);
    weft_cuda_sum_shared(x, n, &l);
}

static int64_t route_gather_workspace(const weft_node *n, int) {
    entry_lists l = measure_rows(n);
    return weft_cuda_fits_shared(n, &l) ? place_entries(&l, n->out[0]->shape[0], NULL) : 0;
}

CUDA_RUN(route_gather, route_gather_workspace, weft_cuda_explain_index) {
    const weft_tensor *h = n->in[WEFT_GATHER_H], *index = n->in[WEFT_GATHER_INDEX];
    entry_lists l = measure_rows(n);
    if (weft_cuda_fits_shared(n, &l)) {
        gather_shared(x, n, l);
        return launched(n);
    }
    panel_shape s = make_panels(n);
    with_type(h, [&](auto tag) {
        using T = decltype(tag);
        auto kernel = weft_cuda_gather_is_aligned(n) ? gather_rows<T, true> : gather_rows<T, false>;
        kernel<<<panel_grid(s), THREADS, 0, stream_of(x)>>>(
            s, (int)index->shape[2], data_of<int32_t>(x, index),
            data_of<float>(x, n->in[WEFT_GATHER_WEIGHT]), find_panels<T>(x, n), device_run(x),
            n->index);
    });
    return launched(n);
}
