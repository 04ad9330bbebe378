/* The Castagnoli checksum: of checkpoints' files, and of the records of event files. */
#ifndef WEFT_TRAIN_CRC32C_H
#define WEFT_TRAIN_CRC32C_H

#include "core/error.h"

#include <stddef.h>
#include <stdint.h>

/* Goes on from `crc`, the checksum of what came before; 0 at the start. */
uint32_t weft_crc32c(uint32_t crc, const void *data, size_t bytes);

/* Size and checksum of a file. */
weft_status weft_crc32c_file(const char *path, int64_t *bytes, uint32_t *crc);

#endif
