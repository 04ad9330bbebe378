/* Attention's forward pass, tile by tile.
 *
 * A task is a tile of queries of one head. It walks the keys tile by tile and keeps, for each
 * query, the largest score so far, the sum of exp(score − largest) and the output summed with the
 * same weights; when the largest score grows, the two sums are scaled down. So a row's scores exist
 * only for one tile of keys at a time.
 *
 * Everything is kept with queries in the vectors' lanes: scores are [key][query], the output is
 * [dv][query]. Then the softmax is lane-wise, and the weights are already packed as the second
 * product wants them. The keys' tile is packed once a task and used for every panel of TILE_N
 * queries; a panel ends at its last visible key, so little above the diagonal is computed. */
#include "cpu/attention_bf16.h"

#define LOWEST ((real)-1e30)

enum { KEY_TILE = 64, QUERY_TILE_MAX = 512, QUERY_TILE_MIN = 32, TASKS_WANTED = 64 };

typedef struct {
    attention_problem p;
    head_rows o;
    real *lse;
    const real *distance_bias; /* log2 e · rel[place − key] at [place − key + KEY_TILE],
                                filled up with 0 */
    int64_t query_tile, tiles;
    real *scratch;
    int64_t scratch_size; /* reals a thread */
} forward;

/* Where a thread keeps its task; sizes in comments. Scores are multiples of ln 2. */
typedef struct {
    real *queries;      /* [query_tile / TILE_N][dqk][TILE_N], times scale · log2 e */
    real *output;       /* [query_tile / TILE_N][dv][TILE_N] */
    real *top;          /* [query_tile] the largest score so far */
    real *sum;          /* [query_tile] */
    real *hidden;       /* [query_tile] keys that a query does not see, where some are hidden */
    real *keys;         /* [KEY_TILE / TILE_M][dqk][TILE_M] */
    real *values;       /* [dv / TILE_M][KEY_TILE][TILE_M] */
    real *bias;         /* [KEY_TILE] log2 e · beta · n */
    real *scores;       /* [KEY_TILE][TILE_N] */
    real *swapped;      /* band: [KEY_TILE][TILE_N] ⟨q_j, k_i⟩ */
    real *band_keys;    /* band: keys at the queries' places, as `queries` */
    real *band_queries; /* band: queries at the keys' places, as `keys` */
    real *widened;      /* a panel of rows and one more, for bf16 and for the way out */
} forward_scratch;

/* One task: its tile, its head, its scratch. */
typedef struct {
    const forward *f;
    forward_scratch s;
    head_numbers head;
    int64_t b, h, kv;
    int64_t q0, n_queries; /* the tile */
    real slope;            /* log2 e · the head's */
    real softcap;          /* log2 e · the score's */
} query_task;

/* Larger tiles pack the keys less often; smaller ones give more tasks. By the shape alone. */
static int64_t choose_query_tile(const weft_attention_attr *a) {
    int64_t tile = QUERY_TILE_MAX;
    while (
        tile > QUERY_TILE_MIN &&
        (a->batch * a->heads * ceil_div(a->queries, tile) < TASKS_WANTED || tile / 2 >= a->queries))
        tile /= 2;
    return round_up(tile, TILE_N);
}

static forward_scratch lay_out_scratch(const weft_attention_attr *a, int64_t tile, real_block *at) {
    int64_t dv = round_up(a->dv, TILE_M), width = max_i64(a->dqk, dv);
    forward_scratch s = {
        .queries = take_operand(at, tile * a->dqk),
        .output = take_reals(at, tile * dv),
        .top = take_reals(at, tile),
        .sum = take_reals(at, tile),
        .hidden = take_reals(at, tile),
        .keys = take_reals(at, KEY_TILE * a->dqk),
        .values = take_reals(at, KEY_TILE * dv),
        .bias = take_reals(at, KEY_TILE),
        .scores = take_operand(at, KEY_TILE * TILE_N),
        .widened = take_reals(at, (max_i64(TILE_M, TILE_N) + 1) * width),
    };
    if (a->band) {
        s.swapped = take_reals(at, KEY_TILE * TILE_N);
        s.band_keys = take_reals(at, tile * a->dqk);
        s.band_queries = take_reals(at, KEY_TILE * a->dqk);
    }
    return s;
}

static int64_t scratch_size(const weft_attention_attr *a) {
    real_block measure = {NULL, 0};
    lay_out_scratch(a, choose_query_tile(a), &measure);
    return measure.used;
}

/* Places reach past the last key in the last tile's empty lanes. */
static int64_t distance_bias_size(const weft_attention_attr *a) {
    return a->pos == WEFT_POS_RELATIVE ? a->keys + KEY_TILE + QUERY_TILE_MAX + TILE_N : 0;
}

static int64_t attention_workspace(const weft_node *n, int threads) {
    if (HAS_BF16_TILES && KERNEL(attention_bf16_runs)(n))
        return KERNEL(attention_bf16).workspace(n, threads);
    const weft_attention_attr *a = ATTR(n, weft_attention_attr);
    return real_bytes(distance_bias_size(a)) + threads * scratch_size(a) * (int64_t)sizeof(real);
}

/* Products of the keys before `seen`, each started from its key's number; `top` grows to the largest
 * of those before `whole`, a multiple of TILE_M. */
static __attribute__((noinline)) void multiply_keys(real *scores, const real *keys,
                                                    const real *queries, const real *bias,
                                                    int64_t whole, int64_t seen, int64_t d,
                                                    real *top) {
    vreal most[TILE_V];
    for (int v = 0; v < TILE_V; v++)
        most[v] = vload(top + v * VLEN);
    for (int64_t j = 0; j < whole; j += TILE_M)
        multiply_block(TILE_ROWS, scores + j * TILE_N, TILE_N, keys + j * d, TILE_M, queries,
                       TILE_N, d, bias + j, NULL, most);
    for (int64_t j = whole; j < seen; j += TILE_M)
        multiply_block(TILE_ROWS, scores + j * TILE_N, TILE_N, keys + j * d, TILE_M, queries,
                       TILE_N, d, bias + j, NULL, NULL);
    for (int v = 0; v < TILE_V; v++)
        vstore(top + v * VLEN, most[v]);
}

/* The band's part joins the scores of the first `seen` keys. */
static void add_band(const query_task *t, int64_t lane0, int64_t key0, int64_t seen) {
    const forward_scratch *s = &t->s;
    const weft_attention_attr *a = t->f->p.a;
    int64_t d = a->dqk, place = t->q0 + lane0;
    vreal alpha = vset((real)a->band_alpha), iota = viota();
    for (int64_t j = 0; j < seen; j += TILE_M)
        multiply_block(TILE_SET, s->swapped + j * TILE_N, TILE_N, s->band_queries + j * d, TILE_M,
                       s->band_keys + lane0 * d, TILE_N, d, NULL, NULL, NULL);
    for (int64_t j = 0; j < seen; j++)
        for (int64_t v = 0; v < TILE_N; v += VLEN) {
            real *at = s->scores + j * TILE_N + v;
            vint inside = iota + (real)(place + v - key0 - j) <= (real)a->window;
            vreal add = alpha * vload(s->swapped + j * TILE_N + v);
            vstore(at, vload(at) + vselect(inside, add, vset(0)));
        }
}

/* The position's part of the scores of one key for VLEN queries from `place`. */
static ALWAYS_INLINE vreal position_part(const query_task *t, int64_t place, int64_t key) {
    if (t->f->distance_bias) return vload(t->f->distance_bias + KEY_TILE + place - key);
    return -t->slope * vabs(viota() + (real)(place - key));
}

/* What is missing in the scores of keys [from, to) of the tile: the position's part, the soft-cap, −inf
 * where a query does not see a key; `hidden`: of each lane, or NULL. Keeps each lane's largest in `top`. */
static ALWAYS_INLINE void finish_scores(const query_task *t, int64_t place, int64_t key0,
                                        int64_t from, int64_t to, bool masked, const real *hidden,
                                        bool position, vreal top[TILE_V]) {
    vreal iota = viota(), unseen = vset(-INFINITY), slope;
    real *scores = t->s.scores;
    for (int64_t j = from; j < to; j++)
        UNROLLED(v, TILE_V) {
            real *at = scores + j * TILE_N + v * VLEN;
            vreal x = vload(at);
            int64_t lane = place + v * VLEN;
            if (position) x += position_part(t, lane, key0 + j);
            if (t->softcap > 0) x = vsoftcap(x, t->softcap, &slope);
            if (hidden) x = vselect(vload(hidden + v * VLEN) <= vset((real)(key0 + j)), x, unseen);
            if (masked) x = vselect(iota + (real)(lane - key0 - j) >= 0, x, unseen);
            vstore(at, x);
            top[v] = vmax(x, top[v]);
        }
}

/* Scores of a panel: the first `seen` keys of the tile at key0 for the query lanes from `lane0`.
 * `top` is the lanes' largest so far and grows. */
static void score_panel(const query_task *t, int64_t lane0, int64_t key0, int64_t seen, real *top) {
    const forward_scratch *s = &t->s;
    const weft_attention_attr *a = t->f->p.a;
    int64_t place = t->q0 + lane0;
    int64_t all_see = a->causal ? max_i64(0, min_i64(seen, place + 1 - key0)) : seen;
    bool band = a->band && place - (key0 + seen - 1) <= a->window;
    bool position = a->pos != WEFT_POS_NONE;
    const real *hidden = hides_keys(&t->f->p) ? s->hidden + lane0 : NULL;
    if (hidden && (int64_t)hidden[TILE_N - 1] <= key0) hidden = NULL;
    /* Scores that are finished by the product itself. */
    int64_t whole = all_see / TILE_M * TILE_M;
    if (band || position || hidden || t->softcap > 0) whole = 0;
    multiply_keys(s->scores, s->keys, s->queries + lane0 * a->dqk, s->bias, whole, seen, a->dqk,
                  top);
    if (whole == seen) return;
    if (band) add_band(t, lane0, key0, seen);
    vreal most[TILE_V];
    for (int v = 0; v < TILE_V; v++)
        most[v] = vload(top + v * VLEN);
    if (hidden) {
        finish_scores(t, place, key0, 0, seen, true, hidden, position, most);
    } else if (position) {
        finish_scores(t, place, key0, 0, all_see, false, NULL, true, most);
        finish_scores(t, place, key0, all_see, seen, true, NULL, true, most);
    } else {
        finish_scores(t, place, key0, whole, all_see, false, NULL, false, most);
        finish_scores(t, place, key0, all_see, seen, true, NULL, false, most);
    }
    for (int v = 0; v < TILE_V; v++)
        vstore(top + v * VLEN, most[v]);
}

/* Scores of some keys to weights, which are added to `sum`. */
static ALWAYS_INLINE void softmax_keys(real *scores, int keys, const vreal top[TILE_V],
                                       vreal sum[TILE_V]) {
    vreal weight[2 * TILE_V];
    UNROLLED(v, keys * TILE_V)
        weight[v] = vexp2_low(vload(scores + v * VLEN) - top[v % TILE_V]);
    UNROLLED(v, keys * TILE_V) {
        vstore(scores + v * VLEN, weight[v]);
        sum[v % TILE_V] += weight[v];
    }
}

/* Scores of a panel to weights, `largest` being the lanes' largest score. Returns by `rescale` what
 * the sums so far are worth now. */
static __attribute__((noinline)) void softmax_panel(const query_task *t, int64_t lane0,
                                                    int64_t seen, const real *largest,
                                                    real *rescale) {
    vreal top[TILE_V], sum[TILE_V];
    for (int v = 0; v < TILE_V; v++) {
        real *old = t->s.top + lane0 + v * VLEN;
        top[v] = vload(largest + v * VLEN);
        vstore(rescale + v * VLEN, vexp2_low(vload(old) - top[v]));
        vstore(old, top[v]);
        sum[v] = vset(0);
    }
    /* The rest two keys at a time, so that their exponentials overlap. */
    int64_t j = softmax_many(t->s.scores, seen, top, sum);
    for (; j + 2 <= seen; j += 2)
        softmax_keys(t->s.scores + j * TILE_N, 2, top, sum);
    if (j < seen) softmax_keys(t->s.scores + j * TILE_N, 1, top, sum);
    for (int v = 0; v < TILE_V; v++) {
        real *at = t->s.sum + lane0 + v * VLEN;
        vstore(at, vload(at) * vload(rescale + v * VLEN) + sum[v]);
    }
}

static __attribute__((noinline)) void add_values(real *output, const real *values,
                                                 const real *weights, int64_t seen, int64_t dv,
                                                 const real *rescale) {
    for (int64_t d = 0; d < dv; d += TILE_M)
        multiply_block(TILE_RESCALE, output + d * TILE_N, TILE_N, values + d * KEY_TILE, TILE_M,
                       weights, TILE_N, seen, NULL, rescale, NULL);
}

static void begin_tile(const query_task *t) {
    const attention_problem *p = &t->f->p;
    const forward_scratch *s = &t->s;
    int64_t lanes = round_up(t->n_queries, TILE_N), dv = round_up(p->a->dv, TILE_M);
    real factor = LOG2_E * t->head.scale;
    pack_across(p, &p->q, t->b, t->h, t->q0, t->n_queries, TILE_N, factor, s->queries, s->widened);
    if (p->a->band)
        pack_across(p, &p->k, t->b, t->kv, t->q0, t->n_queries, TILE_N, factor, s->band_keys,
                    s->widened);
    memset(s->output, 0, (size_t)(lanes * dv) * sizeof(real));
    bool hides = hides_keys(p);
    for (int64_t i = 0; i < lanes; i++) {
        /* A lane that sees nothing of a tile must not have an infinite difference of scores. */
        s->top[i] = hides ? LOWEST : -INFINITY;
        s->sum[i] = 0;
        int64_t row = t->q0 + min_i64(i, t->n_queries - 1);
        s->hidden[i] = hides ? (real)first_key_of(p, t->b, row) : 0;
    }
}

WEFT_TASK(attend_tile, const forward *f) {
    const weft_attention_attr *a = f->p.a;
    real_block memory = {f->scratch + thread * f->scratch_size, 0};
    int64_t bh = task / f->tiles, tile = f->tiles - 1 - task % f->tiles;
    query_task t = {.f = f, .b = bh / a->heads, .h = bh % a->heads, .q0 = tile * f->query_tile};
    t.s = lay_out_scratch(a, f->query_tile, &memory);
    t.kv = key_head_of(a, t.h);
    t.head = numbers_of_head(&f->p, t.h);
    t.slope = LOG2_E * t.head.slope;
    t.softcap = LOG2_E * (real)a->softcap;
    t.n_queries = min_i64(f->query_tile, a->queries - t.q0);
    begin_tile(&t);
    const attention_problem *p = &f->p;
    const forward_scratch *s = &t.s;
    int64_t end = a->causal ? t.q0 + t.n_queries : a->keys, dv = round_up(a->dv, TILE_M);
    int64_t first = first_key_of(&f->p, t.b, t.q0) / KEY_TILE * KEY_TILE;
    for (int64_t key0 = first; key0 < end; key0 += KEY_TILE) {
        int64_t n_keys = min_i64(KEY_TILE, end - key0);
        pack_across(p, &p->k, t.b, t.kv, key0, n_keys, TILE_M, 1, s->keys, s->widened);
        pack_along(p, &p->v, t.b, t.kv, key0, n_keys, TILE_M, KEY_TILE, 1, s->values, s->widened);
        const real *n = p->n ? p->n + (t.b * a->kv_heads + t.kv) * a->keys + key0 : NULL;
        for (int64_t j = 0; j < KEY_TILE; j++)
            s->bias[j] = n && j < n_keys ? LOG2_E * t.head.beta * n[j] : 0;
        if (a->band && t.q0 - (key0 + n_keys - 1) <= a->window)
            pack_across(p, &p->q, t.b, t.h, key0, n_keys, TILE_M, 1, s->band_queries, s->widened);
        for (int64_t lane0 = 0; lane0 < t.n_queries; lane0 += TILE_N) {
            int64_t seen = n_keys;
            /* The keys and values of the tile after key0, a part for each of the query panels. */
            int64_t rows = ceil_div(KEY_TILE * TILE_N, t.n_queries);
            int64_t ahead = key0 + KEY_TILE + lane0 / TILE_N * rows;
            prefetch_rows(p, &p->k, t.b, t.kv, ahead, rows, end);
            prefetch_rows(p, &p->v, t.b, t.kv, ahead, rows, end);
            if (a->causal) seen = min_i64(seen, t.q0 + lane0 + TILE_N - key0);
            if (seen <= 0 || (real)(key0 + seen) <= t.s.hidden[lane0]) continue;
            real top[TILE_V * VBYTES / sizeof(real)], rescale[TILE_V * VBYTES / sizeof(real)];
            memcpy(top, t.s.top + lane0, sizeof top);
            score_panel(&t, lane0, key0, seen, top);
            softmax_panel(&t, lane0, seen, top, rescale);
            add_values(t.s.output + lane0 * dv, t.s.values, t.s.scores, seen, dv, rescale);
        }
    }
    for (int64_t i = 0; i < t.n_queries; i++) {
        /* A panel of the output, [dv][TILE_N], to rows [TILE_N][dv]. */
        for (int64_t d = 0; i % TILE_N == 0 && d < dv; d += 4)
            for (int64_t lane = 0; lane < TILE_N; lane += 4) {
                const real *four[4];
                for (int64_t r = 0; r < 4; r++)
                    four[r] = s->output + i * dv + (d + r) * TILE_N + lane;
                transpose_block(four, 1, s->widened + lane * dv + d, dv);
            }
        const real *from = s->widened + i % TILE_N * dv;
        int64_t at = head_row_at(&f->o, t.b, t.q0 + i, t.h);
        real *to = tile_out(f->p.x, f->o.t, at, s->widened + TILE_N * dv), factor = 1 / s->sum[i];
        for (int64_t d = 0; d < a->dv; d++)
            to[d] = from[d] * factor;
        tile_done(f->p.x, f->o.t, at, a->dv, to);
        f->lse[(t.b * a->heads + t.h) * a->queries + t.q0 + i] =
            LN_2 * s->top[i] + (real)log((double)s->sum[i]);
    }
}

DEFINE_KERNEL(attention, .workspace = attention_workspace) {
    if (HAS_BF16_TILES && KERNEL(attention_bf16_runs)(n)) return KERNEL(attention_bf16).run(x, n);
    forward f = {.p = make_problem(x, n, n->in)};
    const weft_attention_attr *a = f.p.a;
    real_block memory = {weft_workspace(x, n), 0};
    f.o = make_head_rows(n->out[0], a->heads, a->dv, a->queries);
    f.lse = weft_data(x, n->out[1]);
    f.query_tile = choose_query_tile(a);
    f.tiles = ceil_div(a->queries, f.query_tile);
    int64_t distances = distance_bias_size(a);
    real *bias = take_reals(&memory, distances);
    for (int64_t i = 0; i < distances; i++) {
        int64_t distance = i - KEY_TILE;
        bool known = distance >= 0 && distance < f.p.distances;
        bias[i] = known ? LOG2_E * f.p.rel[distance] : 0;
    }
    if (distances) f.distance_bias = bias;
    f.scratch = memory.base + memory.used;
    f.scratch_size = scratch_size(a);
    return run_tasks(x, a->batch * a->heads * f.tiles, attend_tile, &f);
}
