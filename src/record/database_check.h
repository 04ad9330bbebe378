/* What must hold of the values in a database of runs, whose tables are as schema.h has them
 * (database.h). Whoever reads the tables afterwards may rely on it.
 *
 * Every column has its type. Variants are numbered from 0 without a gap; what names a variant or a run names
 * one that is there; seeds, iterations and counts are whole numbers in their range; a run's folder is a
 * plain name in `runs`. Texts may hold anything: they are escaped where they are shown. */
#ifndef WEFT_RECORD_DATABASE_CHECK_H
#define WEFT_RECORD_DATABASE_CHECK_H

#include "record/database.h"

/* WEFT_EINPUT names the first value that is wrong. `version` is that of the tables. */
weft_status weft_database_check(weft_database *d, int64_t version);

/* The database of runs. */
extern const weft_schema weft_runs_schema;

#endif
