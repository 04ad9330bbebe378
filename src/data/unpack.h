/* The bytes of a file in their order, from a pipe too; where gzip or zstd packed it, what was packed. Its first
 * bytes tell. */
#pragma once

#include "base/error.h"

typedef struct weft_unpack weft_unpack;

/* `file` and `path`, which names it in errors, are used until closing. A build without zlib or libzstd says
 * so of a file that needs it. */
weft_status weft_unpack_open(int file, const char *path, weft_unpack **out);
void weft_unpack_close(weft_unpack *u);

bool weft_unpack_is_packed(const weft_unpack *u);

/* Up to `room` bytes; none at the end. */
weft_status weft_unpack_read(weft_unpack *u, char *to, size_t room, size_t *got);
