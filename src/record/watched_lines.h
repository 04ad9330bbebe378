/* The lines of a run's metrics.jsonl, as the live page has them: read as they are written, a bounded
 * number kept.
 *
 * Where they are more, every second is forgotten, then every second of those that are left; of the lines
 * that follow as many are kept as of those before. One look reads a bounded number of bytes, so that
 * whoever asks meanwhile waits for a moment and not for a file. */
#pragma once

#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    WEFT_ROW_STEP,
    WEFT_ROW_LOSS,
    WEFT_ROW_VAL_LOSS,
    WEFT_ROW_LR,
    WEFT_ROW_GRAD_NORM,
    WEFT_ROW_TOKENS_PER_S,
    WEFT_ROW_MFU,
    WEFT_ROW_VALUES
};

typedef struct {
    double value[WEFT_ROW_VALUES]; /* NaN: none */
    int64_t version;               /* of the change that it came with */
} weft_watched_row;

/* How far a file of lines is read. */
typedef struct {
    int64_t read;   /* bytes */
    bool skipping;  /* in the middle of a line that is too long */
    char tail[256]; /* the last of what was read, */
    size_t n_tail;  /* so many bytes: in another file they are others */
    uint64_t file;  /* and its number is another */
} weft_lines_place;

typedef void (*weft_line_taker)(void *context, const json_t *line);
/* Gives the lines that follow, each of which is JSON by itself, to `take`; what was read is taken off
 * `budget`. A torn line is read when it is whole; one that is too long, or no JSON, is passed over. */
weft_status weft_lines_follow(int file, weft_lines_place *place, int64_t *budget,
                              weft_line_taker take, void *context);

typedef struct {
    weft_lines_place place;
    bool more;                      /* there are lines for which the last look had no bytes left */
    weft_watched_row *rows, last;   /* the last is told even where it is not kept */
    int64_t n, room, n_read, every; /* one in so many lines is kept */
    bool sparse;                    /* that holds of evaluations too: they are many */
    double val_loss, best_val_loss; /* the last and the lowest of all; NaN: none */
} weft_watched_lines;

/* Forgets them all, or begins. */
void weft_watched_lines_clear(weft_watched_lines *l);
/* Reads what is new in `folder`, of a file of so many bytes, and takes what it read off `budget`. Whether
 * it began anew: the file is gone, or another, or was written over where it had been read. */
bool weft_watched_lines_read(weft_watched_lines *l, int folder, int64_t bytes, int64_t version,
                             int64_t *budget);
/* Those that came after a change, [[step, loss, ..], ..]; the last of them always. */
json_t *weft_watched_lines_json(const weft_watched_lines *l, int64_t after);
