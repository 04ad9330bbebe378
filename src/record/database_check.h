/* A database of runs is input: somebody may have written it by hand, or with intent. This is the one
 * place where its values are looked at; whoever reads the tables afterwards may rely on what it says.
 *
 * The tables are weft's own, word for word, and nothing acts on them (a trigger, an index of
 * somebody's). Every column has its type. Steps are numbered from 0 without a gap; what names a step
 * or a run names one that is there; seeds, iterations and counts are whole numbers in their range; a
 * run's folder is a plain name in `runs`. Texts may hold anything: they are escaped where they are
 * shown. */
#ifndef WEFT_RECORD_DATABASE_CHECK_H
#define WEFT_RECORD_DATABASE_CHECK_H

#include "record/database.h"

/* WEFT_EINPUT names the first value that is wrong. `version` is that of the tables. */
weft_status weft_database_check(weft_database *d, int64_t version);

/* Before a database is opened: its path leads to nothing that must not be written, and no rollback
 * journal beside it names another file. SQLite removes the file that a journal names as its
 * super-journal; weft never writes such a journal. */
weft_status weft_database_check_files(const char *path, bool write);

#endif
