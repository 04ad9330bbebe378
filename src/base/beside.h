/* The file or folder beside: NAME.PID-N.tmp, which is written and then becomes NAME (files.h, new_folder.h).
 *
 * Whoever writes one holds a lock on it until it has its name, and the system lets go of the lock when the
 * process ends, however it ends. A file also has its sticky bit set, which means nothing for a plain file and
 * which no other program sets: the mark of a file that weft made; a folder has the mark of folders.h. One with the mark that nobody holds was
 * left by a kill, and whoever next writes NAME removes it; a file of the user's that happens to have such a
 * name stays. Process numbers do not decide: other containers and machines have the same ones. */
#ifndef WEFT_BASE_BESIDE_H
#define WEFT_BASE_BESIDE_H

#include "base/files.h"

/* How the names of files and folders beside end; the second, of a folder whose name was taken from it. */
#define WEFT_BESIDE_TAIL ".tmp"
#define WEFT_BESIDE_OLD ".old"

/* Whether `name` is a file beside `own`, both without folders. */
bool weft_is_beside(const char *name, const char *own);

/* A new one for `path`, marked, locked where the file system has locks, open for writing. -1 and errno on an
 * error; `out` then is the name that was tried last, or empty. */
int weft_beside_open(const char *path, char out[WEFT_PATH_MAX]);

/* The same of a folder, open for reading. Its caller gives it the mark of folders.h too; the bit tells one
 * that is empty, before it has that mark and when it has it no more. */
int weft_beside_make(const char *path, char out[WEFT_PATH_MAX]);

/* Marks a folder that is to be removed. */
void weft_beside_mark(int fd);
/* Takes the mark away from one that has got its name. Where that fails, a file keeps a bit that means
 * nothing. */
void weft_beside_unmark(int fd);

/* Removes those of `path` that a kill has left: plain files and folders of this user under such a name, with
 * the mark, that nobody holds. A folder that lost its name to one that never got it gets it back. All else
 * stays. An error where the folder cannot be read. */
weft_status weft_beside_clear(const char *path);

#endif
