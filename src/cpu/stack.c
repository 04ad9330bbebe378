/* Stacks on the CPU: copies of whole parts, cut into pieces, a task each. */
#include "ops/heads.h"

#include "cpu/kernel.h"

/* Bytes of a piece, and of how many a part is cut into where it is large. */
enum { PIECE_LEAST = 4096, PIECES = 64 };

typedef struct {
    const weft_exec *x;
    weft_tensor *const *parts; /* NULL among them: not wanted */
    char *stacked;
    int64_t bytes, piece, pieces; /* of a part: its bytes, a piece's, how many */
    bool back;
} copying;

WEFT_TASK(copy_piece) {
    const copying *c = context;
    int64_t i = task / c->pieces, at = task % c->pieces * c->piece;
    size_t length = (size_t)min_i64(c->piece, c->bytes - at);
    if (!c->parts[i]) return;
    char *part = (char *)weft_data(c->x, c->parts[i]) + at, *place = c->stacked + i * c->bytes + at;
    memcpy(c->back ? part : place, c->back ? place : part, length);
}

static weft_status run_copies(weft_exec *x, const weft_tensor *stacked, weft_tensor *const *parts,
                              int n, bool back) {
    copying c = {.x = x, .parts = parts, .stacked = weft_data(x, stacked), .back = back};
    c.bytes = weft_tensor_bytes(stacked) / n;
    c.piece = max_i64(PIECE_LEAST, ceil_div(c.bytes, PIECES));
    c.pieces = ceil_div(c.bytes, c.piece);
    weft_pool_run(weft_exec_pool(x), n * c.pieces, copy_piece, &c);
    return WEFT_OK;
}

DEFINE_KERNEL(stack) {
    return run_copies(x, n->out[0], n->in, n->n_in, false);
}

DEFINE_KERNEL(unstack) {
    return run_copies(x, n->in[0], n->out, n->n_out, true);
}
