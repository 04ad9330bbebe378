#include "support/html.h"
#include "support/test.h"

#include <ctype.h>
#include <search.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 64, NAME = 32 };

typedef struct {
    char open[DEPTH][NAME];
    int depth, titles, styles;
    void *ids; /* a tree of tsearch */
} html_walk;

static int compare(const void *a, const void *b) {
    return strcmp(a, b);
}

static bool is_one_of(const char *name, const char *const *names) {
    for (; *names; names++)
        if (strcmp(name, *names) == 0) return true;
    return false;
}

/* The attributes of a tag from `at` to its end, which is returned. */
static const char *walk_attributes(html_walk *w, const char *at) {
    char seen[DEPTH][NAME];
    for (int n = 0;;) {
        at += strspn(at, " \n");
        if (*at == '>' || strncmp(at, "/>", 2) == 0) return at;
        size_t length = strcspn(at, "= />\n");
        if (length == 0 || length >= NAME || n == DEPTH) fail_msg("no attribute: %.80s", at);
        snprintf(seen[n], NAME, "%.*s", (int)length, at);
        for (int i = 0; i < n; i++)
            if (strcmp(seen[i], seen[n]) == 0) fail_msg("%s twice: %.80s", seen[n], at);
        at += length;
        if (*at == '=') {
            if (at[1] != '"' && at[1] != '\'') fail_msg("a value without quotes: %.80s", at);
            const char *end = strchr(at + 2, at[1]);
            if (!end) fail_msg("a value without an end: %.80s", at);
            if (strcmp(seen[n], "id") == 0) {
                char *id = strndup(at + 2, (size_t)(end - at - 2));
                if (*(char **)tsearch(id, &w->ids, compare) != id) fail_msg("id %s twice", id);
            }
            at = end + 1;
        }
        n++;
    }
}

void html_expect_well_formed(const char *page) {
    static const char *const empty[] = {"meta",  "link", "br",  "hr", "img",
                                        "input", "wbr",  "col", NULL};
    static const char *const raw[] = {"style", "script", NULL};
    html_walk w = {0};
    if (strncmp(page, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n", 40) != 0)
        fail_msg("the page begins otherwise: %.80s", page);
    for (const char *at = page + 15; (at = strchr(at, '<'));) {
        char name[NAME];
        bool closes = at[1] == '/';
        const char *from = at;
        at += closes ? 2 : 1;
        size_t length = 0;
        while (isalnum((unsigned char)at[length]))
            length++;
        if (length == 0 || length >= NAME) fail_msg("no element: %.80s", from);
        snprintf(name, NAME, "%.*s", (int)length, at);
        at += length;
        if (closes) {
            if (w.depth == 0 || strcmp(w.open[--w.depth], name) != 0)
                fail_msg("%s is not what ends at: %.200s", name, from);
            if (*at != '>') fail_msg("no end of a tag: %.80s", from);
            continue;
        }
        at = walk_attributes(&w, at);
        bool title = strcmp(name, "title") == 0 && w.depth == 2 && at[1] != '<';
        w.titles += title && strcmp(w.open[1], "head") == 0;
        w.styles += strcmp(name, "style") == 0;
        if (*at == '/' || is_one_of(name, empty)) continue;
        if (is_one_of(name, raw)) {
            char end[NAME + 4];
            snprintf(end, sizeof end, "</%s>", name);
            at = strstr(at, end);
            if (!at || at[-1] == '>') fail_msg("%s is empty or has no end: %.80s", name, from);
            at += strlen(end);
            continue;
        }
        assert_true(w.depth < DEPTH);
        strcpy(w.open[w.depth++], name);
    }
    tdestroy(w.ids, free);
    if (w.depth) fail_msg("%s has no end", w.open[w.depth - 1]);
    assert_int_equal(w.titles, 1);
    assert_true(w.styles > 0);
}
