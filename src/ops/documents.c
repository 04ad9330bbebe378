/* Where documents begin: shape rules. Places have no gradient. */
#include "ops/documents.h"

#include "ops/define.h"

OPERATION(documents, void, tokens) {
    WEFT_TRY(weft_check_int(g, n, "tokens", tokens));
    WEFT_TRY(weft_check_ndim(g, n, "tokens", tokens, 2));
    for (int i = 0; i < 2; i++)
        weft_node_output_like(g, n, i, WEFT_I32, tokens);
    return weft_graph_status(g);
}

weft_documents weft_find_documents(weft_graph *g, weft_tensor *tokens, int32_t end) {
    weft_documents_attr attr = {end};
    weft_node *n = weft_graph_append(g, &weft_op_documents, &tokens, 1, 1, 2, &attr, sizeof attr);
    return n ? (weft_documents){n->out[0], n->out[1]} : (weft_documents){0};
}

OPERATION(cache_documents, void, position, .side_effect = true) {
    const weft_tensor *tokens = n->in[WEFT_CACHE_X], *begun = n->in[WEFT_CACHE_PAGES];
    WEFT_TRY(weft_check_int(g, n, "tokens", tokens));
    WEFT_TRY(weft_check_dims(g, n, "tokens", tokens, n->in[WEFT_CACHE_SLOT]->shape[0], 1));
    WEFT_TRY(weft_check_int(g, n, "begun", begun));
    WEFT_TRY(weft_check_shape(g, n, "begun", begun, 1, n->in[WEFT_CACHE_TABLE]->shape));
    if (begun->role != WEFT_ROLE_STATE) return REFUSE("begun must be a state: it outlives a run");
    weft_node_output(g, n, 0, WEFT_I32, 1, tokens->shape);
    weft_node_output_like(g, n, 1, WEFT_I32, tokens);
    return weft_graph_status(g);
}

weft_documents weft_find_cached_documents(weft_graph *g, weft_tensor *tokens, int32_t end,
                                          weft_tensor *begun, const weft_rows *rows) {
    weft_documents_attr attr = {end};
    weft_tensor *in[] = {rows->position, rows->slot, rows->table, tokens, begun};
    weft_node *n = weft_graph_append(g, &weft_op_cache_documents, in, WEFT_CACHE_SHORT_INPUTS,
                                     WEFT_CACHE_SHORT_INPUTS, 2, &attr, sizeof attr);
    return n ? (weft_documents){n->out[0], n->out[1]} : (weft_documents){0};
}
