/* Whose a folder is, is told by what is in it. */
#include "train/checkpoint_folder.h"

#include "base/beside.h"
#include "model/model.h"
#include "model/sums.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const weft_checkpoint_files[WEFT_CHECKPOINT_FILES] = {
    "config.json", "model.safetensors", "optimizer.safetensors", "tokenizer.json"};

/* What a folder's names say. */
typedef struct {
    bool mark, state, file[WEFT_CHECKPOINT_FILES];
    bool foreign;
    int n;
} contents;

/* Whether a name is `own`, or that of the file beside which becomes it: own.12-3.tmp, and in versions
 * before own.new, own.part. */
static bool is_of(const char *name, const char *own, bool *beside) {
    size_t n = strlen(own);
    if (strncmp(name, own, n) != 0) return false;
    *beside = name[n] != '\0';
    return !*beside || strcmp(name + n, ".new") == 0 || strcmp(name + n, ".part") == 0 ||
           weft_is_beside(name, own);
}

static void take_name(contents *c, const char *name) {
    bool beside;
    if (strcmp(name, WEFT_FOLDER_MARK) == 0) {
        c->mark = true;
    } else if (is_of(name, "state.json", &beside)) {
        c->state = c->state || !beside;
    } else {
        for (int i = 0; i < WEFT_CHECKPOINT_FILES; i++) {
            if (!is_of(name, weft_checkpoint_files[i], &beside)) continue;
            c->file[i] = c->file[i] || !beside;
            return;
        }
        c->foreign = true;
    }
}

static weft_status read_contents(const char *path, contents *c) {
    char inside[WEFT_PATH_MAX];
    weft_names names;
    weft_kind kind;
    *c = (contents){0};
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

/* What cannot be read is an error, what reads wrong is an answer. */
static weft_status is_right(weft_status status, bool *out) {
    *out = status == WEFT_OK;
    return status == WEFT_EINPUT ? WEFT_OK : status;
}

/* Whether a version before made it, which left no mark. */
static weft_status is_of_before(const char *path, const contents *c, bool *out) {
    weft_config config;
    *out = c->state || c->file[2];
    if (*out || !c->file[0]) return WEFT_OK;
    return is_right(weft_model_read_config(path, &config), out);
}

static weft_status check_files(const char *path, const json_t *state, bool whole) {
    const json_t *listed = json_object_get(state, "files");
    for (int i = 0; i < WEFT_CHECKPOINT_FILES; i++) {
        const char *name = weft_checkpoint_files[i];
        if (i < WEFT_CHECKPOINT_FILES_ALWAYS || json_object_get(listed, name))
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

static weft_status judge(const char *path, const contents *c, weft_checkpoint_kind *out) {
    json_t *state;
    bool right;
    *out = WEFT_CHECKPOINT_TORN;
    if (!c->state) return WEFT_OK;
    for (int i = 0; i < WEFT_CHECKPOINT_FILES_ALWAYS; i++)
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
    contents c;
    bool own = true;
    *out = WEFT_CHECKPOINT_FOREIGN;
    WEFT_TRY(weft_path_kind(path, &kind));
    if (kind == WEFT_KIND_NOTHING) *out = WEFT_CHECKPOINT_NONE;
    if (kind != WEFT_KIND_FOLDER) return WEFT_OK;
    WEFT_TRY(read_contents(path, &c));
    if (c.foreign) return WEFT_OK;
    if (c.n > 0 && !c.mark) WEFT_TRY(is_of_before(path, &c, &own));
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
