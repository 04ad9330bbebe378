/* Runs and studies under some folders, looked at again and again while others write them.
 *
 * A folder with a metrics.jsonl is a run, one with a runs.db a study. Each look reads what was added
 * since the last: files that did not change are not opened, and of a metrics.jsonl only its new lines
 * are read. No link in those folders is followed. Every change has a number, so that several readers can each be told what is new to them.
 * Nothing is written but notes and tags, into a database of their own (below), and nothing is
 * locked: a run never waits for whoever watches it. */
#pragma once

#include "base/error.h"

#include <jansson.h>

typedef struct weft_watched weft_watched;

/* `notes`: whether notes and tags are kept, in the first folder; then folders may be missing, and are watched from
 * when they are made. */
weft_status weft_watched_open(const char *const *folders, int n, bool notes, weft_watched **out);
void weft_watched_close(weft_watched *w);
WEFT_ENDED_BY(weft_watched_close, weft_watched)

/* Looks at everything; false: there are lines that are left for the next look. */
bool weft_watched_look(weft_watched *w);
/* The number of the last change. */
int64_t weft_watched_version(const weft_watched *w);

/* What changed after the change of that number; 0: everything. NULL: nothing, or no memory.
 *
 *   {"version": N,
 *    "studies": [{"id", "name", "waiting", "running", "done", "failed"}],
 *    "runs": [{"id", "name", "title", "study", "status", "step", "steps", "tokens_per_step", "loss",
 *              "val_loss", "best_val_loss", "tokens_per_s", "mfu", "seconds_left",
 *              "bytes_per_token" of the held-out text, once the run has ended, "note", "tags", "reset", "options": {"KEY": value that is not the default}, "rows": [[..]]}]}
 *
 * With everything comes "defaults": {"KEY": value}, what an option is that a run does not name.
 *
 * A row is [step, loss, val_loss, lr, grad_norm, tokens_per_s, mfu], null where there is none; rows are those after
 * that change, or all of them where "reset" is true. `status` is waiting, running, done, stopped, diverged or ended: it
 * does not run and did not say how it ended. `title` is that of its variant in the study, or null. */
json_t *weft_watched_news(const weft_watched *w, int64_t after);

int weft_watched_count(const weft_watched *w);
/* Whether there are runs that are not looked at, because there are too many. */
bool weft_watched_is_full(const weft_watched *w);
/* A run's folder, open, for base/folders.h; the caller closes it. -1: there is no such number, or it is a
 * folder no longer. */
int weft_watched_folder(const weft_watched *w, int64_t id);

/* The end of a run's log, at most `most` bytes, or of its samples where they are meant or there is no log;
 * malloc'd. NULL: there is neither. */
char *weft_watched_tail(const weft_watched *w, int64_t id, bool samples, size_t most);

weft_status weft_watched_note(weft_watched *w, int64_t id, const char *note, const char *tags);

/* Notes and tags of runs (record/notes.c), in a small SQLite database beside them: notes.db in the folder that is
 * watched, made with the first note. Runs are named by their path from that folder, so that the tree can be moved. */
enum { WEFT_NOTE_MOST = 1 << 16 }; /* bytes of a note, and of its tags */

typedef struct weft_notes weft_notes;

weft_status weft_notes_open(const char *folder, weft_notes **out);
void weft_notes_close(weft_notes *n);
WEFT_ENDED_BY(weft_notes_close, weft_notes)

/* malloc'd texts, NULL where there are none, and with NULL for `n`. */
void weft_notes_get(weft_notes *n, const char *run, char **note, char **tags);
/* WEFT_EINPUT: a text is too long, or the database is not weft's. */
weft_status weft_notes_set(weft_notes *n, const char *run, const char *note, const char *tags);

/* The lines of a run's metrics.jsonl, as the live page has them: read as they are written, a bounded number kept.
 *
 * Where they are more, every second is forgotten, then every second of those that are left; of the lines that follow as
 * many are kept as of those before. One look reads a bounded number of bytes, so that whoever asks meanwhile waits for
 * a moment and not for a file. */

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
    bool more;                    /* there are lines for which the last look had no bytes left */
    weft_watched_row *rows, last; /* the last is told even where it is not kept */
    int64_t n, room;
    int64_t n_read[2], every[2];    /* of other lines, of evaluations: one in so many is kept */
    double val_loss, best_val_loss; /* the last and the lowest of all; NaN: none */
    int64_t version;                /* of the change that lines come with */
    double timed, times; /* steps whose speed is known, and each over its speed, summed */
} weft_watched_lines;

/* Forgets them all, or begins. */
void weft_watched_lines_clear(weft_watched_lines *l);
/* Reads what is new in `folder`, of a file of so many bytes, and takes what it read off `budget`. Whether
 * it began anew: the file is gone, or another, or was written over where it had been read. */
bool weft_watched_lines_read(weft_watched_lines *l, int folder, int64_t bytes, int64_t version,
                             int64_t *budget);
/* Those that came after a change, [[step, loss, ..], ..]; the last of them always. */
json_t *weft_watched_lines_json(const weft_watched_lines *l, int64_t after);
