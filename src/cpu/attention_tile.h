/* What attention's forward and backward kernels share: the problem's shape and numbers, tiles
 * packed so that a small matrix product reads them in order, and that product itself.
 *
 * The product is C[m][n] (+)= Σ_k A[k][m] B[k][n] on a block of TILE_M × TILE_N that stays in
 * registers: for each k the TILE_N numbers of B are a few vectors, and each of A's numbers is
 * spread over a vector. Both operands are packed in panels as wide as the block, k outermost, so
 * that one step reads consecutive memory. A matrix of rows is packed in one of two ways:
 *
 *     across  panels of W rows;    to[r / W][c][r % W]: the product then runs over its columns
 *     along   panels of W columns; to[c / W][r][c % W]: the product then runs over its rows, of which
 *             only `room` are packed together
 *
 * Packing widens bf16 and fills up the last panel with zeros, so the products need no edges. */
#pragma once

#include "cpu/vec.h"
#include "ops/attention.h"

/* Sixteen accumulators where there are 32 vector registers, eight where there are 16. TILE_N is a
 * multiple of TILE_M, so that a panel of one width is made of whole panels of the other. */
#if defined(__aarch64__) && WEFT_REAL == 64
#define TILE_M 4
#define TILE_V 4
#elif defined(__aarch64__) || defined(__AVX512F__)
#define TILE_M 8
#define TILE_V 2
#else
#define TILE_M 4
#define TILE_V 2
#endif
#define TILE_N ((int64_t)(TILE_V * VBYTES / sizeof(real)))

/* One of q, k, v, o and their gradients as rows of `width` for a sequence, a position and a head. */
typedef struct {
    const weft_tensor *t;
    int64_t base, batch, row, width; /* first element; strides of sequence and position */
} head_rows;

static inline int64_t head_row_at(const head_rows *r, int64_t b, int64_t pos, int64_t head) {
    return r->base + b * r->batch + pos * r->row + head * r->width;
}

static inline head_rows make_head_rows(const weft_tensor *t, int64_t heads, int64_t width,
                                       int64_t positions) {
    return (head_rows){t, 0, positions * heads * width, heads * width, width};
}

/* A view of query heads, key heads or value heads: tensors of their own, or
 * parts of a packed one, which is the first of `from`: q, k, v or their gradients. */
static inline void make_projections(const weft_attention_attr *a, weft_tensor *const *from,
                                    head_rows *q, head_rows *k, head_rows *v) {
    int64_t heads = a->packed ? a->heads + 2 * a->kv_heads : a->heads;
    *q = *k = *v = make_head_rows(from[WEFT_ATTN_Q], heads, a->dqk, a->queries);
    k->base = a->heads * a->dqk;
    v->base = (a->heads + a->kv_heads) * a->dqk;
    if (a->packed) return;
    *k = make_head_rows(from[WEFT_ATTN_K], a->kv_heads, a->dqk, a->keys);
    *v = make_head_rows(from[WEFT_ATTN_V], a->kv_heads, a->dv, a->keys);
}

typedef struct {
    weft_exec *x;
    const weft_node *node;
    const weft_attention_attr *a;
    head_rows q, k, v;
    const real *n, *scale, *beta, *log_tau, *rel;
    const int32_t *first;
    int64_t distances; /* numbers in rel */
} attention_problem;

/* Attention keeps its scores as multiples of ln 2: a weight is then 2^score, which is cheaper than
 * e^score. The factor goes into what the scores are made of. */
#define LOG2_E ((real)1.4426950408889634073599246810019)
#define LN_2 ((real)0.69314718055994530941723212145818)

/* The numbers of a head. */
typedef struct {
    real scale, beta, slope;
    double tau_factor; /* d s / d log τ = tau_factor · (s − pos) */
} head_numbers;

static inline attention_problem make_problem(weft_exec *x, const weft_node *n,
                                             weft_tensor *const *in) {
    attention_problem p = {.x = x, .node = n, .a = ATTR(n, weft_attention_attr)};
    make_projections(p.a, in, &p.q, &p.k, &p.v);
    p.n = weft_data(x, in[WEFT_ATTN_N]);
    p.scale = weft_data(x, in[WEFT_ATTN_SCALE]);
    p.beta = weft_data(x, in[WEFT_ATTN_BETA]);
    p.log_tau = weft_data(x, in[WEFT_ATTN_LOG_TAU]);
    p.rel = weft_data(x, in[WEFT_ATTN_REL]);
    p.first = weft_data(x, in[WEFT_ATTN_FIRST]);
    p.distances = p.rel ? weft_tensor_count(in[WEFT_ATTN_REL]) : 0;
    return p;
}

/* The first key that query i of a sequence sees; it does not fall from one query to the next. */
static inline int64_t first_key_of(const attention_problem *p, int64_t b, int64_t i) {
    const weft_attention_attr *a = p->a;
    int64_t first = a->reach ? max_i64(0, i + 1 - a->reach) : 0;
    return p->first ? max_i64(first, p->first[b * a->queries + i]) : first;
}

/* Whether some query may not see the first key. */
static inline bool hides_keys(const attention_problem *p) {
    return p->first || p->a->reach;
}

/* How many queries of a sequence, counted from the first, see one of the keys before `end` or none at
 * all: those behind them do not. */
static inline int64_t queries_before(const attention_problem *p, int64_t b, int64_t end) {
    int64_t low = 0, high = p->a->queries;
    if (!hides_keys(p)) return high;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (first_key_of(p, b, middle) < end)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static inline int64_t key_head_of(const weft_attention_attr *a, int64_t h) {
    return h * a->kv_heads / a->heads;
}

static inline head_numbers numbers_of_head(const attention_problem *p, int64_t h) {
    head_numbers f = {.scale = (real)p->a->scale_value};
    if (p->scale) f.scale = p->scale[h];
    if (p->beta) f.beta = p->beta[h];
    if (p->log_tau) {
        double tau = exp((double)p->log_tau[h]), eps = 1e-6;
        f.scale = (real)(2 / (tau + eps));
        f.beta = (real)(-1 / (tau + eps));
        f.tau_factor = -tau / (tau + eps);
    }
    if (p->a->pos == WEFT_POS_ALIBI) f.slope = (real)weft_alibi_slope(h, p->a->heads);
    return f;
}

/* Memory given out piece by piece, each aligned. Without a base it only counts. */
typedef struct {
    real *base;
    int64_t used; /* reals */
} real_block;

static inline real *take_reals(real_block *block, int64_t n) {
    int64_t at = block->used;
    block->used += real_bytes(n) / (int64_t)sizeof(real);
    return block->base ? block->base + at : NULL;
}

/* The same for the second operand of a product: a product reads both operands in step, and is faster
 * where they do not lie a multiple of 128 bytes apart. Both then start at multiples of 64. */
static inline real *take_operand(real_block *block, int64_t n) {
    const int64_t line = 64 / (int64_t)sizeof(real);
    real *at = take_reals(block, n + 2 * line);
    return at ? at + line : NULL;
}

/* Asks for one of `parts` equal parts of `count` reals. */
static ALWAYS_INLINE void prefetch_part(const real *at, int64_t count, int64_t part,
                                        int64_t parts) {
    int64_t size = count / parts;
    for (int64_t i = 0; i < size; i += 64 / (int64_t)sizeof(real))
        __builtin_prefetch(at + part * size + i);
}

/* to[c][r] = from[r][c] · factor for a block of 4 × 4. */
static ALWAYS_INLINE void transpose_block(const real *const from[4], real factor, real *to,
                                          int64_t ld) {
    transpose_quads(load_quad(from[0]) * factor, load_quad(from[1]) * factor,
                    load_quad(from[2]) * factor, load_quad(from[3]) * factor, to, ld);
}

/* to[c][r] = row[r][c] · factor, `panel` rows (a multiple of 4) of `width` numbers. */
static inline void transpose_rows(const real *const *row, int64_t panel, int64_t width, real factor,
                                  real *to) {
    int64_t whole = width / 4 * 4;
    for (int64_t c = 0; c < whole; c += 4)
        for (int64_t i = 0; i < panel; i += 4) {
            const real *at[4] = {row[i] + c, row[i + 1] + c, row[i + 2] + c, row[i + 3] + c};
            transpose_block(at, factor, to + c * panel + i, panel);
        }
    for (int64_t c = whole; c < width; c++)
        for (int64_t i = 0; i < panel; i++)
            to[c * panel + i] = row[i][c] * factor;
}

/* Asks for rows r0 .. r0+rows-1 of a head, as far as there are any before `end`. A head's rows lie
 * apart, so the machine does not guess the next one by itself. Into the second cache: the first has
 * few places for what is on its way, and holds the tiles. */
static inline void prefetch_rows(const attention_problem *p, const head_rows *from, int64_t b,
                                 int64_t head, int64_t r0, int64_t rows, int64_t end) {
    const char *data = weft_data(p->x, from->t);
    int64_t size = from->t->dtype == WEFT_BF16 ? 2 : (int64_t)sizeof(real);
    for (int64_t r = r0; r < min_i64(r0 + rows, end); r++) {
        const char *row = data + head_row_at(from, b, r, head) * size;
        for (int64_t at = 0; at < from->width * size; at += 64)
            __builtin_prefetch(row + at, 0, 2);
    }
}

/* Rows r0 .. r0+rows-1 of a head times `factor`, packed across; `widened` holds
 * `panel` rows, for bf16. */
static inline void pack_across(const attention_problem *p, const head_rows *from, int64_t b,
                               int64_t head, int64_t r0, int64_t rows, int64_t panel, real factor,
                               real *to, real *widened) {
    int64_t width = from->width;
    const void *data = weft_data(p->x, from->t);
    bool bf16 = from->t->dtype == WEFT_BF16;
    for (int64_t r = 0; r < rows; r += panel, to += panel * width) {
        int64_t filled = min_i64(panel, rows - r);
        prefetch_rows(p, from, b, head, r0 + r + panel, panel, r0 + rows);
        const real *row[64];
        for (int64_t i = 0; i < filled; i++)
            row[i] = row_in(data, bf16, head_row_at(from, b, r0 + r + i, head), width,
                            widened + i * width);
        if (filled == panel && panel % 4 == 0) {
            transpose_rows(row, panel, width, factor, to);
            continue;
        }
        memset(to, 0, (size_t)(panel * width) * sizeof(real));
        for (int64_t c = 0; c < width; c++)
            for (int64_t i = 0; i < filled; i++)
                to[c * panel + i] = row[i][c] * factor;
    }
}

/* The same rows times `factor`, packed along, each `room` of them apart. Some rows at a time, of which
 * `widened` holds TILE_M, so that a panel's lines are filled at once. */
static inline void pack_along(const attention_problem *p, const head_rows *from, int64_t b,
                              int64_t head, int64_t r0, int64_t rows, int64_t panel, int64_t room,
                              real factor, real *to, real *widened) {
    int64_t width = from->width, block = room * round_up(width, panel);
    int64_t whole = width / panel * panel;
    const void *data = weft_data(p->x, from->t);
    bool bf16 = from->t->dtype == WEFT_BF16;
    for (int64_t r = 0; r < rows; r += TILE_M) {
        int64_t filled = min_i64(TILE_M, rows - r);
        const real *row[TILE_M];
        for (int64_t i = 0; i < filled; i++)
            row[i] = row_in(data, bf16, head_row_at(from, b, r0 + r + i, head), width,
                            widened + i * width);
        real *at = to + r / room * block + r % room * panel;
        for (int64_t c = 0; c < whole; c += panel, at += panel * room)
            for (int64_t i = 0; i < filled; i++)
                for (int64_t e = 0; e < panel; e += 4)
                    store_quad(at + i * panel + e, load_quad(row[i] + c + e) * factor);
        for (int64_t i = 0; whole < width && i < filled; i++)
            for (int64_t e = 0; e < panel; e++)
                at[i * panel + e] = whole + e < width ? row[i][whole + e] * factor : 0;
    }
}

/* What a block of C starts from: nothing; what C holds; that times a factor per column; a number per
 * row; the sum of one per row and one per column. */
enum { TILE_SET, TILE_ADD, TILE_RESCALE, TILE_ROWS, TILE_SUMS };

/* One block: C = start + AB. Where `top` is not NULL, it becomes the largest of itself and C's rows.
 * Columns before rows in the innermost step: gcc keeps that order, and the machine likes it. */
static ALWAYS_INLINE void multiply_block(int start, real *c, int64_t ldc, const real *a,
                                         int64_t lda, const real *b, int64_t ldb, int64_t depth,
                                         const real *rows, const real *columns, vreal *top) {
    vreal acc[TILE_M][TILE_V];
    UNROLLED(m, TILE_M)
        UNROLLED(v, TILE_V) {
            acc[m][v] = vset(start == TILE_ROWS || start == TILE_SUMS ? rows[m] : 0);
            if (start == TILE_ADD || start == TILE_RESCALE)
                acc[m][v] = vload(c + m * ldc + v * VLEN);
            if (start == TILE_RESCALE) acc[m][v] *= vload(columns + v * VLEN);
            if (start == TILE_SUMS) acc[m][v] += vload(columns + v * VLEN);
        }
    for (int64_t k = 0; k < depth; k++, a += lda, b += ldb) {
        vreal bv[TILE_V];
        UNROLLED(v, TILE_V)
            bv[v] = vload(b + v * VLEN);
#if defined(__aarch64__)
        vreal av[TILE_M * sizeof(real) / VBYTES];
#pragma GCC unroll 8
        for (int m = 0; m < TILE_M; m += (int)VLEN)
            av[m / VLEN] = vload(a + m);
#define TILE_SPREAD(m) av[(m) / VLEN][(m) % VLEN]
#else
#define TILE_SPREAD(m) a[m]
#endif
        UNROLLED(v, TILE_V)
            UNROLLED(m, TILE_M)
                acc[m][v] += TILE_SPREAD(m) * bv[v];
#undef TILE_SPREAD
    }
    UNROLLED(m, TILE_M)
        UNROLLED(v, TILE_V) {
            vstore(c + m * ldc + v * VLEN, acc[m][v]);
            if (top) top[v] = vmax(acc[m][v], top[v]);
        }
}

/* cap · tanh(s / cap), and its slope by s. */
static ALWAYS_INLINE vreal vsoftcap(vreal s, real cap, vreal *slope) {
    vreal t = vtanh(s * (1 / cap));
    *slope = 1 - t * t;
    return cap * t;
}

static inline vreal viota(void) {
    vreal v = {0};
    for (int i = 0; i < (int)VLEN; i++)
        v[i] = (real)i;
    return v;
}
