/* Notes and tags of runs, in a small SQLite database beside them: notes.db in the folder that is
 * watched, made with the first note. Runs are named by their path from that folder, so that the tree
 * can be moved. */
#ifndef WEFT_RECORD_NOTES_H
#define WEFT_RECORD_NOTES_H

#include "base/error.h"

enum { WEFT_NOTE_MOST = 1 << 16 }; /* bytes of a note, and of its tags */

typedef struct weft_notes weft_notes;

weft_status weft_notes_open(const char *folder, weft_notes **out);
void weft_notes_close(weft_notes *n);

/* malloc'd texts, NULL where there are none, and with NULL for `n`. */
void weft_notes_get(weft_notes *n, const char *run, char **note, char **tags);
/* WEFT_EINPUT: a text is too long, or the database is not weft's. */
weft_status weft_notes_set(weft_notes *n, const char *run, const char *note, const char *tags);

#endif
