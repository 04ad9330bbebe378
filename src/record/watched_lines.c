/* Lines, some of which are kept. */
#include "record/watched_lines.h"

#include "base/below.h"
#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LINE_MOST = 1 << 16,
    ROWS_MOST = 4096, /* that are kept */
    ROWS_TOLD = 2000  /* about so many in one answer */
};

void weft_watched_lines_clear(weft_watched_lines *l) {
    free(l->rows);
    *l = (weft_watched_lines){.every = 1, .val_loss = NAN, .best_val_loss = NAN};
}

static bool is_evaluation(const weft_watched_row *r) {
    return isfinite(r->value[WEFT_ROW_VAL_LOSS]);
}

/* Every second row is forgotten, and from now on every second line. Evaluations stay as long as they
 * are few. */
static void thin_rows(weft_watched_lines *l) {
    int64_t kept = 0, evaluations = 0;
    for (int64_t i = 0; i < l->n; i++)
        evaluations += is_evaluation(&l->rows[i]);
    l->sparse = evaluations >= ROWS_MOST / 4;
    for (int64_t i = 0; i < l->n; i++)
        if (i % 2 == 0 || (is_evaluation(&l->rows[i]) && !l->sparse)) l->rows[kept++] = l->rows[i];
    l->n = kept;
    l->every *= 2;
}

static void keep_row(weft_watched_lines *l, const weft_watched_row *row) {
    if (l->n_read++ % l->every != 0 && (l->sparse || !is_evaluation(row))) return;
    if (l->n == ROWS_MOST) thin_rows(l);
    if (l->n == l->room) {
        int64_t room = l->room ? 2 * l->room : 256;
        weft_watched_row *grown = realloc(l->rows, (size_t)room * sizeof *grown);
        if (!grown) return;
        l->rows = grown;
        l->room = room;
    }
    l->rows[l->n++] = *row;
}

static void add_line(weft_watched_lines *l, const json_t *line, int64_t version) {
    static const char *const keys[WEFT_ROW_VALUES] = {"step",      "loss",         "val_loss", "lr",
                                                      "grad_norm", "tokens_per_s", "mfu"};
    weft_watched_row row = {.version = version};
    for (int i = 0; i < WEFT_ROW_VALUES; i++)
        row.value[i] = weft_json_number_of(line, keys[i]);
    if (!isfinite(row.value[WEFT_ROW_STEP])) return;
    double val = row.value[WEFT_ROW_VAL_LOSS];
    if (isfinite(val)) l->val_loss = val;
    if (val < l->best_val_loss || isnan(l->best_val_loss)) l->best_val_loss = val;
    keep_row(l, &row);
    l->last = row;
}

/* The lines of a block that are whole; the bytes that they take. */
static size_t add_block(weft_watched_lines *l, const char *block, size_t bytes, int64_t version) {
    size_t at = 0;
    for (const char *end; at < bytes && (end = memchr(block + at, '\n', bytes - at));) {
        size_t n = (size_t)(end - block) - at + 1;
        json_t *object = l->skipping ? NULL : weft_json_read(block + at, n, 0, NULL);
        if (object) add_line(l, object, version);
        json_decref(object);
        l->skipping = false;
        at += n;
    }
    return at;
}

/* A torn line is read when it is whole; one that is too long is passed over. */
void weft_watched_lines_read(weft_watched_lines *l, int folder, int64_t bytes, int64_t version,
                             int64_t *budget) {
    int file;
    ssize_t n;
    char *block = malloc(LINE_MOST);
    l->more = false;
    if (block && weft_below_file(folder, "metrics.jsonl", &file) == WEFT_OK) {
        while (*budget > 0 && (n = pread(file, block, LINE_MOST, (off_t)l->read)) > 0) {
            size_t taken = add_block(l, block, (size_t)n, version);
            if (taken == 0 && n < LINE_MOST && !l->skipping) break;
            if (taken == 0) {
                l->skipping = true;
                taken = (size_t)n;
            }
            l->read += (int64_t)taken;
            *budget -= (int64_t)taken;
        }
        l->more = *budget <= 0 && l->read < bytes;
        close(file);
    }
    free(block);
}

static json_t *row_json(const weft_watched_row *r) {
    json_t *list = json_array();
    for (int i = 0; list && i < WEFT_ROW_VALUES; i++)
        json_array_append_new(list, weft_json_number(r->value[i]));
    return list;
}

json_t *weft_watched_lines_json(const weft_watched_lines *l, int64_t after) {
    json_t *list = json_array();
    const weft_watched_row *told = NULL;
    int64_t first = l->n, evaluations = 0;
    while (first > 0 && l->rows[first - 1].version > after)
        evaluations += is_evaluation(&l->rows[--first]);
    int64_t every = (l->n - first) / ROWS_TOLD + 1;
    for (int64_t i = first; list && i < l->n; i++) {
        bool few = evaluations < ROWS_TOLD / 2;
        if ((i - first) % every != 0 && !(few && is_evaluation(&l->rows[i]))) continue;
        told = &l->rows[i];
        json_array_append_new(list, row_json(told));
    }
    bool all = told && memcmp(told->value, l->last.value, sizeof told->value) == 0;
    if (list && !all && l->n && l->last.version > after)
        json_array_append_new(list, row_json(&l->last));
    return list;
}
