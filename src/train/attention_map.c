/* What a model attends to in the text that it wrote (samples.h). One pass over the tokens in a session that keeps its scores; weights are their softmax, in double. */
#include "base/files.h"
#include "base/json.h"
#include "train/samples.h"

#include <math.h>

/* The mean deviation of each token's query, for each head; NULL where tokens are no Gaussians. */
static weft_status sigma_json(const weft_session *s, int64_t layer, int64_t heads, int64_t time,
                              json_t **out) {
    const weft_layer_scores *l = &s->graph.scores[layer];
    const weft_tensor *from = l->score.q;
    *out = NULL;
    if (!l->means || !from) return WEFT_OK;
    int64_t all = l->score.heads, count = time * all * l->dqk;
    WEFT_ROOM(double, q, count, "attention map: no memory");
    WEFT_TRY(weft_session_values(s, from, count, q));
    *out = json_array();
    for (int64_t h = 0; h < heads; h++) {
        json_t *row = json_array();
        for (int64_t i = 0; i < time; i++) {
            double sum = 0;
            for (int64_t d = l->means; d < l->dqk; d++)
                sum += q[(i * all + h) * l->dqk + d];
            json_array_append_new(row, weft_json_number(sum / (double)(l->dqk - l->means)));
        }
        json_array_append_new(*out, row);
    }
    return WEFT_OK;
}

weft_status weft_attention_map_layer(const weft_session *s, int64_t layer, int64_t heads,
                                     json_t *layers) {
    const weft_config *c = &s->model->config;
    int64_t time = s->graph.tokens->shape[1];
    if (heads > c->n_head) heads = c->n_head;
    WEFT_ROOM(double, scores, (c->n_head * time * time), "attention map: no memory");
    json_t *sigma;
    WEFT_TRY(weft_session_scores(s, layer, scores));
    WEFT_TRY(sigma_json(s, layer, heads, time, &sigma));
    json_t *list = json_array();
    double *at = scores;
    for (int64_t h = 0; h < heads; h++) {
        json_t *rows = json_array();
        for (int64_t i = 0; i < time; i++, at += time) { /* scores become weights, as percent */
            int64_t seen = c->causal ? i + 1 : time;
            weft_scores_softmax(at, seen);
            WEFT_JSON_LIST(row, j, seen, json_integer((json_int_t)lround(100 * at[j])));
            json_array_append_new(rows, row);
        }
        json_array_append_new(list, rows);
    }
    json_t *object = json_pack("{s:I, s:o}", "layer", (json_int_t)layer, "heads", list);
    if (sigma) json_object_set_new(object, "sigma", sigma);
    json_array_append_new(layers, object);
    return WEFT_OK;
}

json_t *weft_attention_map_tokens(const weft_tokenizer *t, const int32_t *tokens, int64_t count) {
    json_t *list = json_array();
    for (int64_t i = 0; i < count; i++) {
        int32_t bytes = 0;
        const char *text = weft_tokenizer_token(t, tokens[i], &bytes);
        WEFT_AUTO_FREE char *copy = strndup(text ? text : "", (size_t)bytes);
        json_array_append_new(list, weft_json_text(copy ? copy : ""));
    }
    return list;
}

weft_status weft_attention_map_write(const char *run, const weft_model *m,
                                     const weft_backend *backend, weft_pool *pool,
                                     const weft_tokenizer *t, const int32_t *tokens, int64_t count,
                                     int64_t step) {
    if (count > WEFT_MAP_TOKENS) count = WEFT_MAP_TOKENS;
    if (count > m->config.context) count = m->config.context;
    if (count < 2) return WEFT_OK;
    WEFT_AUTO(weft_session_close) weft_session s = {0};
    WEFT_PATH(path, "%s/attention.json", run);
    weft_build build = {.batch = 1, .time = count, .dtype = m->dtype, .scores = true};
    WEFT_TRY(weft_session_open(m, backend, pool, &build, false, false, &s));
    WEFT_AUTO_DECREF json_t *layers = json_array();
    WEFT_TRY(weft_session_run(&s, tokens, tokens, NULL));
    int64_t last = m->config.n_layer - 1;
    WEFT_TRY(weft_attention_map_layer(&s, 0, WEFT_MAP_HEADS, layers));
    if (last > 0) WEFT_TRY(weft_attention_map_layer(&s, last, WEFT_MAP_HEADS, layers));
    WEFT_AUTO_DECREF json_t *object =
        json_pack("{s:I, s:o, s:O}", "step", (json_int_t)step, "tokens",
                  weft_attention_map_tokens(t, tokens, count), "layers", layers);
    WEFT_AUTO_FREE char *text =
        json_dumps(object, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(5));
    if (!text) return weft_no_memory("attention map");
    return weft_file_write(path, text, strlen(text), NULL);
}
