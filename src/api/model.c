/* Models: opening, saving, and their tensors by name. */
#include "api/api.h"

#include "base/text.h"
#include "model/folder.h"
#include "model/kinds.h"
#include "train/optimizer.h"

weft_status weft_api_need(const char *caller, const char *names, const void *const *arguments) {
    for (; *names; arguments++) {
        size_t n = strcspn(names, ",");
        if (!*arguments) return WEFT_BAD_INPUT("%s: %.*s is NULL", caller, (int)n, names);
        names += n + strspn(names + n, ", ");
    }
    return WEFT_OK;
}

/* What is at `path`, and the overrides on it. */
static weft_status read_over(const char *path, bool is_folder, const char *const *overrides,
                             weft_config *c) {
    if (is_folder)
        WEFT_TRY(weft_model_read_config(path, c));
    else if (path)
        WEFT_TRY(weft_config_read(c, path));
    for (int i = 0; overrides && overrides[i]; i++)
        WEFT_TRY(weft_config_override(c, overrides[i], "override"));
    return WEFT_OK;
}

weft_status weft_api_config(const char *path, const char *const *overrides, weft_config *c,
                            bool *is_folder) {
    struct stat is;
    *is_folder = path && stat(path, &is) == 0 && S_ISDIR(is.st_mode);
    weft_config_defaults(c);
    WEFT_TRY(read_over(path, *is_folder, overrides, c));
    int preset = c->preset;
    /* Which preset it is is known only now, and it goes below everything that is set. A checkpoint has
     * all keys set. */
    if (preset != WEFT_PRESET_NONE && !*is_folder) {
        weft_config_defaults(c);
        WEFT_TRY(weft_config_preset(c, preset));
        WEFT_TRY(read_over(path, false, overrides, c));
    }
    return weft_model_check(c, path ? path : "config");
}

weft_status weft_api_vouched(weft_status status, const char *folder) {
    if (status != WEFT_EINPUT) return status;
    return weft_fail(status, "%s; without %s/state.json it is taken as it is", weft_error_message(),
                     folder);
}

weft_status weft_model_open(const char *path, const char *const *overrides, weft_model **out) {
    API_NEED(out);
    *out = NULL;
    weft_config c;
    bool is_folder;
    WEFT_AUTO(weft_model_destroy_at) weft_model *m = NULL;
    WEFT_TRY(weft_api_config(path, overrides, &c, &is_folder));
    if (is_folder) {
        WEFT_TRY(weft_api_vouched(weft_model_check_sums(path), path));
        WEFT_TRY(weft_model_load(path, weft_config_dtype(&c), &m));
        /* The config must ask for just the tensors that the model has. */
        WEFT_AUTO(weft_model_graph_destroy) weft_model_graph g = {0};
        WEFT_TRY(weft_model_build(&c, &(weft_build){.batch = 1, .time = 1, .dtype = m->dtype}, &g));
        for (int64_t i = 0; i < g.n_parameters; i++) {
            const weft_tensor *t = g.parameters[i].tensor;
            const weft_weight *w = weft_model_find(m, t->name);
            if (!w || w->ndim != t->ndim || memcmp(w->shape, t->shape, sizeof w->shape) != 0)
                return WEFT_BAD_INPUT("%s: the overrides ask for a tensor '%s', %s, that the "
                                      "checkpoint does not have",
                                      path, t->name, weft_tensor_describe(t));
        }
        if (g.n_parameters != m->n_weights)
            return WEFT_BAD_INPUT(
                "%s: the overrides leave the model %lld tensors, but the checkpoint has %lld", path,
                (long long)g.n_parameters, (long long)m->n_weights);
        m->config = c;
    } else {
        WEFT_TRY(weft_model_create(&c, weft_config_dtype(&c), NULL, &m));
        WEFT_TRY(weft_model_start(m, (uint64_t)c.seed, NULL));
    }
    return weft_hand(&m, out);
}

void weft_model_close(weft_model *model) {
    weft_model_destroy(model);
}

weft_status weft_model_option(const weft_model *model, const char *key, char *out, size_t room) {
    API_NEED(model, key, out);
    weft_config unused;
    weft_config_defaults(&unused);
    const weft_option *option = weft_option_find(key);
    /* The setter's message for an unknown key names the nearest known one. */
    if (!option) return weft_config_set(&unused, key, "", __func__);
    char text[WEFT_TEXT_MAX + 64];
    weft_config_format(&model->config, option, text, sizeof text);
    size_t length = strlen(text) + 1;
    if (length > room)
        return API_REFUSE("%s needs %zu bytes, room is %zu", option->key, length, room);
    memcpy(out, text, length);
    return WEFT_OK;
}

typedef struct {
    const weft_model *model;
    const weft_optimizer *optimizer;
    const char *tokenizer;
} saved_parts;

static weft_status write_parts(void *context, const char *folder, weft_sum sums[WEFT_PARTS]) {
    const saved_parts *p = context;
    WEFT_TRY(weft_model_save_summed(p->model, folder, sums));
    WEFT_PATH(path, "%s/%s", folder, weft_parts[WEFT_PART_OPTIMIZER]);
    if (p->optimizer)
        WEFT_TRY(weft_optimizer_write(p->optimizer, path, &sums[WEFT_PART_OPTIMIZER]));
    WEFT_AUTO_FREE char *text = NULL;
    size_t bytes;
    if (!p->tokenizer) return WEFT_OK;
    WEFT_TRY(weft_path(path, "%s/%s", folder, weft_parts[WEFT_PART_TOKENIZER]));
    WEFT_TRY(weft_file_read(p->tokenizer, SIZE_MAX, &text, &bytes));
    return weft_file_write(path, text, bytes, &sums[WEFT_PART_TOKENIZER]);
}

weft_status weft_save_with_tokenizer(const weft_model *model, const weft_optimizer *optimizer,
                                     const char *tokenizer, const char *folder) {
    API_NEED(model, folder);
    if (optimizer && weft_optimizer_model(optimizer) != model)
        return API_REFUSE("the optimizer is of another model");
    return weft_model_publish(folder, weft_model_may_save, write_parts,
                              &(saved_parts){model, optimizer, tokenizer});
}

weft_status weft_save(const weft_model *model, const weft_optimizer *optimizer,
                      const char *folder) {
    return weft_save_with_tokenizer(model, optimizer, NULL, folder);
}

int64_t weft_model_tensors(const weft_model *model) {
    return model ? model->n_weights : 0;
}

const char *weft_model_tensor_name(const weft_model *model, int64_t i) {
    return model && i >= 0 && i < model->n_weights ? model->weights[i].name : NULL;
}

weft_status weft_api_find(const weft_model *m, const char *caller, const char *name, int64_t count,
                          weft_weight **out) {
    const weft_weight *w = *out = weft_model_find(m, name);
    if (!w) {
        weft_nearest nearest = weft_nearest_slip(name);
        for (int64_t i = 0; i < m->n_weights; i++)
            weft_nearest_offer(&nearest, m->weights[i].name);
        bool near = *nearest.name;
        return WEFT_BAD_INPUT("%s: the model has no tensor '%s'%s%s%s", caller, name,
                              near ? "; did you mean '" : "", nearest.name, near ? "'?" : "");
    }
    if (w->count == count) return WEFT_OK;
    weft_tensor like = {.dtype = w->dtype, .ndim = w->ndim};
    memcpy(like.shape, w->shape, sizeof like.shape);
    return WEFT_BAD_INPUT("%s: count is %lld, but '%s' is %s: %lld numbers", caller,
                          (long long)count, name, weft_tensor_describe(&like), (long long)w->count);
}

weft_status weft_model_shape(const weft_model *model, const char *name, int64_t shape[4], int *ndim,
                             int64_t *count) {
    API_NEED(model, name, shape);
    weft_weight *w = weft_model_find(model, name);
    WEFT_TRY(weft_api_find(model, __func__, name, w ? w->count : 0, &w));
    for (int d = 0; d < WEFT_MAX_DIMS; d++)
        shape[d] = d < w->ndim ? w->shape[d] : 1;
    if (ndim) *ndim = w->ndim;
    if (count) *count = w->count;
    return WEFT_OK;
}

/* The weight of a call with a name, numbers and their count, ready to be read by the host. */
#define OPEN_WEIGHT(numbers, w)                                                                    \
    weft_weight *w;                                                                                \
    API_NEED(model, name, numbers);                                                                \
    WEFT_TRY(weft_api_find(model, __func__, name, count, &w));                                     \
    WEFT_TRY(weft_mirror_use(model->mirror, NULL))

weft_status weft_model_read(const weft_model *model, const char *name, float *out, int64_t count) {
    OPEN_WEIGHT(out, w);
    weft_weight_floats(w, out);
    return WEFT_OK;
}

weft_status weft_model_read_f64(const weft_model *model, const char *name, double *out,
                                int64_t count) {
    OPEN_WEIGHT(out, w);
    weft_weight_read(w, out);
    return WEFT_OK;
}

weft_status weft_model_write(weft_model *model, const char *name, const float *values,
                             int64_t count) {
    OPEN_WEIGHT(values, w);
    for (int64_t i = 0; i < count; i++) {
        if (w->dtype == WEFT_F32)
            ((float *)w->data)[i] = values[i];
        else if (w->dtype == WEFT_BF16)
            ((uint16_t *)w->data)[i] = weft_float_to_bf16(values[i]);
        else
            ((double *)w->data)[i] = (double)values[i];
    }
    weft_mirror_wrote(model->mirror, NULL);
    return WEFT_OK;
}

weft_status weft_model_write_f64(weft_model *model, const char *name, const double *values,
                                 int64_t count) {
    OPEN_WEIGHT(values, w);
    weft_weight_write(w, values);
    weft_mirror_wrote(model->mirror, NULL);
    return WEFT_OK;
}
