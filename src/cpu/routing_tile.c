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

/* Loops over a block must vanish, or its sums would lie in memory. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

#define INLINE static inline __attribute__((always_inline))

/* out[r][c] (+)= Σ_d rows[r·row + d·step] · panel[d][c] for r < n_rows and c < vectors·VLEN;
 * `vectors` and `n_rows` are constants where this is called, so that the sums stay in registers.
 * out's row length is ROUTE_LANES. */
INLINE void multiply_block(const real *panel, const real *rows, int64_t row, int64_t step,
                           int64_t depth, real *out, const int n_rows, const int vectors,
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
        UNROLL
        for (int v = 0; v < vectors; v++)
            p[v] = vload(panel + (d * vectors + v) * VLEN);
        UNROLL
        for (int r = 0; r < n_rows; r++) {
            real a = rows[r * row + d * step];
            UNROLL
            for (int v = 0; v < vectors; v++)
                sum[r][v] += p[v] * a;
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
INLINE void multiply_rows(const real *panel, const real *rows, int64_t row, int64_t step,
                          int64_t depth, real *out, int64_t n_rows, const int vectors,
                          const bool add) {
    switch (n_rows) {
    case 1:
        multiply_block(panel, rows, row, step, depth, out, 1, vectors, add);
        break;
    case 2:
        multiply_block(panel, rows, row, step, depth, out, 2, vectors, add);
        break;
    case 3:
        multiply_block(panel, rows, row, step, depth, out, 3, vectors, add);
        break;
    default:
        multiply_block(panel, rows, row, step, depth, out, BLOCK_ROWS, vectors, add);
    }
}

/* Where the vectors of one tensor of the scores lie: head g of index i of sequence b starts at
 * element ((b·length + i)·row + offset + g·dqk). */
typedef struct {
    const weft_tensor *t;
    int64_t heads, length, row, offset;
} vectors;

static vectors find_vectors(const weft_node *n, bool keys) {
    const weft_attention_attr *a = &ATTR(n, weft_route_attr)->score;
    int64_t heads = keys ? a->kv_heads : a->heads, length = keys ? a->keys : a->queries;
    if (a->packed)
        return (vectors){n->in[WEFT_ATTN_Q], heads, length, (a->heads + 2 * a->kv_heads) * a->dqk,
                         keys ? a->heads * a->dqk : 0};
    return (vectors){n->in[keys ? WEFT_ATTN_K : WEFT_ATTN_Q], heads, length, heads * a->dqk, 0};
}

static int64_t place_of(const vectors *v, int64_t b, int64_t i, int64_t head, int64_t dqk) {
    return (b * v->length + i) * v->row + v->offset + head * dqk;
}

int64_t route_scratch(const weft_node *n, bool keys) {
    const weft_attention_attr *a = &ATTR(n, weft_route_attr)->score;
    int64_t heads = keys ? a->kv_heads : a->heads, other = a->heads + a->kv_heads - heads;
    int64_t vector = ROUTE_LANES * a->dqk;
    return (heads + (a->band ? other : 0)) * vector + 2 * vector + 2 * ROUTE_TILE;
}

/* The vectors of all heads of `count` indices, transposed into panels; lanes past them are 0. */
static void pack_side(const route_side *r, const vectors *v, real *packed) {
    int64_t dqk = ATTR(r->n, weft_route_attr)->score.dqk, width = r->width;
    int64_t padded = ceil_div(r->count, width) * width;
    for (int64_t head = 0; head < v->heads; head++) {
        real *to = packed + head * ROUTE_LANES * dqk;
        for (int64_t lane = 0; lane < padded; lane++) {
            real *column = to + lane / width * width * dqk + lane % width;
            if (lane >= r->count) {
                for (int64_t d = 0; d < dqk; d++)
                    column[d * width] = 0;
                continue;
            }
            int64_t at = place_of(v, r->batch, r->first + lane, head, dqk);
            const real *from = tile_in(r->x, v->t, at, dqk, r->passing);
            for (int64_t d = 0; d < dqk; d++)
                column[d * width] = from[d];
        }
    }
}

void route_fix(route_side *r) {
    const weft_attention_attr *a = &ATTR(r->n, weft_route_attr)->score;
    const int32_t *start = weft_data(r->x, r->n->in[WEFT_ATTN_START]);
    r->position = start ? start[r->batch] : 0;
    r->width = r->count <= VLEN ? VLEN : PANEL;
    vectors fixed = find_vectors(r->n, r->keys), other = find_vectors(r->n, !r->keys);
    int64_t vector = ROUTE_LANES * a->dqk;
    real *at = r->scratch;
    r->dots = at, at += ROUTE_TILE;
    r->band_dots = at, at += ROUTE_TILE;
    r->passing = at, at += vector;
    r->passing_other = at, at += vector;
    r->packed = at, at += fixed.heads * vector;
    r->packed_other = at;
    pack_side(r, &fixed, r->packed);
    if (a->band) pack_side(r, &other, r->packed_other);
}

/* dots[s][lane] = ⟨passing vector s, fixed vector lane⟩ for one head of each and up to BLOCK_ROWS
 * steps. */
static void multiply_vectors(const route_side *r, const real *packed, const real *passing,
                             int64_t row, int64_t steps, real *dots) {
    int64_t dqk = ATTR(r->n, weft_route_attr)->score.dqk;
    for (int64_t lane = 0; lane < r->count; lane += r->width) {
        if (r->width == VLEN)
            multiply_rows(packed + lane * dqk, passing, row, 1, dqk, dots + lane, steps, 1, false);
        else
            multiply_rows(packed + lane * dqk, passing, row, 1, dqk, dots + lane, steps,
                          BLOCK_VECTORS, false);
    }
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
static void read_passing(const route_side *r, const vectors *v, int64_t head, int64_t first,
                         int64_t steps, real *scratch, passing_vectors *p) {
    if (head == p->head) return;
    int64_t dqk = ATTR(r->n, weft_route_attr)->score.dqk;
    int64_t at = place_of(v, r->batch, first, head, dqk);
    p->head = head;
    if (v->t->dtype != WEFT_BF16) {
        p->from = (const real *)weft_data(r->x, v->t) + at;
        p->row = v->row;
        return;
    }
    p->from = scratch;
    p->row = dqk;
    for (int64_t s = 0; s < steps; s++)
        tile_in(r->x, v->t, at + s * v->row, dqk, scratch + s * dqk);
}

/* What turns a head's dot products into scores, for one tile. A pair's distance depends on
 * lane − s alone, so a tile has 127 of them; entry ROUTE_STEPS − 1 + lane − s of the tables is the
 * pair's. */
typedef struct {
    real scale, beta, slope;              /* slope: ALiBi's */
    real lane[ROUTE_LANES];               /* the fixed side's share: −lse, or beta·n */
    real step[ROUTE_STEPS];               /* the passing side's */
    real bias[ROUTE_LANES + ROUTE_STEPS]; /* of the distance; −inf: not seen */
    real band[ROUTE_LANES + ROUTE_STEPS]; /* factor of the reciprocal product */
    bool has_bias, has_band;
} head_terms;

static void set_head_numbers(const route_side *r, int64_t h, head_terms *t) {
    const weft_attention_attr *a = &ATTR(r->n, weft_route_attr)->score;
    weft_tensor *const *in = r->n->in;
    const real *scale = weft_data(r->x, in[WEFT_ATTN_SCALE]);
    const real *beta = weft_data(r->x, in[WEFT_ATTN_BETA]);
    const real *log_tau = weft_data(r->x, in[WEFT_ATTN_LOG_TAU]);
    t->scale = scale ? scale[h] : (real)a->scale_value;
    t->beta = beta ? beta[h] : 0;
    if (log_tau) {
        double tau = exp((double)log_tau[h]) + 1e-6;
        t->scale = (real)(2 / tau);
        t->beta = (real)(-1 / tau);
    }
    t->slope = a->pos == WEFT_POS_ALIBI ? (real)weft_alibi_slope(h, a->heads) : 0;
}

/* −lse of `count` queries, or beta·n of `count` keys. */
static void set_share(const route_side *r, bool keys, int64_t h, real beta, int64_t first,
                      int64_t count, real *share) {
    const weft_attention_attr *a = &ATTR(r->n, weft_route_attr)->score;
    const real *n = weft_data(r->x, r->n->in[WEFT_ATTN_N]);
    const real *lse = weft_data(r->x, r->n->in[WEFT_ROUTE_LSE]);
    int64_t group = h * a->kv_heads / a->heads;
    for (int64_t i = 0; i < count; i++) {
        if (!keys)
            share[i] = -lse[(r->batch * a->heads + h) * a->queries + first + i];
        else
            share[i] = n ? beta * n[(r->batch * a->kv_heads + group) * a->keys + first + i] : 0;
    }
    for (int64_t i = count; i < ROUTE_LANES; i++)
        share[i] = 0;
}

static void set_distance_tables(const route_side *r, int64_t first, head_terms *t) {
    const weft_attention_attr *a = &ATTR(r->n, weft_route_attr)->score;
    const real *rel = weft_data(r->x, r->n->in[WEFT_ATTN_REL]);
    int64_t entries = ROUTE_LANES + ROUTE_STEPS - 1;
    int64_t origin = r->keys ? r->position + first - r->first : r->position + r->first - first;
    for (int64_t e = 0; e < entries; e++) {
        int64_t shift = e - (ROUTE_STEPS - 1);
        int64_t distance = r->keys ? origin - shift : origin + shift;
        t->bias[e] = distance < 0 ? -(real)INFINITY : -t->slope * (real)distance;
        if (rel && distance >= 0 && distance < a->keys) t->bias[e] = rel[distance];
        t->band[e] =
            distance >= 0 && distance <= a->window ? (real)a->band_alpha * t->scale : (real)0;
    }
    t->bias[entries] = t->band[entries] = 0;
}

INLINE void add_weights_as(const real *dots, const real *band_dots, const head_terms *t,
                           int64_t first, int64_t steps, int64_t lanes, real *tile,
                           const bool has_bias, const bool has_band, const bool use_max) {
    vreal scale = vset(t->scale);
    for (int64_t s = 0; s < steps; s++) {
        vreal step = vset(t->step[first + s]);
        const real *bias = t->bias + ROUTE_STEPS - 1 - first - s;
        const real *band = t->band + ROUTE_STEPS - 1 - first - s;
        real *sum = tile + (first + s) * ROUTE_LANES;
        for (int64_t lane = 0; lane < lanes; lane += VLEN) {
            int64_t at = s * ROUTE_LANES + lane;
            vreal score = vload(dots + at) * scale + (vload(t->lane + lane) + step);
            if (has_bias) score += vload(bias + lane);
            if (has_band) score += vload(band_dots + at) * vload(band + lane);
            vreal p = vexp(score), old = vload(sum + lane);
            vstore(sum + lane, use_max ? vmax(old, p) : old + p);
        }
    }
}

/* Adds a head's weights of steps first .. first + steps to the tile, or takes the maximum with
 * them. Never inlined: forward and backward must round alike, so they share these instructions. */
static __attribute__((noinline)) void add_weights(const real *dots, const real *band_dots,
                                                  const head_terms *t, int64_t first, int64_t steps,
                                                  int64_t lanes, bool use_max, real *tile) {
    if (t->has_band && use_max)
        add_weights_as(dots, band_dots, t, first, steps, lanes, tile, true, true, true);
    else if (t->has_band)
        add_weights_as(dots, band_dots, t, first, steps, lanes, tile, true, true, false);
    else if (t->has_bias && use_max)
        add_weights_as(dots, band_dots, t, first, steps, lanes, tile, true, false, true);
    else if (t->has_bias)
        add_weights_as(dots, band_dots, t, first, steps, lanes, tile, true, false, false);
    else if (use_max)
        add_weights_as(dots, band_dots, t, first, steps, lanes, tile, false, false, true);
    else
        add_weights_as(dots, band_dots, t, first, steps, lanes, tile, false, false, false);
}

/* Whether a tile has pairs that are not seen, and whether it has any within the band. */
static void look_at_distances(const route_side *r, int64_t first, int64_t steps, head_terms *t) {
    const weft_attention_attr *a = &ATTR(r->n, weft_route_attr)->score;
    int64_t query = r->position + (r->keys ? first : r->first);
    int64_t key = r->keys ? r->first : first, n_keys = r->keys ? r->count : steps;
    int64_t least = query - (key + n_keys - 1);
    t->has_band = a->band && least <= a->window;
    t->has_bias = least < 0 || a->pos != WEFT_POS_NONE || t->has_band;
}

/* One head of a tile. A few steps at a time: their dot products are still in the cache when they
 * become weights. */
static void add_head(const route_side *r, const head_terms *t, const passing_vectors *v,
                     const passing_vectors *band, int64_t steps, real *tile) {
    int64_t lanes = ceil_div(r->count, r->width) * r->width;
    bool use_max = ATTR(r->n, weft_route_attr)->use_max;
    for (int64_t s = 0; s < steps; s += BLOCK_ROWS) {
        int64_t block = min_i64(BLOCK_ROWS, steps - s);
        multiply_vectors(r, v->packed, v->from + s * v->row, v->row, block, r->dots);
        if (t->has_band)
            multiply_vectors(r, band->packed, band->from + s * band->row, band->row, block,
                             r->band_dots);
        add_weights(r->dots, r->band_dots, t, s, block, lanes, use_max, tile);
    }
}

void route_tile(const route_side *r, int64_t first, int64_t steps, real *tile) {
    const weft_route_attr *attr = ATTR(r->n, weft_route_attr);
    const weft_attention_attr *a = &attr->score;
    vectors fixed = find_vectors(r->n, r->keys), passing = find_vectors(r->n, !r->keys);
    int64_t vector = ROUTE_LANES * a->dqk;
    passing_vectors v = {.head = -1}, band = {.head = -1};
    head_terms t;
    look_at_distances(r, first, steps, &t);
    memset(tile, 0, (size_t)(steps * ROUTE_LANES) * sizeof(real));
    for (int64_t h = 0; h < a->heads; h++) {
        int64_t group = h * a->kv_heads / a->heads;
        int64_t own = r->keys ? group : h, other = r->keys ? h : group;
        read_passing(r, &passing, other, first, steps, r->passing, &v);
        v.packed = r->packed + own * vector;
        if (t.has_band) read_passing(r, &fixed, own, first, steps, r->passing_other, &band);
        band.packed = r->packed_other + other * vector;
        set_head_numbers(r, h, &t);
        set_share(r, r->keys, h, t.beta, r->first, r->count, t.lane);
        set_share(r, !r->keys, h, t.beta, first, steps, t.step);
        if (t.has_bias) set_distance_tables(r, first, &t);
        add_head(r, &t, &v, &band, steps, tile);
    }
    if (attr->use_max || a->heads == 1) return;
    vreal part = vset((real)1 / (real)a->heads);
    for (int64_t i = 0; i < steps * ROUTE_LANES; i += VLEN)
        vstore(tile + i, vload(tile + i) * part);
}

enum { PRODUCT_STEPS = 2 * ROUTE_STEPS, PRODUCT_WIDTH = ROUTE_LANES };

/* steps × columns of `in` as panels of PANEL columns, padded with 0. */
static void pack_rows(const weft_exec *x, const weft_tensor *in, int64_t at, int64_t row,
                      int64_t steps, int64_t columns, real *packed) {
    real wide[PRODUCT_WIDTH] = {0};
    for (int64_t s = 0; s < steps; s++) {
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
    for (int64_t c = 0; c < columns; c += PANEL) {
        const real *panel = packed + c * PRODUCT_STEPS;
        for (int64_t lane = 0; lane < lanes; lane += BLOCK_ROWS) {
            int64_t rows = min_i64(BLOCK_ROWS, lanes - lane);
            real *out = sum + lane * ROUTE_LANES + c;
            if (add)
                multiply_rows(panel, weights + lane, 1, ROUTE_LANES, steps, out, rows,
                              BLOCK_VECTORS, true);
            else
                multiply_rows(panel, weights + lane, 1, ROUTE_LANES, steps, out, rows,
                              BLOCK_VECTORS, false);
        }
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
