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

/* Uniform in the blocks on the diagonal of a square matrix, zero elsewhere. */
static void start_blocks(const weft_weight *w, uint64_t seed, uint32_t site, double *values) {
    int64_t side = w->shape[1], block = side / w->init.n;
    weft_random_uniform(seed, 0, site, w->count, values);
    for (int64_t i = 0; i < w->count; i++) {
        bool inside = (i / side) / block == (i % side) / block;
        values[i] = inside ? w->init.a * (2 * values[i] - 1) : 0;
    }
}

static weft_status start_weight(const weft_weight *w, bool orthogonal, uint64_t seed,
                                double *values) {
    uint32_t site = weft_random_site(w->name);
    switch (w->init.start) {
    case WEFT_START_CONSTANT:
        for (int64_t i = 0; i < w->count; i++)
            values[i] = w->init.a;
        return WEFT_OK;
    case WEFT_START_UNIFORM:
        weft_random_uniform(seed, 0, site, w->count, values);
        for (int64_t i = 0; i < w->count; i++)
            values[i] = w->init.a * (2 * values[i] - 1);
        return WEFT_OK;
    case WEFT_START_BLOCKS:
        start_blocks(w, seed, site, values);
        return WEFT_OK;
    case WEFT_START_NORMAL:
        break;
    }
    weft_random_normal(seed, 0, site, w->count, values);
    if (orthogonal && w->init.orthogonal && w->ndim == 2)
        return start_orthogonal(values, w->shape[0], w->shape[1]);
    for (int64_t i = 0; i < w->count; i++)
        values[i] *= w->init.a;
    return WEFT_OK;
}

weft_status weft_model_start(weft_model *m, uint64_t seed) {
    int64_t largest = 0;
    for (int64_t i = 0; i < m->n_weights; i++)
        if (m->weights[i].count > largest) largest = m->weights[i].count;
    double *values = malloc(((size_t)largest + 1) * sizeof *values);
    if (!values)
        return weft_fail(WEFT_ENOMEM, "start: no memory for %lld numbers", (long long)largest);
    weft_status status = WEFT_OK;
    for (int64_t i = 0; status == WEFT_OK && i < m->n_weights; i++) {
        status = start_weight(&m->weights[i], m->config.init == WEFT_INIT_ORTHOGONAL, seed, values);
        if (status == WEFT_OK) weft_weight_write(&m->weights[i], values);
    }
    free(values);
    weft_mirror_wrote(m->mirror, NULL);
    return status;
}
