/* A folder of token shards: one that is both the training and the validation shard. The first byte says
 * how large the vocabulary is, in its low bits; where the high one is not set, the header's zeros are
 * put in after its first twelve bytes, so that inputs are short. */
#include "data/shards.h"
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

enum { NUMBERS = 12, HEADER = 1024 };

static size_t write_shards(fuzz_bytes in, bool whole) {
    size_t head = in.size < NUMBERS ? in.size : NUMBERS, size = HEADER + in.size - head;
    uint8_t *shard = calloc(1, HEADER + in.size);
    if (!shard) exit(2);
    if (whole || in.size < NUMBERS) {
        if (in.size) memcpy(shard, in.data, in.size);
        size = in.size;
    } else {
        memcpy(shard, in.data, head);
        memcpy(shard + HEADER, in.data + head, in.size - head);
    }
    fuzz_file("train_0.bin", shard, size);
    fuzz_file("val_0.bin", shard, size);
    free(shard);
    return size;
}

static void fill_some(const weft_shards *s, weft_split split, int64_t vocab) {
    enum { TIME = 5 };
    int32_t tokens[TIME], targets[TIME];
    for (uint32_t i = 0; i < 8; i++) {
        weft_sequence_place p = {.split = split, .seed = 7, .iteration = i, .sequence = i};
        if (weft_shards_fill(s, &p, TIME, tokens, targets) != WEFT_OK) continue;
        for (int t = 0; t < TIME; t++)
            FUZZ_PROMISE(tokens[t] >= 0 && tokens[t] < vocab && targets[t] >= 0 &&
                             targets[t] < vocab,
                         "a token is below the vocabulary");
    }
}

bool fuzz_shards(const uint8_t *data, size_t size) {
    fuzz_bytes in = {data, size};
    uint8_t how = fuzz_byte(&in);
    int64_t vocab = 1 + (int64_t)(how & 127) * 256;
    weft_shards *s;
    uint32_t crc;
    size_t bytes = write_shards(in, how & 128);
    if (weft_shards_open(fuzz_folder(), vocab, &s) != WEFT_OK) return false;
    FUZZ_PROMISE(weft_shards_tokens(s, WEFT_SPLIT_TRAIN) * 2 <= (int64_t)bytes,
                 "there are no more tokens than the file has room for");
    FUZZ_PROMISE(weft_shards_sum(s, &crc) == WEFT_OK, "an open folder can be summed");
    fill_some(s, WEFT_SPLIT_TRAIN, vocab);
    fill_some(s, WEFT_SPLIT_VAL, vocab);
    weft_shards_close(s);
    return true;
}
