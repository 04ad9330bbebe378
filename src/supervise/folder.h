/* A study's folder: holding it against a second study, how much room it has, and what stays in the folders
 * of its runs. */
#pragma once

#include "record/record.h"

/* Holds it until the descriptor is closed or the process ends. */
weft_status weft_folder_hold(const char *path, int *descriptor);
/* Bytes that may still be written there; -1: unknown. */
int64_t weft_folder_room(const char *path);
/* Waits until no process trains into a run's folder, at most `seconds`. */
void weft_folder_wait(const char *path, double seconds);

/* Sets aside the folders of runs that failed and cannot go on, as FOLDER.aside-1 and so on, so that these begin
 * anew: all of them where `which` is "failed", else the one by that name ("2-lr0.001-seed1"). */
weft_status weft_restart(weft_database *d, const char *out, const weft_record_runs *jobs,
                         const char *which);

/* Whether a run's weights stay once it is done (STUDY_WEIGHTS). Those of a variant that repeats another, and of
 * that other, stay in any case: their bits are compared. */
bool weft_weights_stay(const weft_study *s, const weft_record_run *job);
/* Removes the checkpoints of a run that is done. What is not weft's stays. */
weft_status weft_weights_remove(const char *folder);
