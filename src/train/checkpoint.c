/* Checkpoints: whose a folder is, whether it is whole, and its removal; what a run's folder has of them when a run starts
 * in it; writing, exchanging and reading them back. A checkpoint is a model's folder (model/folder.h) that has all
 * its parts. The old one is touched only after the new one is synced, with state.json behind the files that it has
 * checksums of, and read back. */
#include "train/checkpoint.h"

#include "base/json.h"
#include "base/log.h"
#include "model/folder.h"

#include <errno.h>
#include <math.h>

enum { STEP_DIGITS = 10, LIST_ROOM = 400 };

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

/* An error where it is foreign. */
static weft_status need_own(const char *path, weft_checkpoint_kind *out) {
    WEFT_TRY(weft_checkpoint_look(path, out));
    if (*out != WEFT_CHECKPOINT_FOREIGN) return WEFT_OK;
    return WEFT_BAD_INPUT("%s: is not a checkpoint that weft made, or has other things in it; move "
                          "it away, weft neither removes nor replaces it",
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
    WEFT_TRY(need_own(path, &kind));
    if (kind == WEFT_CHECKPOINT_NONE) return WEFT_OK;
    WEFT_TRY(weft_folder_is_marked(path, &marked));
    if (!marked) WEFT_TRY(weft_folder_mark(path));
    return weft_folder_remove(path);
}

weft_status weft_checkpoint_remove(const char *path) {
    const char *slash = strrchr(path, '/');
    weft_checkpoint_kind kind;
    if (weft_checkpoint_step_of(slash ? slash + 1 : path) < 0) return remove_own(path);
    WEFT_TRY(need_own(path, &kind));
    if (kind == WEFT_CHECKPOINT_NONE) return WEFT_OK;
    WEFT_PATH(gone, "%s.gone", path);
    WEFT_TRY(remove_own(gone));
    return rename(path, gone) != 0 ? weft_path_failed(path) : remove_own(gone);
}

static weft_status was_saved(const char *run, bool *out) {
    weft_kind kind;
    *out = false;
    WEFT_PATH(path, "%s/.saved", run);
    WEFT_TRY(weft_path_kind(path, &kind));
    *out = kind == WEFT_KIND_FILE;
    return WEFT_OK;
}

/* RUN/.saved says that RUN/last was written once, so that one that is missing was lost. */
static weft_status note_saved(const char *run) {
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
    f->last |= last;
    f->best |= best;
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
            "%s/%s is no run's, and a run would write over it; move it away, or take another --out",
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
    WEFT_TRY(need_own(path, &kind));
    if (step < 0 || kind != WEFT_CHECKPOINT_TORN) return WEFT_OK;
    weft_log(WEFT_LOG_WARN, "%s: was being removed when the run was cut off; removed", path);
    return weft_checkpoint_remove(path);
}

/* NAME.old is what NAME was, if a kill came between two renames; else a remainder. */
static weft_status put_back(const char *run, const char *name) {
    weft_checkpoint_kind now, before;
    WEFT_PATH(path, "%s/%s", run, name);
    WEFT_PATH(old, "%s/%s.old", run, name);
    WEFT_TRY(need_own(old, &before));
    if (before == WEFT_CHECKPOINT_NONE) return WEFT_OK;
    WEFT_TRY(need_own(path, &now));
    if (now != WEFT_CHECKPOINT_NONE) return weft_checkpoint_remove(old);
    if (rename(old, path) != 0) return weft_path_failed(old);
    return weft_folder_sync(run);
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
    if (asked) {
        weft_checkpoint_kind kind;
        bool known = strcmp(asked, "last") == 0 || strcmp(asked, "best") == 0 ||
                     weft_checkpoint_step_of(asked) >= 0;
        if (!known || strlen(asked) >= WEFT_CHECKPOINT_NAME)
            return WEFT_BAD_INPUT("--resume=%s: the checkpoints of a run are last, best and step-N",
                                  asked);
        WEFT_PATH(path, "%s/%s", run, asked);
        WEFT_TRY(need_own(path, &kind));
        if (kind == WEFT_CHECKPOINT_NONE)
            return WEFT_BAD_INPUT("%s: there is no such checkpoint", path);
        snprintf(name, WEFT_CHECKPOINT_NAME, "%s", asked);
        return WEFT_OK;
    }
    WEFT_TRY(find_all(run, &f));
    /* There is no last. It was lost, or a kill came before the first one; then there may be a
     * best, which is written just before it, and is as good to go on from. */
    if (!f.last) {
        bool saved;
        WEFT_TRY(was_saved(run, &saved));
        if (!f.best && f.steps == 0 && *f.list && saved)
            return WEFT_BAD_INPUT(
                "%s: last/ is gone, and so is every other checkpoint; there is %s; another --out "
                "starts anew",
                run, f.list);
        if (f.steps > 0 || (*f.list && saved))
            return WEFT_BAD_INPUT("%s: last/ is gone; there is %s: --resume=NAME goes on from a "
                                  "checkpoint by name, another --out starts anew",
                                  run, f.list);
        if (f.best) {
            snprintf(name, WEFT_CHECKPOINT_NAME, "best");
        } else if (saved) {
            WEFT_PATH(path, "%s/.saved", run);
            if (unlink(path) != 0 && errno != ENOENT) return weft_path_failed(path);
        }
        return WEFT_OK;
    }
    snprintf(name, WEFT_CHECKPOINT_NAME, "last");
    return note_saved(run); /* a kill may have come before it was noted */
}

static weft_status write_all(const char *folder, const weft_checkpoint *c) {
    weft_sum sums[WEFT_PARTS] = {{0}};
    WEFT_TRY(weft_model_save_summed(c->model, folder, sums));
    WEFT_PATH(path, "%s/%s", folder, weft_parts[WEFT_PART_OPTIMIZER]);
    WEFT_TRY(weft_optimizer_write(c->optimizer, path, &sums[WEFT_PART_OPTIMIZER]));
    WEFT_TRY(weft_path(path, "%s/%s", folder, weft_parts[WEFT_PART_TOKENIZER]));
    if (c->tokenizer) WEFT_TRY(weft_tokenizer_save(c->tokenizer, path, &sums[WEFT_PART_TOKENIZER]));
    const weft_train_state *s = c->state;
    json_t *state =
        weft_json_make("weft:s iteration:I seed:I best_val_loss:f skipped:I "
                       "skipped_in_a_row:I logged_every:I files:o",
                       weft_version(), s->iteration, c->model->config.seed, s->best_val, s->skipped,
                       s->skipped_row, s->logged_every, weft_parts_to_json(sums));
    if (!state) return weft_fail(WEFT_ENOMEM, "%s: no memory for its state", folder);
    if (s->choices >= 0)
        json_object_set_new(state, "algorithms", json_sprintf("%08x", (uint32_t)s->choices));
    if (s->data >= 0)
        json_object_set_new(state, "dataset_crc32c", json_sprintf("%08x", (uint32_t)s->data));
    return weft_state_write(folder, state);
}

/* The new checkpoint's files: those of RUN/FROM by a further name, which are the same, or written. */
static weft_status write_new(const char *run, const char *from, const char *fresh,
                             const weft_checkpoint *checkpoint) {
    bool linked = from;
    WEFT_TRY(weft_folder_make_marked(fresh));
    for (int i = 0; linked && i <= WEFT_PARTS; i++) {
        const char *name = i < WEFT_PARTS ? weft_parts[i] : "state.json";
        bool may_miss = i >= WEFT_CHECKPOINT_PARTS && i < WEFT_PARTS;
        WEFT_PATH(path, "%s/%s/%s", run, from, name);
        WEFT_PATH(other, "%s/%s", fresh, name);
        linked = link(path, other) == 0 || (may_miss && errno == ENOENT);
    }
    if (from && !linked) { /* not every file system has such names */
        WEFT_TRY(weft_checkpoint_remove(fresh));
        WEFT_TRY(weft_folder_make_marked(fresh));
    }
    if (!linked) WEFT_TRY(write_all(fresh, checkpoint));
    WEFT_TRY(weft_folder_sync(fresh));
    if (weft_state_verify(fresh, WEFT_CHECKPOINT_PARTS) == WEFT_OK) return WEFT_OK;
    /* Whatever it says of the input's fault: it was written just now. */
    return weft_fail(WEFT_EIO, "a checkpoint that was just written reads otherwise: %s",
                     weft_error_message());
}

/* Gives the folder `fresh` the name `name`; what had it is then at `fresh`, or nothing is. */
static weft_status take_name(const char *fresh, const char *name, const char *old) {
    weft_checkpoint_kind kind;
    WEFT_TRY(need_own(name, &kind));
    if (kind == WEFT_CHECKPOINT_NONE)
        return rename(fresh, name) == 0 ? WEFT_OK : weft_path_failed(name);
    WEFT_TRY(weft_checkpoint_remove(old));
    return weft_folder_exchange(fresh, name, old);
}

/* Removes the oldest step-N folders until `keep` are left. What weft did not make does not count. */
static weft_status remove_older(const char *run, int64_t keep) {
    char path[WEFT_PATH_MAX], oldest_path[WEFT_PATH_MAX] = "";
    int64_t count = 0, oldest = -1;
    weft_checkpoint_kind kind;
    WEFT_AUTO(weft_names_free) weft_names names = {0};
    WEFT_TRY(weft_folder_list(run, &names));
    for (int i = 0; i < names.n; i++) {
        int64_t step = weft_checkpoint_step_of(names.list[i]);
        if (step < 0) continue;
        WEFT_TRY(weft_path(path, "%s/%s", run, names.list[i]));
        WEFT_TRY(weft_checkpoint_look(path, &kind));
        if (kind == WEFT_CHECKPOINT_FOREIGN) continue;
        count++;
        if (oldest >= 0 && step >= oldest) continue;
        oldest = step;
        memcpy(oldest_path, path, sizeof oldest_path);
    }
    if (count <= keep) return WEFT_OK;
    WEFT_TRY(weft_checkpoint_remove(oldest_path));
    return count - 1 > keep ? remove_older(run, keep) : WEFT_OK;
}

weft_status weft_checkpoint_save(const char *run, const char *name, int64_t keep,
                                 const weft_checkpoint *checkpoint, const char *from) {
    WEFT_PATH(path, "%s/%s", run, name);
    WEFT_PATH(fresh, "%s/%s.new", run, name);
    WEFT_PATH(old, "%s/%s.old", run, name);
    WEFT_TRY(weft_checkpoint_remove(fresh));
    weft_status status = write_new(run, from, fresh, checkpoint);
    if (status == WEFT_OK) status = take_name(fresh, path, old);
    if (status != WEFT_OK) {
        /* What could not be written whole only takes up room; the message stays the first one. */
        char message[1024];
        snprintf(message, sizeof message, "%s", weft_error_message());
        weft_checkpoint_remove(fresh);
        return weft_fail(status, "%s", message);
    }
    /* The new one has its name: nothing that goes wrong from here on undoes it. */
    WEFT_TRY(weft_folder_sync(run));
    if (strcmp(name, "last") != 0) return weft_checkpoint_remove(fresh);
    WEFT_TRY(note_saved(run));
    /* The checkpoint that was replaced: step-N, or nothing. One that is not whole is not kept. */
    weft_checkpoint_kind kind;
    WEFT_TRY(weft_checkpoint_look(fresh, &kind));
    int64_t step =
        keep > 1 && kind == WEFT_CHECKPOINT_WHOLE ? weft_checkpoint_iteration(fresh) : -1;
    if (step < 0) {
        WEFT_TRY(weft_checkpoint_remove(fresh));
    } else {
        WEFT_PATH(aside, "%s/step-%0*lld", run, STEP_DIGITS, (long long)step);
        WEFT_TRY(weft_checkpoint_remove(aside));
        if (rename(fresh, aside) != 0) return weft_path_failed(aside);
    }
    return remove_older(run, keep - 1);
}

weft_status weft_checkpoint_check(const char *run, const char *name, const weft_config *c) {
    weft_config kept;
    WEFT_AUTO_DECREF json_t *state = NULL;
    WEFT_PATH(folder, "%s/%s", run, name);
    weft_status status = weft_state_verify(folder, WEFT_CHECKPOINT_PARTS);
    if (status == WEFT_EINPUT)
        return weft_fail(status, "%s, as --resume=step-N", weft_error_message());
    WEFT_TRY(status);
    WEFT_TRY(weft_state_read(folder, &state));
    /* Where there is a checksum of the dataset, that tells another one, wherever it lies. */
    bool data = json_object_get(state, "dataset_crc32c") != NULL;
    WEFT_TRY(weft_model_read_config(folder, &kept));
    for (const weft_option *o = weft_options(NULL); o->key; o++) {
        char is[WEFT_TEXT_MAX], was[WEFT_TEXT_MAX];
        weft_config_format(c, o, is, sizeof is);
        weft_config_format(&kept, o, was, sizeof was);
        bool summed = data && strcmp(o->key, "DATASET") == 0 && strchr(is, '/');
        if (strcmp(is, was) != 0 && !o->free && !summed)
            return WEFT_BAD_INPUT(
                "%s: CONFIG_%s was %s in this run and is %s now; --resume continues "
                "with the same, --from starts a new run from its weights",
                folder, o->key, *was ? was : "empty", *is ? is : "empty");
    }
    return WEFT_OK;
}

/* As many as a training may have iterations. */
static bool is_count(json_int_t number) {
    return number >= 0 && (double)number <= WEFT_OPTION(steps)->max;
}

weft_status weft_checkpoint_load(const char *run, const char *name, weft_model **m_out,
                                 const weft_config *c, weft_dtype dtype, weft_pool *pool,
                                 weft_train_state *state) {
    *m_out = NULL;
    WEFT_PATH(folder, "%s/%s", run, name);
    WEFT_AUTO_DECREF json_t *kept = NULL;
    json_int_t iteration = 0, skipped = 0, row = 0;
    WEFT_TRY(weft_state_read(folder, &kept));
    const json_t *best = json_object_get(kept, "best_val_loss");
    const char *choices = json_string_value(json_object_get(kept, "algorithms"));
    const char *data = json_string_value(json_object_get(kept, "dataset_crc32c"));
    json_int_t logged = json_integer_value(json_object_get(kept, "logged_every"));
    bool ok = json_unpack(kept, "{s:I, s:I, s:I}", "iteration", &iteration, "skipped", &skipped,
                          "skipped_in_a_row", &row) == 0 &&
              is_count(iteration) && is_count(skipped) && is_count(row) && is_count(logged);
    *state =
        (weft_train_state){.iteration = iteration,
                           .best_val = json_is_number(best) ? json_number_value(best) : INFINITY,
                           .skipped = skipped,
                           .skipped_row = row,
                           .logged_every = logged,
                           .data = data ? (int64_t)(uint32_t)strtoul(data, NULL, 16) : -1,
                           .choices = choices ? (int64_t)(uint32_t)strtoul(choices, NULL, 16) : -1};
    if (!ok) return WEFT_BAD_INPUT("%s/state.json: not a state of this version of weft", folder);
    return weft_model_load_as(folder, c, dtype, pool, m_out);
}
