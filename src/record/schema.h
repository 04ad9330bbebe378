/* The database of runs: its tables, and what must hold of the values in them. docs/guide/studies.md tells
 * what each column holds.
 *
 * The view `contents` is what a study says of itself: everything but time, speed, memory, the
 * machine, and the events of starting and going on. It has one text row a fact and an order of its
 * own, so two databases hold the same study where it gives the same rows.
 *
 * Whoever reads the tables may rely on this: every column has its type. Variants are numbered from 0
 * without a gap; what names a variant or a run names one that is there; seeds, iterations and counts are
 * whole numbers in their range; a run's folder is a plain name in `runs`. Texts may hold anything: they are
 * escaped where they are shown. */
#ifndef WEFT_RECORD_SCHEMA_H
#define WEFT_RECORD_SCHEMA_H

#include "record/database.h"

enum { WEFT_SCHEMA_VERSION = 3 };

extern const weft_schema weft_runs_schema;

#endif
