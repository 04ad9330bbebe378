/* One small graph for each addition that the tree can ask for, made once. A result is bound to the
 * memory of the sum it changes. Levels are laid out alike, so adding two of them, and scaling one,
 * is one node over all weights; only a micro-batch's gradients lie each on its own. */
#include "train/gradient_graphs.h"

#include "ops/arith.h"

#include <stdio.h>
#include <stdlib.h>

enum { NAME_ROOM = 192 };

typedef struct {
    weft_graph *graph;
    weft_exec *exec;
} addition;

struct weft_gradient_graphs {
    int depth;
    addition *take[2]; /* [depth]: set, add */
    addition *merge;   /* [depth]: into the level below */
    addition mean;
};

/* A graph under construction. */
typedef struct {
    const weft_gradient_places *p;
    weft_graph *graph;
    weft_binding *bindings; /* room for three a weight */
    int64_t n;
} builder;

static void put_at(builder *b, weft_tensor *t, void *data) {
    if (t) b->bindings[b->n++] = (weft_binding){t, data};
}

static weft_tensor *bind_new(builder *b, const char *kind, const char *name, weft_dtype dtype,
                             int ndim, const int64_t *shape, void *data) {
    char full[NAME_ROOM];
    snprintf(full, sizeof full, "%s.%s", kind, name);
    weft_tensor *t = weft_graph_tensor(b->graph, WEFT_ROLE_STATE, full, dtype, ndim, shape);
    put_at(b, t, data);
    return t;
}

static void build_take(builder *b, int level, bool add) {
    const weft_gradient_places *p = b->p;
    for (int64_t i = 0; i < p->n; i++) {
        const weft_weight *w = &p->weights[i];
        void *place = p->levels[level] + p->offsets[i];
        weft_tensor *sum = NULL, *from = NULL;
        if (!p->from[i].data) {
            if (!add) put_at(b, weft_fill(b->graph, WEFT_F32, w->ndim, w->shape, 0), place);
            continue;
        }
        from = bind_new(b, "from", w->name, p->from[i].dtype, w->ndim, w->shape, p->from[i].data);
        if (add) {
            sum = bind_new(b, "sum", w->name, WEFT_F32, w->ndim, w->shape, place);
            put_at(b, weft_add(b->graph, sum, from), place);
        } else if (p->from[i].dtype == WEFT_F32) {
            put_at(b, weft_scale(b->graph, from, 1), place);
        } else {
            put_at(b, weft_cast(b->graph, from, WEFT_F32), place);
        }
    }
}

/* All of a level as one row of numbers. */
static weft_tensor *bind_level(builder *b, const char *kind, int level) {
    const int64_t shape[] = {b->p->bytes / (int64_t)sizeof(float)};
    return bind_new(b, kind, "all", WEFT_F32, 1, shape, b->p->levels[level]);
}

static void build_merge(builder *b, int level) {
    weft_tensor *sum = bind_level(b, "sum", level - 1), *from = bind_level(b, "from", level);
    put_at(b, weft_add(b->graph, sum, from), b->p->levels[level - 1]);
}

static void build_mean(builder *b) {
    weft_tensor *sum = bind_level(b, "sum", 0);
    put_at(b, weft_scale(b->graph, sum, 1.0 / (double)b->p->count), b->p->levels[0]);
}

typedef enum { TAKE_SET, TAKE_ADD, MERGE, MEAN } addition_kind;

static weft_status make_addition(const weft_gradient_places *p, addition_kind kind, int level,
                                 addition *out) {
    builder b = {.p = p};
    WEFT_TRY(weft_graph_create(&out->graph));
    b.graph = out->graph;
    b.bindings = calloc((size_t)p->n * 3 + 4, sizeof *b.bindings);
    if (!b.bindings) return weft_fail(WEFT_ENOMEM, "gradients: no memory");
    if (kind == MERGE)
        build_merge(&b, level);
    else if (kind == MEAN)
        build_mean(&b);
    else
        build_take(&b, level, kind == TAKE_ADD);
    weft_status status = weft_graph_status(out->graph);
    weft_exec_options options = {.bindings = b.bindings};
    if (status == WEFT_OK)
        status = weft_exec_create(out->graph, p->backend, p->pool, &options, &out->exec);
    free(b.bindings);
    return status;
}

static weft_status make_additions(weft_gradient_graphs *g, const weft_gradient_places *p) {
    for (int level = 0; level < g->depth; level++) {
        WEFT_TRY(make_addition(p, TAKE_SET, level, &g->take[0][level]));
        WEFT_TRY(make_addition(p, TAKE_ADD, level, &g->take[1][level]));
        if (level > 0) WEFT_TRY(make_addition(p, MERGE, level, &g->merge[level]));
    }
    return make_addition(p, MEAN, 0, &g->mean);
}

weft_status weft_gradient_graphs_create(const weft_gradient_places *places,
                                        weft_gradient_graphs **out) {
    size_t depth = (size_t)places->depth;
    weft_gradient_graphs *g = calloc(1, sizeof *g);
    *out = g;
    if (!g) return weft_fail(WEFT_ENOMEM, "gradients: no memory");
    g->depth = places->depth;
    g->take[0] = calloc(depth, sizeof *g->take[0]);
    g->take[1] = calloc(depth, sizeof *g->take[1]);
    g->merge = calloc(depth, sizeof *g->merge);
    if (!g->take[0] || !g->take[1] || !g->merge)
        return weft_fail(WEFT_ENOMEM, "gradients: no memory");
    return make_additions(g, places);
}

static void destroy_additions(addition *list, int n) {
    for (int i = 0; list && i < n; i++) {
        weft_exec_destroy(list[i].exec);
        if (list[i].graph) weft_graph_destroy(list[i].graph);
    }
}

void weft_gradient_graphs_destroy(weft_gradient_graphs *g) {
    if (!g) return;
    destroy_additions(g->take[0], g->depth);
    destroy_additions(g->take[1], g->depth);
    destroy_additions(g->merge, g->depth);
    destroy_additions(&g->mean, 1);
    free(g->take[0]);
    free(g->take[1]);
    free(g->merge);
    free(g);
}

weft_status weft_gradient_graphs_take(weft_gradient_graphs *g, int level, bool add) {
    return weft_exec_run(g->take[add][level].exec, NULL);
}

weft_status weft_gradient_graphs_merge(weft_gradient_graphs *g, int level) {
    return weft_exec_run(g->merge[level].exec, NULL);
}

weft_status weft_gradient_graphs_mean(weft_gradient_graphs *g) {
    return weft_exec_run(g->mean.exec, NULL);
}
