/* UTF-8 by the letter. */
#include "base/text.h"

#include <ctype.h>

enum { SHOWN_ROOM = 2048, SHOWN_TEXTS = 8 };

int weft_utf8_scan(const char *text, size_t bytes) {
    const unsigned char *p = (const unsigned char *)text;
    int want = p[0] < 0x80   ? 1
               : p[0] < 0xc2 ? -1
               : p[0] < 0xe0 ? 2
               : p[0] < 0xf0 ? 3
               : p[0] < 0xf5 ? 4
                             : -1;
    for (int i = 1; i < want; i++) {
        if ((size_t)i >= bytes) return 0;
        unsigned low = 0x80, high = 0xbf;
        if (i == 1 && p[0] == 0xe0) low = 0xa0;
        if (i == 1 && p[0] == 0xed) high = 0x9f;
        if (i == 1 && p[0] == 0xf0) low = 0x90;
        if (i == 1 && p[0] == 0xf4) high = 0x8f;
        if (p[i] < low || p[i] > high) return -i;
    }
    return want;
}

int weft_utf8_length(const char *text) {
    int n = weft_utf8_scan(text, 4); /* none goes on behind a zero */
    return n > 0 ? n : 0;
}

static bool begins_letter(char byte) {
    return ((unsigned char)byte & 0xc0) != 0x80;
}

int weft_utf8_count(const char *text, size_t bytes) {
    int n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += begins_letter(text[i]);
    return n;
}

size_t weft_utf8_cut(const char *text, size_t bytes) {
    while (bytes > 0 && !begins_letter(text[bytes]))
        bytes--;
    return bytes;
}

/* C0 and C1, and of the letters with three bytes those that order lines and directions. */
bool weft_utf8_is_control(const char *text, int length) {
    const unsigned char *b = (const unsigned char *)text;
    if (length == 1) return b[0] < 0x20 || b[0] == 0x7f;
    if (length == 2) return b[0] == 0xc2 && b[1] < 0xa0;
    if (length != 3 || b[0] != 0xe2) return false;
    bool marks = b[1] == 0x80 && (b[2] == 0x8e || b[2] == 0x8f || (b[2] >= 0xa8 && b[2] <= 0xae));
    bool isolates = b[1] == 0x81 && b[2] >= 0xa6 && b[2] <= 0xa9;
    return marks || isolates;
}

/* One letter, or the byte that is none, as it may be shown; how many bytes of the text it was. */
static int show_letter(const char *text, char shown[16]) {
    int n = weft_utf8_length(text), bytes = n ? n : 1;
    if (n && !weft_utf8_is_control(text, n)) {
        memcpy(shown, text, (size_t)n);
        shown[n] = '\0';
        return n;
    }
    for (int i = 0; i < bytes; i++)
        snprintf(shown + 4 * i, 5, "\\x%02x", (unsigned)(unsigned char)text[i]);
    return bytes;
}

void weft_text_show(const char *text, char *out, size_t room) {
    static const char dots[] = "...";
    char shown[16];
    size_t at = 0, whole = 0; /* whole: where dots still fit */
    if (room == 0) return;
    while (*text) {
        text += show_letter(text, shown);
        size_t n = strlen(shown);
        if (at + n >= room) {
            at = whole;
            if (room >= sizeof dots) at += (size_t)snprintf(out + at, room - at, "%s", dots);
            break;
        }
        memcpy(out + at, shown, n);
        at += n;
        if (at + sizeof dots <= room) whole = at;
    }
    out[at] = '\0';
}

void weft_text_print(FILE *out, const char *text, size_t bytes) {
    char letter[5], shown[16];
    for (size_t at = 0; at < bytes;) {
        size_t n = bytes - at < 4 ? bytes - at : 4;
        if (text[at] == '\n' || text[at] == '\t') {
            fputc(text[at++], out);
            continue;
        }
        memcpy(letter, text + at, n);
        letter[n] = '\0'; /* a letter that is cut off is none */
        at += (size_t)show_letter(letter, shown);
        fputs(shown, out);
    }
}

const char *weft_shown(const char *text) {
    static _Thread_local char rooms[SHOWN_TEXTS][SHOWN_ROOM];
    static _Thread_local unsigned next;
    char *room = rooms[next++ % SHOWN_TEXTS];
    weft_text_show(text, room, SHOWN_ROOM);
    return room;
}

char *weft_memory_end(FILE *out, char **text) {
    bool bad = ferror(out) != 0;
    if (fclose(out) == 0 && !bad) return *text;
    free(*text);
    return *text = NULL;
}

char *weft_text_repair(const char *text) {
    size_t n = strlen(text), at = 0;
    if (n > SIZE_MAX / 3 - 1) return NULL;
    char *out = malloc(3 * n + 1);
    while (out && *text) {
        int length = weft_utf8_length(text);
        const char *from = length ? text : "\xef\xbf\xbd";
        size_t bytes = length ? (size_t)length : 3;
        memcpy(out + at, from, bytes);
        at += bytes;
        text += length ? length : 1;
    }
    if (out) out[at] = '\0';
    return out;
}

const char *weft_count_text(int64_t n) {
    static _Thread_local char rooms[SHOWN_TEXTS][32];
    static _Thread_local unsigned next;
    char digits[24], *out = rooms[next++ % SHOWN_TEXTS];
    int length = snprintf(digits, sizeof digits, "%lld", (long long)n), at = 0;
    for (int i = 0; i < length; i++) {
        int left = length - i;
        bool first = i == 0 || digits[i - 1] == '-';
        if (!first && left % 3 == 0) out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
    return out;
}

enum { NAME_MAX_LETTERS = 64 };

/* How many letters to insert, drop or change to make b of a, in either case, one row at a time. Names of 64 letters and
 * more are as far from everything as can be. */
static size_t edit_distance(const char *a, const char *b) {
    size_t row[NAME_MAX_LETTERS], n = strlen(b);
    if (n >= NAME_MAX_LETTERS || strlen(a) >= NAME_MAX_LETTERS) return NAME_MAX_LETTERS;
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; *a; a++, i++) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t best = corner + (tolower((unsigned char)*a) != tolower((unsigned char)b[j - 1]));
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
    size_t distance = edit_distance(n->wanted, name);
    if (distance >= n->distance) return;
    n->distance = distance;
    n->name = name;
}
