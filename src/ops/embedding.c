/* Token and position embedding: rows of tables, added.
 *
 *     y[b, t] = wte[ids[b, t]] + wpe[t + start[b]]
 *     dwte[v] = Σ over (b, t) with ids[b, t] = v of dy[b, t]          dwpe[p] likewise
 *
 * The sums run over (b, t) in memory's order. */
#include "ops/embedding.h"

#include "ops/define.h"

OPERATION_WITH_GRAD(embed, void, wte) {
    const weft_tensor *ids = n->in[1], *wpe = n->in[2], *start = n->in[3];
    WEFT_TRY(weft_check_float_of(g, n, "wte", wte, 2));
    WEFT_TRY(weft_check_int(g, n, "ids", ids));
    WEFT_TRY(weft_check_ndim(g, n, "ids", ids, 2));
    if (weft_tensor_count(ids) > INT32_MAX)
        return REFUSE("ids is %s, more than 2^31 - 1 tokens", weft_tensor_describe(ids));
    if (!wpe && start) return REFUSE("start is given, but there is no table");
    if (wpe) {
        WEFT_TRY(weft_check_float_of(g, n, "wpe", wpe, 2));
        if (wpe->shape[1] != wte->shape[1])
            return REFUSE("wte is %s, but wpe is %s; their widths must agree",
                          weft_tensor_describe(wte), weft_tensor_describe(wpe));
        if (wpe->shape[0] < ids->shape[1])
            return REFUSE("ids is %s, but wpe is %s", weft_tensor_describe(ids),
                          weft_tensor_describe(wpe));
        WEFT_TRY(weft_check_places(g, n, "start", start, 1, ids->shape));
    }
    return weft_output_of(g, n, 0, wte->dtype, ids->shape[0], ids->shape[1], wte->shape[1]);
}

GRAD(embed) {
    weft_tensor *wte = n->in[0], *ids = n->in[1], *wpe = n->in[2], *start = n->in[3];
    if (wte->needs_grad) {
        weft_embed_back_attr back = {wte->shape[0], wte->dtype};
        weft_tensor *in[WEFT_EMBED_BACK_INPUTS] = {d_out[0], ids};
        d_in[0] = weft_append_list(g, &weft_op_embed_back, &back, sizeof back, 2,
                                   WEFT_EMBED_BACK_INPUTS, in);
    }
    if (wpe && wpe->needs_grad) {
        weft_embed_back_attr back = {wpe->shape[0], wpe->dtype};
        d_in[2] =
            weft_append_some(g, &weft_op_position_back, &back, sizeof back, 1, d_out[0], start);
    }
    return weft_graph_status(g);
}

/* Both gradients: a table of attr->rows rows as wide as dy's. */
INFER(table, weft_embed_back_attr, dy) {
    return weft_output_of(g, n, 0, attr->dtype, attr->rows, weft_tensor_width(dy));
}

DEFINE_IN_PLACE(over_addend, n->in[WEFT_EMBED_BACK_ADDEND] ? WEFT_EMBED_BACK_ADDEND : -1)
DEFINE_OP(embed_back, .infer = table_infer, .inplace = over_addend);

DEFINE_OP(position_back, .infer = table_infer);

weft_tensor *weft_embed(weft_graph *g, weft_tensor *wte, weft_tensor *ids, weft_tensor *wpe,
                        weft_tensor *start) {
    return weft_append_some(g, &weft_op_embed, NULL, 0, 2, wte, ids, wpe, start);
}
