/* Writing a checkpoint that was made from another model. */
#include "cli/new_model.h"

#include "base/folders.h"
#include "model/sums.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

weft_status weft_new_model_room(const char *folder, bool force) {
    static const char *const names[] = {"config.json", "model.safetensors", "state.json",
                                        "model.config", "tokenizer.json"};
    char path[WEFT_PATH_MAX];
    WEFT_TRY(weft_folder_make(folder));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        WEFT_TRY(weft_path(path, "%s/%s", folder, names[i]));
        WEFT_TRY(weft_file_vacant(path, force));
    }
    return weft_state_remove(folder);
}

/* The options that make the model, and DTYPE, as a config that training takes. */
static weft_status write_model_config(const weft_config *c, const char *folder) {
    char path[WEFT_PATH_MAX], value[WEFT_TEXT_MAX], usual[WEFT_TEXT_MAX], *text = NULL;
    size_t bytes = 0;
    weft_config defaults;
    int count;
    const weft_option *options = weft_options(&count);
    weft_config_defaults(&defaults);
    WEFT_TRY(weft_path(path, "%s/model.config", folder));
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return weft_fail(WEFT_ENOMEM, "%s: no memory", path);
    for (int i = 0; i < count; i++) {
        const weft_option *o = &options[i];
        bool plain = o->type == WEFT_OPT_BOOL || o->type == WEFT_OPT_INT;
        if (o->owner != WEFT_OWNER_MODEL && strcmp(o->key, "DTYPE") != 0) continue;
        weft_config_format(c, o, value, sizeof value);
        weft_config_format(&defaults, o, usual, sizeof usual);
        if (strcmp(value, usual) == 0) continue;
        fprintf(out, plain ? "CONFIG_%s=%s\n" : "CONFIG_%s=\"%s\"\n", o->key, value);
    }
    if (fclose(out) != 0) {
        free(text);
        return weft_fail(WEFT_ENOMEM, "%s: no memory", path);
    }
    weft_status status = weft_file_write(path, text, bytes, NULL);
    free(text);
    return status;
}

weft_status weft_new_model_write(const char *folder, const weft_model *m, const weft_tokenizer *t) {
    char path[WEFT_PATH_MAX];
    weft_sum sum;
    WEFT_TRY(weft_model_save(m, folder));
    WEFT_TRY(write_model_config(&m->config, folder));
    WEFT_TRY(weft_path(path, "%s/tokenizer.json", folder));
    return t ? weft_tokenizer_save(t, path, &sum) : WEFT_OK;
}
