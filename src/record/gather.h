/* A folder of runs that no study made, as a database: so that everything that is told of a study can be
 * told of them.
 *
 * Runs whose configs differ by seed and learning rate alone are one step, named after the first of them;
 * the first step is what the others are compared with. The database has no name and goes when it is closed;
 * the runs are not touched. */
#ifndef WEFT_RECORD_GATHER_H
#define WEFT_RECORD_GATHER_H

#include "record/database.h"

/* WEFT_EINPUT where the folder holds no run. */
weft_status weft_gather(const char *folder, weft_database **out);

#endif
