/* Attention's rows as TMA sees them. */
#include "cuda/tensor/tma.cuh"
#include "cuda/tensor/tma_map.cuh"

/* What TMA finds outside of a head's columns is 0, so a box may be wider than they are. */
static bool make_map(const head_rows &rows, int batch, int positions, int heads, int width,
                     int tile_width, int box_rows, row_map *map) {
    bool wide = tile_width % 64 == 0 && tile_width != 192; /* tile_panel's width */
    cuuint64_t size[4] = {(cuuint64_t)width, (cuuint64_t)heads, (cuuint64_t)positions,
                          (cuuint64_t)batch};
    cuuint64_t stride[3] = {(cuuint64_t)rows.head * 2, (cuuint64_t)rows.row * 2,
                            (cuuint64_t)rows.batch * 2};
    cuuint32_t box[4] = {wide ? 64u : 32u, 1, (cuuint32_t)box_rows, 1};
    return make_tensor_map(&map->map, rows.data, 4, size, stride, box);
}

bool make_row_maps(const attention_problem &p, const attention_gradients *g, int query_rows,
                   int key_rows, row_maps *maps, int dqk, int dv) {
    if (!weft_cuda_device()->wgmma) return true; /* the threads copy, by cp.async */
    if (dqk == 0) dqk = p.dqk;
    if (dv == 0) dv = p.dv;
    auto by_query = [&](const head_rows &rows, bool scores, int box_rows, row_map *map) {
        return !rows.data || make_map(rows, p.batch, p.queries, p.heads, scores ? p.dqk : p.dv,
                                      scores ? dqk : dv, box_rows, map);
    };
    auto by_key = [&](const head_rows &rows, bool scores, int box_rows, row_map *map) {
        return !rows.data || make_map(rows, p.batch, p.keys, p.kv_heads, scores ? p.dqk : p.dv,
                                      scores ? dqk : dv, box_rows, map);
    };
    return by_query(p.q, true, query_rows, &maps->q) && by_key(p.k, true, key_rows, &maps->k) &&
           by_key(p.v, false, key_rows, &maps->v) && by_query(p.o, false, 64, &maps->o) &&
           (!g || (by_query(g->d_o, false, query_rows, &maps->d_o) &&
                   by_query(g->dq, true, 64, &maps->dq) && by_key(g->dk, true, 64, &maps->dk) &&
                   by_key(g->dv, false, 64, &maps->dv)));
}
