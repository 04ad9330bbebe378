/* Vectors scaled to length 1, on the CPU: a row is a head, read once for its sums and once more to
 * be scaled. */
#include "ops/norm.h"

#include "cpu/chunks.h"

typedef struct {
    weft_exec *x;
    const weft_node *n;
    const weft_tensor *dy, *from; /* dy: NULL in the forward pass */
    int64_t heads, scaled, width;
} units;

VECTOR_FN(mixed_vector) {
    out[0] = in[0] * arg[0] + in[1] * arg[1];
}

static void unit_row(const void *context, int64_t row) {
    const units *u = context;
    const weft_tensor *in[] = {u->dy ? u->dy : u->from, u->from}, *y = u->n->out[0];
    int64_t at = row * u->width;
    real factor[2] = {1, 0};
    bool scaled = row % u->heads < u->scaled;
    if (scaled) {
        double length = sqrt(dot_tensors(u->x, u->from, u->from, at, u->width));
        bool least = !(length > WEFT_UNIT_LEAST);
        double r = 1 / (least ? WEFT_UNIT_LEAST : length);
        factor[0] = (real)r;
        if (u->dy && !least)
            factor[1] = (real)(-r * r * (r * dot_tensors(u->x, u->dy, u->from, at, u->width)));
    }
    if (scaled && u->dy)
        apply_tensors(u->x, mixed_vector, 2, in, y, at, u->width, factor);
    else
        apply_tensors(u->x, scale_vector, 1, in, y, at, u->width, factor);
}

static weft_status run_units(weft_exec *x, const weft_node *n, const weft_tensor *dy,
                             const weft_tensor *from) {
    units u = {.x = x,
               .n = n,
               .dy = dy,
               .from = from,
               .heads = from->shape[2],
               .scaled = ATTR(n, weft_unit_attr)->heads,
               .width = from->shape[3]};
    return run_rows(x, weft_tensor_rows(from), u.width, unit_row, &u);
}

DEFINE_KERNEL(unit) {
    return run_units(x, n, NULL, n->in[0]);
}

DEFINE_KERNEL(unit_back) {
    return run_units(x, n, n->in[0], n->in[1]);
}
