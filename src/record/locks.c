/* Lines of /proc/locks: "1: FLOCK  ADVISORY  WRITE 4711 08:01:123456 0 EOF"; the number after the
 * device is the file's. File systems such as btrfs and overlayfs tell another device there than stat
 * does, so the number alone is compared. */
#include "record/locks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct weft_locks {
    uint64_t *list;
    size_t n, room;
};

weft_status weft_locks_open(weft_locks **out) {
    *out = calloc(1, sizeof **out);
    return *out ? WEFT_OK : weft_fail(WEFT_ENOMEM, "watch: no memory");
}

void weft_locks_close(weft_locks *l) {
    if (l) free(l->list);
    free(l);
}

static void add(weft_locks *l, uint64_t number) {
    if (l->n == l->room) {
        size_t room = l->room ? 2 * l->room : 64;
        uint64_t *grown = realloc(l->list, room * sizeof *grown);
        if (!grown) return;
        l->list = grown;
        l->room = room;
    }
    l->list[l->n++] = number;
}

void weft_locks_read(weft_locks *l) {
    char line[256];
    FILE *file = fopen("/proc/locks", "r");
    l->n = 0;
    while (file && fgets(line, sizeof line, file)) {
        unsigned long long number;
        char kind[16], how[16], what[16];
        if (sscanf(line, "%*d: %15s %15s %15s %*d %*x:%*x:%llu", kind, how, what, &number) == 4 &&
            strcmp(kind, "FLOCK") == 0 && strcmp(what, "WRITE") == 0)
            add(l, number);
    }
    if (file) fclose(file);
}

bool weft_locks_has(const weft_locks *l, uint64_t number) {
    for (size_t i = 0; i < l->n; i++)
        if (l->list[i] == number) return true;
    return false;
}
