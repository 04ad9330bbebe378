/* How weights start. A tensor's numbers depend on the seed, its name and the index alone, so that
 * tensors which two configs share start equal, and threads can share out the pieces.
 *
 * Orthogonal starts come from a normal draw by Gram and Schmidt, run twice over, which is as good
 * as reflections; the rows of a wide matrix, the columns of a tall one come out orthonormal. Vectors
 * are taken in panels: what a panel has along all earlier vectors is removed in two products that the
 * threads share, each sum whole in one task, so their number changes no bit. */
#include "base/random.h"
#include "model/model.h"

#include <math.h>

enum { PIECE = 1 << 15, PANEL = 16, ROWS = 4, LANES = 4, STRIP = 1024, SQUARE = 32 };

static int64_t pieces_of(int64_t count, int64_t piece) {
    return (count + piece - 1) / piece;
}

/* A panel of vectors after `done` orthonormal ones. */
typedef struct {
    const double *earlier; /* [done, length] */
    double *panel;         /* [width, length] */
    double *along;         /* [width, done]: the panel's products with the earlier ones */
    int64_t done, width, length;
} projection;

/* Products of the panel with ROWS earlier vectors. */
WEFT_TASK(measure_rows) {
    const projection *p = context;
    int64_t first = task * ROWS, rows = p->done - first < ROWS ? p->done - first : ROWS;
    for (int64_t w = 0; w < p->width; w++) {
        const double *v = p->panel + w * p->length;
        for (int64_t r = 0; r < rows; r++) {
            const double *u = p->earlier + (first + r) * p->length;
            double sums[LANES] = {0}, rest = 0;
            int64_t k = 0;
            for (; k + LANES <= p->length; k += LANES)
                for (int lane = 0; lane < LANES; lane++)
                    sums[lane] += u[k + lane] * v[k + lane];
            for (; k < p->length; k++)
                rest += u[k] * v[k];
            p->along[w * p->done + first + r] = (sums[0] + sums[1]) + (sums[2] + sums[3]) + rest;
        }
    }
}

/* Removes what lies along the earlier vectors from a strip of the panel's columns. */
WEFT_TASK(remove_strip) {
    const projection *p = context;
    int64_t first = task * STRIP, n = p->length - first < STRIP ? p->length - first : STRIP;
    for (int64_t j = 0; j < p->done; j++) {
        const double *u = p->earlier + j * p->length + first;
        for (int64_t w = 0; w < p->width; w++) {
            double *v = p->panel + w * p->length + first, along = p->along[w * p->done + j];
            for (int64_t k = 0; k < n; k++)
                v[k] -= along * u[k];
        }
    }
}

/* Makes the `count` vectors of `length` (count ≤ length) orthonormal, in order. */
static weft_status orthonormalize(double *vectors, int64_t count, int64_t length, weft_pool *pool) {
    WEFT_ROOM(double, products, (count * PANEL), "start: no memory for an orthogonal matrix");
    projection p = {.earlier = vectors, .along = products, .length = length};
    for (p.done = 0; p.done < count; p.done += p.width) {
        p.width = count - p.done < PANEL ? count - p.done : PANEL;
        p.panel = vectors + p.done * length;
        for (int pass = 0; pass < 2; pass++) {
            weft_pool_run(pool, pieces_of(p.done, ROWS), measure_rows, &p);
            weft_pool_run(pool, pieces_of(length, STRIP), remove_strip, &p);
            /* Makes few vectors orthonormal, in order. */
            for (int64_t i = 0; i < p.width; i++) {
                double *v = p.panel + i * length, norm = 0;
                for (int64_t j = 0; j < i; j++) {
                    const double *u = p.panel + j * length;
                    double along = 0;
                    for (int64_t k = 0; k < length; k++)
                        along += u[k] * v[k];
                    for (int64_t k = 0; k < length; k++)
                        v[k] -= along * u[k];
                }
                for (int64_t k = 0; k < length; k++)
                    norm += v[k] * v[k];
                norm = 1 / sqrt(norm);
                for (int64_t k = 0; k < length; k++)
                    v[k] *= norm;
            }
        }
    }
    return WEFT_OK;
}

/* In squares, so that neither side is read across all of memory. */
static void transpose(const double *from, double *to, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; r += SQUARE)
        for (int64_t c = 0; c < columns; c += SQUARE)
            for (int64_t i = r; i < rows && i < r + SQUARE; i++)
                for (int64_t j = c; j < columns && j < c + SQUARE; j++)
                    to[j * rows + i] = from[i * columns + j];
}

typedef struct {
    const weft_weight *weight;
    uint64_t seed;
    double *values; /* PIECE for each thread */
    double *whole;  /* where the numbers go; NULL: into the weight */
} filling;

static void fill_piece(void *context, int64_t task, int thread) {
    const filling *f = context;
    int64_t first = task * PIECE, rest = f->weight->count - first;
    int64_t n = rest < PIECE ? rest : PIECE;
    double *values = f->whole ? f->whole + first : f->values + (size_t)thread * PIECE;
    /* The numbers of a weight that do not depend on each other. */
    const weft_weight *w = f->weight;
    uint32_t site = weft_random_site(w->name);
    double a = w->init.a;
    if (w->init.start == WEFT_START_CONSTANT) {
        for (int64_t i = 0; i < n; i++)
            values[i] = a;
    } else if (w->init.start == WEFT_START_NORMAL) {
        weft_random_normal(f->seed, 0, site, first, n, values);
        for (int64_t i = 0; i < n; i++)
            values[i] *= a;
    } else {
        weft_random_uniform(f->seed, 0, site, first, n, values);
        /* Blocks: only those on the diagonal of a square matrix, zero elsewhere. */
        bool blocks = w->init.start == WEFT_START_BLOCKS;
        int64_t side = blocks ? w->shape[1] : 1, block = blocks ? side / w->init.n : 1;
        for (int64_t i = 0; i < n; i++) {
            int64_t at = first + i;
            bool inside = !blocks || (at / side) / block == (at % side) / block;
            values[i] = inside ? a * (2 * values[i] - 1) : 0;
        }
    }
    if (f->whole) return;
    weft_weight piece = {.dtype = w->dtype, .count = n};
    piece.data = (unsigned char *)w->data + (size_t)first * weft_dtype_size(piece.dtype);
    weft_weight_write(&piece, values);
}

weft_status weft_model_start(weft_model *m, uint64_t seed, weft_pool *pool) {
    size_t threads = pool ? (size_t)weft_pool_size(pool) : 1;
    bool orthogonal = m->config.init == WEFT_INIT_ORTHOGONAL;
    WEFT_ROOM(double, values, (threads * PIECE), "start: no memory");
    for (weft_weight *w = m->weights; w < m->weights + m->n_weights; w++) {
        if (!orthogonal || !w->init.orthogonal || w->ndim != 2 ||
            w->init.start != WEFT_START_NORMAL) {
            filling f = {.weight = w, .seed = seed, .values = values};
            weft_pool_run(pool, pieces_of(w->count, PIECE), fill_piece, &f);
            continue;
        }
        /* A weight whose numbers are made from all that is drawn, of unit deviation. */
        weft_weight unit = *w;
        unit.init.a = 1;
        WEFT_ROOM(double, whole, w->count, "start: no memory for %lld numbers",
                  (long long)w->count);
        filling f = {.weight = &unit, .seed = seed, .whole = whole};
        weft_pool_run(pool, pieces_of(w->count, PIECE), fill_piece, &f);
        int64_t rows = w->shape[0], columns = w->shape[1];
        if (rows <= columns) {
            WEFT_TRY(orthonormalize(whole, rows, columns, pool));
        } else {
            WEFT_ROOM(double, turned, w->count, "start: no memory for an orthogonal matrix");
            transpose(whole, turned, rows, columns);
            WEFT_TRY(orthonormalize(turned, columns, rows, pool));
            transpose(turned, whole, columns, rows);
        }
        weft_weight_write(w, whole);
    }
    weft_mirror_wrote(m->mirror, NULL);
    return WEFT_OK;
}
