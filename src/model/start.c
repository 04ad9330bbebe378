/* How weights start. A tensor's numbers depend on the seed, its name and the index alone, so that
 * tensors which two configs share start equal.
 *
 * Orthogonal starts come from a normal draw by Gram and Schmidt, run twice over, which is as good
 * as reflections; the rows of a wide matrix, the columns of a tall one come out orthonormal. */
#include "core/random.h"
#include "model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 15 };

/* Makes the `count` vectors of `length` (count ≤ length) orthonormal, in order. */
static void orthonormalize(double *vectors, int64_t count, int64_t length) {
    for (int64_t i = 0; i < count; i++) {
        double *v = vectors + i * length;
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t j = 0; j < i; j++) {
                const double *u = vectors + j * length;
                double along = 0;
                for (int64_t k = 0; k < length; k++)
                    along += u[k] * v[k];
                for (int64_t k = 0; k < length; k++)
                    v[k] -= along * u[k];
            }
        }
        double norm = 0;
        for (int64_t k = 0; k < length; k++)
            norm += v[k] * v[k];
        norm = 1 / sqrt(norm);
        for (int64_t k = 0; k < length; k++)
            v[k] *= norm;
    }
}

static void transpose(const double *from, double *to, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            to[j * rows + i] = from[i * columns + j];
}

static weft_status start_orthogonal(double *values, int64_t rows, int64_t columns) {
    if (rows <= columns) {
        orthonormalize(values, rows, columns);
        return WEFT_OK;
    }
    double *turned = malloc((size_t)(rows * columns) * sizeof *turned);
    if (!turned) return weft_fail(WEFT_ENOMEM, "start: no memory for an orthogonal matrix");
    transpose(values, turned, rows, columns);
    orthonormalize(turned, columns, rows);
    transpose(turned, values, columns, rows);
    free(turned);
    return WEFT_OK;
}

/* Numbers first .. first + n - 1 of a weight whose numbers do not depend on each other. */
static void start_piece(const weft_weight *w, uint64_t seed, int64_t first, int64_t n,
                        double *values) {
    uint32_t site = weft_random_site(w->name);
    double a = w->init.a;
    if (w->init.start == WEFT_START_CONSTANT) {
        for (int64_t i = 0; i < n; i++)
            values[i] = a;
        return;
    }
    if (w->init.start == WEFT_START_NORMAL) {
        weft_random_normal_at(seed, 0, site, first, n, values);
        for (int64_t i = 0; i < n; i++)
            values[i] *= a;
        return;
    }
    weft_random_uniform_at(seed, 0, site, first, n, values);
    /* Blocks: only those on the diagonal of a square matrix, zero elsewhere. */
    bool blocks = w->init.start == WEFT_START_BLOCKS;
    int64_t side = blocks ? w->shape[1] : 1, block = blocks ? side / w->init.n : 1;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = first + i;
        bool inside = !blocks || (at / side) / block == (at % side) / block;
        values[i] = inside ? a * (2 * values[i] - 1) : 0;
    }
}

/* Writes numbers into a piece of a weight. */
static void write_piece(const weft_weight *w, int64_t first, int64_t n, const double *values) {
    size_t size = weft_dtype_size(w->dtype);
    weft_weight piece = {.dtype = w->dtype,
                         .count = n,
                         .bytes = n * (int64_t)size,
                         .data = (unsigned char *)w->data + (size_t)first * size};
    weft_weight_write(&piece, values);
}

typedef struct {
    const weft_weight *weight;
    uint64_t seed;
    double *values; /* PIECE for each thread */
} filling;

static void fill_piece(void *context, int64_t task, int thread) {
    const filling *f = context;
    double *values = f->values + (size_t)thread * PIECE;
    int64_t first = task * PIECE, rest = f->weight->count - first;
    int64_t n = rest < PIECE ? rest : PIECE;
    start_piece(f->weight, f->seed, first, n, values);
    write_piece(f->weight, first, n, values);
}

static weft_status start_whole(weft_weight *w, uint64_t seed) {
    double *values = malloc(((size_t)w->count + 1) * sizeof *values);
    if (!values)
        return weft_fail(WEFT_ENOMEM, "start: no memory for %lld numbers", (long long)w->count);
    weft_random_normal(seed, 0, weft_random_site(w->name), w->count, values);
    weft_status status = start_orthogonal(values, w->shape[0], w->shape[1]);
    if (status == WEFT_OK) weft_weight_write(w, values);
    free(values);
    return status;
}

weft_status weft_model_start_on(weft_model *m, uint64_t seed, weft_pool *pool) {
    size_t threads = pool ? (size_t)weft_pool_size(pool) : 1;
    bool orthogonal = m->config.init == WEFT_INIT_ORTHOGONAL;
    filling f = {.seed = seed, .values = malloc(threads * PIECE * sizeof *f.values)};
    if (!f.values) return weft_fail(WEFT_ENOMEM, "start: no memory");
    weft_status status = WEFT_OK;
    for (int64_t i = 0; status == WEFT_OK && i < m->n_weights; i++) {
        weft_weight *w = &m->weights[i];
        int64_t pieces = (w->count + PIECE - 1) / PIECE;
        f.weight = w;
        if (orthogonal && w->init.orthogonal && w->ndim == 2 && w->init.start == WEFT_START_NORMAL)
            status = start_whole(w, seed);
        else if (pool)
            weft_pool_run(pool, pieces, fill_piece, &f);
        else
            for (int64_t k = 0; k < pieces; k++)
                fill_piece(&f, k, 0);
    }
    free(f.values);
    weft_mirror_wrote(m->mirror, NULL);
    return status;
}

weft_status weft_model_start(weft_model *m, uint64_t seed) {
    return weft_model_start_on(m, seed, NULL);
}
