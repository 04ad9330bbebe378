/* Plain arithmetic on the CPU. Sums are taken in lanes of `real` within a tile and in double from
 * tile to tile, so that their error does not grow with the tensor. */
#include "ops/arith.h"

#include "cpu/chunks.h"

TILEWISE(fill, 0, 0, 1) {
    real value = (real)ATTR(c->n, weft_fill_attr)->value, *y = out[0];
    for (int64_t i = 0; i < len; i++)
        y[i] = value;
}

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
        return run_chunks(x, n, 0, 2, 1, add_tile);
    return run_chunks(x, n, 0, 1, 1, add_rows_tile);
}

ELEMENTWISE_BY(scale, scale_vector, 0, 1, 1, (real)ATTR(c->n, weft_alpha_attr)->alpha)

TILEWISE(cast, 0, 1, 1) {
    memcpy(out[0], in[0], (size_t)len * sizeof(real));
}

DEFINE_KERNEL_AS(dot, write_number(x, n->out[0], sum_products(x, n, 2)), .workspace = sum_workspace)

VECTOR_FN(dot_back_vector) {
    out[0] = arg[0] * in[1];
    out[1] = arg[0] * in[0];
}

ELEMENTWISE_BY(dot_back, dot_back_vector, 1, 2, 2, read_number(c->x, c->n->in[0]))

DEFINE_KERNEL_AS(sum_squares,
                 write_number(x, n->out[0],
                              sum_products(x, n, 1) * ATTR(n, weft_alpha_attr)->alpha),
                 .workspace = sum_workspace)

ELEMENTWISE_BY(sum_squares_back, scale_vector, 1, 1, 1,
               (real)(2 * ATTR(c->n, weft_alpha_attr)->alpha) * read_number(c->x, c->n->in[0]))

POSITIONWISE(row_squares, n->in[0]) {
    int64_t start = ATTR(k->n, weft_row_squares_attr)->start;
    real *n = weft_data(k->x, k->n->out[0]);
    for (int64_t h = 0; h < k->heads; h++) { /* a head's columns from start on */
        int64_t at = (p * k->heads + h) * k->width + start;
        n[number_place(k, p, h)] = (real)dot_tensors(k->x, k->from, k->from, at, k->width - start);
    }
}

VECTOR_FN(zero_vector) {
    (void)in;
    out[0] = vset(0);
}

POSITIONWISE(row_squares_back, n->in[1]) {
    int64_t start = ATTR(k->n, weft_row_squares_attr)->start;
    const real *dn = weft_data(k->x, k->n->in[0]);
    const weft_tensor *dx = k->n->out[0];
    for (int64_t h = 0; h < k->heads; h++) {
        int64_t at = (p * k->heads + h) * k->width;
        real factor = 2 * dn[number_place(k, p, h)];
        apply_tensors(k->x, zero_vector, 1, &k->from, dx, at, start, NULL);
        apply_tensors(k->x, scale_vector, 1, &k->from, dx, at + start, k->width - start, &factor);
    }
}
