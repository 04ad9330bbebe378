/* Token shards as they are written: DIR/NAME_000000.bin, NAME_000001.bin, ... each a header of 256
 * int32 and its tokens (uint16 where the vocabulary allows, uint32 otherwise).
 *
 * Everything is written beside, under names that nobody takes for a shard; commit puts all of them
 * in place. Whatever ends the program before leaves no shard. */
#pragma once

#include "base/error.h"

#include <stdint.h>

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
