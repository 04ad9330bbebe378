#include "support/snapshot.h"
#include "support/command.h"
#include "support/test.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { HASH = 7 }; /* letters and digits of the shortest checksum or commit */

/* The length of a number or of a checksum at `at`; 0: there is none. `word`: it goes on with a word. */
static size_t number_at(const char *at, bool word) {
    size_t hash = strspn(at, "0123456789abcdefABCDEF");
    if (*at == '#' && strspn(at + 1, "0123456789abcdefABCDEF") == 6) return 7;
    if (!word && hash >= HASH && strcspn(at, "0123456789") < hash &&
        !isalnum((unsigned char)at[hash]))
        return hash;
    char *end = (char *)at;
    if (isdigit((unsigned char)*at)) strtod(at, &end);
    return at[0] == '0' && at[1] == 'x' ? 1 : (size_t)(end - at);
}

/* Numbers and colours as N, blanks in a row as one, without what colours a terminal and the scratch folder. */
static char *masked(const char *text) {
    const char *folder = scratch_path("%s", "");
    char *out = calloc(2 * strlen(text) + 1, 1), *to = out;
    assert_non_null(out);
    for (const char *at = text; *at;) {
        size_t n = number_at(at, at > text && isalpha((unsigned char)at[-1]));
        bool blank = *at == ' ' && to > out && to[-1] == ' ';
        if (*at == '\x1b') {
            at += strcspn(at, "mKhlJ") + 1;
        } else if (folder[1] && strncmp(at, folder, strlen(folder)) == 0) {
            at += strlen(folder);
        } else if (n) {
            *to++ = 'N';
            at += n;
        } else {
            if (!blank) *to++ = *at;
            at++;
        }
    }
    return out;
}

void snapshot_expect(const char *name, const char *text) {
    const char *path = format_text("tests/snapshots/%s", name), *wish = getenv("WEFT_SNAPSHOTS");
    char *is = masked(text);
    if (wish && strcmp(wish, "write") == 0) {
        file_write(path, is, strlen(is));
        free(is);
        return;
    }
    char *was = file_read(path, NULL);
    size_t line = 0, same = 0;
    while (was[same] && was[same] == is[same])
        if (was[same++] == '\n') line = same;
    if (was[same] || is[same])
        fail_msg("%s has\n  %.*s\nand here it is\n  %.*s\nIf that is right: WEFT_SNAPSHOTS=write "
                 "make test T=..., and read the difference",
                 path, (int)strcspn(was + line, "\n"), was + line, (int)strcspn(is + line, "\n"),
                 is + line);
    free(was);
    free(is);
}

static void print_keys(FILE *to, const json_t *value, int depth) {
    static const char *const types[] = {"object", "array",         "text",          "number",
                                        "number", "true or false", "true or false", "null"};
    const char *key;
    json_t *member;
    fprintf(to, "%s\n", types[json_typeof(value)]);
    json_object_foreach((json_t *)value, key, member) {
        fprintf(to, "%*s%s: ", 4 * depth + 4, "", key);
        print_keys(to, member, depth + 1);
    }
    if (json_array_size(value) == 0) return;
    fprintf(to, "%*s- ", 4 * depth + 4, "");
    print_keys(to, json_array_get(value, 0), depth + 1);
}

void snapshot_expect_keys(const char *name, const json_t *value) {
    char *text;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    assert_non_null(to);
    print_keys(to, value, 0);
    fclose(to);
    snapshot_expect(name, text);
    free(text);
}
