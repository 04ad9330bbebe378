/* A checkpoint is a model's folder (model/folder.h) that has all its parts. */
#include "train/checkpoint_folder.h"

#include "model/folder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What cannot be read is an error, what reads wrong is an answer. */
static weft_status is_right(weft_status status, bool *out) {
    *out = status == WEFT_OK;
    return status == WEFT_EINPUT ? WEFT_OK : status;
}

static weft_status check_files(const char *path, const json_t *state, bool whole) {
    const json_t *listed = json_object_get(state, "files");
    for (int i = 0; i < WEFT_PARTS; i++) {
        const char *name = weft_parts[i];
        if (i < WEFT_CHECKPOINT_PARTS || json_object_get(listed, name))
            WEFT_TRY(weft_state_check_file(path, state, name, whole));
    }
    return WEFT_OK;
}

weft_status weft_checkpoint_verify(const char *path) {
    json_t *state;
    WEFT_TRY(weft_state_read(path, &state));
    weft_status status = check_files(path, state, true);
    json_decref(state);
    return status;
}

static weft_status judge(const char *path, const weft_contents *c, weft_checkpoint_kind *out) {
    json_t *state;
    bool right;
    *out = WEFT_CHECKPOINT_TORN;
    if (!c->state) return WEFT_OK;
    for (int i = 0; i < WEFT_CHECKPOINT_PARTS; i++)
        if (!c->file[i]) return WEFT_OK;
    *out = WEFT_CHECKPOINT_BAD;
    WEFT_TRY(is_right(weft_state_read(path, &state), &right));
    if (!right) return WEFT_OK;
    weft_status status = is_right(check_files(path, state, false), &right);
    json_decref(state);
    if (right) *out = WEFT_CHECKPOINT_WHOLE;
    return status;
}

weft_status weft_checkpoint_look(const char *path, weft_checkpoint_kind *out) {
    weft_kind kind;
    weft_contents c;
    bool own;
    *out = WEFT_CHECKPOINT_FOREIGN;
    WEFT_TRY(weft_path_kind(path, &kind));
    if (kind == WEFT_KIND_NOTHING) *out = WEFT_CHECKPOINT_NONE;
    if (kind != WEFT_KIND_FOLDER) return WEFT_OK;
    WEFT_TRY(weft_contents_read(path, &c, &own));
    return own ? judge(path, &c, out) : WEFT_OK;
}

weft_status weft_checkpoint_need_own(const char *path, weft_checkpoint_kind *out) {
    WEFT_TRY(weft_checkpoint_look(path, out));
    if (*out != WEFT_CHECKPOINT_FOREIGN) return WEFT_OK;
    return weft_fail(WEFT_EINPUT,
                     "%s: is not a checkpoint that weft made, or has other things in it; move it "
                     "away, weft neither removes nor replaces it",
                     path);
}

int64_t weft_checkpoint_step_of(const char *name) {
    char *end;
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9') return -1;
    long long step = strtoll(name + 5, &end, 10);
    return *end || step < 0 ? -1 : (int64_t)step;
}

int64_t weft_checkpoint_iteration(const char *path) {
    json_t *state;
    if (weft_state_read(path, &state) != WEFT_OK) return -1;
    json_t *step = json_object_get(state, "iteration");
    int64_t value = json_is_integer(step) ? (int64_t)json_integer_value(step) : -1;
    json_decref(state);
    return value;
}

/* Removal asks for the mark, which versions before did not make. */
static weft_status remove_own(const char *path) {
    weft_checkpoint_kind kind;
    bool marked;
    WEFT_TRY(weft_checkpoint_need_own(path, &kind));
    if (kind == WEFT_CHECKPOINT_NONE) return WEFT_OK;
    WEFT_TRY(weft_folder_is_marked(path, &marked));
    if (!marked) WEFT_TRY(weft_folder_mark(path));
    return weft_folder_remove(path);
}

weft_status weft_checkpoint_remove(const char *path) {
    const char *slash = strrchr(path, '/');
    char gone[WEFT_PATH_MAX];
    weft_checkpoint_kind kind;
    if (weft_checkpoint_step_of(slash ? slash + 1 : path) < 0) return remove_own(path);
    WEFT_TRY(weft_checkpoint_need_own(path, &kind));
    if (kind == WEFT_CHECKPOINT_NONE) return WEFT_OK;
    WEFT_TRY(weft_path(gone, "%s.gone", path));
    WEFT_TRY(remove_own(gone));
    if (rename(path, gone) != 0) return weft_fail(WEFT_EIO, "%s: %s", path, strerror(errno));
    return remove_own(gone);
}

weft_status weft_checkpoint_note_saved(const char *run) {
    static const char text[] = "last/ was written here.\n";
    char path[WEFT_PATH_MAX];
    bool saved;
    WEFT_TRY(weft_checkpoint_was_saved(run, &saved));
    if (saved) return WEFT_OK;
    WEFT_TRY(weft_path(path, "%s/.saved", run));
    return weft_file_write(path, text, sizeof text - 1, NULL);
}

weft_status weft_checkpoint_was_saved(const char *run, bool *out) {
    char path[WEFT_PATH_MAX];
    weft_kind kind;
    *out = false;
    WEFT_TRY(weft_path(path, "%s/.saved", run));
    WEFT_TRY(weft_path_kind(path, &kind));
    *out = kind == WEFT_KIND_FILE;
    return WEFT_OK;
}

weft_status weft_checkpoint_forget_saved(const char *run) {
    char path[WEFT_PATH_MAX];
    WEFT_TRY(weft_path(path, "%s/.saved", run));
    if (unlink(path) == 0 || errno == ENOENT) return WEFT_OK;
    return weft_fail(WEFT_EIO, "%s: %s", path, strerror(errno));
}
