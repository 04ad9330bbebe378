/* Engines, and what a config would cost on one. */
#include "api/api.h"

#include "device/device.h"
#include "model/account.h"

enum { THREADS_MAX = 1024 };

static weft_status check_threads(const char *caller, int threads) {
    if (threads >= 0 && threads <= THREADS_MAX) return WEFT_OK;
    return WEFT_BAD_INPUT("%s: %d threads; 0 (one for each processor) to %d can be had", caller,
                          threads, THREADS_MAX);
}

static weft_status choose_backend(const char *device, const weft_backend **out) {
    int which = !device || strcmp(device, "auto") == 0 ? WEFT_DEVICE_AUTO
                : strcmp(device, "cuda") == 0          ? WEFT_DEVICE_CUDA
                                                       : WEFT_DEVICE_CPU;
    if (which == WEFT_DEVICE_CPU && strcmp(device, "cpu") != 0)
        return WEFT_BAD_INPUT("device '%s': it must be cpu, cuda or auto", device);
    return weft_device_open(which, WEFT_F32, out);
}

weft_status weft_engine_open(int threads, const char *device, weft_engine **out) {
    API_NEED(out);
    *out = NULL;
    const weft_backend *backend = NULL;
    WEFT_TRY(check_threads(__func__, threads));
    WEFT_TRY(choose_backend(device, &backend));
    WEFT_ROOM(weft_engine, engine, 1, "%s: no memory", __func__);
    engine->backend = backend;
    WEFT_TRY(weft_pool_create(threads, &engine->pool));
    pthread_mutex_init(&engine->running, NULL);
    pthread_mutex_init(&engine->building, NULL);
    pthread_mutex_init(&engine->lock, NULL);
    return weft_hand(&engine, out);
}

void weft_engine_close(weft_engine *engine) {
    if (!engine) return;
    weft_api_close_blocks(engine);
    weft_pool_destroy(engine->pool);
    pthread_mutex_destroy(&engine->running);
    pthread_mutex_destroy(&engine->building);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}

weft_status weft_api_call(weft_engine *engine, weft_function *function, weft_half half,
                          const weft_call_memory *memory) {
    if (engine->backend->remote) return weft_function_call(function, half, memory);
    WEFT_LOCK(&engine->running);
    return weft_function_call(function, half, memory);
}

int weft_engine_threads(const weft_engine *engine) {
    return engine ? weft_pool_size(engine->pool) : 0;
}

const char *weft_engine_device(const weft_engine *engine) {
    return engine ? engine->backend->name : NULL;
}

weft_status weft_estimate(const char *path, const char *const *overrides, int threads,
                          weft_cost *out, size_t size) {
    API_NEED(out);
    if (size < sizeof out->parameters)
        return API_REFUSE("size is %zu, but it must be sizeof(weft_cost)", size);
    const weft_backend *backend = NULL;
    weft_config c;
    weft_account a;
    bool is_folder;
    WEFT_TRY(check_threads(__func__, threads));
    if (threads == 0) { /* as many as an engine of that number would have */
        weft_pool *pool;
        WEFT_TRY(weft_pool_create(0, &pool));
        threads = weft_pool_size(pool);
        weft_pool_destroy(pool);
    }
    WEFT_TRY(choose_backend(NULL, &backend));
    WEFT_TRY(weft_api_config(path, overrides, &c, &is_folder));
    WEFT_TRY(weft_account_make(&c, backend, threads, &a));
    weft_cost cost = {.parameters = a.parameters,
                      .training_bytes = a.training_bytes,
                      .weights_bytes = a.weights_bytes,
                      .gradients_bytes = a.gradients_bytes,
                      .optimizer_bytes = a.optimizer_bytes,
                      .activations_bytes = a.activations_bytes,
                      .workspace_bytes = a.workspace_bytes,
                      .cache_bytes_per_token = a.cache_bytes_token,
                      .forward_flops = a.forward_flops,
                      .backward_flops = a.backward_flops};
    memset(out, 0, size);
    memcpy(out, &cost, size < sizeof cost ? size : sizeof cost);
    return WEFT_OK;
}
