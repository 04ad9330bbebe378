/* Gaussians on the CPU. A task is some of the B·T positions, so that x is read in its order; a
 * head's means and deviations are two runs of D elements. Of the distance's only the deviations go
 * through the vector code; for the overlap both do, side by side. The overlap's logarithm is taken
 * of a number that is 1e-4 at least: no zero, no denormal. */
#include "ops/gaussian.h"

#include "cpu/gaussian_back.h"

#define SIGMA_FLOOR ((real)1e-4)

#if WEFT_REAL == 64
VLANES(vlog, log)
#else

/* log(2^e (1 + z)) within 1e-7, which is all a sum of them needs: just below 1 the two parts
 * cancel. inf and NaN pass. */
static inline vreal vlog(vreal a) {
    vint bits = (vint)a;
    vreal e = __builtin_convertvector((bits >> 23) - 127, vreal);
    vreal z = (vreal)((bits & 0x7fffff) | 0x3f800000) - 1;
    vreal y = e * 0x1.62e430p-1f + vlog1p_unit(z);
    return vselect(a < vset(INFINITY), y, a);
}

#endif

VECTOR_FN(copy_vector) {
    out[0] = in[0];
}

/* Means that stand already where they belong are left alone. */
POSITIONWISE(gaussian, n->in[0]) {
    const weft_tensor *y = k->n->out[0];
    real *n = k->n->n_out > 1 ? weft_data(k->x, k->n->out[1]) : NULL;
    bool in_place = weft_data(k->x, k->from) == weft_data(k->x, y);
    for (int64_t h = 0; h < k->heads; h++) {
        int64_t at = 2 * (p * k->heads + h) * k->half;
        if (!in_place) apply_tensors(k->x, copy_vector, 1, &k->from, y, at, k->half, NULL);
        apply_tensors(k->x, deviation_vector, 1, &k->from, y, at + k->half, k->half, NULL);
        /* Σ y² as it is stored. */
        if (n) n[number_place(k, p, h)] = (real)dot_tensors(k->x, y, y, at, 2 * k->half);
    }
}

/* in: y. arg: as in gaussian_back.h, but y has no gradient. */
VECTOR_FN(deviation_square_back_vector) {
    out[0] = arg[0] * in[0] * vslope(in[0]);
}

/* One half of head `row`, the means or the deviations. dx may lie over dy or y. */
static void gaussian_half_back(const head_run *k, int64_t row, bool deviations, real factor) {
    const weft_tensor *in[] = {k->from, k->n->in[1]}, *dx = k->n->out[0];
    int64_t at = (2 * row + deviations) * k->half;
    if (in[1] && deviations)
        apply_tensors(k->x, deviation_back_vector, 2, in, dx, at, k->half, &factor);
    else if (in[1])
        apply_tensors(k->x, mean_back_vector, 2, in, dx, at, k->half, &factor);
    else if (deviations)
        apply_tensors(k->x, deviation_square_back_vector, 1, in, dx, at, k->half, &factor);
    else
        apply_tensors(k->x, scale_vector, 1, in, dx, at, k->half, &factor);
}

POSITIONWISE(gaussian_back, n->in[0]) {
    const real *dn = weft_data(k->x, k->n->in[2]);
    bool means = dn || weft_data(k->x, k->n->in[1]) != weft_data(k->x, k->n->out[0]);
    for (int64_t h = 0; h < k->heads; h++) {
        real factor = dn ? 2 * dn[number_place(k, p, h)] : 0;
        if (means) gaussian_half_back(k, p * k->heads + h, false, factor);
        gaussian_half_back(k, p * k->heads + h, true, factor);
    }
}

static inline vreal deviation(vreal rho) {
    return vsoftplus(rho) + SIGMA_FLOOR;
}

VECTOR_FN(overlap_vector) {
    vreal sigma = deviation(in[1]);
    out[0] = in[0] / vsqrt(sigma);
    out[1] = vlog(sigma);
}

static real sum_reals(const real *a, int64_t n) {
    vreal s0 = {0}, s1 = {0};
    int64_t i = 0;
    for (; i + 2 * VLEN <= n; i += 2 * VLEN) {
        s0 += vload(a + i);
        s1 += vload(a + i + VLEN);
    }
    for (; i + VLEN <= n; i += VLEN)
        s0 += vload(a + i);
    if (i < n) s1 += vload_part(a + i, n - i);
    return vsum(s0 + s1);
}

/* Of each head its y, and the sum of its logarithms. */
POSITIONWISE(overlap, n->in[0]) {
    real mean_scratch[TILE_SCRATCH], rho_scratch[TILE_SCRATCH], y_scratch[TILE_SCRATCH];
    real logs[TILE], *log_sigma = weft_data(k->x, k->n->out[1]);
    const weft_tensor *y = k->n->out[0];
    for (int64_t h = 0; h < k->heads; h++) {
        int64_t to = (p * k->heads + h) * k->half, from = 2 * to;
        double sum = 0;
        for (int64_t d = 0; d < k->half; d += TILE) {
            int64_t len = min_i64(TILE, k->half - d);
            const real *in[] = {tile_in(k->x, k->from, from + d, len, mean_scratch),
                                tile_in(k->x, k->from, from + k->half + d, len, rho_scratch)};
            real *out[] = {tile_out(k->x, y, to + d, y_scratch), logs};
            apply(overlap_vector, 2, in, 2, out, len, NULL);
            tile_done(k->x, y, to + d, len, out[0]);
            sum += (double)sum_reals(logs, len);
        }
        log_sigma[number_place(k, p, h)] = (real)sum;
    }
}

/* arg: the gradient of the head's sum of logarithms. */
static void overlap_back_vector(const vreal *in, vreal *out, const real *arg) {
    vreal mean = in[0], rho = in[1], dy = in[2], sigma = deviation(rho), root = vsqrt(sigma);
    out[0] = dy / root;
    out[1] = (arg[0] - (real)0.5 * dy * (mean / root)) / sigma * vsigmoid(rho);
}

/* The same where y has no gradient. */
static void log_sigma_back_vector(const vreal *in, vreal *out, const real *arg) {
    out[0] = vset(0);
    out[1] = arg[0] / deviation(in[1]) * vsigmoid(in[1]);
}

/* dx may lie over x: of both runs, what is read stands where the result is written. */
POSITIONWISE(overlap_back, n->in[0]) {
    const weft_tensor *dy = k->n->in[1], *dx = k->n->out[0];
    const real *d_log_sigma = weft_data(k->x, k->n->in[2]);
    for (int64_t h = 0; h < k->heads; h++) {
        int64_t row = (p * k->heads + h) * k->half, at = 2 * row;
        const tensor_place in[] = {{k->from, at}, {k->from, at + k->half}, {dy, row}};
        const tensor_place out[] = {{dx, at}, {dx, at + k->half}};
        real d = d_log_sigma ? d_log_sigma[number_place(k, p, h)] : 0;
        if (dy)
            apply_places(k->x, overlap_back_vector, 3, in, 2, out, k->half, &d);
        else
            apply_places(k->x, log_sigma_back_vector, 2, in, 2, out, k->half, &d);
    }
}
