/* Blocks that are parts of weft's own models. */
#include "api/api.h"
#include "core/graph_internal.h"
#include "model/account.h"
#include "model/transformer.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    weft_config config;
    weft_build build;
    weft_part_form form;
} part_wish;

enum { KEY_ROOM = 8192 };

static const char *const part_names[] = {"attention", "ffn", "layer", NULL};

static weft_status find_part(const char *name, weft_part_kind *out) {
    for (int i = 0; part_names[i]; i++) {
        if (strcmp(name, part_names[i]) != 0) continue;
        *out = (weft_part_kind)i;
        return WEFT_OK;
    }
    return weft_fail(WEFT_EINPUT, "part '%s': it must be attention, ffn or layer", name);
}

/* A weight's name without the layer's. */
static const char *plain_name(const weft_tensor *t) {
    return strncmp(t->name, "h.0.", 4) == 0 ? t->name + 4 : t->name;
}

static weft_status note_part(weft_graph *g, const weft_model_part *part) {
    bool ok = true;
    for (int i = 0; ok && i < part->n_inputs; i++)
        ok = weft_api_note(g, WEFT_BLOCK_INPUTS, part->inputs[i].tensor, part->inputs[i].name,
                           part->inputs[i].tensor->needs_grad);
    for (int64_t i = 0; ok && i < part->model.n_parameters; i++) {
        weft_tensor *t = part->model.parameters[i].tensor;
        ok = weft_api_note(g, WEFT_BLOCK_WEIGHTS, t, plain_name(t), t->needs_grad);
    }
    for (int i = 0; ok && i < part->n_outputs; i++)
        ok = weft_api_note(g, WEFT_BLOCK_OUTPUTS, part->outputs[i].tensor, part->outputs[i].name,
                           false);
    return weft_graph_status(g);
}

static weft_status describe_part(void *context, weft_graph *g) {
    const part_wish *w = context;
    weft_model_part part;
    weft_part_form form = w->form;
    form.gradient = ((const weft_api_lists *)g->owner)->gradient;
    WEFT_TRY(weft_model_build_part(&w->config, &w->build, &form, g, &part));
    weft_status status = note_part(g, &part);
    weft_model_part_free(&part);
    return status;
}

/* All that the part depends on, in words. */
static weft_status make_key(const char *part, const char *const *options, const part_wish *w,
                            char *key) {
    int used = snprintf(key, KEY_ROOM, "weft %s %lld %lld %d", part, (long long)w->build.batch,
                        (long long)w->build.time, w->form.first);
    for (; options && *options && used < KEY_ROOM; options++)
        used += snprintf(key + used, (size_t)(KEY_ROOM - used), "\n%s", *options);
    if (used < KEY_ROOM) return WEFT_OK;
    return weft_fail(WEFT_EINPUT, "weft_block_open_part: the options are longer than %d characters",
                     KEY_ROOM);
}

weft_status weft_block_open_part(weft_engine *engine, const char *part, const char *const *options,
                                 int64_t batch, int64_t time, int first, int purpose,
                                 weft_block **out) {
    API_NEED(out);
    *out = NULL;
    API_NEED(engine);
    API_NEED(part);
    char key[KEY_ROOM];
    bool is_folder;
    part_wish w = {.form = {.first = first != 0, .one_loss = (purpose & WEFT_BLOCK_ONE_LOSS) != 0}};
    if (batch <= 0 || time <= 0)
        return weft_fail(WEFT_EINPUT, "%s: %lld sequences of %lld tokens; both start at 1",
                         __func__, (long long)batch, (long long)time);
    WEFT_TRY(find_part(part, &w.form.kind));
    WEFT_TRY(weft_api_config(NULL, options, &w.config, &is_folder));
    w.build = (weft_build){.batch = batch,
                           .time = time,
                           .dtype = weft_config_dtype(&w.config),
                           .train = (purpose & WEFT_BLOCK_TRAIN) != 0,
                           .recompute = (purpose & WEFT_BLOCK_RECOMPUTE) != 0};
    WEFT_TRY(make_key(part, options, &w, key));
    return weft_block_open(engine, key, describe_part, &w, purpose, out);
}
