/* Attention's weights: how spread they are, where they lie, which of them the routes keep, and what deviations do to
 * them. */
#include "inspect/inspect.h"

#include <math.h>

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

void weft_look_weights(const weft_config *c, double *scores, int64_t time, weft_layer_look *look) {
    for (int64_t h = 0; h < c->n_head; h++)
        for (int64_t i = 0; i < time; i++) {
            double *p = scores + (h * time + i) * time, entropy = 0;
            int64_t seen = seen_by(c, i, time);
            weft_scores_softmax(p, seen);
            memset(p + seen, 0, (size_t)(time - seen) * sizeof *p);
            weft_head_look *own = &look->heads[h];
            int64_t visible = seen - hidden_from(p, seen);
            if (visible < 2) continue;
            own->rows++;
            for (int64_t j = 0; j < seen; j++)
                if (p[j] > 0) entropy -= p[j] * log(p[j]);
            own->number[WEFT_HEAD_ENTROPY] += entropy;
            own->number[WEFT_HEAD_ENTROPY_SHARE] += log((double)visible);
            own->number[WEFT_HEAD_FIRST] += p[0];
            own->number[WEFT_HEAD_SELF] += p[i];
            for (int64_t j = 0; j < seen; j++)
                own->number[WEFT_HEAD_BACK] += p[j] * fabs((double)(i - j));
        }
}

static void choose(const weft_config *c, const double *row, int64_t n, unsigned char *chosen) {
    double squares = 0;
    if (c->sparse_mode == WEFT_SPARSE_TOPK) {
        /* Marks the k largest of n; of equal ones the first. */
        for (int64_t taken = 0; taken < c->sparse_k && taken < n; taken++) {
            int64_t best = -1;
            for (int64_t j = 0; j < n; j++)
                if (!chosen[j] && (best < 0 || row[j] > row[best])) best = j;
            chosen[best] = 1;
        }
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

static void add(weft_layer_look *look, int number, double value) {
    look->number[number] += value;
    look->rows[number]++;
}

weft_status weft_look_routes(const weft_session *s, int64_t layer, double *weights, int64_t time,
                             const unsigned char *before, unsigned char *chosen,
                             weft_layer_look *look) {
    const weft_config *c = &s->model->config;
    WEFT_ROOM(double, row, time, "inspect: no memory");
    /* With ROUTE_AFTER_GATE a head's weights count as much as the gate leaves of it. */
    WEFT_AUTO_FREE double *gate = NULL;
    if (c->route_after_gate && c->cross_token) {
        WEFT_TRY(weft_session_take(s, s->graph.inside[layer].gate, &gate));
        for (int64_t i = 0; gate && i < time * c->n_head; i++) {
            double left = 1 - c->gate_alpha + c->gate_alpha / (1 + exp(-gate[i]));
            double *of_head = weights + (i % c->n_head * time + i / c->n_head) * time;
            for (int64_t j = 0; j < time; j++)
                of_head[j] *= left;
        }
    }
    memset(chosen, 0, (size_t)(time * time));
    for (int64_t i = 0; i < time; i++) {
        int64_t seen = seen_by(c, i, time), hidden;
        unsigned char *mine = chosen + i * time;
        /* The heads' weights of one token as one: their mean, or the largest. */
        for (int64_t j = 0; j < seen; j++) {
            double sum = 0, most = 0;
            for (int64_t h = 0; h < c->n_head; h++) {
                double p = weights[(h * time + i) * time + j];
                sum += p;
                most = fmax(most, p);
            }
            row[j] = c->sparse_head_average ? sum / (double)c->n_head : most;
        }
        hidden = hidden_from(row, seen);
        choose(c, row + hidden, seen - hidden, mine + hidden);
        /* A token that sees no more than are kept has no choice. */
        if (seen - hidden <= (c->sparse_mode == WEFT_SPARSE_TOPK ? c->sparse_k : 1)) continue;
        double all = 0, kept = 0, count = 0;
        for (int64_t j = hidden; j < seen; j++) {
            all += row[j];
            kept += mine[j] ? row[j] : 0;
            count += mine[j];
        }
        add(look, WEFT_LAYER_ROUTES, count);
        add(look, WEFT_LAYER_ROUTES_WEIGHT, kept / all);
        if (before) add(look, WEFT_LAYER_LAYER_BEFORE, shared(mine, before + i * time, seen));
        if (i > 0) add(look, WEFT_LAYER_TOKEN_BEFORE, shared(mine, mine - time, seen));
    }
    return WEFT_OK;
}

/* Deviations of Gaussian tokens: their size, how much they differ from token to token, and what they do to attention.
 *
 * Where every key has the same deviations, ‖σ_q − σ_k‖² is the same for all keys of a query and leaves the softmax as
 * it is. So the weights without that term are the weights of a model whose deviations carry nothing, and how far the
 * two are apart is what deviations do. */
static const double TAU_EPS = 1e-6, OVERLAP_EPS = 1e-4;

/* Queries and keys of one window [T, heads, means + width], deviations behind the means. */
typedef struct {
    double *rows[2];
    int64_t heads[2], means, width, time;
} gaussians;

static void end_gaussians(gaussians *g) {
    WEFT_FREE(g->rows[0], g->rows[1]);
}

static const double *deviations(const gaussians *g, int which, int64_t token, int64_t head,
                                int64_t query_heads) {
    int64_t own = head * g->heads[which] / query_heads;
    return g->rows[which] + (token * g->heads[which] + own) * (g->means + g->width) + g->means;
}

static weft_status read_gaussians(const weft_session *s, int64_t layer, gaussians *g) {
    const weft_layer_scores *l = &s->graph.scores[layer];
    const weft_layer_inside *in = &s->graph.inside[layer];
    const weft_tensor *q = l->means ? l->score.q : in->rho_q,
                      *k = l->means ? l->score.k : in->rho_k;
    *g = (gaussians){.time = s->graph.tokens->shape[1]};
    if (!q || !k) return WEFT_OK;
    g->means = l->means ? l->means : q->shape[3] / 2;
    g->width = q->shape[3] - g->means;
    g->heads[0] = q->shape[2];
    g->heads[1] = k->shape[2];
    WEFT_TRY(weft_session_take(s, q, &g->rows[0]));
    WEFT_TRY(weft_session_take(s, k, &g->rows[1]));
    /* An overlap has rho behind the means, of which deviations are made. */
    for (int i = 0; i < 2 && !l->means; i++)
        for (int64_t d = 0; d < g->time * g->heads[i] * 2 * g->width; d++) {
            double *rho = g->rows[i] + d;
            if (d / g->width % 2) *rho = fmax(*rho, 0) + log1p(exp(-fabs(*rho))) + OVERLAP_EPS;
        }
    return WEFT_OK;
}

/* Half the sum of differences between a row's weights with and without the deviations' term. */
static double row_moved(const gaussians *g, const double *scores, int64_t seen, int64_t token,
                        int64_t head, int64_t heads, double scale, double *with, double *without) {
    const double *q = deviations(g, 0, token, head, heads);
    double apart = 0;
    for (int64_t j = 0; j < seen; j++) {
        const double *k = deviations(g, 1, j, head, heads);
        double distance = 0;
        for (int64_t d = 0; d < g->width; d++)
            distance += (q[d] - k[d]) * (q[d] - k[d]);
        with[j] = scores[j];
        without[j] = scores[j] + scale / 2 * distance;
    }
    weft_scores_softmax(with, seen);
    weft_scores_softmax(without, seen);
    for (int64_t j = 0; j < seen; j++)
        apart += 0.5 * fabs(with[j] - without[j]);
    return apart;
}

weft_status weft_look_gaussians(const weft_session *s, int64_t layer, const double *scores,
                                weft_layer_look *look) {
    const weft_layer_scores *l = &s->graph.scores[layer];
    WEFT_AUTO_FREE double *learned = NULL; /* log(temperature) of each head; NULL: it is fixed */
    WEFT_AUTO(end_gaussians) gaussians g = {0};
    WEFT_TRY(read_gaussians(s, layer, &g));
    if (!g.width) return WEFT_OK;
    int64_t heads = l->score.heads;
    for (int64_t h = 0; h < heads; h++) {
        weft_head_look *own = &look->heads[h];
        if (!own->sigma) WEFT_ROOM_AT(own->sigma, 4 * g.width, "inspect: no memory");
        own->width = g.width;
        for (int64_t t = 0; t < g.time; t++)
            for (int which = 0; which < 2; which++) {
                const double *sigma = deviations(&g, which, t, h, heads);
                double *sum = own->sigma + 2 * which * g.width, *squares = sum + g.width;
                for (int64_t d = 0; d < g.width; d++) {
                    sum[d] += sigma[d];
                    squares[d] += sigma[d] * sigma[d];
                }
            }
        own->tokens += (double)g.time;
    }
    if (!l->means) return WEFT_OK;
    WEFT_TRY(weft_session_take(s, l->score.log_tau, &learned));
    WEFT_ROOM(double, rows, 2 * g.time, "inspect: no memory");
    for (int64_t h = 0; h < heads; h++) {
        double tau = learned ? exp(learned[h]) : 2 / l->score.scale_value - TAU_EPS;
        look->heads[h].number[WEFT_HEAD_TAU] = tau;
        for (int64_t i = 0; i < g.time; i++) {
            int64_t seen = l->score.causal ? i + 1 : g.time;
            if (seen < 2) continue;
            look->heads[h].number[WEFT_HEAD_MOVED] +=
                row_moved(&g, scores + (h * g.time + i) * g.time, seen, i, h, heads,
                          2 / (tau + TAU_EPS), rows, rows + g.time);
            look->heads[h].moved_rows++;
        }
    }
    return WEFT_OK;
}

static double mean(double sum, double count) {
    return count > 0 ? sum / count : NAN;
}

void weft_finish_heads(weft_layer_look *look, int64_t heads) {
    for (int n = 0; n < WEFT_LAYER_LATENTS; n++)
        look->number[n] = mean(look->number[n], look->rows[n]);
    for (weft_head_look *h = look->heads; h < look->heads + heads; h++) {
        double *to = h->number, gates = 0;
        for (int n = 0; n < WEFT_HEAD_TAU; n++)
            to[n] = mean(to[n], h->rows);
        to[WEFT_HEAD_ENTROPY_SHARE] = to[WEFT_HEAD_ENTROPY] / to[WEFT_HEAD_ENTROPY_SHARE];
        /* The mean deviation, and its standard deviation over the mean, both in the mean over dimensions. */
        for (int which = 0; which < 2; which++) {
            double *sigma = &to[WEFT_HEAD_SIGMA + which], *spread = &to[WEFT_HEAD_SPREAD + which];
            *sigma = *spread = h->width ? 0 : NAN;
            for (int64_t d = 0; d < h->width; d++) {
                const double *at = h->sigma + 2 * which * h->width + d; /* sum, and of squares */
                double middle = at[0] / h->tokens;
                double variance = fmax(at[h->width] / h->tokens - middle * middle, 0);
                *sigma += middle / (double)h->width;
                *spread += sqrt(variance) / middle / (double)h->width;
            }
        }
        to[WEFT_HEAD_MOVED] = mean(to[WEFT_HEAD_MOVED], h->moved_rows);
        for (int bin = 0; bin < WEFT_GATE_BINS; bin++)
            gates += (double)h->gates[bin];
        double gate = to[WEFT_HEAD_GATE] = mean(to[WEFT_HEAD_GATE], gates);
        double variance = mean(to[WEFT_HEAD_GATE_SPREAD], gates) - gate * gate;
        to[WEFT_HEAD_GATE_SPREAD] = variance < 0 ? 0 : sqrt(variance);
    }
}
