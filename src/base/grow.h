/* Room for a text whose length is not known beforehand. */
#ifndef WEFT_BASE_GROW_H
#define WEFT_BASE_GROW_H

#include <stdbool.h>
#include <stdlib.h>

/* Makes room for at least `want` bytes in a block of *room bytes, twice as much when it grows; false: no
 * memory, and the block is as it was. */
static inline bool weft_grow(char **data, size_t *room, size_t want) {
    if (want <= *room) return true;
    char *grown = realloc(*data, 2 * want);
    if (!grown) return false;
    *data = grown;
    *room = 2 * want;
    return true;
}

#endif
