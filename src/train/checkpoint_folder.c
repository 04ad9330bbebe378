/* A checkpoint's folder as such: whose it is, whether it is whole, and its removal; and what a run's folder
 * has of them when a run starts in it. A checkpoint is a model's folder (model/folder.h) that has all its
 * parts. */
#include "base/json.h"
#include "base/log.h"
#include "model/folder.h"
#include "train/checkpoint.h"

#include <errno.h>

enum { LIST_ROOM = 400 };

/* What cannot be read is an error, what reads wrong is an answer. */
static weft_status is_right(weft_status status, bool *out) {
    *out = status == WEFT_OK;
    return status == WEFT_EINPUT ? WEFT_OK : status;
}

weft_status weft_checkpoint_look(const char *path, weft_checkpoint_kind *out) {
    WEFT_AUTO_DECREF json_t *state = NULL;
    weft_kind kind;
    weft_contents c;
    bool own, right;
    *out = WEFT_CHECKPOINT_FOREIGN;
    WEFT_TRY(weft_path_kind(path, &kind));
    if (kind == WEFT_KIND_NOTHING) *out = WEFT_CHECKPOINT_NONE;
    if (kind != WEFT_KIND_FOLDER) return WEFT_OK;
    WEFT_TRY(weft_contents_read(path, &c, &own));
    if (!own) return WEFT_OK;
    *out = WEFT_CHECKPOINT_TORN;
    for (int i = 0; i < WEFT_CHECKPOINT_PARTS; i++)
        if (!c.state || !c.file[i]) return WEFT_OK;
    *out = WEFT_CHECKPOINT_BAD;
    WEFT_TRY(is_right(weft_state_read(path, &state), &right));
    if (!right) return WEFT_OK;
    WEFT_TRY(is_right(weft_state_check(path, state, WEFT_CHECKPOINT_PARTS, false), &right));
    if (right) *out = WEFT_CHECKPOINT_WHOLE;
    return WEFT_OK;
}

weft_status weft_checkpoint_need_own(const char *path, weft_checkpoint_kind *out) {
    WEFT_TRY(weft_checkpoint_look(path, out));
    if (*out != WEFT_CHECKPOINT_FOREIGN) return WEFT_OK;
    return WEFT_BAD_INPUT(
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
    WEFT_AUTO_DECREF json_t *state = NULL;
    if (weft_state_read(path, &state) != WEFT_OK) return -1;
    json_t *step = json_object_get(state, "iteration");
    return json_is_integer(step) ? (int64_t)json_integer_value(step) : -1;
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
    weft_checkpoint_kind kind;
    if (weft_checkpoint_step_of(slash ? slash + 1 : path) < 0) return remove_own(path);
    WEFT_TRY(weft_checkpoint_need_own(path, &kind));
    if (kind == WEFT_CHECKPOINT_NONE) return WEFT_OK;
    WEFT_PATH(gone, "%s.gone", path);
    WEFT_TRY(remove_own(gone));
    if (rename(path, gone) != 0) return weft_fail(WEFT_EIO, "%s: %s", path, strerror(errno));
    return remove_own(gone);
}

static weft_status was_saved(const char *run, bool *out) {
    weft_kind kind;
    *out = false;
    WEFT_PATH(path, "%s/.saved", run);
    WEFT_TRY(weft_path_kind(path, &kind));
    *out = kind == WEFT_KIND_FILE;
    return WEFT_OK;
}

weft_status weft_checkpoint_note_saved(const char *run) {
    static const char text[] = "last/ was written here.\n";
    bool saved;
    WEFT_TRY(was_saved(run, &saved));
    if (saved) return WEFT_OK;
    WEFT_PATH(path, "%s/.saved", run);
    return weft_file_write(path, text, sizeof text - 1, NULL);
}

typedef struct {
    bool last, last_old, best, lines;
    bool begun;        /* metrics.jsonl is there, if only empty: all the other names are weft's */
    const char *other; /* a file with a name that a run writes over */
    int steps;         /* step-N that are whole */
    char list[LIST_ROOM];
} findings;

static void add_to_list(findings *f, const char *name) {
    size_t at = strlen(f->list);
    snprintf(f->list + at, sizeof f->list - at, "%s%s", at ? ", " : "", name);
}

static bool is_name(const char *name, const char *const *list) {
    for (; *list; list++)
        if (strcmp(name, *list) == 0) return true;
    return false;
}

static weft_status find_one(const char *run, const char *name, findings *f) {
    static const char *const lines[] = {"metrics.jsonl", "samples.jsonl", NULL};
    static const char *const files[] = {"config", "result.json", "attention.json", NULL};
    weft_checkpoint_kind kind = WEFT_CHECKPOINT_NONE;
    WEFT_PATH(path, "%s/%s", run, name);
    bool last = strcmp(name, "last") == 0, best = strcmp(name, "best") == 0;
    bool step = weft_checkpoint_step_of(name) >= 0;
    if (is_name(name, lines)) {
        int64_t bytes = 0;
        WEFT_TRY(weft_file_size(path, &bytes));
        if (bytes > 0) add_to_list(f, name);
        f->lines = f->lines || bytes > 0;
        f->begun = f->begun || strcmp(name, lines[0]) == 0;
        return WEFT_OK;
    }
    for (int i = 0; files[i]; i++)
        if (strcmp(name, files[i]) == 0) f->other = files[i];
    if (strcmp(name, "last.old") == 0) f->last_old = true;
    if (!last && !best && !step) return WEFT_OK;
    WEFT_TRY(weft_checkpoint_look(path, &kind));
    f->last = f->last || last;
    f->best = f->best || best;
    f->steps += step && kind == WEFT_CHECKPOINT_WHOLE;
    if (!step || kind == WEFT_CHECKPOINT_WHOLE) add_to_list(f, name);
    return WEFT_OK;
}

static weft_status find_all(const char *run, findings *f) {
    WEFT_AUTO(weft_names_free) weft_names names = {0};
    *f = (findings){0};
    WEFT_TRY(weft_folder_list(run, &names));
    for (int i = 0; i < names.n; i++)
        WEFT_TRY(find_one(run, names.list[i], f));
    return WEFT_OK;
}

weft_status weft_checkpoint_unused(const char *run) {
    findings f;
    WEFT_TRY(find_all(run, &f));
    bool run_there = f.last || f.last_old || f.best || f.steps || f.lines;
    if (!run_there && f.other && !f.begun)
        return WEFT_BAD_INPUT(
            "%s/%s is no run's, and a run would write over it; move it away, or take "
            "another --out",
            run, f.other);
    if (!run_there) return WEFT_OK;
    return WEFT_BAD_INPUT("%s has a run in it already (%s); --resume continues it, another --out "
                          "starts anew",
                          run, *f.list ? f.list : "last.old");
}

/* What only a kill leaves, and a name that a run takes: weft's, or in the way. */
static weft_status clean_one(const char *run, const char *name) {
    static const char *const left[] = {"last.new", "best.new", NULL};
    static const char *const taken[] = {"last", "best", "last.old", "best.old", NULL};
    weft_checkpoint_kind kind;
    int64_t step = weft_checkpoint_step_of(name);
    const char *tail = strrchr(name, '.');
    bool gone = tail && strcmp(tail, ".gone") == 0 && strncmp(name, "step-", 5) == 0;
    if (step < 0 && !gone && !is_name(name, left) && !is_name(name, taken)) return WEFT_OK;
    WEFT_PATH(path, "%s/%s", run, name);
    if (gone || is_name(name, left)) return weft_checkpoint_remove(path);
    WEFT_TRY(weft_checkpoint_need_own(path, &kind));
    if (step < 0 || kind != WEFT_CHECKPOINT_TORN) return WEFT_OK;
    weft_log(WEFT_LOG_WARN, "%s: was being removed when the run was cut off; removed", path);
    return weft_checkpoint_remove(path);
}

/* NAME.old is what NAME was, if a kill came between two renames; else a remainder. */
static weft_status put_back(const char *run, const char *name) {
    weft_checkpoint_kind now, before;
    WEFT_PATH(path, "%s/%s", run, name);
    WEFT_PATH(old, "%s/%s.old", run, name);
    WEFT_TRY(weft_checkpoint_need_own(old, &before));
    if (before == WEFT_CHECKPOINT_NONE) return WEFT_OK;
    WEFT_TRY(weft_checkpoint_need_own(path, &now));
    if (now != WEFT_CHECKPOINT_NONE) return weft_checkpoint_remove(old);
    if (rename(old, path) != 0) return weft_fail(WEFT_EIO, "%s: %s", old, strerror(errno));
    return weft_folder_sync(run);
}

static weft_status choose_named(const char *run, const char *asked,
                                char name[WEFT_CHECKPOINT_NAME]) {
    weft_checkpoint_kind kind;
    bool known = strcmp(asked, "last") == 0 || strcmp(asked, "best") == 0 ||
                 weft_checkpoint_step_of(asked) >= 0;
    if (!known || strlen(asked) >= WEFT_CHECKPOINT_NAME)
        return WEFT_BAD_INPUT("--resume=%s: the checkpoints of a run are last, best and step-N",
                              asked);
    WEFT_PATH(path, "%s/%s", run, asked);
    WEFT_TRY(weft_checkpoint_need_own(path, &kind));
    if (kind == WEFT_CHECKPOINT_NONE)
        return WEFT_BAD_INPUT("%s: there is no such checkpoint", path);
    snprintf(name, WEFT_CHECKPOINT_NAME, "%s", asked);
    return WEFT_OK;
}

/* There is no last. It was lost, or a kill came before the first one; then there may be a best,
 * which is written just before it, and is as good to go on from. */
static weft_status choose_without_last(const char *run, const findings *f,
                                       char name[WEFT_CHECKPOINT_NAME]) {
    bool saved;
    WEFT_TRY(was_saved(run, &saved));
    if (!f->best && f->steps == 0 && *f->list && saved)
        return WEFT_BAD_INPUT("%s: last/ is gone, and so is every other checkpoint; there is %s; "
                              "another --out starts anew",
                              run, f->list);
    if (f->steps > 0 || (*f->list && saved))
        return WEFT_BAD_INPUT(
            "%s: last/ is gone; there is %s: --resume=NAME goes on from a checkpoint "
            "by name, another --out starts anew",
            run, f->list);
    if (f->best) {
        snprintf(name, WEFT_CHECKPOINT_NAME, "best");
    } else if (saved) {
        WEFT_PATH(path, "%s/.saved", run);
        if (unlink(path) != 0 && errno != ENOENT)
            return weft_fail(WEFT_EIO, "%s: %s", path, strerror(errno));
    }
    return WEFT_OK;
}

weft_status weft_checkpoint_choose(const char *run, const char *asked,
                                   char name[WEFT_CHECKPOINT_NAME]) {
    findings f;
    WEFT_AUTO(weft_names_free) weft_names names = {0};
    *name = '\0';
    WEFT_TRY(put_back(run, "last"));
    WEFT_TRY(put_back(run, "best"));
    WEFT_TRY(weft_folder_list(run, &names));
    for (int i = 0; i < names.n; i++)
        WEFT_TRY(clean_one(run, names.list[i]));
    if (asked) return choose_named(run, asked, name);
    WEFT_TRY(find_all(run, &f));
    if (!f.last) return choose_without_last(run, &f, name);
    snprintf(name, WEFT_CHECKPOINT_NAME, "last");
    return weft_checkpoint_note_saved(run); /* a kill may have come before it was noted */
}
