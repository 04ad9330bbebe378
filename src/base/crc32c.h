/* The Castagnoli checksum: of checkpoints' files, and of the records of event files. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Goes on from `crc`, the checksum of what came before; 0 at the start. */
uint32_t weft_crc32c(uint32_t crc, const void *data, size_t bytes);
/* The same without the processor's instruction for it. */
uint32_t weft_crc32c_plain(uint32_t crc, const void *data, size_t bytes);
