/* Runs the text through the model a window at a time and hands what each layer made to those who look. */
#include "inspect/inspect.h"
#include "base/scope.h"

#include "data/dataset.h"
#include "inspect/look.h"

#include <math.h>
#include <stdlib.h>

static weft_status no_memory(void) {
    return weft_fail(WEFT_ENOMEM, "inspect: no memory");
}

weft_status weft_look_values(const weft_session *s, const weft_tensor *t, double **out) {
    *out = NULL;
    if (!t) return WEFT_OK;
    int64_t count = weft_tensor_count(t);
    *out = malloc((size_t)count * sizeof **out);
    if (!*out) return no_memory();
    return weft_session_values(s, t, count, *out);
}

static void free_sums(weft_layer_sums *sums, int64_t heads) {
    for (int64_t h = 0; sums->heads && h < heads; h++)
        for (int i = 0; i < 4; i++)
            free(sums->heads[h].sigma[i / 2][i % 2]);
    free(sums->heads);
    for (int i = 0; i < 2; i++) {
        free(sums->latent_sum[i]);
        free(sums->latent_gram[i]);
    }
    free(sums->contexts);
}

void weft_inspection_free(weft_inspection *i) {
    for (int64_t l = 0; i->layers && l < i->n_layers; l++) {
        free(i->layers[l].heads);
        free(i->layers[l].keys.values);
        free(i->layers[l].values.values);
    }
    free(i->layers);
    *i = (weft_inspection){0};
}

enum { CONTEXT = 256, WINDOWS = 4 }; /* of held-out sequences */

/* All that a look over the windows needs. */
typedef struct {
    weft_session session;
    weft_layer_sums *sums;    /* [layers] */
    double *scores;           /* [H, T, T] */
    unsigned char *chosen[2]; /* routes of this layer and of the one before: [T, T] */
} inspector;

static weft_status prepare(inspector *p, const weft_config *c, int64_t time, weft_inspection *out) {
    size_t pairs = (size_t)(time * time);
    p->sums = calloc((size_t)c->n_layer, sizeof *p->sums);
    out->layers = calloc((size_t)c->n_layer, sizeof *out->layers);
    p->scores = malloc((size_t)c->n_head * pairs * sizeof *p->scores);
    for (int i = 0; i < 2; i++)
        p->chosen[i] = malloc(pairs);
    if (!p->sums || !out->layers || !p->scores || !p->chosen[0] || !p->chosen[1])
        return no_memory();
    for (int64_t l = 0; l < c->n_layer; l++) {
        p->sums[l].heads = calloc((size_t)c->n_head, sizeof *p->sums[l].heads);
        out->layers[l].heads = calloc((size_t)c->n_head, sizeof *out->layers[l].heads);
        if (!p->sums[l].heads || !out->layers[l].heads) return no_memory();
        for (int64_t h = 0; h < c->n_head; h++)
            out->layers[l].heads[h].tau = NAN;
    }
    return WEFT_OK;
}

static weft_status look_at_layer(inspector *p, int64_t layer, int64_t window,
                                 weft_inspection *out) {
    const weft_session *s = &p->session;
    const weft_config *c = &s->model->config;
    weft_layer_look *look = &out->layers[layer];
    weft_layer_sums *sums = &p->sums[layer];
    WEFT_TRY(weft_session_scores(s, layer, p->scores));
    WEFT_TRY(weft_look_gaussians(s, layer, p->scores, look, sums));
    weft_look_weights(c, p->scores, out->time, sums);
    WEFT_TRY(weft_look_routes(s, layer, p->scores, out->time,
                              layer ? p->chosen[(layer - 1) % 2] : NULL, p->chosen[layer % 2],
                              sums));
    WEFT_TRY(weft_look_gates(s, layer, look, sums));
    WEFT_TRY(weft_look_latents(s, layer, look, sums));
    return weft_look_z(s, layer, window, out->windows, sums);
}

static weft_status look_at_windows(inspector *p, const weft_windows *text, weft_inspection *out) {
    weft_loss_parts parts;
    for (int64_t w = 0; w < text->windows; w++) {
        const int32_t *tokens = text->tokens + w * (text->time + 1);
        WEFT_TRY(weft_session_run(&p->session, tokens, tokens + 1, NULL));
        WEFT_TRY(weft_session_losses(&p->session, &parts));
        out->loss += parts.cross_entropy / (double)text->windows;
        WEFT_TRY(weft_mirror_use(p->session.model->mirror, NULL));
        for (int64_t l = 0; l < out->n_layers; l++)
            WEFT_TRY(look_at_layer(p, l, w, out));
    }
    return WEFT_OK;
}

static weft_status finish(const weft_model *m, inspector *p, weft_inspection *out) {
    for (int64_t l = 0; l < out->n_layers; l++) {
        weft_layer_look *look = &out->layers[l];
        weft_finish_weights(look, &p->sums[l], out->n_heads);
        weft_finish_gaussians(look, &p->sums[l], out->n_heads);
        weft_finish_gates(look, &p->sums[l], out->n_heads);
        WEFT_TRY(weft_finish_latents(look, &p->sums[l]));
        WEFT_TRY(weft_finish_z(m, l, out->windows, look, &p->sums[l]));
    }
    return WEFT_OK;
}

weft_status weft_inspect(const weft_model *m, weft_backing place, const weft_windows *text,
                         bool gradients, weft_inspection *out) {
    const weft_config *c = &m->config;
    inspector p = {0};
    *out = (weft_inspection){
        .n_layers = c->n_layer, .n_heads = c->n_head, .windows = text->windows, .time = text->time};
    weft_build build = {
        .batch = 1, .time = text->time, .dtype = m->dtype, .scores = true, .inside = true};
    weft_status status = prepare(&p, c, text->time, out);
    if (status == WEFT_OK)
        status = weft_session_open(m, place.backend, place.pool, &build, false, false, &p.session);
    if (status == WEFT_OK) {
        status = look_at_windows(&p, text, out);
        if (status == WEFT_OK) status = finish(m, &p, out);
        weft_session_close(&p.session);
    }
    if (status == WEFT_OK && gradients) status = weft_look_gradients(m, place, text, out);
    for (int64_t l = 0; p.sums && l < c->n_layer; l++)
        free_sums(&p.sums[l], c->n_head);
    free(p.sums);
    free(p.scores);
    free(p.chosen[0]);
    free(p.chosen[1]);
    if (status != WEFT_OK) weft_inspection_free(out);
    return status;
}

WEFT_ENDED_BY(weft_dataset_close, weft_dataset)

/* The first sequences that evaluation uses. A task's are taken whole, of a text the beginning. */
static weft_status read_held_out(const weft_config *c, weft_windows *out) {
    WEFT_AUTO(weft_dataset_close_at) weft_dataset *d = NULL;
    WEFT_TRY(weft_dataset_open(c, &d));
    int64_t time = c->context;
    if (!weft_dataset_metric(d) && time > CONTEXT) time = CONTEXT;
    size_t count = (size_t)time;
    WEFT_AUTO_FREE int32_t *targets = malloc(count * sizeof *targets);
    *out = (weft_windows){.windows = WINDOWS, .time = time - 1};
    out->tokens = malloc(WINDOWS * count * sizeof *out->tokens);
    if (!targets || !out->tokens) return no_memory();
    for (int64_t w = 0; w < WINDOWS; w++)
        WEFT_TRY(weft_dataset_fill(d, WEFT_SPLIT_VAL, 0, 0, (uint32_t)w, time,
                                   out->tokens + w * time, targets, NULL));
    return WEFT_OK;
}

weft_status weft_inspect_held_out(const weft_model *m, weft_backing place, json_t *facts) {
    WEFT_AUTO(weft_windows_free) weft_windows text = {0};
    WEFT_AUTO(weft_inspection_free) weft_inspection found = {0};
    if (m->config.context < 3) return WEFT_OK; /* there is nothing to look back at */
    WEFT_TRY(read_held_out(&m->config, &text));
    WEFT_TRY(weft_inspect(m, place, &text, true, &found));
    weft_inspection_facts(&found, facts);
    return WEFT_OK;
}
