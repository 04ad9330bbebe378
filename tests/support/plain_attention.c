/* Attention, row by row. */
#include "plain_attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    double scale, beta, slope, tau_factor; /* tau_factor: −τ/(τ+ε) */
} head_numbers;

static head_numbers numbers_of_head(const plain_attention_problem *p, int64_t h) {
    const weft_attention_attr *a = &p->attr;
    head_numbers f = {a->scale_value, 0, 0, 0};
    if (p->scale) f.scale = p->scale[h];
    if (p->beta) f.beta = p->beta[h];
    if (p->log_tau) {
        double tau = exp(p->log_tau[h]);
        f.scale = 2 / (tau + 1e-6);
        f.beta = -1 / (tau + 1e-6);
        f.tau_factor = -tau / (tau + 1e-6);
    }
    if (a->pos == WEFT_POS_ALIBI) f.slope = weft_alibi_slope(h, a->heads);
    return f;
}

static double inner(const double *x, const double *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

static void add_times(double *to, double factor, const double *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        to[i] += factor * x[i];
}

/* Places of (b, t, h) in q and its kin, and of (b, s, key head of h) in k, v, n. */
static int64_t query_at(const weft_attention_attr *a, int64_t b, int64_t t, int64_t h) {
    return (b * a->queries + t) * a->heads + h;
}

static int64_t key_at(const weft_attention_attr *a, int64_t b, int64_t s, int64_t h) {
    return (b * a->keys + s) * a->kv_heads + h * a->kv_heads / a->heads;
}

static int64_t number_at(const weft_attention_attr *a, int64_t b, int64_t s, int64_t h) {
    return (b * a->kv_heads + h * a->kv_heads / a->heads) * a->keys + s;
}

static bool in_band(const weft_attention_attr *a, int64_t i, int64_t j) {
    return a->band && j <= i && i - j <= a->window;
}

/* ⟨q_i, k_j⟩ and the band's share, before the scale. */
static double product(const plain_attention_problem *p, int64_t b, int64_t h, int64_t i,
                      int64_t j) {
    const weft_attention_attr *a = &p->attr;
    int64_t d = a->dqk;
    double sum = inner(p->q + query_at(a, b, i, h) * d, p->k + key_at(a, b, j, h) * d, d);
    if (in_band(a, i, j))
        sum += a->band_alpha *
               inner(p->q + query_at(a, b, j, h) * d, p->k + key_at(a, b, i, h) * d, d);
    return sum;
}

static double position(const plain_attention_problem *p, const head_numbers *f, int64_t place,
                       int64_t j) {
    if (p->attr.pos == WEFT_POS_ALIBI) return -f->slope * (double)llabs(place - j);
    return p->rel ? p->rel[place - j] : 0;
}

static void row_gradient(const plain_attention_problem *p, const head_numbers *f, int64_t b,
                         int64_t h, int64_t i, int64_t place, int64_t hidden, int64_t seen) {
    const weft_attention_attr *a = &p->attr;
    const double *s = p->row, *raw = p->row + a->keys;
    int64_t qi = query_at(a, b, i, h), d = a->dqk;
    const double *d_o = p->d_o + qi * a->dv;
    double total = inner(d_o, p->o + qi * a->dv, a->dv);
    double lse = p->lse[(b * a->heads + h) * a->queries + i];
    for (int64_t j = hidden; j < seen; j++) {
        int64_t kj = key_at(a, b, j, h), nj = number_at(a, b, j, h);
        double prob = exp(s[j] - lse);
        double ds = prob * (inner(d_o, p->v + kj * a->dv, a->dv) - total);
        if (a->softcap > 0) ds *= 1 - s[j] / a->softcap * (s[j] / a->softcap);
        add_times(p->dv + kj * a->dv, prob, d_o, a->dv);
        add_times(p->dq + qi * d, ds * f->scale, p->k + kj * d, d);
        add_times(p->dk + kj * d, ds * f->scale, p->q + qi * d, d);
        if (in_band(a, i, j)) {
            double share = ds * f->scale * a->band_alpha;
            int64_t qj = query_at(a, b, j, h), ki = key_at(a, b, i, h);
            add_times(p->dq + qj * d, share, p->k + ki * d, d);
            add_times(p->dk + ki * d, share, p->q + qj * d, d);
        }
        if (p->n) p->dn[nj] += ds * f->beta;
        if (p->scale) p->dscale[h] += ds * raw[j];
        if (p->beta) p->dbeta[h] += ds * p->n[nj];
        if (p->log_tau)
            p->dlog_tau[h] += ds * f->tau_factor * (f->scale * raw[j] + f->beta * p->n[nj]);
        if (p->rel) p->drel[place - j] += ds;
    }
}

static void attend_row(const plain_attention_problem *p, int64_t b, int64_t h, int64_t i) {
    const weft_attention_attr *a = &p->attr;
    head_numbers f = numbers_of_head(p, h);
    int64_t place = i, seen = a->causal ? i + 1 : a->keys;
    int64_t hidden = a->reach && i >= a->reach ? i + 1 - a->reach : 0;
    if (p->first && p->first[b * a->queries + i] > hidden) hidden = p->first[b * a->queries + i];
    double *s = p->row, *raw = p->row + a->keys, top = -INFINITY, sum = 0;
    for (int64_t j = hidden; j < seen; j++) {
        raw[j] = product(p, b, h, i, j);
        s[j] = f.scale * raw[j] + position(p, &f, place, j);
        if (p->n) s[j] += f.beta * p->n[number_at(a, b, j, h)];
        if (a->softcap > 0) s[j] = a->softcap * tanh(s[j] / a->softcap);
        top = fmax(top, s[j]);
    }
    for (int64_t j = hidden; j < seen; j++)
        sum += exp(s[j] - top);
    double lse = top + log(sum), *o = p->o + query_at(a, b, i, h) * a->dv;
    p->lse[(b * a->heads + h) * a->queries + i] = lse;
    memset(o, 0, (size_t)a->dv * sizeof *o);
    for (int64_t j = hidden; j < seen; j++)
        add_times(o, exp(s[j] - lse), p->v + key_at(a, b, j, h) * a->dv, a->dv);
    if (p->d_o) row_gradient(p, &f, b, h, i, place, hidden, seen);
}

static void clear(double *x, int64_t n) {
    if (x) memset(x, 0, (size_t)n * sizeof *x);
}

void plain_attention(const plain_attention_problem *p) {
    const weft_attention_attr *a = &p->attr;
    int64_t keys = a->batch * a->keys * a->kv_heads;
    if (p->d_o) {
        clear(p->dq, a->batch * a->queries * a->heads * a->dqk);
        clear(p->dk, keys * a->dqk);
        clear(p->dv, keys * a->dv);
        clear(p->dn, keys);
        clear(p->dscale, a->heads);
        clear(p->dbeta, a->heads);
        clear(p->dlog_tau, a->heads);
        clear(p->drel, p->distances);
    }
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t h = 0; h < a->heads; h++)
            for (int64_t i = 0; i < a->queries; i++)
                attend_row(p, b, h, i);
}
