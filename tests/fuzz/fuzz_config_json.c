/* A checkpoint's config.json. */
#include "fuzz/fuzz.h"
#include "model/kinds.h"
#include "model/model.h"

bool fuzz_config_json(const uint8_t *data, size_t size) {
    weft_config c;
    fuzz_file("config.json", data, size);
    if (weft_model_read_config(fuzz_folder(), &c) != WEFT_OK) return false;
    FUZZ_PROMISE(weft_model_check(&c, "config.json") == WEFT_OK,
                 "a config that was read is checked");
    return true;
}
