/* Sums along the kept columns on the GPU: c_t = Σ_m w_tm h[i_tm], a sparse matrix of k entries a row
 * times a dense one, in panels that are read through the caches (panel.cuh).
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

CUDA_RUN(route_gather, NULL, weft_cuda_explain_index) {
    const weft_tensor *h = n->in[WEFT_GATHER_H], *index = n->in[WEFT_GATHER_INDEX];
    panel_shape s = make_panels(n);
    with_type(h, [&](auto tag) {
        using T = decltype(tag);
        auto kernel = weft_cuda_gather_is_aligned(n) ? gather_rows<T, true> : gather_rows<T, false>;
        kernel<<<(unsigned)(s.processors * BLOCKS), THREADS, 0, stream_of(x)>>>(
            s, (int)index->shape[2], data_of<int32_t>(x, index),
            data_of<float>(x, n->in[WEFT_GATHER_WEIGHT]), find_panels<T>(x, n), device_run(x),
            n->index);
    });
    return launched(n);
}
