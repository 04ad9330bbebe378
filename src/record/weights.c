/* A run's checkpoints are last, best and step-N in its folder. */
#include "record/weights.h"

#include "train/checkpoint.h"

#include <string.h>

static bool is_repeated(const weft_study *s, int step) {
    if (s->steps.list[step].repeats >= 0) return true;
    for (int i = 0; i < s->steps.n; i++)
        if (s->steps.list[i].repeats == step) return true;
    return false;
}

bool weft_weights_stay(const weft_study *s, const weft_record_run *job) {
    if (s->base.study_weights == WEFT_STUDY_WEIGHTS_ALL || is_repeated(s, job->step)) return true;
    return s->base.study_weights == WEFT_STUDY_WEIGHTS_FIRST && job->seed == weft_study_seed(s, 0);
}

static weft_status remove_one(const char *folder, const char *name) {
    char path[WEFT_PATH_MAX];
    weft_checkpoint_kind kind;
    if (strcmp(name, "last") != 0 && strcmp(name, "best") != 0 && weft_checkpoint_step_of(name) < 0)
        return WEFT_OK;
    WEFT_TRY(weft_path(path, "%s/%s", folder, name));
    WEFT_TRY(weft_checkpoint_look(path, &kind));
    if (kind == WEFT_CHECKPOINT_NONE || kind == WEFT_CHECKPOINT_FOREIGN) return WEFT_OK;
    return weft_checkpoint_remove(path);
}

weft_status weft_weights_remove(const char *folder) {
    weft_names names;
    WEFT_TRY(weft_folder_list(folder, &names));
    weft_status status = WEFT_OK;
    for (int i = 0; status == WEFT_OK && i < names.n; i++)
        status = remove_one(folder, names.list[i]);
    weft_names_free(&names);
    return status;
}
