/* Weights for generation. A parameter is converted where every node that reads it is a product with
 * it on the right: to bf16 as it lies, to i8 where its rows are the results' (ops/linear.h), else to
 * bf16. Tables (embeddings), gains and biases stay as they are. Folded matrices (fold.h) are made on the
 * host, in double. */
#include "generate/decoder.h"

#include "ops/gated.h"
#include "ops/list.h"

typedef struct {
    char name[112];
    weft_dtype dtype;
    void *data;
    int64_t bytes;
    bool owned, table; /* table: a run reads some rows of it */
} generation_weight;

struct weft_generation_weights {
    const weft_backend *backend;
    generation_weight *list;
    int64_t count;
};

void weft_generation_set_dtype(weft_config *c, const weft_backend *backend) {
    bool narrow = c->weight_dtype == WEFT_WEIGHT_AUTO || c->weight_dtype == WEFT_WEIGHT_BF16;
    if (backend->remote && c->dtype == WEFT_CONFIG_F32 && c->cache_dtype == WEFT_CACHE_BF16 &&
        narrow)
        c->dtype = WEFT_CONFIG_BF16;
}

void weft_generation_weights_destroy(weft_generation_weights *w) {
    if (!w) return;
    for (int64_t i = 0; i < w->count; i++)
        if (w->list[i].owned) w->backend->release(w->list[i].data, w->list[i].bytes);
    WEFT_FREE(w->list, w);
}

static generation_weight *find_weight(const weft_generation_weights *w, const char *name) {
    for (int64_t i = 0; i < w->count; i++)
        if (strcmp(w->list[i].name, name) == 0) return w->list + i;
    return NULL;
}

static generation_weight *new_weight(weft_generation_weights *w, const weft_tensor *t) {
    generation_weight *new = w->list + w->count++;
    snprintf(new->name, sizeof new->name, "%s", t->name);
    return new;
}

void *weft_generation_weights_at(const weft_generation_weights *w, const char *name) {
    const generation_weight *found = name ? find_weight(w, name) : NULL;
    return found ? found->data : NULL;
}

int64_t weft_generation_weights_bytes(const weft_generation_weights *w) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < w->count; i++)
        if (!w->list[i].table) bytes += w->list[i].bytes;
    return bytes;
}

void weft_generation_weights_apply(const weft_generation_weights *w, weft_graph *g) {
    for (int64_t i = 0; i < weft_graph_tensor_count(g); i++) {
        weft_tensor *t = weft_graph_tensor_at(g, i);
        if (t->role == WEFT_ROLE_TEMP || t->role == WEFT_ROLE_STATE || t->view_of) continue;
        const generation_weight *found = find_weight(w, t->name);
        if (found) t->dtype = found->dtype;
    }
}

/* How the nodes of a graph read a tensor. */
typedef struct {
    bool product; /* on the right of a product */
    bool by_rows; /* only as [N, K] of y = x wᵀ */
    bool other;   /* otherwise, or under another shape */
    bool table;   /* by an embedding */
} reading;

static reading find_readers(const weft_graph *g, const weft_tensor *t) {
    reading r = {.by_rows = true};
    for (int64_t i = 0; i < weft_graph_tensor_count(g); i++)
        r.other |= weft_graph_tensor_at(g, i)->view_of == t;
    for (int64_t i = 0; i < weft_graph_node_count(g); i++) {
        const weft_node *n = weft_graph_node(g, i);
        bool matmul = n->op->id == WEFT_OP_matmul;
        for (int k = 0; k < n->n_in; k++) {
            if (n->in[k] != t) continue;
            r.table |= n->op->id == WEFT_OP_embed && k < 3;
            if (n->op->id == WEFT_OP_gated_linear &&
                (k == WEFT_GATED_W_GATE || k == WEFT_GATED_W_UP)) {
                r.product = true;
                continue;
            }
            bool right = matmul && (k == WEFT_MATMUL_B ||
                                    (k > WEFT_MATMUL_INPUTS && (k - WEFT_MATMUL_INPUTS) % 2 == 1));
            r.other |= !right;
            if (!right) continue;
            weft_matmul_pair p =
                weft_matmul_pair_of(n, k == WEFT_MATMUL_B ? 0 : (k - WEFT_MATMUL_INPUTS) / 2 + 1);
            r.product = true;
            r.by_rows &= weft_matmul_is_by_rows(&p.attr, p.a) && p.attr.tb && t->ndim == 2;
        }
    }
    return r;
}

static weft_dtype choose_dtype(const weft_config *c, const weft_tensor *t, reading r) {
    bool narrow = c->weight_dtype == WEFT_WEIGHT_BF16 || c->weight_dtype == WEFT_WEIGHT_INT8;
    if (!narrow || t->dtype != WEFT_F32 || r.other || !r.product) return t->dtype;
    return c->weight_dtype == WEFT_WEIGHT_INT8 && r.by_rows ? WEFT_I8 : WEFT_BF16;
}

static void quantise(const float *from, int64_t rows, int64_t columns, void *to) {
    int64_t ld = weft_matmul_i8_columns(columns);
    int8_t *numbers = to;
    float *scales = (float *)(numbers + rows * ld);
    for (int64_t r = 0; r < rows; r++) {
        const float *row = from + r * columns;
        float most = 0, nothing = 0; /* or NaN, which no comparison finds and no byte holds */
        for (int64_t i = 0; i < columns; i++) {
            most = fabsf(row[i]) > most ? fabsf(row[i]) : most;
            nothing += 0 * row[i];
        }
        scales[r] = most / 127 + nothing;
        float inverse = most > 0 ? 127 / most : 0;
        memset(numbers + r * ld, 0, (size_t)ld);
        for (int64_t i = 0; i < columns; i++)
            numbers[r * ld + i] = (int8_t)lrintf(row[i] * inverse);
    }
}

/* Keeps host values of a tensor as `dtype`. */
static weft_status keep_values(weft_generation_weights *w, generation_weight *to,
                               const weft_tensor *t, const void *values, weft_dtype dtype) {
    int64_t count = weft_tensor_count(t), columns = weft_tensor_width(t);
    int64_t rows = weft_tensor_rows(t);
    to->dtype = dtype;
    to->bytes = dtype == WEFT_I8 ? rows * (weft_matmul_i8_columns(columns) + (int64_t)sizeof(float))
                                 : count * (int64_t)weft_dtype_size(dtype);
    to->data = w->backend->alloc(to->bytes);
    to->owned = to->data != NULL;
    WEFT_AUTO_FREE void *host = malloc((size_t)to->bytes);
    if (!to->data || !host)
        return weft_fail(WEFT_ENOMEM, "generate: no memory for '%s' in %s", t->name,
                         weft_dtype_name(dtype));
    if (dtype == WEFT_I8)
        quantise(values, rows, columns, host);
    else if (dtype == WEFT_BF16 && t->dtype == WEFT_F32)
        for (int64_t i = 0; i < count; i++)
            ((uint16_t *)host)[i] = weft_float_to_bf16(((const float *)values)[i]);
    else
        memcpy(host, values, (size_t)to->bytes);
    return w->backend->upload(to->data, host, to->bytes);
}

/* Where the numbers of matrices that are made come from. */
typedef struct {
    const weft_model *model;
    const weft_backend *backend;
    weft_pool *pool;
    const weft_cached_graph *graph;
    const weft_fold *folds;
    int64_t n_folds;
} sources;

/* The values of a matrix that is formed once, on the host. */
static weft_status form_derived(const sources *s, const weft_derived *d, void *out) {
    static const char *const as[WEFT_DERIVED_OF] = {"first", "second", "third", "fourth"};
    const weft_weight *of[WEFT_DERIVED_OF];
    weft_tensor *in[WEFT_DERIVED_OF], *y = NULL;
    for (int i = 0; i < d->n_of; i++)
        if (!(of[i] = weft_model_find(s->model, d->of[i])))
            return WEFT_BAD_INPUT("generate: no weight '%s'", d->of[i]);
    WEFT_TRY(weft_mirror_use(s->model->mirror, NULL));
    if (d->n_of == 1) {
        memcpy(out, of[0]->data, (size_t)weft_tensor_bytes(d->tensor));
        return WEFT_OK;
    }
    WEFT_AUTO(weft_graph_destroy_at) weft_graph *g = NULL;
    WEFT_AUTO(weft_exec_destroy_at) weft_exec *x = NULL;
    WEFT_TRY(weft_graph_create(&g));
    for (int i = 0; i < d->n_of; i++) {
        in[i] =
            weft_graph_tensor(g, WEFT_ROLE_INPUT, as[i], of[i]->dtype, of[i]->ndim, of[i]->shape);
        y = i ? weft_matmul(g, y, in[i], false, false) : in[i];
    }
    if (y) weft_keep(y);
    WEFT_TRY(weft_graph_status(g));
    WEFT_TRY(weft_exec_create(g, s->backend, s->pool, NULL, &x));
    for (int i = 0; i < d->n_of; i++)
        WEFT_TRY(weft_exec_write(x, in[i], of[i]->data));
    WEFT_TRY(weft_exec_run(x, &(weft_run){0}));
    WEFT_TRY(weft_exec_read(x, y, out));
    weft_weight made = {
        .dtype = d->tensor->dtype, .count = weft_tensor_count(d->tensor), .data = out};
    weft_weight_scale(&made, d->factor);
    return WEFT_OK;
}

static weft_status make_parameter(weft_generation_weights *w, const weft_model *m,
                                  const weft_graph *g, const weft_tensor *t) {
    const weft_weight *weight = weft_model_find(m, t->name);
    if (!weight || weight->dtype != t->dtype || weight->count != weft_tensor_count(t))
        return weft_fail(WEFT_EBUG, "generate: the graph's parameter '%s' is not the model's",
                         t->name);
    generation_weight *to = new_weight(w, t);
    reading r = find_readers(g, t);
    weft_dtype dtype = choose_dtype(&m->config, t, r);
    to->table = (r.table || !r.other) && !r.product;
    if (dtype != t->dtype) {
        WEFT_TRY(weft_mirror_use(m->mirror, NULL));
        return keep_values(w, to, t, weight->data, dtype);
    }
    to->dtype = dtype;
    to->bytes = weight->bytes;
    to->data = weft_mirror_at(m->mirror, w->backend, weight->data);
    return WEFT_OK;
}

/* A matrix [rows, columns] with a norm's gain and offset. */
typedef struct {
    int64_t columns;
    float *values, *gain, *offset, *bias; /* values are replaced; offset and bias may be NULL */
    float *sums, *out_bias;
} folded_matrix;

WEFT_TASK(fold_row) {
    const folded_matrix *f = context;
    float *row = f->values + task * f->columns;
    double sum = 0, bias = f->bias ? (double)f->bias[task] : 0;
    for (int64_t i = 0; i < f->columns; i++) {
        if (f->offset) bias += (double)row[i] * (double)f->offset[i];
        row[i] = weft_bf16_to_float(weft_float_to_bf16(row[i] * f->gain[i]));
        sum += (double)row[i];
    }
    f->sums[task] = (float)sum;
    f->out_bias[task] = (float)bias;
}

/* A matrix and maps of heads as one, [rows, columns]: see weft_fold. */
typedef struct {
    const weft_fold *fold;
    const float *from, *map;
    float *out;
    int64_t groups, k, n; /* of the map */
} joined_matrix;

static float map_at(const joined_matrix *j, int64_t g, int64_t k, int64_t n) {
    return j->map[j->fold->tb ? (g * j->n + n) * j->k + k : (g * j->k + k) * j->n + n];
}

WEFT_TASK(join_row) {
    const joined_matrix *j = context;
    int64_t columns = j->fold->matrix->shape[1], width = j->fold->from->shape[1];
    float *row = j->out + task * columns;
    memset(row, 0, (size_t)columns * sizeof *row);
    if (j->fold->before) {
        for (int64_t g = 0; g < j->groups; g++)
            for (int64_t k = 0; k < j->k; k++)
                for (int64_t n = 0; n < j->n; n++)
                    row[g * j->k + k] += j->from[task * width + g * j->n + n] * map_at(j, g, k, n);
        return;
    }
    int64_t g = task / j->n;
    for (int64_t k = 0; k < j->k; k++) {
        float factor = map_at(j, g, k, task % j->n);
        const float *from = j->from + (g * j->k + k) * width;
        for (int64_t i = 0; i < columns; i++)
            row[i] += factor * from[i];
    }
}

/* The values of a parameter or of a matrix that is made; *out NULL where t is. */
static weft_status read_floats(const sources *s, const weft_tensor *t, float **out) {
    if (!t) return WEFT_OK;
    int64_t count = weft_tensor_count(t);
    WEFT_ROOM_AT(*out, count, "generate: no memory for '%s'", t->name);
    for (int64_t n = 0; n < s->n_folds; n++) {
        const weft_fold *f = s->folds + n;
        if (f->matrix != t) continue;
        WEFT_AUTO_FREE float *from = NULL, *map = NULL;
        WEFT_TRY(read_floats(s, f->from, &from));
        WEFT_TRY(read_floats(s, f->map, &map));
        int64_t rows = f->from->shape[0], columns = f->from->shape[1];
        for (int64_t i = 0; !map && i < rows * columns; i++)
            (*out)[i % columns * rows + i / columns] = from[i];
        if (!map) return WEFT_OK;
        const int64_t *shape = f->map->shape;
        joined_matrix j = {
            f, from, map, *out, shape[0], shape[f->tb ? 2 : 1], shape[f->tb ? 1 : 2]};
        weft_pool_run(s->pool, t->shape[0], join_row, &j);
        return WEFT_OK;
    }
    for (int64_t i = 0; i < s->graph->n_derived; i++) {
        if (s->graph->derived[i].tensor != t) continue;
        WEFT_ROOM(unsigned char, values, weft_tensor_bytes(t), "generate: no memory for '%s'",
                  t->name);
        WEFT_TRY(form_derived(s, s->graph->derived + i, values));
        weft_weight_floats(&(weft_weight){.dtype = t->dtype, .count = count, .data = values}, *out);
        return WEFT_OK;
    }
    WEFT_TRY(weft_mirror_use(s->model->mirror, NULL));
    const weft_weight *weight = weft_model_find(s->model, t->name);
    if (!weight || weight->count != count)
        return weft_fail(WEFT_EBUG, "generate: no weight '%s'", t->name);
    weft_weight_floats(weight, *out);
    return WEFT_OK;
}

/* Keeps floats as what a tensor of the graph is. */
static weft_status keep_floats(weft_generation_weights *w, const weft_tensor *t, float *values) {
    if (!t || find_weight(w, t->name)) return WEFT_OK;
    generation_weight *to = new_weight(w, t);
    weft_tensor wide = *t;
    wide.dtype = WEFT_F32;
    return keep_values(w, to, &wide, values, t->dtype);
}

static weft_status make_folded(weft_generation_weights *w, const sources *s,
                               const weft_fold *fold) {
    int64_t rows = fold->matrix->shape[0];
    WEFT_AUTO_FREE float *values = NULL, *gain = NULL, *offset = NULL, *bias = NULL;
    WEFT_ROOM(float, made, 2 * rows, "generate: no memory for '%s'", fold->matrix->name);
    if (!fold->gain) {
        WEFT_TRY(read_floats(s, fold->matrix, &values));
        return keep_floats(w, fold->matrix, values);
    }
    WEFT_TRY(read_floats(s, fold->from, &values));
    WEFT_TRY(read_floats(s, fold->gain, &gain));
    WEFT_TRY(read_floats(s, fold->offset, &offset));
    WEFT_TRY(read_floats(s, fold->was_bias, &bias));
    folded_matrix f = {fold->matrix->shape[1], values, gain, offset, bias, made, made + rows};
    weft_pool_run(s->pool, rows, fold_row, &f);
    WEFT_TRY(keep_floats(w, fold->matrix, values));
    WEFT_TRY(keep_floats(w, fold->sums, f.sums));
    return keep_floats(w, fold->bias, f.out_bias);
}

weft_status weft_generation_weights_make(const weft_model *m, const weft_backend *backend,
                                         weft_pool *pool, const weft_cached_graph *graph,
                                         const weft_fold *folds, int64_t n_folds,
                                         weft_generation_weights **out) {
    *out = NULL;
    const weft_graph *g = graph->model.graph;
    const sources s = {m, backend, pool, graph, folds, n_folds};
    int64_t tensors = weft_graph_tensor_count(g);
    WEFT_NEW(weft_generation_weights, w, weft_generation_weights_destroy, "generate: no memory");
    w->backend = backend;
    WEFT_ROOM_AT(w->list, tensors + 1, "generate: no memory");
    WEFT_TRY(weft_mirror_place(m->mirror, backend));
    for (int64_t i = 0; i < tensors; i++) {
        const weft_tensor *t = weft_graph_tensor_at(g, i);
        if (t->role == WEFT_ROLE_PARAM && !t->view_of) WEFT_TRY(make_parameter(w, m, g, t));
    }
    for (int64_t i = 0; i < graph->n_derived; i++) {
        const weft_tensor *t = graph->derived[i].tensor;
        if (t->role == WEFT_ROLE_TEMP) continue;
        WEFT_ROOM(unsigned char, values, weft_tensor_bytes(t), "generate: no memory for '%s'",
                  t->name);
        WEFT_TRY(form_derived(&s, graph->derived + i, values));
        weft_dtype dtype = choose_dtype(&m->config, t, find_readers(g, t));
        WEFT_TRY(keep_values(w, new_weight(w, t), t, values, dtype));
    }
    for (int64_t i = 0; i < n_folds; i++)
        if (find_readers(g, folds[i].matrix).product) WEFT_TRY(make_folded(w, &s, folds + i));
    return weft_hand(&w, out);
}
