/* Lines of the case table (tests/ops/cases/FAMILY.txt) and the values they stand for: see
 * tests/ops/CASES.md. */
#ifndef WEFT_TESTS_TABLE_H
#define WEFT_TESTS_TABLE_H

#include <stdbool.h>
#include <stdint.h>

enum { CASE_MOST_WORDS = 32 };

typedef struct {
    char *text;       /* words joined by one space */
    char *words;      /* the same, cut into name, keys and values */
    const char *name; /* the operation */
    int n;            /* key=value words */
    const char *key[CASE_MOST_WORDS];
    const char *value[CASE_MOST_WORDS];
    uint32_t hash; /* FNV-1a of text: the key of its random numbers */
} case_line;

/* Reads a family's lines; '#' starts a comment. Returns how many, and the lines for the caller to
 * free with case_lines_free; -1 with a message on standard error when the file cannot be used. */
int case_lines_read(const char *family, case_line **out);
/* The same from another file. */
int case_lines_read_file(const char *path, case_line **out);
void case_lines_free(case_line *lines, int n);

/* The value of a key; NULL where the line has none. */
const char *case_line_find(const case_line *line, const char *key);
double case_line_number(const case_line *line, const char *key, double fallback);
int64_t case_line_int(const case_line *line, const char *key, int64_t fallback);

/* The operation and its options, sorted, without sizes and without `seed`: what makes a case
 * distinct. */
void case_line_options(const case_line *line, char *out, int size);

/* Element `index` of the stream `name` of a case, in [0, 1). An input's element is
 * scale · (2 · unit − 1). */
double case_unit(uint32_t hash, const char *name, int64_t index);
/* Fills out[0..n) with scale · (2u − 1). */
void case_draw(uint32_t hash, const char *name, double scale, int64_t n, double *out);

#endif
