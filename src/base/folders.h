/* Folders: made, listed, synced, and removed only where weft made them.
 *
 * A folder that weft may remove again has a mark in it, the file .weft, written before anything else.
 * Removing asks for the mark, never follows a link, neither to the folder nor inside it, and takes
 * the mark away last, so that what a kill leaves half removed is still marked. A folder without the
 * mark is refused, but for an empty one, of which nothing can be lost. */
#pragma once

#include "base/files.h"

/* The mark's name. */
#define WEFT_FOLDER_MARK ".weft"

/* Makes the folder and those above it; an error where nothing can be written to it. */
weft_status weft_folder_make(const char *path);
/* The same of this one alone. */
weft_status weft_folder_make_one(const char *path);
/* Makes a folder that was not there, marked. */
weft_status weft_folder_make_marked(const char *path);
/* Marks one that is there: the caller knows that weft made it. */
weft_status weft_folder_mark(const char *path);
weft_status weft_folder_is_marked(const char *path, bool *out);

/* Syncs a folder's entries. A file system that cannot do that makes them as safe as it can. */
weft_status weft_folder_sync(const char *path);
/* The same of the folder that a path lies in: a name is on disk when its folder is. */
weft_status weft_folder_sync_above(const char *path);

/* The names in a folder, sorted; "." and ".." are left out. */
typedef struct {
    char **list;
    int n;
} weft_names;

weft_status weft_folder_list(const char *path, weft_names *out);
/* The same of one that is open, from its start; `path` names it in messages. */
weft_status weft_folder_list_open(int folder, const char *path, weft_names *out);
void weft_names_free(weft_names *names);

/* Removes a marked folder and all in it; not being there is well. WEFT_EINPUT: it is not weft's, and
 * nothing was removed. */
weft_status weft_folder_remove(const char *path);

/* Reading below a folder that the user named, where others may have put anything.
 *
 * The folder that was named may itself be a link. Below it nothing is: each component of a path is
 * opened by itself and without following, so what was looked at is what is read, whatever takes its
 * name meanwhile. Folders and plain files are opened and nothing else, and no opening waits.
 *
 * A path is names with slashes between them, relative to an open folder. WEFT_EINPUT: something on it is
 * a link, a pipe or a device, or it has an empty name, "." or ".." in it. */

/* The folder that the user named. The caller closes every descriptor. */
weft_status weft_below_root(const char *path, int *descriptor);
/* A folder below; "" is the folder itself. */
weft_status weft_below_folder(int root, const char *path, int *descriptor);
/* A plain file, for reading. */
weft_status weft_below_file(int root, const char *path, int *descriptor);
/* The whole of one, ended by a zero that is not counted; the caller frees it. More than `most` bytes are
 * an error. */
weft_status weft_below_read(int root, const char *path, size_t most, char **out, size_t *bytes);
/* Whether there is a plain file, and what stat says of it. */
bool weft_below_look(int root, const char *path, struct stat *out);
