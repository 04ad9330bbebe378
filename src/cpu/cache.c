/* Caches on the CPU: rows written into pages, rows gathered by weights, running means. Rows are
 * independent; only the rows of one sequence in a running mean follow each other. */
#include "ops/cache.h"

#include "cpu/cached.h"

enum { STRIP = 256 /* columns of a gathering task */ };

typedef struct {
    const weft_exec *x;
    const weft_node *n;
    row_places places;
    cached_pages pages;
    int64_t columns; /* of a row of x */
    char *scratch;
    int64_t thread_bytes;
} write_run;

/* Stores a vector; the sum of the squares of what is stored. */
static real store_vector(const cached_pages *c, char *page, int64_t head, int64_t token,
                         const real *x) {
    int64_t width = c->part.width;
    char *to = head_at(c, page, head) + token * c->token_bytes;
    vreal squares = {0};
    float scale = 1;
    if (c->kind == CACHED_REAL) {
        memcpy(to, x, (size_t)c->token_bytes);
    } else if (c->kind == CACHED_BF16) {
        round_bf16((uint16_t *)to, x, width);
    } else {
        real most = 0, nothing = 0;
        for (int64_t i = 0; i < width; i++) {
            most = x[i] > most ? x[i] : -x[i] > most ? -x[i] : most;
            nothing += 0 * x[i]; /* or NaN, which no comparison finds and no byte holds */
        }
        scale = (float)(most / 127 + nothing);
        real inverse = most > 0 ? 127 / most : 0;
        for (int64_t i = 0; i < width; i++)
            ((int8_t *)to)[i] = (int8_t)lrint((double)(x[i] * inverse));
        *scale_at(c, page, head, token) = scale;
    }
    if (!c->part.number) return 0;
    for (int64_t i = 0; i < width; i += VLEN) {
        vreal v = load_cached(to, i, width - i, c->kind);
        squares = vfma(v, v, squares);
    }
    return vsum(squares) * (real)scale * (real)scale;
}

static void write_row(void *context, int64_t r, int thread) {
    const write_run *w = context;
    const weft_cache_write_attr *attr = w->n->attr;
    const weft_cache_part *part = &attr->part;
    if (w->places.slot[r] < 0) return;
    real *scratch = (real *)(w->scratch + thread * w->thread_bytes);
    int64_t j = w->places.position[r], token = j % WEFT_PAGE_TOKENS;
    char *page = page_at(&w->pages, &w->places, r, j);
    const real *extra = weft_data(w->x, w->n->in[WEFT_CACHE_EXTRA]);
    const real *x = tile_in(w->x, w->n->in[WEFT_CACHE_X], r * w->columns + attr->offset,
                            part->heads * part->width, scratch);
    for (int64_t h = 0; h < part->heads; h++) {
        real n = store_vector(&w->pages, page, h, token, x + h * part->width);
        if (!part->number) continue;
        if (extra) n += extra[r * part->heads + h];
        void *number = number_at(&w->pages, page, h, token);
        if (w->pages.kind == CACHED_REAL)
            *(real *)number = n;
        else
            *(float *)number = (float)n;
    }
}

static int64_t write_thread_bytes(const weft_node *n) {
    const weft_cache_part *part = &ATTR(n, weft_cache_write_attr)->part;
    return n->in[WEFT_CACHE_X]->dtype == WEFT_BF16 ? real_bytes(part->heads * part->width) : 0;
}

DEFINE_KERNEL_IN(cache_write, write_thread_bytes(n) * threads) {
    const weft_tensor *from = n->in[WEFT_CACHE_X];
    write_run w = {.x = x, .n = n, .places = places_of(x, n)};
    w.pages =
        pages_of(weft_data(x, n->in[WEFT_CACHE_PAGES]), &ATTR(n, weft_cache_write_attr)->part);
    w.columns = weft_tensor_count(from) / w.places.rows;
    w.scratch = weft_workspace(x, n);
    w.thread_bytes = write_thread_bytes(n);
    run_tasks(x, w.places.rows, write_row, &w);
    *(int32_t *)weft_data(x, n->out[0]) = 0;
    return WEFT_OK;
}

/* What a row keeps: the chosen few, or a threshold over all; and the factor of the kept ones. */
typedef struct {
    real factor, floor;
    int64_t count;
} kept;

typedef struct {
    const weft_exec *x;
    const weft_node *n;
    const weft_cache_gather_attr *attr;
    row_places places;
    cached_pages pages;
    const real *weights;      /* [R, context] */
    const int32_t *documents; /* [R] or NULL */
    int64_t context, width, strips, k;
    kept *rows;     /* [R] */
    int32_t *index; /* [R, k]: of the largest, descending */
} gather_run;

static int64_t keys_seen(const gather_run *g, int64_t r) {
    int64_t own = g->places.position[r] + 1 - (g->documents ? g->documents[r] : 0);
    return min_i64(own, g->context);
}

/* The k largest by insertion, bit-equal ones by index. */
static void choose_largest(const gather_run *g, int64_t r, int64_t seen, kept *row) {
    const real *w = g->weights + r * g->context;
    int32_t *index = g->index + r * g->k;
    for (int64_t j = 0; j < seen; j++) {
        if (row->count == g->k && !(w[j] > w[index[g->k - 1]])) continue;
        int64_t at = row->count < g->k ? row->count++ : g->k - 1;
        for (; at > 0 && w[j] > w[index[at - 1]]; at--)
            index[at] = index[at - 1];
        index[at] = (int32_t)j;
    }
    double sum = 0;
    for (int64_t m = 0; m < row->count; m++)
        sum += (double)w[index[m]];
    if (g->attr->normalize) row->factor = sum > 0 ? (real)(1 / sum) : 0;
}

static void choose_above(const gather_run *g, int64_t r, int64_t seen, kept *row) {
    const real *w = g->weights + r * g->context;
    double squares = 0, sum = 0;
    if (g->attr->keep == WEFT_KEEP_RMS) {
        for (int64_t j = 0; j < seen; j++)
            squares += (double)w[j] * (double)w[j];
        row->floor = (real)(g->attr->threshold * sqrt(squares / (double)seen));
    }
    for (int64_t j = 0; j < seen; j++)
        if (w[j] >= row->floor) sum += (double)w[j];
    if (g->attr->normalize) row->factor = sum > 0 ? (real)(1 / sum) : 0;
}

WEFT_TASK(choose_row, const gather_run *g) {
    kept *row = g->rows + task;
    *row = (kept){.factor = 1};
    if (g->places.slot[task] < 0) return;
    (g->attr->keep == WEFT_KEEP_TOPK ? choose_largest : choose_above)(g, task, keys_seen(g, task),
                                                                      row);
}

static ALWAYS_INLINE void add_token(const gather_run *g, int64_t r, int64_t j, real weight,
                                    int64_t column, int64_t n, real *sum, const cached_kind kind) {
    char *page = page_at(&g->pages, &g->places, r, j);
    int64_t token = j % WEFT_PAGE_TOKENS;
    const char *from = page + token * g->pages.token_bytes + column * kind_bytes(kind);
    if (kind == CACHED_I8) weight *= (real)*scale_at(&g->pages, page, 0, token);
    vreal w = vset(weight);
    for (int64_t i = 0; i < n; i += VLEN)
        vstore(sum + i, vfma(w, load_cached(from, i, n - i, kind), vload(sum + i)));
}

static ALWAYS_INLINE void gather_strip_of(const gather_run *g, int64_t task,
                                          const cached_kind kind) {
    int64_t r = task / g->strips, column = task % g->strips * STRIP;
    int64_t n = min_i64(STRIP, g->width - column);
    const real *w = g->weights + r * g->context;
    const kept *row = g->rows + r;
    real sum[STRIP + 16] = {0};
    if (g->places.slot[r] >= 0) {
        int64_t seen = keys_seen(g, r), first = g->places.position[r] + 1 - seen;
        if (g->attr->keep == WEFT_KEEP_TOPK) {
            const int32_t *index = g->index + r * g->k;
            for (int64_t m = 0; m < row->count; m++)
                add_token(g, r, first + index[m], w[index[m]] * row->factor, column, n, sum, kind);
        } else {
            for (int64_t j = 0; j < seen; j++)
                if (w[j] >= row->floor)
                    add_token(g, r, first + j, w[j] * row->factor, column, n, sum, kind);
        }
    }
    const weft_tensor *addend = g->n->in[WEFT_CACHE_ADDEND];
    real widened[STRIP];
    const real *added = addend ? tile_in(g->x, addend, r * g->width + column, n, widened) : NULL;
    for (int64_t i = 0; added && i < n; i++)
        sum[i] += added[i];
    write_reals(g->x, g->n->out[0], r * g->width + column, n, sum);
}

WEFT_TASK(gather_strip, const gather_run *g) {
    BY_KIND(g->pages.kind, gather_strip_of, g, task);
}

static int64_t chosen_room(const weft_node *n) {
    const weft_cache_gather_attr *attr = n->attr;
    int64_t context = n->in[WEFT_CACHE_X]->shape[1];
    return attr->keep == WEFT_KEEP_TOPK ? min_i64(attr->k, context) : 0;
}

DEFINE_KERNEL_IN(cache_gather,
                 n->in[WEFT_CACHE_X]->shape[0] *
                     ((int64_t)sizeof(kept) + chosen_room(n) * (int64_t)sizeof(int32_t))) {
    gather_run g = {.x = x, .n = n, .attr = n->attr, .places = places_of(x, n)};
    g.pages = pages_of(weft_data(x, n->in[WEFT_CACHE_PAGES]), &g.attr->part);
    g.weights = weft_data(x, n->in[WEFT_CACHE_X]);
    g.context = n->in[WEFT_CACHE_X]->shape[1];
    g.documents = weft_data(x, n->in[WEFT_CACHE_DOCUMENTS]);
    g.width = g.attr->part.heads * g.attr->part.width;
    g.strips = ceil_div(g.width, STRIP);
    g.k = chosen_room(n);
    g.rows = weft_workspace(x, n);
    g.index = (int32_t *)(g.rows + g.places.rows);
    run_tasks(x, g.places.rows, choose_row, &g);
    return run_tasks(x, g.places.rows * g.strips, gather_strip, &g);
}

DEFINE_KERNEL_IN(cache_mean, real_bytes(2 * weft_tensor_width(n->in[WEFT_CACHE_X]))) {
    row_places p = places_of(x, n);
    const weft_tensor *in = n->in[WEFT_CACHE_X];
    int64_t width = weft_tensor_count(in) / p.rows;
    real *sums = weft_data(x, n->in[WEFT_CACHE_PAGES]), *scratch = weft_workspace(x, n);
    const int32_t *documents = weft_data(x, n->in[WEFT_CACHE_DOCUMENTS]);
    for (int64_t r = 0; r < p.rows; r++) {
        real *y = tile_out(x, n->out[0], r * width, scratch + width);
        memset(y, 0, (size_t)width * sizeof(real));
        if (p.slot[r] >= 0) {
            const real *from = tile_in(x, in, r * width, width, scratch);
            real *sum = sums + p.slot[r] * width;
            int32_t place = p.position[r] - (documents ? documents[r] : 0);
            if (place == 0) memset(sum, 0, (size_t)width * sizeof(real));
            real share = (real)(1 / ((double)place + 1));
            for (int64_t i = 0; i < width; i++) {
                sum[i] += from[i];
                y[i] = sum[i] * share;
            }
        }
        tile_done(x, n->out[0], r * width, width, y);
    }
    return WEFT_OK;
}
