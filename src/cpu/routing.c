/* Routing on the CPU: the k largest weights of each row, and the sums with all weights or those
 * above a threshold.
 *
 * A task is 64 rows of a sequence (64 columns in the gradient). Top-k looks at one tile of R at a
 * time and keeps each row's list, sorted, in the output itself. The sums keep the rows' weights as
 * one strip [keys, 64] a thread: O(T) memory, and a row's mean square and kept sum are known before
 * the product with h, so that R is made once. */
#include "cpu/routing_tile.h"

typedef struct {
    attention_problem p;
    const weft_route_attr *attr;
    bool keys;              /* on the lanes */
    int64_t tiles;          /* of a sequence */
    int64_t scratch, strip; /* reals a thread, rounded up to a cache line: of a route_side or a
                               product, and of the weights */
} routing;

static int64_t aligned_reals(int64_t n) {
    return real_bytes(n) / (int64_t)sizeof(real);
}

/* The product needs its scratch when the scores no longer need theirs. */
static routing measure_routing(const weft_node *n, bool keys, int64_t strip) {
    const weft_route_attr *attr = ATTR(n, weft_route_attr);
    const weft_attention_attr *a = &attr->score;
    return (routing){
        .attr = attr,
        .keys = keys,
        .tiles = ceil_div(keys ? a->keys : a->queries, ROUTE_LANES),
        .scratch = aligned_reals(max_i64(route_scratch(a, keys), ROUTE_PRODUCT_SCRATCH)),
        .strip = aligned_reals(strip),
    };
}

/* The kernel that does name##_task for each tile of one side, with so many reals of weights a thread. */
#define ROUTING(name, keys, reals)                                                                 \
    static int64_t name##_workspace(const weft_node *n, int threads) {                             \
        routing c = measure_routing(n, keys, reals);                                               \
        return threads * real_bytes(c.strip + c.scratch);                                          \
    }                                                                                              \
    DEFINE_KERNEL(name, .workspace = name##_workspace) {                                           \
        routing c = measure_routing(n, keys, reals);                                               \
        c.p = make_problem(x, n, n->in);                                                           \
        return run_tasks(x, c.p.a->batch * c.tiles, name##_task, &c);                              \
    }

/* The weights' memory of a thread; its scratch follows. */
static real *thread_strip(const routing *c, int thread) {
    return (real *)weft_workspace(c->p.x, c->p.node) + thread * (c->strip + c->scratch);
}

/* The fixed side of a task. Later rows see more keys, so they are done first, lest one thread be
 * left with the largest task at the end; with keys on the lanes it is the other way round. */
static route_side make_side(const routing *c, int64_t task, int thread) {
    const weft_attention_attr *a = c->p.a;
    int64_t tile = task / a->batch;
    if (!c->keys) tile = c->tiles - 1 - tile;
    int64_t first = tile * ROUTE_LANES;
    route_side r = {
        .p = &c->p,
        .lse = weft_data(c->p.x, c->p.node->in[WEFT_ROUTE_LSE]),
        .use_max = c->attr->use_max,
        .keys = c->keys,
        .batch = task % a->batch,
        .first = first,
        .count = min_i64(ROUTE_LANES, (c->keys ? a->keys : a->queries) - first),
        .scratch = thread_strip(c, thread) + c->strip,
    };
    route_fix(&r);
    return r;
}

/* Where a task's first row stands among the keys. */
static int64_t first_position(const route_side *r) {
    return route_start(r->p) + r->first;
}

/* How many keys the task's last row sees. */
static int64_t visible_keys(const route_side *r) {
    return min_i64(first_position(r) + r->count, r->p->a->keys);
}

/* route_topk */

/* Whether any lane of a comparison's result is set. */
static inline bool any_lane(vint mask) {
    uint64_t half[VBYTES / sizeof(uint64_t)], any = 0;
    memcpy(half, &mask, sizeof half);
    for (size_t i = 0; i < sizeof half / sizeof half[0]; i++)
        any |= half[i];
    return any != 0;
}

/* The lists of a task's rows. least[lane] is the smallest weight of a full list and −1 before. */
typedef struct {
    int64_t k, rows;
    real *weight;   /* [rows, k] */
    int32_t *index; /* [rows, k] */
    real least[ROUTE_LANES];
} row_lists;

static void offer_key(row_lists *lists, const real *weights, int32_t key) {
    for (int64_t lane = 0; lane < lists->rows; lane += VLEN) {
        if (!any_lane(vload(weights + lane) > vload(lists->least + lane))) continue;
        for (int64_t i = lane; i < min_i64(lane + VLEN, lists->rows); i++) {
            if (!(weights[i] > lists->least[i])) continue;
            real *weight = lists->weight + i * lists->k;
            int32_t *index = lists->index + i * lists->k;
            int64_t p = lists->k - 1; /* after equal ones, since keys come in ascending order */
            for (; p > 0 && weight[p - 1] < weights[i]; p--) {
                weight[p] = weight[p - 1];
                index[p] = index[p - 1];
            }
            weight[p] = weights[i];
            index[p] = key;
            lists->least[i] = weight[lists->k - 1];
        }
    }
}

/* Places that no key took get weight 0; the others are divided by their sum where asked. */
static void finish_list(real *weight, const int32_t *index, int64_t k, bool normalize) {
    real sum = 0;
    for (int64_t i = 0; i < k; i++) {
        if (index[i] < 0) weight[i] = 0;
        sum += weight[i];
    }
    if (!normalize || !(sum > 0)) return;
    for (int64_t i = 0; i < k; i++)
        weight[i] /= sum;
}

WEFT_TASK(route_topk_task) {
    const routing *c = context;
    const weft_node *n = c->p.node;
    route_side r = make_side(c, task, thread);
    real *tile = thread_strip(c, thread);
    int64_t row = r.batch * c->p.a->queries + r.first, k = c->attr->k;
    row_lists lists = {
        .k = k,
        .rows = r.count,
        .index = (int32_t *)weft_data(c->p.x, n->out[0]) + row * k,
        .weight = (real *)weft_data(c->p.x, n->out[1]) + row * k,
    };
    for (int64_t i = 0; i < lists.rows * k; i++) {
        lists.weight[i] = -1;
        lists.index[i] = -1;
    }
    for (int64_t i = 0; i < ROUTE_LANES; i++)
        lists.least[i] = i < lists.rows ? (real)-1 : (real)INFINITY;
    int64_t position = first_position(&r), keys = visible_keys(&r);
    int64_t first = first_key_of(&c->p, r.batch, r.first) / ROUTE_STEPS * ROUTE_STEPS;
    for (; first < keys; first += ROUTE_STEPS) {
        int64_t steps = min_i64(ROUTE_STEPS, keys - first);
        route_tile(&r, first, steps, tile);
        for (int64_t s = 0; s < steps; s++) {
            real *weights = tile + s * ROUTE_LANES;
            for (int64_t lane = 0; lane < first + s - position; lane++)
                weights[lane] = -1;
            int64_t hides = queries_before(&c->p, r.batch, first + s + 1) - r.first;
            for (int64_t lane = max_i64(0, hides); lane < r.count; lane++)
                weights[lane] = -1;
            offer_key(&lists, weights, (int32_t)(first + s));
        }
    }
    for (int64_t i = 0; i < r.count; i++)
        finish_list(lists.weight + i * k, lists.index + i * k, k, c->attr->normalize);
}

ROUTING(route_topk, false, ROUTE_TILE)

/* route_dense */

/* sum[lane] += Σ_s w² or w of one tile. Tiles add up apart from one another, so that the error
 * does not grow with the number of keys. */
static void add_tile_sums(const real *tile, int64_t steps, bool squares, real *sum) {
    for (int64_t lane = 0; lane < ROUTE_LANES; lane += VLEN) {
        vreal part = vset(0);
        for (int64_t s = 0; s < steps; s++) {
            vreal w = vload(tile + s * ROUTE_LANES + lane);
            part += squares ? w * w : w;
        }
        vstore(sum + lane, vload(sum + lane) + part);
    }
}

/* Weights below their lane's floor become 0. */
static void drop_small(real *tile, int64_t steps, const real *floor) {
    for (int64_t s = 0; s < steps; s++)
        for (int64_t lane = 0; lane < ROUTE_LANES; lane += VLEN) {
            real *at = tile + s * ROUTE_LANES + lane;
            vreal w = vload(at);
            vstore(at, vselect(w >= vload(floor + lane), w, vset(0)));
        }
}

/* The rows' floors, from all their weights; 0 where all are kept. */
static void set_floors(const route_side *r, const weft_route_attr *a, const real *strip,
                       int64_t keys, real *floor) {
    memset(floor, 0, ROUTE_LANES * sizeof(real));
    if (a->mode != WEFT_ROUTE_RMS) return;
    for (int64_t first = 0; first < keys; first += ROUTE_STEPS)
        add_tile_sums(strip + first * ROUTE_LANES, min_i64(ROUTE_STEPS, keys - first), true, floor);
    for (int64_t i = 0; i < r->count; i++) {
        real seen = (real)(min_i64(first_position(r) + i + 1, r->p->a->keys) -
                           first_key_of(r->p, r->batch, r->first + i));
        floor[i] = (real)a->threshold * (real)sqrt((double)(floor[i] / seen));
    }
}

WEFT_TASK(route_dense_task) {
    const routing *c = context;
    const weft_exec *x = c->p.x;
    const weft_node *n = c->p.node;
    const weft_route_attr *a = c->attr;
    route_side r = make_side(c, task, thread);
    real *strip = thread_strip(c, thread);
    real floor[ROUTE_LANES], factor[ROUTE_LANES] = {0};
    int64_t keys = visible_keys(&r);
    for (int64_t s = 0; s < keys; s += ROUTE_STEPS)
        route_tile(&r, s, min_i64(ROUTE_STEPS, keys - s), strip + s * ROUTE_LANES);
    set_floors(&r, a, strip, keys, floor);
    for (int64_t s = 0; s < keys; s += ROUTE_STEPS) {
        real *tile = strip + s * ROUTE_LANES;
        int64_t steps = min_i64(ROUTE_STEPS, keys - s);
        if (a->mode == WEFT_ROUTE_RMS) drop_small(tile, steps, floor);
        if (a->normalize) add_tile_sums(tile, steps, false, factor);
    }
    int64_t row = r.batch * a->score.queries + r.first;
    for (int64_t i = 0; i < r.count; i++) {
        factor[i] = a->normalize && factor[i] > 0 ? 1 / factor[i] : 1;
        ((real *)weft_data(x, n->out[1]))[row + i] = floor[i];
        ((real *)weft_data(x, n->out[2]))[row + i] = factor[i];
    }
    route_product(&c->p, strip, keys, r.count, n->in[WEFT_ROUTE_H],
                  r.batch * a->score.keys * a->width, factor, n->out[0], row * a->width, a->width,
                  r.scratch);
}

static int64_t strip_reals(const weft_node *n) {
    return ceil_div(ATTR(n, weft_route_attr)->score.keys, ROUTE_STEPS) * ROUTE_TILE;
}

ROUTING(route_dense, false, strip_reals(n))

/* route_dense_back: dh_j = Σ_t w_tj dc_t, keys on the lanes. Where causal, rows before the first key
 * of the task do not see any of its keys. */

WEFT_TASK(route_dense_back_task) {
    const routing *c = context;
    const weft_exec *x = c->p.x;
    const weft_node *n = c->p.node;
    const weft_route_attr *a = c->attr;
    route_side r = make_side(c, task, thread);
    real *strip = thread_strip(c, thread);
    int64_t sequence = r.batch * a->score.queries, from = a->score.causal ? r.first : 0;
    int64_t rows = a->score.queries - from;
    const real *floor = (const real *)weft_data(x, n->in[WEFT_ROUTE_FLOOR]) + sequence;
    const real *factor = (const real *)weft_data(x, n->in[WEFT_ROUTE_FACTOR]) + sequence;
    for (int64_t s = 0; s < rows; s += ROUTE_STEPS) {
        int64_t steps = min_i64(ROUTE_STEPS, rows - s), t = from + s;
        route_tile(&r, t, steps, strip + s * ROUTE_LANES);
        for (int64_t i = 0; i < steps; i++)
            for (int64_t lane = 0; lane < ROUTE_LANES; lane += VLEN) {
                real *at = strip + (s + i) * ROUTE_LANES + lane;
                vreal w = vload(at);
                vstore(at, vselect(w >= vset(floor[t + i]), w * factor[t + i], vset(0)));
            }
    }
    route_product(&c->p, strip, rows, r.count, n->in[WEFT_ROUTE_H], (sequence + from) * a->width,
                  NULL, n->out[0], (r.batch * a->score.keys + r.first) * a->width, a->width,
                  r.scratch);
}

ROUTING(route_dense_back, true, strip_reals(n))
