/* Reading the text that the reference packs with gzip, a tensor a line: NAME SHAPE NUMBER [NUMBER]. */
#include "vectors.h"

#include "base/random.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct vectors {
    int n;
    vector *entry; /* sorted by name */
};

/* "2x3", or "-" of a single number. */
static bool parse_shape(const char *at, vector *e) {
    e->count = 1;
    if (!strcmp(at, "-")) return true;
    for (char *end; e->ndim < VECTOR_MOST_DIMS; at = end + 1) {
        e->shape[e->ndim] = strtoll(at, &end, 10);
        e->count *= e->shape[e->ndim++];
        if (*end != 'x') return *end == '\0' && end != at;
    }
    return false;
}

static bool parse_line(const char *line, vector *e) {
    char shape[64];
    *e = (vector){0};
    int n = sscanf(line, "%63s %63s %la %la", e->name, shape, &e->kept[0], &e->kept[1]);
    return n >= 3 && parse_shape(shape, e) && n == 2 + (e->count < 2 ? 1 : VECTOR_SUMS);
}

/* Of a config: its lines are between the one that is its name and the next name, which has no blank. */
static bool read_lines(vectors *v, FILE *from, const char *config) {
    char line[256];
    bool its = !config;
    for (int room = 0; fgets(line, sizeof line, from);) {
        if (config && !strchr(line, ' ')) {
            line[strcspn(line, "\n")] = '\0';
            its = !strcmp(line, config);
            continue;
        }
        if (!its) continue;
        if (v->n == room) {
            room = room ? 2 * room : 64;
            v->entry = realloc(v->entry, (size_t)room * sizeof *v->entry);
        }
        if (!parse_line(line, &v->entry[v->n++])) return false;
    }
    return v->n > 0;
}

vectors *vectors_open(const char *family, const char *config) {
    char command[256];
    snprintf(command, sizeof command, "gzip -dc 'tests/vectors/%s.gz'", family);
    vectors *v = calloc(1, sizeof *v);
    FILE *from = popen(command, "r");
    bool good = from && read_lines(v, from, config);
    if (from && pclose(from) == 0 && good) return v;
    fprintf(stderr, "tests/vectors/%s.gz: not a file of kept vectors; `make vectors` makes it\n",
            family);
    vectors_close(v);
    return NULL;
}

void vectors_close(vectors *v) {
    if (!v) return;
    for (int i = 0; i < v->n; i++)
        free(v->entry[i].data);
    free(v->entry);
    free(v);
}

int vectors_begin(const vectors *v, vector **first, const char *format, ...) {
    char start[96];
    va_list args;
    va_start(args, format);
    vsnprintf(start, sizeof start, format, args);
    va_end(args);
    int i = 0, n = 0;
    while (i < v->n && strncmp(v->entry[i].name, start, strlen(start)) != 0)
        i++;
    while (i + n < v->n && !strncmp(v->entry[i + n].name, start, strlen(start)))
        n++;
    if (first) *first = n ? &v->entry[i] : NULL;
    return n;
}

static int compare_names(const void *key, const void *entry) {
    return strcmp(key, ((const vector *)entry)->name);
}

vector *vectors_find(const vectors *v, const char *format, ...) {
    char name[96];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    return bsearch(name, v->entry, (size_t)v->n, sizeof *v->entry, compare_names);
}

/* Element i's weight in sum k: of either sign, and between a half and one. */
static double weight_of(uint32_t key, uint32_t site, int64_t i) {
    double x = 2 * weft_random_unit(weft_random_word(key, 0, 0, site, (uint64_t)i)) - 1;
    return (x < 0 ? x - 1 : x + 1) / 2;
}

double vector_gap(const vector *ref, const double *got) {
    bool whole = ref->count <= VECTOR_SUMS;
    uint32_t key = weft_random_site(ref->name);
    double most = 0;
    for (int k = 0; k < (whole ? ref->count : VECTOR_SUMS); k++) {
        char site[16];
        snprintf(site, sizeof site, "sum %d", k);
        uint32_t at = weft_random_site(site);
        long double sum = whole ? got[k] : 0;
        for (int64_t i = 0; !whole && i < ref->count; i++)
            sum += (long double)weight_of(key, at, i) * got[i];
        double gap = fabs((double)(sum - ref->kept[k]));
        most = gap <= most ? most : isnan(gap) ? INFINITY : gap;
    }
    return most;
}

double vector_norm(const double *values, int64_t n) {
    double squares = 0;
    for (int64_t i = 0; i < n; i++)
        squares += values[i] * values[i];
    return sqrt(squares);
}
