/* What a graph that is built over the public header knows beside its nodes. */
#ifndef WEFT_API_GRAPH_H
#define WEFT_API_GRAPH_H

#include "core/graph.h"

#include <weft/graph.h>

enum { WEFT_API_TENSORS_MAX = 512 }; /* inputs, weights and outputs of a block, each */

typedef struct {
    weft_tensor *tensor;
    char *name;
    weft_tensor *grad; /* made (inputs, weights) or read (outputs) by backward; NULL: none */
    bool wants_grad;
} weft_api_entry;

typedef struct {
    weft_api_entry *entries;
    int n, room;
} weft_api_list;

typedef struct {
    bool gradient;         /* there will be a backward pass */
    weft_api_list list[3]; /* by weft_block_list */
} weft_api_lists;

/* Appends a tensor; false: no memory, or too many, and the graph has the error. */
bool weft_api_note(weft_graph *g, weft_block_list which, weft_tensor *t, const char *name,
                   bool wants_grad);
void weft_api_lists_free(weft_api_lists *lists);

#endif
