/* Writing, exchanging and reading checkpoints. The order of a save makes it safe: every file is
 * synced before state.json is made, which holds their checksums; the folder is synced before it
 * gets its name; and the old checkpoint is touched only after that. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* renameat2 */
#endif
#include "train/checkpoint.h"

#include "train/crc32c.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_ROOM = 4096, FORMAT = 1, STEP_DIGITS = 10 };

/* In a checkpoint beside state.json; the last only where tokens stand for text. */
static const char *const files[] = {"config.json", "model.safetensors", "optimizer.safetensors",
                                    "tokenizer.json"};
enum { FILES = sizeof files / sizeof files[0], FILES_ALWAYS = FILES - 1 };

static weft_status make_path(char *path, const char *folder, const char *name, const char *tail) {
    if (snprintf(path, PATH_ROOM, "%s/%s%s", folder, name, tail) < PATH_ROOM) return WEFT_OK;
    return weft_fail(WEFT_EINPUT, "%.200s...: the path is too long", folder);
}

static weft_status system_failed(const char *path) {
    return weft_fail(WEFT_EIO, "%s: %s", path, strerror(errno));
}

static bool exists(const char *path) {
    struct stat is;
    return stat(path, &is) == 0;
}

/* Removes a checkpoint's folder, which has no folders in it; not being there is well. */
static weft_status remove_folder(const char *path) {
    DIR *folder = opendir(path);
    if (!folder) return errno == ENOENT ? WEFT_OK : system_failed(path);
    struct dirent *entry;
    while ((entry = readdir(folder)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(dirfd(folder), entry->d_name, 0);
    closedir(folder);
    return rmdir(path) == 0 ? WEFT_OK : system_failed(path);
}

/* Some file systems cannot sync a folder: then its entries are as safe as they make them. */
static void sync_folder(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

static weft_status finish_file(FILE *file, const char *path, bool ok) {
    ok = ok && fflush(file) == 0 && fsync(fileno(file)) == 0;
    weft_status status = ok ? WEFT_OK : system_failed(path);
    if (fclose(file) != 0 && status == WEFT_OK) status = system_failed(path);
    return status;
}

static json_t *number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static weft_status write_state(const char *folder, const weft_config *c,
                               const weft_train_state *s) {
    char path[PATH_ROOM];
    json_t *sums = json_object();
    for (int i = 0; i < FILES; i++) {
        int64_t bytes;
        uint32_t crc;
        char text[16];
        weft_status status = make_path(path, folder, files[i], "");
        if (status == WEFT_OK && i >= FILES_ALWAYS && !exists(path)) continue;
        if (status == WEFT_OK) status = weft_crc32c_file(path, &bytes, &crc);
        if (status != WEFT_OK) {
            json_decref(sums);
            return status;
        }
        snprintf(text, sizeof text, "%08x", crc);
        json_object_set_new(sums, files[i],
                            json_pack("{s:I, s:s}", "bytes", (json_int_t)bytes, "crc32c", text));
    }
    json_t *state = json_pack("{s:i, s:s, s:I, s:I, s:o, s:I, s:I, s:o}", "format", FORMAT, "weft",
                              weft_version(), "iteration", (json_int_t)s->iteration, "seed",
                              (json_int_t)c->seed, "best_val_loss", number(s->best_val), "skipped",
                              (json_int_t)s->skipped, "skipped_in_a_row",
                              (json_int_t)s->skipped_row, "files", sums);
    if (!state) return weft_fail(WEFT_ENOMEM, "%s: no memory for its state", folder);
    if (s->has_choices) {
        char text[16];
        snprintf(text, sizeof text, "%08x", s->choices);
        json_object_set_new(state, "algorithms", json_string(text));
    }
    weft_status status = make_path(path, folder, "state.json", "");
    FILE *file = status == WEFT_OK ? fopen(path, "w") : NULL;
    if (status == WEFT_OK && !file) status = system_failed(path);
    if (file)
        status = finish_file(file, path,
                             json_dumpf(state, file, JSON_INDENT(2) | JSON_SORT_KEYS) == 0 &&
                                 fputc('\n', file) != EOF);
    json_decref(state);
    return status;
}

static weft_status write_all(const char *folder, const weft_checkpoint *c) {
    char path[PATH_ROOM];
    WEFT_TRY(weft_model_save(c->model, folder));
    WEFT_TRY(make_path(path, folder, "optimizer.safetensors", ""));
    WEFT_TRY(weft_optimizer_write(c->optimizer, path));
    WEFT_TRY(make_path(path, folder, "tokenizer.json", ""));
    if (c->tokenizer) WEFT_TRY(weft_tokenizer_save(c->tokenizer, path));
    WEFT_TRY(write_state(folder, &c->model->config, c->state));
    sync_folder(folder);
    return WEFT_OK;
}

/* Gives the folder `fresh` the name `name`; what had it is then at `fresh`, or nothing is. */
static weft_status take_name(const char *fresh, const char *name, const char *old) {
    if (!exists(name)) return rename(fresh, name) == 0 ? WEFT_OK : system_failed(name);
#ifdef RENAME_EXCHANGE
    if (renameat2(AT_FDCWD, fresh, AT_FDCWD, name, RENAME_EXCHANGE) == 0) return WEFT_OK;
    if (errno != EINVAL && errno != ENOSYS) return system_failed(name);
#endif
    WEFT_TRY(remove_folder(old));
    if (rename(name, old) != 0) return system_failed(name);
    if (rename(fresh, name) != 0) {
        weft_status status = system_failed(name);
        rename(old, name);
        return status;
    }
    return rename(old, fresh) == 0 ? WEFT_OK : system_failed(old);
}

static int64_t step_of(const char *name) {
    char *end;
    if (strncmp(name, "step-", 5) != 0) return -1;
    long long step = strtoll(name + 5, &end, 10);
    return end == name + 5 || *end || step < 0 ? -1 : (int64_t)step;
}

/* Removes the oldest step-N folders until `keep` are left. */
static weft_status remove_older(const char *run, int64_t keep) {
    for (;;) {
        DIR *folder = opendir(run);
        if (!folder) return system_failed(run);
        int64_t count = 0, oldest = -1;
        char name[NAME_MAX + 1] = "", path[PATH_ROOM];
        for (struct dirent *entry; (entry = readdir(folder));) {
            int64_t step = step_of(entry->d_name);
            if (step < 0) continue;
            count++;
            if (oldest >= 0 && step >= oldest) continue;
            oldest = step;
            snprintf(name, sizeof name, "%s", entry->d_name);
        }
        closedir(folder);
        if (count <= keep) return WEFT_OK;
        WEFT_TRY(make_path(path, run, name, ""));
        WEFT_TRY(remove_folder(path));
    }
}

static weft_status read_json(const char *folder, const char *name, json_t **out) {
    char path[PATH_ROOM];
    json_error_t error;
    *out = NULL;
    WEFT_TRY(make_path(path, folder, name, ""));
    FILE *file = fopen(path, "r");
    if (!file) return system_failed(path);
    *out = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
    fclose(file);
    if (!*out) return weft_fail(WEFT_EINPUT, "%s:%d: %s", path, error.line, error.text);
    return WEFT_OK;
}

/* The step a checkpoint was made at; -1: it does not say. */
static int64_t checkpoint_step(const char *folder) {
    json_t *state;
    if (read_json(folder, "state.json", &state) != WEFT_OK) return -1;
    json_t *step = json_object_get(state, "iteration");
    int64_t value = json_is_integer(step) ? (int64_t)json_integer_value(step) : -1;
    json_decref(state);
    return value;
}

/* The checkpoint that was replaced: step-N, or nothing. */
static weft_status put_aside(const char *run, const char *replaced, int64_t keep) {
    int64_t step = keep > 1 && exists(replaced) ? checkpoint_step(replaced) : -1;
    if (step < 0) {
        WEFT_TRY(remove_folder(replaced));
    } else {
        char name[32], path[PATH_ROOM];
        snprintf(name, sizeof name, "step-%0*lld", STEP_DIGITS, (long long)step);
        WEFT_TRY(make_path(path, run, name, ""));
        WEFT_TRY(remove_folder(path));
        if (rename(replaced, path) != 0) return system_failed(path);
    }
    return remove_older(run, keep - 1);
}

/* The files of one checkpoint under further names in another folder. */
static weft_status link_all(const char *from, const char *folder) {
    char path[PATH_ROOM], other[PATH_ROOM];
    WEFT_TRY(weft_model_make_folder(folder));
    DIR *entries = opendir(from);
    if (!entries) return system_failed(from);
    weft_status status = WEFT_OK;
    for (struct dirent *entry; status == WEFT_OK && (entry = readdir(entries));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        status = make_path(path, from, entry->d_name, "");
        if (status == WEFT_OK) status = make_path(other, folder, entry->d_name, "");
        if (status == WEFT_OK && link(path, other) != 0) status = system_failed(other);
    }
    closedir(entries);
    sync_folder(folder);
    return status;
}

/* The new checkpoint's files: those of RUN/FROM, which holds the same, or written. */
static weft_status make_files(const char *run, const char *from, const char *fresh,
                              const weft_checkpoint *checkpoint) {
    char other[PATH_ROOM];
    if (from) {
        WEFT_TRY(make_path(other, run, from, ""));
        if (link_all(other, fresh) == WEFT_OK) return WEFT_OK;
        WEFT_TRY(remove_folder(fresh)); /* not every file system has such names */
    }
    return write_all(fresh, checkpoint);
}

weft_status weft_checkpoint_save(const char *run, const char *name, int64_t keep,
                                 const weft_checkpoint *checkpoint, const char *from) {
    char path[PATH_ROOM], fresh[PATH_ROOM], old[PATH_ROOM];
    WEFT_TRY(make_path(path, run, name, ""));
    WEFT_TRY(make_path(fresh, run, name, ".new"));
    WEFT_TRY(make_path(old, run, name, ".old"));
    WEFT_TRY(remove_folder(fresh));
    weft_status status = make_files(run, from, fresh, checkpoint);
    if (status == WEFT_OK) status = take_name(fresh, path, old);
    if (status != WEFT_OK) {
        /* What could not be written whole only takes up room; the message stays the first one. */
        char message[1024];
        snprintf(message, sizeof message, "%s", weft_error_message());
        remove_folder(fresh);
        return weft_fail(status, "%s", message);
    }
    sync_folder(run);
    return strcmp(name, "last") == 0 ? put_aside(run, fresh, keep) : remove_folder(fresh);
}

static bool has(const char *run, const char *name, const char *tail) {
    char path[PATH_ROOM];
    return make_path(path, run, name, tail) == WEFT_OK && exists(path);
}

bool weft_checkpoint_used(const char *run) {
    return has(run, "last", "") || has(run, "last", ".old") || has(run, "best", "") ||
           has(run, "metrics.jsonl", "");
}

bool weft_checkpoint_find(const char *run, const char *name) {
    char path[PATH_ROOM], old[PATH_ROOM];
    if (has(run, name, "")) return true;
    if (!has(run, name, ".old") || make_path(path, run, name, "") != WEFT_OK ||
        make_path(old, run, name, ".old") != WEFT_OK)
        return false;
    return rename(old, path) == 0;
}

static weft_status check_files(const char *folder, const json_t *state) {
    const json_t *sums = json_object_get(state, "files");
    for (int i = 0; i < FILES; i++) {
        const json_t *entry = json_object_get(sums, files[i]);
        const char *want = json_string_value(json_object_get(entry, "crc32c"));
        const json_t *size = json_object_get(entry, "bytes");
        char path[PATH_ROOM], text[16];
        int64_t bytes;
        uint32_t crc;
        if (!entry && i >= FILES_ALWAYS) continue;
        WEFT_TRY(make_path(path, folder, files[i], ""));
        if (!want || !json_is_integer(size))
            return weft_fail(WEFT_EINPUT, "%s/state.json: no checksum of %s", folder, files[i]);
        WEFT_TRY(weft_crc32c_file(path, &bytes, &crc));
        if (bytes != json_integer_value(size))
            return weft_fail(WEFT_EINPUT,
                             "%s: %lld bytes, but %lld were written; take another checkpoint by "
                             "--from",
                             path, (long long)bytes, (long long)json_integer_value(size));
        snprintf(text, sizeof text, "%08x", crc);
        if (strcmp(text, want) != 0)
            return weft_fail(WEFT_EINPUT,
                             "%s: its checksum is %s, but %s was written; take another checkpoint "
                             "by --from",
                             path, text, want);
    }
    return WEFT_OK;
}

static weft_status check_config(const char *folder, const weft_config *c) {
    weft_config kept;
    int n;
    WEFT_TRY(weft_model_read_config(folder, &kept));
    const weft_option *options = weft_options(&n);
    for (int i = 0; i < n; i++) {
        char is[WEFT_TEXT_MAX], was[WEFT_TEXT_MAX];
        weft_config_format(c, &options[i], is, sizeof is);
        weft_config_format(&kept, &options[i], was, sizeof was);
        if (strcmp(is, was) != 0 && !options[i].free)
            return weft_fail(
                WEFT_EINPUT,
                "%s: CONFIG_%s was %s in this run and is %s now; --resume goes on with "
                "the same, --from starts a new run from its weights",
                folder, options[i].key, *was ? was : "empty", *is ? is : "empty");
    }
    return WEFT_OK;
}

weft_status weft_checkpoint_check(const char *run, const char *name, const weft_config *c) {
    char folder[PATH_ROOM];
    json_t *state;
    WEFT_TRY(make_path(folder, run, name, ""));
    WEFT_TRY(read_json(folder, "state.json", &state));
    weft_status status = check_files(folder, state);
    json_decref(state);
    return status == WEFT_OK ? check_config(folder, c) : status;
}

static weft_status read_state(const char *folder, weft_train_state *out) {
    json_t *state;
    json_int_t format = 0, iteration = 0, skipped = 0, row = 0;
    WEFT_TRY(read_json(folder, "state.json", &state));
    const json_t *best = json_object_get(state, "best_val_loss");
    const char *choices = json_string_value(json_object_get(state, "algorithms"));
    bool ok = json_unpack(state, "{s:I, s:I, s:I, s:I}", "format", &format, "iteration", &iteration,
                          "skipped", &skipped, "skipped_in_a_row", &row) == 0 &&
              format == FORMAT && iteration >= 0;
    *out = (weft_train_state){.iteration = iteration,
                              .best_val = json_is_number(best) ? json_number_value(best) : INFINITY,
                              .skipped = skipped,
                              .skipped_row = row,
                              .has_choices = choices != NULL,
                              .choices = choices ? (uint32_t)strtoul(choices, NULL, 16) : 0};
    json_decref(state);
    return ok ? WEFT_OK
              : weft_fail(WEFT_EINPUT, "%s/state.json: not a state of this version of weft",
                          folder);
}

weft_status weft_checkpoint_load(const char *run, const char *name, weft_model **m_out,
                                 const weft_config *c, weft_dtype dtype, weft_train_state *state) {
    char folder[PATH_ROOM];
    *m_out = NULL;
    WEFT_TRY(make_path(folder, run, name, ""));
    WEFT_TRY(read_state(folder, state));
    return weft_model_load_as(folder, c, dtype, m_out);
}

weft_status weft_checkpoint_load_optimizer(const char *run, const char *name, weft_optimizer *o) {
    char folder[PATH_ROOM], path[PATH_ROOM];
    WEFT_TRY(make_path(folder, run, name, ""));
    WEFT_TRY(make_path(path, folder, "optimizer.safetensors", ""));
    return weft_optimizer_read(o, path);
}
