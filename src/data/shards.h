/* A folder of token shards as a dataset: train_*.bin and val_*.bin, in the layouts that llm.c's
 * tools write; a name may have more before it (edu_fineweb_train_000001.bin).
 *
 * The files are mapped, not read. Headers and lengths are checked when the folder is opened; each
 * token is checked when it is used. A sequence is a window of time + 1 tokens, its start drawn
 * uniformly over all the positions, of all the shards of the split, where such a window fits; no
 * window crosses from one shard to the next. */
#pragma once

#include "data/dataset.h"

typedef struct weft_shards weft_shards;

/* Opens a folder whose tokens must be below `vocab`. */
weft_status weft_shards_open(const char *folder, int64_t vocab, weft_shards **out);
void weft_shards_close(weft_shards *s);
WEFT_ENDED_BY(weft_shards_close, weft_shards)

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

/* Token shards as they are written: DIR/NAME_000000.bin, NAME_000001.bin, ... each a header of 256
 * int32 and its tokens (uint16 where the vocabulary allows, uint32 otherwise).
 *
 * Everything is written beside, under names that nobody takes for a shard; commit puts all of them
 * in place. Whatever ends the program before leaves no shard. */

enum { WEFT_SHARD_TOKENS = 100 * 1000 * 1000 }; /* of a shard, unless told otherwise */

typedef struct weft_shard_writer weft_shard_writer;

/* Shards NAME_* in the folder, which must have none yet. Token numbers are below `vocab`. */
weft_status weft_shard_writer_open(const char *dir, const char *name, int64_t vocab,
                                   int64_t shard_tokens, weft_shard_writer **out);
weft_status weft_shard_writer_put(weft_shard_writer *w, const int32_t *tokens, int64_t count);
int64_t weft_shard_writer_tokens(const weft_shard_writer *w);
int64_t weft_shard_writer_shards(const weft_shard_writer *w);
/* Ends the last shards and puts all of all writers in place, the first writer's last. On an error close
 * removes those that have their places already. */
weft_status weft_shard_writers_commit(weft_shard_writer *const *writers, int n);
/* Frees it; what was not committed is removed. */
void weft_shard_writer_close(weft_shard_writer *w);
WEFT_ENDED_BY(weft_shard_writer_close, weft_shard_writer)
