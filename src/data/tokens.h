/* Tokens from a file: a NumPy array, or a token shard. Files are not trusted. */
#ifndef WEFT_DATA_TOKENS_H
#define WEFT_DATA_TOKENS_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { WEFT_SHARD_HEADER = 256 }; /* int32 words before the tokens */

typedef struct {
    int64_t rows, columns; /* [B, T+1]; a shard is one row */
    bool shard;
    int32_t *values; /* malloc'd */
} weft_tokens;

/* Reads a .npy of int32 or int64 with one or two dimensions, or a shard (magic 20240520: uint16
 * tokens; 20240801: uint32), told apart by their first bytes. */
weft_status weft_tokens_read(const char *path, weft_tokens *out);
void weft_tokens_free(weft_tokens *t);

#endif
