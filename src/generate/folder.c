/* Folders for generation. */
#include "generate/folder.h"
#include "base/files.h"
#include "base/scope.h"
#include "model/folder.h"

#include <sys/stat.h>

weft_status weft_generation_folder(const char *path, char out[WEFT_FOLDER_PATH]) {
    static const char *const inside[] = {"", "/best", "/last"};
    bool is;
    for (size_t i = 0; i < sizeof inside / sizeof inside[0]; i++) {
        if (snprintf(out, WEFT_FOLDER_PATH, "%s%s", path, inside[i]) >= WEFT_FOLDER_PATH)
            return weft_fail(WEFT_EINPUT, "%.200s...: the path is too long", path);
        WEFT_TRY(weft_folder_has(out, "config.json", &is));
        if (is) WEFT_TRY(weft_folder_has(out, "model.safetensors", &is));
        if (is) return WEFT_OK;
    }
    struct stat s;
    if (stat(path, &s) == 0 && !S_ISDIR(s.st_mode))
        return weft_fail(WEFT_EINPUT,
                         "%s is a file; a checkpoint is a folder with config.json and "
                         "model.safetensors",
                         path);
    if (weft_folder_has(path, "runs.db", &is) == WEFT_OK && is)
        return weft_fail(WEFT_EINPUT, "%s is a study's folder; name one of its runs, in %s/runs",
                         path, path);
    return weft_fail(
        WEFT_EINPUT,
        "%s: no checkpoint (config.json and model.safetensors) there, nor in its best/ or last/; "
        "weft train --out DIR makes one",
        path);
}

weft_status weft_generation_tokenizer(const char *folder, const weft_config *c,
                                      weft_tokenizer **out) {
    char path[WEFT_PATH_MAX];
    bool there;
    *out = NULL;
    WEFT_TRY(weft_path(path, "%s/tokenizer.json", folder));
    WEFT_TRY(weft_path_there(path, &there));
    WEFT_AUTO(weft_tokenizer_close_at) weft_tokenizer *t = NULL;
    WEFT_TRY(weft_tokenizer_open(there ? path : c->tokenizer, &t));
    if (weft_tokenizer_vocab(t) > c->vocab_size)
        return weft_fail(
            WEFT_EINPUT,
            "%s: its tokenizer has %lld tokens, but the model knows %lld; it is another's", folder,
            (long long)weft_tokenizer_vocab(t), (long long)c->vocab_size);
    *out = weft_steal(&t);
    return WEFT_OK;
}
