/* A study's folder: holding it against a second study, and how much room it has. */
#ifndef WEFT_SUPERVISE_FOLDER_H
#define WEFT_SUPERVISE_FOLDER_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* Holds it until the descriptor is closed or the process ends. */
weft_status weft_folder_hold(const char *path, int *descriptor);
/* Bytes that may still be written there; -1: unknown. */
int64_t weft_folder_room(const char *path);
/* Waits until no process trains into a run's folder, at most `seconds`. */
void weft_folder_wait(const char *path, double seconds);

#endif
