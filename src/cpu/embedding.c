/* Embedding on the CPU.
 *
 * The gradient of the table turns the lookup around. A counting sort lists, for each row of the
 * table, the tokens that read it, in their order; then each row is one sum of its tokens'
 * gradients, or zeros, and every row is written once. Tasks are bands of rows by strips of columns,
 * so nothing is added twice or in another order, however many threads there are. */
#include "ops/embedding.h"
#include "cpu/vec.h"

enum {
    STRIP = 256,      /* columns a task holds */
    TASK_TOKENS = 16, /* rows a task of the forward pass writes */
    BANDS = 128,      /* the table's rows are cut into about this many bands */
    BAND_MAX = 256
};

/* row[0..n) += elements of a tensor. */
static void add_row(const weft_exec *x, const weft_tensor *t, int64_t at, int64_t n, real *row) {
    real tile[STRIP];
    const real *from = tile_in(x, t, at, n, tile);
    for (int64_t j = 0; j < n; j++)
        row[j] += from[j];
}

static weft_status check_tokens(const int32_t *ids, int64_t count, int64_t length,
                                int64_t vocabulary) {
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= vocabulary)
            return WEFT_BAD_INPUT(
                "embed: token %d at sequence %lld, position %lld is outside the vocabulary of %lld",
                ids[i], (long long)(i / length), (long long)(i % length), (long long)vocabulary);
    return WEFT_OK;
}

typedef struct {
    const weft_exec *x;
    const weft_node *n;
    const int32_t *ids;   /* [batch, length] */
    const int32_t *start; /* [batch], or NULL */
    int64_t batch, length, width;
    /* gradients: the rows of the table and how they are cut */
    int64_t rows, band, strips;
    const int32_t *first;  /* [rows + 1]: where a row's tokens begin in `tokens` */
    const int32_t *tokens; /* [batch · length] */
} embed_work;

WEFT_TASK(embed_tokens, const embed_work *e) {
    const weft_tensor *wte = e->n->in[0], *wpe = e->n->in[2];
    int64_t end = min_i64((task + 1) * TASK_TOKENS, e->batch * e->length);
    for (int64_t i = task * TASK_TOKENS; i < end; i++) {
        int64_t b = i / e->length;
        int64_t position = i % e->length + (e->start ? e->start[b] : 0);
        for (int64_t j = 0; j < e->width; j += STRIP) {
            int64_t n = min_i64(STRIP, e->width - j);
            real row[STRIP] = {0}, tile[STRIP];
            memcpy(row, tile_in(e->x, wte, e->ids[i] * e->width + j, n, tile),
                   (size_t)n * sizeof(real));
            if (wpe) add_row(e->x, wpe, position * e->width + j, n, row);
            write_reals(e->x, e->n->out[0], i * e->width + j, n, row);
        }
    }
}

DEFINE_KERNEL(embed) {
    const weft_tensor *wte = n->in[0], *ids = n->in[1], *wpe = n->in[2];
    embed_work e = {.x = x, .n = n, .ids = weft_data(x, ids), .start = weft_data(x, n->in[3])};
    e.batch = ids->shape[0];
    e.length = ids->shape[1];
    e.width = wte->shape[1];
    WEFT_TRY(check_tokens(e.ids, e.batch * e.length, e.length, wte->shape[0]));
    for (int64_t b = 0; wpe && e.start && b < e.batch; b++)
        if (e.start[b] < 0 || e.start[b] + e.length > wpe->shape[0])
            return WEFT_BAD_INPUT(
                "embed: sequence %lld has positions %lld to %lld, but the table has %lld of them",
                (long long)b, (long long)e.start[b], (long long)(e.start[b] + e.length - 1),
                (long long)wpe->shape[0]);
    return run_tasks(x, ceil_div(e.batch * e.length, TASK_TOKENS), embed_tokens, &e);
}

/* Rows of the table that tokens point to, or positions. */
WEFT_TASK(sum_rows, const embed_work *e) {
    const weft_tensor *addend = e->tokens ? e->n->in[WEFT_EMBED_BACK_ADDEND] : NULL;
    int64_t column = task % e->strips * STRIP, n = min_i64(STRIP, e->width - column);
    int64_t row = task / e->strips * e->band, end = min_i64(row + e->band, e->rows);
    for (; row < end; row++) {
        real sum[STRIP] = {0};
        for (int32_t i = e->tokens ? e->first[row] : 0; e->tokens && i < e->first[row + 1]; i++)
            add_row(e->x, e->n->in[0], e->tokens[i] * e->width + column, n, sum);
        for (int64_t b = 0; !e->tokens && b < e->batch; b++) {
            int64_t t = row - (e->start ? e->start[b] : 0);
            if (t < 0 || t >= e->length) continue;
            add_row(e->x, e->n->in[0], (b * e->length + t) * e->width + column, n, sum);
        }
        if (addend) add_row(e->x, addend, row * e->width + column, n, sum);
        write_reals(e->x, e->n->out[0], row * e->width + column, n, sum);
    }
}

/* Bands of the table's rows by strips of its columns. */
static weft_status run_bands(const weft_exec *x, embed_work *e) {
    e->band = max_i64(1, min_i64(e->rows / BANDS, BAND_MAX));
    e->strips = ceil_div(e->width, STRIP);
    return run_tasks(x, ceil_div(e->rows, e->band) * e->strips, sum_rows, e);
}

DEFINE_KERNEL_IN(embed_back,
                 (weft_tensor_count(n->in[1]) + ATTR(n, weft_embed_back_attr)->rows + 1) *
                     (int64_t)sizeof(int32_t)) {
    const weft_tensor *ids = n->in[1];
    embed_work e = {.x = x, .n = n, .rows = ATTR(n, weft_embed_back_attr)->rows};
    int64_t count = weft_tensor_count(ids);
    e.ids = weft_data(x, ids);
    e.width = weft_tensor_width(n->in[0]);
    WEFT_TRY(check_tokens(e.ids, count, ids->shape[1], e.rows));
    int32_t *tokens = weft_workspace(x, n), *first = tokens + count;
    list_places(e.ids, count, e.rows, first, tokens);
    e.first = first;
    e.tokens = tokens;
    return run_bands(x, &e);
}

DEFINE_KERNEL(position_back) {
    const weft_tensor *dy = n->in[0];
    embed_work e = {.x = x, .n = n, .start = weft_data(x, n->in[1])};
    e.rows = ATTR(n, weft_embed_back_attr)->rows;
    e.batch = dy->shape[0];
    e.length = dy->shape[1];
    e.width = dy->shape[2];
    return run_bands(x, &e);
}
