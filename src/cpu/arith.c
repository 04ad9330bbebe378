/* Plain arithmetic on the CPU. Sums are taken in lanes of `real` within a tile and in double from
 * tile to tile, so that their error does not grow with the tensor. */
#include "ops/arith.h"

#include "cpu/chunks.h"

TILE_FN(fill_tile) {
    real value = (real)ATTR(c->n, weft_fill_attr)->value, *y = out[0];
    for (int64_t i = 0; i < len; i++)
        y[i] = value;
}

TILEWISE(fill, 0, 0, 1)

VECTOR_FN(add_vector) {
    out[0] = in[0] + arg[0] * in[1];
}

TILE_FN(add_tile) {
    real alpha = (real)ATTR(c->n, weft_alpha_attr)->alpha;
    apply(add_vector, 2, in, 1, out, len, &alpha);
}

/* b has `width` elements and a many times that: the tile is cut where b begins anew. */
TILE_FN(add_rows_tile) {
    const weft_tensor *b = c->n->in[1];
    real alpha = (real)ATTR(c->n, weft_alpha_attr)->alpha, b_scratch[TILE_SCRATCH];
    int64_t width = weft_tensor_count(b);
    for (int64_t i = 0; i < len;) {
        int64_t column = (at + i) % width, part = min_i64(len - i, width - column);
        const real *from[] = {in[0] + i, tile_in(c->x, b, column, part, b_scratch)};
        real *to[] = {out[0] + i};
        apply(add_vector, 2, from, 1, to, part, &alpha);
        i += part;
    }
}

DEFINE_KERNEL(add) {
    if (weft_tensor_count(n->in[0]) == weft_tensor_count(n->in[1]))
        return run_chunks(x, n, 0, 2, 1, add_tile, NULL);
    return run_chunks(x, n, 0, 1, 1, add_rows_tile, NULL);
}

TILE_FN(scale_tile) {
    real alpha = (real)ATTR(c->n, weft_alpha_attr)->alpha;
    apply(scale_vector, 1, in, 1, out, len, &alpha);
}

TILEWISE(scale, 0, 1, 1)

TILE_FN(cast_tile) {
    memcpy(out[0], in[0], (size_t)len * sizeof(real));
}

TILEWISE(cast, 0, 1, 1)

static double dot_tile(const chunked *c, int64_t at, int64_t len, const real *const *in) {
    (void)c;
    (void)at;
    return (double)dot_reals(in[0], in[1], len);
}

DEFINE_KERNEL(dot, .workspace = sum_workspace) {
    write_number(x, n->out[0], sum_chunks(x, n, 2, dot_tile));
    return WEFT_OK;
}

VECTOR_FN(dot_back_vector) {
    out[0] = arg[0] * in[1];
    out[1] = arg[0] * in[0];
}

TILE_FN(dot_back_tile) {
    real dy = read_number(c->x, c->n->in[0]);
    apply(dot_back_vector, 2, in, 2, out, len, &dy);
}

TILEWISE(dot_back, 1, 2, 2)

static double squares_tile(const chunked *c, int64_t at, int64_t len, const real *const *in) {
    (void)c;
    (void)at;
    return (double)dot_reals(in[0], in[0], len);
}

DEFINE_KERNEL(sum_squares, .workspace = sum_workspace) {
    double factor = ATTR(n, weft_alpha_attr)->alpha;
    write_number(x, n->out[0], factor * sum_chunks(x, n, 1, squares_tile));
    return WEFT_OK;
}

TILE_FN(sum_squares_back_tile) {
    real factor = (real)(2 * ATTR(c->n, weft_alpha_attr)->alpha) * read_number(c->x, c->n->in[0]);
    apply(scale_vector, 1, in, 1, out, len, &factor);
}

TILEWISE(sum_squares_back, 1, 1, 1)

/* x is [B, T, H, D] and n [B, H, T]: a row is one of the B·T positions, so that x is read in its
 * order. */
typedef struct {
    weft_exec *x;
    const weft_node *n;
    const weft_tensor *from; /* x */
    int64_t time, heads, width, start;
} squares;

static weft_status run_squares(weft_exec *x, const weft_node *n, const weft_tensor *from,
                               row_fn each) {
    squares s = {.x = x,
                 .n = n,
                 .from = from,
                 .time = from->shape[1],
                 .heads = from->shape[2],
                 .width = from->shape[3],
                 .start = ATTR(n, weft_row_squares_attr)->start};
    return run_rows(x, from->shape[0] * s.time, s.heads * s.width, each, &s);
}

/* Where head h of position p stands in n. */
static int64_t squares_at(const squares *s, int64_t p, int64_t h) {
    return (p / s->time * s->heads + h) * s->time + p % s->time;
}

static void row_squares_row(const void *context, int64_t p) {
    const squares *s = context;
    real *n = weft_data(s->x, s->n->out[0]);
    for (int64_t h = 0; h < s->heads; h++) { /* a head's columns from start on */
        int64_t at = (p * s->heads + h) * s->width + s->start;
        n[squares_at(s, p, h)] = (real)dot_tensors(s->x, s->from, s->from, at, s->width - s->start);
    }
}

DEFINE_KERNEL(row_squares) {
    return run_squares(x, n, n->in[0], row_squares_row);
}

static void head_squares_back(const squares *s, int64_t at, real factor) {
    real x_scratch[TILE_SCRATCH], dx_scratch[TILE_SCRATCH];
    for (int64_t d = 0; d < s->width;) {
        int64_t edge = d < s->start ? s->start : s->width, len = min_i64(TILE, edge - d);
        const real *in[] = {tile_in(s->x, s->from, at + d, len, x_scratch)};
        real *out[] = {tile_out(s->x, s->n->out[0], at + d, dx_scratch)};
        if (d < s->start)
            memset(out[0], 0, (size_t)len * sizeof(real));
        else
            apply(scale_vector, 1, in, 1, out, len, &factor);
        tile_done(s->x, s->n->out[0], at + d, len, out[0]);
        d += len;
    }
}

static void row_squares_back_row(const void *context, int64_t p) {
    const squares *s = context;
    const real *dn = weft_data(s->x, s->n->in[0]);
    for (int64_t h = 0; h < s->heads; h++)
        head_squares_back(s, (p * s->heads + h) * s->width, 2 * dn[squares_at(s, p, h)]);
}

DEFINE_KERNEL(row_squares_back) {
    return run_squares(x, n, n->in[1], row_squares_back_row);
}
