/* Edit distance, one row at a time. */
#include "base/nearest.h"

#include <ctype.h>
#include <stdint.h>
#include <string.h>

enum { NAME_MAX_LETTERS = 64 };

static int same_letter(char a, char b) {
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

size_t weft_edit_distance(const char *a, const char *b) {
    size_t row[NAME_MAX_LETTERS], n = strlen(b);
    if (n >= NAME_MAX_LETTERS || strlen(a) >= NAME_MAX_LETTERS) return NAME_MAX_LETTERS;
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; *a; a++, i++) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t best = corner + (size_t)!same_letter(*a, b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            corner = row[j];
            row[j] = best;
        }
    }
    return row[n];
}

weft_nearest weft_nearest_to(const char *wanted) {
    return (weft_nearest){.wanted = wanted, .name = "", .distance = SIZE_MAX};
}

weft_nearest weft_nearest_slip(const char *wanted) {
    size_t within = strlen(wanted) / 2 + 1;
    if (within > NAME_MAX_LETTERS) within = NAME_MAX_LETTERS;
    return (weft_nearest){.wanted = wanted, .name = "", .distance = within};
}

void weft_nearest_offer(weft_nearest *n, const char *name) {
    size_t distance = weft_edit_distance(n->wanted, name);
    if (distance >= n->distance) return;
    n->distance = distance;
    n->name = name;
}
