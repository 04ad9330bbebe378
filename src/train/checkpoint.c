/* Writing, exchanging and reading back checkpoints. The old one is touched only after the new one is synced, with
 * state.json behind the files that it has checksums of, and read back. */
#include "train/checkpoint.h"

#include "base/json.h"
#include "model/folder.h"

#include <errno.h>
#include <math.h>

enum { STEP_DIGITS = 10 };

static weft_status system_failed(const char *path) {
    return weft_fail(WEFT_EIO, "%s: %s", path, strerror(errno));
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
    if (s->has_choices) json_object_set_new(state, "algorithms", json_sprintf("%08x", s->choices));
    if (s->has_data) json_object_set_new(state, "dataset_crc32c", json_sprintf("%08x", s->data));
    return weft_state_write(folder, state);
}

/* The files of RUN/FROM under further names in another folder. */
static weft_status link_all(const char *from, const char *folder) {
    char path[WEFT_PATH_MAX], other[WEFT_PATH_MAX];
    for (int i = 0; i <= WEFT_PARTS; i++) {
        const char *name = i < WEFT_PARTS ? weft_parts[i] : "state.json";
        bool may_miss = i >= WEFT_CHECKPOINT_PARTS && i < WEFT_PARTS;
        WEFT_TRY(weft_path(path, "%s/%s", from, name));
        WEFT_TRY(weft_path(other, "%s/%s", folder, name));
        if (link(path, other) != 0 && !(may_miss && errno == ENOENT)) return system_failed(other);
    }
    return WEFT_OK;
}

/* The new checkpoint's files: those of RUN/FROM, which holds the same, or written. */
static weft_status write_new(const char *run, const char *from, const char *fresh,
                             const weft_checkpoint *checkpoint) {
    char other[WEFT_PATH_MAX];
    WEFT_TRY(weft_folder_make_marked(fresh));
    if (from) WEFT_TRY(weft_path(other, "%s/%s", run, from));
    bool linked = from && link_all(other, fresh) == WEFT_OK;
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
    WEFT_TRY(weft_checkpoint_need_own(name, &kind));
    if (kind == WEFT_CHECKPOINT_NONE)
        return rename(fresh, name) == 0 ? WEFT_OK : system_failed(name);
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

/* The checkpoint that was replaced: step-N, or nothing. One that is not whole is not kept. */
static weft_status put_aside(const char *run, const char *replaced, int64_t keep) {
    weft_checkpoint_kind kind;
    WEFT_TRY(weft_checkpoint_look(replaced, &kind));
    int64_t step =
        keep > 1 && kind == WEFT_CHECKPOINT_WHOLE ? weft_checkpoint_iteration(replaced) : -1;
    if (step < 0) {
        WEFT_TRY(weft_checkpoint_remove(replaced));
    } else {
        WEFT_PATH(path, "%s/step-%0*lld", run, STEP_DIGITS, (long long)step);
        WEFT_TRY(weft_checkpoint_remove(path));
        if (rename(replaced, path) != 0) return system_failed(path);
    }
    return remove_older(run, keep - 1);
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
    WEFT_TRY(weft_checkpoint_note_saved(run));
    return put_aside(run, fresh, keep);
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

static weft_status read_state(const char *folder, weft_train_state *out) {
    WEFT_AUTO_DECREF json_t *state = NULL;
    json_int_t iteration = 0, skipped = 0, row = 0;
    WEFT_TRY(weft_state_read(folder, &state));
    const json_t *best = json_object_get(state, "best_val_loss");
    const char *choices = json_string_value(json_object_get(state, "algorithms"));
    const char *data = json_string_value(json_object_get(state, "dataset_crc32c"));
    json_int_t logged = json_integer_value(json_object_get(state, "logged_every"));
    bool ok = json_unpack(state, "{s:I, s:I, s:I}", "iteration", &iteration, "skipped", &skipped,
                          "skipped_in_a_row", &row) == 0 &&
              is_count(iteration) && is_count(skipped) && is_count(row) && is_count(logged);
    *out = (weft_train_state){.iteration = iteration,
                              .best_val = json_is_number(best) ? json_number_value(best) : INFINITY,
                              .skipped = skipped,
                              .skipped_row = row,
                              .logged_every = logged,
                              .has_data = data != NULL,
                              .data = data ? (uint32_t)strtoul(data, NULL, 16) : 0,
                              .has_choices = choices != NULL,
                              .choices = choices ? (uint32_t)strtoul(choices, NULL, 16) : 0};
    if (ok) return WEFT_OK;
    return WEFT_BAD_INPUT("%s/state.json: not a state of this version of weft", folder);
}

weft_status weft_checkpoint_load(const char *run, const char *name, weft_model **m_out,
                                 const weft_config *c, weft_dtype dtype, weft_pool *pool,
                                 weft_train_state *state) {
    *m_out = NULL;
    WEFT_PATH(folder, "%s/%s", run, name);
    WEFT_TRY(read_state(folder, state));
    return weft_model_load_as(folder, c, dtype, pool, m_out);
}

weft_status weft_checkpoint_load_optimizer(const char *run, const char *name, weft_optimizer *o) {
    WEFT_PATH(path, "%s/%s/optimizer.safetensors", run, name);
    return weft_optimizer_read(o, path);
}
