/* Lists of addresses that came lately, and what is kept for each.
 *
 * A GPU call whose addresses are those of an earlier one may repeat what that did. This remembers a
 * bounded number of lists; where one more comes, the one that was found longest ago is forgotten, and
 * what was kept for it is dropped. For one thread at a time. */
#pragma once

#include <stdint.h>

typedef struct weft_lru weft_lru;

typedef struct {
    void *kept;   /* the caller's; NULL: nothing yet */
    int64_t seen; /* how often the list was found, this time included */
} weft_lru_entry;

/* `room` lists of `length` addresses each. `drop` lets go of what was kept. NULL: no memory. */
weft_lru *weft_lru_create(int room, int length, void (*drop)(void *kept));
void weft_lru_destroy(weft_lru *r);

/* The entry of a list, a new one where it is not known; valid until the next call. */
weft_lru_entry *weft_lru_find(weft_lru *r, const void *const *addresses);
