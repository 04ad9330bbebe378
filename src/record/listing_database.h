/* What the parts of the listing share: opening by folder or file, and going over rows. */
#ifndef WEFT_RECORD_LISTING_DATABASE_H
#define WEFT_RECORD_LISTING_DATABASE_H

#include "base/files.h"
#include "record/database.h"

/* A database, or a folder's runs.db, opened to read; or, where a folder has none, one that its runs are
 * gathered in. */
weft_status weft_listing_open(const char *path, weft_database **out);

typedef void (*weft_listing_row)(sqlite3_stmt *rows, void *context);
/* Calls `row` for each row of a question without parameters. */
weft_status weft_listing_each(weft_database *d, const char *sql, weft_listing_row row,
                              void *context);

#endif
