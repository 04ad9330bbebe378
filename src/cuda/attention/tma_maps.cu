/* Attention's rows as TMA sees them. */
#include "cuda/tensor/tma.cuh"
#include "cuda/tensor/tma_map.cuh"

static bool make_map(const head_rows &rows, int batch, int positions, int heads, int width,
                     int box_rows, row_map *map) {
    bool wide = width % 64 == 0; /* tile_panel's width */
    cuuint64_t size[4] = {(cuuint64_t)width, (cuuint64_t)heads, (cuuint64_t)positions,
                          (cuuint64_t)batch};
    cuuint64_t stride[3] = {(cuuint64_t)rows.head * 2, (cuuint64_t)rows.row * 2,
                            (cuuint64_t)rows.batch * 2};
    cuuint32_t box[4] = {wide ? 64u : 32u, 1, (cuuint32_t)box_rows, 1};
    return make_tensor_map(&map->map, rows.data, 4, size, stride, box);
}

bool make_row_maps(const attention_problem &p, const attention_gradients *g, int query_rows,
                   int key_rows, row_maps *maps) {
    if (!weft_cuda_device()->wgmma) return true; /* the threads copy, by cp.async */
    auto by_query = [&](const head_rows &rows, int width, int box_rows, row_map *map) {
        return !rows.data || make_map(rows, p.batch, p.queries, p.heads, width, box_rows, map);
    };
    auto by_key = [&](const head_rows &rows, int width, int box_rows, row_map *map) {
        return !rows.data || make_map(rows, p.batch, p.keys, p.kv_heads, width, box_rows, map);
    };
    return by_query(p.q, p.dqk, query_rows, &maps->q) && by_key(p.k, p.dqk, key_rows, &maps->k) &&
           by_key(p.v, p.dv, key_rows, &maps->v) && by_query(p.o, p.dv, 64, &maps->o) &&
           (!g || (by_query(g->d_o, p.dv, query_rows, &maps->d_o) &&
                   by_query(g->dq, p.dqk, 64, &maps->dq) && by_key(g->dk, p.dqk, 64, &maps->dk) &&
                   by_key(g->dv, p.dv, 64, &maps->dv)));
}
