/* Whose a folder is, is told by what is in it. */
#include "model/parts.h"

#include "base/beside.h"
#include "base/version.h"
#include "model/model.h"
#include "model/sums.h"

#include <stdio.h>
#include <string.h>

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
    } else if (!is_of(name, "model.config", &beside)) {
        for (int i = 0; i < WEFT_PARTS; i++) {
            if (!is_of(name, weft_parts[i], &beside)) continue;
            c->file[i] = c->file[i] || !beside;
            return;
        }
        c->foreign = true;
    }
}

static weft_status read_names(const char *path, weft_contents *c) {
    char inside[WEFT_PATH_MAX];
    weft_names names;
    weft_kind kind;
    *c = (weft_contents){0};
    WEFT_TRY(weft_folder_list(path, &names));
    weft_status status = WEFT_OK;
    c->n = names.n;
    for (int i = 0; status == WEFT_OK && i < names.n; i++) {
        take_name(c, names.list[i]);
        status = weft_path(inside, "%s/%s", path, names.list[i]);
        if (status == WEFT_OK) status = weft_path_kind(inside, &kind);
        if (status == WEFT_OK && kind != WEFT_KIND_FILE) c->foreign = true;
    }
    weft_names_free(&names);
    return status;
}

/* Whether a version before made it, which left no mark. */
static weft_status is_of_before(const char *path, const weft_contents *c, bool *out) {
    weft_config config;
    *out = c->state || c->file[WEFT_PART_OPTIMIZER];
    if (*out || !c->file[WEFT_PART_CONFIG]) return WEFT_OK;
    weft_status status = weft_model_read_config(path, &config);
    *out = status == WEFT_OK;
    return status == WEFT_EINPUT ? WEFT_OK : status;
}

weft_status weft_contents_read(const char *path, weft_contents *c, bool *own) {
    WEFT_TRY(read_names(path, c));
    *own = !c->foreign;
    return *own && c->n > 0 && !c->mark ? is_of_before(path, c, own) : WEFT_OK;
}

json_t *weft_parts_to_json(const weft_sum sums[WEFT_PARTS]) {
    json_t *files = json_object();
    for (int i = 0; i < WEFT_PARTS; i++)
        if (sums[i].bytes) json_object_set_new(files, weft_parts[i], weft_sum_to_json(&sums[i]));
    return files;
}

weft_status weft_model_may_force(const char *path) {
    weft_contents c;
    bool own;
    WEFT_TRY(weft_contents_read(path, &c, &own));
    if (own) return WEFT_OK;
    return weft_fail(WEFT_EINPUT,
                     "%s: is not a model's folder that weft made, or has other things in it; a "
                     "model's folder is replaced whole: move it away, or name another",
                     path);
}

weft_status weft_model_may_save(const char *path) {
    json_t *state;
    weft_contents c;
    bool own;
    WEFT_TRY(weft_model_may_force(path));
    WEFT_TRY(weft_contents_read(path, &c, &own));
    /* A state that cannot be read may be a run's: what it went on from is still there. */
    bool read = weft_state_read(path, &state) == WEFT_OK;
    bool run = read ? json_object_get(state, "iteration") != NULL : c.file[WEFT_PART_OPTIMIZER];
    json_decref(state);
    if (!run) return WEFT_OK;
    return weft_fail(WEFT_EINPUT,
                     "%s: is a checkpoint that a run goes on from, and would not any more; name "
                     "another folder",
                     path);
}

weft_status weft_model_may_not(const char *path) {
    weft_contents c;
    bool own;
    WEFT_TRY(weft_model_may_force(path));
    WEFT_TRY(weft_contents_read(path, &c, &own));
    for (int i = 0; i < WEFT_PARTS; i++)
        if (c.file[i])
            return weft_fail(WEFT_EINPUT, "%s/%s: is there already; --force replaces the folder",
                             path, weft_parts[i]);
    return weft_fail(WEFT_EINPUT, "%s: is there already; --force replaces it", path);
}

static weft_status write_all(const char *folder, weft_parts_writer write, void *context) {
    weft_sum sums[WEFT_PARTS] = {{0}};
    WEFT_TRY(write(context, folder, sums));
    json_t *state =
        json_pack("{s:s, s:o}", "weft", weft_version(), "files", weft_parts_to_json(sums));
    if (!state) return weft_fail(WEFT_ENOMEM, "%s: no memory for its state", folder);
    WEFT_TRY(weft_state_write(folder, state));
    weft_status status = weft_state_verify(folder);
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
