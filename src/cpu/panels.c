/* Matrix products of more than a few rows.
 *
 * The inner kernel holds a block of results in registers and runs through some hundred terms of their
 * sums. It reads its operands as panels: a panel of a is a few of its rows, a panel of b a few of its
 * columns, the terms one after the other. Copying an operand into panels is where it is transposed,
 * widened from bf16, and padded with zeros at its edges, so there is one kernel for all of that. Which
 * kernel, and what its panels look like, is the form's (panel_form.h).
 *
 * b is copied first, by all threads, and then read by all of them. A task copies some panels of a
 * into its thread's scratch, where they stay in the second cache, and takes each panel of b past
 * them; a kernel that takes the numbers of a one at a time reads its rows as they lie, without a copy.
 * Where a has few rows it is the other way round. Each result is a sum over blocks of `depth`
 * terms, the blocks' sums added in order, wherever it lies: so its bits follow from its row, its column
 * and k alone, and the cut into tasks is free to follow the number of threads. */
#include "cpu/panel_form.h"

enum {
    LINE = 64,               /* bytes of a cache line */
    PACK = 8,                /* panels of b that a task copies */
    SHARED_VALUES = 1 << 21, /* of b that is copied at a time, about */
    SHARED_COLUMNS = 128,    /* and no fewer columns than this */
    TASKS_A_THREAD = 4,      /* at least, where the rows allow it */
    PIECES_MOST = 8,         /* of the columns, where costs are compared */
    PIECE_COLUMNS = 64,      /* fewest columns, where they are cut */
    SHARED_WIDTH = 256,      /* most columns of a task that copies them itself */
    HELD_TERMS = 2048,       /* most terms of rows of a that a thread holds all of */
    TILE_COLUMNS = 576,      /* of a tile, where a product is taken tile by tile, */
    TILE_COLUMNS_FEW = 128,  /* and where that leaves too few of them for many threads: */
    TILES_MANY = 64          /* so many are enough */
};

static const panel_form *choose_form(const gemm_product *p) {
    bool narrow = (p->a.bf16 || p->a.rounds) && (p->b.bf16 || p->b.rounds);
    const panel_form *bf16 = narrow ? KERNEL(panel_bf16)() : NULL;
    return bf16 ? bf16 : &KERNEL(panel_real);
}

/* Bytes of panels of `count` rows or columns (a multiple of the panel's) for k terms. */
static int64_t panel_bytes(const panel_form *f, int64_t count, int64_t k) {
    return count * round_up(k, f->terms) * f->size;
}

/* Columns of b, or rows of a, as panels. */
typedef struct {
    const gemm_product *p;
    const panel_form *form;
    bool columns;
    int64_t first, count; /* of all that there are */
    int64_t g;            /* the first matrix */
    char *to;             /* [matrices][blocks of terms][panels] */
} panel_copy;

static int64_t copy_width(const panel_copy *c) {
    return c->columns ? c->form->columns : c->form->rows;
}

static int64_t copy_bytes(const panel_copy *c, int64_t k) {
    return panel_bytes(c->form, round_up(c->count, copy_width(c)), k);
}

/* Where the panels of matrix g begin for the terms from d on, a multiple of depth. */
static char *panels_at(const panel_copy *c, int64_t g, int64_t d) {
    return c->to + g * copy_bytes(c, c->p->k) + copy_bytes(c, d);
}

WEFT_TASK(copy_part, const panel_copy *c) {
    const gemm_product *p = c->p;
    const panel_form *f = c->form;
    int64_t step = PACK * copy_width(c), parts = ceil_div(c->count, step);
    int64_t blocks = ceil_div(p->k, f->depth), g = task / parts / blocks, i = task % parts * step;
    int64_t d = task / parts % blocks * f->depth, k = min_i64(f->depth, p->k - d);
    int64_t count = min_i64(step, c->count - i), at = c->first + i;
    char *to = panels_at(c, g, d) + panel_bytes(f, i, k);
    gemm_product part =
        gemm_tile(p, c->g + g, c->columns ? 0 : at, 0, c->columns ? at : 0, 0, d, k);
    if (c->columns)
        f->pack_columns(part.b, !p->tb, count, k, to);
    else
        f->pack_rows(part.a, p->ta, count, k, to);
}

static void copy_panels(weft_pool *pool, panel_copy *c, int64_t matrices) {
    int64_t parts = ceil_div(c->count, PACK * copy_width(c));
    weft_pool_run(pool, matrices * parts * ceil_div(c->p->k, c->form->depth), copy_part, c);
}

/* Whether the kernel can read the rows of a as they lie. */
static bool reads_in_place(const panel_form *f, const gemm_product *p) {
    return f->multiply_rows && !p->ta && !p->a.bf16;
}

/* Rows of a: panels of them; or as they lie, but for the last few, which fill no panel and are one. */
typedef struct {
    const char *panels;
    const real *in_place; /* NULL: all in panels */
    int64_t ld, whole;    /* of those in place: reals between rows; how many rows */
} row_source;

/* A block of whole panels; i is its first row. */
static void multiply_one(const panel_form *f, row_source a, int64_t i, int64_t k, const char *b,
                         real alpha, bool add, real *c, int64_t ldc) {
    if (i < a.whole)
        f->multiply_rows(k, a.in_place + i * a.ld, a.ld, b, alpha, add, c, ldc);
    else
        f->multiply(k, a.panels + panel_bytes(f, i - a.whole, k), b, alpha, add, c, ldc);
}

/* c [m, n] from blocks of k ≤ depth terms, b packed. */
static void multiply_block(const panel_form *f, const gemm_product *p, int64_t k, row_source a,
                           const char *b, bool add) {
    int64_t ldc = p->c.ld, rows = f->rows, columns = f->columns, bytes = panel_bytes(f, columns, k);
    k = round_up(k, f->terms);
    for (int64_t j = 0; j < p->n; j += columns, b += bytes) {
        for (int64_t i = 0; i < p->m; i += rows) {
            real *c = (real *)p->c.data + i * ldc + j;
            int64_t m = min_i64(rows, p->m - i), n = min_i64(columns, p->n - j);
            /* Asks for the next panel's bytes from the further caches: these rows' share. */
            if (!f->by_rows && j + columns < p->n) {
                int64_t end = min_i64(i + rows, p->m) * bytes / p->m;
                for (int64_t at = i * bytes / p->m; at < end; at += LINE)
                    __builtin_prefetch((b + bytes) + at, 0, 2);
            }
            if (m == rows && n == columns)
                multiply_one(f, a, i, k, b, p->alpha, add, c, ldc);
            else {
                /* A block at the edge of c, m × n of its results: the kernel works on a copy. */
                real edge[PANEL_BLOCK_MAX];
                memset(edge, 0, (size_t)(f->rows * f->columns) * sizeof(real));
                for (int64_t r = 0; add && r < m; r++)
                    memcpy(edge + r * f->columns, c + r * ldc, (size_t)n * sizeof(real));
                multiply_one(f, a, i, k, b, p->alpha, add, edge, f->columns);
                for (int64_t r = 0; r < m; r++)
                    memcpy(c + r * ldc, edge + r * f->columns, (size_t)n * sizeof(real));
            }
        }
    }
}

/* c of all k terms from panels: of a's, which have `a_rows` rows in all, from row i on; of b's from column j. */
static void multiply_panels(const panel_form *f, const gemm_product *p, int64_t terms,
                            const char *a, int64_t a_rows, int64_t i, const char *b,
                            int64_t b_columns, int64_t j) {
    for (int64_t d = 0; d < terms; d += f->depth) {
        int64_t k = min_i64(f->depth, terms - d);
        row_source rows = {.panels = a + panel_bytes(f, a_rows, d) + panel_bytes(f, i, k)};
        multiply_block(f, p, k, rows, b + panel_bytes(f, b_columns, d) + panel_bytes(f, j, k),
                       d > 0);
    }
}

/* A product, what of it is in hand, and how that is shared out. */
typedef struct {
    const gemm_product *p;
    const panel_form *form;
    panel_copy b;          /* what of it is in hand: all columns, or one matrix's part of them */
    int64_t groups;        /* matrices in hand */
    int64_t bands, pieces; /* of a matrix's rows and columns: a task each */
    char *scratch;         /* [threads][scratch_bytes] */
    int64_t scratch_bytes;
} panel_run;

static int64_t column_panels(const panel_run *r) {
    return ceil_div(r->b.count, r->form->columns);
}

/* The first of `count` things that share `part` of `parts` gets: equal shares, or as good as. */
static int64_t share_start(int64_t count, int64_t part, int64_t parts) {
    return count * part / parts;
}

/* Whether a thread holds its rows of a for all terms and finishes a few columns of c at a time, while
 * their sums are in its caches. Otherwise it takes all columns past each block of terms. */
static bool finishes_in_chunks(const panel_form *f, int64_t k) {
    return f->chunk && k <= HELD_TERMS;
}

/* Floats between the rows of sums. An odd number of cache lines: a block's rows would else lie in the
 * same few sets of the first cache. */
static int64_t sums_ld(int64_t columns) {
    return ceil_div(columns, 32) * 32 + 16;
}

/* Bytes of the panels of a that a thread holds. */
static int64_t band_bytes(const panel_form *f, int64_t k) {
    int64_t held = finishes_in_chunks(f, k) ? k : min_i64(f->depth, k);
    return weft_arena_bytes(panel_bytes(f, f->band * f->rows, held));
}

/* A task's share of matrix g: rows and columns of what is in hand. */
typedef struct {
    int64_t g, row, m, column, n;
} band_place;

static band_place place_band(const panel_run *r, int64_t task) {
    const gemm_product *p = r->p;
    const panel_form *f = r->form;
    int64_t panels = column_panels(r), rows = ceil_div(p->m, f->rows);
    int64_t piece = task % r->pieces, band = task / r->pieces % r->bands;
    band_place at = {.g = task / r->pieces / r->bands};
    at.row = share_start(rows, band, r->bands) * f->rows;
    at.m = min_i64(share_start(rows, band + 1, r->bands) * f->rows, p->m) - at.row;
    at.column = share_start(panels, piece, r->pieces) * f->columns;
    int64_t end = share_start(panels, piece + 1, r->pieces) * f->columns;
    at.n = min_i64(end, r->b.count) - at.column;
    return at;
}

static void copy_rows(const panel_run *r, band_place at, int64_t d, int64_t k, char *to) {
    gemm_product part = gemm_tile(r->p, r->b.g + at.g, at.row, at.m, 0, 0, d, k);
    r->form->pack_rows(part.a, r->p->ta, at.m, k, to);
}

/* A task's rows for k terms from d on, what is copied of them in `to`. */
static row_source take_rows(const panel_run *r, band_place at, int64_t d, int64_t k, char *to) {
    row_source a = {.panels = to};
    if (reads_in_place(r->form, r->p)) {
        gemm_matrix x = gemm_part(r->p->a, r->b.g + at.g, at.row, d);
        a = (row_source){to, x.data, x.ld, at.m / r->form->rows * r->form->rows};
        at.row += a.whole;
        at.m -= a.whole;
    }
    copy_rows(r, at, d, k, to);
    return a;
}

/* All columns past each block of terms. */
static void multiply_whole(const panel_run *r, band_place at, char *a) {
    const gemm_product *p = r->p;
    const panel_form *f = r->form;
    gemm_product tile =
        gemm_tile(p, r->b.g + at.g, at.row, at.m, r->b.first + at.column, at.n, 0, p->k);
    gemm_matrix c = tile.c;
    if (c.bf16) tile.c = (gemm_matrix){.data = a + band_bytes(f, p->k), .ld = sums_ld(at.n)};
    for (int64_t d = 0; d < p->k; d += f->depth) {
        int64_t k = min_i64(f->depth, p->k - d);
        const char *b = panels_at(&r->b, at.g, d) + panel_bytes(f, at.column, k);
        multiply_block(f, &tile, k, take_rows(r, at, d, k, a), b, d > 0 || p->accumulate);
    }
    const real *sums = tile.c.data;
    int64_t ld = tile.c.ld;
    tile.c = c;
    KERNEL(gemm_finish)(&tile, sums, ld, false);
}

/* Asks for rows that will be read or written when the sums of a tile are finished. */
static void fetch_rows(gemm_matrix x, int64_t rows, int64_t columns) {
    int64_t size = x.bf16 ? (int64_t)sizeof(uint16_t) : (int64_t)sizeof(real);
    for (int64_t i = 0; x.data && i < rows; i++)
        for (int64_t j = 0; j < columns * size; j += LINE)
            __builtin_prefetch((const char *)x.data + i * x.ld * size + j, 0, 2);
}

/* A few columns at a time, all terms of them; of one panel of rows after the other where the form asks
 * for that. */
static void multiply_chunks(const panel_run *r, band_place at, char *a) {
    const gemm_product *p = r->p;
    const panel_form *f = r->form;
    for (int64_t d = 0; d < p->k; d += f->depth)
        copy_rows(r, at, d, min_i64(f->depth, p->k - d), a + panel_bytes(f, f->band * f->rows, d));
    real *sums = (real *)(a + band_bytes(f, p->k));
    int64_t ld = sums_ld(f->chunk), rows = f->by_rows ? f->rows : at.m;
    for (int64_t column = at.column; column < at.column + at.n; column += f->chunk)
        for (int64_t i = 0; i < at.m; i += rows) {
            int64_t n = min_i64(f->chunk, at.column + at.n - column), m = min_i64(rows, at.m - i);
            gemm_product tile =
                gemm_tile(p, r->b.g + at.g, at.row + i, m, r->b.first + column, n, 0, p->k);
            gemm_matrix c = tile.c;
            tile.c = (gemm_matrix){.data = sums, .ld = ld};
            if (f->by_rows) {
                fetch_rows(c, m, n);
                fetch_rows(tile.addend, m, n);
                fetch_rows(tile.pre, m, n);
            }
            multiply_panels(f, &tile, p->k, a, f->band * f->rows, i, panels_at(&r->b, at.g, 0),
                            round_up(r->b.count, f->columns), column);
            tile.c = c;
            KERNEL(gemm_finish)(&tile, sums, ld, p->accumulate);
        }
}

WEFT_TASK(multiply_band, const panel_run *r) {
    const panel_form *f = r->form;
    char *a = r->scratch + thread * r->scratch_bytes;
    if (f->begin) f->begin();
    if (finishes_in_chunks(f, r->p->k))
        multiply_chunks(r, place_band(r, task), a);
    else
        multiply_whole(r, place_band(r, task), a);
    if (f->end) f->end();
}

/* How much longer the longest of `parts` shares of n is than their mean. */
static double unevenness(int64_t n, int64_t parts) {
    return (double)(ceil_div(n, parts) * parts) / (double)n;
}

/* Rows that are read as they lie cost that much of a copy for each piece of the columns. */
static const double IN_PLACE = 0.25;

/* What a cut costs against a perfect one: threads that wait for the last tasks, shares that are uneven,
 * copies of a task's rows for each piece of the columns, and panels of b that are read from afar for
 * each band of the rows. Fewer than TASKS_A_THREAD tasks leave little to even out what else the machine
 * does. */
static double estimate_cost(const panel_run *r, int64_t bands, int64_t pieces, int threads) {
    const panel_form *f = r->form;
    int64_t tasks = bands * pieces * r->groups;
    double rows = (double)r->p->m / (double)bands, columns = (double)r->b.count / (double)pieces;
    double waits = unevenness(tasks, threads) * unevenness(ceil_div(r->p->m, f->rows), bands) *
                   unevenness(column_panels(r), pieces);
    if (tasks < threads) waits = (double)threads / (double)tasks;
    double few = (double)threads / (double)tasks - 1.0 / TASKS_A_THREAD;
    double copy = (double)f->copy * (reads_in_place(f, r->p) ? IN_PLACE : 1);
    double copies = copy / columns + (double)f->read / rows;
    return waits * (1 + copies) + (few > 0 ? few / 2 : 0);
}

/* What is in hand at a time, and its cut into tasks. */
static panel_run cut_run(const gemm_product *p, int threads) {
    const panel_form *f = choose_form(p);
    panel_run r = {.p = p, .form = f, .b = {p, f, true, 0, p->n, 0, NULL}};
    int64_t matrix = p->k * round_up(p->n, f->columns);
    r.groups = min_i64(max_i64(SHARED_VALUES / matrix, 1), p->batch);
    if (matrix > SHARED_VALUES) {
        int64_t columns = max_i64(SHARED_VALUES / p->k, SHARED_COLUMNS);
        r.b.count = min_i64(columns / f->columns * f->columns, p->n);
    }
    if (f->copy) {
        /* The cheapest of the cuts into a few tasks for each thread. A band is at most what scratch
         * holds. */
        int64_t rows = max_i64(ceil_div(p->m, f->rows), 1);
        int64_t least = max_i64(ceil_div(rows, f->band), 1);
        int64_t most =
            min_i64(max_i64(column_panels(&r) * f->columns / PIECE_COLUMNS, 1), PIECES_MOST);
        double cheapest = INFINITY;
        for (int64_t pieces = 1; pieces <= most; pieces++)
            for (int64_t each = 0; each <= TASKS_A_THREAD; each++) {
                int64_t wanted = ceil_div(each * threads, pieces * r.groups);
                int64_t bands = min_i64(max_i64(least, wanted), rows);
                double cost = estimate_cost(&r, bands, pieces, threads);
                if (cost >= cheapest) continue;
                cheapest = cost;
                r.bands = bands;
                r.pieces = pieces;
            }
    } else {
        /* Bands of rows for a few tasks a thread; pieces of the columns only where there are too
         * few rows. */
        int64_t rows = ceil_div(p->m, f->rows);
        int64_t wanted = ceil_div(TASKS_A_THREAD * threads, r.groups);
        r.bands = min_i64(max_i64(ceil_div(rows, f->band), wanted), rows);
        int64_t all = ceil_div(r.bands * r.groups, threads) * threads;
        r.bands = min_i64(max_i64(all / r.groups, r.bands), rows);
        int64_t most = max_i64(column_panels(&r) * f->columns / PIECE_COLUMNS, 1);
        r.pieces = min_i64(ceil_div(wanted, r.bands), most);
    }
    bool chunks = finishes_in_chunks(f, p->k);
    int64_t sums = sums_ld(chunks ? f->chunk : r.b.count); /* that c cannot take */
    r.scratch_bytes = band_bytes(f, p->k);
    if (chunks || p->c.bf16) r.scratch_bytes += real_bytes(f->band * f->rows * sums);
    return r;
}

static int64_t shared_bytes(const panel_run *r) {
    return weft_arena_bytes(r->groups * copy_bytes(&r->b, r->p->k));
}

/* The terms from d on that are summed in one go. Long sums into reals take several, so that all of
 * b's columns are at hand in each and a is copied once; sums into bf16 cannot wait there. */
static gemm_product take_terms(const gemm_product *p, int64_t d) {
    const panel_form *f = choose_form(p);
    int64_t k = p->k, width = round_up(p->n, f->columns);
    if (!p->c.bf16 && k * width > SHARED_VALUES)
        k = max_i64(SHARED_VALUES / width / f->depth, 1) * f->depth;
    k = min_i64(k, p->k - d);
    gemm_product part = gemm_tile(p, 0, 0, p->m, 0, p->n, d, k);
    part.batch = p->batch;
    part.accumulate = p->accumulate || d > 0;
    if (d + k == p->k) return part;
    part.gelu = part.gelu_back = false;
    part.bias.data = part.pre.data = NULL;
    return part;
}

/* Where a has few rows and b is large, it is the copy of a that all tasks share, and a task copies the
 * columns of b that it takes past them: b is read once, and its copy never leaves the task's caches. */
typedef struct {
    const gemm_product *p;
    const panel_form *form;
    int64_t width, pieces; /* columns of a task; tasks of a matrix */
    panel_copy a;
    char *scratch; /* [threads][scratch_bytes] */
    int64_t rows_bytes, scratch_bytes;
} shared_rows;

/* False: the rows are too many, or the columns too few for all threads. */
static bool cut_shared_rows(const gemm_product *p, int threads, shared_rows *out) {
    const panel_form *f = choose_form(p);
    if (p->m > f->share_rows || p->n < 2 * p->m || p->c.bf16) return false;
    int64_t width = p->n * p->batch / (TASKS_A_THREAD * threads) / f->columns * f->columns;
    width = min_i64(max_i64(width, PIECE_COLUMNS), SHARED_WIDTH);
    *out = (shared_rows){
        .p = p,
        .form = f,
        .width = width,
        .pieces = ceil_div(p->n, width),
        .a = {p, f, false, 0, p->m, 0, NULL},
        .scratch_bytes = weft_arena_bytes(panel_bytes(f, width, min_i64(f->depth, p->k))),
    };
    out->rows_bytes = weft_arena_bytes(p->batch * copy_bytes(&out->a, p->k));
    return p->batch * out->pieces >= 2 * threads;
}

WEFT_TASK(multiply_piece, const shared_rows *r) {
    const gemm_product *p = r->p;
    const panel_form *f = r->form;
    int64_t g = task / r->pieces, column = task % r->pieces * r->width;
    int64_t n = min_i64(r->width, p->n - column);
    char *b = r->scratch + thread * r->scratch_bytes;
    gemm_product tile = gemm_tile(p, g, 0, p->m, column, n, 0, p->k);
    for (int64_t d = 0; d < p->k; d += f->depth) {
        int64_t k = min_i64(f->depth, p->k - d);
        f->pack_columns(gemm_tile(p, g, 0, 0, column, n, d, k).b, !p->tb, n, k, b);
        row_source rows = {.panels = panels_at(&r->a, g, d)};
        multiply_block(f, &tile, k, rows, b, d > 0 || p->accumulate);
    }
    KERNEL(gemm_finish)(&tile, tile.c.data, tile.c.ld, false);
}

/* What the part that needs most needs: the last one is shorter than the others, and a thread then may
 * hold its rows for all terms. */
int64_t KERNEL(panels_workspace)(const gemm_product *p, int threads) {
    shared_rows shared;
    if (cut_shared_rows(p, threads, &shared))
        return shared.rows_bytes + threads * shared.scratch_bytes;
    int64_t most = 0;
    for (int64_t d = 0; d < p->k;) {
        gemm_product part = take_terms(p, d);
        panel_run r = cut_run(&part, threads);
        most = max_i64(most, shared_bytes(&r) + threads * r.scratch_bytes);
        d += part.k;
    }
    return most;
}

void KERNEL(panels)(weft_pool *pool, const gemm_product *p, void *workspace) {
    shared_rows shared;
    if (cut_shared_rows(p, weft_pool_size(pool), &shared)) {
        shared.a.to = workspace;
        shared.scratch = shared.a.to + shared.rows_bytes;
        copy_panels(pool, &shared.a, p->batch);
        weft_pool_run(pool, p->batch * shared.pieces, multiply_piece, &shared);
        return;
    }
    for (int64_t d = 0; d < p->k;) {
        gemm_product part = take_terms(p, d);
        panel_run r = cut_run(&part, weft_pool_size(pool));
        int64_t groups = r.groups, columns = r.b.count;
        r.b.to = workspace;
        r.scratch = r.b.to + shared_bytes(&r);
        for (r.b.g = 0; r.b.g < part.batch; r.b.g += groups) {
            r.groups = min_i64(groups, part.batch - r.b.g);
            for (r.b.first = 0; r.b.first < part.n; r.b.first += columns) {
                r.b.count = min_i64(columns, part.n - r.b.first);
                copy_panels(pool, &r.b, r.groups);
                weft_pool_run(pool, r.groups * r.bands * r.pieces, multiply_band, &r);
            }
        }
        d += part.k;
    }
}

gemm_cut KERNEL(gemm_tiles)(const gemm_product *p) {
    const panel_form *f = choose_form(p);
    gemm_cut cut = {.rows = ceil_div(p->m, f->band * f->rows)};
    cut.tile_m = round_up(ceil_div(p->m, cut.rows), f->rows);
    cut.rows = ceil_div(p->m, cut.tile_m);
    int64_t step = f->chunk ? f->chunk : f->columns;
    cut.tile_n = TILE_COLUMNS / step * step;
    while (cut.rows * ceil_div(p->n, cut.tile_n) < TILES_MANY && cut.tile_n > TILE_COLUMNS_FEW)
        cut.tile_n = round_up(cut.tile_n / 2, f->columns);
    cut.columns = ceil_div(p->n, cut.tile_n);
    return cut;
}

static panel_copy copy_of(const gemm_product *p, bool columns, void *to) {
    return (panel_copy){p, choose_form(p), columns, 0, columns ? p->n : p->m, 0, to};
}

int64_t KERNEL(gemm_copy_bytes)(const gemm_product *p, bool columns) {
    panel_copy c = copy_of(p, columns, NULL);
    return weft_arena_bytes(copy_bytes(&c, p->k));
}

void KERNEL(gemm_copy)(weft_pool *pool, const gemm_product *p, bool columns, void *to) {
    panel_copy c = copy_of(p, columns, to);
    copy_panels(pool, &c, 1);
}

/* As multiply_chunks goes through a band. */
void KERNEL(gemm_one_tile)(const gemm_product *p, gemm_place at, const void *rows,
                           const void *columns, real *c, int64_t ldc) {
    const panel_form *f = choose_form(p);
    int64_t chunk = f->chunk ? f->chunk : at.n, m_step = f->by_rows ? f->rows : at.m;
    int64_t a_rows = round_up(p->m, f->rows), b_columns = round_up(p->n, f->columns);
    if (f->begin) f->begin();
    for (int64_t j = 0; j < at.n; j += chunk)
        for (int64_t i = 0; i < at.m; i += m_step) {
            gemm_product tile = {.m = min_i64(m_step, at.m - i), .n = min_i64(chunk, at.n - j)};
            tile.alpha = p->alpha;
            tile.c = (gemm_matrix){.data = c + i * ldc + j, .ld = ldc};
            multiply_panels(f, &tile, p->k, rows, a_rows, at.row + i, columns, b_columns,
                            at.column + j);
        }
    if (f->end) f->end();
}
