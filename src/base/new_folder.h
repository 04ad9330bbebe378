/* A folder that is written beside its place and gets its name when it is whole: the one way in which a
 * folder is published, as weft_new_file (files.h) is for a file.
 *
 * NAME.PID-N.tmp is made, marked (folders.h) and held by a lock; its caller fills it. At the end it is
 * synced and gets the name in one step. What had the name before is exchanged for it (renameat2 with
 * RENAME_EXCHANGE) and then removed, whole, so that nothing of it survives in the new one. Where the
 * system cannot exchange, the old one is first renamed to NAME.PID-N.old; a kill between the two renames
 * leaves it there, and whoever next writes NAME puts it back. What other kills leave is marked and held by
 * nobody: whoever next writes NAME removes it. */
#ifndef WEFT_BASE_NEW_FOLDER_H
#define WEFT_BASE_NEW_FOLDER_H

#include "base/folders.h"

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

#endif
