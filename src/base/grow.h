/* Room for a text or a list whose length is not known beforehand. */
#ifndef WEFT_BASE_GROW_H
#define WEFT_BASE_GROW_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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

/* The same for at least `want` elements of `size` bytes; `list` points to the list's pointer. */
static inline bool weft_grow_list(void *list, int64_t *room, int64_t want, size_t size) {
    void *now;
    if (want <= *room) return true;
    memcpy(&now, list, sizeof now);
    void *grown = realloc(now, 2 * (size_t)want * size);
    if (!grown) return false;
    memcpy(list, &grown, sizeof grown);
    *room = 2 * want;
    return true;
}

#endif
