/* The case table: a text line is parsed once into words; its hash is the key of all its values. */
#include "table.h"

#include "base/random.h"
#include "ops/list.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Copies a line without its comment, words joined by one space. */
static void join_words(const char *from, char *to) {
    char *start = to;
    for (; *from && *from != '#'; from++) {
        if (!isspace((unsigned char)*from))
            *to++ = *from;
        else if (to > start && to[-1] != ' ')
            *to++ = ' ';
    }
    if (to > start && to[-1] == ' ') to--;
    *to = '\0';
}

static bool parse_line(case_line *line, const char *text) {
    *line = (case_line){.text = strdup(text), .words = strdup(text)};
    line->hash = weft_random_site(text);
    char *rest = NULL;
    line->name = strtok_r(line->words, " ", &rest);
    for (char *word; (word = strtok_r(NULL, " ", &rest));) {
        char *equals = strchr(word, '=');
        if (!equals || line->n == CASE_MOST_WORDS) return false;
        *equals = '\0';
        line->key[line->n] = word;
        line->value[line->n++] = equals + 1;
    }
    return true;
}

static void *grow(void *memory, size_t bytes) {
    void *more = realloc(memory, bytes);
    if (!more) abort();
    return more;
}

/* The operations of one element: a line of the case `unary` stands for a line of each. */
static const char *const unary[] = {
#define UNARY(X, name, value, reads, gradient) #name,
    WEFT_UNARY_OPS(UNARY, )
#undef UNARY
};
enum { UNARY = sizeof unary / sizeof *unary };

int case_lines_read(const char *family, case_line **out) {
    char path[256];
    snprintf(path, sizeof path, "tests/ops/cases/%s.txt", family);
    return case_lines_read_file(path, out);
}

int case_lines_read_file(const char *path, case_line **out) {
    char raw[512], text[512];
    FILE *file = fopen(path, "r");
    if (!file) {
        fprintf(stderr, "%s: cannot be read (tests run from the repository's root)\n", path);
        return -1;
    }
    int n = 0, room = 0;
    case_line *lines = NULL;
    while (fgets(raw, sizeof raw, file)) {
        join_words(raw, text);
        if (!*text) continue;
        bool all = strncmp(text, "unary ", 6) == 0;
        for (int i = 0; i < (all ? UNARY : 1); i++) {
            if (n == room) {
                room = room ? 2 * room : 64;
                lines = grow(lines, (size_t)room * sizeof *lines);
            }
            snprintf(raw, sizeof raw, "%s%s", all ? unary[i] : "", all ? text + 5 : text);
            if (parse_line(&lines[n++], raw)) continue;
            fprintf(stderr, "%s: `%s` is not NAME KEY=VALUE ...\n", path, raw);
            case_lines_free(lines, n);
            fclose(file);
            return -1;
        }
    }
    fclose(file);
    *out = lines;
    return n;
}

void case_lines_free(case_line *lines, int n) {
    for (int i = 0; i < n; i++) {
        free(lines[i].text);
        free(lines[i].words);
    }
    free(lines);
}

const char *case_line_find(const case_line *line, const char *key) {
    for (int i = 0; i < line->n; i++)
        if (!strcmp(line->key[i], key)) return line->value[i];
    return NULL;
}

double case_line_number(const case_line *line, const char *key, double fallback) {
    const char *value = case_line_find(line, key);
    return value ? strtod(value, NULL) : fallback;
}

int64_t case_line_int(const case_line *line, const char *key, int64_t fallback) {
    const char *value = case_line_find(line, key);
    return value ? strtoll(value, NULL, 10) : fallback;
}

static int compare_words(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

void case_line_options(const case_line *line, char *out, int size) {
    const char *keys[CASE_MOST_WORDS] = {0};
    int n = 0;
    for (int i = 0; i < line->n; i++)
        if (islower((unsigned char)line->key[i][0]) && strcmp(line->key[i], "seed") != 0)
            keys[n++] = line->key[i];
    qsort(keys, (size_t)n, sizeof *keys, compare_words);
    int used = snprintf(out, (size_t)size, "%s", line->name);
    for (int i = 0; i < n && used < size; i++)
        used += snprintf(out + used, (size_t)(size - used), " %s=%s", keys[i],
                         case_line_find(line, keys[i]));
}

double case_unit(uint32_t hash, const char *name, int64_t index) {
    return weft_random_unit(weft_random_word(hash, 0, 0, weft_random_site(name), (uint64_t)index));
}

void case_draw(uint32_t hash, const char *name, double scale, int64_t n, double *out) {
    uint32_t site = weft_random_site(name);
    for (int64_t i = 0; i < n; i++)
        out[i] =
            scale * (2 * weft_random_unit(weft_random_word(hash, 0, 0, site, (uint64_t)i)) - 1);
}
