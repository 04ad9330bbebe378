/* Sums along the kept columns: c_t = Σ_m w_tm h[i_tm], and the gradient dh_j = Σ w_tm dc_t over the
 * entries (t, m) with i_tm = j.
 *
 * The gradient turns the lists round first, by a counting sort in the workspace: an entry's number
 * t·k + m goes to its column's list, in ascending order, so that each column adds up alone and in a
 * fixed order, with no two threads writing to one place. */
#include "cpu/vec.h"
#include "ops/routing.h"

enum {
    GATHER_ROWS = 16,  /* rows of c, or columns, a task */
    GATHER_WIDTH = 256 /* of F a task in the gradient; and of F at a time */
};

typedef struct {
    weft_exec *x;
    const weft_node *n;
    const weft_tensor *in, *out;
    int64_t rows, width, k, keys; /* of one sequence: T, F, k, S */
    int64_t row_tasks, width_tasks;
    int32_t *first; /* [B, S + 1]: where a column's list begins in `entry` */
    int32_t *entry; /* [B, T·k] */
} gather;

static weft_status check_index(const weft_exec *x, const weft_node *n, const weft_tensor *index,
                               int64_t keys) {
    const int32_t *i = weft_data(x, index);
    int64_t count = weft_tensor_count(index);
    for (int64_t e = 0; e < count; e++)
        if (i[e] < -1 || i[e] >= keys)
            return WEFT_BAD_INPUT("%s: index holds %d, but it must be -1 to %lld", n->op->name,
                                  i[e], (long long)(keys - 1));
    return WEFT_OK;
}

/* Of `out_rows` rows in a sequence of the result. */
static gather gather_of(weft_exec *x, const weft_node *n, int64_t keys, int64_t out_rows) {
    const int64_t *shape = n->in[WEFT_GATHER_INDEX]->shape;
    return (gather){.x = x,
                    .n = n,
                    .rows = shape[1],
                    .k = shape[2],
                    .keys = keys,
                    .row_tasks = ceil_div(out_rows, GATHER_ROWS)};
}

/* Goes on to tensor `which`; false: there is none. */
static bool take_tensor(gather *c, int which) {
    c->in = weft_gather_input(c->n, which);
    if (!c->in) return false;
    c->out = c->n->out[which];
    c->width = c->in->shape[2];
    c->width_tasks = ceil_div(c->width, GATHER_WIDTH);
    return true;
}

/* y[0..n) += w · (n values of t from element `at`). */
static void add_scaled(const gather *c, const weft_tensor *t, int64_t at, real w, int64_t n,
                       real *y) {
    real wide[GATHER_WIDTH];
    const real *v = tile_in(c->x, t, at, n, wide);
    int64_t i = 0;
    for (; i + VLEN <= n; i += VLEN)
        vstore(y + i, vload(y + i) + vload(v + i) * w);
    if (i < n) vstore_part(y + i, vload_part(y + i, n - i) + vload_part(v + i, n - i) * w, n - i);
}

WEFT_TASK(route_gather_task, const gather *c) {
    int64_t b = task / c->row_tasks, first = task % c->row_tasks * GATHER_ROWS;
    const int32_t *index = weft_data(c->x, c->n->in[WEFT_GATHER_INDEX]);
    const real *weight = weft_data(c->x, c->n->in[WEFT_GATHER_WEIGHT]);
    for (int64_t t = first; t < min_i64(first + GATHER_ROWS, c->rows); t++) {
        int64_t row = b * c->rows + t;
        for (int64_t f = 0; f < c->width; f += GATHER_WIDTH) {
            int64_t len = min_i64(GATHER_WIDTH, c->width - f);
            real sum[GATHER_WIDTH] = {0};
            for (int64_t e = row * c->k; e < (row + 1) * c->k; e++)
                if (index[e] >= 0)
                    add_scaled(c, c->in, (b * c->keys + index[e]) * c->width + f, weight[e], len,
                               sum);
            write_reals(c->x, c->out, row * c->width + f, len, sum);
        }
    }
}

DEFINE_KERNEL(route_gather) {
    const weft_tensor *index = n->in[WEFT_GATHER_INDEX];
    int64_t keys = n->in[WEFT_GATHER_H]->shape[1];
    WEFT_TRY(check_index(x, n, index, keys));
    gather c = gather_of(x, n, keys, index->shape[1]);
    for (int i = 0; i < 2 && take_tensor(&c, i); i++)
        run_tasks(x, index->shape[0] * c.row_tasks, route_gather_task, &c);
    return WEFT_OK;
}

WEFT_TASK(sort_entries_task, const gather *c) {
    const int32_t *index = weft_data(c->x, c->n->in[WEFT_GATHER_INDEX]);
    int64_t count = c->rows * c->k;
    list_places(index + task * count, count, c->keys, c->first + task * (c->keys + 1),
                c->entry + task * count);
}

WEFT_TASK(route_gather_back_task, const gather *c) {
    int64_t f = task % c->width_tasks * GATHER_WIDTH, len = min_i64(GATHER_WIDTH, c->width - f);
    int64_t block = task / c->width_tasks, b = block / c->row_tasks;
    int64_t begin = block % c->row_tasks * GATHER_ROWS, count = c->rows * c->k;
    const real *weight = (const real *)weft_data(c->x, c->n->in[WEFT_GATHER_WEIGHT]) + b * count;
    const int32_t *first = c->first + b * (c->keys + 1), *entry = c->entry + b * count;
    for (int64_t j = begin; j < min_i64(begin + GATHER_ROWS, c->keys); j++) {
        real sum[GATHER_WIDTH] = {0};
        for (int32_t i = first[j]; i < first[j + 1]; i++) {
            int64_t t = entry[i] / c->k;
            add_scaled(c, c->in, (b * c->rows + t) * c->width + f, weight[entry[i]], len, sum);
        }
        write_reals(c->x, c->out, (b * c->keys + j) * c->width + f, len, sum);
    }
}

DEFINE_KERNEL_IN(route_gather_back, (n->out[0]->shape[0] * (n->out[0]->shape[1] + 1) +
                                     weft_tensor_count(n->in[WEFT_GATHER_INDEX])) *
                                        (int64_t)sizeof(int32_t)) {
    const weft_tensor *index = n->in[WEFT_GATHER_INDEX], *dh = n->out[0];
    WEFT_TRY(check_index(x, n, index, dh->shape[1]));
    int64_t batch = dh->shape[0];
    gather c = gather_of(x, n, dh->shape[1], dh->shape[1]);
    c.first = weft_workspace(x, n);
    c.entry = c.first + batch * (c.keys + 1);
    run_tasks(x, batch, sort_entries_task, &c);
    for (int i = 0; i < 2 && take_tensor(&c, i); i++)
        run_tasks(x, batch * c.row_tasks * c.width_tasks, route_gather_back_task, &c);
    return WEFT_OK;
}
