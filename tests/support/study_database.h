/* Run databases with known numbers, made by hand against src/record/schema.h. */
#ifndef WEFT_TESTS_STUDY_DATABASE_H
#define WEFT_TESTS_STUDY_DATABASE_H

#include <sqlite3.h>
#include <stdint.h>

/* A new database with its study row; score is "val_loss", "train_loss" or "metric". */
sqlite3 *study_open(const char *path, const char *name, const char *score);
void study_close(sqlite3 *db);

/* Runs SQL made as by sqlite3_mprintf: %d, %g, %Q for a text in quotes. */
void study_sql(sqlite3 *db, const char *format, ...);

/* A variant; -1: no baseline, repeats none. What it costs follows from its number. */
void study_variant(sqlite3 *db, int variant, const char *name, const char *title, int baseline,
                   int repeats);

/* A run of 100 iterations that is done, with a curve that ends on its score; returns its number.
 * `weights` is the checksum of its weights. */
int64_t study_run(sqlite3 *db, int variant, double rate, int seed, double score,
                  const char *weights);
/* A run that ended otherwise: 'failed', 'diverged', 'waiting', 'running'. */
int64_t study_run_ended(sqlite3 *db, int variant, double rate, int seed, const char *status,
                        const char *why);

/* A rollback journal beside a database of pages of 4,096 bytes that names a super-journal: SQLite removes
 * the file of that name when it plays it back. */
void study_journal(const char *database, const char *victim);

#endif
