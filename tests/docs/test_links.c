/* The documentation: every relative link leads somewhere, every path that is named exists.
 *
 * Pages are README.md, CHANGELOG.md, CONTRIBUTING.md, SECURITY.md and all of docs. A link may name a heading of a page, by the
 * name that GitHub makes of it. A path is a word in backquotes that begins with a folder of this
 * repository; one that stands for many (src/FOLDER, step-N) is not looked for. Elsewhere (sources,
 * makefiles, scripts) only the names of documentation pages are looked at. */
#include "support/command.h"
#include "support/test.h"

#include <ctype.h>
#include <dirent.h>
#include <glob.h>
#include <regex.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PATH_ROOM = 1024, SLUG_ROOM = 512, WRONG_MOST = 20 };

static int wrong, links, paths;

static void complain(const char *page, const char *what, const char *name) {
    if (wrong++ < WRONG_MOST) print_error("%s: %s: %s\n", page, what, name);
}

static bool exists(const char *path) {
    struct stat s;
    return stat(path, &s) == 0;
}

/* Calls `visit` with every file under `folder` whose name ends so. */
static void each_file(const char *folder, const char *end, void (*visit)(const char *)) {
    DIR *d = opendir(folder);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        char path[PATH_ROOM];
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        struct stat s;
        if (stat(path, &s) != 0) continue;
        size_t n = strlen(path), m = strlen(end);
        if (S_ISDIR(s.st_mode))
            each_file(path, end, visit);
        else if (n >= m && strcmp(path + n - m, end) == 0)
            visit(path);
    }
    closedir(d);
}

/* The name of a heading as GitHub makes it: lower case, without punctuation, spaces as dashes. What
 * is not ASCII stays, except the few signs that headings here have. */
static void slug_of(const char *heading, size_t length, char *slug) {
    size_t n = 0;
    for (size_t i = 0; i < length && n + 1 < SLUG_ROOM; i++) {
        unsigned char c = (unsigned char)heading[i];
        if (c == ' ')
            slug[n++] = '-';
        else if (isalnum(c) || c == '-' || c == '_' || c >= 0x80)
            slug[n++] = (char)tolower(c);
    }
    slug[n] = 0;
}

static bool has_heading(const char *page, const char *name) {
    char *text = file_read(page, NULL), slug[SLUG_ROOM];
    bool found = false, code = false;
    for (const char *line = text; *line && !found;) {
        size_t n = strcspn(line, "\n"), marks = strspn(line, "#");
        if (strncmp(line, "```", 3) == 0) code = !code;
        if (!code && marks > 0 && line[marks] == ' ') {
            slug_of(line + marks + 1, n - marks - 1, slug);
            found = strcmp(slug, name) == 0;
        }
        line += n + (line[n] == '\n');
    }
    free(text);
    return found;
}

static void check_link(const char *page, const char *target) {
    if (strstr(target, "://") || strncmp(target, "mailto:", 7) == 0) return;
    links++;
    char path[PATH_ROOM];
    const char *mark = strchr(target, '#'), *slash = strrchr(page, '/');
    int length = mark ? (int)(mark - target) : (int)strlen(target);
    int folder = slash && length > 0 ? (int)(slash - page + 1) : 0;
    snprintf(path, sizeof path, "%.*s%.*s", folder, page, length, target);
    if (length == 0) snprintf(path, sizeof path, "%s", page);
    if (!exists(path))
        complain(page, "this link leads nowhere", target);
    else if (mark && !has_heading(path, mark + 1))
        complain(page, "there is no such heading", target);
}

/* Names that stand for many have a word in capitals, an ellipsis or a choice in them; /my- and
 * /mine are the reader's own. */
static bool stands_for_many(const char *name) {
    if (strstr(name, "/my-") || strstr(name, "/mine")) return true;
    if (strpbrk(name, "<>{}|$%\"'()") || strstr(name, "…") || strstr(name, "...")) return true;
    static const char *files[] = {"README", "CHANGELOG", "CONFIGS", "CASES", "LICENSE"};
    for (const char *c = name; *c; c++) {
        size_t capitals = 0;
        while (isupper((unsigned char)c[capitals]))
            capitals++;
        bool known = false;
        for (size_t i = 0; i < sizeof files / sizeof *files; i++)
            known = known || strncmp(c, files[i], strlen(files[i])) == 0;
        bool alone =
            !isalnum((unsigned char)c[capitals]) && (c == name || !isalnum((unsigned char)c[-1]));
        if (!known && (capitals > 1 || (capitals == 1 && alone))) return true;
        if (known) c += capitals - 1;
    }
    return false;
}

static const char *folders[] = {"src/",     "include/",  "docs/", "tests/",      "bench/",
                                "scripts/", "examples/", "mk/",   "defconfigs/", "python/"};

static void check_path(const char *page, const char *name) {
    bool ours = false;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        ours = ours || strncmp(name, folders[i], strlen(folders[i])) == 0;
    if (!ours || stands_for_many(name)) return;
    paths++;
    glob_t found;
    if (glob(name, GLOB_NOSORT, NULL, &found) != 0)
        complain(page, "there is no such file", name);
    else
        globfree(&found);
}

/* Every word in backquotes of a page. A command's words are looked at one by one. */
static void check_quoted(const char *page, char *text) {
    for (char *at = text; (at = strchr(at, '`'));) {
        size_t n = strcspn(at + 1, "`\n");
        if (at[1 + n] != '`') {
            at++;
            continue;
        }
        char *end = at + 1 + n, *save = NULL;
        *end = 0;
        for (char *word = strtok_r(at + 1, " ,;", &save); word; word = strtok_r(NULL, " ,;", &save))
            check_path(page, word);
        at = end + 1;
    }
}

static void check_page(const char *page) {
    char *text = file_read(page, NULL);
    for (char *at = text; (at = strstr(at, "](")); at++) {
        size_t n = strcspn(at + 2, ")\n");
        char target[PATH_ROOM];
        if (at[2 + n] != ')' || n >= sizeof target) continue;
        snprintf(target, sizeof target, "%.*s", (int)n, at + 2);
        check_link(page, target);
    }
    check_quoted(page, text);
    free(text);
}

/* Names of documentation pages in a file that is not one. */
static void check_mentions(const char *file) {
    static regex_t page;
    static bool ready;
    if (!ready)
        assert_int_equal(regcomp(&page, "docs/[A-Za-z0-9_/.-]*[.](md|1|svg|png)", REG_EXTENDED), 0);
    ready = true;
    char *text = file_read(file, NULL);
    regmatch_t m;
    for (const char *at = text; regexec(&page, at, 1, &m, 0) == 0; at += m.rm_eo) {
        char name[PATH_ROOM];
        snprintf(name, sizeof name, "%.*s", (int)(m.rm_eo - m.rm_so), at + m.rm_so);
        paths++;
        if (!exists(name)) complain(file, "there is no such page", name);
    }
    free(text);
}

TEST(test_links_and_paths_of_the_documentation_exist) {
    wrong = 0;
    check_page("README.md");
    check_page("CHANGELOG.md");
    check_page("CONTRIBUTING.md");
    check_page("SECURITY.md");
    each_file("docs", ".md", check_page);
    if (wrong) fail_msg("%d links or paths lead nowhere", wrong);
    assert_true(links > 50 && paths > 50);
}

TEST(test_pages_that_sources_name_exist) {
    wrong = 0;
    static const char *ends[] = {".c", ".h", ".cu", ".cuh", ".mk", ".py"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        each_file("src", ends[i], check_mentions);
        each_file("include", ends[i], check_mentions);
        each_file("bench", ends[i], check_mentions);
        each_file("mk", ends[i], check_mentions);
    }
    each_file("scripts", "", check_mentions);
    each_file("defconfigs", "", check_mentions);
    check_mentions("Makefile");
    if (wrong) fail_msg("%d pages are named that do not exist", wrong);
}

/* The test must be able to fail. */
TEST(test_what_is_wrong_is_found) {
    int before = wrong;
    wrong = WRONG_MOST; /* counts, and prints nothing */
    check_link("docs/README.md", "guide/building.md");
    check_link("docs/README.md", "../README.md#findings");
    check_path("README.md", "src/core/graph.c");
    check_path("README.md", "src/FOLDER/file.c");
    assert_int_equal(wrong, WRONG_MOST);
    check_link("docs/README.md", "guide/nothing.md");
    check_link("docs/README.md", "../README.md#nothing");
    check_path("README.md", "src/core/nothing.c");
    check_path("README.md", "src/core/nothing*.c");
    assert_int_equal(wrong, WRONG_MOST + 4);
    wrong = before;
}

RUN_TESTS(NULL, NULL)
