/* The file or folder beside: NAME.PID-N.tmp, which is written and then becomes NAME: a file by files.h,
 * a folder as the second part here has it.
 *
 * Whoever writes one holds a lock on it until it has its name, and the system lets go of the lock when the
 * process ends, however it ends. A file also has its sticky bit set, which means nothing for a plain file and
 * which no other program sets: the mark of a file that weft made; a folder has the mark of folders.h. One with the mark that nobody holds was
 * left by a kill, and whoever next writes NAME removes it; a file of the user's that happens to have such a
 * name stays. Process numbers do not decide: other containers and machines have the same ones. */
#pragma once

#include "base/folders.h"

/* How the names of files and folders beside end; the second, of a folder whose name was taken from it. */
#define WEFT_BESIDE_TAIL ".tmp"
#define WEFT_BESIDE_OLD ".old"

/* Whether `name` is a file beside `own`, both without folders. */
bool weft_is_beside(const char *name, const char *own);

/* A new one for `path`, marked, locked where the file system has locks, open for writing. -1 and errno on an
 * error; `out` then is the name that was tried last, or empty. */
int weft_beside_open(const char *path, char out[WEFT_PATH_MAX]);

/* Takes the mark away from one that has got its name. Where that fails, a file keeps a bit that means
 * nothing. */
void weft_beside_unmark(int fd);

/* Removes those of `path` that a kill has left: plain files and folders of this user under such a name, with
 * the mark, that nobody holds. A folder that lost its name to one that never got it gets it back. All else
 * stays. An error where the folder cannot be read. */
weft_status weft_beside_clear(const char *path);

/* A folder that is written beside its place and gets its name when it is whole: the one way in which a
 * folder is published, as weft_new_file (files.h) is for a file.
 *
 * NAME.PID-N.tmp is made, marked (folders.h) and held by a lock; its caller fills it. At the end it is
 * synced and gets the name in one step. What had the name before is exchanged for it (renameat2 with
 * RENAME_EXCHANGE) and then removed, whole, so that nothing of it survives in the new one. Where the
 * system cannot exchange, the old one is first renamed to NAME.PID-N.old; a kill between the two renames
 * leaves it there, and whoever next writes NAME puts it back. What other kills leave is marked and held by
 * nobody: whoever next writes NAME removes it. */

typedef struct {
    int held; /* the folder beside, locked; -1: none */
    char path[WEFT_PATH_MAX], beside[WEFT_PATH_MAX];
} weft_new_folder;

/* WEFT_OK: what is at `path` may be replaced. */
typedef weft_status (*weft_may_replace)(const char *path);

/* Whether a folder may get this name: nothing or an empty folder is there, or something that `may` allows
 * to be replaced; NULL: nothing is. */
weft_status weft_new_folder_room(const char *path, weft_may_replace may);

/* Makes the folder beside, and those above it. */
weft_status weft_new_folder_begin(weft_new_folder *f, const char *path);
/* Gives it its name if `status` is WEFT_OK and there is room for it; else removes it, and returns the
 * first failure. To be called once after a begin that succeeded. Of several processes that write one name
 * without replacing, one succeeds. */
weft_status weft_new_folder_end(weft_new_folder *f, weft_status status, weft_may_replace may);

/* Removes it instead: for files that need a folder while they are made. `status` is returned where it is a
 * failure. */
weft_status weft_new_folder_drop(weft_new_folder *f, weft_status status);

/* Exchanges the names of two folders; by way of the name `old`, which nothing has, where the system cannot
 * do it in one step. */
weft_status weft_folder_exchange(const char *fresh, const char *name, const char *old);
