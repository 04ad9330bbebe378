/* Folders for generation. */
#include "generate/folder.h"

#include <stdio.h>
#include <unistd.h>

static bool has_file(const char *folder, const char *name) {
    char path[WEFT_FOLDER_PATH];
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    return length < (int)sizeof path && access(path, R_OK) == 0;
}

weft_status weft_generation_folder(const char *path, char out[WEFT_FOLDER_PATH]) {
    static const char *const inside[] = {"", "/best", "/last"};
    for (size_t i = 0; i < sizeof inside / sizeof inside[0]; i++) {
        if (snprintf(out, WEFT_FOLDER_PATH, "%s%s", path, inside[i]) >= WEFT_FOLDER_PATH)
            return weft_fail(WEFT_EINPUT, "%.200s...: the path is too long", path);
        if (has_file(out, "config.json") && has_file(out, "model.safetensors")) return WEFT_OK;
    }
    return weft_fail(
        WEFT_EINPUT,
        "%s: no checkpoint (config.json and model.safetensors) there, nor in its best/ or last/; "
        "weft train --out DIR makes one",
        path);
}

weft_status weft_generation_tokenizer(const char *folder, const weft_config *c,
                                      weft_tokenizer **out) {
    char path[WEFT_FOLDER_PATH];
    *out = NULL;
    if (has_file(folder, "tokenizer.json")) {
        if (snprintf(path, sizeof path, "%s/tokenizer.json", folder) >= (int)sizeof path)
            return weft_fail(WEFT_EINPUT, "%.200s...: the path is too long", folder);
        WEFT_TRY(weft_tokenizer_open(path, out));
    } else {
        WEFT_TRY(weft_tokenizer_open(c->tokenizer, out));
    }
    if (weft_tokenizer_vocab(*out) <= c->vocab_size) return WEFT_OK;
    weft_status status = weft_fail(
        WEFT_EINPUT, "%s: its tokenizer has %lld tokens, but the model knows %lld; it is another's",
        folder, (long long)weft_tokenizer_vocab(*out), (long long)c->vocab_size);
    weft_tokenizer_close(*out);
    *out = NULL;
    return status;
}
