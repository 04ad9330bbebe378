/* The log: one line a record, on standard error.
 *
 * WEFT_LOG=debug|info|warn|error sets the least level that is written (info), WEFT_LOG_TIME=1 puts
 * the time before each line. Colours are used on a terminal only, and not where NO_COLOR is set or
 * TERM is "dumb". Any thread may log; a record is one write, so lines never mix.
 *
 * On a terminal there can be a status line below the records, which the progress bar draws
 * (progress.h): a record is then written above it. */
#pragma once

#include <stdbool.h>

typedef enum { WEFT_LOG_DEBUG, WEFT_LOG_INFO, WEFT_LOG_WARN, WEFT_LOG_ERROR } weft_log_level;

/* Writes a record. Control characters in it, line ends too, become spaces; what is longer than
 * 4000 bytes is cut. */
void weft_log(weft_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Whether records of that level are written. */
bool weft_log_enabled(weft_log_level level);

/* Sets what WEFT_LOG would: for a program's own options. */
void weft_log_set_level(weft_log_level level);

/* Writes every record to a file too, without colours; -1: no more. The descriptor stays the caller's. */
void weft_log_copy(int descriptor);

/* Columns of the terminal that a status line may take; 0 where there can be none, because
 * standard error is no terminal, or a dumb one. */
int weft_log_status_width(void);

/* Draws `text` (one line, at most that many columns) as the status line, in place of the one
 * before; what is between its first [ and ] is coloured where colours are; NULL takes it away. Does nothing where there can be none. */
void weft_log_status(const char *text);
