/* Linear, softmax and cross-entropy on the CPU, the logits in parts.
 *
 * The loss alone: the [N, V] logits are taken tile by tile. x is copied for the product's kernel once,
 * the table some words at a time. A task makes one tile in its thread's scratch and leaves, for each of
 * its rows, the maximum and the sum of exponentials there; a tile that holds a row's target leaves that
 * logit too. A second pass joins each row's pieces in the order of the vocabulary.
 *
 * With gradients: some rows at a time, whole, so that their lse is known before the next rows come.
 * The tiles' exponentials go to one matrix [rows, V]; a factor for each row and piece then makes them
 * the gradient of the logits, and two products give dx of these rows and add to dw. One exponential a
 * logit, three products, never more than some rows of logits. Each part reads the table twice and dw
 * once, and copies the table: so a part has as many rows as PART_BYTES hold. Where both products round the
 * matrix to bf16, it is kept as that; a target's gradient, p - 1, is then made of the logit itself. */
#include "cpu/cross_entropy.h"

#include "cpu/chunks.h"

enum {
    PART_BYTES = 1 << 28,      /* of logits that are held at a time with gradients, about; */
    PART_BYTES_BF16 = 3 << 25, /* as bf16 nearly as many rows */
    PART_ROWS = 64,            /* and no fewer rows than this */
    WORD_VALUES = 1 << 22,     /* of the table that are copied at a time, about */
    JOIN_ROWS = 64             /* rows a task of the second pass joins; a multiple of VLEN */
};

typedef struct {
    const weft_exec *x;
    const weft_node *n;
    const int32_t *targets; /* [N] */
    entropy_part part;
    gemm_product logits; /* of the part */
    gemm_cut cut;
    gemm_product in_hand; /* the words of it that are copied, */
    int64_t piece;        /* from this piece on */
    gemm_matrix kept;     /* [rows, V] of the part; data NULL: the tiles are not kept */
    real *most, *sum; /* [pieces, rows]: of each row's tile, its maximum and Σ exp(l − maximum) */
    real *target_logit;   /* [N]: the target's logit */
    char *rows, *columns; /* x and words as the product's kernel reads them */
    char *scratch;        /* [threads][scratch_bytes] */
    int64_t scratch_bytes;
    char *product_space;
    entropy_upstream upstream;
    real softcap;
} entropy_work;

/* The maximum of a row and the sum of exponentials below it, which take the row's place, each times the
 * slope of a soft-cap c where there is one. */
static void measure_row(real *l, int64_t n, real c, real *most, real *sum) {
    vreal top = vset(-INFINITY), total = vset(0);
    int64_t i = 0;
    for (; i + VLEN <= n; i += VLEN)
        top = vmax(top, vload(l + i));
    real high = vmax_lane(top);
    for (; i < n; i++)
        high = l[i] > high ? l[i] : high;
    *most = high;
    if (high == -INFINITY) high = 0;
    for (i = 0; i + VLEN <= n; i += VLEN) {
        vreal v = vload(l + i), e = vexp(v - high);
        vstore(l + i, c > 0 ? e * vcap_slope(v, c) : e);
        total += e;
    }
    *sum = vsum(total);
    if (i == n) return;
    vreal v = vload_part(l + i, n - i), e = vexp(v - high);
    vstore_part(l + i, c > 0 ? e * vcap_slope(v, c) : e, n - i);
    for (int64_t j = 0; j < n - i; j++)
        *sum += e[j];
}

/* An odd number of cache lines from row to row of a tile: they would else lie in the same few sets. */
static int64_t tile_ld(const gemm_cut *cut) {
    return ceil_div(cut->tile_n, 32) * 32 + 16;
}

static int64_t tile_bytes(const gemm_cut *cut) {
    return real_bytes(cut->tile_m * tile_ld(cut));
}

WEFT_TASK(measure_tile) {
    const entropy_work *w = context;
    entropy_tile t = tile_of(&w->in_hand, &w->cut, task);
    real *tile = (real *)(w->scratch + thread * w->scratch_bytes);
    int64_t ld = tile_ld(&w->cut), first = w->piece * w->cut.tile_n + t.place.column;
    KERNEL(gemm_one_tile)(&w->in_hand, t.place, w->rows, w->columns, tile, ld);
    for (int64_t i = 0; i < t.place.m; i++) {
        int64_t row = t.place.row + i, cell = (w->piece + t.piece) * w->part.rows + row;
        real *l = tile + i * ld;
        if (w->softcap > 0) cap_logits(l, t.place.n, w->softcap);
        int64_t target = w->targets[w->part.row + row] - first;
        if (target >= 0 && target < t.place.n) w->target_logit[w->part.row + row] = l[target];
        measure_row(l, t.place.n, w->softcap, &w->most[cell], &w->sum[cell]);
        if (!w->kept.data) continue;
        gemm_matrix to = gemm_part(w->kept, 0, row, first);
        if (to.bf16)
            round_bf16(to.data, l, t.place.n);
        else
            memcpy(to.data, l, (size_t)t.place.n * sizeof(real));
    }
}

/* lse of VLEN rows, or `count` of them, from the pieces of the vocabulary in order. */
static vreal join_pieces(const entropy_work *w, int64_t row, int64_t count) {
    vreal high = vset(-INFINITY), total = vset(0);
    for (int64_t piece = 0; piece < w->cut.columns; piece++)
        high = vmax(high, vload_part(w->most + piece * w->part.rows + row, count));
    for (int64_t piece = 0; piece < w->cut.columns; piece++) {
        int64_t cell = piece * w->part.rows + row;
        total += vload_part(w->sum + cell, count) * vexp(vload_part(w->most + cell, count) - high);
    }
    vreal lse = high;
    for (int64_t i = 0; i < count; i++)
        lse[i] += (real)log((double)total[i]);
    return lse;
}

WEFT_TASK(join_rows) {
    const entropy_work *w = context;
    real *lse = (real *)weft_data(w->x, w->n->out[WEFT_CE_LSE]) + w->part.row;
    int64_t end = min_i64((task + 1) * JOIN_ROWS, w->part.rows);
    for (int64_t row = task * JOIN_ROWS; row < end; row += VLEN) {
        int64_t count = min_i64(VLEN, end - row);
        vstore_part(lse + row, join_pieces(w, row, count), count);
    }
}

/* Exponentials of a tile to gradients of its logits. */
WEFT_TASK(differentiate_tile) {
    const entropy_work *w = context;
    const real *lse = (const real *)weft_data(w->x, w->n->out[WEFT_CE_LSE]) + w->part.row;
    entropy_tile t = tile_of(&w->logits, &w->cut, task);
    for (int64_t i = 0; i < t.place.m; i++) {
        int64_t row = t.place.row + i;
        int32_t target = w->targets[w->part.row + row];
        gemm_matrix at = gemm_part(w->kept, 0, row, t.place.column);
        real weight = row_weight(w->upstream, target, lse[row]);
        real slope = cap_slope(w->target_logit[w->part.row + row], w->softcap);
        real penalty = row_penalty(w->upstream, target);
        real above = w->most[t.piece * w->part.rows + row] - lse[row];
        real factor = vexp(vset(above))[0] * weight, *l = at.data;
        bool here = target >= t.place.column && target < t.place.column + t.place.n;
        if (at.bf16) {
            uint16_t *halves = at.data;
            for (int64_t j = 0; j < t.place.n; j++)
                halves[j] =
                    weft_float_to_bf16((float)((real)weft_bf16_to_float(halves[j]) * factor));
            if (!here) continue;
            real chance = vexp(vset(w->target_logit[w->part.row + row] - lse[row]))[0];
            halves[target - t.place.column] =
                weft_float_to_bf16((float)((chance * weight - penalty) * slope));
            continue;
        }
        for (int64_t j = 0; j < t.place.n; j++)
            l[j] *= factor;
        if (here) l[target - t.place.column] -= penalty * slope;
    }
}

/* Words of the table that are copied at a time: whole tiles of them. */
static int64_t words_in_hand(const gemm_product *logits, const gemm_cut *cut) {
    int64_t tiles = max_i64(WORD_VALUES / logits->k / cut->tile_n, 1);
    return min_i64(tiles * cut->tile_n, logits->n);
}

/* Sums into bf16 cannot wait for the next words (panels.c): those of dx are made as reals. */
static gemm_matrix sums_of(const weft_exec *x, const weft_tensor *dx, entropy_part part,
                           real *sums) {
    if (dx->dtype == WEFT_BF16) return (gemm_matrix){.data = sums, .ld = weft_tensor_width(dx)};
    return gemm_rows(x, dx, part.row);
}

WEFT_TASK(round_rows) {
    const entropy_work *w = context;
    gemm_matrix dx = gemm_rows(w->x, w->n->out[WEFT_CE_DX], w->part.row);
    int64_t end = min_i64((task + 1) * JOIN_ROWS, w->part.rows), width = dx.ld;
    const real *sums = (const real *)w->rows;
    for (int64_t row = task * JOIN_ROWS; row < end; row++)
        round_bf16((uint16_t *)dx.data + row * width, sums + row * width, width);
}

static void differentiate_part(weft_pool *pool, entropy_work *w) {
    const weft_tensor *dx = w->n->out[WEFT_CE_DX], *dw = w->n->out[WEFT_CE_DW];
    weft_pool_run(pool, w->cut.rows * w->cut.columns, differentiate_tile, w);
    if (dw) {
        gemm_product p = product_back(w->x, w->n, w->part, true, w->kept, gemm_rows(w->x, dw, 0),
                                      w->part.row > 0);
        KERNEL(gemm)(pool, &p, w->product_space);
    }
    if (!dx) return;
    gemm_matrix sums = sums_of(w->x, dx, w->part, (real *)w->rows);
    gemm_product p = product_back(w->x, w->n, w->part, false, w->kept, sums, false);
    KERNEL(gemm)(pool, &p, w->product_space);
    if (dx->dtype == WEFT_BF16)
        weft_pool_run(pool, ceil_div(w->part.rows, JOIN_ROWS), round_rows, w);
}

static bool has_gradients(const weft_node *n) {
    return n->out[WEFT_CE_DX] || n->out[WEFT_CE_DW];
}

/* Without its place. */
static gemm_matrix kept_matrix(const weft_node *n) {
    return (gemm_matrix){.ld = n->in[WEFT_CE_W]->shape[0],
                         .bf16 = has_gradients(n) && keeps_bf16(n)};
}

static int64_t kept_size(const weft_node *n) {
    return keeps_bf16(n) ? (int64_t)sizeof(uint16_t) : (int64_t)sizeof(real);
}

/* Rows that are taken at a time: all for the loss alone. */
static int64_t part_rows(const weft_node *n) {
    int64_t rows = weft_tensor_rows(n->in[WEFT_CE_X]);
    if (!has_gradients(n)) return rows;
    int64_t bytes = keeps_bf16(n) ? PART_BYTES_BF16 : PART_BYTES;
    int64_t most = max_i64(bytes / kept_size(n) / n->in[WEFT_CE_W]->shape[0], PART_ROWS);
    int64_t parts = ceil_div(rows, most);
    return ceil_div(rows, parts);
}

/* Bytes of the products behind the logits. */
static int64_t products_bytes(const weft_node *n, entropy_part part, int threads) {
    gemm_matrix l = kept_matrix(n);
    const weft_tensor *dw_out = n->out[WEFT_CE_DW] ? n->out[WEFT_CE_DW] : n->in[WEFT_CE_W];
    gemm_matrix sums = sums_of(NULL, n->in[WEFT_CE_X], part, NULL);
    gemm_product dx = product_back(NULL, n, part, false, l, sums, false);
    gemm_product dw = product_back(NULL, n, part, true, l, gemm_rows(NULL, dw_out, 0), true);
    return max_i64(KERNEL(gemm_workspace)(&dx, threads), KERNEL(gemm_workspace)(&dw, threads));
}

/* The workspace from `at` on, for a part of `rows`; returns its bytes. The copies of x and, behind the logits,
 * the sums of dx share a place; so do what the tiles need and what the products do. */
static int64_t cut_part(const weft_node *n, int64_t rows, int threads, char *at, entropy_work *w) {
    entropy_part part = {.rows = rows, .words = n->in[WEFT_CE_W]->shape[0]};
    gemm_product logits = product_logits(NULL, n, part);
    gemm_cut cut = KERNEL(gemm_tiles)(&logits);
    gemm_product in_hand = logits;
    in_hand.n = words_in_hand(&logits, &cut);
    bool back = has_gradients(n);
    int64_t cells = real_bytes(cut.columns * rows), sums = back ? real_bytes(rows * logits.k) : 0;
    w->kept = kept_matrix(n);
    int64_t used = CUT_MEMORY(
        at, {&w->target_logit, real_bytes(weft_tensor_rows(n->in[WEFT_CE_X]))}, {&w->most, cells},
        {&w->sum, cells}, {&w->rows, max_i64(KERNEL(gemm_copy_bytes)(&logits, false), sums)},
        {&w->kept.data, back ? rows * part.words * kept_size(n) : 0});
    w->product_space = at ? at + used : NULL;
    int64_t tiles =
        CUT_MEMORY(w->product_space, {&w->columns, KERNEL(gemm_copy_bytes)(&in_hand, true)},
                   {&w->scratch, threads * tile_bytes(&cut)});
    return used + max_i64(tiles, back ? products_bytes(n, part, threads) : 0);
}

/* The last part may have fewer rows and another cut. */
static int64_t cross_entropy_workspace(const weft_node *n, int threads) {
    int64_t all = weft_tensor_rows(n->in[WEFT_CE_X]), rows = part_rows(n);
    int64_t last = all - (ceil_div(all, rows) - 1) * rows;
    entropy_work w;
    return max_i64(cut_part(n, rows, threads, NULL, &w), cut_part(n, last, threads, NULL, &w));
}

DEFINE_KERNEL(cross_entropy, .workspace = cross_entropy_workspace) {
    weft_pool *pool = weft_exec_pool(x);
    int64_t rows = weft_tensor_rows(n->in[WEFT_CE_X]), words = n->in[WEFT_CE_W]->shape[0];
    int64_t step = part_rows(n), count;
    entropy_work w = {.x = x, .n = n, .targets = weft_data(x, n->in[WEFT_CE_TARGETS])};
    WEFT_TRY(check_targets(w.targets, rows, words, &count));
    double divisor = divisor_of(x, n->in[WEFT_CE_COUNT], count);
    w.upstream = scale_upstream(n, divisor, 1, weft_z_trains(n->attr) ? 1 : 0);
    w.softcap = (real)ATTR(n, weft_cross_entropy_attr)->softcap;
    for (int64_t row = 0; row < rows; row += step) {
        w.part = (entropy_part){row, min_i64(step, rows - row), 0, words};
        cut_part(n, w.part.rows, weft_pool_size(pool), weft_workspace(x, n), &w);
        /* lse of the part's rows. */
        w.logits = product_logits(x, n, w.part);
        w.cut = KERNEL(gemm_tiles)(&w.logits);
        w.scratch_bytes = tile_bytes(&w.cut);
        int64_t held = words_in_hand(&w.logits, &w.cut);
        KERNEL(gemm_copy)(pool, &w.logits, false, w.rows);
        for (int64_t word = 0; word < words; word += held) {
            int64_t some = min_i64(held, words - word);
            w.in_hand = gemm_tile(&w.logits, 0, 0, w.part.rows, word, some, 0, w.logits.k);
            w.piece = word / w.cut.tile_n;
            KERNEL(gemm_copy)(pool, &w.in_hand, true, w.columns);
            weft_pool_run(pool, w.cut.rows * ceil_div(some, w.cut.tile_n), measure_tile, &w);
        }
        weft_pool_run(pool, ceil_div(w.part.rows, JOIN_ROWS), join_rows, &w);
        if (has_gradients(n)) differentiate_part(pool, &w);
    }
    const weft_cross_entropy_attr *attr = n->attr;
    const real *lse = weft_data(x, n->out[WEFT_CE_LSE]);
    double ce = 0, squares = 0;
    for (int64_t i = 0; i < rows; i++) {
        if (w.targets[i] >= 0) ce += (double)lse[i] - (double)w.target_logit[i];
        squares += (double)lse[i] * (double)lse[i];
    }
    write_number(x, n->out[WEFT_CE_LOSS], divisor > 0 ? ce / divisor : 0);
    return write_number(x, n->out[WEFT_CE_Z], attr->z != 0 ? attr->z * squares / (double)rows : 0);
}
