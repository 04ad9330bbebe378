/* Starting a run of a study again that cannot go on: its checkpoint is damaged or gone. */
#ifndef WEFT_SUPERVISE_RESTART_H
#define WEFT_SUPERVISE_RESTART_H

#include "record/record.h"

/* Sets aside the folders of runs that failed, as FOLDER.aside-1 and so on, so that these begin anew:
 * all of them where `which` is "failed", else the one by that name ("2-lr0.001-seed1"). */
weft_status weft_restart(weft_database *d, const char *out, const weft_record_runs *jobs,
                         const char *which);

#endif
