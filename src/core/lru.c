/* The lists lie behind one another, their hashes apart: a search reads the hashes, a few cache lines,
 * and compares the one list whose hash it is. */
#include "core/lru.h"

#include <stdlib.h>
#include <string.h>

struct weft_lru {
    int room, length, n;
    uint64_t clock; /* counts the searches */
    uint64_t *hashes, *last;
    const void **lists; /* [room, length] */
    weft_lru_entry *entries;
    void (*drop)(void *kept);
};

weft_lru *weft_lru_create(int room, int length, void (*drop)(void *kept)) {
    weft_lru *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    size_t n = (size_t)room;
    *r = (weft_lru){.room = room, .length = length, .drop = drop};
    r->hashes = calloc(n, sizeof *r->hashes);
    r->last = calloc(n, sizeof *r->last);
    r->lists = calloc(n * (size_t)length, sizeof *r->lists);
    r->entries = calloc(n, sizeof *r->entries);
    if (r->hashes && r->last && r->lists && r->entries) return r;
    weft_lru_destroy(r);
    return NULL;
}

static void drop_entry(const weft_lru *r, int i) {
    if (r->entries[i].kept) r->drop(r->entries[i].kept);
    r->entries[i] = (weft_lru_entry){0};
}

void weft_lru_destroy(weft_lru *r) {
    if (!r) return;
    for (int i = 0; i < r->n; i++)
        drop_entry(r, i);
    free(r->hashes);
    free(r->last);
    free(r->lists);
    free(r->entries);
    free(r);
}

static const void **list_at(const weft_lru *r, int i) {
    return r->lists + (size_t)i * (size_t)r->length;
}

static int find_known(const weft_lru *r, uint64_t hash, const void *const *addresses,
                      size_t bytes) {
    for (int i = 0; i < r->n; i++)
        if (r->hashes[i] == hash && memcmp(list_at(r, i), addresses, bytes) == 0) return i;
    return -1;
}

/* A free place, or that of the list that was found longest ago. */
static int make_place(weft_lru *r) {
    int oldest = 0;
    if (r->n < r->room) return r->n++;
    for (int i = 1; i < r->n; i++)
        if (r->last[i] < r->last[oldest]) oldest = i;
    drop_entry(r, oldest);
    return oldest;
}

weft_lru_entry *weft_lru_find(weft_lru *r, const void *const *addresses) {
    size_t bytes = (size_t)r->length * sizeof *addresses;
    /* FNV-1a over words, and the upper half folded down: addresses differ in their middle bits. */
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < r->length; i++)
        hash = (hash ^ (uint64_t)(uintptr_t)addresses[i]) * 0x100000001b3u;
    hash ^= hash >> 32;
    int at = find_known(r, hash, addresses, bytes);
    if (at < 0) {
        at = make_place(r);
        r->hashes[at] = hash;
        memcpy(list_at(r, at), addresses, bytes);
    }
    r->last[at] = ++r->clock;
    r->entries[at].seen++;
    return &r->entries[at];
}
