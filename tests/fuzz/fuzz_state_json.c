/* A checkpoint's state.json. The file has a checksum of its own, which no input would ever have
 * right: where the first byte is odd, the rest of the input gets the end that a right one has. */
#include "base/crc32c.h"
#include "fuzz/fuzz.h"
#include "model/folder.h"
#include "train/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void write_state(const char *path, fuzz_bytes in) {
    bool summed = fuzz_byte(&in) & 1;
    char *text = malloc(in.size + 64);
    if (!text) exit(2);
    if (in.size) memcpy(text, in.data, in.size);
    if (summed)
        in.size += (size_t)snprintf(text + in.size, 64, ",\n  \"state_crc32c\": \"%08x\"\n}\n",
                                    (unsigned)weft_crc32c(0, text, in.size));
    fuzz_file(path, text, in.size);
    free(text);
}

/* The other files of the checkpoint, which stay as they are. */
static void write_others(void) {
    static bool written;
    if (written) return;
    mkdir(fuzz_path("last"), 0700);
    fuzz_file("last/config.json", "{}", 2);
    fuzz_file("last/model.safetensors", "12", 2);
    fuzz_file("last/optimizer.safetensors", "", 0);
    fuzz_file("last/.weft", "", 0);
    written = true;
}

bool fuzz_state_json(const uint8_t *data, size_t size) {
    weft_checkpoint_kind kind;
    weft_train_state state;
    weft_model *model;
    weft_config c;
    write_others();
    write_state("last/state.json", (fuzz_bytes){data, size});
    const char *last = fuzz_path("last");
    bool whole = weft_state_verify(last, WEFT_CHECKPOINT_PARTS) == WEFT_OK;
    if (weft_checkpoint_look(last, &kind) == WEFT_OK)
        FUZZ_PROMISE(!whole || kind == WEFT_CHECKPOINT_WHOLE,
                     "a checkpoint that verifies is whole");
    int64_t iteration = weft_checkpoint_iteration(last);
    weft_model_check_sums(last);
    weft_config_defaults(&c);
    c.n_layer = c.n_head = 1;
    c.n_embd = c.vocab_size = c.context = 2;
    /* The weights are damaged, so all that can be read is the state. */
    if (weft_checkpoint_load(fuzz_folder(), "last", &model, &c, WEFT_F32, NULL, &state) == WEFT_OK)
        weft_model_destroy(model);
    FUZZ_PROMISE(iteration < 0 || state.iteration == iteration,
                 "a checkpoint's step is read the same by all");
    return iteration >= 0;
}
