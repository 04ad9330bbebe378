/* Text that was written by others: names in files, in databases and in folders.
 *
 * A terminal obeys what it is shown. A name with an escape sequence in it could clear the screen,
 * hide a line or answer in the user's place, so what is not weft's own text is shown escaped: control
 * characters, those that turn the direction of writing, and bytes that are no UTF-8 as \xNN. */
#pragma once

#include "base/error.h"

/* The bytes of the UTF-8 letter that begins at `text`, of which so many bytes are known; 0: it may be one
 * when more come; -n: n bytes that are none. */
int weft_utf8_scan(const char *text, size_t bytes);
/* The same of a text that ends on a zero; 0: no letter begins there. */
int weft_utf8_length(const char *text);
/* How many letters begin in so many bytes. */
int weft_utf8_count(const char *text, size_t bytes);
/* The most bytes, `bytes` at most, that a text can be cut to without leaving half a letter. */
size_t weft_utf8_cut(const char *text, size_t bytes);
/* Whether that letter of so many bytes would be obeyed rather than shown. */
bool weft_utf8_is_control(const char *text, int length);

/* Writes the text as it may be shown, ended by "..." where the room is too small. */
void weft_text_show(const char *text, char *out, size_t room);
/* The same in a room of the calling thread's own: eight such texts may be in use at a time. */
const char *weft_shown(const char *text);

/* A whole number as people read it, "1,234,567"; eight such texts too may be in use at a time. */
const char *weft_count_text(int64_t n);

/* Writes so many bytes of text as they may be shown; its line feeds and tabs stay. */
void weft_text_print(FILE *out, const char *text, size_t bytes);

/* Ends a text that open_memstream began; the caller frees it. NULL: memory ran out. */
char *weft_memory_end(FILE *out, char **text);

/* A copy in which each byte that is no UTF-8 is U+FFFD; the caller frees it. NULL: no memory. */
char *weft_text_repair(const char *text);

/* The nearest known name to one that is not: for "did you mean". Each known name is offered in turn. */
typedef struct {
    const char *wanted;
    const char *name; /* the first of the nearest so far; "": none */
    size_t distance;
} weft_nearest;

/* Any name, however far away; or only one that could be a slip of the finger: half of the letters
 * are right. */
weft_nearest weft_nearest_to(const char *wanted);
weft_nearest weft_nearest_slip(const char *wanted);
void weft_nearest_offer(weft_nearest *n, const char *name);

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

/* One more element of a list of n, zeroed, where the list is as long as it has to be; NULL: no memory, and the list is as it
 * was. */
#define WEFT_ADD(list, n)                                                                          \
    (weft_grow_by_one((void *)&(list), (size_t)(n), sizeof *(list)) ? &(list)[(n)++] : NULL)
static inline bool weft_grow_by_one(void *list, size_t n, size_t size) {
    char *now;
    memcpy(&now, list, sizeof now);
    char *grown = realloc(now, (n + 1) * size);
    if (!grown) return false;
    memset(grown + n * size, 0, size);
    memcpy(list, &grown, sizeof grown);
    return true;
}
