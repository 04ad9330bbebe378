/* Sessions: build, bind, run, read. */
#include "model/session.h"

#include <math.h>

weft_status weft_session_open(const weft_model *m, const weft_backend *backend, weft_pool *pool,
                              const weft_build *build, bool grads, bool poison, weft_session *out) {
    *out = (weft_session){.model = m, .backend = backend};
    weft_plan *plan;
    WEFT_TRY(weft_mirror_place(m->mirror, backend)); /* before the plan asks how much is free */
    WEFT_TRY(weft_model_program(&m->config, build, grads, backend, weft_pool_size(pool), 0,
                                &out->graph, &plan));
    weft_status status = weft_model_bind(m, backend, out->graph.graph, &out->bindings);
    weft_exec_options options = {.planned = plan, .bindings = out->bindings, .poison = poison};
    if (status == WEFT_OK)
        status = weft_exec_create(out->graph.graph, backend, pool, &options, &out->exec);
    else
        weft_plan_destroy(plan);
    if (status != WEFT_OK) weft_session_close(out);
    return status;
}

void weft_session_close(weft_session *s) {
    weft_exec_destroy(s->exec);
    free(s->bindings);
    weft_model_graph_destroy(&s->graph);
    *s = (weft_session){0};
}

weft_status weft_session_run(weft_session *s, const int32_t *tokens, const int32_t *targets,
                             const weft_run *run) {
    WEFT_TRY(weft_exec_write(s->exec, s->graph.tokens, tokens));
    if (targets) WEFT_TRY(weft_exec_write(s->exec, s->graph.targets, targets));
    WEFT_TRY(weft_mirror_use(s->model->mirror, s->backend));
    return weft_exec_run(s->exec, run);
}

weft_status weft_session_values(const weft_session *s, const weft_tensor *t, int64_t n,
                                double *out) {
    if (!t) {
        memset(out, 0, (size_t)n * sizeof *out);
        return WEFT_OK;
    }
    if (weft_tensor_count(t) != n)
        return weft_fail(WEFT_EBUG, "session: %s has not %lld elements", weft_tensor_describe(t),
                         (long long)n);
    WEFT_ROOM(unsigned char, data, weft_tensor_bytes(t), "session: no memory to read a tensor");
    weft_weight view = {.dtype = t->dtype, .count = n, .data = data};
    WEFT_TRY(weft_exec_read(s->exec, t, data));
    weft_weight_read(&view, out);
    return WEFT_OK;
}

weft_status weft_session_take(const weft_session *s, const weft_tensor *t, double **out) {
    int64_t count = t ? weft_tensor_count(t) : 0;
    *out = t ? malloc((size_t)count * sizeof **out) : NULL;
    if (t && !*out) return weft_fail(WEFT_ENOMEM, "session: no memory to read a tensor");
    return t ? weft_session_values(s, t, count, *out) : WEFT_OK;
}

weft_status weft_session_losses(const weft_session *s, weft_loss_parts *out) {
    const weft_model_graph *m = &s->graph;
    WEFT_TRY(weft_session_values(s, m->loss, 1, &out->loss));
    WEFT_TRY(weft_session_values(s, m->cross_entropy, 1, &out->cross_entropy));
    WEFT_TRY(weft_session_values(s, m->aux_z, 1, &out->aux_z));
    WEFT_TRY(weft_session_values(s, m->aux_contrastive, 1, &out->aux_contrastive));
    return weft_session_values(s, m->logits_z, 1, &out->logits_z);
}

void weft_loss_parts_add(weft_loss_parts *sum, const weft_loss_parts *p, double weight) {
    sum->loss += weight * p->loss;
    sum->cross_entropy += weight * p->cross_entropy;
    sum->aux_z += weight * p->aux_z;
    sum->aux_contrastive += weight * p->aux_contrastive;
    sum->logits_z += weight * p->logits_z;
}

/* Raw attention scores for inspection, by the plain formula in double from the kept queries and
 * keys. A distance is summed from differences, not from the expanded square that the kernels use:
 * this is what tests hold the kernels to. */

static const double TAU_EPS = 1e-6;

typedef struct {
    const weft_score *s;
    int64_t batch, time, dqk;
    bool distance;
    double *q, *k; /* [B, T, H, dqk], [B, T, KV, dqk], or both inside `packed` */
    double *n, *scale, *beta, *log_tau, *rel;
    int32_t *first;
    int64_t q_row, k_row; /* numbers from one token to the next */
} score_values;

static void end_values(score_values *v) {
    WEFT_FREE(v->q, v->k, v->n, v->scale, v->beta, v->log_tau, v->rel, v->first);
}

static const double *query(const score_values *v, int64_t b, int64_t t, int64_t h) {
    return v->q + (b * v->time + t) * v->q_row + h * v->dqk;
}

static const double *key(const score_values *v, int64_t b, int64_t t, int64_t h) {
    int64_t head = h * v->s->kv_heads / v->s->heads;
    if (v->s->packed) head += v->s->heads;
    return (v->s->packed ? v->q : v->k) + (b * v->time + t) * v->k_row + head * v->dqk;
}

static double product(const double *a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static double key_number(const score_values *v, int64_t b, int64_t h, int64_t j) {
    int64_t head = h * v->s->kv_heads / v->s->heads;
    return v->n[(b * v->s->kv_heads + head) * v->time + j];
}

/* The score without position. Where it is a distance, beta is −scale/2, and with the query's norm
 * scale⟨q,k⟩ − scale/2 ‖k‖² becomes −scale/2 ‖q − k‖². */
static double pair_score(const score_values *v, int64_t b, int64_t h, int64_t i, int64_t j) {
    const weft_score *s = v->s;
    const double *q = query(v, b, i, h), *k = key(v, b, j, h);
    double scale = v->scale ? v->scale[h] : s->scale_value, beta = v->beta ? v->beta[h] : 0;
    if (v->log_tau) scale = 2 / (exp(v->log_tau[h]) + TAU_EPS);
    if (v->distance) {
        /* What a key's number holds beside its squared norm: nothing for the distance, the deviations'
         * logarithm for the overlap. */
        double excess = key_number(v, b, h, j) - product(k, k, v->dqk), squares = 0;
        for (int64_t d = 0; d < v->dqk; d++)
            squares += (q[d] - k[d]) * (q[d] - k[d]);
        return -scale / 2 * (squares + excess);
    }
    double score = scale * product(q, k, v->dqk);
    if (v->n) score += beta * key_number(v, b, h, j);
    if (s->band && i - j <= s->window)
        score += s->band_alpha * scale * product(query(v, b, j, h), key(v, b, i, h), v->dqk);
    return score;
}

static void fill_scores(const score_values *v, double *out) {
    const weft_score *s = v->s;
    for (int64_t b = 0; b < v->batch; b++) {
        for (int64_t h = 0; h < s->heads; h++) {
            double slope = s->pos == WEFT_POS_ALIBI ? weft_alibi_slope(h, s->heads) : 0;
            for (int64_t i = 0; i < v->time; i++) {
                /* The first token that token i sees. */
                int64_t reach = s->reach, first = reach && i >= reach ? i + 1 - reach : 0;
                if (v->first && v->first[b * v->time + i] > first)
                    first = v->first[b * v->time + i];
                for (int64_t j = 0; j < v->time; j++, out++) {
                    if ((s->causal && j > i) || j < first) {
                        *out = -INFINITY;
                        continue;
                    }
                    *out = pair_score(v, b, h, i, j) - slope * (double)(i - j);
                    if (v->rel) *out += v->rel[i - j];
                    if (s->softcap > 0) *out = s->softcap * tanh(*out / s->softcap);
                }
            }
        }
    }
}

void weft_scores_softmax(double *row, int64_t n) {
    double most = row[0], sum = 0;
    for (int64_t j = 1; j < n; j++)
        most = fmax(most, row[j]);
    for (int64_t j = 0; j < n; j++)
        sum += row[j] = exp(row[j] - most);
    for (int64_t j = 0; j < n; j++)
        row[j] /= sum;
}

weft_status weft_session_scores(const weft_session *session, int64_t layer, double *out) {
    if (!session->graph.scores)
        return weft_fail(WEFT_EBUG, "scores: the session was built without them");
    const weft_layer_scores *from = &session->graph.scores[layer];
    const weft_score *s = &from->score;
    WEFT_AUTO(end_values)
    score_values v = {.s = s, .dqk = from->dqk, .distance = from->distance};
    v.batch = session->graph.tokens->shape[0];
    v.time = session->graph.tokens->shape[1];
    const weft_tensor *const read[] = {
        s->packed ? s->packed : s->q, s->k, s->n, s->scale, s->beta, s->log_tau, s->rel};
    double **const to[] = {&v.q, &v.k, &v.n, &v.scale, &v.beta, &v.log_tau, &v.rel};
    for (size_t i = 0; i < sizeof to / sizeof to[0]; i++)
        WEFT_TRY(weft_session_take(session, read[i], to[i]));
    if (s->first) v.first = malloc((size_t)weft_tensor_bytes(s->first));
    if (s->first && !v.first) return weft_no_memory("scores");
    if (s->first) WEFT_TRY(weft_exec_read(session->exec, s->first, v.first));
    v.q_row = (s->packed ? s->heads + 2 * s->kv_heads : s->heads) * v.dqk;
    v.k_row = (s->packed ? s->heads + 2 * s->kv_heads : s->kv_heads) * v.dqk;
    fill_scores(&v, out);
    return WEFT_OK;
}
