/* Optimizers: steps with a pass's gradients, and what they did by name. */
#include "train/optimizer.h"

#include "api/api.h"
#include "model/folder.h"

#include <math.h>
#include <string.h>

/* A folder without a state.json, as versions before wrote it, says nothing; without the optimizer's file
 * there is nothing to be said of. */
static weft_status check_state(const char *folder, const char *path) {
    char state[WEFT_API_PATH];
    bool said, there;
    WEFT_TRY(weft_api_join(state, folder, "state.json"));
    WEFT_TRY(weft_path_there(state, &said));
    WEFT_TRY(weft_path_there(path, &there));
    return said && there ? weft_model_check_optimizer(folder) : WEFT_OK;
}

weft_status weft_optimizer_open(weft_engine *engine, weft_model *model, const char *folder,
                                weft_optimizer **out) {
    API_NEED(out);
    *out = NULL;
    API_NEED(engine);
    API_NEED(model);
    char path[WEFT_API_PATH];
    if (folder) WEFT_TRY(weft_api_join(path, folder, weft_parts[WEFT_PART_OPTIMIZER]));
    if (folder) WEFT_TRY(weft_api_vouched(check_state(folder, path), folder));
    WEFT_TRY(weft_optimizer_create(model, engine->backend, engine->pool, NULL, out));
    weft_status status = folder ? weft_optimizer_read(*out, path) : WEFT_OK;
    if (status == WEFT_OK) return WEFT_OK;
    weft_optimizer_destroy(*out);
    *out = NULL;
    return status;
}

void weft_optimizer_close(weft_optimizer *optimizer) {
    weft_optimizer_destroy(optimizer);
}

weft_status weft_optimizer_step(weft_optimizer *optimizer, const weft_pass *pass, double rate) {
    API_NEED(optimizer);
    API_NEED(pass);
    if (!isfinite(rate) || rate < 0)
        return weft_fail(WEFT_EINPUT, "%s: rate is %g, but it must be 0 or more", __func__, rate);
    if (weft_optimizer_model(optimizer) != pass->session.model)
        return weft_fail(WEFT_EINPUT, "%s: the pass is of another model", __func__);
    if (!(pass->purpose & WEFT_PASS_TRAIN))
        return weft_fail(WEFT_EINPUT, "%s: the pass has no gradients; open it with WEFT_PASS_TRAIN",
                         __func__);
    if (!pass->has_run)
        return weft_fail(WEFT_EINPUT, "%s: no gradients yet; run the pass first (weft_pass_run)",
                         __func__);
    if (weft_optimizer_marked(optimizer) != pass->serial) {
        WEFT_TRY(weft_optimizer_bind_session(optimizer, &pass->session));
        weft_optimizer_mark(optimizer, pass->serial);
    }
    WEFT_TRY(weft_optimizer_refresh(optimizer));
    return weft_optimizer_run(optimizer, rate);
}

weft_status weft_optimizer_event(const weft_optimizer *optimizer, const char *what, double *out) {
    API_NEED(optimizer);
    API_NEED(what);
    API_NEED(out);
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
    return weft_fail(WEFT_EINPUT,
                     "%s: no event '%s'; there are grad_norm, lr, clipped, spike, reset, skipped, "
                     "cut, steps, clips, spikes, resets and skips",
                     __func__, what);
}
