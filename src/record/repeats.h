/* Variants that repeat another: bit for bit the same, or not. */
#ifndef WEFT_RECORD_REPEATS_H
#define WEFT_RECORD_REPEATS_H

#include "record/record.h"

typedef struct {
    int equal, unequal;
} weft_repeats;

/* Compares every ended run of a repeating variant with the run it repeats, of the same rate and seed:
 * the files of weights byte for byte, and every row of metrics. The outcome takes the place of the
 * last one in the database, as an event `equal` or `unequal` of the repeating run; `unequal` says
 * what differs first. `folder` is the study's. */
weft_status weft_repeats_check(weft_database *d, const weft_study *s, const char *folder,
                               weft_repeats *out);

#endif
