/* Opening a checkpoint for generation. */
#include "cli/loaded.h"

#include "generate/weights.h"
#include "model/account.h"
#include "model/kinds.h"

#include <stdio.h>

int weft_args_no_config(const weft_args *a) {
    if (!a->config && !a->variant) return WEFT_EXIT_DONE;
    fprintf(stderr,
            "weft %s: %s does not go with --model, which has a config of its own; -o KEY=VALUE "
            "overrides a key\n",
            a->command, a->config ? "--config" : "--variant");
    return WEFT_EXIT_USAGE;
}

weft_status weft_loaded_open(const weft_args *a, const char *path, bool unchecked,
                             weft_loaded_for purpose, weft_loaded *out) {
    *out = (weft_loaded){0};
    weft_config *c = &out->config;
    WEFT_TRY(weft_generation_folder(path, out->folder));
    if (!unchecked) WEFT_TRY(weft_args_check_model(out->folder));
    WEFT_TRY(weft_model_read_config(out->folder, c));
    for (int i = 0; i < a->n_settings; i++)
        WEFT_TRY(weft_config_override(c, a->settings[i].text, a->settings[i].where));
    WEFT_TRY(weft_model_check(c, out->folder));
    if (purpose != WEFT_LOADED_MODEL) {
        WEFT_TRY(weft_generation_tokenizer(out->folder, c, &out->tokenizer));
        WEFT_TRY(weft_encoder_open(out->tokenizer, &out->encoder));
    }
    WEFT_TRY(weft_args_backend(a, c, &out->backend, &out->pool));
    if (purpose == WEFT_LOADED_GENERATION) weft_generation_set_dtype(c, out->backend);
    return weft_model_load_as(out->folder, c, weft_config_dtype(c), out->pool, &out->model);
}

void weft_loaded_close(weft_loaded *l) {
    weft_pool_destroy(l->pool);
    weft_model_destroy(l->model);
    weft_encoder_close(l->encoder);
    weft_tokenizer_close(l->tokenizer);
}
