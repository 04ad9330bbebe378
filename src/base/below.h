/* Reading below a folder that the user named, where others may have put anything.
 *
 * The folder that was named may itself be a link. Below it nothing is: each component of a path is
 * opened by itself and without following, so what was looked at is what is read, whatever takes its
 * name meanwhile. Folders and plain files are opened and nothing else, and no opening waits.
 *
 * A path is names with slashes between them, relative to an open folder. WEFT_EINPUT: something on it is
 * a link, a pipe or a device, or it has an empty name, "." or ".." in it. */
#ifndef WEFT_BASE_BELOW_H
#define WEFT_BASE_BELOW_H

#include "base/files.h"

#include <sys/stat.h>

/* The folder that the user named. The caller closes every descriptor. */
weft_status weft_below_root(const char *path, int *descriptor);
/* A folder below; "" is the folder itself. */
weft_status weft_below_folder(int root, const char *path, int *descriptor);
/* A plain file, for reading; the same as a stream. */
weft_status weft_below_file(int root, const char *path, int *descriptor);
weft_status weft_below_stream(int root, const char *path, FILE **out);
/* The whole of one, ended by a zero that is not counted; the caller frees it. More than `most` bytes are
 * an error. */
weft_status weft_below_read(int root, const char *path, size_t most, char **out, size_t *bytes);
/* Whether there is a plain file, and what stat says of it. */
bool weft_below_look(int root, const char *path, struct stat *out);

#endif
