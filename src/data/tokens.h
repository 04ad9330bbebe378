/* Tokens from a file: a NumPy array, or a token shard. Files are not trusted. */
#pragma once

#include "base/error.h"

/* A shard: 256 int32, of which the first are magic, version and the number of tokens; then the tokens. All are
 * little-endian, whatever the machine. */
enum {
    WEFT_SHARD_HEADER = 256,
    WEFT_SHARD_MAGIC_16 = 20240520, /* uint16 tokens */
    WEFT_SHARD_VERSION_16 = 1,
    WEFT_SHARD_MAGIC_32 = 20240801, /* uint32 */
    WEFT_SHARD_VERSION_32 = 7
};

static inline uint32_t weft_shard_u32(const unsigned char *b) {
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* Bytes of a token, by a shard's header; 0: it is none. */
static inline int weft_shard_width(const unsigned char *header) {
    uint32_t magic = weft_shard_u32(header), version = weft_shard_u32(header + 4);
    if (magic == WEFT_SHARD_MAGIC_16 && version == WEFT_SHARD_VERSION_16) return 2;
    return magic == WEFT_SHARD_MAGIC_32 && version == WEFT_SHARD_VERSION_32 ? 4 : 0;
}

/* A file of tokens. */
typedef struct {
    char *path;
    FILE *file;
    int64_t bytes;         /* of the whole file */
    int64_t rows, columns; /* [B, T+1]; a shard is one row */
    int64_t read;          /* so many tokens were */
    int size;              /* bytes of one */
    bool shard, is_signed;
    int32_t *values; /* of one that was read whole, malloc'd */
} weft_tokens;

/* Opens a .npy of int32, int64, uint16 or uint32 with one or two dimensions, or a shard, told apart by their first
 * bytes. `plain`: a file that is neither holds uint16 tokens alone, as nanoGPT writes them. After a failure too it
 * is to be closed. */
weft_status weft_tokens_open(const char *path, bool plain, weft_tokens *out);
/* The next `count`, which must be there, checked to be int32. */
weft_status weft_tokens_next(weft_tokens *f, int64_t count, int32_t *values);
void weft_tokens_free(weft_tokens *f);

/* Whether a file holds tokens by its first bytes, or by its name, train.bin or val.bin, as nanoGPT has them. */
weft_status weft_are_tokens(const char *path, bool *is);

/* A whole file, of either kind that says what it is. */
weft_status weft_tokens_read(const char *path, weft_tokens *out);
