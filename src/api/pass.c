/* Passes: a session with its arguments checked, and its results by name. */
#include "api/api.h"
#include "model/folder.h"
#include "train/optimizer.h"

#include <math.h>

enum { ALL_PURPOSES = WEFT_PASS_TRAIN | WEFT_PASS_LOGITS | WEFT_PASS_RECOMPUTE };

WEFT_ENDED_BY(weft_pass_close, weft_pass)

weft_status weft_pass_open(weft_engine *engine, weft_model *model, int64_t batch, int64_t time,
                           int purpose, weft_pass **out) {
    static atomic_uint_least64_t serials;
    API_OPEN(out, engine, model);
    if (batch < 1 || time < 1 || batch > INT32_MAX / time)
        return API_REFUSE(
            "a batch of %lld times %lld tokens; both must be at least 1, and together below 2^31",
            (long long)batch, (long long)time);
    if (purpose & ~ALL_PURPOSES)
        return API_REFUSE("purpose %d is not a sum of WEFT_PASS_...", purpose);
    if ((purpose & WEFT_PASS_RECOMPUTE) && !(purpose & WEFT_PASS_TRAIN))
        return API_REFUSE("WEFT_PASS_RECOMPUTE goes with WEFT_PASS_TRAIN: without a backward pass "
                          "nothing is made again");
    WEFT_NEW(weft_pass, p, weft_pass_close, "%s: no memory", __func__);
    *p = (weft_pass){.batch = batch, .time = time, .purpose = purpose};
    p->serial = 1 + atomic_fetch_add(&serials, 1);
    weft_build build = {.batch = p->batch, .time = p->time, .dtype = model->dtype};
    build.train = p->purpose & WEFT_PASS_TRAIN;
    build.logits = p->purpose & WEFT_PASS_LOGITS;
    build.recompute = p->purpose & WEFT_PASS_RECOMPUTE;
    int64_t count = p->batch * p->time;
    WEFT_ROOM_AT(p->no_targets, count, "weft_pass_open: no memory");
    for (int64_t i = 0; i < count; i++)
        p->no_targets[i] = -1;
    WEFT_TRY(weft_session_open(model, engine->backend, engine->pool, &build, build.train, false,
                               &p->session));
    return weft_hand(&p, out);
}

void weft_pass_close(weft_pass *pass) {
    if (!pass) return;
    weft_session_close(&pass->session);
    WEFT_FREE(pass->no_targets, pass);
}

int64_t weft_pass_bytes(const weft_pass *pass) {
    return pass ? weft_exec_plan(pass->session.exec)->arena_bytes : 0;
}

weft_status weft_pass_run(weft_pass *pass, const int32_t *tokens, const int32_t *targets,
                          int64_t count, uint32_t iteration) {
    API_NEED(pass, tokens);
    if (count != pass->batch * pass->time)
        return API_REFUSE("count is %lld, but the pass is for [%lld, %lld]", (long long)count,
                          (long long)pass->batch, (long long)pass->time);
    if (!targets && (pass->purpose & WEFT_PASS_TRAIN))
        return API_REFUSE("targets is NULL, but the pass trains");
    weft_run run = {.seed = (uint64_t)pass->session.model->config.seed, .iteration = iteration};
    pass->has_run = false;
    WEFT_TRY(weft_session_run(&pass->session, tokens, targets ? targets : pass->no_targets, &run));
    pass->has_run = true;
    pass->has_targets = targets != NULL;
    return WEFT_OK;
}

static weft_status check_run(const weft_pass *pass, const char *caller) {
    if (pass->has_run) return WEFT_OK;
    return WEFT_BAD_INPUT("%s: nothing to read; run the pass first (weft_pass_run)", caller);
}

weft_status weft_pass_loss(const weft_pass *pass, const char *part, double *out) {
    API_NEED(pass, part, out);
    const weft_model_graph *m = &pass->session.graph;
    const struct {
        const char *name;
        const weft_tensor *tensor;
    } parts[] = {{"loss", m->loss},
                 {"cross_entropy", m->cross_entropy},
                 {"logits_z", m->logits_z},
                 {"aux_z", m->aux_z},
                 {"aux_contrastive", m->aux_contrastive}};
    WEFT_TRY(check_run(pass, __func__));
    if (!pass->has_targets) return API_REFUSE("the last run had no targets, so there is no loss");
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strcmp(part, parts[i].name) == 0)
            return weft_session_values(&pass->session, parts[i].tensor, 1, out);
    return API_REFUSE(
        "no part '%s'; there are loss, cross_entropy, logits_z, aux_z and aux_contrastive", part);
}

/* A kept tensor as floats: as it lies where it is f32, by way of doubles otherwise. */
static weft_status read_floats(const weft_pass *pass, const weft_tensor *t, int64_t n, float *out) {
    if (t && t->dtype == WEFT_F32) return weft_exec_read(pass->session.exec, t, out);
    WEFT_ROOM(double, values, n, "pass: no memory to read a tensor");
    WEFT_TRY(weft_session_values(&pass->session, t, n, values));
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)values[i];
    return WEFT_OK;
}

/* To floats, or where that is NULL to doubles. */
static weft_status read_logits(const weft_pass *pass, const char *caller, int64_t count,
                               float *floats, double *doubles) {
    const weft_tensor *t = pass->session.graph.logits;
    if (!t) return WEFT_BAD_INPUT("%s: the pass was opened without WEFT_PASS_LOGITS", caller);
    if (count != weft_tensor_count(t))
        return WEFT_BAD_INPUT("%s: count is %lld, but the logits are %s: %lld numbers", caller,
                              (long long)count, weft_tensor_describe(t),
                              (long long)weft_tensor_count(t));
    WEFT_TRY(check_run(pass, caller));
    return floats ? read_floats(pass, t, count, floats)
                  : weft_session_values(&pass->session, t, count, doubles);
}

weft_status weft_pass_logits(const weft_pass *pass, float *out, int64_t count) {
    API_NEED(pass, out);
    return read_logits(pass, __func__, count, out, NULL);
}

weft_status weft_pass_logits_f64(const weft_pass *pass, double *out, int64_t count) {
    API_NEED(pass, out);
    return read_logits(pass, __func__, count, NULL, out);
}

/* The gradient of a tensor, likewise. */
static weft_status read_gradient(const weft_pass *pass, const char *caller, const char *name,
                                 int64_t count, float *floats, double *doubles) {
    weft_weight *w;
    if (!(pass->purpose & WEFT_PASS_TRAIN))
        return WEFT_BAD_INPUT("%s: the pass was opened without WEFT_PASS_TRAIN", caller);
    WEFT_TRY(weft_api_find(pass->session.model, caller, name, count, &w));
    const weft_tensor *of = weft_graph_find(pass->session.graph.graph, name);
    const weft_tensor *t = of ? of->grad : NULL; /* NULL: zeros */
    WEFT_TRY(check_run(pass, caller));
    return floats ? read_floats(pass, t, count, floats)
                  : weft_session_values(&pass->session, t, count, doubles);
}

weft_status weft_pass_gradient(const weft_pass *pass, const char *name, float *out, int64_t count) {
    API_NEED(pass, name, out);
    return read_gradient(pass, __func__, name, count, out, NULL);
}

weft_status weft_pass_gradient_f64(const weft_pass *pass, const char *name, double *out,
                                   int64_t count) {
    API_NEED(pass, name, out);
    return read_gradient(pass, __func__, name, count, NULL, out);
}

/* Optimizers: steps with a pass's gradients, and what they did by name. */

/* A folder without a state.json, as versions before wrote it, says nothing; without the optimizer's file
 * there is nothing to be said of. */
static weft_status check_state(const char *folder, const char *path) {
    bool said, there;
    WEFT_TRY(weft_folder_has(folder, "state.json", &said));
    WEFT_TRY(weft_path_there(path, &there));
    return said && there ? weft_model_check_optimizer(folder) : WEFT_OK;
}

WEFT_ENDED_BY(weft_optimizer_close, weft_optimizer)

weft_status weft_optimizer_open(weft_engine *engine, weft_model *model, const char *folder,
                                weft_optimizer **out) {
    API_OPEN(out, engine, model);
    char path[WEFT_PATH_MAX];
    if (folder) WEFT_TRY(weft_path(path, "%s/%s", folder, weft_parts[WEFT_PART_OPTIMIZER]));
    if (folder) WEFT_TRY(weft_api_vouched(check_state(folder, path), folder));
    WEFT_AUTO(weft_optimizer_close_at) weft_optimizer *o = NULL;
    WEFT_TRY(weft_optimizer_create(model, engine->backend, engine->pool, NULL, &o));
    if (folder) WEFT_TRY(weft_optimizer_read(o, path));
    return weft_hand(&o, out);
}

void weft_optimizer_close(weft_optimizer *optimizer) {
    weft_optimizer_destroy(optimizer);
}

weft_status weft_optimizer_step(weft_optimizer *optimizer, const weft_pass *pass, double rate) {
    API_NEED(optimizer, pass);
    if (!isfinite(rate) || rate < 0)
        return API_REFUSE("rate is %g, but it must be 0 or more", rate);
    if (weft_optimizer_model(optimizer) != pass->session.model)
        return API_REFUSE("the pass is of another model");
    if (!(pass->purpose & WEFT_PASS_TRAIN))
        return API_REFUSE("the pass has no gradients; open it with WEFT_PASS_TRAIN");
    if (!pass->has_run) return API_REFUSE("no gradients yet; run the pass first (weft_pass_run)");
    if (weft_optimizer_marked(optimizer) != pass->serial) {
        WEFT_TRY(weft_optimizer_bind_session(optimizer, &pass->session));
        weft_optimizer_mark(optimizer, pass->serial);
    }
    WEFT_TRY(weft_optimizer_refresh(optimizer));
    return weft_optimizer_run(optimizer, rate);
}

weft_status weft_optimizer_event(const weft_optimizer *optimizer, const char *what, double *out) {
    API_NEED(optimizer, what, out);
    weft_step_events e;
    WEFT_TRY(weft_optimizer_events(optimizer, &e));
    const struct {
        const char *name;
        double value;
    } events[] = {{"grad_norm", e.norm},        {"lr", e.rate},
                  {"clipped", e.clipped},       {"spike", e.spike},
                  {"reset", e.reset},           {"skipped", e.skipped},
                  {"cut", (double)e.cut},       {"steps", (double)e.steps},
                  {"clips", (double)e.clips},   {"spikes", (double)e.spikes},
                  {"resets", (double)e.resets}, {"skips", (double)e.skips}};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) {
        if (strcmp(what, events[i].name) != 0) continue;
        *out = events[i].value;
        return WEFT_OK;
    }
    return API_REFUSE("no event '%s'; there are grad_norm, lr, clipped, spike, reset, skipped, "
                      "cut, steps, clips, spikes, resets and skips",
                      what);
}
