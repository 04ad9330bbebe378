/* A folder of runs that no study made, as a database: so that everything that is told of a study can be
 * told of them.
 *
 * Runs whose configs differ by seed and learning rate alone are one variant, named after the first of them;
 * the first variant is what the others are compared with. The database is a file of its own for the moment,
 * and the runs are not touched. */
#ifndef WEFT_RECORD_GATHER_H
#define WEFT_RECORD_GATHER_H

#include "base/files.h"

/* Writes it; the caller removes the file when it has opened it. WEFT_EINPUT where the folder holds no
 * run. */
weft_status weft_gather(const char *folder, char path[WEFT_PATH_MAX]);

#endif
