/* Vectors scaled to length 1, on the CPU: a row is a head, read once for its sums and once more to
 * be scaled. */
#include "ops/norm.h"

#include "cpu/chunks.h"

typedef struct {
    weft_exec *x;
    const weft_node *n;
    const weft_tensor *dy, *from; /* dy: NULL in the forward pass */
    int64_t rows, heads, scaled, width;
} units;

static units units_of(weft_exec *x, const weft_node *n, const weft_tensor *dy,
                      const weft_tensor *from) {
    return (units){.x = x,
                   .n = n,
                   .dy = dy,
                   .from = from,
                   .rows = weft_tensor_rows(from),
                   .heads = from->shape[2],
                   .scaled = ATTR(n, weft_unit_attr)->heads,
                   .width = from->shape[3]};
}

/* Σ a·b of a row. */
static double row_dot(const units *u, const weft_tensor *a, const weft_tensor *b, int64_t at) {
    real a_scratch[TILE_SCRATCH], b_scratch[TILE_SCRATCH];
    double sum = 0;
    for (int64_t d = 0; d < u->width; d += TILE) {
        int64_t len = min_i64(TILE, u->width - d);
        const real *from = tile_in(u->x, a, at + d, len, a_scratch);
        const real *with = a == b ? from : tile_in(u->x, b, at + d, len, b_scratch);
        sum += (double)dot_reals(from, with, len);
    }
    return sum;
}

VECTOR_FN mixed_vector(const vreal *in, vreal *out, const real *arg) {
    out[0] = in[0] * arg[0] + in[1] * arg[1];
}

/* A row of the output: arg[0] times the first input, plus arg[1] times the second where there is
 * one. */
static void write_row(const units *u, const weft_tensor *first, const weft_tensor *second,
                      int64_t at, const real *arg) {
    real a_scratch[TILE_SCRATCH], b_scratch[TILE_SCRATCH], y_scratch[TILE_SCRATCH];
    const weft_tensor *y = u->n->out[0];
    for (int64_t d = 0; d < u->width; d += TILE) {
        int64_t len = min_i64(TILE, u->width - d);
        const real *in[] = {tile_in(u->x, first, at + d, len, a_scratch), NULL};
        real *out[] = {tile_out(u->x, y, at + d, y_scratch)};
        if (second) {
            in[1] = tile_in(u->x, second, at + d, len, b_scratch);
            apply(mixed_vector, 2, in, 1, out, len, arg);
        } else {
            apply(scale_vector, 1, in, 1, out, len, arg);
        }
        tile_done(u->x, y, at + d, len, out[0]);
    }
}

static void unit_row(const void *context, int64_t row) {
    const units *u = context;
    int64_t at = row * u->width;
    real factor[2] = {1, 0};
    if (row % u->heads >= u->scaled) {
        write_row(u, u->dy ? u->dy : u->from, NULL, at, factor);
        return;
    }
    double length = sqrt(row_dot(u, u->from, u->from, at));
    bool least = !(length > WEFT_UNIT_LEAST);
    double r = 1 / (least ? WEFT_UNIT_LEAST : length);
    factor[0] = (real)r;
    if (u->dy && !least) factor[1] = (real)(-r * r * (r * row_dot(u, u->dy, u->from, at)));
    write_row(u, u->dy ? u->dy : u->from, u->dy ? u->from : NULL, at, factor);
}

static weft_status run_units(units u) {
    return run_rows(u.x, u.rows, u.width, unit_row, &u);
}

static weft_status unit_run(weft_exec *x, const weft_node *n) {
    return run_units(units_of(x, n, NULL, n->in[0]));
}

const weft_kernel KERNEL(unit) = {.run = unit_run};

static weft_status unit_back_run(weft_exec *x, const weft_node *n) {
    return run_units(units_of(x, n, n->in[0], n->in[1]));
}

const weft_kernel KERNEL(unit_back) = {.run = unit_back_run};
