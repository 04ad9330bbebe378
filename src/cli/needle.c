/* Lists of lengths and depths, and the table of what was found at each. */
#include "cli/needle.h"

#include "base/json.h"
#include "base/text.h"
#include "data/tasks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TRIALS = 10, LENGTH_MOST = 1 << 24, ITEM_ROOM = 32 };
static const double usual_depths[] = {0, 0.25, 0.5, 0.75, 1};

/* The next item of a list "a,b,c" at *at, which moves on; false: there is none. */
static bool next_item(const char **at, char item[ITEM_ROOM]) {
    if (!**at) return false;
    size_t n = strcspn(*at, ",");
    snprintf(item, ITEM_ROOM, "%.*s", (int)n, *at);
    *at += n + ((*at)[n] == ',');
    return true;
}

static int too_many(const weft_args *a, const char *option) {
    fprintf(stderr, "weft %s: %s has more than %d items\n", a->command, option, WEFT_NEEDLE_CELLS);
    return WEFT_EXIT_USAGE;
}

static int read_lengths(const weft_args *a, const char *list, weft_needle_options *out) {
    char item[ITEM_ROOM];
    for (out->n_lengths = 0; next_item(&list, item); out->n_lengths++) {
        if (out->n_lengths == WEFT_NEEDLE_CELLS) return too_many(a, "--lengths");
        int status =
            weft_args_number(a, "--lengths", item, 1, LENGTH_MOST, &out->lengths[out->n_lengths]);
        if (status) return status;
    }
    return WEFT_EXIT_DONE;
}

static int read_depths(const weft_args *a, const char *list, weft_needle_options *out) {
    char item[ITEM_ROOM];
    for (out->n_depths = 0; next_item(&list, item); out->n_depths++) {
        if (out->n_depths == WEFT_NEEDLE_CELLS) return too_many(a, "--depths");
        int status = weft_args_real(a, "--depths", item, 0, 1, &out->depths[out->n_depths]);
        if (status) return status;
    }
    return WEFT_EXIT_DONE;
}

/* A quarter, a half and the whole of the context, where the key's line and question fit. */
static void usual_lengths(int64_t block, weft_needle_options *out) {
    for (int64_t part = 4; part >= 1; part /= 2)
        if (block / part >= WEFT_NEEDLE_TIME || part == 1)
            out->lengths[out->n_lengths++] = block / part;
}

int weft_needle_args_read(const weft_args *a, const weft_needle_args *given, int64_t block,
                          weft_needle_options *out) {
    int status = WEFT_EXIT_DONE;
    out->trials = TRIALS;
    if (a->seed >= 0) out->seed = (uint64_t)a->seed;
    out->n_depths = (int)(sizeof usual_depths / sizeof usual_depths[0]);
    memcpy(out->depths, usual_depths, sizeof usual_depths);
    if (given->lengths)
        status = read_lengths(a, given->lengths, out);
    else
        usual_lengths(block, out);
    if (!status && given->depths) status = read_depths(a, given->depths, out);
    if (!status) status = weft_args_number(a, "--trials", given->trials, 1, 1000000, &out->trials);
    return status;
}

static void print_table(const weft_needle_options *o, const weft_needle_score *s) {
    char count[WEFT_COUNT_ROOM];
    printf("answers that are right, of %lld each\n   depth", (long long)o->trials);
    for (int i = 0; i < o->n_lengths; i++)
        printf(" %10s", weft_count_text(o->lengths[i], count));
    printf("  tokens\n");
    for (int d = 0; d < o->n_depths; d++) {
        printf("%8.3g", o->depths[d]);
        for (int i = 0; i < o->n_lengths; i++)
            printf(" %9.1f%%", 100 * s->cells[i][d].right);
        printf("\n");
    }
    printf("   cache");
    for (int i = 0; i < o->n_lengths; i++)
        printf(" %10s", weft_count_text(s->cache_bytes[i], count));
    printf("  bytes\n");
}

void weft_needle_print(const weft_args *a, const weft_needle_options *o,
                       const weft_needle_score *s) {
    if (!a->json) {
        print_table(o, s);
        return;
    }
    json_t *cells = json_array(), *caches = json_array();
    for (int i = 0; i < o->n_lengths; i++) {
        for (int d = 0; d < o->n_depths; d++)
            json_array_append_new(cells, json_pack("{s:I, s:f, s:f, s:f}", "length",
                                                   (json_int_t)o->lengths[i], "depth", o->depths[d],
                                                   "accuracy", s->cells[i][d].right,
                                                   "token_accuracy", s->cells[i][d].tokens));
        json_array_append_new(caches, json_pack("{s:I, s:I}", "length", (json_int_t)o->lengths[i],
                                                "bytes", (json_int_t)s->cache_bytes[i]));
    }
    json_t *object = json_pack("{s:I, s:o, s:o}", "trials", (json_int_t)o->trials, "needle", cells,
                               "cache", caches);
    json_dumpf(object, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    printf("\n");
    json_decref(object);
}
