/* How large the gradient is in each mechanism's tensors, of one training pass without dropout. */
#include "base/scope.h"
#include "inspect/look.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOWS_MOST = 4 };

/* The mechanism that a tensor belongs to: its part of the plan, with the three of reciprocal.c apart. */
static const char *mechanism_of(const weft_weight *w) {
    if (strcmp(w->part, "reciprocal") != 0) return w->part;
    if (strstr(w->name, ".gate_")) return "gate";
    if (strstr(w->name, "ffn.cross_")) return "cross-token";
    return "latent coupling";
}

static weft_part_look *part_of(weft_inspection *out, const weft_weight *w) {
    const char *name = mechanism_of(w);
    for (int i = 0; i < out->n_parts; i++)
        if (strcmp(out->parts[i].name, name) == 0) return &out->parts[i];
    if (out->n_parts == WEFT_LOOK_PARTS) return NULL;
    out->parts[out->n_parts].name = name;
    return &out->parts[out->n_parts++];
}

static double squares(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sum;
}

static weft_status add_tensor(const weft_session *s, const weft_tensor *p, weft_inspection *out) {
    const weft_weight *w = weft_model_find(s->model, p->name);
    weft_part_look *part = w ? part_of(out, w) : NULL;
    if (!part) return weft_fail(WEFT_EBUG, "inspect: %s is in no part", p->name);
    WEFT_AUTO_FREE double *values = NULL;
    WEFT_TRY(weft_look_weight(w, &values));
    part->parameters += w->count;
    part->weight_norm += squares(values, w->count);
    WEFT_TRY(weft_session_values(s, p->grad, w->count, values));
    part->gradient_norm += squares(values, w->count);
    return WEFT_OK;
}

static weft_status run_windows(weft_session *s, const weft_windows *text, int64_t windows) {
    size_t row = (size_t)text->time * sizeof(int32_t);
    WEFT_AUTO_FREE int32_t *tokens = malloc(2 * (size_t)windows * row);
    if (!tokens) return weft_fail(WEFT_ENOMEM, "inspect: no memory");
    int32_t *targets = tokens + windows * text->time;
    for (int64_t w = 0; w < windows; w++) {
        const int32_t *from = text->tokens + w * (text->time + 1);
        memcpy(tokens + w * text->time, from, row);
        memcpy(targets + w * text->time, from + 1, row);
    }
    return weft_session_run(s, tokens, targets, NULL);
}

weft_status weft_look_gradients(const weft_model *m, weft_backing place, const weft_windows *text,
                                weft_inspection *out) {
    WEFT_AUTO(weft_session_close) weft_session s = {0};
    weft_model quiet = *m; /* the same weights, without dropout */
    int64_t windows = text->windows < WINDOWS_MOST ? text->windows : WINDOWS_MOST;
    quiet.config.dropout = 0;
    weft_build build = {.batch = windows, .time = text->time, .dtype = m->dtype, .train = true};
    WEFT_TRY(weft_session_open(&quiet, place.backend, place.pool, &build, true, false, &s));
    WEFT_TRY(run_windows(&s, text, windows));
    WEFT_TRY(weft_mirror_use(m->mirror, NULL));
    for (int64_t i = 0; i < s.graph.n_parameters; i++)
        WEFT_TRY(add_tensor(&s, s.graph.parameters[i].tensor, out));
    for (int i = 0; i < out->n_parts; i++) {
        out->parts[i].weight_norm = sqrt(out->parts[i].weight_norm);
        out->parts[i].gradient_norm = sqrt(out->parts[i].gradient_norm);
    }
    return WEFT_OK;
}
