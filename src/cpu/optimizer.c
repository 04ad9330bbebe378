/* The optimizer's step on the CPU.
 *
 * A list of tensors is cut into chunks of a fixed length, numbered through from the first tensor to
 * the last; a task is a chunk. Partial sums are kept by chunk and added up in the order of the
 * chunks. The update walks a chunk tile by tile, so that what spike clipping looks at first is
 * still in the cache when the moments are updated, and streams each array through once.
 *
 * The squares of a norm are summed in double in lanes that are the same for every instruction set:
 * the square of a float is exact there, so the norm of f32 gradients is the same on all machines. */
#define ADAM_REAL real
#include "cpu/vec.h"
#include "ops/adam_policy.h"

enum { TILE = 1024, CHUNK = WEFT_NORM_CHUNK, SUM_LANES = 16 };
_Static_assert(CHUNK % TILE == 0, "a chunk is whole tiles");

/* Where the tensors' chunks are: those of tensor i have the numbers first[i] .. first[i+1] − 1. */
typedef struct {
    weft_exec *x;
    const weft_node *n;
    int tensors;
    int64_t *first;   /* [tensors + 1] */
    void *result;     /* [chunks]: what a chunk has found, 8 bytes each */
    weft_task each;   /* what is done with a chunk, */
    int64_t together; /* and how many of them a task takes */
} chunk_list;

/* Tensor i of a list is the node's input start + i · stride. */
static int64_t count_chunks(const weft_node *n, int start, int stride, int64_t *first) {
    int64_t chunks = 0;
    for (int i = start; i < n->n_in; i += stride) {
        if (first) *first++ = chunks;
        chunks += ceil_div(weft_tensor_count(n->in[i]), CHUNK);
    }
    if (first) *first = chunks;
    return chunks;
}

static int64_t list_workspace(const weft_node *n, int start, int stride) {
    int64_t tensors = ceil_div(n->n_in - start, stride);
    return (tensors + 1 + count_chunks(n, start, stride, NULL)) * 8;
}

WEFT_TASK(run_some, chunk_list *list) {
    int64_t chunks = list->first[list->tensors], end = (task + 1) * list->together;
    for (int64_t i = task * list->together; i < min_i64(end, chunks); i++)
        list->each(list, i, thread);
}

/* Each chunk of a list by all threads; returns how many there are. What they find is at `result`, or behind the
 * list in the node's workspace. */
static int64_t run_chunks(chunk_list *list, weft_exec *x, const weft_node *n, int start, int stride,
                          weft_task each, void *result) {
    weft_pool *pool = weft_exec_pool(x);
    *list = (chunk_list){.x = x, .n = n, .tensors = (int)ceil_div(n->n_in - start, stride)};
    list->first = weft_workspace(x, n);
    list->result = result ? result : list->first + list->tensors + 1;
    list->each = each;
    int64_t chunks = count_chunks(n, start, stride, list->first);
    list->together = tasks_together(chunks, weft_pool_size(pool));
    weft_pool_run(pool, ceil_div(chunks, list->together), run_some, list);
    return chunks;
}

static void add_squares(double *restrict sum, const real *restrict a, int64_t n) {
    int64_t i = 0;
    for (; i + SUM_LANES <= n; i += SUM_LANES)
        for (int lane = 0; lane < SUM_LANES; lane++)
            sum[lane] += (double)a[i + lane] * (double)a[i + lane];
    for (int lane = 0; i + lane < n; lane++)
        sum[lane] += (double)a[i + lane] * (double)a[i + lane];
}

WEFT_TASK(norm_chunk, const chunk_list *list) {
    int64_t index = find_last(list->first, list->tensors, task);
    const weft_tensor *t = list->n->in[index];
    int64_t at = (task - list->first[index]) * CHUNK;
    int64_t end = min_i64(at + CHUNK, weft_tensor_count(t));
    real scratch[TILE];
    double sum[SUM_LANES] = {0};
    for (; at < end; at += TILE) {
        int64_t len = min_i64(TILE, end - at);
        add_squares(sum, tile_in(list->x, t, at, len, scratch), len);
    }
    for (int width = SUM_LANES / 2; width > 0; width /= 2)
        for (int lane = 0; lane < width; lane++)
            sum[lane] += sum[lane + width];
    ((double *)list->result)[task] = sum[0];
}

DEFINE_KERNEL_IN(norm_parts, list_workspace(n, 0, 1)) {
    chunk_list list;
    run_chunks(&list, x, n, 0, 1, norm_chunk, weft_data(x, n->out[0]));
    return WEFT_OK;
}

DEFINE_KERNEL(norm_join) {
    const double *parts = weft_data(x, n->in[0]);
    double sum = 0;
    for (int64_t i = 0; i < n->in[0]->shape[0]; i++)
        sum += parts[i];
    *(real *)weft_data(x, n->out[0]) = (real)sqrt(sum);
    return WEFT_OK;
}

DEFINE_KERNEL(adam_control) {
    const real *norm = weft_data(x, n->in[0]), *lr = weft_data(x, n->in[1]);
    adam_control_step(ATTR(n, weft_adam_options), *norm, *lr, weft_data(x, n->in[2]),
                      weft_data(x, n->out[0]));
    return WEFT_OK;
}

/* A tile of one slot and the factors of a step, by value: stores through vectors may alias anything, so what lies
 * in memory would be loaded anew for each. */
typedef struct {
    real *p, *m, *v, *v_max; /* v_max may be NULL */
    const real *g;
    real grad_factor;                    /* 1 where g is clipped already */
    real m_keep, m_rest, v_keep, v_rest; /* of the moments, and of what is added to them */
    real step, root, eps, decay;
} update_data;

static inline bool is_cut(real g, real limit) {
    return limit > 0 && g * g > limit;
}

/* How many elements of a tile spike clipping would cut. */
static int64_t count_cuts(const update_data *u, real limit_factor, int64_t len) {
    int64_t cuts = 0;
    for (int64_t i = 0; i < len; i++)
        cuts += is_cut(u->g[i] * u->grad_factor, u->v[i] * limit_factor);
    return cuts;
}

/* n elements of a vector. */
static ALWAYS_INLINE void update_vector(const update_data u, int64_t i, int64_t n,
                                        const bool with_max) {
    vreal g = vload_n(u.g + i, n) * u.grad_factor;
    vreal v = vfma(vload_n(u.v + i, n), vset(u.v_keep), g * g * u.v_rest);
    vreal m = vfma(vload_n(u.m + i, n), vset(u.m_keep), g * u.m_rest);
    vstore_n(u.v + i, v, n);
    vstore_n(u.m + i, m, n);
    if (with_max) {
        v = vmax(vload_n(u.v_max + i, n), v);
        vstore_n(u.v_max + i, v, n);
    }
    vreal p = vload_n(u.p + i, n), by = m * u.step / (vsqrt(v) * u.root + u.eps);
    vstore_n(u.p + i, p - (p * u.decay + by), n);
}

static ALWAYS_INLINE void update_vectors(const update_data u, int64_t len, const bool with_max) {
    int64_t i = 0;
    for (; i + VLEN <= len; i += VLEN)
        update_vector(u, i, VLEN, with_max);
    if (i < len) update_vector(u, i, len - i, with_max);
}

/* The tile at element `at` of a slot; bf16 gradients are widened into `scratch`. */
static update_data slot_tile(const weft_exec *x, weft_tensor *const *slot, const real *control,
                             real rate, int64_t at, int64_t len, real *scratch) {
    const weft_tensor *param = slot[WEFT_SLOT_PARAM], *grad = slot[WEFT_SLOT_GRAD];
    real *v_max = weft_data(x, slot[WEFT_SLOT_V_MAX]);
    if (!grad) memset(scratch, 0, (size_t)len * sizeof(real));
    return (update_data){
        .p = (real *)weft_data(x, param) + at,
        .m = (real *)weft_data(x, slot[WEFT_SLOT_M]) + at,
        .v = (real *)weft_data(x, slot[WEFT_SLOT_V]) + at,
        .v_max = v_max ? v_max + at : NULL,
        .g = grad ? tile_in(x, grad, at, len, scratch) : scratch,
        .grad_factor = control[WEFT_CONTROL_GRAD],
        .m_keep = control[WEFT_CONTROL_M] * control[WEFT_CONTROL_BETA1],
        .m_rest = control[WEFT_CONTROL_BETA1_REST],
        .v_keep = control[WEFT_CONTROL_V] * control[WEFT_CONTROL_BETA2],
        .v_rest = control[WEFT_CONTROL_BETA2_REST],
        .step = control[WEFT_CONTROL_STEP] * rate,
        .root = control[WEFT_CONTROL_ROOT],
        .eps = control[WEFT_CONTROL_EPS],
        .decay = param->ndim >= 2 ? control[WEFT_CONTROL_DECAY] : 0,
    };
}

/* Takes over what someone else wrote into the parameter's bf16 form. */
static void take_given(real *p, const uint16_t *given, int64_t len) {
    for (int64_t i = 0; i < len; i++) {
        float value = weft_bf16_to_float(given[i]);
        if (weft_bf16_to_float(weft_float_to_bf16((float)p[i])) != value) p[i] = (real)value;
    }
}

WEFT_TASK(adamw_chunk, const chunk_list *list) {
    const real *control = weft_data(list->x, list->n->in[0]);
    int64_t index = find_last(list->first, list->tensors, task);
    weft_tensor *const *slot = list->n->in + 1 + index * WEFT_SLOT_SIZE;
    const double *rates = list->n->attr;
    const uint16_t *given = weft_data(list->x, slot[WEFT_SLOT_GIVEN]);
    real limit_factor = control[WEFT_CONTROL_CUT] * control[WEFT_CONTROL_V];
    real rate = rates ? (real)rates[index] : 1, widened[TILE], clipped[TILE];
    int64_t at = (task - list->first[index]) * CHUNK, cuts = 0;
    int64_t end = min_i64(at + CHUNK, weft_tensor_count(slot[WEFT_SLOT_PARAM]));
    for (; at < end; at += TILE) {
        int64_t len = min_i64(TILE, end - at);
        update_data u = slot_tile(list->x, slot, control, rate, at, len, widened);
        if (given) take_given(u.p, given + at, len);
        int64_t tile_cuts = limit_factor > 0 ? count_cuts(&u, limit_factor, len) : 0;
        /* The gradients of the tile, clipped. */
        if (tile_cuts > 0) {
            for (int64_t i = 0; i < len; i++) {
                real g = u.g[i] * u.grad_factor, limit = u.v[i] * limit_factor;
                real most = (real)sqrt((double)limit);
                clipped[i] = !is_cut(g, limit) ? g : g < 0 ? -most : most;
            }
            u.g = clipped;
            u.grad_factor = 1;
        }
        EITHER(u.v_max, update_vectors, u, len);
        real *moments[] = {u.m, u.v, u.v_max};
        for (int i = 0; control[WEFT_CONTROL_RESET] != 0 && i < 3; i++)
            if (moments[i]) memset(moments[i], 0, (size_t)len * sizeof(real));
        if (slot[WEFT_SLOT_COPY]) tile_done(list->x, slot[WEFT_SLOT_COPY], at, len, u.p);
        cuts += tile_cuts;
    }
    ((int64_t *)list->result)[task] = cuts;
}

DEFINE_KERNEL_IN(adamw, list_workspace(n, 1, WEFT_SLOT_SIZE)) {
    int64_t cuts = 0;
    const real *control = weft_data(x, n->in[0]);
    if (control[WEFT_CONTROL_APPLY] != 0) {
        chunk_list list;
        int64_t chunks = run_chunks(&list, x, n, 1, WEFT_SLOT_SIZE, adamw_chunk, NULL);
        for (int64_t i = 0; i < chunks; i++)
            cuts += ((int64_t *)list.result)[i];
    }
    *(int32_t *)weft_data(x, n->out[0]) = (int32_t)min_i64(cuts, INT32_MAX);
    return WEFT_OK;
}

/* Muon. Matrices are cut into chunks that no two of them share, numbered through from the first matrix of X
 * to the last. */
typedef struct {
    weft_exec *x;
    const weft_node *n;
    const weft_muon_attr *attr;
    const real *control;
    double *squares; /* [chunks] of Ĝ */
    bool written;    /* m is; what is left is Ĝ, from it */
} muon_run;

static int64_t chunks_of_matrix(const weft_muon_attr *a) {
    return ceil_div(a->rows * a->columns, CHUNK);
}

static int64_t muon_chunks(const weft_muon_attr *a) {
    const weft_muon_piece *last = &a->piece[a->n - 1];
    return (last->at + last->count) * chunks_of_matrix(a);
}

/* Where a chunk lies: its piece; its first element in that one's tensors, and in X; how many there are;
 * `first` is its matrix's first chunk. */
typedef struct {
    int piece;
    int64_t from, at, count, first, chunks;
} muon_place;

static muon_place muon_place_of(const weft_muon_attr *a, int64_t chunk) {
    muon_place m = {.chunks = chunks_of_matrix(a)};
    int64_t matrix = chunk / m.chunks, size = a->rows * a->columns;
    while (m.piece + 1 < a->n && a->piece[m.piece + 1].at <= matrix)
        m.piece++;
    const weft_muon_piece *p = &a->piece[m.piece];
    m.first = matrix * m.chunks;
    int64_t inside = (chunk - m.first) * CHUNK;
    m.from = p->first + (matrix - p->at) * size + inside;
    m.at = matrix * size + inside;
    m.count = min_i64(CHUNK, size - inside);
    return m;
}

WEFT_TASK(muon_direction_chunk, const muon_run *r) {
    muon_place at = muon_place_of(r->attr, task);
    weft_tensor *const *in = r->n->in + at.piece * WEFT_MUON_DIRECTION_SIZE;
    const weft_tensor *out = r->n->out[0];
    real clip = r->control[WEFT_CONTROL_GRAD], keep = (real)r->attr->momentum;
    double norm = 0; /* of its matrix, from the sums of all of its chunks */
    for (int64_t i = 0; r->written && i < at.chunks; i++)
        norm += r->squares[at.first + i];
    real scale = r->written ? (real)(1 / (sqrt(norm) + 1e-7)) : 1;
    real widened[TILE], made[TILE];
    double sums[SUM_LANES] = {0};
    for (int64_t i = 0; i < at.count; i += TILE) {
        int64_t len = min_i64(TILE, at.count - i);
        const real *g = tile_in(r->x, in[WEFT_MUON_GRAD], at.from + i, len, widened);
        real *m = (real *)weft_data(r->x, in[WEFT_MUON_M]) + at.from + i;
        real *to = r->written ? tile_out(r->x, out, at.at + i, made) : made;
        for (int64_t k = 0; k < len; k++) {
            real clipped = g[k] * clip;
            if (!r->written) m[k] = keep * m[k] + clipped;
            to[k] = (clipped + keep * m[k]) * scale;
        }
        if (r->written)
            tile_done(r->x, out, at.at + i, len, to);
        else
            add_squares(sums, to, len);
    }
    if (r->written) return;
    r->squares[task] = 0;
    for (int lane = 0; lane < SUM_LANES; lane++)
        r->squares[task] += sums[lane];
}

DEFINE_KERNEL_IN(muon_direction, muon_chunks(n->attr) * (int64_t)sizeof(double)) {
    muon_run r = {.x = x, .n = n, .attr = n->attr, .control = weft_data(x, n->in[0])};
    r.squares = weft_workspace(x, n);
    int64_t chunks = muon_chunks(r.attr);
    if (r.control[WEFT_CONTROL_APPLY] == 0) { /* products of zeros, which nobody takes */
        memset(weft_data(x, n->out[0]), 0, (size_t)weft_tensor_bytes(n->out[0]));
        return WEFT_OK;
    }
    run_tasks(x, chunks, muon_direction_chunk, &r);
    r.written = true;
    return run_tasks(x, chunks, muon_direction_chunk, &r);
}

WEFT_TASK(muon_step_chunk, const muon_run *r) {
    muon_place at = muon_place_of(r->attr, task);
    weft_tensor *const *in = r->n->in + at.piece * WEFT_MUON_STEP_SIZE;
    const weft_tensor *copy = in[WEFT_MUON_COPY];
    const uint16_t *given = weft_data(r->x, in[WEFT_MUON_GIVEN]);
    real step = (real)((double)r->control[WEFT_CONTROL_LR] * r->attr->piece[at.piece].factor);
    real decay = r->control[WEFT_CONTROL_DECAY], widened[TILE];
    for (int64_t i = 0; i < at.count; i += TILE) {
        int64_t len = min_i64(TILE, at.count - i);
        const real *by = tile_in(r->x, r->n->in[WEFT_MUON_X], at.at + i, len, widened);
        real *p = (real *)weft_data(r->x, in[WEFT_MUON_PARAM]) + at.from + i;
        if (given) take_given(p, given + at.from + i, len);
        for (int64_t k = 0; k < len; k++)
            p[k] -= p[k] * decay + by[k] * step;
        if (copy) tile_done(r->x, copy, at.from + i, len, p);
    }
}

DEFINE_KERNEL(muon_step) {
    muon_run r = {.x = x, .n = n, .attr = n->attr, .control = weft_data(x, n->in[0])};
    if (r.control[WEFT_CONTROL_APPLY] != 0) run_tasks(x, muon_chunks(r.attr), muon_step_chunk, &r);
    return WEFT_OK;
}

WEFT_TASK(zero_masked_chunk, const chunk_list *list) {
    int64_t index = find_last(list->first, list->tensors, task);
    weft_tensor *const *in = list->n->in + index * WEFT_MASKED_SIZE;
    real *p = weft_data(list->x, in[WEFT_MASKED_PARAM]);
    uint16_t *copy = weft_data(list->x, in[WEFT_MASKED_COPY]);
    const int8_t *mask = weft_data(list->x, in[WEFT_MASKED_MASK]);
    int64_t at = (task - list->first[index]) * CHUNK;
    int64_t end = min_i64(at + CHUNK, weft_tensor_count(in[WEFT_MASKED_PARAM]));
    for (; at < end; at++) {
        p[at] = mask[at] ? p[at] : 0;
        if (copy && !mask[at]) copy[at] = 0;
    }
}

DEFINE_KERNEL_IN(zero_masked, list_workspace(n, 0, WEFT_MASKED_SIZE)) {
    chunk_list list;
    run_chunks(&list, x, n, 0, WEFT_MASKED_SIZE, zero_masked_chunk, NULL);
    return WEFT_OK;
}
