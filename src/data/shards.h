/* A folder of token shards as a dataset: train_*.bin and val_*.bin, in the layouts that llm.c's
 * tools write; a name may have more before it (edu_fineweb_train_000001.bin).
 *
 * The files are mapped, not read. Headers and lengths are checked when the folder is opened; each
 * token is checked when it is used. A sequence is a window of time + 1 tokens, its start drawn
 * uniformly over all the positions, of all the shards of the split, where such a window fits; no
 * window crosses from one shard to the next. */
#pragma once

#include "data/random_stream.h"

typedef struct weft_shards weft_shards;

/* Opens a folder whose tokens must be below `vocab`. */
weft_status weft_shards_open(const char *folder, int64_t vocab, weft_shards **out);
void weft_shards_close(weft_shards *s);

/* `vocab`, or more where a look at the beginning of each shard found more. */
int64_t weft_shards_vocab(const weft_shards *s);
int64_t weft_shards_tokens(const weft_shards *s, weft_split split);

/* A checksum of the names, sizes and bytes of all shards; of more than WEFT_SHARDS_SUMMED bytes, of
 * blocks that are evenly spread. */
enum { WEFT_SHARDS_SUMMED = 256 << 20 };
weft_status weft_shards_sum(const weft_shards *s, uint32_t *crc);

/* Fills tokens[time] and targets[time], the tokens one later. */
weft_status weft_shards_fill(const weft_shards *s, const weft_sequence_place *p, int64_t time,
                             int32_t *tokens, int32_t *targets);
