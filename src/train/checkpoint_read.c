/* Reading checkpoints back. */
#include "model/folder.h"
#include "train/checkpoint.h"
#include "train/checkpoint_folder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Whether the checkpoint has a checksum of its dataset: then that tells another one, wherever it lies. */
static bool has_data(const char *folder) {
    json_t *state;
    if (weft_state_read(folder, &state) != WEFT_OK) return false;
    bool has = json_object_get(state, "dataset_crc32c") != NULL;
    json_decref(state);
    return has;
}

static weft_status check_config(const char *folder, const weft_config *c) {
    weft_config kept;
    int n;
    bool data = has_data(folder);
    WEFT_TRY(weft_model_read_config(folder, &kept));
    const weft_option *options = weft_options(&n);
    for (int i = 0; i < n; i++) {
        char is[WEFT_TEXT_MAX], was[WEFT_TEXT_MAX];
        weft_config_format(c, &options[i], is, sizeof is);
        weft_config_format(&kept, &options[i], was, sizeof was);
        bool summed = data && strcmp(options[i].key, "DATASET") == 0 && strchr(is, '/');
        if (strcmp(is, was) != 0 && !options[i].free && !summed)
            return weft_fail(
                WEFT_EINPUT,
                "%s: CONFIG_%s was %s in this run and is %s now; --resume goes on with "
                "the same, --from starts a new run from its weights",
                folder, options[i].key, *was ? was : "empty", *is ? is : "empty");
    }
    return WEFT_OK;
}

weft_status weft_checkpoint_check(const char *run, const char *name, const weft_config *c) {
    char folder[WEFT_PATH_MAX];
    WEFT_TRY(weft_path(folder, "%s/%s", run, name));
    weft_status status = weft_checkpoint_verify(folder);
    if (status == WEFT_EINPUT)
        return weft_fail(status, "%s, as --resume=step-N", weft_error_message());
    return status == WEFT_OK ? check_config(folder, c) : status;
}

/* As many as a training may have iterations. */
static bool is_count(json_int_t number) {
    return number >= 0 && (double)number <= WEFT_OPTION(steps)->max;
}

static weft_status read_state(const char *folder, weft_train_state *out) {
    json_t *state;
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
    json_decref(state);
    return ok ? WEFT_OK
              : weft_fail(WEFT_EINPUT, "%s/state.json: not a state of this version of weft",
                          folder);
}

weft_status weft_checkpoint_load(const char *run, const char *name, weft_model **m_out,
                                 const weft_config *c, weft_dtype dtype, weft_pool *pool,
                                 weft_train_state *state) {
    char folder[WEFT_PATH_MAX];
    *m_out = NULL;
    WEFT_TRY(weft_path(folder, "%s/%s", run, name));
    WEFT_TRY(read_state(folder, state));
    return weft_model_load_as(folder, c, dtype, pool, m_out);
}

weft_status weft_checkpoint_load_optimizer(const char *run, const char *name, weft_optimizer *o) {
    char path[WEFT_PATH_MAX];
    WEFT_TRY(weft_path(path, "%s/%s/optimizer.safetensors", run, name));
    return weft_optimizer_read(o, path);
}
