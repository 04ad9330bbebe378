/* A model in a folder: config.json and model.safetensors. Each file is written beside and renamed,
 * so that a kill leaves the old one or the new one whole. */
#include "base/folders.h"
#include "base/json.h"
#include "core/safetensors.h"
#include "model/kinds.h"
#include "model/model.h"
#include "model/parts.h"

#include <stdlib.h>
#include <string.h>

enum { CONFIG_MOST = 1 << 24 };

static weft_status save_config(const weft_config *c, const char *folder, weft_sum *sum) {
    char path[WEFT_PATH_MAX];
    WEFT_TRY(weft_path(path, "%s/config.json", folder));
    return weft_json_write(path, weft_config_to_json(c), sum);
}

weft_status weft_model_save(const weft_model *m, const char *folder) {
    weft_sum sums[WEFT_PARTS];
    return weft_model_save_summed(m, folder, sums);
}

weft_status weft_model_save_summed(const weft_model *m, const char *folder, weft_sum *sums) {
    char path[WEFT_PATH_MAX];
    WEFT_TRY(weft_folder_make_one(folder));
    WEFT_TRY(weft_path(path, "%s/model.safetensors", folder));
    WEFT_TRY(weft_mirror_use(m->mirror, NULL));
    weft_safetensor *tensors = calloc((size_t)m->n_weights, sizeof *tensors);
    if (!tensors) return weft_fail(WEFT_ENOMEM, "%s: no memory", path);
    for (int64_t i = 0; i < m->n_weights; i++) {
        const weft_weight *w = &m->weights[i];
        tensors[i] = (weft_safetensor){.name = w->name,
                                       .dtype = weft_file_dtype_of(w->dtype),
                                       .ndim = w->ndim,
                                       .data = w->data};
        memcpy(tensors[i].shape, w->shape, sizeof w->shape);
    }
    weft_status status =
        weft_safetensors_write_summed(path, tensors, m->n_weights, NULL, &sums[WEFT_PART_MODEL]);
    free(tensors);
    return status == WEFT_OK ? save_config(&m->config, folder, &sums[WEFT_PART_CONFIG]) : status;
}

weft_status weft_model_read_config(const char *folder, weft_config *c) {
    char path[WEFT_PATH_MAX];
    json_t *object;
    WEFT_TRY(weft_path(path, "%s/config.json", folder));
    WEFT_TRY(weft_json_load(path, CONFIG_MOST, &object));
    weft_config_defaults(c);
    weft_status status = weft_config_from_json(c, object, path);
    json_decref(object);
    return status == WEFT_OK ? weft_model_check(c, path) : status;
}

static weft_status describe_mismatch(const weft_weight *w, const weft_safetensor *t,
                                     const char *path) {
    weft_tensor want = {.dtype = w->dtype, .ndim = w->ndim};
    memcpy(want.shape, w->shape, sizeof want.shape);
    if (!t)
        return weft_fail(WEFT_EINPUT, "%s: tensor '%s' is missing; the config asks for %s", path,
                         w->name, weft_tensor_describe(&want));
    char shape[128] = "[";
    for (int d = 0; d < t->ndim; d++) {
        size_t at = strlen(shape);
        snprintf(shape + at, sizeof shape - at, "%s%lld", d ? ", " : "", (long long)t->shape[d]);
    }
    return weft_fail(WEFT_EINPUT, "%s: tensor '%s' is %s %s], but the config asks for %s", path,
                     w->name, weft_file_dtype_name(t->dtype), shape, weft_tensor_describe(&want));
}

static bool fits(const weft_weight *w, const weft_safetensor *t) {
    if (!t || t->ndim != w->ndim) return false;
    if (t->dtype == WEFT_FILE_I32 || t->dtype == WEFT_FILE_I64) return false;
    return memcmp(t->shape, w->shape, (size_t)w->ndim * sizeof w->shape[0]) == 0;
}

static weft_status load_weight(weft_weight *w, const weft_safetensor *t) {
    if (t->dtype == weft_file_dtype_of(w->dtype)) {
        memcpy(w->data, t->data, (size_t)w->bytes);
        return WEFT_OK;
    }
    double *values = malloc((size_t)w->count * sizeof *values);
    if (!values) return weft_fail(WEFT_ENOMEM, "%s: no memory", w->name);
    weft_safetensor_values(t, 0, w->count, values);
    weft_weight_write(w, values);
    free(values);
    return WEFT_OK;
}

/* The file's header against what the config asks for. */
static weft_status check_header(const weft_model *m, const weft_safetensors *file,
                                const char *path) {
    for (int64_t i = 0; i < m->n_weights; i++) {
        const weft_safetensor *t = weft_safetensors_find(file, m->weights[i].name);
        if (!fits(&m->weights[i], t)) return describe_mismatch(&m->weights[i], t, path);
    }
    for (int64_t i = 0; i < weft_safetensors_count(file); i++) {
        const char *name = weft_safetensors_at(file, i)->name;
        if (!weft_model_find(m, name))
            return weft_fail(WEFT_EINPUT, "%s: tensor '%s' is not in the config's model", path,
                             name);
    }
    return WEFT_OK;
}

/* A config that asks for more than the file has costs no memory. */
static weft_status load_weights(weft_model *m, weft_pool *pool, const char *path) {
    weft_safetensors *file;
    WEFT_TRY(weft_safetensors_open(path, &file));
    weft_status status = check_header(m, file, path);
    if (status == WEFT_OK) status = weft_model_allocate(m, pool);
    for (int64_t i = 0; status == WEFT_OK && i < m->n_weights; i++)
        status = load_weight(&m->weights[i], weft_safetensors_find(file, m->weights[i].name));
    weft_safetensors_close(file);
    return status;
}

weft_status weft_model_load_as(const char *folder, const weft_config *c, weft_dtype dtype,
                               weft_pool *pool, weft_model **out) {
    *out = NULL;
    char path[WEFT_PATH_MAX];
    WEFT_TRY(weft_path(path, "%s/model.safetensors", folder));
    WEFT_TRY(weft_model_describe(c, dtype, out));
    weft_status status = load_weights(*out, pool, path);
    if (status != WEFT_OK) {
        weft_model_destroy(*out);
        *out = NULL;
    }
    return status;
}

weft_status weft_model_load(const char *folder, weft_dtype dtype, weft_model **out) {
    *out = NULL;
    weft_config c;
    WEFT_TRY(weft_model_read_config(folder, &c));
    return weft_model_load_as(folder, &c, dtype, NULL, out);
}
