/* Texts to be tokenized: plain files, packed ones and JSON lines. The first byte chooses how they are read. */
#include "data/texts.h"
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

/* Whether all of it could be read. `size` is that of a file, 0 where it is packed. */
static bool read_all(const weft_input_options *o, size_t want, size_t size) {
    weft_input *in;
    const weft_input_unit *units;
    int64_t count;
    size_t seen = 0;
    weft_status status;
    bool taken = true;
    if (weft_input_open(o, &in) != WEFT_OK) return false;
    while ((status = weft_input_next(in, want, &units, &count)) == WEFT_OK && count) {
        for (int64_t i = 0; i < count; i++) {
            char *keep = NULL;
            const char *text;
            size_t bytes;
            seen += units[i].bytes;
            if (weft_input_text(in, &units[i], &keep, &text, &bytes) == WEFT_OK)
                fuzz_touch(text, bytes);
            else
                taken = false;
            free(keep);
        }
    }
    FUZZ_PROMISE(status == WEFT_OK || status == WEFT_EINPUT || status == WEFT_EMISSING,
                 "a file that is there is read or refused");
    FUZZ_PROMISE(status != WEFT_OK || !size || seen == size * (size_t)o->n_paths,
                 "every byte of a file is in one unit");
    weft_input_close(in);
    return taken && status == WEFT_OK;
}

bool fuzz_jsonl(const uint8_t *data, size_t size) {
    fuzz_bytes in = {data, size};
    uint8_t how = fuzz_byte(&in);
    const char *path = fuzz_file("text", in.data, in.size), *const paths[] = {path, path};
    weft_input_options o = {.paths = paths,
                            .n_paths = how & 1 ? 2 : 1,
                            .val_path = how & 2 ? path : NULL,
                            .field = how & 4 ? "text" : NULL,
                            .val_share = (double)(how >> 5) / 7,
                            .cuttable = how & 8};
    bool packed = in.size >= 2 &&
                  (memcmp(in.data, "\x1F\x8B", 2) == 0 || memcmp(in.data, "\x28\xB5", 2) == 0);
    return read_all(&o, how & 16 ? 1 : 1 << 16, packed ? 0 : in.size);
}
