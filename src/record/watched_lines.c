/* Lines, some of which are kept. */
#include "base/text.h"
#include "record/watched.h"

#include "base/folders.h"
#include "base/json.h"

#include <errno.h>
#include <math.h>

enum { LINE_MOST = 1 << 16, ROWS_MOST = 2000 /* that are kept */ };

void weft_watched_lines_clear(weft_watched_lines *l) {
    free(l->rows);
    *l = (weft_watched_lines){.every = {1, 1}, .val_loss = NAN, .best_val_loss = NAN};
}

static bool is_evaluation(const weft_watched_row *r) {
    return isfinite(r->value[WEFT_ROW_VAL_LOSS]);
}

static void keep_row(weft_watched_lines *l, const weft_watched_row *row) {
    bool kind = is_evaluation(row);
    if (l->n_read[kind]++ % l->every[kind] != 0) return;
    if (l->n == ROWS_MOST) {
        /* Every second row is forgotten, and from now on every second line. Evaluations stay as long as they are few. */
        int64_t kept = 0, evaluations = 0, seen[2] = {0};
        for (int64_t i = 0; i < l->n; i++)
            evaluations += is_evaluation(&l->rows[i]);
        bool many = evaluations >= ROWS_MOST / 2;
        for (int64_t i = 0; i < l->n; i++) {
            bool own = is_evaluation(&l->rows[i]);
            if (seen[own]++ % 2 == 0 || (own && !many)) l->rows[kept++] = l->rows[i];
        }
        l->n = kept;
        l->every[0] *= 2;
        l->every[1] <<= many;
    }
    if (weft_grow_list(&l->rows, &l->room, l->n + 1, sizeof *l->rows)) l->rows[l->n++] = *row;
}

static void add_line(void *context, const json_t *line) {
    weft_watched_lines *l = context;
    static const char *const keys[WEFT_ROW_VALUES] = {"step",      "loss",         "val_loss", "lr",
                                                      "grad_norm", "tokens_per_s", "mfu"};
    weft_watched_row row = {.version = l->version};
    for (int i = 0; i < WEFT_ROW_VALUES; i++)
        row.value[i] = weft_json_number_of(line, keys[i]);
    if (!isfinite(row.value[WEFT_ROW_STEP])) return;
    double val = row.value[WEFT_ROW_VAL_LOSS];
    if (isfinite(val)) l->val_loss = val;
    if (val < l->best_val_loss || isnan(l->best_val_loss)) l->best_val_loss = val;
    double steps = row.value[WEFT_ROW_STEP] - l->last.value[WEFT_ROW_STEP];
    double speed = row.value[WEFT_ROW_TOKENS_PER_S];
    if (steps > 0 && speed > 0) {
        l->timed += steps;
        l->times += steps / speed;
    }
    keep_row(l, &row);
    l->last = row;
}

weft_status weft_lines_follow(int file, weft_lines_place *place, int64_t *budget,
                              weft_line_taker take, void *context) {
    WEFT_AUTO_FREE char *block = malloc(LINE_MOST);
    ssize_t n = 0;
    if (!block) return weft_fail(WEFT_ENOMEM, "metrics.jsonl: no memory to read it");
    while (*budget > 0 && (n = pread(file, block, LINE_MOST, (off_t)place->read)) > 0) {
        size_t bytes = (size_t)n, taken = 0; /* by the lines of the block that are whole */
        for (const char *end; (end = memchr(block + taken, '\n', bytes - taken));) {
            size_t length = (size_t)(end - block) - taken + 1;
            WEFT_AUTO_DECREF json_t *object =
                place->skipping ? NULL : weft_json_read(block + taken, length, 0, NULL);
            if (object) take(context, object);
            place->skipping = false;
            taken += length;
        }
        if (taken == 0 && n < LINE_MOST && !place->skipping) break;
        if (taken == 0) {
            place->skipping = true;
            taken = (size_t)n;
        }
        place->n_tail = taken < sizeof place->tail ? taken : sizeof place->tail;
        memcpy(place->tail, block + taken - place->n_tail, place->n_tail);
        place->read += (int64_t)taken;
        *budget -= (int64_t)taken;
    }
    return n < 0 ? weft_fail(WEFT_EIO, "metrics.jsonl: %s", strerror(errno)) : WEFT_OK;
}

/* Whether what was read is no longer what is there. A run that is resumed cuts off lines and writes others
 * in their place, perhaps as many before the next look. */
static bool is_other(weft_lines_place *p, int file) {
    char tail[sizeof p->tail];
    struct stat is;
    uint64_t before = p->file;
    if (fstat(file, &is) == 0) p->file = (uint64_t)is.st_ino;
    if (p->read == 0) return false;
    ssize_t n = pread(file, tail, p->n_tail, (off_t)(p->read - (int64_t)p->n_tail));
    return p->file != before || n != (ssize_t)p->n_tail || memcmp(tail, p->tail, p->n_tail) != 0;
}

bool weft_watched_lines_read(weft_watched_lines *l, int folder, int64_t bytes, int64_t version,
                             int64_t *budget) {
    WEFT_AUTO_CLOSE int file = -1;
    bool there = weft_below_file(folder, "metrics.jsonl", &file) == WEFT_OK;
    bool anew = there ? is_other(&l->place, file) : l->place.read > 0;
    if (anew) {
        uint64_t number = l->place.file;
        weft_watched_lines_clear(l);
        l->place.file = number;
    }
    l->more = false;
    if (!there) return anew;
    l->version = version;
    weft_lines_follow(file, &l->place, budget, add_line, l);
    l->more = *budget <= 0 && l->place.read < bytes;
    return anew;
}

static json_t *row_json(const weft_watched_row *r) {
    WEFT_JSON_LIST(list, i, WEFT_ROW_VALUES, weft_json_number(r->value[i]));
    return list;
}

json_t *weft_watched_lines_json(const weft_watched_lines *l, int64_t after) {
    int64_t first = l->n;
    while (first > 0 && l->rows[first - 1].version > after)
        first--;
    WEFT_JSON_LIST(list, i, l->n - first, row_json(&l->rows[first + i]));
    const weft_watched_row *end = &l->last;
    bool told = first < l->n && memcmp(l->rows[l->n - 1].value, end->value, sizeof end->value) == 0;
    if (!told && l->n && end->version > after) json_array_append_new(list, row_json(end));
    return list;
}
