/* Linear, softmax and cross-entropy on the CPU, the logits in parts: l [N, V] = x wᵀ.
 *
 * The loss alone: the logits are taken tile by tile. x is copied for the product's kernel once,
 * the table some words at a time. A task makes one tile in its thread's scratch and leaves, for each of
 * its rows, the maximum and the sum of exponentials there; a tile that holds a row's target leaves that
 * logit too. A second pass joins each row's pieces in the order of the vocabulary.
 *
 * With gradients: some rows at a time, whole, so that their lse is known before the next rows come.
 * The tiles' exponentials go to one matrix [rows, V]; a factor for each row and piece then makes them
 * the gradient of the logits, and two products give dx of these rows and add to dw. One exponential a
 * logit, three products, never more than some rows of logits. Each part reads the table twice and dw
 * once, and copies the table: so a part has as many rows as PART_BYTES hold. Where both products round the
 * matrix to bf16, it is kept as that; a target's gradient, p - 1, is then made of the logit itself.
 *
 * The forward pass makes gradients as if the losses' own were 1. Where these turn out equal, what it made is
 * scaled, in place and not at all if they are 1; otherwise the parts are gone through again. */
#include "ops/loss.h"

#include "cpu/chunks.h"
#include "cpu/gemm.h"
#include "cpu/matrix.h"

enum {
    PART_BYTES = 1 << 28,      /* of logits that are held at a time with gradients, about; */
    PART_BYTES_BF16 = 3 << 25, /* as bf16 nearly as many rows */
    PART_ROWS = 64,            /* and no fewer rows than this */
    WORD_VALUES = 1 << 22,     /* of the table that are copied at a time, about */
    JOIN_ROWS = 64,            /* rows a task of the second pass joins; a multiple of VLEN */
    FILL_VALUES = 1 << 14      /* of a gradient that a task scales or rounds */
};

typedef struct {
    const weft_exec *x;
    const weft_node *n;
    const weft_tensor *dx, *dw; /* NULL: not wanted */
    const int32_t *targets;     /* [N] */
    real *lse;                  /* [N] */
    bool again;                 /* it is known, from the forward pass */
    double divisor;             /* the count that was given, or the targets' own number */
    real d_ce, d_z;             /* gradients of the losses: over the divisor; times 2 z / N */
    struct {
        int64_t row, rows;
    } part;              /* of x and the targets, in hand */
    gemm_product logits; /* of the part */
    gemm_cut cut;
    gemm_product in_hand; /* the words of it that are copied, */
    int64_t piece;        /* from this piece on */
    gemm_matrix kept;     /* [rows, V] of the part; data NULL: the tiles are not kept */
    real *most, *sum; /* [pieces, rows]: of each row's tile, its maximum and Σ exp(l − maximum) */
    real *target_logit;   /* [N]: the target's logit */
    real *dw_sums;        /* [V, E], where dw is bf16 */
    char *rows, *columns; /* x and words as the product's kernel reads them */
    char *scratch;        /* [threads][scratch_bytes] */
    int64_t scratch_bytes;
    char *product_space;
    real softcap;
} entropy_work;

/* dx [rows, E] = l w, or with `dw` that, [V, E] = lᵀ x, `l` being the gradient of the logits by then; or +=
 * where `add`. */
static gemm_product product_back(const entropy_work *w, bool dw, gemm_matrix to, bool add) {
    int64_t rows = w->part.rows, words = w->logits.n;
    gemm_product p = {.batch = 1, .ta = dw, .alpha = 1, .accumulate = add, .a = w->kept, .c = to};
    p.m = dw ? words : rows;
    p.k = dw ? rows : words;
    p.n = w->logits.k;
    p.b = dw ? w->logits.a : w->logits.b;
    p.a.rounds = !w->kept.bf16 && p.b.bf16;
    return p;
}

/* Whether the gradient of the logits is kept as bf16: both of its products round it to that, and by
 * instructions that take bf16 alone. */
static bool keeps_bf16(const weft_node *n) {
    return WEFT_REAL == 32 && weft_cpu_matrix() != WEFT_MATRIX_NONE &&
           n->in[WEFT_CE_X]->dtype == WEFT_BF16 && n->in[WEFT_CE_W]->dtype == WEFT_BF16;
}

/* The tile of a task; the rows of a column of tiles one after the other, which read the same words. */
static gemm_place tile_of(const gemm_product *p, const gemm_cut *cut, int64_t task) {
    gemm_place t = {.row = task % cut->rows * cut->tile_m,
                    .column = task / cut->rows * cut->tile_n};
    t.m = min_i64(cut->tile_m, p->m - t.row);
    t.n = min_i64(cut->tile_n, p->n - t.column);
    return t;
}

static vreal vcap_slope(vreal l, real c) {
    vreal t = l * (1 / c);
    return 1 - t * t;
}

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

WEFT_TASK(measure_tile, const entropy_work *w) {
    gemm_place t = tile_of(&w->in_hand, &w->cut, task);
    real *tile = (real *)(w->scratch + thread * w->scratch_bytes);
    int64_t ld = tile_ld(&w->cut), first = w->piece * w->cut.tile_n + t.column;
    int64_t piece = w->piece + task / w->cut.rows;
    KERNEL(gemm_one_tile)(&w->in_hand, t, w->rows, w->columns, tile, ld);
    for (int64_t i = 0; i < t.m; i++) {
        int64_t row = t.row + i, cell = piece * w->part.rows + row;
        real *l = tile + i * ld;
        for (int64_t j = 0; w->softcap > 0 && j < t.n; j += VLEN) {
            int64_t count = min_i64(VLEN, t.n - j);
            vstore_n(l + j, w->softcap * vtanh(vload_n(l + j, count) * (1 / w->softcap)), count);
        }
        int64_t target = w->targets[w->part.row + row] - first;
        if (target >= 0 && target < t.n) w->target_logit[w->part.row + row] = l[target];
        measure_row(l, t.n, w->softcap, &w->most[cell], &w->sum[cell]);
        if (!w->kept.data) continue;
        gemm_matrix to = gemm_part(w->kept, 0, row, first);
        if (to.bf16)
            round_bf16(to.data, l, t.n);
        else
            memcpy(to.data, l, (size_t)t.n * sizeof(real));
    }
}

/* lse of some rows, VLEN or `count` at a time, from the pieces of the vocabulary in order. */
WEFT_TASK(join_rows, const entropy_work *w) {
    real *lse = w->lse + w->part.row;
    int64_t end = min_i64((task + 1) * JOIN_ROWS, w->part.rows);
    for (int64_t row = task * JOIN_ROWS; row < end; row += VLEN) {
        int64_t count = min_i64(VLEN, end - row);
        vreal high = vset(-INFINITY), total = vset(0);
        for (int64_t cell = row; cell < w->cut.columns * w->part.rows; cell += w->part.rows)
            high = vmax(high, vload_part(w->most + cell, count));
        for (int64_t cell = row; cell < w->cut.columns * w->part.rows; cell += w->part.rows)
            total +=
                vload_part(w->sum + cell, count) * vexp(vload_part(w->most + cell, count) - high);
        for (int64_t i = 0; i < count; i++)
            high[i] += (real)log((double)total[i]);
        vstore_part(lse + row, high, count);
    }
}

/* Exponentials of a tile to gradients of its logits: dl = p · weight − [v = target] · penalty. */
WEFT_TASK(differentiate_tile, const entropy_work *w) {
    const real *lse = w->lse + w->part.row;
    gemm_place t = tile_of(&w->logits, &w->cut, task);
    int64_t piece = task / w->cut.rows;
    for (int64_t i = 0; i < t.m; i++) {
        int64_t row = t.row + i;
        int32_t target = w->targets[w->part.row + row];
        gemm_matrix at = gemm_part(w->kept, 0, row, t.column);
        real penalty = target >= 0 ? w->d_ce : 0, weight = penalty + w->d_z * lse[row];
        real own = w->target_logit[w->part.row + row], c = w->softcap;
        real slope = c > 0 ? 1 - own / c * (own / c) : 1; /* at a capped logit */
        real above = w->most[piece * w->part.rows + row] - lse[row];
        real factor = vexp(vset(above))[0] * weight, *l = at.data;
        bool here = target >= t.column && target < t.column + t.n;
        if (at.bf16) {
            uint16_t *halves = at.data;
            for (int64_t j = 0; j < t.n; j++)
                halves[j] =
                    weft_float_to_bf16((float)((real)weft_bf16_to_float(halves[j]) * factor));
            if (!here) continue;
            real chance = vexp(vset(w->target_logit[w->part.row + row] - lse[row]))[0];
            halves[target - t.column] =
                weft_float_to_bf16((float)((chance * weight - penalty) * slope));
            continue;
        }
        for (int64_t j = 0; j < t.n; j++)
            l[j] *= factor;
        if (here) l[target - t.column] -= penalty * slope;
    }
}

/* Words of the table that are copied at a time: whole tiles of them. */
static int64_t words_in_hand(const gemm_product *logits, const gemm_cut *cut) {
    int64_t tiles = max_i64(WORD_VALUES / logits->k / cut->tile_n, 1);
    return min_i64(tiles * cut->tile_n, logits->n);
}

/* Sums into bf16 cannot wait for the next words or rows (panels.c): those are made as reals. */
static gemm_matrix sums_of(const weft_exec *x, const weft_tensor *t, int64_t row, real *sums) {
    if (t->dtype == WEFT_BF16) return (gemm_matrix){.data = sums, .ld = weft_tensor_width(t)};
    return gemm_rows(x, t, row);
}

/* Elements of a tensor from `first` on: rounded sums, or those of another tensor times a factor. */
typedef struct {
    const weft_exec *x;
    const weft_tensor *from, *to;
    const real *sums; /* NULL: `from` */
    int64_t first, count;
    real factor;
} filling;

WEFT_TASK(fill_values, const filling *f) {
    int64_t at = task * FILL_VALUES, n = min_i64(FILL_VALUES, f->count - at);
    if (f->sums)
        round_bf16((uint16_t *)weft_data(f->x, f->to) + f->first + at, f->sums + at, n);
    else
        apply_tensors(f->x, scale_vector, 1, &f->from, f->to, f->first + at, n, &f->factor);
}

static void fill_tensor(filling f) {
    run_tasks(f.x, ceil_div(f.count, FILL_VALUES), fill_values, &f);
}

static void round_sums(const entropy_work *w, const weft_tensor *to, int64_t first, int64_t count,
                       const real *sums) {
    if (to->dtype != WEFT_BF16) return;
    fill_tensor((filling){.x = w->x, .to = to, .sums = sums, .first = first, .count = count});
}

static int64_t kept_size(const weft_node *n) {
    return keeps_bf16(n) ? (int64_t)sizeof(uint16_t) : (int64_t)sizeof(real);
}

/* Rows that are taken at a time: all for the loss alone. */
static int64_t part_rows(const entropy_work *w) {
    int64_t rows = weft_tensor_rows(w->n->in[WEFT_CE_X]);
    if (!w->dx && !w->dw) return rows;
    int64_t bytes = keeps_bf16(w->n) ? PART_BYTES_BF16 : PART_BYTES;
    int64_t most = max_i64(bytes / kept_size(w->n) / w->n->in[WEFT_CE_W]->shape[0], PART_ROWS);
    int64_t parts = ceil_div(rows, most);
    return ceil_div(rows, parts);
}

/* Goes on to `rows` rows from `row` on, with the workspace from `at` on; returns its bytes. The copies of x and,
 * behind the logits, the sums of dx share a place; so do what the tiles need and what the products do. */
static int64_t cut_part(entropy_work *w, int64_t row, int64_t rows, int threads, char *at) {
    const weft_node *n = w->n;
    bool back = w->dx || w->dw;
    w->part.row = row;
    w->part.rows = rows;
    /* l [rows, V] = x wᵀ, taken tile by tile. */
    w->logits = (gemm_product){.batch = 1, .m = rows, .tb = true, .alpha = 1};
    w->logits.n = n->in[WEFT_CE_W]->shape[0];
    w->logits.k = n->in[WEFT_CE_W]->shape[1];
    w->logits.a = gemm_rows(w->x, n->in[WEFT_CE_X], row);
    w->logits.b = gemm_rows(w->x, n->in[WEFT_CE_W], 0);
    w->cut = KERNEL(gemm_tiles)(&w->logits);
    w->scratch_bytes = real_bytes(w->cut.tile_m * tile_ld(&w->cut));
    w->kept = (gemm_matrix){.ld = w->logits.n, .bf16 = back && keeps_bf16(n)};
    gemm_product in_hand = w->logits;
    in_hand.n = words_in_hand(&w->logits, &w->cut);
    int64_t cells = real_bytes(w->cut.columns * rows);
    int64_t sums = back ? real_bytes(rows * w->logits.k) : 0;
    bool rounds = w->dw && w->dw->dtype == WEFT_BF16;
    int64_t used = CUT_MEMORY(
        at, {&w->target_logit, real_bytes(weft_tensor_rows(n->in[WEFT_CE_X]))},
        {&w->dw_sums, rounds ? real_bytes(weft_tensor_count(w->dw)) : 0}, {&w->most, cells},
        {&w->sum, cells}, {&w->rows, max_i64(KERNEL(gemm_copy_bytes)(&w->logits, false), sums)},
        {&w->kept.data, back ? rows * w->logits.n * kept_size(n) : 0});
    w->product_space = at ? at + used : NULL;
    int64_t tiles =
        CUT_MEMORY(w->product_space, {&w->columns, KERNEL(gemm_copy_bytes)(&in_hand, true)},
                   {&w->scratch, threads * w->scratch_bytes});
    for (int dw = 0; dw < 2; dw++) { /* the products behind the logits */
        const weft_tensor *to = dw ? w->dw : w->dx;
        if (!to) continue;
        gemm_product p = product_back(w, dw, sums_of(NULL, to, 0, NULL), dw);
        tiles = max_i64(tiles, KERNEL(gemm_workspace)(&p, threads));
    }
    return used + tiles;
}

/* The last part may have fewer rows and another cut. */
static int64_t parts_workspace(entropy_work w, int threads) {
    int64_t all = weft_tensor_rows(w.n->in[WEFT_CE_X]), rows = part_rows(&w);
    int64_t last = all - (ceil_div(all, rows) - 1) * rows;
    return max_i64(cut_part(&w, 0, rows, threads, NULL), cut_part(&w, 0, last, threads, NULL));
}

static weft_status run_parts(entropy_work *w, const weft_tensor *count, real d_ce, real d_z) {
    const weft_node *n = w->n;
    const weft_cross_entropy_attr *attr = n->attr;
    weft_pool *pool = weft_exec_pool(w->x);
    int64_t rows = weft_tensor_rows(n->in[WEFT_CE_X]), words = n->in[WEFT_CE_W]->shape[0];
    int64_t step = part_rows(w), own = 0;
    w->targets = weft_data(w->x, n->in[WEFT_CE_TARGETS]);
    for (int64_t i = 0; i < rows; i++) {
        if (w->targets[i] < -1 || w->targets[i] >= words)
            return WEFT_BAD_INPUT("cross_entropy: target %d at row %lld is outside the vocabulary "
                                  "of %lld, and only -1 means none",
                                  w->targets[i], (long long)i, (long long)words);
        own += w->targets[i] >= 0;
    }
    w->divisor = count ? (double)read_number(w->x, count) : (double)own;
    w->d_ce = w->divisor > 0 ? d_ce / (real)w->divisor : 0;
    w->d_z = (real)(2 * attr->z / (double)rows) * d_z;
    w->softcap = (real)attr->softcap;
    for (int64_t row = 0; row < rows; row += step) {
        cut_part(w, row, min_i64(step, rows - row), weft_pool_size(pool), weft_workspace(w->x, n));
        int64_t held = words_in_hand(&w->logits, &w->cut);
        KERNEL(gemm_copy)(pool, &w->logits, false, w->rows);
        for (int64_t word = 0; word < words; word += held) {
            int64_t some = min_i64(held, words - word);
            w->in_hand = gemm_tile(&w->logits, 0, 0, w->part.rows, word, some, 0, w->logits.k);
            w->piece = word / w->cut.tile_n;
            KERNEL(gemm_copy)(pool, &w->in_hand, true, w->columns);
            weft_pool_run(pool, w->cut.rows * ceil_div(some, w->cut.tile_n), measure_tile, w);
        }
        if (!w->again) weft_pool_run(pool, ceil_div(w->part.rows, JOIN_ROWS), join_rows, w);
        if (w->dx || w->dw)
            weft_pool_run(pool, w->cut.rows * w->cut.columns, differentiate_tile, w);
        if (w->dw) {
            gemm_matrix sums = sums_of(w->x, w->dw, 0, w->dw_sums);
            gemm_product p = product_back(w, true, sums, row > 0);
            KERNEL(gemm)(pool, &p, w->product_space);
        }
        if (!w->dx) continue;
        real *dx_sums = (real *)w->rows;
        int64_t width = w->logits.k;
        gemm_product p = product_back(w, false, sums_of(w->x, w->dx, row, dx_sums), false);
        KERNEL(gemm)(pool, &p, w->product_space);
        round_sums(w, w->dx, row * width, w->part.rows * width, dx_sums);
    }
    if (w->dw) round_sums(w, w->dw, 0, weft_tensor_count(w->dw), w->dw_sums);
    return WEFT_OK;
}

/* Whose outputs from `dx` on are the gradients. `x` NULL: for sizes. */
static entropy_work work_of(const weft_exec *x, const weft_node *n, int dx) {
    return (entropy_work){.x = x, .n = n, .dx = n->out[dx], .dw = n->out[dx + 1]};
}

DEFINE_KERNEL_IN(cross_entropy, parts_workspace(work_of(NULL, n, WEFT_CE_DX), threads)) {
    const weft_cross_entropy_attr *attr = n->attr;
    int64_t rows = weft_tensor_rows(n->in[WEFT_CE_X]);
    entropy_work w = work_of(x, n, WEFT_CE_DX);
    w.lse = weft_data(x, n->out[WEFT_CE_LSE]);
    WEFT_TRY(run_parts(&w, n->in[WEFT_CE_COUNT], 1, weft_z_trains(attr) ? 1 : 0));
    double ce = 0, squares = 0;
    for (int64_t i = 0; i < rows; i++) {
        if (w.targets[i] >= 0) ce += (double)w.lse[i] - (double)w.target_logit[i];
        squares += (double)w.lse[i] * (double)w.lse[i];
    }
    write_number(x, n->out[WEFT_CE_LOSS], w.divisor > 0 ? ce / w.divisor : 0);
    return write_number(x, n->out[WEFT_CE_Z], attr->z != 0 ? attr->z * squares / (double)rows : 0);
}

static const weft_tensor *root_of(const weft_tensor *t) {
    return t && t->view_of ? t->view_of : t;
}

/* The forward pass made gradients, and both losses have the same one: always so where the z-loss has none. */
static bool only_scales(const weft_node *n) {
    const weft_tensor *d_z = n->in[WEFT_CE_BACK_D_Z];
    bool made = n->in[WEFT_CE_BACK_DX] || n->in[WEFT_CE_BACK_DW];
    return made && (!d_z || root_of(d_z) == root_of(n->in[WEFT_CE_BACK_D_CE]));
}

DEFINE_KERNEL_IN(cross_entropy_back,
                 only_scales(n) ? 0 : parts_workspace(work_of(NULL, n, 0), threads)) {
    const weft_tensor *made[] = {n->in[WEFT_CE_BACK_DX], n->in[WEFT_CE_BACK_DW]};
    const weft_tensor *seed = n->in[WEFT_CE_BACK_D_CE], *seed_z = n->in[WEFT_CE_BACK_D_Z];
    real d_ce = seed ? read_number(x, seed) : 0, d_z = seed_z ? read_number(x, seed_z) : 0;
    if (!only_scales(n) && !((made[0] || made[1]) && d_ce == d_z)) {
        entropy_work w = work_of(x, n, 0);
        w.again = true;
        w.lse = weft_data(x, n->in[WEFT_CE_BACK_LSE]);
        return run_parts(&w, n->in[WEFT_CE_BACK_COUNT], d_ce, d_z);
    }
    for (int i = 0; i < 2; i++) {
        if (!n->out[i] || (weft_data(x, made[i]) == weft_data(x, n->out[i]) && d_ce == 1)) continue;
        fill_tensor((filling){.x = x,
                              .from = made[i],
                              .to = n->out[i],
                              .count = weft_tensor_count(n->out[i]),
                              .factor = d_ce});
    }
    return WEFT_OK;
}
