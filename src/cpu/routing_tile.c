/* Tiles of R and their product with rows of h; see routing_tile.h.
 *
 * Both are the same small matrix product: a panel of a few vectors a depth, times numbers of the
 * other side taken one by one, summed in registers over the whole depth. For the scores the panel
 * is the transposed fixed side and the depth dqk; for the product it is a copied block of h and
 * the depth is the passing side. */
#include "cpu/routing_tile.h"

/* A block is BLOCK_ROWS × BLOCK_VECTORS vector registers. With its operands that leaves a few of
 * the register file free: compilers read the numbers of all rows ahead, and would spill sums. */
enum { BLOCK_ROWS = 4 };
#if VBYTES == 64 || defined(__aarch64__)
enum { BLOCK_VECTORS = 4 };
#else
enum { BLOCK_VECTORS = 2 };
#endif
#define PANEL (BLOCK_VECTORS * VLEN)
#define CACHE_LINE ((int64_t)(64 / sizeof(real)))

/* Loops over a block must vanish, or its sums would lie in memory. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* Where the numbers of the block's rows lie: row r of depth d at from[r·row + d·step]. */
typedef struct {
    const real *from;
    int64_t row, step;
} spread_rows;

/* Numbers of all rows at depth d. In a tile they are neighbours, and come in one load where the
 * processor multiplies by a lane of a vector; a tile's rows are long enough for all BLOCK_ROWS. */
static ALWAYS_INLINE void read_rows(const spread_rows *a, int64_t d, const int n_rows,
                                    real out[BLOCK_ROWS]) {
#if defined(__aarch64__) && WEFT_REAL == 32
    if (a->step == ROUTE_LANES && a->row == 1) {
        vreal v = vload(a->from + d * a->step);
        UNROLL
        for (int r = 0; r < n_rows; r++)
            out[r] = v[r];
        return;
    }
#endif
    UNROLL
    for (int r = 0; r < n_rows; r++)
        out[r] = a->from[r * a->row + d * a->step];
}

/* out[r][c] (+)= Σ_d a[r][d] · panel[d][c] for r < n_rows and c < vectors·VLEN, out's row length
 * being ROUTE_LANES. `vectors` and `n_rows` are constants where this is called, so that the sums
 * stay in registers. */
static ALWAYS_INLINE void multiply_steps(const real *panel, const spread_rows *a, int64_t depth,
                                         real *out, const int n_rows, const int vectors,
                                         const bool add) {
    vreal sum[BLOCK_ROWS][BLOCK_VECTORS];
    UNROLL
    for (int r = 0; r < n_rows; r++) {
        UNROLL
        for (int v = 0; v < vectors; v++)
            sum[r][v] = add ? vload(out + r * ROUTE_LANES + v * VLEN) : vset(0);
    }
    for (int64_t d = 0; d < depth; d++) {
        vreal p[BLOCK_VECTORS];
        real number[BLOCK_ROWS];
        UNROLL
        for (int v = 0; v < vectors; v++)
            p[v] = vload(panel + (d * vectors + v) * VLEN);
        read_rows(a, d, n_rows, number);
        UNROLL
        for (int r = 0; r < n_rows; r++) {
            UNROLL
            for (int v = 0; v < vectors; v++)
                sum[r][v] += p[v] * number[r];
        }
    }
    UNROLL
    for (int r = 0; r < n_rows; r++) {
        UNROLL
        for (int v = 0; v < vectors; v++)
            vstore(out + r * ROUTE_LANES + v * VLEN, sum[r][v]);
    }
}

/* The same for 1 to BLOCK_ROWS rows. */
static ALWAYS_INLINE void multiply_rows(const real *panel, const spread_rows *a, int64_t depth,
                                        real *out, int64_t n_rows, const int vectors,
                                        const bool add) {
    switch (n_rows) {
    case 1:
        multiply_steps(panel, a, depth, out, 1, vectors, add);
        break;
    case 2:
        multiply_steps(panel, a, depth, out, 2, vectors, add);
        break;
    case 3:
        multiply_steps(panel, a, depth, out, 3, vectors, add);
        break;
    default:
        multiply_steps(panel, a, depth, out, BLOCK_ROWS, vectors, add);
    }
}

int64_t route_scratch(const weft_attention_attr *a, bool keys) {
    int64_t heads = keys ? a->kv_heads : a->heads, other = a->heads + a->kv_heads - heads;
    int64_t vectors = ROUTE_LANES * a->dqk;
    return (heads + (a->band ? other : 0)) * vectors + 2 * ROUTE_STEPS * a->dqk +
           2 * BLOCK_ROWS * ROUTE_LANES;
}

/* The vectors of all heads at the fixed places, transposed into panels. */
static void pack_side(const route_side *r, const head_rows *v, int64_t heads, real *packed) {
    for (int64_t head = 0; head < heads; head++)
        pack_across(r->p, v, r->batch, head, r->first, r->count, r->width, 1,
                    packed + head * ROUTE_LANES * v->width, r->passing);
}

void route_fix(route_side *r) {
    const weft_attention_attr *a = r->p->a;
    const head_rows *fixed = r->keys ? &r->p->k : &r->p->q, *other = r->keys ? &r->p->q : &r->p->k;
    int64_t heads = r->keys ? a->kv_heads : a->heads, others = r->keys ? a->heads : a->kv_heads;
    int64_t vectors = ROUTE_LANES * a->dqk;
    r->width = r->count <= VLEN ? VLEN : PANEL;
    r->packed = r->scratch;
    r->packed_other = r->packed + heads * vectors;
    r->passing = r->packed_other + (a->band ? others * vectors : 0);
    r->passing_other = r->passing + ROUTE_STEPS * a->dqk;
    r->dots = r->passing_other + ROUTE_STEPS * a->dqk;
    r->band_dots = r->dots + BLOCK_ROWS * ROUTE_LANES;
    pack_side(r, fixed, heads, r->packed);
    if (a->band) pack_side(r, other, others, r->packed_other);
}

/* The passing vectors of a tile and a head, and the packed ones they are multiplied with. */
typedef struct {
    int64_t head;
    const real *from;
    int64_t row; /* from one vector to the next */
    const real *packed;
} passing_vectors;

/* Vectors first .. first + steps of a head: where they lie, or widened into `scratch`, unless they
 * are there already. */
static void read_passing(const route_side *r, const head_rows *v, int64_t head, int64_t first,
                         int64_t steps, real *scratch, passing_vectors *out) {
    if (head == out->head) return;
    int64_t at = head_row_at(v, r->batch, first, head);
    out->head = head;
    if (v->t->dtype != WEFT_BF16) {
        out->from = (const real *)weft_data(r->p->x, v->t) + at;
        out->row = v->row;
        return;
    }
    out->from = scratch;
    out->row = v->width;
    for (int64_t s = 0; s < steps; s++)
        tile_in(r->p->x, v->t, at + s * v->row, v->width, scratch + s * v->width);
}

/* A few steps of a tile, and the lanes that see or are seen by one of them. */
typedef struct {
    int64_t first, count;      /* steps; count ≤ BLOCK_ROWS */
    int64_t first_lane, lanes; /* whole panels: from first_lane, up to lanes */
} step_block;

/* dots[s][lane] = ⟨passing vector first + s, fixed vector lane⟩ of one head for a block's steps.
 * The vectors of the next block are fetched meanwhile: they lie apart, where no processor would
 * guess. */
static void multiply_vectors(const route_side *r, const passing_vectors *v, const step_block *b,
                             int64_t steps, real *dots) {
    int64_t dqk = r->p->a->dqk, next = b->first + BLOCK_ROWS;
    spread_rows rows = {v->from + b->first * v->row, v->row, 1};
    for (int64_t s = next; s < min_i64(next + BLOCK_ROWS, steps); s++)
        for (int64_t d = 0; d < dqk; d += CACHE_LINE)
            __builtin_prefetch(v->from + s * v->row + d);
    for (int64_t lane = b->first_lane; lane < b->lanes; lane += r->width) {
        const real *panel = v->packed + lane * dqk;
        if (r->width == VLEN)
            multiply_rows(panel, &rows, dqk, dots + lane, b->count, 1, false);
        else
            multiply_rows(panel, &rows, dqk, dots + lane, b->count, BLOCK_VECTORS, false);
    }
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
    int64_t entries = ROUTE_LANES + ROUTE_STEPS - 1, start = route_start(r->p, r->batch);
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

static ALWAYS_INLINE void add_weights_as(const route_side *r, const head_terms *t,
                                         const step_block *b, real *tile, const bool has_bias,
                                         const bool has_band, const bool use_max) {
    vreal scale = vset(t->head.scale);
    for (int64_t i = 0; i < b->count; i++) {
        int64_t s = b->first + i;
        vreal step = vset(t->step[s]);
        const real *bias = t->bias + ROUTE_STEPS - 1 - s, *band = t->band + ROUTE_STEPS - 1 - s;
        real *sum = tile + s * ROUTE_LANES;
        for (int64_t lane = b->first_lane; lane < b->lanes; lane += VLEN) {
            int64_t at = i * ROUTE_LANES + lane;
            vreal score = vload(r->dots + at) * scale + (vload(t->lane + lane) + step);
            if (has_bias) score += vload(bias + lane);
            if (has_band) score += vload(r->band_dots + at) * vload(band + lane);
            vreal p = vexp(score), old = vload(sum + lane);
            vstore(sum + lane, use_max ? vmax(old, p) : old + p);
        }
    }
}

/* The same under a soft-cap, where the numbers of lanes and steps are −lse alone, and pairs that are not
 * seen are left to hide_pairs. */
static __attribute__((noinline)) void add_capped_weights(const route_side *r, const head_terms *t,
                                                         const step_block *b, real *tile) {
    real cap = (real)r->p->a->softcap;
    for (int64_t i = 0; i < b->count; i++) {
        int64_t s = b->first + i;
        const real *bias = t->bias + ROUTE_STEPS - 1 - s, *band = t->band + ROUTE_STEPS - 1 - s;
        for (int64_t lane = b->first_lane; lane < b->lanes; lane += VLEN) {
            int64_t at = i * ROUTE_LANES + lane;
            real *sum = tile + s * ROUTE_LANES + lane;
            vreal score = vload(r->dots + at) * t->head.scale;
            if (t->has_bias) score += vload(bias + lane);
            if (t->has_band) score += vload(r->band_dots + at) * vload(band + lane);
            score = cap * vtanh(score * (1 / cap));
            vreal p = vexp(score + (vload(t->lane + lane) + t->step[s])), old = vload(sum);
            vstore(sum, r->use_max ? vmax(old, p) : old + p);
        }
    }
}

/* Pairs that are not seen get 0. */
static void hide_pairs(const route_side *r, int64_t first, int64_t steps, real *tile) {
    int64_t start = route_start(r->p, r->batch);
    for (int64_t s = 0; s < steps; s++)
        for (int64_t lane = 0; lane < r->count; lane++) {
            int64_t query = r->keys ? first + s : r->first + lane;
            int64_t key = r->keys ? r->first + lane : first + s;
            if (key > start + query || key < first_key_of(r->p, r->batch, query))
                tile[s * ROUTE_LANES + lane] = 0;
        }
}

/* Adds a head's weights of a block to the tile, or takes the maximum with them. Never inlined:
 * forward and backward must round alike, so they share these instructions. */
static __attribute__((noinline)) void add_weights(const route_side *r, const head_terms *t,
                                                  const step_block *b, real *tile) {
    if (r->p->a->softcap > 0)
        add_capped_weights(r, t, b, tile);
    else if (t->has_band && r->use_max)
        add_weights_as(r, t, b, tile, true, true, true);
    else if (t->has_band)
        add_weights_as(r, t, b, tile, true, true, false);
    else if (t->has_bias && r->use_max)
        add_weights_as(r, t, b, tile, true, false, true);
    else if (t->has_bias)
        add_weights_as(r, t, b, tile, true, false, false);
    else if (r->use_max)
        add_weights_as(r, t, b, tile, false, false, true);
    else
        add_weights_as(r, t, b, tile, false, false, false);
}

/* Whether a tile has pairs that are not seen, and whether it has any within the band. */
static void look_at_distances(const route_side *r, int64_t first, int64_t steps, head_terms *t) {
    const weft_attention_attr *a = r->p->a;
    int64_t query = route_start(r->p, r->batch) + (r->keys ? first : r->first);
    int64_t key = r->keys ? r->first : first, n_keys = r->keys ? r->count : steps;
    int64_t least = query - (key + n_keys - 1);
    t->has_band = a->band && least <= a->window;
    t->has_bias = least < 0 || a->pos != WEFT_POS_NONE || t->has_band;
}

/* The block of steps from `s` on: in a tile on the diagonal only some lanes have a pair that is
 * seen. */
static step_block make_block(const route_side *r, int64_t first, int64_t s, int64_t steps) {
    step_block b = {s, min_i64(BLOCK_ROWS, steps - s), 0, r->count};
    int64_t start = route_start(r->p, r->batch);
    if (r->keys)
        b.lanes = min_i64(r->count, start + first + s + b.count - r->first);
    else
        b.first_lane = max_i64(0, first + s - start - r->first) / r->width * r->width;
    b.lanes = round_up(b.lanes, r->width);
    return b;
}

/* One head of a tile. A few steps at a time: their dot products are still in the cache when they
 * become weights. */
static void add_head(const route_side *r, const head_terms *t, const passing_vectors *v,
                     const passing_vectors *band, int64_t first, int64_t steps, real *tile) {
    for (int64_t s = 0; s < steps; s += BLOCK_ROWS) {
        step_block b = make_block(r, first, s, steps);
        multiply_vectors(r, v, &b, steps, r->dots);
        if (t->has_band) multiply_vectors(r, band, &b, steps, r->band_dots);
        add_weights(r, t, &b, tile);
    }
}

void route_tile(const route_side *r, int64_t first, int64_t steps, real *tile) {
    const weft_attention_attr *a = r->p->a;
    const head_rows *fixed = r->keys ? &r->p->k : &r->p->q, *other = r->keys ? &r->p->q : &r->p->k;
    int64_t vectors = ROUTE_LANES * a->dqk;
    passing_vectors v = {.head = -1}, band = {.head = -1};
    head_terms t;
    look_at_distances(r, first, steps, &t);
    memset(tile, 0, (size_t)(steps * ROUTE_LANES) * sizeof(real));
    for (int64_t h = 0; h < a->heads; h++) {
        int64_t key_head = key_head_of(a, h);
        int64_t fixed_head = r->keys ? key_head : h, other_head = r->keys ? h : key_head;
        read_passing(r, other, other_head, first, steps, r->passing, &v);
        v.packed = r->packed + fixed_head * vectors;
        if (t.has_band) read_passing(r, fixed, fixed_head, first, steps, r->passing_other, &band);
        band.packed = r->packed_other + other_head * vectors;
        t.head = numbers_of_head(r->p, h);
        set_share(r, r->keys, h, t.head.beta, r->first, r->count, t.lane);
        set_share(r, !r->keys, h, t.head.beta, first, steps, t.step);
        if (t.has_bias) set_distance_tables(r, first, &t);
        add_head(r, &t, &v, &band, first, steps, tile);
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
    ROWS_AHEAD = 8                   /* rows fetched before they are copied */
};

/* steps × columns of `in` as panels of PANEL columns, padded with 0. */
static void pack_rows(const weft_exec *x, const weft_tensor *in, int64_t at, int64_t row,
                      int64_t steps, int64_t columns, real *packed) {
    real wide[PRODUCT_WIDTH] = {0};
    int64_t size = (int64_t)weft_dtype_size(in->dtype);
    const char *data = weft_data(x, in);
    for (int64_t s = 0; s < steps; s++) {
        if (s + ROWS_AHEAD < steps)
            for (int64_t byte = 0; byte < columns * size; byte += 64)
                __builtin_prefetch(data + (at + (s + ROWS_AHEAD) * row) * size + byte);
        const real *from = tile_in(x, in, at + s * row, columns, wide);
        if (from != wide && columns < PRODUCT_WIDTH) {
            memcpy(wide, from, (size_t)columns * sizeof(real));
            from = wide;
        }
        for (int64_t c = 0; c < PRODUCT_WIDTH; c += PANEL)
            memcpy(packed + c * PRODUCT_STEPS + s * PANEL, from + c, (size_t)PANEL * sizeof(real));
    }
}

static void multiply_packed(const real *weights, int64_t steps, int64_t lanes, int64_t columns,
                            const real *packed, bool add, real *sum) {
    for (int64_t c = 0; c < columns; c += PANEL)
        for (int64_t lane = 0; lane < lanes; lane += BLOCK_ROWS) {
            const real *panel = packed + c * PRODUCT_STEPS;
            int64_t rows = min_i64(BLOCK_ROWS, lanes - lane);
            real *out = sum + lane * ROUTE_LANES + c;
            spread_rows w = {weights + lane, 1, ROUTE_LANES};
            if (add)
                multiply_rows(panel, &w, steps, out, rows, BLOCK_VECTORS, true);
            else
                multiply_rows(panel, &w, steps, out, rows, BLOCK_VECTORS, false);
        }
}

void route_product(const weft_exec *x, const real *weights, int64_t steps, int64_t lanes,
                   const weft_tensor *in, int64_t in_at, const real *factor, const weft_tensor *out,
                   int64_t out_at, int64_t width, real *scratch) {
    real *packed = scratch, *sum = scratch + PRODUCT_STEPS * PRODUCT_WIDTH;
    real narrow[PRODUCT_WIDTH];
    for (int64_t c = 0; c < width; c += PRODUCT_WIDTH) {
        int64_t columns = min_i64(PRODUCT_WIDTH, width - c);
        for (int64_t s = 0; s < steps; s += PRODUCT_STEPS) {
            int64_t depth = min_i64(PRODUCT_STEPS, steps - s);
            pack_rows(x, in, in_at + s * width + c, width, depth, columns, packed);
            multiply_packed(weights + s * ROUTE_LANES, depth, lanes, columns, packed, s > 0, sum);
        }
        for (int64_t lane = 0; lane < lanes; lane++) {
            int64_t at = out_at + lane * width + c;
            real *y = tile_out(x, out, at, narrow), times = factor ? factor[lane] : 1;
            for (int64_t i = 0; i < columns; i++)
                y[i] = sum[lane * ROUTE_LANES + i] * times;
            tile_done(x, out, at, columns, y);
        }
    }
}
