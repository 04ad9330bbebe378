/* RoPE rotates pair p of every head by the angle r_p per token: as a complex number k, a key's pair is multiplied
 * by e^{i r t}. Multiplying by other numbers commutes with that, so with the keys k_g of the key heads g
 *
 *     s = Σ_g c̄_g w_g k_g        k_g ≈ c_g s / w_g
 *
 * is a key that all heads share and that may be rotated as before. c is the strongest direction of the keys
 * weighted by w_g, the size of the queries that look at them, so that scores lose least. Each of the pairs that
 * are kept has its own; one key head loses nothing. TransMLA does so (RoRoPE) by real numbers c.
 *
 * What is left of the keys has to do without a rotation: the latter becomes its mean over the distances of
 * tokens, near ones counting most, which is none for slow pairs and 0 for fast ones; so those that are not kept
 * should be slow. MLA's part of R columns rotates pair i by base^(−2i/R): with the base raised to sR/P that is
 * the old pair s i, whatever the stride s. */
#include "convert/attention.h"
#include "convert/measure.h"

weft_status weft_rotated_squares(const double *rows, int64_t n, int64_t e, const double *moments,
                                 double *squares) {
    WEFT_AUTO_FREE double *room = moments ? malloc((size_t)(n * e) * sizeof *room) : NULL;
    if (moments && !room) return weft_fail(WEFT_ENOMEM, "convert: no memory for a layer's queries");
    if (moments) weft_times_moments(rows, n, e, moments, room);
    const double *times = moments ? room : rows;
    for (int64_t i = 0; i < n; i++) {
        squares[i] = 0;
        for (int64_t j = 0; j < e; j++)
            squares[i] += rows[i * e + j] * times[i * e + j];
    }
    return WEFT_OK;
}

/* Of a pair of head h: both columns. */
static double pair_square(const weft_rotated *f, const double *squares, int64_t h, int64_t pair) {
    int64_t row = h * f->width + pair;
    return squares[row] + squares[row + f->columns / 2];
}

void weft_rotated_weigh(const weft_rotated *f, const double *q_squares, const double *k_squares,
                        double *pairs) {
    for (int64_t p = 0; p < f->columns / 2; p++)
        for (int64_t h = 0; h < f->heads; h++)
            pairs[p] += sqrt(pair_square(f, q_squares, h, p) *
                             pair_square(f, k_squares, h * f->kv / f->heads, p));
}

/* Attention looks near: the weight of a distance falls by e in so many tokens. */
static const double NEAR = 8;

/* Of ROPE_THETA. */
static const double BASE_MOST = 1e12;

/* The mean of cos and sin of a pair's angle over distances. */
static void mean_turn(const weft_rotated *f, int64_t pair, double turn[2]) {
    double rate = weft_rope_rate(&f->law, pair, f->columns), all = 0;
    turn[0] = turn[1] = 0;
    for (double apart = 0; apart < 16 * NEAR; apart++) {
        double weight = exp(-apart / NEAR);
        turn[0] += weight * cos(rate * apart);
        turn[1] += weight * sin(rate * apart);
        all += weight;
    }
    turn[0] /= all;
    turn[1] /= all;
}

static bool is_kept(const weft_rotated *f, int64_t pair) {
    return pair % f->stride == 0 && pair / f->stride < f->kept / 2;
}

double weft_rotated_base(const weft_rotated *f, int64_t stride) {
    if (stride * f->kept == f->columns) return f->law.base;
    return pow(f->law.base, (double)(stride * f->kept) / (double)f->columns);
}

int64_t weft_rotated_stride(const weft_rotated *f, const double *pairs) {
    weft_rotated tried = *f;
    int64_t best = 1;
    double least = INFINITY;
    /* YaRN's law depends on a pair's place, which only the stride of 1 leaves. */
    int64_t most = f->kept > 2 ? (f->columns / 2 - 1) / (f->kept / 2 - 1) : 1;
    if (f->law.scaling == WEFT_ROPE_YARN) most = 1;
    while (most > 1 && weft_rotated_base(f, most) > BASE_MOST)
        most--;
    for (tried.stride = 1; tried.stride <= most; tried.stride++) {
        double lost = 0, turn[2];
        for (int64_t p = 0; p < f->columns / 2; p++) {
            if (is_kept(&tried, p)) continue;
            mean_turn(f, p, turn);
            lost += pairs[p] * (1 - turn[0] * turn[0] - turn[1] * turn[1]);
        }
        if (lost < least) best = tried.stride;
        if (lost < least) least = lost;
    }
    return best;
}

static double moment_of(const double *gram, const double *bk, int64_t n, int64_t a, int64_t b) {
    return gram[a * n + b] + bk[a] * bk[b];
}

/* c_g of each key head and w_g: `share` [2 KV] has the real and imaginary parts, `size` [KV]. A complex matrix
 * A + iB has the directions of [A, −B; B, A]. */
static weft_status find_shares(const weft_rotated *f, int64_t pair, const double *bk,
                               const double *gram, const double *q_squares, double *share,
                               double *size) {
    int64_t kv = f->kv, n = kv * f->width, half = f->columns / 2, wide = 2 * kv;
    WEFT_ROOM(double, room, 2 * wide * wide + wide,
              "convert: no memory for a layer's rotated part");
    double *vectors = room + wide * wide, *values = vectors + wide * wide, most = 0;
    memset(size, 0, (size_t)kv * sizeof *size);
    for (int64_t h = 0; h < f->heads; h++)
        size[h * kv / f->heads] += pair_square(f, q_squares, h, pair);
    for (int64_t g = 0; g < kv; g++)
        most = fmax(most, size[g]);
    for (int64_t g = 0; g < kv; g++)
        size[g] = most > 0 ? sqrt(fmax(size[g], 1e-12 * most)) : 1;
    for (int64_t g = 0; g < kv; g++)
        for (int64_t o = 0; o < kv; o++) { /* E[k_g k̄_o] */
            int64_t a = g * f->width + pair, b = o * f->width + pair;
            double re = moment_of(gram, bk, n, a, b) + moment_of(gram, bk, n, a + half, b + half);
            double im = moment_of(gram, bk, n, a + half, b) - moment_of(gram, bk, n, a, b + half);
            double both = size[g] * size[o];
            room[g * wide + o] = room[(kv + g) * wide + kv + o] = both * re;
            room[(kv + g) * wide + o] = both * im;
            room[g * wide + kv + o] = -both * im;
        }
    WEFT_TRY(weft_spectrum(room, wide, values, vectors));
    memcpy(share, vectors, (size_t)wide * sizeof *share);
    return WEFT_OK;
}

typedef struct {
    double *rows, *biases;
} row_list;

/* The pair (to, to + halves[0]) += (x + iy) times the pair (from, from + halves[1]). */
static void add_pair(row_list into, int64_t to, row_list source, int64_t from,
                     const int64_t halves[2], int64_t e, double x, double y) {
    for (int imaginary = 0; imaginary < 2; imaginary++) {
        int64_t row = to + imaginary * halves[0];
        int64_t same = from + imaginary * halves[1], other = from + !imaginary * halves[1];
        double turned = imaginary ? y : -y;
        for (int64_t j = 0; j < e; j++)
            into.rows[row * e + j] +=
                x * source.rows[same * e + j] + turned * source.rows[other * e + j];
        into.biases[row] += x * source.biases[same] + turned * source.biases[other];
    }
}

/* Moves a pair into the part: what the shared key tells of the heads' keys is taken from them. */
static weft_status move_pair(const weft_rotated *f, int64_t pair, const weft_rotated_rows *all,
                             const double *gram, const double *q_squares,
                             const weft_rotated_rows *part) {
    WEFT_ROOM(double, share, 3 * f->kv, "convert: no memory for a layer's rotated part");
    int64_t e = f->e, to = pair / f->stride, halves[] = {f->kept / 2, f->columns / 2};
    int64_t back[] = {halves[1], halves[0]};
    double *size = share + 2 * f->kv, *im = share + f->kv;
    row_list keys = {all->k, all->bk}, key = {part->k, part->bk};
    row_list queries = {all->q, all->bq}, query = {part->q, part->bq};
    WEFT_TRY(find_shares(f, pair, all->bk, gram, q_squares, share, size));
    for (int64_t g = 0; g < f->kv; g++)
        add_pair(key, to, keys, g * f->width + pair, halves, e, share[g] * size[g],
                 -im[g] * size[g]);
    for (int64_t g = 0; g < f->kv; g++)
        add_pair(keys, g * f->width + pair, key, to, back, e, -share[g] / size[g],
                 -im[g] / size[g]);
    for (int64_t h = 0; h < f->heads; h++) {
        int64_t g = h * f->kv / f->heads;
        add_pair(query, h * f->kept + to, queries, h * f->width + pair, halves, e,
                 share[g] / size[g], -im[g] / size[g]);
    }
    return WEFT_OK;
}

weft_status weft_rotated_split(const weft_rotated *f, const weft_rotated_rows *all,
                               const double *gram, const double *q_squares,
                               const weft_rotated_rows *part) {
    memset(part->q, 0, (size_t)(f->heads * f->kept * f->e) * sizeof *part->q);
    memset(part->k, 0, (size_t)(f->kept * f->e) * sizeof *part->k);
    memset(part->bq, 0, (size_t)(f->heads * f->kept) * sizeof *part->bq);
    memset(part->bk, 0, (size_t)f->kept * sizeof *part->bk);
    double turn[2], size = f->law.amplitude * f->law.amplitude;
    for (int64_t p = 0; p < f->columns / 2; p++) {
        if (is_kept(f, p)) WEFT_TRY(move_pair(f, p, all, gram, q_squares, part));
        /* The pair of each key head in its mean rotation, with the amplitude of both sides. */
        mean_turn(f, p, turn);
        for (int64_t g = 0; g < f->kv; g++) {
            double *a = all->k + (g * f->width + p) * f->e, *b = a + f->columns / 2 * f->e;
            for (int64_t j = 0; j < f->e; j++) {
                double x = a[j], y = b[j];
                /* ⟨R_i q, R_j k⟩ = ⟨q, R_{j−i} k⟩: the key turns back by the distance */
                a[j] = size * (turn[0] * x + turn[1] * y);
                b[j] = size * (turn[0] * y - turn[1] * x);
            }
        }
    }
    return WEFT_OK;
}
