/* Which files processes of this machine hold by a lock, as the kernel lists them in /proc/locks. Asking
 * by trying to lock would for a moment keep the file from a run that starts. */
#ifndef WEFT_RECORD_LOCKS_H
#define WEFT_RECORD_LOCKS_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct weft_locks weft_locks;

weft_status weft_locks_open(weft_locks **out);
void weft_locks_close(weft_locks *l);

/* Takes the list anew. Where there is none, nothing is held. */
void weft_locks_read(weft_locks *l);
/* By the number of the file's inode. */
bool weft_locks_has(const weft_locks *l, uint64_t number);

#endif
