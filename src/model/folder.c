/* A model in a folder: config.json and model.safetensors. Each file is written beside and renamed,
 * so that a kill leaves the old one or the new one whole. */
#include "model/folder.h"

#include "base/crc32c.h"
#include "base/json.h"
#include "core/safetensors.h"
#include "data/tokenizer.h"
#include "model/kinds.h"
#include "model/model.h"

#include <fcntl.h>

enum { CONFIG_MOST = 1 << 24 };

weft_status weft_model_save(const weft_model *m, const char *folder) {
    weft_sum sums[WEFT_PARTS];
    return weft_model_save_summed(m, folder, sums);
}

weft_status weft_model_save_summed(const weft_model *m, const char *folder, weft_sum *sums) {
    WEFT_TRY(weft_folder_make_one(folder));
    WEFT_PATH(path, "%s/model.safetensors", folder);
    WEFT_TRY(weft_mirror_use(m->mirror, NULL));
    WEFT_ROOM(weft_safetensor, tensors, m->n_weights, "%s: no memory", path);
    for (int64_t i = 0; i < m->n_weights; i++) {
        const weft_weight *w = &m->weights[i];
        tensors[i] = (weft_safetensor){.name = w->name,
                                       .dtype = weft_file_dtype_of(w->dtype),
                                       .ndim = w->ndim,
                                       .data = w->data};
        memcpy(tensors[i].shape, w->shape, sizeof w->shape);
    }
    WEFT_TRY(weft_safetensors_write(path, tensors, m->n_weights, NULL, &sums[WEFT_PART_MODEL]));
    WEFT_TRY(weft_path(path, "%s/config.json", folder));
    return weft_json_write(path, weft_config_to_json(&m->config), &sums[WEFT_PART_CONFIG]);
}

weft_status weft_model_read_config(const char *folder, weft_config *c) {
    WEFT_AUTO_DECREF json_t *object = NULL;
    WEFT_PATH(path, "%s/config.json", folder);
    WEFT_TRY(weft_json_load(path, CONFIG_MOST, &object));
    weft_config_defaults(c);
    WEFT_TRY(weft_config_from_json(c, object, path));
    return weft_model_check(c, path);
}

static weft_status describe_mismatch(const weft_weight *w, const weft_safetensor *t,
                                     const char *path) {
    weft_tensor want = {.dtype = w->dtype, .ndim = w->ndim};
    memcpy(want.shape, w->shape, sizeof want.shape);
    if (!t)
        return WEFT_BAD_INPUT("%s: tensor '%s' is missing; the config asks for %s", path, w->name,
                              weft_tensor_describe(&want));
    char shape[128] = "[";
    for (int d = 0; d < t->ndim; d++) {
        size_t at = strlen(shape);
        snprintf(shape + at, sizeof shape - at, "%s%lld", d ? ", " : "", (long long)t->shape[d]);
    }
    return WEFT_BAD_INPUT("%s: tensor '%s' is %s %s], but the config asks for %s", path, w->name,
                          weft_file_dtype_name(t->dtype), shape, weft_tensor_describe(&want));
}

weft_status weft_model_load_as(const char *folder, const weft_config *c, weft_dtype dtype,
                               weft_pool *pool, weft_model **out) {
    *out = NULL;
    WEFT_PATH(path, "%s/model.safetensors", folder);
    WEFT_AUTO(weft_model_destroy_at) weft_model *m = NULL;
    WEFT_AUTO(weft_safetensors_close_at) weft_safetensors *file = NULL;
    WEFT_TRY(weft_model_describe(c, dtype, &m));
    WEFT_TRY(weft_safetensors_open(path, &file));
    /* The file's header against what the config asks for. */
    for (const weft_weight *w = m->weights; w < m->weights + m->n_weights; w++) {
        const weft_safetensor *t = weft_safetensors_find(file, w->name);
        if (!t || t->ndim != w->ndim || t->dtype >= WEFT_FILE_I64 ||
            memcmp(t->shape, w->shape, (size_t)w->ndim * sizeof w->shape[0]) != 0)
            return describe_mismatch(w, t, path);
    }
    for (int64_t i = 0; i < weft_safetensors_count(file); i++) {
        const char *name = weft_safetensors_at(file, i)->name;
        if (!weft_model_find(m, name))
            return WEFT_BAD_INPUT("%s: tensor '%s' is not in the config's model", path, name);
    }
    /* A config that asks for more than the file has costs no memory. */
    WEFT_TRY(weft_model_allocate(m, pool));
    for (weft_weight *w = m->weights; w < m->weights + m->n_weights; w++) {
        const weft_safetensor *t = weft_safetensors_find(file, w->name);
        if (t->dtype == weft_file_dtype_of(w->dtype)) {
            memcpy(w->data, t->data, (size_t)w->bytes);
            continue;
        }
        WEFT_ROOM(double, values, w->count, "%s: no memory", w->name);
        weft_safetensor_values(t, 0, w->count, values);
        weft_weight_write(w, values);
    }
    return weft_hand(&m, out);
}

weft_status weft_model_load(const char *folder, weft_dtype dtype, weft_model **out) {
    *out = NULL;
    weft_config c;
    WEFT_TRY(weft_model_read_config(folder, &c));
    return weft_model_load_as(folder, &c, dtype, NULL, out);
}

const char *const weft_parts[WEFT_PARTS] = {"config.json", "model.safetensors",
                                            "optimizer.safetensors", "tokenizer.json"};

/* Whether a name is `own`, or that of the file beside which becomes it: own.12-3.tmp, and in versions
 * before own.new, own.part. */
static bool is_of(const char *name, const char *own, bool *beside) {
    size_t n = strlen(own);
    if (strncmp(name, own, n) != 0) return false;
    *beside = name[n] != '\0';
    return !*beside || strcmp(name + n, ".new") == 0 || strcmp(name + n, ".part") == 0 ||
           weft_is_beside(name, own);
}

static void take_name(weft_contents *c, const char *name) {
    bool beside;
    if (strcmp(name, WEFT_FOLDER_MARK) == 0) {
        c->mark = true;
    } else if (is_of(name, "state.json", &beside)) {
        c->state = c->state || !beside;
    } else if (!is_of(name, "model.config", &beside) &&
               !is_of(name, "configuration_weft.py", &beside) &&
               !is_of(name, "modeling_weft.py", &beside)) {
        for (int i = 0; i < WEFT_PARTS; i++) {
            if (!is_of(name, weft_parts[i], &beside)) continue;
            c->file[i] = c->file[i] || !beside;
            return;
        }
        c->foreign = c->foreign || !weft_tokenizer_is_beside(name);
    }
}

weft_status weft_contents_read(const char *path, weft_contents *c, bool *own) {
    WEFT_AUTO(weft_names_free) weft_names names = {0};
    weft_kind kind;
    *c = (weft_contents){0};
    WEFT_TRY(weft_folder_list(path, &names));
    c->n = names.n;
    for (int i = 0; i < names.n; i++) {
        take_name(c, names.list[i]);
        WEFT_PATH(inside, "%s/%s", path, names.list[i]);
        WEFT_TRY(weft_path_kind(inside, &kind));
        if (kind != WEFT_KIND_FILE) c->foreign = true;
    }
    *own = !c->foreign;
    if (!*own || !c->n || c->mark) return WEFT_OK;
    /* A version before left no mark. */
    weft_config config;
    *own = c->state || c->file[WEFT_PART_OPTIMIZER];
    if (*own || !c->file[WEFT_PART_CONFIG]) return WEFT_OK;
    weft_status status = weft_model_read_config(path, &config);
    *own = status == WEFT_OK;
    return status == WEFT_EINPUT ? WEFT_OK : status;
}

json_t *weft_parts_to_json(const weft_sum sums[WEFT_PARTS]) {
    json_t *files = json_object();
    for (int i = 0; i < WEFT_PARTS; i++)
        if (sums[i].bytes)
            json_object_set_new(files, weft_parts[i],
                                json_pack("{s:I, s:o}", "bytes", (json_int_t)sums[i].bytes,
                                          "crc32c", json_sprintf("%08x", sums[i].crc)));
    return files;
}

/* The contents of a folder of weft's; another is refused. */
static weft_status read_own(const char *path, weft_contents *c) {
    bool own;
    WEFT_TRY(weft_contents_read(path, c, &own));
    if (own) return WEFT_OK;
    return WEFT_BAD_INPUT("%s: is not a model's folder that weft made, or has other things in it; "
                          "a model's folder is replaced whole: move it away, or name another",
                          path);
}

weft_status weft_model_may_force(const char *path) {
    return read_own(path, &(weft_contents){0});
}

weft_status weft_model_may_save(const char *path) {
    WEFT_AUTO_DECREF json_t *state = NULL;
    weft_contents c;
    WEFT_TRY(read_own(path, &c));
    /* A state that cannot be read may be a run's: what it went on from is still there. */
    bool read = weft_state_read(path, &state) == WEFT_OK;
    bool run = read ? json_object_get(state, "iteration") != NULL : c.file[WEFT_PART_OPTIMIZER];
    if (!run) return WEFT_OK;
    return WEFT_BAD_INPUT(
        "%s: is a checkpoint that a run goes on from, and would not any more; name another folder",
        path);
}

weft_status weft_model_may_not(const char *path) {
    weft_contents c;
    WEFT_TRY(read_own(path, &c));
    for (int i = 0; i < WEFT_PARTS; i++)
        if (c.file[i])
            return WEFT_BAD_INPUT("%s/%s: is there already; --force replaces the folder", path,
                                  weft_parts[i]);
    return WEFT_BAD_INPUT("%s: is there already; --force replaces it", path);
}

static weft_status write_all(const char *folder, weft_parts_writer write, void *context) {
    weft_sum sums[WEFT_PARTS] = {{0}};
    WEFT_TRY(write(context, folder, sums));
    json_t *state =
        json_pack("{s:s, s:o}", "weft", weft_version(), "files", weft_parts_to_json(sums));
    if (!state) return weft_fail(WEFT_ENOMEM, "%s: no memory for its state", folder);
    WEFT_TRY(weft_state_write(folder, state));
    weft_status status = weft_state_verify(folder, 0);
    /* Whatever it says of the input's fault: it was written just now. */
    return status != WEFT_EINPUT
               ? status
               : weft_fail(WEFT_EIO, "a model that was just written reads otherwise: %s",
                           weft_error_message());
}

weft_status weft_model_publish(const char *path, weft_may_replace may, weft_parts_writer write,
                               void *context) {
    weft_new_folder f;
    WEFT_TRY(weft_new_folder_room(path, may));
    WEFT_TRY(weft_new_folder_begin(&f, path));
    return weft_new_folder_end(&f, write_all(f.beside, write, context), may);
}

enum { STATE_MOST = 1 << 20, TAIL_ROOM = 64, ATTEMPTS = 10 };

/* What follows the bytes that are summed. */
static const char tail_format[] = ",\n  \"state_crc32c\": \"%08x\"\n}\n";

weft_status weft_state_write(const char *folder, json_t *state) {
    json_object_set_new(state, "format", json_integer(WEFT_STATE_FORMAT));
    WEFT_AUTO_FREE char *text = json_dumps(state, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(state);
    WEFT_PATH(path, "%s/state.json", folder);
    if (!text) return weft_no_memory(path);
    char tail[TAIL_ROOM];
    size_t n = strlen(text);
    weft_new_file f;
    if (n < 2 || strcmp(text + n - 2, "\n}") != 0)
        return weft_fail(WEFT_EBUG, "%s: a state that is no object", path);
    /* The text without its closing brace, then the checksum of that. */
    WEFT_TRY(weft_new_file_begin(&f, path));
    weft_new_file_put(&f, text, (int64_t)n - 2);
    weft_new_file_put(&f, tail, snprintf(tail, sizeof tail, tail_format, (unsigned)f.sum.crc));
    return weft_new_file_end(&f, WEFT_OK);
}

weft_status weft_state_read(const char *folder, json_t **out) {
    WEFT_AUTO_FREE char *text = NULL;
    size_t bytes;
    json_error_t error;
    *out = NULL;
    WEFT_PATH(path, "%s/state.json", folder);
    WEFT_TRY(weft_file_read(path, STATE_MOST, &text, &bytes));
    WEFT_AUTO_DECREF json_t *state = weft_json_read(text, bytes, JSON_REJECT_DUPLICATES, &error);
    json_int_t format = json_integer_value(json_object_get(state, "format"));
    if (!state) return WEFT_BAD_INPUT("%s:%d: %s", path, error.line, error.text);
    if (format < 1 || format > WEFT_STATE_FORMAT)
        return WEFT_BAD_INPUT("%s: of format %lld, and this weft knows formats 1 to %d; use the "
                              "weft that wrote it, or a newer one",
                              path, (long long)format, WEFT_STATE_FORMAT);
    char tail[TAIL_ROOM];
    size_t length = (size_t)snprintf(tail, sizeof tail, tail_format, 0u);
    size_t summed = bytes > length ? bytes - length : 0;
    snprintf(tail, sizeof tail, tail_format, (unsigned)weft_crc32c(0, text, summed));
    if (format == WEFT_STATE_FORMAT && (!summed || memcmp(text + summed, tail, length) != 0))
        return WEFT_BAD_INPUT("%s: its checksum is not that of what it says: it was changed "
                              "after it was written; take another checkpoint",
                              path);
    return weft_hand(&state, out);
}

/* A file against its entry; no entry is an error. */
static weft_status check_file(const char *folder, const json_t *state, const char *name,
                              bool whole) {
    const json_t *entry = json_object_get(json_object_get(state, "files"), name);
    const char *want = json_string_value(json_object_get(entry, "crc32c"));
    const json_t *size = json_object_get(entry, "bytes");
    char path[WEFT_PATH_MAX], text[16];
    weft_sum is;
    bool there;
    if (!want || !json_is_integer(size))
        return WEFT_BAD_INPUT("%s/state.json: no checksum of %s", folder, name);
    WEFT_TRY(weft_path(path, "%s/%s", folder, name));
    WEFT_TRY(weft_path_there(path, &there));
    if (!there)
        return WEFT_BAD_INPUT("%s: is missing, but was written; take another checkpoint", path);
    /* The size first: one that is all holes may take hours to be read. */
    WEFT_TRY(weft_file_size(path, &is.bytes));
    if (is.bytes != json_integer_value(size))
        return WEFT_BAD_INPUT("%s: %lld bytes, but %lld were written; take another checkpoint",
                              path, (long long)is.bytes, (long long)json_integer_value(size));
    if (!whole) return WEFT_OK;
    WEFT_TRY(weft_file_sum(path, &is));
    snprintf(text, sizeof text, "%08x", (unsigned)is.crc);
    if (strcmp(text, want) == 0) return WEFT_OK;
    return WEFT_BAD_INPUT("%s: its checksum is %s, but %s was written; take another checkpoint",
                          path, text, want);
}

weft_status weft_state_check(const char *folder, const json_t *state, int needed, bool whole) {
    for (int i = 0; i < WEFT_PARTS; i++)
        if (i < needed || json_object_get(json_object_get(state, "files"), weft_parts[i]))
            WEFT_TRY(check_file(folder, state, weft_parts[i], whole));
    return WEFT_OK;
}

weft_status weft_folder_has(const char *folder, const char *name, bool *there) {
    WEFT_PATH(path, "%s/%s", folder, name);
    return weft_path_there(path, there);
}

weft_status weft_state_verify(const char *folder, int needed) {
    WEFT_AUTO_DECREF json_t *state = NULL;
    WEFT_TRY(weft_state_read(folder, &state));
    return weft_state_check(folder, state, needed, true);
}

static weft_status check_model(const char *folder) {
    WEFT_AUTO_DECREF json_t *state = NULL;
    bool there;
    WEFT_TRY(weft_folder_has(folder, "state.json", &there));
    if (!there) return WEFT_OK;
    WEFT_TRY(weft_state_read(folder, &state));
    json_object_del(json_object_get(state, "files"), weft_parts[WEFT_PART_OPTIMIZER]);
    return weft_state_check(folder, state, 0, true);
}

/* A run that goes on replaces its checkpoint, perhaps between state.json and what that tells of: then the new one
 * is checked. The old one is held meanwhile, since another may get the number of one that is gone. */
weft_status weft_model_check_sums(const char *folder) {
    weft_status status;
    bool replaced;
    int attempts = 0;
    do {
        int held = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        status = check_model(folder);
        struct stat open_one, named; /* another folder may have that name by now */
        replaced = held >= 0 && fstat(held, &open_one) == 0 && stat(folder, &named) == 0 &&
                   (open_one.st_ino != named.st_ino || open_one.st_dev != named.st_dev);
        if (held >= 0) close(held);
    } while (status != WEFT_OK && replaced && ++attempts < ATTEMPTS);
    return status;
}

weft_status weft_model_check_optimizer(const char *folder) {
    WEFT_AUTO_DECREF json_t *state = NULL;
    bool there;
    WEFT_TRY(weft_folder_has(folder, "state.json", &there));
    if (!there)
        return WEFT_BAD_INPUT(
            "%s/%s: no state.json beside it says that it belongs to these weights", folder,
            weft_parts[WEFT_PART_OPTIMIZER]);
    WEFT_TRY(weft_state_read(folder, &state));
    return check_file(folder, state, weft_parts[WEFT_PART_OPTIMIZER], true);
}
