/* Routing on the CPU: the k largest weights of each row, and the sums with all weights or those
 * above a threshold.
 *
 * A task is 64 rows of a sequence (64 columns in the gradient). Top-k looks at one tile of R at a
 * time and keeps each row's list, sorted, in the output itself. The sums keep the rows' weights as
 * one strip [keys, 64] a thread: O(T) memory, and a row's mean square and kept sum are known before
 * the product with h, so that R is made once.
 *
 * R is the attention's weights over all heads. One side of a tile of it is fixed for a task and lies along
 * the vector lanes: queries when a row's weights are wanted, keys when a column's are. Its vectors are
 * transposed once. The other side passes by, a few vectors per step. The dot product of a pair adds up in
 * the same order from either side, and what follows is one compiled function, so the forward and the
 * backward pass find the same weights bit for bit. Tiles, and their product with rows of h, are attention's
 * small product (attention_tile.h): of the fixed side and what passes by, over the depth dqk; and of the
 * weights and a copied block of h, over the passing side. */
#include "ops/routing.h"
#include "cpu/attention_tile.h"

enum {
    ROUTE_LANES = 64, /* of the fixed side in a task, and the row length of tiles */
    ROUTE_STEPS = 64, /* of the passing side in a tile */
    ROUTE_TILE = ROUTE_LANES * ROUTE_STEPS
};

/* The fixed side of a task: `count` queries or keys of sequence `batch` from index `first`; and behind that
 * what is made of it, in its scratch. */
typedef struct {
    const attention_problem *p; /* of the attention whose weights these are */
    const real *lse;            /* [B, H, T] */
    bool use_max;               /* over heads, in place of the mean */
    bool keys; /* the lanes are keys, and queries pass by; else the other way round */
    int64_t batch, first, count;
    real *scratch;

    real *packed;                  /* [heads of the fixed side][panels][dqk][TILE_N] */
    real *packed_other;            /* for the band: the other side's vectors at the same places */
    real *passing, *passing_other; /* [panels][dqk][TILE_M] of ROUTE_STEPS, of a head */
    real *widened;                 /* a panel of rows, for bf16 */
    real *dots, *band_dots;        /* TILE_M steps × ROUTE_LANES */
} route_side;

/* Where the first query stands among the keys. Not causal is as if all queries stood behind
 * the last key: every key is seen (and no term of the score depends on a distance then). */
static int64_t route_start(const attention_problem *p) {
    return p->a->causal ? 0 : p->a->keys;
}

/* Where a side with keys, or queries, on the lanes has what it makes. */
static void lay_out_side(const weft_attention_attr *a, bool keys, real_block *at, route_side *r) {
    int64_t heads = keys ? a->kv_heads : a->heads, others = a->heads + a->kv_heads - heads;
    r->packed = take_reals(at, heads * ROUTE_LANES * a->dqk);
    r->packed_other = take_reals(at, a->band ? others * ROUTE_LANES * a->dqk : 0);
    r->passing = take_reals(at, ROUTE_STEPS * a->dqk);
    r->passing_other = take_reals(at, ROUTE_STEPS * a->dqk);
    r->widened = take_reals(at, max_i64(TILE_M, TILE_N) * a->dqk);
    r->dots = take_reals(at, TILE_M * ROUTE_LANES);
    r->band_dots = take_reals(at, TILE_M * ROUTE_LANES);
}

/* The keys, or queries, of all heads at the fixed places, transposed into panels. */
static void pack_side(const route_side *r, bool keys, real *packed) {
    const head_rows *v = keys ? &r->p->k : &r->p->q;
    for (int64_t head = 0; head < (keys ? r->p->a->kv_heads : r->p->a->heads); head++)
        pack_across(r->p, v, r->batch, head, r->first, r->count, TILE_N, 1,
                    packed + head * ROUTE_LANES * v->width, r->widened);
}

/* Vectors first .. first + steps of a head into panels, unless they are there already: `held` is the
 * head whose they are. */
static void pack_passing(const route_side *r, const head_rows *v, int64_t head, int64_t first,
                         int64_t steps, real *to, int64_t *held) {
    if (head == *held) return;
    *held = head;
    pack_across(r->p, v, r->batch, head, first, steps, TILE_M, 1, to, r->widened);
}

/* A few steps of a tile, and the lanes that see or are seen by one of them. */
typedef struct {
    int64_t first, count;      /* steps; count ≤ TILE_M */
    int64_t first_lane, lanes; /* whole panels: from first_lane, up to lanes */
} step_block;

/* dots[s][lane] = ⟨passing vector first + s, fixed vector lane⟩ of one head for a block's steps. */
static void multiply_vectors(const route_side *r, const real *passing, const real *fixed,
                             const step_block *b, real *dots) {
    int64_t dqk = r->p->a->dqk;
    for (int64_t lane = b->first_lane; lane < b->lanes; lane += TILE_N)
        multiply_block(TILE_SET, dots + lane, ROUTE_LANES, passing + b->first * dqk, TILE_M,
                       fixed + lane * dqk, TILE_N, dqk, NULL, NULL, NULL);
}

/* What turns a head's dot products into scores, for one tile. A pair's distance depends on lane − s
 * alone, so a tile has 127 of them; entry ROUTE_STEPS − 1 + lane − s of the tables is the pair's. */
typedef struct {
    head_numbers head;
    real lane[ROUTE_LANES];               /* the fixed side's share: −lse, or beta·n */
    real step[ROUTE_STEPS];               /* the passing side's */
    real bias[ROUTE_LANES + ROUTE_STEPS]; /* of the distance; −inf: not seen */
    real band[ROUTE_LANES + ROUTE_STEPS]; /* factor of the reciprocal product */
    bool has_bias, has_band;
} head_terms;

/* −lse of `count` queries, or beta·n of `count` keys. */
static void set_share(const route_side *r, bool keys, int64_t h, real beta, int64_t first,
                      int64_t count, real *share) {
    const weft_attention_attr *a = r->p->a;
    const real *lse = r->lse + (r->batch * a->heads + h) * a->queries;
    const real *n = r->p->n;
    if (n) n += (r->batch * a->kv_heads + key_head_of(a, h)) * a->keys;
    for (int64_t i = 0; i < ROUTE_LANES; i++) {
        share[i] = 0;
        if (i < count && !keys) share[i] = -lse[first + i];
        if (i < count && keys && n) share[i] = beta * n[first + i];
    }
}

static void set_distance_tables(const route_side *r, int64_t first, head_terms *t) {
    const weft_attention_attr *a = r->p->a;
    int64_t entries = ROUTE_LANES + ROUTE_STEPS - 1, start = route_start(r->p);
    int64_t origin = r->keys ? start + first - r->first : start + r->first - first;
    for (int64_t e = 0; e < entries; e++) {
        int64_t shift = e - (ROUTE_STEPS - 1);
        int64_t distance = r->keys ? origin - shift : origin + shift;
        t->bias[e] = distance < 0 ? -(real)INFINITY : -t->head.slope * (real)distance;
        if (distance >= 0 && distance < r->p->distances) t->bias[e] = r->p->rel[distance];
        t->band[e] = 0;
        if (distance >= 0 && distance <= a->window)
            t->band[e] = (real)a->band_alpha * t->head.scale;
    }
    t->bias[entries] = t->band[entries] = 0;
}

/* Under a soft-cap the numbers of lanes and steps are −lse alone, and pairs that are not seen are left to
 * hide_pairs. plain: a product and those numbers are all there is. */
static ALWAYS_INLINE void add_weights_as(const route_side *r, const head_terms *t,
                                         const step_block *b, real *tile, const bool plain) {
    vreal scale = vset(t->head.scale);
    real cap = plain ? 0 : (real)r->p->a->softcap;
    bool has_bias = !plain && t->has_bias, has_band = !plain && t->has_band;
    bool use_max = !plain && r->use_max;
    for (int64_t i = 0; i < b->count; i++) {
        int64_t s = b->first + i;
        vreal step = vset(t->step[s]);
        const real *bias = t->bias + ROUTE_STEPS - 1 - s, *band = t->band + ROUTE_STEPS - 1 - s;
        real *sum = tile + s * ROUTE_LANES;
        for (int64_t lane = b->first_lane; lane < b->lanes; lane += VLEN) {
            int64_t at = i * ROUTE_LANES + lane;
            vreal dot = vload(r->dots + at), shift = vload(t->lane + lane) + step;
            vreal score = cap > 0 ? dot * scale : vfma(dot, scale, shift);
            if (has_bias) score += vload(bias + lane);
            if (has_band) score = vfma(vload(r->band_dots + at), vload(band + lane), score);
            if (cap > 0) score = cap * vtanh(score * (1 / cap)) + shift;
            vreal p = vexp(score), old = vload(sum + lane);
            vstore(sum + lane, use_max ? vmax(old, p) : old + p);
        }
    }
}

/* Adds a head's weights of a block to the tile, or takes the maximum with them. Never inlined:
 * forward and backward must round alike, so they share these instructions. */
static __attribute__((noinline)) void add_weights(const route_side *r, const head_terms *t,
                                                  const step_block *b, real *tile) {
    bool plain = !t->has_bias && !t->has_band && !r->use_max && !(r->p->a->softcap > 0);
    EITHER(plain, add_weights_as, r, t, b, tile);
}

/* Pairs that are not seen get 0. */
static void hide_pairs(const route_side *r, int64_t first, int64_t steps, real *tile) {
    int64_t start = route_start(r->p);
    for (int64_t s = 0; s < steps; s++)
        for (int64_t lane = 0; lane < r->count; lane++) {
            int64_t query = r->keys ? first + s : r->first + lane;
            int64_t key = r->keys ? r->first + lane : first + s;
            if (key > start + query || key < first_key_of(r->p, r->batch, query))
                tile[s * ROUTE_LANES + lane] = 0;
        }
}

/* One head of a tile, by its packed vectors and the band's. A few steps at a time: their dot products are
 * still in the cache when they become weights. */
static void add_head(const route_side *r, const head_terms *t, const real *fixed,
                     const real *fixed_other, int64_t first, int64_t steps, real *tile) {
    for (int64_t s = 0; s < steps; s += TILE_M) {
        /* The block of steps from `s` on: in a tile on the diagonal only some lanes have a pair
         * that is seen. */
        step_block b = {s, min_i64(TILE_M, steps - s), 0, r->count};
        int64_t start = route_start(r->p);
        if (r->keys)
            b.lanes = min_i64(r->count, start + first + s + b.count - r->first);
        else
            b.first_lane = max_i64(0, first + s - start - r->first) / TILE_N * TILE_N;
        b.lanes = round_up(b.lanes, TILE_N);
        multiply_vectors(r, r->passing, fixed, &b, r->dots);
        if (t->has_band) multiply_vectors(r, r->passing_other, fixed_other, &b, r->band_dots);
        add_weights(r, t, &b, tile);
    }
}

/* tile[s][lane] = R of the passing index first + s and the lane; s < steps ≤ ROUTE_STEPS. Pairs
 * that are not seen get 0; lanes past r->count get numbers without meaning. */
static __attribute__((noinline)) void route_tile(const route_side *r, int64_t first, int64_t steps,
                                                 real *tile) {
    const weft_attention_attr *a = r->p->a;
    const head_rows *fixed = r->keys ? &r->p->k : &r->p->q, *other = r->keys ? &r->p->q : &r->p->k;
    int64_t vectors = ROUTE_LANES * a->dqk, held = -1, held_other = -1;
    head_terms t;
    /* Whether a tile has pairs that are not seen, and whether it has any within the band. */
    int64_t query = route_start(r->p) + (r->keys ? first : r->first);
    int64_t key = r->keys ? r->first : first, n_keys = r->keys ? r->count : steps;
    int64_t least = query - (key + n_keys - 1);
    t.has_band = a->band && least <= a->window;
    t.has_bias = least < 0 || a->pos != WEFT_POS_NONE || t.has_band;
    memset(tile, 0, (size_t)(steps * ROUTE_LANES) * sizeof(real));
    for (int64_t h = 0; h < a->heads; h++) {
        int64_t key_head = key_head_of(a, h);
        int64_t fixed_head = r->keys ? key_head : h, other_head = r->keys ? h : key_head;
        pack_passing(r, other, other_head, first, steps, r->passing, &held);
        if (t.has_band)
            pack_passing(r, fixed, fixed_head, first, steps, r->passing_other, &held_other);
        t.head = numbers_of_head(r->p, h);
        set_share(r, r->keys, h, t.head.beta, r->first, r->count, t.lane);
        set_share(r, !r->keys, h, t.head.beta, first, steps, t.step);
        if (t.has_bias) set_distance_tables(r, first, &t);
        add_head(r, &t, r->packed + fixed_head * vectors, r->packed_other + other_head * vectors,
                 first, steps, tile);
    }
    if (a->softcap > 0 || hides_keys(r->p)) hide_pairs(r, first, steps, tile);
    if (r->use_max || a->heads == 1) return;
    vreal part = vset((real)1 / (real)a->heads);
    for (int64_t i = 0; i < steps * ROUTE_LANES; i += VLEN)
        vstore(tile + i, vload(tile + i) * part);
}

enum {
    PRODUCT_STEPS = 2 * ROUTE_STEPS, /* a block of h: its rows, */
    PRODUCT_WIDTH = ROUTE_LANES,     /* and its columns */
    ROUTE_PRODUCT_SCRATCH = 3 * ROUTE_TILE
};

/* Row `lane` < lanes of `out`, `width` long, becomes
 *     factor[lane] · Σ_s weights[s][lane] · row s of `in`        s < steps
 * where the rows start at the elements out_at and in_at; factor NULL: 1. The row length of
 * `weights` is ROUTE_LANES; scratch: ROUTE_PRODUCT_SCRATCH reals. */
static void route_product(const attention_problem *p, const real *weights, int64_t steps,
                          int64_t lanes, const weft_tensor *in, int64_t in_at, const real *factor,
                          const weft_tensor *out, int64_t out_at, int64_t width, real *scratch) {
    real *packed = scratch, *sum = scratch + PRODUCT_STEPS * PRODUCT_WIDTH;
    real narrow[PRODUCT_WIDTH], widened[TILE_M * PRODUCT_WIDTH];
    for (int64_t c = 0; c < width; c += PRODUCT_WIDTH) {
        int64_t columns = min_i64(PRODUCT_WIDTH, width - c);
        head_rows rows = {.t = in, .base = in_at + c, .row = width, .width = columns};
        for (int64_t s = 0; s < steps; s += PRODUCT_STEPS) {
            int64_t depth = min_i64(PRODUCT_STEPS, steps - s);
            pack_along(p, &rows, 0, 0, s, depth, TILE_N, PRODUCT_STEPS, 1, packed, widened);
            for (int64_t i = 0; i < columns; i += TILE_N)
                for (int64_t lane = 0; lane < lanes; lane += TILE_M) {
                    real *to = sum + lane * ROUTE_LANES + i;
                    const real *a = weights + s * ROUTE_LANES + lane,
                               *b = packed + i * PRODUCT_STEPS;
                    if (s > 0)
                        multiply_block(TILE_ADD, to, ROUTE_LANES, a, ROUTE_LANES, b, TILE_N, depth,
                                       NULL, NULL, NULL);
                    else
                        multiply_block(TILE_SET, to, ROUTE_LANES, a, ROUTE_LANES, b, TILE_N, depth,
                                       NULL, NULL, NULL);
                }
        }
        for (int64_t lane = 0; lane < lanes; lane++) {
            int64_t at = out_at + lane * width + c;
            real *y = tile_out(p->x, out, at, narrow), times = factor ? factor[lane] : 1;
            for (int64_t i = 0; i < columns; i++)
                y[i] = sum[lane * ROUTE_LANES + i] * times;
            tile_done(p->x, out, at, columns, y);
        }
    }
}

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
    real_block side = {NULL, 0};
    lay_out_side(a, keys, &side, &(route_side){0});
    return (routing){
        .attr = attr,
        .keys = keys,
        .tiles = ceil_div(keys ? a->keys : a->queries, ROUTE_LANES),
        .scratch = aligned_reals(max_i64(side.used, ROUTE_PRODUCT_SCRATCH)),
        .strip = aligned_reals(strip),
    };
}

static int64_t thread_bytes(routing c) {
    return real_bytes(c.strip + c.scratch);
}

/* The kernel that does what follows for each tile of one side, of c, task and thread, with so many reals of weights
 * a thread. */
#define ROUTING(name, keys, reals)                                                                 \
    static void name##_task(void *context, int64_t task, int thread);                              \
    DEFINE_KERNEL_IN(name, threads *thread_bytes(measure_routing(n, keys, reals))) {               \
        routing c = measure_routing(n, keys, reals);                                               \
        c.p = make_problem(x, n, n->in);                                                           \
        return run_tasks(x, c.p.a->batch * c.tiles, name##_task, &c);                              \
    }                                                                                              \
    WEFT_TASK(name##_task, const routing *c)

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
    lay_out_side(a, c->keys, &(real_block){r.scratch, 0}, &r);
    pack_side(&r, c->keys, r.packed);
    if (a->band) pack_side(&r, !c->keys, r.packed_other);
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

ROUTING(route_topk, false, ROUTE_TILE) {
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
    /* Places that no key took get weight 0; the others are divided by their sum where asked. */
    for (int64_t i = 0; i < r.count; i++) {
        real sum = 0, *weight = lists.weight + i * k;
        for (int64_t m = 0; m < k; m++) {
            if (lists.index[i * k + m] < 0) weight[m] = 0;
            sum += weight[m];
        }
        for (int64_t m = 0; c->attr->normalize && sum > 0 && m < k; m++)
            weight[m] /= sum;
    }
}

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

static int64_t strip_reals(const weft_node *n) {
    return ceil_div(ATTR(n, weft_route_attr)->score.keys, ROUTE_STEPS) * ROUTE_TILE;
}

ROUTING(route_dense, false, strip_reals(n)) {
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

/* route_dense_back: dh_j = Σ_t w_tj dc_t, keys on the lanes. Where causal, rows before the first key
 * of the task do not see any of its keys. */
ROUTING(route_dense_back, true, strip_reals(n)) {
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
