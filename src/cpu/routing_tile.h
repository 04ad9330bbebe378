/* Tiles of R, the attention's weights over all heads, and their product with rows of h.
 *
 * One side of a tile is fixed for a task and lies along the vector lanes: queries when a row's
 * weights are wanted, keys when a column's are. Its vectors are transposed once. The other side
 * passes by, a few vectors per step. The dot product of a pair adds up in the same order from either
 * side, and what follows is one compiled function, so the forward and the backward pass find the same
 * weights bit for bit.
 *
 * Both are attention's small product (attention_tile.h): of the fixed side and what passes by, over the
 * depth dqk; and of the weights and a copied block of h, over the passing side. */
#pragma once

#include "cpu/attention_tile.h"
#include "ops/routing.h"

enum {
    ROUTE_LANES = 64, /* of the fixed side in a task, and the row length of tiles */
    ROUTE_STEPS = 64, /* of the passing side in a tile */
    ROUTE_TILE = ROUTE_LANES * ROUTE_STEPS
};

/* The fixed side of a task: `count` queries or keys of sequence `batch` from index `first`. The
 * caller fills the first part and calls route_fix. */
typedef struct {
    const attention_problem *p; /* of the attention whose weights these are */
    const real *lse;            /* [B, H, T] */
    bool use_max;               /* over heads, in place of the mean */
    bool keys; /* the lanes are keys, and queries pass by; else the other way round */
    int64_t batch, first, count;
    real *scratch; /* route_scratch reals */

    real *packed;                  /* [heads of the fixed side][panels][dqk][TILE_N] */
    real *packed_other;            /* for the band: the other side's vectors at the same places */
    real *passing, *passing_other; /* [panels][dqk][TILE_M] of ROUTE_STEPS, of a head */
    real *widened;                 /* a panel of rows, for bf16 */
    real *dots, *band_dots;        /* TILE_M steps × ROUTE_LANES */
} route_side;

/* Where the first query stands among the keys. Not causal is as if all queries stood behind
 * the last key: every key is seen (and no term of the score depends on a distance then). */
static inline int64_t route_start(const attention_problem *p) {
    return p->a->causal ? 0 : p->a->keys;
}

/* Rows that are widened at a time. */
static int64_t widened_rows(void) {
    return max_i64(TILE_M, TILE_N);
}

/* Reals of scratch that a route_side needs. */
static int64_t route_scratch(const weft_attention_attr *a, bool keys) {
    int64_t heads = keys ? a->kv_heads : a->heads, other = a->heads + a->kv_heads - heads;
    int64_t vectors = ROUTE_LANES * a->dqk;
    return (heads + (a->band ? other : 0)) * vectors + (2 * ROUTE_STEPS + widened_rows()) * a->dqk +
           2 * TILE_M * ROUTE_LANES;
}

/* The vectors of all heads at the fixed places, transposed into panels. */
static void pack_side(const route_side *r, const head_rows *v, int64_t heads, real *packed) {
    for (int64_t head = 0; head < heads; head++)
        pack_across(r->p, v, r->batch, head, r->first, r->count, TILE_N, 1,
                    packed + head * ROUTE_LANES * v->width, r->widened);
}

/* Transposes the fixed side. */
static void route_fix(route_side *r) {
    const weft_attention_attr *a = r->p->a;
    const head_rows *fixed = r->keys ? &r->p->k : &r->p->q, *other = r->keys ? &r->p->q : &r->p->k;
    int64_t heads = r->keys ? a->kv_heads : a->heads, others = r->keys ? a->heads : a->kv_heads;
    int64_t vectors = ROUTE_LANES * a->dqk;
    r->packed = r->scratch;
    r->packed_other = r->packed + heads * vectors;
    r->passing = r->packed_other + (a->band ? others * vectors : 0);
    r->passing_other = r->passing + ROUTE_STEPS * a->dqk;
    r->widened = r->passing_other + ROUTE_STEPS * a->dqk;
    r->dots = r->widened + widened_rows() * a->dqk;
    r->band_dots = r->dots + TILE_M * ROUTE_LANES;
    pack_side(r, fixed, heads, r->packed);
    if (a->band) pack_side(r, other, others, r->packed_other);
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

/* What turns a head's dot products into scores, for one tile. A pair's distance depends on
 * lane − s alone, so a tile has 127 of them; entry ROUTE_STEPS − 1 + lane − s of the tables is the
 * pair's. */
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
