/* Eigenvectors of a symmetric matrix in two steps. Reflections H = I − β v vᵀ bring it to a
 * tridiagonal one, T = Qᵀ A Q; then rotations with Wilkinson's shift drive what is beside the diagonal
 * to zero, one number at a time from the end. Qᵀ is kept, so that a reflection or a rotation changes
 * whole rows, and its rows end as the eigenvectors. About 4/3 n³ operations for the first step, and
 * 9 n³ for the second. */
#include "convert/measure.h"

#include <math.h>

enum { SWEEPS_MOST = 60 }; /* rotations of a block until a number is gone: 2 or 3 as a rule */

typedef struct {
    int64_t n;
    double *a; /* [n, n] */
    double *q; /* [n, n]: Qᵀ */
    double *d; /* [n]: the diagonal */
    double *e; /* [n]: e[i] is beside d[i] and d[i + 1] */
    double *v, *w;
} problem;

static void make_tridiagonal(problem *p) {
    int64_t n = p->n;
    for (int64_t k = 0; k + 1 < n; k++) {
        double square = 0, rest = 0, first = p->a[(k + 1) * n + k];
        for (int64_t i = k + 1; i < n; i++)
            p->v[i] = p->a[i * n + k];
        for (int64_t i = k + 2; i < n; i++)
            rest += p->v[i] * p->v[i];
        p->d[k] = p->a[k * n + k];
        p->e[k] = first;
        if (rest == 0) continue;
        p->e[k] = first > 0 ? -sqrt(first * first + rest) : sqrt(first * first + rest);
        p->v[k + 1] -= p->e[k];
        square = p->v[k + 1] * p->v[k + 1] + rest;
        double beta = 2 / square;
        /* H A H on the rows and columns that are left: A − v wᵀ − w vᵀ with w = β A v − ½ β² (vᵀ A v) v. */
        double along = 0;
        for (int64_t i = k + 1; i < n; i++) {
            double sum = 0;
            for (int64_t j = k + 1; j < n; j++)
                sum += p->a[i * n + j] * p->v[j];
            p->w[i] = beta * sum;
            along += p->v[i] * p->w[i];
        }
        for (int64_t i = k + 1; i < n; i++)
            p->w[i] -= 0.5 * beta * along * p->v[i];
        for (int64_t i = k + 1; i < n; i++)
            for (int64_t j = k + 1; j < n; j++)
                p->a[i * n + j] -= p->v[i] * p->w[j] + p->w[i] * p->v[j];
        /* And the rows of Qᵀ: H Qᵀ, w being room. */
        memset(p->w, 0, (size_t)n * sizeof *p->w);
        for (int64_t i = k + 1; i < n; i++)
            for (int64_t j = 0; j < n; j++)
                p->w[j] += p->v[i] * p->q[i * n + j];
        for (int64_t i = k + 1; i < n; i++)
            for (int64_t j = 0; j < n; j++)
                p->q[i * n + j] -= beta * p->v[i] * p->w[j];
    }
    p->d[n - 1] = p->a[n * n - 1];
    p->e[n - 1] = 0;
}

/* One pass of rotations over the block [first, last]. */
static void chase(problem *p, int64_t first, int64_t last) {
    double *d = p->d, *e = p->e;
    double half = (d[last - 1] - d[last]) / 2, beside = e[last - 1];
    double root = hypot(half, beside);
    double shift = d[last] - beside * beside / (half + (half < 0 ? -root : root));
    double x = d[first] - shift, z = e[first];
    for (int64_t k = first; k < last; k++) {
        double length = hypot(x, z), c = length > 0 ? x / length : 1;
        double s = length > 0 ? -z / length : 0;
        double a = d[k], b = d[k + 1], o = e[k];
        if (k > first) e[k - 1] = length;
        d[k] = c * c * a - 2 * c * s * o + s * s * b;
        d[k + 1] = s * s * a + 2 * c * s * o + c * c * b;
        e[k] = c * s * (a - b) + (c * c - s * s) * o;
        if (k + 1 < last) {
            x = e[k];
            z = -s * e[k + 1];
            e[k + 1] *= c;
        }
        double *one = p->q + k * p->n, *two = one + p->n;
        for (int64_t j = 0; j < p->n; j++) {
            double up = one[j], down = two[j];
            one[j] = c * up - s * down;
            two[j] = s * up + c * down;
        }
    }
}

static weft_status make_diagonal(problem *p) {
    int64_t last = p->n - 1;
    for (int sweeps = 0; last > 0; sweeps++) {
        int64_t first = last; /* up to where e is nothing beside its neighbours */
        while (first > 0 &&
               !(fabs(p->e[first - 1]) <= 0x1p-52 * (fabs(p->d[first - 1]) + fabs(p->d[first]))))
            first--;
        if (first == last) {
            p->e[--last] = 0;
            sweeps = 0;
            continue;
        }
        if (sweeps > SWEEPS_MOST)
            return WEFT_BAD_INPUT("convert: the eigenvalues of a layer's keys or values do "
                                  "not settle; are all weights finite?");
        chase(p, first, last);
    }
    return WEFT_OK;
}

weft_status weft_spectrum(double *a, int64_t n, double *values, double *vectors) {
    WEFT_ROOM(double, room, (size_t)n * 3, "convert: no memory");
    problem p = {n, a, vectors, values, room, room + n, room + 2 * n};
    memset(vectors, 0, (size_t)(n * n) * sizeof *vectors);
    for (int64_t i = 0; i < n; i++)
        vectors[i * n + i] = 1;
    make_tridiagonal(&p);
    WEFT_TRY(make_diagonal(&p));
    /* By falling value. */
    for (int64_t i = 0; i < n; i++) {
        int64_t most = i;
        for (int64_t j = i + 1; j < n; j++)
            if (values[j] > values[most]) most = j;
        if (most == i) continue;
        double value = values[i];
        values[i] = values[most];
        values[most] = value;
        for (int64_t j = 0; j < n; j++) {
            double x = vectors[i * n + j];
            vectors[i * n + j] = vectors[most * n + j];
            vectors[most * n + j] = x;
        }
    }
    return WEFT_OK;
}

enum { BLOCK = 8 };

/* Some rows at a time, so that M is read from memory less often. */
void weft_times_moments(const double *w, int64_t n, int64_t e, const double *m, double *out) {
    memset(out, 0, (size_t)(n * e) * sizeof *out);
    for (int64_t first = 0; first < n; first += BLOCK)
        for (int64_t k = 0; k < e; k++)
            for (int64_t i = first; i < n && i < first + BLOCK; i++)
                for (int64_t j = 0; j < e; j++)
                    out[i * e + j] += w[i * e + k] * m[k * e + j];
}
