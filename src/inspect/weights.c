/* Attention's weights: how spread they are, where they lie, and which of them the routes keep. */
#include "base/scope.h"
#include "inspect/look.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double entropy(const double *p, int64_t n) {
    double sum = 0;
    for (int64_t j = 0; j < n; j++)
        if (p[j] > 0) sum -= p[j] * log(p[j]);
    return sum;
}

static int64_t seen_by(const weft_config *c, int64_t token, int64_t time) {
    return c->causal ? token + 1 : time;
}

/* How many of a token's first weights are hidden from it, by a window or as other documents. */
static int64_t hidden_from(const double *p, int64_t seen) {
    int64_t hidden = 0;
    while (hidden < seen && p[hidden] <= 0)
        hidden++;
    return hidden;
}

static void add_row(weft_head_sums *h, const double *p, int64_t token, int64_t seen) {
    int64_t visible = seen - hidden_from(p, seen);
    if (visible < 2) return;
    h->rows++;
    h->entropy += entropy(p, seen);
    h->most += log((double)visible);
    h->first += p[0];
    h->self += p[token];
    for (int64_t j = 0; j < seen; j++)
        h->back += p[j] * fabs((double)(token - j));
}

void weft_look_weights(const weft_config *c, double *scores, int64_t time, weft_layer_sums *sums) {
    for (int64_t h = 0; h < c->n_head; h++)
        for (int64_t i = 0; i < time; i++) {
            double *row = scores + (h * time + i) * time;
            int64_t seen = seen_by(c, i, time);
            weft_scores_softmax(row, seen);
            memset(row + seen, 0, (size_t)(time - seen) * sizeof *row);
            add_row(&sums->heads[h], row, i, seen);
        }
}

/* The heads' weights of one token as one: their mean, or the largest. */
static void join_heads(const weft_config *c, const double *weights, int64_t time, int64_t token,
                       double *row) {
    int64_t seen = seen_by(c, token, time);
    for (int64_t j = 0; j < seen; j++) {
        double sum = 0, most = 0;
        for (int64_t h = 0; h < c->n_head; h++) {
            double p = weights[(h * time + token) * time + j];
            sum += p;
            most = fmax(most, p);
        }
        row[j] = c->sparse_head_average ? sum / (double)c->n_head : most;
    }
}

/* Marks the k largest of n; of equal ones the first. */
static void choose_largest(const double *row, int64_t n, int64_t k, unsigned char *chosen) {
    for (int64_t taken = 0; taken < k && taken < n; taken++) {
        int64_t best = -1;
        for (int64_t j = 0; j < n; j++)
            if (!chosen[j] && (best < 0 || row[j] > row[best])) best = j;
        chosen[best] = 1;
    }
}

static void choose(const weft_config *c, const double *row, int64_t n, unsigned char *chosen) {
    double squares = 0;
    if (c->sparse_mode == WEFT_SPARSE_TOPK) {
        choose_largest(row, n, c->sparse_k, chosen);
        return;
    }
    for (int64_t j = 0; j < n; j++)
        squares += row[j] * row[j] / (double)n;
    double least = c->sparse_mode == WEFT_SPARSE_RMS ? c->sparse_rms_threshold * sqrt(squares) : 0;
    for (int64_t j = 0; j < n; j++)
        chosen[j] = row[j] >= least;
}

/* The share of `these` that are among `those`. */
static double shared(const unsigned char *these, const unsigned char *those, int64_t n) {
    double both = 0, all = 0;
    for (int64_t j = 0; j < n; j++) {
        all += these[j];
        both += these[j] && those[j];
    }
    return both / all;
}

/* A token that sees no more than are kept has no choice. */
static bool has_choice(const weft_config *c, int64_t seen) {
    return seen > (c->sparse_mode == WEFT_SPARSE_TOPK ? c->sparse_k : 1);
}

static void add_routes(const weft_config *c, weft_layer_sums *sums, const double *row,
                       const unsigned char *chosen, int64_t seen) {
    double all = 0, kept = 0, count = 0;
    if (!has_choice(c, seen)) return;
    for (int64_t j = 0; j < seen; j++) {
        all += row[j];
        kept += chosen[j] ? row[j] : 0;
        count += chosen[j];
    }
    sums->route_rows++;
    sums->routes += count;
    sums->kept += kept / all;
}

/* With ROUTE_AFTER_GATE a head's weights count as much as the gate leaves of it. */
static weft_status weigh_by_gate(const weft_session *s, int64_t layer, double *weights,
                                 int64_t time) {
    const weft_config *c = &s->model->config;
    WEFT_AUTO_FREE double *gate = NULL;
    if (!c->route_after_gate || !c->cross_token) return WEFT_OK;
    WEFT_TRY(weft_look_values(s, s->graph.inside[layer].gate, &gate));
    for (int64_t i = 0; gate && i < time * c->n_head; i++) {
        double left = 1 - c->gate_alpha + c->gate_alpha / (1 + exp(-gate[i]));
        double *row = weights + (i % c->n_head * time + i / c->n_head) * time;
        for (int64_t j = 0; j < time; j++)
            row[j] *= left;
    }
    return WEFT_OK;
}

weft_status weft_look_routes(const weft_session *s, int64_t layer, double *weights, int64_t time,
                             const unsigned char *before, unsigned char *chosen,
                             weft_layer_sums *sums) {
    const weft_config *c = &s->model->config;
    WEFT_AUTO_FREE double *row = calloc((size_t)time, sizeof *row);
    if (!row) return weft_fail(WEFT_ENOMEM, "inspect: no memory");
    WEFT_TRY(weigh_by_gate(s, layer, weights, time));
    memset(chosen, 0, (size_t)(time * time));
    for (int64_t i = 0; i < time; i++) {
        int64_t seen = seen_by(c, i, time), hidden;
        unsigned char *mine = chosen + i * time;
        join_heads(c, weights, time, i, row);
        hidden = hidden_from(row, seen);
        choose(c, row + hidden, seen - hidden, mine + hidden);
        add_routes(c, sums, row + hidden, mine + hidden, seen - hidden);
        if (!has_choice(c, seen - hidden)) continue;
        if (before) {
            sums->same_layer += shared(mine, before + i * time, seen);
            sums->same_layer_rows++;
        }
        if (i > 0) {
            sums->same_token += shared(mine, mine - time, seen);
            sums->same_token_rows++;
        }
    }
    return WEFT_OK;
}

static double mean(double sum, double count) {
    return count > 0 ? sum / count : NAN;
}

void weft_finish_weights(weft_layer_look *out, const weft_layer_sums *sums, int64_t heads) {
    for (int64_t h = 0; h < heads; h++) {
        const weft_head_sums *s = &sums->heads[h];
        weft_head_look *l = &out->heads[h];
        l->entropy = mean(s->entropy, s->rows);
        l->most = mean(s->most, s->rows);
        l->first = mean(s->first, s->rows);
        l->self = mean(s->self, s->rows);
        l->back = mean(s->back, s->rows);
    }
    out->routes = mean(sums->routes, sums->route_rows);
    out->kept = mean(sums->kept, sums->route_rows);
    out->same_layer = mean(sums->same_layer, sums->same_layer_rows);
    out->same_token = mean(sums->same_token, sums->same_token_rows);
}
