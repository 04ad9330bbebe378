/* Sizes of blocks that lie one behind the other. */
#ifndef WEFT_CORE_ALIGN_H
#define WEFT_CORE_ALIGN_H

#include "core/plan.h"

/* Bytes rounded up to a multiple of WEFT_ARENA_ALIGN, so that what follows is aligned too. */
static inline int64_t weft_arena_bytes(int64_t bytes) {
    return (bytes + WEFT_ARENA_ALIGN - 1) / WEFT_ARENA_ALIGN * WEFT_ARENA_ALIGN;
}

#endif
