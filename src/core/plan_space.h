/* Which places of an arena are taken when: the lowest place that is free for a while, found in time
 * that hardly grows with how many were taken before. A model of a thousand layers has a hundred
 * thousand buffers, and each that asks all others makes that squared. */
#ifndef WEFT_CORE_PLAN_SPACE_H
#define WEFT_CORE_PLAN_SPACE_H

#include "base/error.h"

#include <stdint.h>

typedef struct weft_space weft_space;

/* Moments are counted from 0. */
weft_status weft_space_open(int64_t moments, weft_space **out);
void weft_space_close(weft_space *s);

/* Takes the lowest `bytes` in a row that nobody has in any moment from `first` to `last`. */
weft_status weft_space_take(weft_space *s, int64_t first, int64_t last, int64_t bytes,
                            int64_t *offset);

#endif
