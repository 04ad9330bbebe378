/* Cosine InfoNCE on the CPU. The rows are normalised once into the workspace; then a task takes
 * four rows and goes through all others of their loss with them, so that a row that is read serves
 * four. Scores live in a strip of four rows a thread, never as a matrix. */
#include "ops/loss.h"

#include "cpu/chunks.h"

enum { GROUP = 4 };

typedef struct {
    weft_exec *x;
    const weft_node *n;
    const weft_tensor *from;     /* x [L, N, D] */
    int64_t losses;              /* L */
    int64_t rows, width, padded; /* N, D, D rounded up, zeros behind D */
    int64_t groups;              /* of a loss */
    int64_t pairs;               /* weft_infonce's group */
    int64_t scores;              /* reals of a strip's row */
    real *u;                     /* [L, N, padded] */
    real *strip;                 /* per thread [GROUP, scores], then du [GROUP, padded] */
    int64_t per_thread;
    double *loss; /* [L, N] */
    real *norm, *lse;
    bool measures;           /* the norms */
    real inverse_tau, slope; /* slope = dy · factor/(N τ) */
} contrast;

/* How many rows the mean is over. */
static double anchors(const contrast *c) {
    return (double)(c->pairs ? c->rows / 2 : c->rows);
}

/* Whole pairs of the widest vectors. */
static int64_t padded_reals(int64_t n) {
    return round_up(n, 32);
}

static int64_t contrast_bytes(const weft_tensor *x, int threads) {
    weft_infonce_sizes s = weft_infonce_measure(x);
    int64_t all = s.losses * s.rows, width = padded_reals(s.width);
    int64_t strips = threads * GROUP * (padded_reals(s.rows) + width);
    return (all * width + strips) * (int64_t)sizeof(real) + all * (int64_t)sizeof(double);
}

static contrast contrast_of(weft_exec *x, const weft_node *n, const weft_tensor *from) {
    const weft_infonce_attr *attr = n->attr;
    weft_infonce_sizes s = weft_infonce_measure(from);
    contrast c = {.x = x, .n = n, .from = from, .losses = s.losses, .rows = s.rows};
    c.width = s.width;
    c.padded = padded_reals(s.width);
    c.groups = ceil_div(s.rows, GROUP);
    c.pairs = attr->group;
    c.scores = padded_reals(s.rows);
    c.u = weft_workspace(x, n);
    c.inverse_tau = (real)(1 / attr->tau);
    c.strip = c.u + c.losses * c.rows * c.padded;
    c.per_thread = GROUP * (c.scores + c.padded);
    c.loss = (double *)(c.strip + weft_pool_size(weft_exec_pool(x)) * c.per_thread);
    return c;
}

/* u_i = x_i / n_i. The norms are made in the forward pass and read in the backward pass. */
WEFT_TASK(normalise_row, const contrast *c) {
    real *u = c->u + task * c->padded;
    const real *x = tile_in(c->x, c->from, task * c->width, c->width, u);
    if (c->measures) {
        double squares = 0;
        for (int64_t d = 0; d < c->width; d++)
            squares += (double)x[d] * (double)x[d];
        c->norm[task] = (real)fmax(sqrt(squares), WEFT_INFONCE_NORM_MIN);
    }
    for (int64_t d = 0; d < c->width; d++)
        u[d] = x[d] / c->norm[task];
    for (int64_t d = c->width; d < c->padded; d++)
        u[d] = 0;
}

/* The first row of the task's loss, and its group's rows within it. */
static int64_t loss_start(const contrast *c, int64_t task) {
    return task / c->groups * c->rows;
}

static int64_t group_start(const contrast *c, int64_t task) {
    return task % c->groups * GROUP;
}

/* Row r of the task's group; past the end the last row stands in, its result unused. */
static int64_t group_row(const contrast *c, int64_t task, int r) {
    return min_i64(group_start(c, task) + r, c->rows - 1);
}

/* strip[r, j] = s_ij/τ for the group's rows i and all j, −∞ where they are not compared. */
static void group_scores(const contrast *c, int64_t task, real *strip) {
    const real *a[GROUP], *all = c->u + loss_start(c, task) * c->padded;
    for (int r = 0; r < GROUP; r++)
        a[r] = all + group_row(c, task, r) * c->padded;
    for (int64_t j = 0; j < c->rows; j++) {
        const real *b = all + j * c->padded;
        vreal sum[GROUP] = {{0}, {0}, {0}, {0}};
        for (int64_t d = 0; d < c->padded; d += VLEN) {
            vreal v = vload(b + d);
            for (int r = 0; r < GROUP; r++)
                sum[r] += vload(a[r] + d) * v;
        }
        for (int r = 0; r < GROUP; r++)
            strip[r * c->scores + j] = weft_infonce_compares(c->pairs, group_row(c, task, r), j)
                                           ? vsum(sum[r]) * c->inverse_tau
                                           : -(real)INFINITY;
    }
}

/* logsumexp_j(score_j) − score_i, i the positive, and the logsumexp itself. The positive's score is
 * mostly the largest and the rest tiny beside it, so the largest is left out of the sum and log1p puts
 * it back. */
static double row_loss(real *score, int64_t rows, int64_t i, real *lse) {
    int64_t best = 0;
    for (int64_t j = 1; j < rows; j++)
        best = score[j] > score[best] ? j : best;
    real top = score[best], own = score[i];
    score[best] = -(real)INFINITY;
    vreal sum = {0};
    int64_t whole = rows - rows % VLEN;
    for (int64_t j = 0; j < whole; j += VLEN)
        sum += vexp(vload(score + j) - top);
    double rest = (double)vsum(sum);
    for (int64_t j = whole; j < rows; j++)
        rest += exp((double)(score[j] - top));
    *lse = (real)((double)top + log1p(rest));
    return (double)(top - own) + log1p(rest);
}

WEFT_TASK(loss_group, const contrast *c) {
    real *strip = c->strip + thread * c->per_thread;
    group_scores(c, task, strip);
    int64_t start = loss_start(c, task), first = group_start(c, task);
    for (int r = 0; r < GROUP && first + r < c->rows; r++) {
        int64_t i = first + r, at = start + i, positive = weft_infonce_other(c->pairs, i);
        c->loss[at] = row_loss(strip + r * c->scores, c->rows, positive, &c->lse[at]);
        if (weft_infonce_is_anchor(c->pairs, i)) continue;
        c->loss[at] = 0;
        c->lse[at] = (real)INFINITY;
    }
}

DEFINE_KERNEL_IN(infonce, contrast_bytes(n->in[0], threads)) {
    if (!n->out[WEFT_INFONCE_LSE]) return write_number(x, n->out[WEFT_INFONCE_Y], 0);
    contrast c = contrast_of(x, n, n->in[0]);
    c.norm = weft_data(x, n->out[WEFT_INFONCE_NORM]);
    c.lse = weft_data(x, n->out[WEFT_INFONCE_LSE]);
    c.measures = true;
    run_tasks(x, c.losses * c.rows, normalise_row, &c);
    run_tasks(x, c.losses * c.groups, loss_group, &c);
    double sum = 0;
    for (int64_t i = 0; i < c.losses * c.rows; i++)
        sum += c.loss[i];
    return write_number(x, n->out[WEFT_INFONCE_Y],
                        ATTR(n, weft_infonce_attr)->factor * sum / anchors(&c));
}

/* score_j becomes slope · (p_ij + p_ji − 2[i = j]), or of pairs − [j is i's]; lse is of the loss's
 * rows. */
static void weigh_scores(const contrast *c, const real *all, int64_t i, real *score) {
    real lse = all[i];
    for (int64_t j = 0; j < c->rows; j += VLEN) {
        int64_t n = min_i64(VLEN, c->rows - j);
        vreal s = vload_n(score + j, n);
        vreal p = vexp(s - lse) + vexp(s - vload_n(all + j, n));
        vstore_n(score + j, p * c->slope, n);
    }
    score[weft_infonce_other(c->pairs, i)] -= c->pairs ? c->slope : 2 * c->slope;
}

WEFT_TASK(back_group, const contrast *c) {
    real *strip = c->strip + thread * c->per_thread, *du = strip + GROUP * c->scores;
    int64_t start = loss_start(c, task), first = group_start(c, task);
    group_scores(c, task, strip);
    for (int r = 0; r < GROUP; r++)
        weigh_scores(c, c->lse + start, group_row(c, task, r), strip + r * c->scores);
    /* du[r] = Σ_j strip[r, j] u_j over the loss's rows, a few vectors of columns at a time. */
    enum { WIDE = 2 };
    for (int64_t d = 0; d < c->padded; d += WIDE * VLEN) {
        vreal sum[GROUP][WIDE] = {{{0}}};
        for (int64_t j = 0; j < c->rows; j++) {
            const real *u = c->u + (start + j) * c->padded + d;
            vreal a = vload(u), b = vload(u + VLEN);
            for (int r = 0; r < GROUP; r++) {
                sum[r][0] += strip[r * c->scores + j] * a;
                sum[r][1] += strip[r * c->scores + j] * b;
            }
        }
        for (int r = 0; r < GROUP; r++)
            for (int k = 0; k < WIDE; k++)
                vstore(du + r * c->padded + d + k * VLEN, sum[r][k]);
    }
    for (int r = 0; r < GROUP && first + r < c->rows; r++, du += c->padded) {
        int64_t i = start + first + r;
        const real *u = c->u + i * c->padded;
        real along = c->norm[i] > (real)WEFT_INFONCE_NORM_MIN ? dot_reals(u, du, c->width) : 0;
        real *dx = tile_out(c->x, c->n->out[0], i * c->width, du); /* over du_i where it is bf16 */
        for (int64_t d = 0; d < c->width; d++)
            dx[d] = (du[d] - u[d] * along) / c->norm[i];
        tile_done(c->x, c->n->out[0], i * c->width, c->width, dx);
    }
}

DEFINE_KERNEL_IN(infonce_back, contrast_bytes(n->in[WEFT_INFONCE_BACK_X], threads)) {
    const weft_infonce_attr *attr = n->attr;
    contrast c = contrast_of(x, n, n->in[WEFT_INFONCE_BACK_X]);
    c.norm = weft_data(x, n->in[WEFT_INFONCE_BACK_NORM]);
    c.lse = weft_data(x, n->in[WEFT_INFONCE_BACK_LSE]);
    c.slope = (real)((double)read_number(x, n->in[WEFT_INFONCE_BACK_DY]) * attr->factor /
                     (anchors(&c) * attr->tau));
    run_tasks(x, c.losses * c.rows, normalise_row, &c);
    return run_tasks(x, c.losses * c.groups, back_group, &c);
}
